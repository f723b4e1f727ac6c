"""Reads JSON files and zip archives of any size, value by value. Refuses damaged and hostile input."""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import IO, Any, Final

from inference_core.errors import InvalidInput

MAX_VALUE_CHARACTERS: Final = 64 * 1024 * 1024
"""The longest single value: a conversation, a line."""
_CHUNK: Final = 1024 * 1024
_MAX_RATIO: Final = 200
_FREE_BYTES: Final = 16 * _CHUNK
_BETWEEN: Final = re.compile(r"[\s,]*")


def json_values(path: Path) -> Iterator[tuple[str, Any]]:
    """The values in a JSON file, each with its place: the elements of arrays, or values one after the other.

    Of a zip archive, those of its files ``conversations….json``. Only one value at a time is in memory. Raises
    InvalidInput, which says where, for input that is not JSON, damaged, too large, or unpacks to far more than its
    size.
    """
    with text_files(path, r"conversations[^/]*\.json") as files:
        count = 0
        for file in files:
            for value in _values(file, f"{path}, value", count):
                count += 1
                yield f"value {count}", value


def _values(file: IO[str], where: str, before: int) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    buffer, at, count, is_array, is_over = "", 0, before, None, False
    while True:
        at = _BETWEEN.match(buffer, at).end()  # pyright: ignore[reportOptionalMemberAccess] - matches anything
        if is_array is None and at < len(buffer):
            is_array = buffer[at] == "["
            at += is_array
            continue
        if is_array and buffer.startswith("]", at):
            is_array, at = None, at + 1  # another array may follow, such as the next page of an API
            continue
        try:
            value, end = decoder.raw_decode(buffer, at)
            if end < len(buffer) or is_over:  # else a number may go on in the next chunk: 12, 123
                at, count = end, count + 1
                yield value
                continue
        except (ValueError, RecursionError) as error:
            if is_over and (at < len(buffer) or is_array):
                raise InvalidInput(f"{where} {count + 1} is not JSON, or cut off: {error!s:.100}") from error
        if is_over:
            return
        size = len(buffer) - at
        if size > MAX_VALUE_CHARACTERS:
            raise InvalidInput(
                f"{where} {count + 1} is not JSON, or has more than {MAX_VALUE_CHARACTERS // 1024**2} MB"
            )
        try:
            more = file.read(max(_CHUNK, size))  # doubles the buffer, so that the total time is linear
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{where.removesuffix(', value')} is not text in UTF-8: {error}") from error
        is_over = not more
        buffer, at = buffer[at:] + more, 0


@contextmanager
def text_files(path: Path, member: str) -> Generator[Iterator[IO[str]]]:
    """The file as text, or the files in a zip archive whose names match ``member``, sorted. Raises InvalidInput."""
    try:
        if not zipfile.is_zipfile(path):
            with path.open(encoding="utf-8-sig") as file:
                yield iter([file])
            return
        with zipfile.ZipFile(path) as archive:
            names = sorted(one for one in archive.namelist() if re.fullmatch(member, one.rpartition("/")[2]))
            if not names:
                raise InvalidInput(f"{path} holds no conversations: no file in it is named as in a known export")
            sizes = {name: archive.getinfo(name).compress_size for name in names}
            bounded = (_Bounded(archive.open(name), f"{path}, {name}", size) for name, size in sizes.items())
            yield (TextIOWrapper(BufferedReader(raw, _CHUNK), encoding="utf-8-sig") for raw in bounded)
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error}") from error
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise InvalidInput(f"{path} is no zip archive that can be read: {error}") from error


class _Bounded(RawIOBase):
    """A file in an archive that may not unpack to far more than its size."""

    def __init__(self, file: IO[bytes], name: str, packed: int) -> None:
        self._file, self._name = file, name
        self._left = packed * _MAX_RATIO + _FREE_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        self._left -= len(found)
        if self._left < 0:
            raise InvalidInput(f"{self._name} unpacks to more than {_MAX_RATIO} times its size")
        return len(found)


def text_lines(file: IO[str], where: str) -> Iterator[tuple[int, str]]:
    """The lines of ``file`` and their numbers, from 1. Raises InvalidInput for one too long or not in UTF-8."""
    try:
        for number, line in enumerate(iter(partial(file.readline, _CHUNK + 1), ""), 1):
            if len(line) > _CHUNK:
                raise InvalidInput(f"{where}, line {number} has more than {_CHUNK} characters")
            yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where} is not text in UTF-8: {error}") from error
