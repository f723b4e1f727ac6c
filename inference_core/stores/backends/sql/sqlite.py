"""SQLite: one file for many threads and processes, with nothing but the standard library.

The journal is a WAL: readers never wait for the writer, nor the writer for readers. A commit is on disk when `apply`
returns.
"""

from __future__ import annotations

import heapq
import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from inference_core.clock import Clock
from inference_core.memory.namespaces import AUDIT, SALT, Namespace
from inference_core.retrieval.documents import Change
from inference_core.stores.backend import Capabilities, Check, Head, Key, Outcome, Put, Row, Tally, Unreadable, Write
from inference_core.stores.backends.rows import lost
from inference_core.stores.backends.sql.base import Select, SqlBackend
from inference_core.stores.backends.sql.rows import (
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
    Undecodable,
    cursor_of,
    decide,
    inspected,
    row_of,
    state_of,
)
from inference_core.stores.backends.sql.sqlite_connections import LOG, SqliteConnections, settled
from inference_core.stores.codec import (
    Cursor,
    PageRequest,
    Place,
    expiry_micros,
    pack_namespace,
    to_micros,
    unpack_namespace,
)

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

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        self._settle(scope for scope, key in keys if key != SALT)
        return super().get(keys)

    def page(self, request: PageRequest) -> list[Row]:
        """The rows that ``request`` asks for: each scope's in the order of an index, merged as they are read."""
        kinds = [None] if request.kinds is None else request.kinds
        lists = [(scope, kind) for scope in dict.fromkeys(request.scopes) for kind in kinds]
        offset, limit = min(request.offset, _LARGEST), min(request.limit, _LARGEST)
        self._settle(request.scopes)
        if len(lists) > _MAX_LISTS:
            return self._sorted(request, min(offset + limit, _LARGEST))[offset:]

        def merged(reader: sqlite3.Connection) -> list[Row]:
            with ExitStack() as opened:
                found = [
                    opened.enter_context(closing(self._newest_first(reader, scope, kind, request.after)))
                    for scope, kind in lists
                ]
                behind = islice(heapq.merge(*found, key=_listed), offset, None)
                return list(islice(filter(None, map(row_of, behind)), limit))

        return self.connections.attempt(merged)

    def _newest_first(
        self, reader: sqlite3.Connection, scope: Namespace, kind: str | None, after: Cursor | None
    ) -> Generator[tuple[Any, ...]]:
        """The columns of a scope's rows (of a kind) behind ``after``, read lazily."""
        name = pack_namespace(scope)
        given: dict[str, object] = {"name": name, "kind": kind, "now": self._now()}
        parts = [""]
        if after is not None:
            age, key, of = after.place
            given |= {"created": -age, "key": key}
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
            with closing(reader.execute(query, given)) as rows:
                yield from filter(_is_listed, rows)

    def _sorted(self, request: PageRequest, limit: int) -> list[Row]:
        """The first ``limit`` rows of many scopes, sorted by SQLite."""
        of_kind, given = self._of_kind(request.kinds)
        condition = f"{ALIVE} AND {of_kind}"
        if request.after is not None:
            condition += " AND (-r.created, r.key, s.namespace) > (:age, :key, :name)"
            given |= dict(zip(("age", "key", "name"), request.after.place, strict=True))
        condition += " ORDER BY r.created DESC, r.key, s.namespace LIMIT :limit"
        found = self._of_scopes(f"{ROW} FROM {ROWS}", request.scopes, condition, given | {"limit": limit})
        page = sorted(filter(_is_listed, found), key=_listed)[:limit]
        rows = list(filter(None, map(row_of, page)))
        if len(rows) == len(page) or len(page) < limit:
            return rows
        behind = replace(request, after=cursor_of(page[-1]))  # more, in place of those that cannot be read
        return rows + self._sorted(behind, limit - len(rows))

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold, counted in indexes.

        Subtracting the expired rows, which are few, is quicker than looking at the expiry of each row.
        """
        self._settle(scopes)
        of_kind, given = self._of_kind(kinds)
        there = self._of_scopes(f"count(*) FROM {ROWS}", scopes, f"r.value IS NOT NULL AND {of_kind}", given)
        # A cross join makes SQLite begin with the expired rows.
        ended = f"r.value IS NOT NULL AND r.expires <= :now AND {of_kind}"
        over = self._of_scopes(f"count(*) FROM {ROWS.replace('JOIN', 'CROSS JOIN')}", scopes, ended, given)
        return sum(count for (count,) in there) - sum(count for (count,) in over)

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        self._settle(scopes)
        return super().tally(scopes)

    def heads(self, scopes: Sequence[Namespace]) -> list[Head]:
        self._settle(scopes)
        return super().heads(scopes)

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        self._settle([scope])
        return super().changes(scope, since)

    def expired(self, limit: int) -> list[Key]:
        self.connections.settle()
        return super().expired(limit)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        with self.connections.transaction() as writer:
            writer.execute(
                f"INSERT OR {'IGNORE' if is_first else 'REPLACE'} INTO memory_meta VALUES (?, ?)", (name, value)
            )

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

    def discard(self, found: Sequence[Unreadable]) -> int:
        removed = 0
        with self.connections.transaction() as writer:
            for row, key, seq in (one.place for one in found):
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

    def _transact(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        rows, events = _parted(batches)
        writes = [write for batch in rows for write in batch if not isinstance(write, Check)]
        made = {write.namespace for write in writes if isinstance(write, Put)}
        scopes, keys = {write.namespace for write in writes}, {(write.namespace, write.key) for write in writes}
        checks = {(write.namespace, write.key) for batch in rows for write in batch if isinstance(write, Check)} - keys
        with self.connections.transaction() as writer:
            if any(scope[1:] == (AUDIT,) and key != SALT for scope, key in keys):
                settled(writer, fully=True)

            def select(query: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
                return writer.execute(query, given).fetchall()

            def heads_of(scopes: Iterable[Namespace]) -> Heads:
                found = self._of_scopes(self.scope_heads, scopes, "TRUE", select=select)
                return {unpack_namespace(name): (scope, seq) for name, scope, seq in found}

            heads = heads_of(scopes)
            if missing := made - heads.keys():
                writer.executemany(_NEW_SCOPE, [(scope[0], pack_namespace(scope)) for scope in missing])
                heads |= heads_of(missing)
            found = self._of_keys(f"s.namespace, r.key, {STATE}", keys, "TRUE", select=select)
            states = {(unpack_namespace(name), key): state_of(columns) for name, key, *columns in found}
            found = self._of_keys("s.namespace, r.key, r.version", checks, ALIVE, select=select)
            there = {(unpack_namespace(name), key): lost(0, version) for name, key, version in found}
            decision = decide(rows, heads, states | there, self._clock.now())
            accepted = _accepted(events, decision.outcomes)
            # Scopes that were added for a refused batch may name a user who was erased.
            unused = {heads[scope][0] for scope in missing} - decision.heads.keys()
            writer.executemany(_DROP_SCOPE, [(scope,) for scope in unused])
            if not decision.changed and not decision.touched and not accepted:
                writer.execute("ROLLBACK")
            writer.executemany(_UPSERT, [columns[:-1] for columns in decision.changed])
            writer.executemany(_TOUCH, decision.touched)
            for start in range(0, len(accepted), _EVENTS_AT_ONCE):
                some = accepted[start : start + _EVENTS_AT_ONCE]
                values = ",".join([_EVENT] * len(some))  # one statement, as each step of one waits for the GIL
                columns = [column for event in some for column in event]
                writer.execute(f"INSERT INTO memory_log ({LOG}) VALUES {values}", columns)
            known = {(heads[namespace][0], key) for namespace, key in states}
            for scope, key, *_, tokens in decision.changed:
                if tokens is not None:
                    writer.execute(_SET_TOKENS, (tokens, scope, key))
                elif (scope, key) in known:
                    writer.execute(_CLEAR_TOKENS, (scope, key))
        return decision.outcomes

    def _settle(self, scopes: Iterable[Namespace]) -> None:
        """Moves logged events to their place before a read of ``scopes``, if these include events."""
        if any(scope[1:] == (AUDIT,) for scope in scopes):
            self.connections.settle()

    def _select(self, query: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self.connections.attempt(lambda reader: reader.execute(query, given).fetchall())

    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        given: dict[str, object] = {f"{column[2:]}{at}": value for at, value in enumerate(values)}
        return f"{column} IN ({','.join(f':{name}' for name in given)})", given

    def _of_keys(
        self, selection: str, keys: Iterable[Key], condition: str, select: Select | None = None
    ) -> Iterator[tuple[Any, ...]]:
        distinct = list(dict.fromkeys(keys))
        for start in range(0, len(distinct), _KEYS_AT_ONCE):
            some = distinct[start : start + _KEYS_AT_ONCE]
            given: dict[str, object] = {f"key{at}": key for at, (_, key) in enumerate(some)}
            given |= {f"name{at}": pack_namespace(name) for at, (name, _) in enumerate(some)} | {"now": self._now()}
            wanted = ",".join(f"(:name{at},:key{at})" for at in range(len(some)))
            query = f"WITH wanted (name, key) AS (VALUES {wanted}) SELECT {selection} FROM {_WANTED} WHERE {condition}"
            yield from (select or self._select)(query, given)


def _parted(batches: Sequence[Sequence[Write]]) -> tuple[list[list[Write]], list[dict[int, Put]]]:
    """The writes of each batch that change rows, and, by their positions in it, the events that go into the log."""
    rows: list[list[Write]] = []
    events: list[dict[int, Put]] = []
    for batch in batches:
        # Events go into the log, where all users' share one database page; as rows, each user's would touch six.
        some = {
            at: write
            for at, write in enumerate(batch)
            if isinstance(write, Put) and write.is_new and write.namespace[1:] == (AUDIT,)
        }
        rows.append([write for at, write in enumerate(batch) if at not in some])
        events.append(some)
    return rows, events


def _accepted(events: Sequence[Mapping[int, Put]], outcomes: Sequence[Outcome]) -> list[tuple[Any, ...]]:
    """The columns ``LOG`` of the events in batches that were not refused. Adds the events' versions to ``outcomes``."""
    accepted: list[tuple[Any, ...]] = []
    for some, outcome in zip(events, outcomes, strict=True):
        if isinstance(outcome, list):
            for at, put in some.items():
                outcome.insert(at, 1)
                name, made = pack_namespace(put.namespace), to_micros(put.updated_at)
                ends = expiry_micros(put.expiry)
                accepted.append((put.namespace[0], name, put.key, made, put.kind, put.value, *ends))
    return accepted


def _is_listed(columns: tuple[Any, ...]) -> bool:
    """Whether the row in the columns ``ROW`` can be sorted; a damaged one may not be."""
    return type(columns[CREATED]) is int and type(columns[KEY]) is str


def _listed(columns: tuple[Any, ...]) -> Place:
    """The sort key of the row in the columns ``ROW``."""
    return -columns[CREATED], columns[KEY], columns[0]
