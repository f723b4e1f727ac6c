"""SQLite: one file for many threads and processes, with nothing but the standard library.

The journal is a WAL: readers never wait for the writer, nor the writer for readers. A commit is on disk when `apply`
returns.

Connections to one SQLite file, and the tables in it.

The journal is a WAL: one connection writes, each reader has its own and sees the last commit, and neither waits for the
other.

SQLite finds the journal and its index by their names, and does not look whether they are still there. So a file with
two names has two journals, and each program overwrites what the other has saved; and what is written to a journal that
somebody removed ends with the process. Before each commit, the names are looked at. Connections that still have a
removed journal open can move what is in it to the file, which nobody else can do any more (`_renew`). A file whose
journal was removed is not opened before they have.

The tables may share a file with others, such as a checkpointer's.
"""

from __future__ import annotations

import heapq
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from inference_core.clock import Clock
from inference_core.errors import ConfigurationError, ReadOnlyStore, StoreError, StoreUnavailable, in_one_line
from inference_core.memory.namespaces import AUDIT, SALT, Namespace
from inference_core.retrieval.documents import Change
from inference_core.stores.backend import (
    EMBEDDING_META,
    Batch,
    Capabilities,
    Cursor,
    Key,
    Outcome,
    PageRequest,
    Place,
    Put,
    Row,
    RowState,
    Unreadable,
    check_schema,
    expiry_micros,
    keys_of,
    pack_namespace,
    scopes_made,
    to_micros,
    unpack_namespace,
    waits_for_disk,
)
from inference_core.stores.backends.rows import is_event
from inference_core.stores.backends.sql.base import (
    ALIVE,
    CHANGE,
    CLEARED,
    CREATED,
    KEY,
    REPLACED,
    ROW,
    ROWS,
    STATE,
    WRITTEN,
    Heads,
    Refused,
    SqlBackend,
    Undecodable,
    cursor_of,
    decide,
    inspected,
    row_of,
    state_of,
)
from inference_core.stores.locks import OTHER_NAME, FileLock, check_names, make_private

