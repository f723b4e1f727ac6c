"""What SQLite and PostgreSQL share: the queries, and how batches of writes become one transaction.

A transaction reads the rows, applies the writes to them in memory, as every other backend does, and stores the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar

from inference_core.clock import Clock, SystemClock
from inference_core.errors import StoreError, in_one_line
from inference_core.memory.namespaces import MEMORIES_STORE_NAME, MIGRATED, Namespace
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.retrieval.documents import NO_EPOCH, Change, Term
from inference_core.stores.backend import Head, Key, Outcome, Put, Row, SetVector, Tally, UnembeddedRow, Write
from inference_core.stores.backends.rows import MAX_WORDS, forms_of
from inference_core.stores.backends.sql.rows import ALIVE, CHANGE, ROW, ROWS, address_of, change_of, pending_of, row_of
from inference_core.stores.codec import namespace_of, near_micros, pack_namespace, to_micros, unpack_namespace

T = TypeVar("T")
Select = Callable[[str, Mapping[str, object]], list[tuple[Any, ...]]]


class Refused(StoreError):
    """The database cannot hold the data; nothing was changed."""


class SqlBackend(ABC):
    """A Backend on a SQL database. Queries name their parameters as SQLite does: ``:now``."""

    product: ClassVar[str]
    holds_nul: ClassVar[bool]
    contains: ClassVar[str]
    """The SQL function that finds a text in another."""
    packed_tokens: ClassVar[str]
    """The SQL expression for the packed token vectors of a row."""
    scope_heads: ClassVar[str]
    """Selects the name, the id and the last sequence number of scopes."""
    has_langgraph: ClassVar[str]
    """Selects whether there is a table ``store`` with LangGraph's columns."""
    epoch: str
    """The SQL expression for the database's epoch, a number; costs no lookup."""
    any_kind: ClassVar[str] = "TRUE"
    """A condition that is always true; SQLite's makes it use the index by kind."""
    most_values: ClassVar[int]
    """The most scopes in one statement."""
    page_size: ClassVar[int] = 2_000
    """The most changes read by one statement."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()

    def holds_unmigrated(self) -> bool:
        """Whether LangGraph's store has memories in the same database, and none of them were migrated."""
        if not self._select(self.has_langgraph, {})[0][0] or self.namespaces(MIGRATED):
            return False
        ends = {f"end{at}": f"%.{label}" for at, label in enumerate((MEMORIES_STORE_NAME, *MEMORY_CATEGORIES))}
        agents = {f"agent{at}": f"%.{label}.%" for at, label in enumerate(MEMORY_CATEGORIES)}
        patterns = ends | agents | {"langmem": f"{MEMORIES_STORE_NAME}.%"}
        anyone = " OR ".join(f"prefix LIKE :{name}" for name in patterns)
        return bool(self._select(f"SELECT 1 FROM store WHERE {anyone} LIMIT 1", patterns))

    @abstractmethod
    def _select(self, query: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """All rows that ``query`` finds."""

    @abstractmethod
    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        """The condition that ``column`` has one of ``values``, and its parameters."""

    @abstractmethod
    def _of_keys(self, selection: str, keys: Sequence[Key], condition: str) -> Iterable[tuple[Any, ...]]:
        """The columns ``selection`` of the rows of ``keys`` that meet ``condition``."""

    @abstractmethod
    def _transact(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies ``batches`` in one durable transaction. Raises Refused if the database cannot hold the data."""

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        refusals: list[StoreError | None] = []  # why the database cannot hold a batch, as far as that is known now
        for batch in batches:
            texts: list[str] = []
            for write in batch:
                texts += [write.key, pack_namespace(write.namespace)]
                if isinstance(write, SetVector):
                    texts.append(write.model)
                elif isinstance(write, Put):
                    texts += [write.value, write.kind]
                    if write.document:
                        text, terms, analyzer, metadata, model, _, _ = write.document
                        texts += [text, terms, analyzer, metadata.session, model]
            try:
                has_nul = b"\x00" in "".join(texts).encode()
            except (TypeError, UnicodeEncodeError) as error:
                refusals.append(StoreError(f"{self.product} cannot hold this: {in_one_line(error)}"))
            else:
                is_refused = has_nul and not self.holds_nul
                refusals.append(StoreError(f"{self.product} cannot hold the character NUL") if is_refused else None)
        sound = [batch for batch, refused in zip(batches, refusals, strict=True) if refused is None]
        outcomes = iter(self._joined(sound) if sound else ())
        return [refused or next(outcomes) for refused in refusals]

    def _joined(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies ``batches`` in one transaction; if it is refused, in halves, until only the bad batch fails."""
        try:
            return self._transact(batches)
        except Refused as error:
            if len(batches) == 1:
                return [error]
        half = len(batches) // 2
        outcomes: list[Outcome] = []
        for part in (batches[:half], batches[half:]):
            try:
                outcomes += self._joined(part)
            except StoreError as error:  # the other half may be stored
                outcomes += [error] * len(part)
        return outcomes

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        rows = map(row_of, self._of_keys(f"{ROW}, {self.epoch}", keys, ALIVE))
        found = {(row.namespace, row.key): row for row in rows if row}
        return [found.get(key) for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        rows = self._of_keys(f"s.namespace, r.key, {self.packed_tokens}", keys, "TRUE")
        found = {(unpack_namespace(name), key): tokens for name, key, tokens in rows}
        return [found.get(key) for key in keys]

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        condition = f"{ALIVE} AND {self.any_kind} GROUP BY 1, 2"
        found = self._of_scopes(f"s.namespace, r.kind, count(*), min(r.created) FROM {ROWS}", scopes, condition)
        return [
            Tally(unpack_namespace(name), kind, count, near_micros(oldest))
            for name, kind, count, oldest in found
            if type(kind) is str and type(oldest) is int
        ]

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        query = (
            "SELECT s.namespace FROM memory_scopes s "
            f"WHERE EXISTS (SELECT 1 FROM memory_rows r WHERE r.scope = s.id AND {ALIVE})"
        )
        given: dict[str, object] = {"now": self._now()}
        if prefix:
            root = prefix[0] if self.holds_nul else pack_namespace(prefix[:1])  # which escapes NUL
            query, given = f"{query} AND s.root = :root", given | {"root": root}
        names = (namespace_of(name) for (name,) in self._select(query, given))
        return sorted(name for name in names if name and name[: len(prefix)] == prefix)

    def heads(self, scopes: Sequence[Namespace]) -> list[Head]:
        found = self._of_scopes(f"{self.epoch}, {self.scope_heads}", scopes, "TRUE")
        heads = {name: Head(head, epoch) for epoch, name, _, head in found}
        absent = Head(0, found[0][0] if found else NO_EPOCH)
        return [heads.get(pack_namespace(scope), absent) for scope in scopes]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``, read page by page.

        A key that is written meanwhile may come twice, the newer state last.
        """
        # The size is a subquery, so that PostgreSQL does not count on it. It takes a scope for small until it has
        # statistics, and would read and sort all of it for each page.
        query = (
            f"SELECT {CHANGE}, r.model, r.vector, {self.epoch} FROM memory_rows r WHERE r.scope = "
            "(SELECT id FROM memory_scopes WHERE namespace = :name) AND r.seq > :since ORDER BY r.seq "
            "LIMIT (SELECT CAST(:size AS bigint))"
        )
        name, last = pack_namespace(scope), int(since)
        while type(last) is int:  # a damaged number is a text, and comes behind all others
            page = self._select(query, {"name": name, "since": last, "size": self.page_size})
            yield from filter(None, map(change_of, page))
            last = page[-1][0] if len(page) == self.page_size else None

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        """The keys whose terms contain the most of ``words``, counted by the database."""
        given: dict[str, object] = {"name": pack_namespace(scope), "limit": limit, "since": since}
        counted: list[str] = []
        for at, word in enumerate(words[:MAX_WORDS]):
            names = {f"word{at}_{of}": f" {form} " for of, form in enumerate(forms_of(word))}
            is_held = " OR ".join(f"{self.contains}(words, :{name}) > 0" for name in names)
            counted.append(f"CASE WHEN {is_held} THEN 1 ELSE 0 END")
            given |= names
        if not counted:
            return []
        query = (
            f"SELECT * FROM (SELECT *, {' + '.join(counted)} AS held FROM (SELECT {CHANGE}, '', NULL, "
            f"' ' || r.terms || ' ' AS words FROM memory_rows r WHERE r.scope = "
            "(SELECT id FROM memory_scopes WHERE namespace = :name) AND r.seq > :since AND r.text IS NOT NULL) spaced"
            ") counted WHERE held > 0 ORDER BY held DESC, seq DESC LIMIT :limit"
        )
        return list(filter(None, (change_of(found[:-2]) for found in self._select(query, given))))

    def pending(self, model: str, limit: int, keys: Sequence[Key] | None = None) -> list[UnembeddedRow]:
        columns = "s.namespace, r.key, r.version, r.text"
        if keys is not None:
            found = self._of_keys(f"{columns}, r.model", keys, "r.text IS NOT NULL")
            waiting = (pending_of(row[:-1]) for row in found if row[-1] != model)
            return list(islice(filter(None, waiting), limit))
        query = f"SELECT {columns} FROM {ROWS} WHERE r.text IS NOT NULL AND (r.model < :model OR r.model > :model)"
        return self._first(limit, pending_of, query, {"model": model})

    def expired(self, limit: int) -> list[Key]:
        query = f"SELECT s.namespace, r.key FROM {ROWS} WHERE r.expires <= :now"
        return self._first(limit, address_of, query, {"now": self._now()})

    def get_meta(self, name: str) -> str | None:
        found = self._select("SELECT value FROM memory_meta WHERE name = :name", {"name": name})
        return found[0][0] if found else None

    def forget(self, user: str) -> None:  # noqa: B027 - none of them has anything to do
        """Does nothing: these databases keep no record of who follows changes."""

    def _now(self) -> int:
        return to_micros(self._clock.now())

    def _of_kind(self, kinds: frozenset[str] | None) -> tuple[str, dict[str, object]]:
        """The condition that a row is of ``kinds``, and its parameters."""
        return (self.any_kind, {}) if kinds is None else self._among("r.kind", list(kinds))

    def _of_scopes(
        self,
        selection: str,
        scopes: Iterable[Namespace],
        condition: str,
        given: Mapping[str, object] | None = None,
        select: Select | None = None,
    ) -> list[tuple[Any, ...]]:
        """What a query finds in ``scopes``, read with as many statements as it takes."""
        packed = [pack_namespace(scope) for scope in dict.fromkeys(scopes)]
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(packed), self.most_values):
            among, names = self._among("s.namespace", packed[start : start + self.most_values])
            query = f"SELECT {selection} WHERE {among} AND {condition}"
            found += (select or self._select)(query, {"now": self._now(), **(given or {}), **names})
        return found

    def _first(
        self, limit: int, of: Callable[[tuple[Any, ...]], T | None], query: str, given: Mapping[str, object]
    ) -> list[T]:
        """The first ``limit`` results of ``query`` that ``of`` can parse."""
        size = limit
        while True:
            found = self._select(f"{query} LIMIT :size", {**given, "size": size})
            sound = [one for one in map(of, found) if one is not None][:limit]
            if len(sound) == limit or len(found) < size:
                return sound
            size *= 2  # more, in place of those that cannot be read
