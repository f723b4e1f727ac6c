"""PostgreSQL: one database for many processes and machines, through psycopg.

Scope is the leading column of every index, so a user's rows cost the same however many users there are. Vectors are
ranked in this process. Reads never write, so a read-only replica serves them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psycopg

from inference_core.clock import Clock
from inference_core.errors import WriteUnknown
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Capabilities, Key, Outcome, Put, Row, Unreadable, Write
from inference_core.stores.backends.sql.base import SqlBackend
from inference_core.stores.backends.sql.postgres_connections import (
    ADD_META,
    SET_META,
    WANTED,
    Connection,
    PostgresConnections,
    has_tables,
    migrate,
)
from inference_core.stores.backends.sql.rows import (
    ALIVE,
    CHANGE,
    CLEARED,
    KEY,
    REPLACED,
    ROW,
    ROWS,
    STATE,
    WRITTEN,
    cursor_of,
    decide,
    inspected,
    row_of,
    state_of,
)
from inference_core.stores.codec import PageRequest, namespace_of, pack_namespace, unpack_namespace
from inference_core.stores.urls import shown_url

_NEW_SCOPES: Final = """
INSERT INTO memory_scopes (root, namespace)
SELECT root, namespace FROM unnest(%b::text[], %b::text[]) AS wanted (root, namespace)
WHERE NOT EXISTS (SELECT FROM memory_scopes s WHERE s.namespace = wanted.namespace)
ORDER BY namespace COLLATE "C" ON CONFLICT DO NOTHING
"""
_LOCK: Final = """
SELECT namespace, id, seq FROM memory_scopes WHERE namespace = ANY(%b) ORDER BY namespace FOR NO KEY UPDATE
"""
_FIND: Final = f"SELECT s.namespace, r.key, {STATE} FROM {WANTED}"
_UPSERT: Final = f"""
INSERT INTO memory_rows ({WRITTEN}, tokens)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %b, %s, %s, %b)
ON CONFLICT (scope, key) DO UPDATE SET {REPLACED}, tokens = excluded.tokens
"""
_TOUCH: Final = "UPDATE memory_rows SET expires = %s WHERE scope = %s AND key = %s"
_DISCARD: Final = f"""
WITH head AS (UPDATE memory_scopes SET seq = seq + 1 WHERE id = %(id)s RETURNING seq)
UPDATE memory_rows SET seq = (SELECT seq FROM head), version = version + 1, created = 0, updated = 0, {CLEARED},
    tokens = NULL