_BUSY_TIMEOUT_MS: Final = 5_000
MAX_IDLE: Final = 10
"""So many readers are kept for later. SQLite keeps up to 2 MB of pages for each; a new one takes less than a ms."""
_LOG = logging.getLogger(__name__)
T = TypeVar("T")
VERSION: Final = 6
_JOURNALS: Final = ("-wal", "-shm")
"""What SQLite appends to the name of a file for its journal, and for the journal's index."""
_PROBE_MS: Final = 500
_TAKEN: Final = (
    "The journal of {}, or its index, was removed while a program has it open, which still holds what it has saved. "
    "End that program in the usual way, without kill -9, then try again"
)
_SECURE: Final = "secure_delete"
"""The setting of files in which everything that was deleted was overwritten."""
READABLE: Final = 3
"""The oldest version that is read without an update: later ones only added indexes, and the log."""
_LOGGED: Final = 5
"""The first version with a log."""
_LISTS_PENDING: Final = 6
"""The first version that indexes what waits for a vector."""
_MIGRATIONS: Final = {
    1: """
    CREATE TABLE memory_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE memory_scopes (
        id INTEGER PRIMARY KEY,
        root TEXT NOT NULL,
        namespace TEXT NOT NULL UNIQUE,
        seq INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX memory_scopes_by_root ON memory_scopes (root);
    CREATE TABLE memory_rows (
        id INTEGER PRIMARY KEY,
        scope INTEGER NOT NULL REFERENCES memory_scopes (id),
        key TEXT NOT NULL,
        seq INTEGER NOT NULL,
        version INTEGER NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        kind TEXT NOT NULL,
        value TEXT,
        text TEXT,
        terms TEXT,
        analyzer TEXT,
        session TEXT NOT NULL DEFAULT '',
        by_assistant INTEGER NOT NULL DEFAULT 0,
        happened REAL,
        importance REAL NOT NULL DEFAULT 0.5,
        model TEXT NOT NULL DEFAULT '',
        vector BLOB,
        UNIQUE (scope, key)
    );
    CREATE TABLE memory_tokens (
        row INTEGER PRIMARY KEY REFERENCES memory_rows (id) ON DELETE CASCADE,
        tokens BLOB NOT NULL
    );
    CREATE UNIQUE INDEX memory_rows_by_seq ON memory_rows (scope, seq);
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created DESC, key) WHERE value IS NOT NULL;
    CREATE INDEX memory_rows_by_model ON memory_rows (model) WHERE text IS NOT NULL;
    """,
    2: """
    ALTER TABLE memory_rows ADD COLUMN expires INTEGER;
    ALTER TABLE memory_rows ADD COLUMN ttl INTEGER;
    CREATE INDEX memory_rows_by_expiry ON memory_rows (expires) WHERE expires IS NOT NULL;
    """,
    3: """
    DROP INDEX memory_rows_by_age;
    CREATE INDEX memory_rows_by_age ON memory_rows (scope, created, key DESC) WHERE value IS NOT NULL;
    ALTER TABLE memory_scopes DROP COLUMN seq;
    """,
    4: """
    CREATE INDEX memory_rows_by_kind ON memory_rows (scope, kind, created, key DESC, expires) WHERE value IS NOT NULL;
    """,
    5: """
    CREATE TABLE memory_log (
        id INTEGER PRIMARY KEY,
        root TEXT NOT NULL,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        created INTEGER NOT NULL,
        kind TEXT NOT NULL,
        value TEXT NOT NULL,
        expires INTEGER,
        ttl INTEGER
    );
    """,
    6: "DROP INDEX memory_rows_by_model;",
}
_PENDING: Final = (
    "DROP INDEX IF EXISTS memory_rows_pending",
    "CREATE INDEX memory_rows_pending ON memory_rows (scope) WHERE text IS NOT NULL AND (model < {0} OR model > {0})",
)
"""The index of texts that wait for vectors of a model, given as a literal. A text with its vector is not in it."""
LOG: Final = "root, namespace, key, created, kind, value, expires, ttl"
"""The columns of a row that is not in its place yet; each begins at version 1, and was not updated."""
_IS_LOGGED: Final = "SELECT 1 FROM memory_log LIMIT 1"
_MOVED_AT_ONCE: Final = 2_000
_NUMBER: Final = """
(SELECT coalesce(max(known.seq), 0) FROM {}memory_rows known WHERE known.scope = s.id AND typeof(known.seq) = 'integer')
"""
_MOVE_UNTIL: Final = f"SELECT id FROM memory_log ORDER BY id LIMIT 1 OFFSET {_MOVED_AT_ONCE}"
_MOVE: Final = (
    """
INSERT OR IGNORE INTO memory_scopes (root, namespace) SELECT DISTINCT root, namespace FROM memory_log WHERE id < ?
""",
    f"""
INSERT INTO memory_rows (scope, key, seq, version, created, updated, kind, value, expires, ttl)
SELECT s.id, l.key, {_NUMBER.format("")} + row_number() OVER (PARTITION BY s.id ORDER BY l.id), 1, l.created, l.created,
    l.kind, l.value, l.expires, l.ttl
FROM memory_log l JOIN memory_scopes s ON s.namespace = l.namespace WHERE l.id < ? ORDER BY s.id, l.id
ON CONFLICT (scope, key) DO UPDATE SET seq = excluded.seq, version = memory_rows.version + 1,
    created = excluded.created, updated = excluded.updated, kind = excluded.kind, value = excluded.value,
    expires = excluded.expires, ttl = excluded.ttl
""",
    "DELETE FROM memory_log WHERE id < ?",
)
_SHOW_LOG: Final = f"""
CREATE TEMP VIEW memory_rows AS SELECT * FROM main.memory_rows UNION ALL
SELECT -l.id, s.id, l.key, {_NUMBER.format("main.")} + l.id, 1, l.created, l.created, l.kind, l.value, NULL, NULL, NULL,
    '', 0, NULL, 0.5, '', NULL, l.expires, l.ttl
FROM main.memory_log l JOIN main.memory_scopes s ON s.namespace = l.namespace
"""


