"""Journal: the lines of one file, and the table that they make.

The first line is a header; every other one holds the cells that a batch has written. The table is made of what was read
from the file alone, also after a write of this process. A journal is only ever appended to; compaction replaces the
file by one of another generation.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

from inference_core.errors import StoreError
from inference_core.stores.backend import Key
from inference_core.stores.backends.file_entries import pack_cells, pack_object, unpack_cells
from inference_core.stores.backends.file_lines import Lines
from inference_core.stores.cells import Cell
from inference_core.stores.table import Table

TEMPORARY: Final = ".tmp"
SLACK_BYTES: Final = 16 * 1024
"""A journal is compacted when this much and more than half of it is stale."""
_TAIL_BYTES: Final = 24
Signature = tuple[int, int, int]


class Append(NamedTuple):
    """Bytes of whole lines for the end, at byte ``at``, of a file of this generation."""

    path: Path
    generation: str
    at: int
    lines: bytes


class Journal:
    """The file at ``path``, which need not be there, as of the last `refresh`. Hold ``lock`` while using the table."""

    def __init__(self, path: Path, lines: Lines) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._lines = lines
        self._forget()

    def refresh(self) -> None:
        """Reads what was appended since the last time, or everything if the file is another one.

        A last line without its end is not there yet. Raises StoreError for any other damage, naming file and line.
        """
        seen = signature(self.path)
        if seen is None:
            self._forget()
        elif seen != self._seen:
            with suppress(FileNotFoundError), self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                self._read(file, (status.st_ino, status.st_size, status.st_mtime_ns))

    def cut(self) -> None:
        """Cuts off a last line without its end. Call it while holding the store's lock, after a refresh."""
        if self._seen and self._seen[1] > self.end:
            truncate(self.path, self.end)
            self._seen = signature(self.path)

    def append_of(self, root: str, bodies: Sequence[bytes]) -> Append:
        """What to append for ``bodies``, with a header that names ``root`` if the file is new."""
        generation = self.generation or secrets.token_hex(8)
        header = [] if self.end else [self._lines.seal(_header(root, generation), self._place("", 0))]
        first = self._count or 1
        sealed = [self._lines.seal(body, self._place(generation, first + at)) for at, body in enumerate(bodies)]
        return Append(self.path, generation, self.end, b"".join(line + b"\n" for line in [*header, *sealed]))

    def compact(self) -> None:
        """Replaces the file by one without stale lines. Call it while holding the store's lock. Raises OSError."""
        cells = sorted(self.table.cells(), key=lambda one: one[1].seq)
        fresh = Journal(self.path, self._lines).append_of(self.root, [pack_cells([one]) for one in cells])
        replace_file(self.path, fresh.lines)

    def salvage(self) -> None:
        """Replaces the file by one of those lines that can be read; of a file without its head nothing can.

        What a damaged line has changed is as it was before it, also what it has deleted. Call it while holding the
        store's lock. Raises OSError.
        """
        self._forget()
        with self.path.open("rb") as file:
            for line in file:
                with suppress(StoreError):
                    self._take(line[:-1])
                if not self.root:
                    break
                self._count += 1
        if self.root:
            self.compact()
        else:
            self.path.unlink()
            sync_folder(self.path.parent)

    @property
    def lines(self) -> int:
        """How many lines were read before the end, or before the first that is damaged."""
        return self._count

    @property
    def is_stale(self) -> bool:
        """Whether compaction is worth it."""
        return self.end > 2 * self._live + SLACK_BYTES

    def _forget(self) -> None:
        self.table = Table()
        self.root = ""
        self.generation = ""
        self.end = 0
        self._count = 0
        self._tail = b""
        self._seen: Signature | None = None
        self._sizes: dict[Key, int] = {}
        self._live = 0

    def _read(self, file: BinaryIO, seen: Signature) -> None:
        if not self._goes_on(file, seen):
            self._forget()
        file.seek(self.end)
        for line in file:
            if not line.endswith(b"\n"):
                self._check_torn(line)
                break
            self._take(line[:-1])
            self.end += len(line)
            self._tail = (self._tail + line)[-_TAIL_BYTES:]
            self._count += 1
        self._seen = seen

    def _goes_on(self, file: BinaryIO, seen: Signature) -> bool:
        """Whether the file begins with what was read; each line ends in a checksum, so the last few bytes tell."""
        if self._seen is None or self._seen[0] != seen[0] or seen[1] < self.end:
            return False
        file.seek(self.end - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _check_torn(self, line: bytes) -> None:
        """A line that was torn while it was written is no whole line before its last byte."""
        with suppress(ValueError):
            self._unsealed(line[:-1])
            raise self._damage("its end is missing")

    def _take(self, line: bytes) -> None:
        try:
            body = self._unsealed(line)
            if self._count:
                self._absorb(unpack_cells(body), len(line))
            else:
                self._begin(*_unpack_header(body))
        except ValueError as error:
            raise self._damage(error) from error

    def _unsealed(self, line: bytes) -> bytes:
        return self._lines.unseal(line, self._place(self.generation, self._count))

    def _damage(self, what: object) -> StoreError:
        return StoreError(
            f"{self.path}, line {self._count + 1} is damaged: {what}. Nothing was changed; restore it from a backup"
        )

    def _begin(self, root: str, generation: str) -> None:
        if self._lines.file_name(root) != self.path.name:
            raise ValueError("it names the owner of another file")
        self.root, self.generation = root, generation

    def _absorb(self, cells: Sequence[tuple[Key, Cell]], size: int) -> None:
        if any(namespace[:1] != (self.root,) for (namespace, _), _ in cells):
            raise ValueError("it holds what belongs into another file")
        for key, cell in cells:
            self.table.set(key, cell)
            self._live += size // len(cells) - self._sizes.get(key, 0)
            self._sizes[key] = size // len(cells)

    def _place(self, generation: str, number: int) -> bytes:
        return f"{self.path.name}\n{generation}\n{number}".encode()


def signature(path: Path) -> Signature | None:
    """What differs after every change of a file; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def append(given: Append) -> None:
    """Appends whole lines; durable when it returns. Raises OSError."""
    with _writing(given.path, "r+b" if given.at else "wb") as file:
        file.truncate(given.at)
        file.seek(given.at)
        file.write(given.lines)


def truncate(path: Path, size: int) -> None:
    """Cuts a file to ``size`` bytes, durably; no bytes are no file. Raises OSError."""
    if size:
        with _writing(path, "r+b") as file:
            file.truncate(size)
    else:
        path.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file as a whole or not at all; durable when it returns. Raises OSError."""
    temporary = path.with_name(path.name + TEMPORARY)
    with _writing(temporary, "wb") as file:
        file.write(content)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes names of files durable. Raises OSError."""
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(path: Path, mode: Literal["r+b", "wb"]) -> Generator[BinaryIO]:
    with path.open(mode) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _header(root: str, generation: str) -> bytes:
    return pack_object({"root": root, "generation": generation})


def _unpack_header(body: bytes) -> tuple[str, str]:
    match json.loads(body):
        case {"root": str(root), "generation": str(generation)}:
            return root, generation
        case _:
            raise ValueError("it is not the head of a journal")
