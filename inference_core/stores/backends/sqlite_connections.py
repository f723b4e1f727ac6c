"""Connections to one SQLite file: for its one writer and any number of readers, and whether the file is still there."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from inference_core.errors import ConfigurationError, ReadOnlyStore, StoreError, StoreUnavailable, in_one_line
from inference_core.stores.backends import sqlite_schema
from inference_core.stores.backends.columns import Undecodable
from inference_core.stores.locks import FileLock

_BUSY_TIMEOUT_MS: Final = 5_000
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Connections:
    """Connections to the file at ``path``, which is made unless it is ``read_only``.

    A file that may not be written is opened for reading alone. Raises ConfigurationError if it cannot be opened at all,
    UnsupportedSchema if a newer version wrote it.
    """

    def __init__(self, path: Path, *, durable: bool, read_only: bool) -> None:
        self._path = path.absolute()  # a program that changes its folder must not find another file
        self._name = str(self._path)
        self._is_immutable = False
        self._durable = durable
        self._idle: list[sqlite3.Connection] = []
        self._write_lock = threading.Lock()
        self._opened = ExitStack()
        self._closed = False
        self.is_writable = not read_only
        touched = (self._path, self._path.parent) if self._path.is_file() and self.is_writable else ()
        if not all(os.access(place, os.W_OK) for place in touched):
            _LOG.warning("%s or its folder cannot be written; it is opened for reading alone", self._path)
            self.is_writable = False
        self._mode = "mode=rw" if self.is_writable else "mode=ro"
        try:
            if self.is_writable:
                self._open_for_writing()
            else:
                self._open_for_reading()
            self._file = self._found()
        except (OSError, ValueError, StoreUnavailable) as error:
            self._opened.close()
            raise ConfigurationError(f"Cannot open the store at {path}: {error}. Is the folder writable?") from error
        except BaseException:
            self._opened.close()
            raise

    @contextmanager
    def reader(self, *, is_patient: bool = False) -> Generator[sqlite3.Connection]:
        """A connection that reads; ``is_patient``: texts that are not UTF-8 as `Undecodable`.

        Raises StoreUnavailable, also if the file is not the one that was opened.
        """
        if self._closed:
            raise StoreUnavailable("The store is closed")
        self._check_file()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(self._mode)
        connection.text_factory = _decoded if is_patient else str
        try:
            with translated():
                yield connection
        finally:
            self._idle.append(connection)
            if self._closed:  # meanwhile
                self._drop_idle()

    def attempt(self, read: Callable[[sqlite3.Connection], T], *, is_patient: bool = False) -> T:
        """What ``read`` makes of a connection; once more if a text is not UTF-8, with such texts as `Undecodable`.

        Decoding by ourselves takes three times as long, so it is done only then.
        """
        try:
            with self.reader(is_patient=is_patient) as reader:
                return read(reader)
        except UndecodableText:
            return self.attempt(read, is_patient=True)

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """The writer, in a transaction that is durable afterwards. Raises ReadOnlyStore, StoreUnavailable."""
        with self._write_lock:
            if self._closed:
                raise StoreUnavailable("The store is closed")
            if not self.is_writable:
                raise ReadOnlyStore(f"{self._path} was opened for reading alone; nothing was changed")
            with self._turns, translated():
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    if self._writer.in_transaction:
                        # A deleted file takes writes as long as it is open, and is gone with the process: at the last
                        # moment before the commit, so that nobody is told "saved" of it.
                        self._check_file()
                        self._writer.execute("COMMIT")
                finally:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")

    def close(self) -> None:
        """Closes all connections; the last one to a file folds its journal into it."""
        self._closed = True
        self._drop_idle()
        with self._write_lock:
            self._opened.close()

    def _drop_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _open_for_writing(self) -> None:
        if self._path.is_dir():
            raise IsADirectoryError("it is a folder")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._turns = self._opened.enter_context(closing(FileLock(self._path.with_name(self._path.name + ".lock"))))
        with self._turns:
            self._writer = self._opened.enter_context(closing(self._connect("mode=rwc")))
            with translated():
                sqlite_schema.migrate(self._writer)

    def _open_for_reading(self) -> None:
        """Finds out how the file can be read, and whether this version can read it.

        A file with a journal needs the journal's index, which cannot be made in a folder that is read-only. If the
        journal is empty, nobody has the file open for writing, and it can be read as something that does not change.
        """
        if not self._path.is_file():
            raise FileNotFoundError("there is no such file")
        try:
            version = self._version()
        except StoreUnavailable:
            journal = self._path.with_name(self._path.name + "-wal")
            if journal.exists() and journal.stat().st_size:
                raise
            self._mode, self._is_immutable = "mode=ro&immutable=1", True
            version = self._version()
        if version < sqlite_schema.READABLE:
            raise ConfigurationError(
                f"The store at {self._path} has schema version {version}, which must be brought up to date first: "
                "open it once where it may be written"
                if version
                else f"There is no store at {self._path}"
            )

    def _version(self) -> int:
        with closing(self._connect(self._mode)) as connection, translated():
            return sqlite_schema.checked_version(connection)

    def _connect(self, mode: str) -> sqlite3.Connection:
        with translated():
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
                connection.execute("PRAGMA foreign_keys = ON")
                # FULL: a commit survives a power loss.
                connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            except BaseException:
                connection.close()
                raise
        return connection

    def _found(self) -> tuple[int, ...] | None:
        """What tells the file at the path from others; of one that should not change, from what it was, too."""
        try:
            status = os.stat(self._name)  # noqa: PTH116 - before every read and commit, and a Path takes twice as long
        except OSError:
            return None
        if self._is_immutable:
            return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return status.st_dev, status.st_ino

    def _check_file(self) -> None:
        if self._found() != self._file:
            raise StoreUnavailable(
                f"The file {self._path} was deleted, replaced or changed while the store was open; nothing was saved. "
                "Bring it back and open the store again, which means restarting the program"
            )


class UndecodableText(StoreError):
    """A stored text is not UTF-8. Python raises at such a text, quotes it, and ends the whole statement."""


@contextmanager
def translated() -> Generator[None]:
    """Makes what sqlite3 raises into StoreErrors. Their messages hold no data of a row."""
    try:
        yield
    except sqlite3.Error as error:
        if not hasattr(error, "sqlite_errorcode") and "decode" in str(error):
            raise UndecodableText("SQLite: a stored text is not UTF-8; see inference-core doctor") from None
        raise StoreUnavailable(f"SQLite: {in_one_line(error)}") from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise StoreError(f"SQLite cannot hold this: {in_one_line(error)}") from error


def _decoded(raw: bytes) -> str | Undecodable:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Undecodable(raw)