class SqliteConnections:
    """Connections to the file at ``path``, which is created unless ``read_only``; safe for threads.

    A file without write permission is opened read-only. Raises ConfigurationError if the file cannot be opened,
    UnsupportedSchema if a newer version of the package wrote it.
    """

    def __init__(self, path: Path, *, durable: bool, read_only: bool) -> None:
        self._path = path.absolute()  # a relative path would move with the working directory
        self._name = str(self._path)
        self._beside: list[str] = []
        self._journals: list[tuple[int, int] | None] = []
        """The identities of the journal and of its index that the writer has open."""
        self._writer: sqlite3.Connection | None = None
        self._generation = 0
        """Grows with each `_renew`: readers from before may have the removed journal open."""
        self._is_immutable = self._shows_log = False
        self._durable = durable
        self._idle: list[tuple[int, sqlite3.Connection]] = []
        """The readers that nobody uses, each with the `_generation` that it is of."""
        self._write_lock = threading.Lock()
        self._closed = False
        self.is_writable = not read_only
        touched = (self._path, self._path.parent) if self._path.is_file() and self.is_writable else ()
        if not all(os.access(place, os.W_OK) for place in touched):
            _LOG.warning("%s or its folder cannot be written; it is opened for reading alone", self._path)
            self.is_writable = False
        self._mode = "mode=rw" if self.is_writable else "mode=ro"
        check_names(self._path)
        try:
            self._beside = [os.path.realpath(self._name) + suffix for suffix in _JOURNALS]
            with ExitStack() as opened:
                if self.is_writable:
                    self._open_for_writing(opened)
                else:
                    self._open_for_reading()
                self._file = self._found()
                self._opened = opened.pop_all()
        except JournalTaken as error:
            raise ConfigurationError(f"Cannot open the store at {path}: {error}") from error
        except (OSError, ValueError, StoreUnavailable) as error:
            is_other = "not a database" in str(error)
            advice = "The file is something else; name another" if is_other else "Is the folder writable?"
            raise ConfigurationError(f"Cannot open the store at {path}: {error}. {advice}") from error

    @contextmanager
    def reader(self, *, is_patient: bool = False) -> Generator[sqlite3.Connection]:
        """A connection for reading. ``is_patient``: texts that are not UTF-8 are read as `Undecodable`.

        Raises StoreUnavailable, also if the file was replaced since it was opened.
        """
        if self._closed:
            raise StoreUnavailable("The store is closed")
        self._check_file()
        if self.is_writable and self._found_beside() != self._journals:
            with self._turn():
                pass
        generation = self._generation
        try:
            generation, connection = self._idle.pop()
        except IndexError:
            connection = self._connect(self._mode)
        connection.text_factory = _decoded if is_patient else str
        try:
            with translated():
                yield connection
        finally:
            self._idle.append((generation, connection))
            is_over = self._closed or generation != self._generation  # in the meantime
            self._drop_idle(0 if is_over else MAX_IDLE)

    def attempt(self, read: Callable[[sqlite3.Connection], T], *, is_patient: bool = False) -> T:
        """Calls ``read`` with a connection, and again if a text is not UTF-8, then reading such texts as `Undecodable`.

        Decoding in Python takes three times as long, so it is done only then.
        """
        try:
            with self.reader(is_patient=is_patient) as reader:
                return read(reader)
        except UndecodableText:
            return self.attempt(read, is_patient=True)

    @contextmanager
    def transaction(self, *, waits_for_disk: bool = True) -> Generator[sqlite3.Connection]:
        """The writer, in a transaction that is durable afterwards. Raises ReadOnlyStore, StoreUnavailable.

        Without ``waits_for_disk`` it is durable once a later one is.
        """
        is_late = self._durable and not waits_for_disk
        with self._turn() as writer:
            if is_late:
                writer.execute("PRAGMA synchronous = NORMAL")
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                if writer.in_transaction:
                    # An open file that was deleted still takes writes, and is gone with the process. Checked at the
                    # last moment before the commit, so that such a write is never reported as saved.
                    self._check_file(saves=True)
                    if self._found_beside() != self._journals:
                        raise StoreUnavailable(
                            f"The journal of {self._path} was removed while this was being saved; try again"
                        )
                    writer.execute("COMMIT")
            finally:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                if is_late:
                    writer.execute("PRAGMA synchronous = FULL")

    def settle(self) -> None:
        """Moves what is in the log to ``memory_rows``, where reads find it."""
        with self.reader() as reader:
            if not self._has_log or self._shows_log or reader.execute(_IS_LOGGED).fetchone() is None:
                return
        if self.is_writable:
            while True:  # portions, so that others can write in between
                with self.transaction() as writer:
                    if not settled(writer):
                        return
        self._shows_log = True  # a view then shows readers the log too, which is slower
        self._drop_idle()

    def reclaim(self) -> bool:
        """Writes the file anew and empties the journal. Returns False if a connection still reads an old state in it.

        `secure_delete` alone leaves copies of rows that SQLite has moved in the unused parts of pages, and what was
        deleted without it.
        """
        with self._turn() as writer:
            writer.execute("VACUUM")
            writer.execute("INSERT OR REPLACE INTO memory_meta VALUES (?, ?)", (_SECURE, "on"))
            return not writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

    @contextmanager
    def _turn(self) -> Generator[sqlite3.Connection]:
        with self._write_lock:
            if self._closed:
                raise StoreUnavailable("The store is closed")
            if not self.is_writable:
                raise ReadOnlyStore(f"{self._path} was opened for reading alone; nothing was changed")
            with self._turns, translated():
                writer = self._writer
                if writer is None or self._found_beside() != self._journals:
                    self._check_file()
                    writer = self._renew()
                yield writer

    def files(self) -> list[Path]:
        """The file and its journal, if there is one."""
        journal = Path(self._beside[0])
        return [self._path, *([journal] if journal.exists() else [])]

    def close(self) -> None:
        """Closes all connections. SQLite merges the journal into the file with the last one."""
        self._closed = True
        self._drop_idle()
        with self._write_lock:
            self._opened.close()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _renew(self) -> sqlite3.Connection:
        """Moves what is in a journal that was removed, or whose index was, to the file, and begins a new one.

        Only a connection that has them open can do that. The caller has its turn as the writer. Raises
        StoreUnavailable if readers, or other programs that still have them open, are in the way: try again.
        """
        if self._writer is not None:
            _LOG.error("The journal of %s, or its index, was removed; what is in it is saved in the file", self._path)
            busy, frames, moved = self._writer.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if busy or frames != moved:
                raise StoreUnavailable(f"The journal of {self._path} was removed, and is still being read; try again")
            self._drop_writer()
        self._generation += 1
        self._drop_idle()
        return self._open_writer()

    def _drop_idle(self, kept: int = 0) -> None:
        with suppress(IndexError):  # others drop and take some, too
            while len(self._idle) > kept:
                self._idle.pop()[1].close()

    def _open_for_writing(self, opened: ExitStack) -> None:
        if self._path.is_dir():
            raise IsADirectoryError("it is a folder")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A new file is its owner's alone; SQLite gives the journal the permissions of the file.
        make_private(self._path)
        self._turns = opened.enter_context(closing(FileLock(self._path.with_name(self._path.name + ".lock"))))
        opened.callback(self._drop_writer)
        with self._turns:
            self._open_writer()
        self._has_log = True

    def _open_writer(self) -> sqlite3.Connection:
        """The writer, also as ``_writer``. Raises StoreUnavailable if others hold a journal that was removed."""
        if self._is_taken():
            raise JournalTaken(_TAKEN.format(self._path))
        with ExitStack() as opened:
            writer = opened.enter_context(closing(self._connect("mode=rwc")))
            with translated():
                migrate(writer)
            writer.text_factory = _decoded  # a damaged row can be replaced, too
            opened.pop_all()
        self._writer, self._journals = writer, self._found_beside()
        return writer

    def _is_taken(self) -> bool:
        """Whether another connection has a journal open, or an index of it, that is not there any more."""
        size, has_index = self._sizes()
        if bool(size) == has_index:
            return False
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA busy_timeout = {_PROBE_MS}")
            try:
                if size:  # without others, SQLite makes another index, and here merges the journal into the file
                    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                    connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                    return False
                # Without others, SQLite empties the index. Theirs tells of what is not in the journal.
                frames = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
            except sqlite3.OperationalError:
                return True
        return frames > 0 and not self._sizes()[0]

    def _sizes(self) -> tuple[int, bool]:
        """The size of the journal, 0 if there is none, and whether there is an index of it."""
        journal, index = map(Path, self._beside)
        return journal.stat().st_size if journal.exists() else 0, index.exists()

    def _open_for_reading(self) -> None:
        # A file with a journal needs the journal's index, which cannot be created in a read-only folder. If the journal
        # is empty, nobody has the file open for writing, and it can be read as a file that does not change.
        if not self._path.is_file():
            raise FileNotFoundError("there is no such file")
        try:
            version = self._version()
        except StoreUnavailable as error:
            size, has_index = self._sizes()
            if size:
                raise
            if has_index and os.access(self._path.parent, os.W_OK):
                raise JournalTaken(_TAKEN.format(self._path)) from error
            self._mode, self._is_immutable = "mode=ro&immutable=1", True
            version = self._version()
        self._has_log = version >= _LOGGED
        if version < READABLE:
            raise ConfigurationError(
                f"The store at {self._path} has schema version {version}, which must be brought up to date first: "
                "open it once where it may be written"
                if version
                else f"There is no store at {self._path}"
            )

    def _version(self) -> int:
        with closing(self._connect(self._mode)) as connection, translated():
            return checked_version(connection)

    def _connect(self, mode: str) -> sqlite3.Connection:
        with translated(), ExitStack() as opened:
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False
            )
            opened.callback(connection.close)
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")  # off in SQLite's own builds: deleted texts would stay
            # FULL: a commit survives a power loss.
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            if self._shows_log:
                connection.execute(_SHOW_LOG)
            opened.pop_all()
            return connection

    def _found_beside(self) -> list[tuple[int, int] | None]:
        """The identities of the journal and of its index at their paths, None for one that is not there."""
        found: list[tuple[int, int] | None] = []
        for name in self._beside:
            try:
                status = os.stat(name)  # noqa: PTH116 - as below
            except OSError:
                found.append(None)
            else:
                found.append((status.st_dev, status.st_ino))
        return found

    def _found(self) -> tuple[int, ...] | None:
        """How many names the file at the path has, and its identity; of an immutable one also its size and time."""
        try:
            status = os.stat(self._name)  # noqa: PTH116 - before every read and commit, and a Path takes twice as long
        except OSError:
            return None
        if self._is_immutable:
            return status.st_nlink, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return status.st_nlink, status.st_dev, status.st_ino

    def _check_file(self, *, saves: bool = False) -> None:
        found = self._found()
        if found and self._file and found[1:] == self._file[1:]:
            if saves and found[0] > 1:
                raise StoreUnavailable(f"{OTHER_NAME.format(self._path)}. Nothing was saved")
        else:
            raise StoreUnavailable(
                f"The file {self._path} was deleted, replaced or changed while the store was open; nothing was saved. "
                "Bring it back and open the store again, which means restarting the program"
            )


