"""SQLite: one file, many threads and processes, through the standard library alone.

WAL journal; a commit is on disk when `apply` returns. Readers never wait for writers. All batches that are handed over
together share one transaction, each in its own savepoint, so that a bad one fails alone.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from inference_core.clock import Clock
from inference_core.errors import StoreError, in_one_line
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Capabilities, Key, Outcome, Row, Unreadable, Write
from inference_core.stores.backends.sql import (
    ALIVE,
    CHANGE,
    CREATED,
    KEY,
    ROW,
    ROWS,
    SEQ,
    SqlBackend,
    cursor_of,
    inspected,
    row_of,
)
from inference_core.stores.backends.sqlite_connections import Connections
from inference_core.stores.backends.sqlite_writes import Place, apply_write, discard
from inference_core.stores.codec import Cursor, PageRequest, pack_namespace
from inference_core.stores.codec import Place as Listed

_HEAD: Final = "SELECT coalesce(max(r.seq), 0) FROM memory_rows r WHERE r.scope = s.id"
_SOUND_HEAD: Final = f"{_HEAD} AND typeof(r.seq) = 'integer'"
_MAX_VARIABLES: Final = 500
_LARGEST: Final = 2**63 - 1
_MAX_LISTS: Final = 64
"""So many lists are merged at most: each has a statement open."""


class SqliteBackend(SqlBackend):
    """A Backend over one SQLite file. ``durable=False`` trades the last commits at a power loss for speed.

    Raises ConfigurationError if the file cannot be opened, UnsupportedSchema if a newer version wrote it.
    """

    contains = "instr"
    any_kind = "r.kind >= ''"
    packed_tokens = "(SELECT tokens FROM memory_tokens t WHERE t.row = r.id)"
    most_values = _MAX_VARIABLES

    def __init__(
        self, path: Path, *, durable: bool = True, read_only: bool = False, clock: Clock | None = None
    ) -> None:
        super().__init__(clock)
        self.name = f"sqlite:///{path}"
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
        with self.connections.transaction() as writer:
            now = self._now()
            if len(batches) != 1:
                return [_apply_batch(writer, batch, now) for batch in batches]
            outcome = _apply_all(writer, batches[0], now)
            if isinstance(outcome, Exception):  # the only batch of a transaction, which ends with it
                writer.execute("ROLLBACK")
            return [outcome]

    def page(self, request: PageRequest) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first: each scope's as its index has them, merged as they come."""
        kinds = [None] if request.kinds is None else request.kinds
        lists = [(scope, kind) for scope in dict.fromkeys(request.scopes) for kind in kinds]
        offset, limit = min(request.offset, _LARGEST), min(request.limit, _LARGEST)
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
        """The columns of a scope's rows (of a kind) behind ``after``; read as they are asked for."""
        name = pack_namespace(scope)
        given: dict[str, object] = {"name": name, "kind": kind, "now": self._now()}
        parts = [""]
        if after is not None:
            age, key, of = after.place
            given |= {"created": -age, "key": key}
            # Two statements, each a range of the index, as an OR would read all that is older. A row of the same age
            # and key comes after the cursor's if its namespace does.
            edge = ">=" if name > of else ">"
            parts = [f"AND r.created = :created AND r.key {edge} :key", "AND r.created < :created"]
        for behind in parts:
            query = (
                f"SELECT {ROW} FROM memory_scopes s JOIN memory_rows r ON r.scope = s.id WHERE s.namespace = :name "
                f"AND {ALIVE} {'' if kind is None else 'AND r.kind = :kind'} {behind} ORDER BY r.created DESC, r.key"
            )
            # Closed also if nobody reads on: a statement that is not finished keeps its snapshot, and the journal.
            with closing(reader.execute(query, given)) as rows:
                yield from filter(_is_listed, rows)

    def _sorted(self, request: PageRequest, limit: int) -> list[Row]:
        """The first ``limit`` rows of a page of many scopes, which SQLite sorts."""
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
        behind = replace(request, after=cursor_of(page[-1]))  # others in the place of those that cannot be read
        return rows + self._sorted(behind, limit - len(rows))

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold: by indexes alone.

        Those whose time has come are few, as they are soon removed: to take them off is quicker than to look at each.
        """
        of_kind, given = self._of_kind(kinds)
        there = self._of_scopes(f"count(*) FROM {ROWS}", scopes, f"r.value IS NOT NULL AND {of_kind}", given)
        # A cross join has SQLite begin with the rows, by their expiry.
        ended = f"r.value IS NOT NULL AND r.expires <= :now AND {of_kind}"
        over = self._of_scopes(f"count(*) FROM {ROWS.replace('JOIN', 'CROSS JOIN')}", scopes, ended, given)
        return sum(count for (count,) in there) - sum(count for (count,) in over)

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        found = dict(self._of_scopes(f"s.namespace, ({_HEAD}) FROM memory_scopes s", scopes, "TRUE"))
        if not all(type(head) is int for head in found.values()):  # a number is damaged: a text is always larger
            found = dict(self._of_scopes(f"s.namespace, ({_SOUND_HEAD}) FROM memory_scopes s", scopes, "TRUE"))
        return [found.get(pack_namespace(scope), 0) for scope in scopes]

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self.connections.transaction() as writer:
            writer.execute("INSERT OR REPLACE INTO memory_meta VALUES (?, ?)", (name, value))

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        """Every row, readable or not, of one user or of all."""
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
                yield inspected(label, columns, Place(row, columns[SEQ], is_named=type(columns[KEY]) is str))

    def discard(self, found: Sequence[Unreadable]) -> int:
        """Removes rows that cannot be read."""
        with self.connections.transaction() as writer:
            return sum(discard(writer, one) for one in found)

    def close(self) -> None:
        """Closes all connections; the last one to a file folds its journal into it."""
        self.connections.close()

    def _select(self, query: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self.connections.attempt(lambda reader: reader.execute(query, given).fetchall())

    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        given: dict[str, object] = {f"{column[2:]}{at}": value for at, value in enumerate(values)}
        return f"{column} IN ({','.join(f':{name}' for name in given)})", given

    def _root(self, label: str) -> str:
        return label

    def _of_keys(self, selection: str, keys: Sequence[Key], condition: str) -> Iterator[tuple[Any, ...]]:
        for namespace in {namespace for namespace, _ in keys}:
            wanted = list({key for owner, key in keys if owner == namespace})
            for start in range(0, len(wanted), _MAX_VARIABLES):
                among, given = self._among("r.key", wanted[start : start + _MAX_VARIABLES])
                given |= {"now": self._now(), "name": pack_namespace(namespace)}
                query = f"SELECT {selection} FROM {ROWS} WHERE {condition} AND s.namespace = :name AND {among}"
                yield from self._select(query, given)


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


def _is_listed(columns: tuple[Any, ...]) -> bool:
    """Whether it can be told where the row of ``ROW``'s columns stands; of a damaged one it may not be."""
    return type(columns[CREATED]) is int and type(columns[KEY]) is str


def _listed(columns: tuple[Any, ...]) -> Listed:
    """Where the row of ``ROW``'s columns stands in a page."""
    return -columns[CREATED], columns[KEY], columns[0]