WHERE scope = %(id)s AND key = %(key)s AND seq = %(seq)s
"""
_ERASE: Final = """
DELETE FROM memory_rows WHERE (scope, key) IN (
    SELECT r.scope, r.key FROM memory_rows r WHERE r.scope IN (SELECT id FROM memory_scopes WHERE root = %(root)s)
    LIMIT %(limit)s
)
"""
"""By the primary key: a ctid is unique only within one partition."""
_ERASE_ROW: Final = """
DELETE FROM memory_rows WHERE scope = (SELECT id FROM memory_scopes WHERE namespace = %s) AND key = %s
"""
_NEW_SEQS: Final = """
UPDATE memory_scopes s SET seq = n.seq FROM unnest(%b::bigint[], %b::bigint[]) AS n (id, seq) WHERE s.id = n.id
"""
_DROP_SCOPES: Final = """
DELETE FROM memory_scopes s WHERE s.id = ANY(%b::bigint[])
AND NOT EXISTS (SELECT FROM memory_rows r WHERE r.scope = s.id)
"""
_STARTED: Final = "extract(epoch FROM pg_postmaster_start_time())"
_RECOVERED: Final = "extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())"
"""When the statistics were reset, which the server does after one of its processes has crashed, too."""
_CHEAP_STATISTICS: Final = 150_000
"""The first version of the server in which reading their time does not wait for another process."""
_LARGEST: Final = 2**63 - 1
_PARAMETER: Final = re.compile(r"(?<!:):(\w+)")


class PostgresBackend(SqlBackend):
    """A Backend on the database at ``url``, whose tables are created if they are missing.

    With ``durable=False`` a crash of the server may lose the last commits. Raises ConfigurationError if the URL cannot
    be parsed or the tables cannot be created, StoreUnavailable if the server cannot be reached, UnsupportedSchema if a
    newer version of the package wrote the tables.
    """

    product, holds_nul = "PostgreSQL", False
    contains = "strpos"
    has_langgraph = (
        "SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = to_regclass('store') AND attname IN ('prefix', 'key')"
    )
    packed_tokens = "r.tokens"
    scope_heads = "s.namespace, s.id, s.seq FROM memory_scopes s"
    most_values = _LARGEST
    capabilities = Capabilities(durable=True, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self, url: str, *, durable: bool = True, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.name = shown_url(url)
        self.connections = PostgresConnections(url, durable=durable)
        with ExitStack() as opened:
            opened.callback(self.close)
            self.connections.attempt(migrate)
            version = self.connections.attempt(lambda connection: connection.info.server_version)
            opened.pop_all()
        # A server never goes back while it runs. Which one answers may change with each statement, behind a pooler too,
        # and so may its state: a failover, a restored folder, a crash with commits that had not waited for the disk.
        since = [_STARTED, *([_RECOVERED] if version >= _CHEAP_STATISTICS else [])]
        self.epoch = f"(SELECT hashtextextended(concat_ws(' ', {', '.join(since)}), 0))"

    def page(self, request: PageRequest) -> list[Row]:
        """The rows that ``request`` asks for, from ranges of an index.

        Each scope and kind is one range, or two behind a cursor. Each range gives at most as many rows as the page has;
        the results are sorted together.
        """
        given = {
            "now": self._now(),
            "names": [pack_namespace(scope) for scope in request.scopes],
            "kinds": [*(request.kinds or ())],
            "last": min(request.limit + request.offset, _LARGEST),
            "limit": min(request.limit, _LARGEST),
            "offset": request.offset,
        }
        parts = [""]
        if request.after is not None:
            age, key, of = request.after.place
            # PostgreSQL's parameters and keys hold no NUL, so the rows behind the key are those behind its part before
            # the first NUL.
            given |= {"created": -age, "key": key.partition("\x00")[0], "of": of}
            # A row of the same age and key comes after the cursor's if its namespace does.
            parts = [
                "AND r.created = :created AND r.key >= :key AND (r.key > :key OR s.namespace > :of)",
                "AND r.created < :created",
            ]
        kinds, of_kind = "", ""
        if request.kinds is not None:
            kinds, of_kind = "CROSS JOIN unnest(:kinds::text[]) AS k (kind)", "AND r.kind = k.kind"
        ranges = " UNION ALL ".join(
            f"(SELECT * FROM memory_rows r WHERE r.scope = s.id AND {ALIVE} {of_kind} {part} "
            "ORDER BY r.created DESC, r.key LIMIT :last)"
            for part in parts
        )
        query = (
            f"SELECT {ROW} FROM memory_scopes s {kinds} CROSS JOIN LATERAL ({ranges}) r "
            "WHERE s.namespace = ANY(:names) ORDER BY r.created DESC, r.key, s.namespace LIMIT :limit OFFSET :offset"
        )
        found = self._select(query, given)
        rows = list(filter(None, map(row_of, found)))
        if len(rows) == len(found) or len(found) < request.limit:
            return rows
        # More, in place of those that cannot be read.
        return rows + self.page(replace(request, limit=request.limit - len(rows), after=cursor_of(found[-1]), offset=0))

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        of_kind, given = self._of_kind(kinds)
        found = self._of_scopes(f"count(*) FROM {ROWS}", scopes, f"{ALIVE} AND {of_kind}", given)
        return sum(count for (count,) in found)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        query = ADD_META if is_first else SET_META
        self.connections.attempt(lambda connection: connection.execute(query, (name, value)))

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        of_root = "" if root is None else "AND s.root = :root"
        query = (
            f"SELECT s.id, s.root, {ROW}, {CHANGE}, r.model, r.vector FROM {ROWS} WHERE r.value IS NOT NULL "
            f"{of_root} AND (r.scope, r.key) > (:scope, :key) ORDER BY r.scope, r.key LIMIT {self.page_size}"
        )
        given: dict[str, object] = {"root": root and pack_namespace((root,)), "scope": -1, "key": ""}
        while page := self._select(query, given):
            for scope, packed, *columns in page:
                label = namespace_of(packed)
                yield inspected(label and label[0], scope, columns)
            given |= {"scope": page[-1][0], "key": page[-1][2 + KEY]}

    def discard(self, found: Sequence[Unreadable]) -> int:

        def discard(connection: Connection) -> int:
            with connection.transaction():
                return sum(connection.execute(_DISCARD, one.place._asdict()).rowcount for one in found)

        return self.connections.attempt(discard)

    @contextmanager
    def snapshot(self) -> Generator[PostgresBackend]:
        """The database as of one moment, for reading alone."""
        with self.connections.frozen() as connections:
            frozen = copy.copy(self)
            frozen.connections = connections
            yield frozen

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        def portion(connection: Connection) -> bool:
            with connection.transaction():
                label = {"root": pack_namespace((root,)), "limit": self.page_size}
                if connection.execute(_ERASE, label).rowcount == self.page_size:
                    return True
                connection.execute("DELETE FROM memory_scopes WHERE root = %(root)s", label)
                for namespace, key in also:
                    connection.execute(_ERASE_ROW, (pack_namespace(namespace), key))
                return False

        def drain(connection: Connection) -> None:
            with connection.transaction():  # waits for all that began before the user's fence was put up
                connection.execute("LOCK TABLE memory_scopes IN EXCLUSIVE MODE")

        self.connections.attempt(drain)
        while self.connections.attempt(portion):
            pass

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """``fully``: with VACUUM FULL, which blocks all readers and writers. Tables of another role are left out."""

        def vacuum(connection: Connection) -> None:
            connection.execute("SET statement_timeout = 0")
            try:
                connection.execute(f"VACUUM {'(FULL) ' if fully else ''}memory_rows, memory_scopes, memory_meta")
            finally:
                connection.execute("SET statement_timeout = '5s'")

        self.connections.attempt(vacuum)
        freed = [] if fully else ["freed pages of PostgreSQL's tables, until they are used again or VACUUM FULL is run"]
        return [*freed, "PostgreSQL's write-ahead log, until it is recycled"]

    def files(self) -> list[Path]:
        """None: the server's files lie elsewhere."""
        return []

    def close(self) -> None:
        self.connections.close()

    def _select(self, query: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self.connections.read(_PARAMETER.sub(r"%(\1)s", query), given)

    def _of_keys(self, selection: str, keys: Sequence[Key], condition: str) -> list[tuple[Any, ...]]:
        distinct = [key for key in dict.fromkeys(keys) if "\x00" not in key[1]]
        names, wanted = [pack_namespace(name) for name, _ in distinct], [key for _, key in distinct]
        query = f"SELECT {selection} FROM {WANTED} WHERE {condition}"
        return self._select(query, {"names": names, "keys": wanted, "now": self._now()})

    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        return f"{column} = ANY(:{column[2:]}s)", {f"{column[2:]}s": list(values)}

    def _transact(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies ``batches`` in two round trips: lock and read, then store and commit.

        Scopes are locked in the order of their names, so transactions cannot deadlock. Raises WriteUnknown if the
        connection was lost during the commit.
        """
        writes = [write for batch in batches for write in batch]
        keys = list(dict.fromkeys((pack_namespace(write.namespace), write.key) for write in writes))
        made = {write.namespace for write in writes if isinstance(write, Put)}

        def apply(connection: Connection) -> list[Outcome]:
            is_sent = False
            try:
                with connection.pipeline():
                    while True:
                        connection.execute("BEGIN")
                        if made:
                            roots = [pack_namespace(scope[:1]) for scope in made]
                            connection.execute(_NEW_SCOPES, (roots, [*map(pack_namespace, made)]))
                        scopes = connection.execute(_LOCK, ([*{name for name, _ in keys}],), binary=True)
                        wanted = {"names": [name for name, _ in keys], "keys": [key for _, key in keys]}
                        rows = connection.execute(_FIND, wanted, binary=True)
                        heads = {unpack_namespace(name): (scope, seq) for name, scope, seq in scopes.fetchall()}
                        states = {(unpack_namespace(name), key): state_of(row) for name, key, *row in rows.fetchall()}
                        if made.union(namespace for namespace, _ in states) <= heads.keys():
                            break
                        # Another transaction has dropped an unused scope, or made one between the lock and the read.
                        connection.execute("ROLLBACK")
                    decision = decide(batches, heads, states, self._clock.now())
                    unused = [scope for scope, seq in heads.values() if not seq and scope not in decision.heads]
                    with connection.cursor() as cursor:
                        if unused:  # it was made for a batch that was refused, and may name a user who was erased
                            cursor.execute(_DROP_SCOPES, (unused,))
                        if decision.changed:
                            cursor.executemany(_UPSERT, decision.changed)
                            cursor.execute(_NEW_SEQS, ([*decision.heads], [*decision.heads.values()]))
                        if decision.touched:
                            cursor.executemany(_TOUCH, decision.touched)
                    is_sent = True
                    connection.execute("COMMIT")
            except psycopg.Error as error:
                if is_sent and connection.broken:
                    raise WriteUnknown(
                        "The connection to PostgreSQL was lost during the commit; retry the write under the same id"
                    ) from error
                raise
            return decision.outcomes

        return self.connections.attempt(apply)


def has_store(url: str) -> bool:
    """Whether there is a store at ``url``. Raises ConfigurationError, StoreUnavailable."""
    with closing(PostgresConnections(url, durable=True)) as connections:
        return connections.attempt(has_tables)