class JournalTaken(StoreUnavailable):
    """Another connection holds a journal that was removed."""


class UndecodableText(StoreError):
    """A stored text is not UTF-8. Python raises at such a text, quotes it, and ends the statement."""


@contextmanager
def translated() -> Generator[None]:
    """Turns sqlite3's errors into StoreErrors, whose messages hold no stored data."""
    try:
        yield
    except sqlite3.Error as error:
        if not hasattr(error, "sqlite_errorcode") and "decode" in str(error):
            raise UndecodableText("SQLite: a stored text is not UTF-8; see inference-core doctor") from None
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
            raise Refused(f"SQLite cannot hold this: {in_one_line(error)}") from error
        raise StoreUnavailable(f"SQLite: {in_one_line(error)}") from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise Refused(f"SQLite cannot hold this: {in_one_line(error)}") from error


def _decoded(raw: bytes) -> str | Undecodable:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Undecodable(raw)


def settled(writer: sqlite3.Connection, *, fully: bool = False) -> bool:
    """Moves a portion of the log, or all of it, to its place, in a transaction. Returns whether there is more."""
    if writer.execute(_IS_LOGGED).fetchone() is None:
        return False
    until = None if fully else writer.execute(_MOVE_UNTIL).fetchone()
    for statement in _MOVE:
        writer.execute(statement, until or (2**63 - 1,))
    return until is not None


