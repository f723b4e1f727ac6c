"""SQLite: one file, many threads and processes, through the standard library alone.

WAL journal; a commit is on disk when `apply` returns. Readers never wait for writers. All batches that are handed over
together share one transaction, each in its own savepoint, so that a bad one fails alone.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any, Final

from inference_core.clock import Clock, SystemClock
from inference_core.errors import ConfigurationError, StoreError, StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import Capabilities, Key, Outcome, Pending, Row, Write
from inference_core.stores.backends import sqlite_schema
from inference_core.stores.backends.columns import CHANGE, ROW, change_of, row_of
from inference_core.stores.backends.sqlite_writes import apply_write
from inference_core.stores.codec import pack_namespace, to_micros, unpack_namespace
from inference_core.stores.locks import FileLock
from inference_core.stores.scan import MAX_WORDS, forms_of

_ALIVE: Final = "r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > ?)"
_ROWS: Final = "memory_rows r JOIN memory_scopes s ON s.id = r.scope"
_MAX_VARIABLES: Final = 500


class SqliteBackend:
    """A Backend over one SQLite file. ``durable=False`` trades the last commits at a power loss for speed.

    Raises ConfigurationError if the file cannot be opened, UnsupportedSchema if a newer version wrote it.
    """

    capabilities = Capabilities(durable=True, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self, path: Path, *, durable: bool = True, clock: Clock | None = None) -> None:
        self.name = f"sqlite:///{path}"
        self._path = path
        self._durable = durable
        self._clock = clock or SystemClock()
        self._readers: LifoQueue[sqlite3.Connection] = LifoQueue()
        self._write_lock = threading.Lock()
        self._closed = False
        try:
            if path.is_dir():
                raise IsADirectoryError("it is a folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                self._turns = opened.enter_context(closing(FileLock(path.with_name(path.name + ".lock"))))
                with self._turns:
                    self._writer = opened.enter_context(closing(self._connect()))
                    with _translated():
                        sqlite_schema.migrate(self._writer)
                opened.pop_all()
        except (OSError, ValueError, StoreUnavailable) as error:
            raise ConfigurationError(f"Cannot open the store at {path}: {error}. Is the folder writable?") from error

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch in its own savepoint of one durable transaction."""
        with self._transaction() as writer:
            now = self._now()
            if len(batches) == 1:
                return [_apply_alone(writer, batches[0], now)]
            return [_apply_batch(writer, batch, now) for batch in batches]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        found: dict[Key, Row] = {}
        query = f"SELECT {ROW} FROM {_ROWS} WHERE {_ALIVE}"
        with self._reader() as reader:
            for columns in _by_key(reader, query, keys, self._now()):
                row = row_of(columns)
                found[row.namespace, row.key] = row
        return [found.get(key) for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        query = f"SELECT s.namespace, r.key, t.tokens FROM {_ROWS} JOIN memory_tokens t ON t.row = r.id WHERE TRUE"
        with self._reader() as reader:
            found = {(unpack_namespace(name), key): tokens for name, key, tokens in _by_key(reader, query, keys)}
        return [found.get(key) for key in keys]

    def newest(
        self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None, limit: int, offset: int = 0
    ) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first."""
        kind_clause = "" if kinds is None else f" AND r.kind IN ({_marks(kinds)})"
        with self._reader() as reader:
            ids = _scope_ids(reader, scopes)
            query = (
                f"SELECT {ROW} FROM {_ROWS} WHERE r.scope IN ({_marks(ids)}) "
                f"AND {_ALIVE}{kind_clause} ORDER BY r.created DESC, r.key LIMIT ? OFFSET ?"
            )
            return [
                row_of(found) for found in reader.execute(query, [*ids, self._now(), *(kinds or ()), limit, offset])
            ]

    def count(self, scopes: Sequence[Namespace]) -> int:
        """How many rows exactly ``scopes`` hold."""
        with self._reader() as reader:
            ids = _scope_ids(reader, scopes)
            query = f"SELECT count(*) FROM memory_rows r WHERE r.scope IN ({_marks(ids)}) AND {_ALIVE}"
            return reader.execute(query, [*ids, self._now()]).fetchone()[0]

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        query = (
            "SELECT namespace FROM memory_scopes s "
            f"WHERE EXISTS (SELECT 1 FROM memory_rows r WHERE r.scope = s.id AND {_ALIVE})"
        )
        of_root = " AND root = ?" if prefix else ""
        with self._reader() as reader:
            found = reader.execute(query + of_root, [self._now(), *prefix[:1]])
            names = [unpack_namespace(text) for (text,) in found]
        return sorted(name for name in names if name[: len(prefix)] == prefix)

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        packed = [pack_namespace(scope) for scope in scopes]
        with self._reader() as reader:
            last = "SELECT coalesce(max(r.seq), 0) FROM memory_rows r WHERE r.scope = s.id"
            query = f"SELECT s.namespace, ({last}) FROM memory_scopes s WHERE s.namespace IN ({_marks(packed)})"
            found = dict(reader.execute(query, packed).fetchall())
        return [found.get(name, 0) for name in packed]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``."""
        query = f"SELECT {CHANGE}, r.model, r.vector FROM {_ROWS} WHERE s.namespace = ? AND r.seq > ? ORDER BY r.seq"
        with self._reader() as reader:
            for found in reader.execute(query, (pack_namespace(scope), since)):
                yield change_of(found)

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``, counted by the database."""
        forms = [forms_of(word) for word in words[:MAX_WORDS]]
        held = " + ".join("(" + " OR ".join("instr(words, ?) > 0" for _ in found) + ")" for found in forms)
        query = (
            f"SELECT *, {held} AS held FROM (SELECT {CHANGE}, '', NULL, ' ' || r.terms || ' ' AS words "
            f"FROM {_ROWS} WHERE s.namespace = ? AND r.text IS NOT NULL) "
            "WHERE held > 0 ORDER BY held DESC, seq DESC LIMIT ?"
        )
        spaced = [f" {form} " for found in forms for form in found]
        if not forms:
            return []
        with self._reader() as reader:
            rows = reader.execute(query, [*spaced, pack_namespace(scope), limit]).fetchall()
        return [change_of(found[:-2]) for found in rows]

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        query = (
            f"SELECT s.namespace, r.key, r.version, r.text FROM {_ROWS} "
            "WHERE r.text IS NOT NULL AND (r.model < ? OR r.model > ?) LIMIT ?"
        )
        with self._reader() as reader:
            found = reader.execute(query, (model, model, limit)).fetchall()
        return [Pending(unpack_namespace(name), key, version, text) for name, key, version, text in found]

    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come."""
        query = f"SELECT s.namespace, r.key FROM {_ROWS} WHERE r.expires <= ? LIMIT ?"
        with self._reader() as reader:
            return [(unpack_namespace(name), key) for name, key in reader.execute(query, (self._now(), limit))]

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        with self._reader() as reader:
            found = reader.execute("SELECT value FROM memory_meta WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self._transaction() as writer:
            writer.execute("INSERT OR REPLACE INTO memory_meta VALUES (?, ?)", (name, value))

    def close(self) -> None:
        """Closes all connections; the last one to a file folds its journal into it."""
        self._closed = True
        while not self._readers.empty():
            self._readers.get_nowait().close()
        with self._write_lock:
            self._writer.close()
            self._turns.close()

    def _now(self) -> int:
        return to_micros(self._clock.now())

    def _connect(self) -> sqlite3.Connection:
        with _translated():
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            sqlite_schema.prepare(connection, durable=self._durable)
        return connection

    @contextmanager
    def _reader(self) -> Generator[sqlite3.Connection]:
        if self._closed:
            raise StoreUnavailable("The store is closed")
        try:
            connection = self._readers.get_nowait()
        except Empty:
            connection = self._connect()
        try:
            with _translated():
                yield connection
        finally:
            if self._closed:
                connection.close()
            else:
                self._readers.put(connection)

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._write_lock:
            if self._closed:
                raise StoreUnavailable("The store is closed")
            with self._turns, _translated():
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    if self._writer.in_transaction:
                        self._writer.execute("COMMIT")
                finally:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnavailable(f"SQLite: {error}") from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise StoreError(f"SQLite cannot hold this: {error}") from error


def _apply_alone(writer: sqlite3.Connection, batch: Sequence[Write], now: int) -> Outcome:
    """Applies the only batch of a transaction, which ends with it if it fails."""
    outcome = _apply_all(writer, batch, now)
    if isinstance(outcome, Exception):
        writer.execute("ROLLBACK")
    return outcome


def _apply_batch(writer: sqlite3.Connection, batch: Sequence[Write], now: int) -> Outcome:
    if len(batch) == 1:  # one write changes one row or fails, so it needs no savepoint
        return _apply_all(writer, batch, now)
    writer.execute("SAVEPOINT batch")
    outcome = _apply_all(writer, batch, now)
    if isinstance(outcome, Exception):
        writer.execute("ROLLBACK TO batch")
    writer.execute("RELEASE batch")
    return outcome


def _apply_all(writer: sqlite3.Connection, batch: Sequence[Write], now: int) -> Outcome:
    try:
        return [apply_write(writer, write, now) for write in batch]
    except StoreError as error:
        return error
    except (sqlite3.IntegrityError, sqlite3.DataError, UnicodeEncodeError, OverflowError) as error:
        return StoreError(f"SQLite refused the write: {error}")


def _by_key(reader: sqlite3.Connection, query: str, keys: Sequence[Key], *given: int) -> Generator[tuple[Any, ...]]:
    """What ``query`` over rows and their scopes, whose condition takes ``given``, finds of ``keys``."""
    for namespace in {namespace for namespace, _ in keys}:
        wanted = list({key for owner, key in keys if owner == namespace})
        for start in range(0, len(wanted), _MAX_VARIABLES):
            chunk = wanted[start : start + _MAX_VARIABLES]
            limits = f"AND s.namespace = ? AND r.key IN ({_marks(chunk)})"
            yield from reader.execute(f"{query} {limits}", [*given, pack_namespace(namespace), *chunk])


def _marks(values: Iterable[object]) -> str:
    return ",".join("?" for _ in values)


def _scope_ids(reader: sqlite3.Connection, scopes: Sequence[Namespace]) -> list[int]:
    packed = [pack_namespace(scope) for scope in scopes]
    query = f"SELECT id FROM memory_scopes WHERE namespace IN ({_marks(packed)})"
    return [found for (found,) in reader.execute(query, packed)]
