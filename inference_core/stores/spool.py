"""Spool: memories that were saved while the database was away, in files of this machine until it is back.

Each process writes a file of its own, a line a memory, and holds a lock on it. Files that nobody holds are those of
processes that ended before the database was back; whoever opens the store next takes them over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from uuid import uuid4

from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Delete, Key, Put
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.locks import FileLock
from inference_core.stores.put_json import put_from_json, put_to_json

_LOG = logging.getLogger(__name__)
MAX_BYTES: Final = 64 * 1024 * 1024


class Conflict(NamedTuple):
    """A memory that the database refused, as a rule since another one stands under its id; ``file`` still holds it."""

    key: Key
    file: Path


def look_into(folder: Path, store: str) -> tuple[int, list[Conflict]]:
    """How many memories wait in ``folder`` for ``store``, in all processes, and the conflicts; nothing is changed."""
    waiting, conflicts = 0, list[Conflict]()
    for path in _files(folder, store):
        puts, keys = _read(path)
        waiting += len(puts)
        conflicts += [Conflict(key, path) for key in keys]
    return waiting, conflicts


class Spool:
    """The queue of one store in ``folder``, first in, first out.

    Raises ConfigurationError if that cannot be written, or holds a damaged file, which stays as it is.

    ``waiting`` holds what waits as rows, for recall meanwhile.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self._lock = threading.Lock()
        self._queue: dict[Key, tuple[Put, _SpoolFile]] = {}
        self._conflicts: list[Conflict] = []
        self.waiting = InMemoryBackend()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own = _SpoolFile(folder / f"{_prefix(store)}-{uuid4().hex}.jsonl")
        except OSError as error:
            raise ConfigurationError(f"Cannot write the spool in {folder}: {error}") from error
        self._files = [self._own]
        try:
            for path in _files(folder, store):
                self._take_over(path)
        except ConfigurationError:
            self._free()
            raise

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, puts: Sequence[Put]) -> None:
        """Queues ``puts``, which are on this machine's disk then. Raises StoreUnavailable if that fails."""
        with self._lock:
            try:
                self._own.append([_encoded({"put": put_to_json(put)}) for put in puts])
            except OSError as error:
                raise StoreUnavailable(f"Neither the store nor the spool can be written: {error}") from error
            self._enqueue(puts, self._own)

    def first(self, count: int) -> list[Put]:
        """The first ``count`` that wait."""
        with self._lock:
            return [put for put, _ in list(self._queue.values())[:count]]

    def holds(self, scopes: Iterable[Namespace]) -> bool:
        """Whether something of ``scopes`` waits."""
        wanted = set(scopes)
        with self._lock:
            return any(namespace in wanted for namespace, _ in self._queue)

    def remove(self, keys: Iterable[Key]) -> bool:
        """Takes what was stored or deleted off the queue; whether any of it was waiting."""
        with self._lock:
            gone = [self._leave(key, "done") for key in keys if key in self._queue]
            if gone:
                self._tidy()
        return bool(gone)

    def conflict(self, key: Key) -> None:
        """Takes ``key`` off the queue and keeps it on the list of conflicts and in its file."""
        with self._lock:
            if key in self._queue:
                self._conflicts.append(Conflict(key, self._leave(key, "conflict").path))

    def conflicts(self) -> list[Conflict]:
        """What could not be stored, in this process and in those before it."""
        with self._lock:
            return list(self._conflicts)

    def close(self) -> None:
        """Frees the files; those that hold nothing any more are removed."""
        with self._lock:
            self._tidy()
            self._free()

    def _free(self) -> None:
        for file in self._files:
            file.close()
        self.waiting.close()

    def _take_over(self, path: Path) -> None:
        if path == self._own.path:
            return
        try:
            file = _SpoolFile(path)
        except BlockingIOError:
            return  # another process holds it
        self._files.append(file)
        puts, conflicts = _read(path)
        self._enqueue(puts, file)
        self._conflicts += [Conflict(key, path) for key in conflicts]
        if puts:
            _LOG.info("%d memories wait in the spool of a process that has ended", len(puts))

    def _enqueue(self, puts: Sequence[Put], file: _SpoolFile) -> None:
        for put in puts:
            self._queue[put.namespace, put.key] = (put, file)
        self.waiting.apply([[replace(put, expected=None) for put in puts]])

    def _leave(self, key: Key, why: str) -> _SpoolFile:
        put, file = self._queue.pop(key)
        self.waiting.apply([[Delete(namespace=put.namespace, key=put.key)]])
        file.note(why, put)
        return file

    def _tidy(self) -> None:
        busy = {file for _, file in self._queue.values()} | {self._own}
        disputed = {conflict.file for conflict in self._conflicts}
        for file in [file for file in self._files if file not in busy and file.path not in disputed]:
            file.remove()
            self._files.remove(file)
        if not self._queue and self._own.path not in disputed:
            self._own.empty()


class _SpoolFile:
    """One file of a spool, locked. Raises BlockingIOError if another process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path)
        if not self._lock.acquire_now():
            self._lock.close()
            raise BlockingIOError(f"{path} is in use")
        self._file: BinaryIO = path.open("ab")
        path.chmod(0o600)
        self._cut()

    def append(self, lines: Sequence[bytes]) -> None:
        """Writes ``lines``, or nothing if that fails."""
        size = self._file.tell()
        if size > MAX_BYTES:
            raise OSError(f"the spool has reached {MAX_BYTES} bytes")
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(size)
            raise

    def note(self, why: str, put: Put) -> None:
        """Notes what became of ``put``; if that fails, it is found to be stored at the next try."""
        with self._forgiving():
            self._file.write(_encoded({why: [list(put.namespace), put.key]}))
            self._file.flush()

    def empty(self) -> None:
        """Forgets everything."""
        with self._forgiving():
            self._file.truncate(0)

    def remove(self) -> None:
        """Deletes the file."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Frees the file, and deletes it if it is empty."""
        if self.path.exists() and not self.path.stat().st_size:
            self.path.unlink()
        self._file.close()
        self._lock.close()

    def _cut(self) -> None:
        """Removes a last line that was not finished, so that what is written next begins a line."""
        content = self.path.read_bytes()
        self._file.truncate(content.rfind(b"\n") + 1)

    @contextmanager
    def _forgiving(self) -> Generator[None]:
        """The memory is safe by now, whether this can be written or not."""
        try:
            yield
        except OSError as error:
            _LOG.warning("The spool's file %s cannot be written: %s", self.path, error)


def _prefix(store: str) -> str:
    return hashlib.sha256(store.encode()).hexdigest()[:16]


def _files(folder: Path, store: str) -> list[Path]:
    return sorted(folder.glob(f"{_prefix(store)}-*.jsonl"))


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _read(path: Path) -> tuple[list[Put], list[Key]]:
    """What waits, and the conflicts; a line that was not finished counts for nothing. Raises ConfigurationError."""
    waiting: dict[Key, Put] = {}
    conflicts: list[Key] = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            found: dict[str, Any] = json.loads(line)
            if "put" in found:
                put = replace(put_from_json(found["put"]), expected=0)
                waiting[put.namespace, put.key] = put
            else:
                ((why, (namespace, key)),) = found.items()
                waiting.pop((tuple(namespace), key), None)
                conflicts += [(tuple(namespace), key)] if why == "conflict" else []
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"The spool's file {path} is damaged: {error}. Mend it or move it away") from error
    return list(waiting.values()), conflicts
