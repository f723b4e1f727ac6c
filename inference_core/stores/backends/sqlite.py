"""SQLite: one file, many threads and processes, through the standard library alone.

WAL journal; a commit is on disk when `apply` returns. Readers never wait for writers. All batches that are handed over
together share one transaction, each in its own savepoint, so that a bad one fails alone.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from inference_core.clock import Clock, SystemClock
from inference_core.errors import StoreError, in_one_line
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import Capabilities, Key, Outcome, Pending, Row, Tally, Unreadable, Write
from inference_core.stores.backends.columns import (
    CHANGE,
    CREATED,
    KEY,
    ROW,
    SEQ,
    change_of,
    cursor_of,
    inspected,
    namespace_of,
    pending_of,
    row_of,
)
from inference_core.stores.backends.sqlite_connections import Connections, UndecodableText, despite_damage
from inference_core.stores.backends.sqlite_writes import Place, apply_write, discard
from inference_core.stores.codec import near_micros, pack_namespace, to_micros, unpack_namespace
from inference_core.stores.cursor import Cursor, PageRequest
from inference_core.stores.cursor import Place as Listed
from inference_core.stores.scan import MAX_WORDS, forms_of

_ALIVE: Final = "r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > ?)"
_ROWS: Final = "memory_rows r JOIN memory_scopes s ON s.id = r.scope"
_ENDED_ROWS: Final = _ROWS.replace("JOIN", "CROSS JOIN")
_HEAD: Final = "SELECT coalesce(max(r.seq), 0) FROM memory_rows r WHERE r.scope = s.id"
_SOUND_HEAD: Final = f"{_HEAD} AND typeof(r.seq) = 'integer'"
_ANY_KIND: Final = "r.kind >= ''"
"""Says nothing, but has SQLite take the index by kind, which tells all that is counted."""
_MAX_VARIABLES: Final = 500
_LARGEST: Final = 2**63 - 1
_MAX_LISTS: Final = 64
"""So many lists are merged at most: each has a statement open."""


class SqliteBackend:
    """A Backend over one SQLite file. ``durable=False`` trades the last commits at a power loss for speed.

    Raises ConfigurationError if the file cannot be opened, UnsupportedSchema if a newer version wrote it.
    """

    def __init__(
        self, path: Path, *, durable: bool = True, read_only: bool = False, clock: Clock | None = None
    ) -> None:
        self.name = f"sqlite:///{path}"
        self._clock = clock or SystemClock()
        self.connections = Connections(path, durable=durable, read_only=read_only)
        self.capabilities = Capabilities(
            durable=True,
            atomic=True,
            compare_and_set=True,
            change_feed=True,
            single_writer=True,
            writable=self.connections.is_writable,
        )

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch in its own savepoint of one durable transaction."""
        with self._transaction() as writer:
            now = self._now()
            if len(batches) == 1:
                return [_apply_alone(writer, batches[0], now)]
            return [_apply_batch(writer, batch, now) for batch in batches]

    @despite_damage
    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        found: dict[Key, Row] = {}
        query = f"SELECT {ROW} FROM {_ROWS} WHERE {_ALIVE}"
        with self._reader() as reader:
            for columns in _by_key(reader, query, keys, self._now()):
                if row := row_of(columns):
                    found[row.namespace, row.key] = row
        return [found.get(key) for key in keys]

    @despite_damage
    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        query = f"SELECT s.namespace, r.key, t.tokens FROM {_ROWS} JOIN memory_tokens t ON t.row = r.id WHERE TRUE"
        with self._reader() as reader:
            found = {(unpack_namespace(name), key): tokens for name, key, tokens in _by_key(reader, query, keys)}
        return [found.get(key) for key in keys]

    @despite_damage
    def page(self, request: PageRequest) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first: each scope's as its index has them, merged as they come."""
        kinds = [None] if request.kinds is None else request.kinds
        lists = [(scope, kind) for scope in dict.fromkeys(request.scopes) for kind in kinds]
        offset, limit = min(request.offset, _LARGEST), min(request.limit, _LARGEST)
        if len(lists) > _MAX_LISTS:
            return self._sorted(request, min(offset + limit, _LARGEST))[offset:]
        with self._reader() as reader, ExitStack() as opened:
            found = [
                opened.enter_context(closing(_newest_first(reader, scope, kind, request.after, self._now())))
                for scope, kind in lists
            ]
            behind = islice(heapq.merge(*found, key=_listed), offset, None)
            return list(islice(filter(None, map(row_of, behind)), limit))

    def _sorted(self, request: PageRequest, limit: int) -> list[Row]:
        """The first ``limit`` rows of a page of many scopes, which SQLite sorts."""
        scopes, kinds, after = request.scopes, request.kinds, request.after
        condition, given = f"{_ALIVE} AND {_ANY_KIND}", [self._now()]
        if kinds is not None:
            condition, given = f"{_ALIVE} AND r.kind IN ({_marks(kinds)})", [self._now(), *kinds]
        if after is not None:
            condition, given = f"{condition} AND (-r.created, r.key, s.namespace) > (?, ?, ?)", [*given, *after.place]
        condition += " ORDER BY r.created DESC, r.key, s.namespace LIMIT ?"
        found = self._of_scopes(f"{ROW} FROM {_ROWS}", scopes, condition, [*given, limit])
        page = sorted(filter(_is_listed, found), key=_listed)[:limit]
        rows = list(filter(None, map(row_of, page)))
        if len(rows) == len(page) or len(page) < limit:
            return rows
        behind = replace(request, after=cursor_of(page[-1]))  # others in the place of those that cannot be read
        return rows + self._sorted(behind, limit - len(rows))

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold: by indexes alone.

        Those whose time has come are few, as they are soon removed: to take them off is quicker than to look at each.
        """
        of_kind, given = (_ANY_KIND, []) if kinds is None else (f"r.kind IN ({_marks(kinds)})", [*kinds])
        there = self._of_scopes(f"count(*) FROM {_ROWS}", scopes, f"r.value IS NOT NULL AND {of_kind}", given)
        # A cross join has SQLite begin with the rows, by their expiry.
        ended = f"r.value IS NOT NULL AND r.expires <= ? AND {of_kind}"
        over = self._of_scopes(f"count(*) FROM {_ENDED_ROWS}", scopes, ended, [self._now(), *given])
        return sum(count for (count,) in there) - sum(count for (count,) in over)

    @despite_damage
    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind: by an index alone."""
        selection = f"s.namespace, r.kind, count(*), min(r.created) FROM {_ROWS}"
        found = self._of_scopes(selection, scopes, f"{_ALIVE} AND {_ANY_KIND} GROUP BY 1, 2", [self._now()])
        return [
            Tally(unpack_namespace(name), kind, count, near_micros(oldest))
            for name, kind, count, oldest in found
            if type(kind) is str and type(oldest) is int
        ]

    def _of_scopes(
        self, selection: str, scopes: Sequence[Namespace], condition: str, given: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """What a query finds in ``scopes``, so many at a time as a statement takes."""
        packed = [pack_namespace(scope) for scope in dict.fromkeys(scopes)]
        with self._reader() as reader:
            return [
                found
                for start in range(0, len(packed), _MAX_VARIABLES)
                for some in [packed[start : start + _MAX_VARIABLES]]
                for found in reader.execute(
                    f"SELECT {selection} WHERE s.namespace IN ({_marks(some)}) AND {condition}",
                    [*some, *given],
                )
            ]

    @despite_damage
    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        query = (
            "SELECT namespace FROM memory_scopes s "
            f"WHERE EXISTS (SELECT 1 FROM memory_rows r WHERE r.scope = s.id AND {_ALIVE})"
        )
        of_root = " AND root = ?" if prefix else ""
        with self._reader() as reader:
            found = reader.execute(query + of_root, [self._now(), *prefix[:1]])
            names = list(filter(None, (namespace_of(text) for (text,) in found)))
        return sorted(name for name in names if name[: len(prefix)] == prefix)

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        packed = [pack_namespace(scope) for scope in scopes]
        with self._reader() as reader:
            query = f"SELECT s.namespace, ({_HEAD}) FROM memory_scopes s WHERE s.namespace IN ({_marks(packed)})"
            found = dict(reader.execute(query, packed).fetchall())
            if not all(type(head) is int for head in found.values()):  # a number is damaged: a text is always larger
                found = dict(reader.execute(query.replace(_HEAD, _SOUND_HEAD), packed).fetchall())
        return [found.get(name, 0) for name in packed]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``."""
        query = f"SELECT {CHANGE}, r.model, r.vector FROM {_ROWS} WHERE s.namespace = ? AND r.seq > ? ORDER BY r.seq"
        name = pack_namespace(scope)
        for is_patient in (False, True):
            try:
                with self.connections.reader(is_patient=is_patient) as reader:
                    for found in reader.execute(query, (name, since)):
                        if change := change_of(found):
                            since = change.seq
                            yield change
            except UndecodableText:  # what was read so far has been told
                continue
            break

    @despite_damage
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
        return list(filter(None, (change_of(found[:-2]) for found in rows)))

    @despite_damage
    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        query = (
            f"SELECT s.namespace, r.key, r.version, r.text FROM {_ROWS} "
            "WHERE r.text IS NOT NULL AND (r.model < ? OR r.model > ?)"
        )
        with self._reader() as reader:
            found = (pending_of(columns) for columns in reader.execute(query, (model, model)))
            return list(islice(filter(None, found), limit))

    @despite_damage
    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come."""
        query = f"SELECT s.namespace, r.key FROM {_ROWS} WHERE r.expires <= ? LIMIT ?"
        with self._reader() as reader:
            found = ((namespace_of(name), key) for name, key in reader.execute(query, (self._now(), limit)))
            return [(name, key) for name, key in found if name and type(key) is str]

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        with self._reader() as reader:
            found = reader.execute("SELECT value FROM memory_meta WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self._transaction() as writer:
            writer.execute("INSERT OR REPLACE INTO memory_meta VALUES (?, ?)", (name, value))

    def forget(self, user: str) -> None:
        """Nothing is remembered of who follows changes."""

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        """Every row, readable or not, of one user or of all."""
        of_root = "" if root is None else "AND r.scope IN (SELECT id FROM memory_scopes WHERE root = ?)"
        with self._reader() as reader:
            query = f"SELECT r.id FROM memory_rows r WHERE r.value IS NOT NULL {of_root}"
            ids = [found for (found,) in reader.execute(query, [] if root is None else [root])]
        for start in range(0, len(ids), _MAX_VARIABLES):
            yield from self._inspected(ids[start : start + _MAX_VARIABLES])

    def discard(self, found: Sequence[Unreadable]) -> int:
        """Removes rows that cannot be read."""
        with self._transaction() as writer:
            return sum(discard(writer, one) for one in found)

    def close(self) -> None:
        """Closes all connections; the last one to a file folds its journal into it."""
        self.connections.close()

    def _now(self) -> int:
        return to_micros(self._clock.now())

    def _reader(self) -> AbstractContextManager[sqlite3.Connection]:
        return self.connections.reader()

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return self.connections.transaction()

    @despite_damage
    def _inspected(self, ids: Sequence[int]) -> list[Row | Unreadable]:
        query = (
            f"SELECT r.id, s.root, {ROW}, {CHANGE}, r.model, r.vector FROM memory_rows r "
            f"LEFT JOIN memory_scopes s ON s.id = r.scope WHERE r.id IN ({_marks(ids)}) AND r.value IS NOT NULL"
        )
        with self._reader() as reader:
            return [
                inspected(root, columns, Place(row, columns[SEQ], is_named=type(columns[KEY]) is str))
                for row, root, *columns in reader.execute(query, ids)
            ]


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
        return StoreError(f"SQLite refused the write: {in_one_line(error)}")


def _by_key(reader: sqlite3.Connection, query: str, keys: Sequence[Key], *given: int) -> Generator[tuple[Any, ...]]:
    """What ``query`` over rows and their scopes, whose condition takes ``given``, finds of ``keys``."""
    for namespace in {namespace for namespace, _ in keys}:
        wanted = list({key for owner, key in keys if owner == namespace})
        for start in range(0, len(wanted), _MAX_VARIABLES):
            chunk = wanted[start : start + _MAX_VARIABLES]
            limits = f"AND s.namespace = ? AND r.key IN ({_marks(chunk)})"
            yield from reader.execute(f"{query} {limits}", [*given, pack_namespace(namespace), *chunk])


def _newest_first(
    reader: sqlite3.Connection, scope: Namespace, kind: str | None, after: Cursor | None, now: int
) -> Generator[tuple[Any, ...]]:
    """The columns of a scope's rows (of a kind) behind ``after``; read as they are asked for."""
    name = pack_namespace(scope)
    parts: list[tuple[str, list[Any]]] = [("", [])]
    if after is not None:
        created, last, of = after.place
        # Two statements, each a range of the index, as an OR would read all that is older. A row of the same age and
        # key comes after the cursor's if its namespace does.
        parts = [
            (f"AND r.created = ? AND r.key {'>=' if name > of else '>'} ?", [-created, last]),
            ("AND r.created < ?", [-created]),
        ]
    of_kind, kinds = ("", []) if kind is None else ("AND r.kind = ?", [kind])
    for behind, edge in parts:
        query = (
            f"SELECT {ROW} FROM memory_scopes s JOIN memory_rows r ON r.scope = s.id WHERE s.namespace = ? "
            f"AND {_ALIVE} {of_kind} {behind} ORDER BY r.created DESC, r.key"
        )
        # Closed also if nobody reads on: a statement that is not finished keeps its snapshot, and the journal.
        with closing(reader.execute(query, [name, now, *kinds, *edge])) as rows:
            yield from filter(_is_listed, rows)


def _is_listed(columns: tuple[Any, ...]) -> bool:
    """Whether it can be told where the row of ``ROW``'s columns stands; of a damaged one it may not be."""
    return type(columns[CREATED]) is int and type(columns[KEY]) is str


def _marks(values: Iterable[object]) -> str:
    return ",".join("?" for _ in values)


def _listed(columns: tuple[Any, ...]) -> Listed:
    """Where the row of ``ROW``'s columns stands in a page."""
    return -columns[CREATED], columns[KEY], columns[0]