def migrate(connection: sqlite3.Connection) -> None:
    """Creates or updates the tables, each step in one transaction. The caller holds the file's lock.

    Raises UnsupportedSchema if a newer version of the package wrote the file.
    """
    connection.execute("PRAGMA journal_mode = WAL")
    version = checked_version(connection)
    mark = "" if version else f"INSERT INTO memory_meta VALUES ('{_SECURE}', 'on');"
    for step in range(version + 1, VERSION + 1):
        pending = pending_index(connection) if step == _LISTS_PENDING else ()
        connection.executescript(
            f"BEGIN IMMEDIATE;{_MIGRATIONS[step]};{';'.join(pending)};{mark}"
            f"INSERT OR REPLACE INTO memory_meta VALUES ('schema_version', '{step}');COMMIT;"
        )
        mark = ""


def pending_index(connection: sqlite3.Connection) -> list[str]:
    """The statements that index what waits for vectors of the store's model; none for a store without a model."""
    models = connection.execute("SELECT quote(value) FROM memory_meta WHERE name = ?", (EMBEDDING_META,)).fetchall()
    return [statement.format(model) for (model,) in models for statement in _PENDING]


def checked_version(connection: sqlite3.Connection) -> int:
    """The version of the tables, 0 if there are none. Raises UnsupportedSchema if it is a later one."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'memory_meta'"
    if connection.execute(query).fetchone() is None:
        return 0
    version = int(connection.execute("SELECT value FROM memory_meta WHERE name = 'schema_version'").fetchone()[0])
    check_schema(version, VERSION)
    return version


_MAX_VARIABLES: Final = 500
_LARGEST: Final = 2**63 - 1
_MAX_LISTS: Final = 64
"""The most lists that are merged, each from an open statement."""
_LAST: Final = """
SELECT coalesce(max(known.seq), 0) FROM memory_rows known WHERE known.scope = {} AND typeof(known.seq) = 'integer'
"""
_HEADS: Final = f"s.namespace, s.id, ({_LAST.format('s.id')}) FROM memory_scopes s"
"""The last sequence number of each scope, damaged ones apart. Only `erase` removes rows; else no number comes twice."""
_NEW_SCOPE: Final = "INSERT INTO memory_scopes (root, namespace) VALUES (?, ?)"
_DROP_SCOPE: Final = "DELETE FROM memory_scopes WHERE id = ?"
_UPSERT: Final = f"""
INSERT INTO memory_rows ({WRITTEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET {REPLACED}
"""
_TOUCH: Final = "UPDATE memory_rows SET expires = ? WHERE scope = ? AND key = ?"
_SET_TOKENS: Final = """
INSERT OR REPLACE INTO memory_tokens (row, tokens) SELECT id, ? FROM memory_rows WHERE scope = ? AND key = ?
"""
_CLEAR_TOKENS: Final = "DELETE FROM memory_tokens WHERE row = (SELECT id FROM memory_rows WHERE scope = ? AND key = ?)"
_DISCARD: Final = f"""
UPDATE memory_rows SET seq = ({_LAST.format("memory_rows.scope")}) + 1,
    version = CAST(version AS INTEGER) + 1, key = coalesce(?, 'unreadable-' || id), created = 0, updated = 0, {CLEARED}
WHERE id = ? AND seq IS coalesce(?, seq) AND value IS NOT NULL
"""
"""The row stays, without content, so that its number does not come again; an unreadable key is replaced."""

_KEYS_AT_ONCE: Final = 200
_WANTED: Final = """
wanted w CROSS JOIN memory_scopes s ON s.namespace = w.name CROSS JOIN memory_rows r ON r.scope = s.id AND r.key = w.key
"""
_EVENTS_AT_ONCE: Final = 50
_EVENT: Final = f"({','.join('?' * len(LOG.split(',')))})"

_ERASED_AT_ONCE: Final = 5_000
_ERASE: Final = """
DELETE FROM memory_rows WHERE id IN (
    SELECT r.id FROM memory_scopes s JOIN memory_rows r ON r.scope = s.id WHERE s.root = ? LIMIT ?
)
"""
_ERASE_ROW: Final = """
DELETE FROM memory_rows WHERE scope = (SELECT id FROM memory_scopes WHERE namespace = ?) AND key = ?
"""


class SqliteBackend(SqlBackend):
    """A Backend on one SQLite file. ``durable=False`` is faster, but a power loss may lose the last commits.

    Raises ConfigurationError if the file cannot be opened, UnsupportedSchema if a newer version of the package wrote
    it.
    """

    product, holds_nul = "SQLite", True
    contains = "instr"
    has_langgraph = "SELECT count(*) = 2 FROM pragma_table_info('store') WHERE name IN ('prefix', 'key')"
    scope_heads = _HEADS
    # Whatever copies another file into this one, and leaves the file where it is, raises this number.
    epoch = "(SELECT schema_version FROM pragma_schema_version)"
    any_kind = "r.kind >= ''"
    packed_tokens = "(SELECT tokens FROM memory_tokens t WHERE t.row = r.id)"
    most_values = _MAX_VARIABLES

    def __init__(
        self, path: Path, *, durable: bool = True, read_only: bool = False, clock: Clock | None = None
    ) -> None:
        super().__init__(clock)
        self.name = f"sqlite:///{path}"
        self.connections = SqliteConnections(path, durable=durable, read_only=read_only)
        self.capabilities = Capabilities(
            durable=True,
            atomic=True,
            compare_and_set=True,
            change_feed=True,
            single_writer=True,
            writable=self.connections.is_writable,
        )

    def page(self, request: PageRequest) -> list[Row]:
        """The rows that ``request`` asks for: each scope's in the order of an index, merged as they are read."""
        kinds = [None] if request.kinds is None else request.kinds
        lists = [(namespace, kind) for namespace in dict.fromkeys(request.scopes) for kind in kinds]
        offset, limit = min(request.offset, _LARGEST), min(request.limit, _LARGEST)
        self._settle(request.scopes)
        if len(lists) > _MAX_LISTS:
            return self._sorted(request, min(offset + limit, _LARGEST))[offset:]

        def merged(reader: sqlite3.Connection) -> list[Row]:
            with ExitStack() as opened:
                found = [
                    opened.enter_context(closing(self._newest_first(reader, namespace, kind, request.after)))
                    for namespace, kind in lists
                ]
                behind = islice(heapq.merge(*found, key=_listed), offset, None)
                return list(islice(filter(None, map(row_of, behind)), limit))

        return self.connections.attempt(merged)

    def _newest_first(
        self, reader: sqlite3.Connection, namespace: Namespace, kind: str | None, after: Cursor | None
    ) -> Generator[tuple[Any, ...]]:
        """The columns of a scope's rows (of a kind) behind ``after``, read lazily."""
        name = pack_namespace(namespace)
        parameters: dict[str, object] = {"name": name, "kind": kind, "now": self._now()}
        parts = [""]
        if after is not None:
            age, key, of = after.place
            parameters |= {"created": -age, "key": key}
            # Two statements, each a range of the index; an OR would read everything older. A row of the same age
            # and key comes after the cursor's if its namespace does.
            edge = ">=" if name > of else ">"
            parts = [f"AND r.created = :created AND r.key {edge} :key", "AND r.created < :created"]
        for behind in parts:
            query = (
                f"SELECT {ROW} FROM memory_scopes s JOIN memory_rows r ON r.scope = s.id WHERE s.namespace = :name "
                f"AND {ALIVE} {'' if kind is None else 'AND r.kind = :kind'} {behind} ORDER BY r.created DESC, r.key"
            )
            # Closed even if nobody reads to the end: an open statement keeps its snapshot, and so the journal.
            with closing(reader.execute(query, parameters)) as rows:
                yield from filter(_is_listed, rows)

    def _sorted(self, request: PageRequest, limit: int) -> list[Row]:
        """The first ``limit`` rows of many scopes, sorted by SQLite."""
        of_kind, parameters = self._of_kind(request.kinds)
        condition = f"{ALIVE} AND {of_kind}"
        if request.after is not None:
            condition += " AND (-r.created, r.key, s.namespace) > (:age, :key, :name)"
            parameters |= dict(zip(("age", "key", "name"), request.after.place, strict=True))
        condition += " ORDER BY r.created DESC, r.key, s.namespace LIMIT :limit"
        found = self._of_scopes(f"{ROW} FROM {ROWS}", request.scopes, condition, parameters | {"limit": limit})
        page = sorted(filter(_is_listed, found), key=_listed)[:limit]
        rows = list(filter(None, map(row_of, page)))
        if len(rows) == len(page) or len(page) < limit:
            return rows
        behind = replace(request, after=cursor_of(page[-1]))  # more, in place of those that cannot be read
        return rows + self._sorted(behind, limit - len(rows))

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``namespaces`` hold, counted in indexes.

        Subtracting the expired rows, which are few, is quicker than looking at the expiry of each row.
        """
        self._settle(namespaces)
        of_kind, parameters = self._of_kind(kinds)
        there = self._of_scopes(f"count(*) FROM {ROWS}", namespaces, f"r.value IS NOT NULL AND {of_kind}", parameters)
        # A cross join makes SQLite begin with the expired rows.
        ended = f"r.value IS NOT NULL AND r.expires <= :now AND {of_kind}"
        over = self._of_scopes(f"count(*) FROM {ROWS.replace('JOIN', 'CROSS JOIN')}", namespaces, ended, parameters)
        return sum(count for (count,) in there) - sum(count for (count,) in over)

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        self._settle([namespace])
        return super().changes(namespace, since)

    def expired(self, limit: int) -> list[Key]:
        self.connections.settle()
        return super().expired(limit)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        with self.connections.transaction() as writer:
            writer.execute(
                f"INSERT OR {'IGNORE' if is_first else 'REPLACE'} INTO memory_meta VALUES (?, ?)", (name, value)
            )
            if name == EMBEDDING_META:
                for statement in pending_index(writer):
                    writer.execute(statement)

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        self.connections.settle()
        of_root = "" if root is None else "AND r.scope IN (SELECT id FROM memory_scopes WHERE root = :root)"
        query = f"SELECT r.id FROM memory_rows r WHERE r.value IS NOT NULL {of_root}"
        ids = [found for (found,) in self._select(query, {"root": root})]
        for start in range(0, len(ids), _MAX_VARIABLES):
            some = ",".join(map(str, ids[start : start + _MAX_VARIABLES]))
            query = (
                f"SELECT r.id, s.root, {ROW}, {CHANGE}, r.model, r.vector FROM memory_rows r "
                f"LEFT JOIN memory_scopes s ON s.id = r.scope WHERE r.id IN ({some}) AND r.value IS NOT NULL"
            )
            for row, label, *columns in self._select(query, {}):
                yield inspected(label, row, columns)

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        removed = 0
        with self.connections.transaction() as writer:
            for row, key, seq in (damaged.place for damaged in unreadable):
                seen = None if isinstance(seq, Undecodable) else seq  # such a text cannot be compared either
                if writer.execute(_DISCARD, (key, row, seen)).rowcount:
                    writer.execute("DELETE FROM memory_tokens WHERE row = ?", (row,))
                    removed += 1
        return removed

    def copy_into(self, path: Path) -> None:
        """Writes the file, as of this moment and without freed pages, to the new file ``path``."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with self.connections.reader() as reader:
            reader.execute("VACUUM INTO ?", (str(path),))

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        left = True
        while left:  # portions, so that others can write in between
            with self.connections.transaction() as writer:
                settled(writer, fully=True)
                left = writer.execute(_ERASE, (root, _ERASED_AT_ONCE)).rowcount == _ERASED_AT_ONCE
                if not left:
                    writer.execute("DELETE FROM memory_scopes WHERE root = ?", (root,))
                    writer.executemany(_ERASE_ROW, [(pack_namespace(namespace), key) for namespace, key in also])

    def reclaim(self, *, fully: bool = False) -> list[str]:
        del fully  # it always is
        is_done = self.connections.reclaim()
        return [] if is_done else ["a program still reads an old state of the file's journal: end it, then repeat this"]

    def files(self) -> list[Path]:
        return self.connections.files()

    def close(self) -> None:
        """Closes all connections. SQLite merges the journal into the file with the last one."""
        self.connections.close()

    def _transact(self, batches: Sequence[Batch]) -> list[Outcome]:
        # Events go into the log, where all users' share one database page; as rows, each user's would touch six.
        rows = [[write for write in batch if not is_event(write)] for batch in batches]
        made, keys = scopes_made(rows), keys_of(rows)
        with self.connections.transaction(waits_for_disk=waits_for_disk(batches)) as writer:
            if any(scope[1:] == (AUDIT,) and key != SALT for scope, key in keys):
                settled(writer, fully=True)

            without_keys = made.difference(scope for scope, _ in keys)
            heads, states = _stored(writer, [*keys, *((scope, None) for scope in without_keys)])
            if missing := made - heads.keys():
                writer.executemany(_NEW_SCOPE, [(scope[0], pack_namespace(scope)) for scope in missing])
                heads |= _stored(writer, [(scope, None) for scope in missing])[0]
            decision = decide(batches, heads, states, self._clock.now(), has_log=True)
            # Scopes that were added for a refused batch may name a user who was erased.
            unused = {heads[scope][0] for scope in missing} - decision.heads.keys()
            writer.executemany(_DROP_SCOPE, [(scope,) for scope in unused])
            if not decision.changed and not decision.touched and not decision.logged:
                writer.execute("ROLLBACK")
            writer.executemany(_UPSERT, [columns[:-1] for columns in decision.changed])
            writer.executemany(_TOUCH, decision.touched)
            for start in range(0, len(decision.logged), _EVENTS_AT_ONCE):
                some = decision.logged[start : start + _EVENTS_AT_ONCE]
                values = ",".join([_EVENT] * len(some))  # one statement, as each step of one waits for the GIL
                columns = [column for event in some for column in _logged(event)]
                writer.execute(f"INSERT INTO memory_log ({LOG}) VALUES {values}", columns)
            known = {(heads[namespace][0], key) for namespace, key in states}
            for scope, key, *_, tokens in decision.changed:
                if tokens is not None:
                    writer.execute(_SET_TOKENS, (tokens, scope, key))
                elif (scope, key) in known:
                    writer.execute(_CLEAR_TOKENS, (scope, key))
        return decision.outcomes

    def _settle(self, namespaces: Iterable[Namespace]) -> None:
        """Moves logged events to their place, if ``namespaces`` include some."""
        if any(namespace[1:] == (AUDIT,) for namespace in namespaces):
            self.connections.settle()

    def _select(self, query: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self.connections.attempt(lambda reader: reader.execute(query, parameters).fetchall())

    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        parameters: dict[str, object] = {f"{column[2:]}{at}": value for at, value in enumerate(values)}
        return f"{column} IN ({','.join(f':{name}' for name in parameters)})", parameters

    def _of_keys(self, selection: str, keys: Iterable[Key], condition: str) -> Iterator[tuple[Any, ...]]:
        distinct = list(dict.fromkeys(keys))
        for start in range(0, len(distinct), _KEYS_AT_ONCE):
            some = distinct[start : start + _KEYS_AT_ONCE]
            names = {namespace for namespace, _ in some}
            query, parameters = _query_of_keys(selection, condition, len(some), is_of_one=len(names) == 1)
            if len(names) == 1:
                values: Iterable[str] = [pack_namespace(*names), *(key for _, key in some)]
            else:
                values = chain.from_iterable([(pack_namespace(name), key) for name, key in some])
            given: dict[str, object] = dict(zip(parameters, values, strict=True))
            yield from self._select(query, given | {"now": to_micros(self._clock.now())})


@lru_cache(maxsize=256)
def _query_of_keys(selection: str, condition: str, count: int, *, is_of_one: bool) -> tuple[str, list[str]]:
    """The query for ``count`` keys, and the names of its parameters: those of a namespace and a key in turn.

    For keys of one scope it is a third faster: it looks the scope up once, and its name comes first.
    """
    if is_of_one:
        keys = [f"key{at}" for at in range(count)]
        query = (
            f"WITH wanted (key) AS (VALUES {','.join(f'(:{key})' for key in keys)}) SELECT {selection} "
            "FROM memory_scopes s CROSS JOIN wanted w CROSS JOIN memory_rows r ON r.scope = s.id AND r.key = w.key "
            f"WHERE s.namespace = :name AND {condition}"
        )
        return query, ["name", *keys]
    pairs = [(f"name{at}", f"key{at}") for at in range(count)]
    wanted = ",".join(f"(:{name},:{key})" for name, key in pairs)
    query = f"WITH wanted (name, key) AS (VALUES {wanted}) SELECT {selection} FROM {_WANTED} WHERE {condition}"
    return query, list(chain.from_iterable(pairs))


def _stored(
    writer: sqlite3.Connection, places: Sequence[tuple[Namespace, str | None]]
) -> tuple[Heads, dict[Key, RowState]]:
    """The scopes that there are of those in ``places``, and the rows; a place without a key asks for its scope alone.

    One statement for each portion, as each step of one waits for the GIL.
    """
    heads: Heads = {}
    states: dict[Key, RowState] = {}
    for start in range(0, len(places), _KEYS_AT_ONCE):
        some = places[start : start + _KEYS_AT_ONCE]
        given = list(chain.from_iterable([(pack_namespace(namespace), key) for namespace, key in some]))
        for name, scope, head, key, *columns in writer.execute(_query_of_places(len(some)), given).fetchall():
            if key is None:
                heads[unpack_namespace(name)] = scope, head
            else:
                states[unpack_namespace(name), key] = state_of(columns)
    return heads, states


@lru_cache(maxsize=256)
def _query_of_places(count: int) -> str:
    wanted, none = ",".join(["(?,?)"] * count), ", ".join(["NULL"] * (STATE.count(",") + 2))
    return (
        f"WITH wanted (name, key) AS (VALUES {wanted}) "
        f"SELECT s.namespace, s.id, ({_LAST.format('s.id')}), {none} FROM memory_scopes s "
        "WHERE s.namespace IN (SELECT name FROM wanted) UNION ALL "
        f"SELECT s.namespace, s.id, NULL, r.key, {STATE} FROM {_WANTED}"
    )


def _logged(event: Put) -> tuple[Any, ...]:
    """The columns ``LOG`` of ``event``."""
    name, made = pack_namespace(event.namespace), to_micros(event.updated_at)
    return event.namespace[0], name, event.key, made, event.kind, event.value, *expiry_micros(event.expiry)


def _is_listed(columns: tuple[Any, ...]) -> bool:
    """Whether the row in the columns ``ROW`` can be sorted; a damaged one may not be."""
    return type(columns[CREATED]) is int and type(columns[KEY]) is str


def _listed(columns: tuple[Any, ...]) -> Place:
    """The sort key of the row in the columns ``ROW``."""
    return -columns[CREATED], columns[KEY], columns[0]
