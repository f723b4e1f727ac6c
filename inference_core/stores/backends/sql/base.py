"""What SQLite and PostgreSQL share: the queries, and how batches of writes become one transaction.

A transaction reads the rows, applies the writes to them in memory, as every other backend does, and stores the result.

Rows of the SQL databases: the order of their columns, parsing them, and what a transaction stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from inference_core.clock import Clock, SystemClock
from inference_core.errors import StoreError, in_one_line
from inference_core.memory.namespaces import MEMORIES_STORE_NAME, MIGRATED, SALT, Namespace
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.retrieval.documents import NO_EPOCH, Change, Document, DocumentMetadata, Term
from inference_core.stores.backend import (
    MAX_MICROS,
    MAX_SECONDS,
    MIN_MICROS,
    MIN_SECONDS,
    UNREADABLE,
    Batch,
    Cursor,
    Head,
    Key,
    Outcome,
    Put,
    Row,
    RowState,
    SetVector,
    Tally,
    UnembeddedRow,
    Unreadable,
    WriteRule,
    WrongType,
    expiry_micros,
    expiry_of,
    fault_of,
    from_micros,
    is_vector,
    namespace_of,
    near_micros,
    pack_namespace,
    to_micros,
    unpack_namespace,
    unpack_value,
)
from inference_core.stores.backends.rows import MAX_WORDS, WriteSet, forms_of, lost

ROW: Final = "s.namespace, r.key, r.value, r.version, r.seq, r.created, r.updated, r.expires, r.ttl"
CHANGE: Final = (
    "r.seq, r.key, r.kind, r.created, r.value IS NOT NULL, r.text, r.terms, r.analyzer, r.session, r.by_assistant, "
    "r.happened, r.importance"
)
"""Followed by the model and the vector, or by '' and NULL."""
KEY: Final = 1
SEQ: Final = 4
CREATED: Final = 5
"""The places of these columns in ``ROW``."""
ALIVE: Final = "r.value IS NOT NULL AND (r.expires IS NULL OR r.expires > :now)"
ROWS: Final = "memory_rows r JOIN memory_scopes s ON s.id = r.scope"
WRITTEN: Final = (
    "scope, key, seq, version, created, updated, kind, value, text, terms, analyzer, session, by_assistant, happened, "
    "importance, model, vector, expires, ttl"
)
"""The columns of a write: the key, the numbers, then `columns_of` it."""
REPLACED: Final = ", ".join(f"{name} = excluded.{name}" for name in WRITTEN.split(", ")[2:])
CLEARED: Final = (
    "kind = '', value = NULL, text = NULL, terms = NULL, analyzer = NULL, session = '', by_assistant = FALSE, "
    "happened = NULL, importance = 0.5, model = '', vector = NULL, expires = NULL, ttl = NULL"
)
"""A delete keeps the key, the numbers and the times of a row."""
STATE: Final = (
    "r.seq, r.version, r.kind, r.created, r.updated, r.value, r.expires, r.ttl, r.text, r.terms, r.analyzer, "
    "r.session, r.by_assistant, r.happened, r.importance, r.model"
)
_BYTES: Final = (bytes, type(None))
_ROW_COLUMNS: Final = ROW.count(",") + 1
Heads = dict[Namespace, tuple[int, int]]
"""The id of each scope that exists, and the sequence number of its last write."""


def row_of(columns: tuple[Any, ...], *, strictly: bool = False) -> Row | None:
    """The row in the columns ``ROW`` and, if it is there, epoch; None if they cannot be parsed.

    ``strictly``: raises one of ``UNREADABLE`` instead.
    """
    try:
        namespace, key, value, version, seq, created, updated, expires, ttl, *epoch = columns
        # SQLite stores any type in any column, so a damaged row may have a number for a text.
        if type(key) is not str or not type(version) is type(seq) is int:
            raise WrongType
        return Row(
            namespace=unpack_namespace(namespace),
            key=key,
            value=unpack_value(value),
            version=version,
            seq=seq,
            created_at=from_micros(created),
            updated_at=from_micros(updated),
            expiry=expiry_of(expires, ttl),
            epoch=epoch[0] if epoch else NO_EPOCH,
        )
    except UNREADABLE:
        if strictly:
            raise
        return None


def change_of(columns: tuple[Any, ...], *, strictly: bool = False) -> Change | None:
    """The change in the columns ``CHANGE``, model, vector and, if it is there, epoch.

    A row that cannot be parsed counts as deleted; None if not even its key can be. ``strictly``: raises one of
    ``UNREADABLE`` instead.
    """
    seq, key, kind, created, is_there, text, terms, analyzer, session, reply, happened, weight, *others = columns
    model, vector, *epoch = others
    try:
        if not type(key) is type(kind) is type(session) is str or type(seq) is not int:
            raise WrongType
        if not MIN_MICROS <= created <= MAX_MICROS:
            raise OverflowError
        if text is None:
            return Change(seq, key, kind, created / 1e6, None, bool(is_there), *epoch)
        if not type(text) is type(terms) is type(analyzer) is type(model) is str or type(vector) not in _BYTES:
            raise WrongType
        if happened is not None and not MIN_SECONDS <= happened <= MAX_SECONDS:  # also if it is NaN
            raise OverflowError
        metadata = DocumentMetadata(session, bool(reply), happened, weight + 0.0)
        document = Document(text, terms, analyzer, metadata, model, vector)
        return Change(seq, key, kind, created / 1e6, document, True, *epoch)
    except UNREADABLE:
        if strictly:
            raise
        return Change(seq, key, "", 0.0, None, True, *epoch) if type(seq) is int and type(key) is str else None


def cursor_of(columns: tuple[Any, ...]) -> Cursor:
    """The cursor behind the row in the columns ``ROW``, whose namespace, key and creation can be parsed."""
    return Cursor(from_micros(columns[CREATED]), columns[KEY], unpack_namespace(columns[0]))


def pending_of(columns: tuple[Any, ...]) -> UnembeddedRow | None:
    """The pending text in the columns namespace, key, version and text; None if they are damaged."""
    namespace = namespace_of(columns[0])
    _, key, version, text = columns
    is_sound = namespace and (type(key), type(version), type(text)) == (str, int, str)
    return UnembeddedRow(namespace, key, version, text) if namespace and is_sound else None


def address_of(columns: tuple[Any, ...]) -> Key | None:
    """The key in the columns namespace and key; None if they are damaged."""
    namespace, key = namespace_of(columns[0]), columns[1]
    return (namespace, key) if namespace and type(key) is str else None


def state_of(found: Sequence[Any]) -> RowState:
    """The state in the columns ``STATE``; a `lost` one if they cannot be parsed."""
    # A damaged column is written back as it was read, as bytes if need be: SQLite takes it in no other form.
    columns: list[Any] = [column.raw if type(column) is Undecodable else column for column in found]
    seq, version, kind, created, updated, value, expires, ttl, text, terms, analyzer, *metadata, model = columns
    try:
        if not type(seq) is type(version) is int:
            raise WrongType
        document = None if text is None else Document(text, terms, analyzer, DocumentMetadata(*metadata), model)
        times = from_micros(created), from_micros(updated)
        return RowState(seq, version, kind, *times, value, document, expiry_of(expires, ttl))
    except UNREADABLE:
        return lost(seq, version)


def columns_of(state: RowState) -> tuple[Any, ...]:
    """The columns ``WRITTEN`` behind the key and the numbers."""
    of_text: tuple[Any, ...] = (None, None, None, *DocumentMetadata(), "", None)
    if state.document is not None:
        text, terms, analyzer, metadata, model, vector, _ = state.document
        of_text = (text, terms, analyzer, *metadata, model, vector)
    times = to_micros(state.created_at), to_micros(state.updated_at)
    return (*times, state.kind, state.value, *of_text, *expiry_micros(state.expiry))


class BatchDecision(NamedTuple):
    """What a transaction stores and tells its callers.

    ``changed`` holds the columns ``WRITTEN`` and the packed token vectors; ``touched`` the expiry, scope and key of
    rows of which nothing else changes; ``heads`` the last sequence number of each changed scope, by its id; ``logged``
    the events for the log, if there is one.
    """

    outcomes: list[Outcome]
    changed: list[tuple[Any, ...]]
    touched: list[tuple[int, int, str]]
    heads: dict[int, int]
    logged: list[Put]


def decide(
    batches: Sequence[Batch],
    heads: Heads,
    states: Mapping[Key, RowState],
    now: datetime,
    *,
    has_log: bool = False,
) -> BatchDecision:
    """Applies ``batches`` in turn to the rows in ``states``, in memory; one that is refused changes nothing."""
    seqs, after = {namespace: seq for namespace, (_, seq) in heads.items()}, dict(states)
    decision = BatchDecision([], [], [], {}, [])
    for batch in batches:
        writes = WriteSet(after.get, lambda scope: seqs.get(scope, 0), now, has_log=has_log)
        try:
            decision.outcomes.append(writes.apply(batch))
        except StoreError as error:
            decision.outcomes.append(error)
        else:
            after.update(writes.states)
            seqs.update(writes.heads)
            decision.logged.extend(writes.logged)
    for (namespace, key), state in after.items():
        if state is states.get((namespace, key)):
            continue
        scope, head = heads[namespace]
        if state.seq > head:
            columns = columns_of(state)
            tokens = state.document and state.document.tokens
            decision.changed.append((scope, key, state.seq, state.version, *columns, tokens))
            decision.heads[scope] = seqs[namespace]
        elif state.expiry:
            decision.touched.append((to_micros(state.expiry.at), scope, key))
    return decision


class Undecodable(NamedTuple):
    """Stands for a text that is not UTF-8."""

    raw: bytes


class DamagedRow(NamedTuple):
    """How to find an unreadable row again: its id (in PostgreSQL its scope's), its key and its sequence number.

    ``key`` is None if it cannot be read. ``seq``, which shows that nobody has written the row since, may be damaged.
    """

    id: int
    key: str | None
    seq: object


def inspected(root: object, row_id: int, columns: Sequence[Any]) -> Row | Unreadable:
    """The row in the columns ``ROW``, ``CHANGE``, model and vector; `Unreadable` if one of them cannot be parsed."""
    of_row, of_change = tuple(columns[:_ROW_COLUMNS]), tuple(columns[_ROW_COLUMNS:])
    namespace, key = namespace_of(of_row[0]), of_row[1]
    label = root if type(root) is str else namespace[0] if namespace else None
    row = None
    try:
        row = row_of(of_row, strictly=True)
        change = change_of(of_change, strictly=True)
        vector = change.document.vector if change and change.document else None
        if row and (vector is None or is_vector(vector)):
            return row
        reason = "its vector cannot be unpacked"
    except UNREADABLE as error:
        is_text = any(type(column) is Undecodable for column in columns)
        reason = fault_of(UnicodeError() if is_text else error)
    place = DamagedRow(row_id, key if type(key) is str else None, columns[SEQ])
    if isinstance(key, Undecodable):
        key = key.raw.decode(errors="backslashreplace")
    shown = key if type(key) is str else f"({type(key).__name__})"
    is_read = row is not None
    return Unreadable(root=label, namespace=namespace, key=shown, reason=reason, only_index=is_read, place=place)


T = TypeVar("T")


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
    def _select(self, query: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """All rows that ``query`` finds."""

    @abstractmethod
    def _among(self, column: str, values: Sequence[str]) -> tuple[str, dict[str, object]]:
        """The condition that ``column`` has one of ``values``, and its parameters."""

    @abstractmethod
    def _of_keys(self, selection: str, keys: Sequence[Key], condition: str) -> Iterable[tuple[Any, ...]]:
        """The columns ``selection`` of the rows of ``keys`` that meet ``condition``."""

    @abstractmethod
    def _transact(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies ``batches`` in one durable transaction. Raises Refused if the database cannot hold the data."""

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        refusals: list[StoreError | None] = []  # why the database cannot hold a batch, as far as that is known now
        for batch in batches:
            texts: list[str] = []
            for write in batch:
                if isinstance(write, WriteRule):  # which takes its keys from the writes
                    continue
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

    def _joined(self, batches: Sequence[Batch]) -> list[Outcome]:
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

    def _settle(self, namespaces: Iterable[Namespace]) -> None:  # noqa: B027 - most have nothing to do
        """Called before a read of ``namespaces``: puts into place what was written elsewhere, such as into a log."""

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        self._settle([namespace for namespace, key in keys if key != SALT])  # which is never logged
        rows = map(row_of, self._of_keys(f"{ROW}, {self.epoch}", keys, ALIVE))
        found = {(row.namespace, row.key): row for row in rows if row}
        return [found.get(key) for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        rows = self._of_keys(f"s.namespace, r.key, {self.packed_tokens}", keys, "TRUE")
        found = {(unpack_namespace(name), key): tokens for name, key, tokens in rows}
        return [found.get(key) for key in keys]

    def tally(self, namespaces: Sequence[Namespace]) -> list[Tally]:
        self._settle(namespaces)
        condition = f"{ALIVE} AND {self.any_kind} GROUP BY 1, 2"
        rows = self._of_scopes(f"s.namespace, r.kind, count(*), min(r.created) FROM {ROWS}", namespaces, condition)
        return [
            Tally(unpack_namespace(name), kind, count, near_micros(oldest))
            for name, kind, count, oldest in rows
            if type(kind) is str and type(oldest) is int
        ]

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        query = (
            "SELECT s.namespace FROM memory_scopes s "
            f"WHERE EXISTS (SELECT 1 FROM memory_rows r WHERE r.scope = s.id AND {ALIVE})"
        )
        parameters: dict[str, object] = {"now": self._now()}
        if prefix:
            root = prefix[0] if self.holds_nul else pack_namespace(prefix[:1])  # which escapes NUL
            query, parameters = f"{query} AND s.root = :root", parameters | {"root": root}
        names = (namespace_of(name) for (name,) in self._select(query, parameters))
        return sorted(name for name in names if name and name[: len(prefix)] == prefix)

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        self._settle(namespaces)
        rows = self._of_scopes(f"{self.epoch}, {self.scope_heads}", namespaces, "TRUE")
        heads = {name: Head(head, epoch) for epoch, name, _, head in rows}
        absent = Head(0, rows[0][0] if rows else NO_EPOCH)
        return [heads.get(pack_namespace(namespace), absent) for namespace in namespaces]

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
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
        name, last = pack_namespace(namespace), int(since)
        while type(last) is int:  # a damaged number is a text, and comes behind all others
            page = self._select(query, {"name": name, "since": last, "size": self.page_size})
            yield from filter(None, map(change_of, page))
            last = page[-1][0] if len(page) == self.page_size else None

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        """The keys whose terms contain the most of ``words``, counted by the database."""
        parameters: dict[str, object] = {"name": pack_namespace(namespace), "limit": limit, "since": since}
        counted: list[str] = []
        for at, word in enumerate(words[:MAX_WORDS]):
            names = {f"word{at}_{of}": f" {form} " for of, form in enumerate(forms_of(word))}
            is_held = " OR ".join(f"{self.contains}(words, :{name}) > 0" for name in names)
            counted.append(f"CASE WHEN {is_held} THEN 1 ELSE 0 END")
            parameters |= names
        if not counted:
            return []
        query = (
            f"SELECT * FROM (SELECT *, {' + '.join(counted)} AS held FROM (SELECT {CHANGE}, '', NULL, "
            f"' ' || r.terms || ' ' AS words FROM memory_rows r WHERE r.scope = "
            "(SELECT id FROM memory_scopes WHERE namespace = :name) AND r.seq > :since AND r.text IS NOT NULL) spaced"
            ") counted WHERE held > 0 ORDER BY held DESC, seq DESC LIMIT :limit"
        )
        return list(filter(None, (change_of(found[:-2]) for found in self._select(query, parameters))))

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
        rows = self._select("SELECT value FROM memory_meta WHERE name = :name", {"name": name})
        return rows[0][0] if rows else None

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
        namespaces: Iterable[Namespace],
        condition: str,
        parameters: Mapping[str, object] | None = None,
    ) -> list[tuple[Any, ...]]:
        """What a query finds in ``namespaces``, read with as many statements as it takes."""
        packed = [pack_namespace(namespace) for namespace in dict.fromkeys(namespaces)]
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(packed), self.most_values):
            among, names = self._among("s.namespace", packed[start : start + self.most_values])
            query = f"SELECT {selection} WHERE {among} AND {condition}"
            rows += self._select(query, {"now": self._now(), **(parameters or {}), **names})
        return rows

    def _first(
        self, limit: int, of: Callable[[tuple[Any, ...]], T | None], query: str, parameters: Mapping[str, object]
    ) -> list[T]:
        """The first ``limit`` results of ``query`` that ``of`` can parse."""
        size = limit
        while True:
            rows = self._select(f"{query} LIMIT :size", {**parameters, "size": size})
            sound = [one for one in map(of, rows) if one is not None][:limit]
            if len(sound) == limit or len(rows) < size:
                return sound
            size *= 2  # more, in place of those that cannot be read
