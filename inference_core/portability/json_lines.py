"""Exports: a store as JSON Lines that people can read, with checksums, and back.

The first line names format and version, the last one counts the rows; each row has a checksum of its own, and the last
line one of all. A name that ends in ``.gz`` is compressed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, Final, cast

from inference_core.errors import InvalidInput, UnsupportedSchema
from inference_core.portability.copying import Progress
from inference_core.portability.rows import PORTION, puts_of
from inference_core.portability.writing import ConflictPolicy, TransferReport, Writer
from inference_core.stores.backend import EMBEDDING_META, Backend, Put
from inference_core.stores.put_json import put_from_json, put_to_json

FORMAT: Final = "inference-core-memory"
VERSION: Final = 1
_LONGEST_LINE: Final = 64 * 1024 * 1024
_CHECKSUM: Final = 16


def export_store(
    backend: Backend,
    path: Path,
    *,
    user_ids: Sequence[str] = (),
    with_vectors: bool = False,
    progress: Progress | None = None,
) -> TransferReport:
    """Writes the rows of ``backend``, of these users or of all, into the file ``path``.

    The file appears when it is whole, and only its owner may read it. Vectors are left out unless asked for; an import
    makes them anew. Rows that cannot be read are left out and counted. Raises InvalidInput, StoreError, OSError.
    """
    report = TransferReport()
    total = hashlib.sha256()
    with _new_file(path) as file:
        model = backend.get_meta(EMBEDDING_META) if with_vectors else None
        file.write(_encoded({"format": FORMAT, "version": VERSION, "embedding": model}))
        for portion in puts_of(backend, user_ids, report, with_vectors=with_vectors):
            for put in portion:
                row = put_to_json(put, with_vectors=with_vectors)
                encoded = _encoded(row)
                total.update(encoded.encode())
                file.write(_encoded({"row": row, "sha256": _checksum(encoded)}))
            report.read += len(portion)
            if progress:
                progress(report.read, max(report.total or 0, report.read))
        file.write(_encoded({"rows": report.read, "sha256": total.hexdigest()}))
    report.written = report.read
    return report


def import_store(
    path: Path, backend: Backend, *, policy: ConflictPolicy = ConflictPolicy.NEWER, progress: Progress | None = None
) -> TransferReport:
    """Writes the rows of an export into ``backend``; safe to repeat, to interrupt and beside writers.

    Raises InvalidInput for a file that is no export, damaged or cut off, naming the line; UnsupportedSchema for one of
    a newer version; StoreError. What stood before the fault was written and stays.
    """
    report = TransferReport()
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        writer = Writer(backend, policy, report)
        puts = _puts(cast("IO[str]", file), writer, path)
        while portion := list(islice(puts, PORTION)):
            writer.write(portion)
            if progress:
                progress(report.read, report.read)
    report.total = report.read
    return report


def _puts(file: IO[str], writer: Writer, path: Path) -> Iterator[Put]:
    """The rows of the file. Raises InvalidInput behind the last good one."""
    total = hashlib.sha256()
    rows = 0
    for number, found in enumerate(_objects(file, path), 1):
        if number == 1:
            version, model = found.get("version"), found.get("embedding")
            if found.get("format") != FORMAT:
                raise InvalidInput(f"{path} is no export of this package")
            if not isinstance(version, int) or version > VERSION:
                raise UnsupportedSchema(f"{path} has version {version!r:.20}; this package reads up to {VERSION}")
            writer.adopt_model(model if isinstance(model, str) else None)
        elif "row" in found:
            row = _encoded(found["row"])
            if found.get("sha256") != _checksum(row):
                raise InvalidInput(f"{path} is damaged in line {number}: its checksum does not fit")
            total.update(row.encode())
            rows += 1
            try:
                yield put_from_json(found["row"])
            except InvalidInput as error:
                raise InvalidInput(f"{path}, line {number}: {error}") from error
        elif found == {"rows": rows, "sha256": total.hexdigest()}:
            return
        else:
            raise InvalidInput(f"{path} is damaged: it ends with {found.get('rows')!r:.20} rows, and {rows} were read")
    raise InvalidInput(f"{path} is cut off after {rows} rows; they were imported, the rest is missing")


def _objects(file: IO[str], path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the file, each of which is a JSON object."""
    for number in count(1):
        try:
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            found = json.loads(line)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path} cannot be read on: {error}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is damaged or cut off in line {number}: it is not JSON") from error
        if not isinstance(found, dict):
            raise InvalidInput(f"{path} is no export of this package: line {number} is not an object")
        yield cast("dict[str, Any]", found)


def _encoded(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n"


def _checksum(row: str) -> str:
    return hashlib.sha256(row.encode()).hexdigest()[:_CHECKSUM]


@contextmanager
def _new_file(path: Path) -> Generator[IO[str]]:
    """A file that takes its name when it is whole."""
    part = path.with_name(path.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            binary = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if path.suffix == ".gz" else raw
            with TextIOWrapper(binary, encoding="utf-8", newline="\n") as file:  # pyright: ignore[reportArgumentType] - GzipFile is one
                yield file
                file.flush()
                if binary is not raw:
                    binary.close()
                raw.flush()
                os.fsync(raw.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
