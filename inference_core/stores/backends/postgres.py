"""PostgreSQL: many processes and machines on one database, through psycopg.

A user's rows are found by their scope, the leading column of every index; vectors are ranked in this process. All
batches that are handed over together share one transaction. Reads never write, so a read-only replica serves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from inference_core.clock import Clock, SystemClock
from inference_core.errors import StoreError
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import Capabilities, Key, Outcome, Pending, Row, Tally, Unreadable, Write
from inference_core.stores.backends.columns import (
    CHANGE,
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
from inference_core.stores.backends.postgres_connections import Connections, Refused
from inference_core.stores.backends.postgres_schema import SET_META, WANTED, has_tables, migrate
from inference_core.stores.backends.postgres_writes import Place, apply, discard, refusal
from inference_core.stores.codec import near_micros, pack_namespace, to_micros, unpack_namespace
from inference_core.stores.cursor import PageRequest
from inference_core.stores.scan import MAX_WORDS, forms_of
from inference_core.stores.urls import shown_url

_ALIVE: Final = "r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > %(now)s)"
_ROWS: Final = "memory_rows r JOIN memory_scopes s ON s.id = r.scope"
_TALLY: Final = f"""
SELECT s.namespace, r.kind, count(*), min(r.created)
FROM {_ROWS} WHERE s.namespace = ANY(%(names)s) AND {_ALIVE} GROUP BY 1, 2
"""
_CHANGES: Final = f"""
SELECT {CHANGE}, r.model, r.vector FROM memory_rows r
WHERE r.scope = (SELECT id FROM memory_scopes WHERE namespace = %s) AND r.seq > %s ORDER BY r.seq LIMIT %s
"""
_PAGE: Final = 2_000
_LARGEST: Final = 2**63 - 1


class PostgresBackend:
    """A Backend over the tables that the connection's search_path leads to; they are made if they are missing.

    ``durable=False``: a crash of the server may lose the last commits. Raises ConfigurationError if the URL cannot be
    read or tables cannot be made, StoreUnavailable if the server cannot be reached, UnsupportedSchema if a newer
    version of this package wrote the tables.
    """

    capabilities = Capabilities(durable=True, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self, url: str, *, durable: bool = True, clock: Clock | None = None) -> None:
        self.name = shown_url(url)
        self._clock = clock or SystemClock()
        self._connections = Connections(url, durable=durable)
        try:
            self._connections.attempt(migrate)
        except BaseException:
            self.close()
            raise

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch as a whole or not at all, all of them in one durable transaction."""
        refusals = [refusal(batch) for batch in batches]
        sound = [batch for batch, refused in zip(batches, refusals, strict=True) if refused is None]
        outcomes = iter(self._joined(sound) if sound else ())
        return [refused or next(outcomes) for refused in refusals]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        query = f"SELECT {ROW} FROM {WANTED} WHERE {_ALIVE}"
        rows = map(row_of, self._connections.read(query, _wanted(keys) | self._now()))
        found = {(row.namespace, row.key): row for row in rows if row}
        return [found.get(key) for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        rows = self._connections.read(f"SELECT s.namespace, r.key, r.tokens FROM {WANTED}", _wanted(keys))
        found = {(unpack_namespace(name), key): tokens for name, key, tokens in rows}
        return [found.get(key) for key in keys]

    def page(self, request: PageRequest) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first."""
        asked: dict[str, object] = {
            "names": _packed(request.scopes),
            "kinds": None if request.kinds is None else [*request.kinds],
            "last": min(request.limit + request.offset, _LARGEST),
            "limit": min(request.limit, _LARGEST),
            "offset": request.offset,
        }
        if request.after is not None:
            age, key, of = request.after.place
            # No key here has a NUL, which a parameter cannot have: what comes after the part before it is the same.
            asked |= {"created": -age, "key": key.partition("\x00")[0], "of": of}
        query = _page(of_kind=request.kinds is not None, is_behind=request.after is not None)
        found = self._connections.read(query, asked | self._now())
        rows = list(filter(None, map(row_of, found)))
        if len(rows) == len(found) or len(found) < request.limit:
            return rows
        # Others in the place of those that cannot be read.
        return rows + self.page(replace(request, limit=request.limit - len(rows), after=cursor_of(found[-1]), offset=0))

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold."""
        of_kind = "" if kinds is None else "AND r.kind = ANY(%(kinds)s)"
        query = f"SELECT count(*) FROM {_ROWS} WHERE s.namespace = ANY(%(names)s) AND {_ALIVE} {of_kind}"
        asked = {"names": _packed(scopes), "kinds": [*(kinds or ())]}
        ((found,),) = self._connections.read(query, asked | self._now())
        return found

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        found = self._connections.read(_TALLY, {"names": _packed(scopes)} | self._now())
        return [Tally(unpack_namespace(name), kind, count, near_micros(oldest)) for name, kind, count, oldest in found]

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        query = (
            "SELECT s.namespace FROM memory_scopes s WHERE (%(root)s::text IS NULL OR s.root = %(root)s::text) "
            f"AND EXISTS (SELECT FROM memory_rows r WHERE r.scope = s.id AND {_ALIVE})"
        )
        root = pack_namespace(prefix[:1]) if prefix else None
        names = [namespace_of(name) for (name,) in self._connections.read(query, {"root": root} | self._now())]
        return sorted(name for name in names if name and name[: len(prefix)] == prefix)

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        packed = _packed(scopes)
        query = "SELECT namespace, seq FROM memory_scopes WHERE namespace = ANY(%s)"
        found = dict(self._connections.read(query, (packed,)))
        return [found.get(name, 0) for name in packed]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``, read by pages.

        A key that is written while it is read may come twice, the newer state last.
        """
        name, is_last = pack_namespace(scope), False
        while not is_last:
            page = self._connections.read(_CHANGES, (name, since, _PAGE))
            yield from filter(None, map(change_of, page))
            is_last = len(page) < _PAGE
            since = since if is_last else page[-1][0]

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``, counted by the database."""
        forms = [forms_of(word) for word in words[:MAX_WORDS]]
        held = " + ".join("(" + " OR ".join("strpos(words, %s) > 0" for _ in found) + ")::int" for found in forms)
        query = (
            f"SELECT * FROM (SELECT *, {held} AS held FROM (SELECT {CHANGE}, '', NULL, ' ' || r.terms || ' ' AS words "
            f"FROM {_ROWS} WHERE s.namespace = %s AND r.text IS NOT NULL) spaced) counted "
            "WHERE held > 0 ORDER BY held DESC, seq DESC LIMIT %s"
        )
        spaced = [f" {form} " for found in forms for form in found]
        if not forms:
            return []
        found = self._connections.read(query, [*spaced, pack_namespace(scope), limit])
        return list(filter(None, (change_of(one[:-2]) for one in found)))

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        query = (
            f"SELECT s.namespace, r.key, r.version, r.text FROM {_ROWS} "
            "WHERE r.text IS NOT NULL AND (r.model < %(model)s OR r.model > %(model)s) LIMIT %(limit)s"
        )
        found = self._connections.read(query, {"model": model, "limit": limit})
        return list(filter(None, map(pending_of, found)))

    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come."""
        query = f"SELECT s.namespace, r.key FROM {_ROWS} WHERE r.expires <= %(now)s LIMIT %(limit)s"
        found = self._connections.read(query, {"limit": limit} | self._now())
        return [(namespace, key) for name, key in found if (namespace := namespace_of(name))]

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        found = self._connections.read("SELECT value FROM memory_meta WHERE name = %s", (name,))
        return found[0][0] if found else None

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        self._connections.attempt(lambda connection: connection.execute(SET_META, (name, value)))

    def inspect(self, root: str | None = None) -> Iterator[Row | Unreadable]:
        """Every row, readable or not, of one user or of all."""
        query = (
            f"SELECT s.id, s.root, {ROW}, {CHANGE}, r.model, r.vector FROM {_ROWS} WHERE r.value IS NOT NULL "
            "AND (%(root)s::text IS NULL OR s.root = %(root)s::text) AND (r.scope, r.key) > (%(scope)s, %(key)s) "
            "ORDER BY r.scope, r.key LIMIT %(limit)s"
        )
        asked: dict[str, object] = {
            "root": None if root is None else pack_namespace((root,)),
            "scope": -1,
            "key": "",
            "limit": _PAGE,
        }
        while page := self._connections.read(query, asked):
            for scope, packed, *columns in page:
                label = namespace_of(packed)
                yield inspected(label and label[0], columns, Place(scope, columns[KEY], columns[SEQ]))
            asked |= {"scope": page[-1][0], "key": page[-1][2 + KEY]}

    def discard(self, found: Sequence[Unreadable]) -> int:
        """Removes rows that cannot be read."""
        return self._connections.attempt(partial(discard, found=found))

    def forget(self, user: str) -> None:
        """Nothing is remembered of who follows changes."""

    def close(self) -> None:
        """Closes all connections."""
        self._connections.close()

    def _now(self) -> dict[str, object]:
        return {"now": to_micros(self._clock.now())}

    def _joined(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies ``batches`` in one transaction; if that is refused, in two, until only the bad one fails."""
        try:
            return self._connections.attempt(partial(apply, batches=batches, now=self._clock.now()))
        except Refused as error:
            if len(batches) == 1:
                return [error]
        half = len(batches) // 2
        return [*self._told(batches[:half]), *self._told(batches[half:])]

    def _told(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """The same, but an error is told to these batches alone, as others are stored."""
        try:
            return self._joined(batches)
        except StoreError as error:
            return [error] * len(batches)


def has_store(url: str) -> bool:
    """Whether the tables of a store are at ``url``. Raises ConfigurationError, StoreUnavailable."""
    with closing(Connections(url, durable=True)) as connections:
        return connections.attempt(has_tables)


def _page(*, of_kind: bool, is_behind: bool) -> str:
    """The query for a page, made of ranges of an index: one for each scope and kind, and of what is behind a row two.

    Each range gives as many rows as the page has at most; what they give together is sorted.
    """
    behind = [""]
    if is_behind:
        # A row of the same age and key comes after the cursor's if its namespace does.
        behind = [
            "AND r.created = %(created)s AND r.key >= %(key)s AND (r.key > %(key)s OR s.namespace > %(of)s)",
            "AND r.created < %(created)s",
        ]
    ranges = " UNION ALL ".join(
        f"(SELECT * FROM memory_rows r WHERE r.scope = s.id AND {_ALIVE} {'AND r.kind = k.kind' if of_kind else ''} "
        f"{part} ORDER BY r.created DESC, r.key LIMIT %(last)s)"
        for part in behind
    )
    return (
        f"SELECT {ROW} FROM memory_scopes s {'CROSS JOIN unnest(%(kinds)s::text[]) AS k (kind)' if of_kind else ''} "
        f"CROSS JOIN LATERAL ({ranges}) r WHERE s.namespace = ANY(%(names)s) "
        "ORDER BY r.created DESC, r.key, s.namespace LIMIT %(limit)s OFFSET %(offset)s"
    )


def _packed(scopes: Sequence[Namespace]) -> list[str]:
    return [pack_namespace(scope) for scope in scopes]


def _wanted(keys: Sequence[Key]) -> dict[str, object]:
    """The keys as arrays, without those that PostgreSQL cannot hold, as nothing is there."""
    distinct = [key for key in dict.fromkeys(keys) if "\x00" not in key[1]]
    return {"names": _packed([name for name, _ in distinct]), "keys": [key for _, key in distinct]}
