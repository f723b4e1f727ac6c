"""Cells by scope and key, and the questions of a Backend: for the databases that hold their rows in this process."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import nlargest
from itertools import chain, islice
from typing import Final, TypeVar

from inference_core.clock import Clock, SystemClock, aware
from inference_core.errors import StoreError, VersionConflict
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, Term
from inference_core.stores.backend import (
    Check,
    Delete,
    Expire,
    Expiry,
    Key,
    Outcome,
    Pending,
    Put,
    Row,
    SetVector,
    Tally,
    Touch,
    Write,
)
from inference_core.stores.codec import (
    UNREADABLE,
    Cursor,
    PageRequest,
    Place,
    from_micros,
    pack_namespace,
    to_micros,
    unpack_value,
)

# What each kind of write makes of a key: written once for the databases that do not say it in SQL.

LOST: Final = ""
"""The value of a cell that is there and cannot be read."""


@dataclass(frozen=True, slots=True)
class RowState:
    """The state of a key. ``value`` None: it was deleted, and ``version`` and ``seq`` tell when."""

    seq: int
    version: int
    kind: str
    created_at: datetime
    updated_at: datetime
    value: str | None
    document: Document | None = None
    expiry: Expiry | None = None

    def is_alive(self, now: datetime) -> bool:
        """Whether there is a value, and its time has not come."""
        return self.value is not None and not self.is_expired(now)

    def is_expired(self, now: datetime) -> bool:
        """Whether its time has come."""
        return self.expiry is not None and self.expiry.at <= now

    def row(self, namespace: Namespace, key: str) -> Row | None:
        """It as a row; None if there is no value, or none that can be read."""
        try:
            return Row(
                namespace=namespace,
                key=key,
                value=unpack_value(self.value or LOST),
                version=self.version,
                seq=self.seq,
                created_at=self.created_at,
                updated_at=self.updated_at,
                expiry=self.expiry,
            )
        except UNREADABLE:
            return None

    def change(self, key: str) -> Change:
        """It as what an index hears of it."""
        document = self.document and self.document._replace(tokens=None)
        return Change(self.seq, key, self.kind, self.created_at.timestamp(), document, bool(self.value))

    def pending(self, namespace: Namespace, key: str, model: str) -> Pending | None:
        """It as a text that waits for a vector of ``model``, if it does."""
        if self.document is None or self.document.model == model:
            return None
        return Pending(namespace, key, self.version, self.document.text)


def lost(seq: object, version: object) -> RowState:
    """A cell that cannot be read, which may be replaced and deleted all the same; of its numbers those that are."""
    epoch = from_micros(0)
    known = seq if type(seq) is int else 0
    return RowState(known, version if type(version) is int else 1, "", epoch, epoch, LOST)


class WriteSet:
    """What a batch makes of the cells that ``find`` gives, and of its scopes' heads; nothing is stored by it.

    ``checked`` are the cells whose version was asked for by a Check.
    """

    def __init__(self, find: Callable[[Key], RowState | None], head: Callable[[Namespace], int], now: datetime) -> None:
        self._find = find
        self._head = head
        self._now = now
        self.cells: dict[Key, RowState] = {}
        self.checked: set[Key] = set()
        self.heads: dict[Namespace, int] = {}

    def apply(self, batch: Sequence[Write]) -> list[int]:
        """The version after each write, 0 where nothing is there. Raises VersionConflict, StoreError."""
        try:
            return [self._apply(write) for write in batch]
        except OverflowError as error:
            raise StoreError(f"An instant lies outside of the calendar: {error}") from error

    def _apply(self, write: Write) -> int:
        address = (write.namespace, write.key)
        cell = self.cells.get(address) or self._find(address)
        alive = cell if cell and cell.is_alive(self._now) else None
        version = alive.version if alive else 0
        if isinstance(write, Put | Delete | Check) and write.expected not in (None, version):
            raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
        if isinstance(write, Check):
            self.checked.add(address)
            return version
        if isinstance(write, Touch):
            if alive and alive.expiry and version == write.version:
                self.cells[address] = replace(alive, expiry=alive.expiry._replace(at=aware(write.at)))
            return version
        changed = _changed(write, cell, self._now)
        if changed is None:
            return version
        head = self.heads.get(write.namespace)
        self.heads[write.namespace] = head = (self._head(write.namespace) if head is None else head) + 1
        self.cells[address] = replace(changed, seq=head)
        return version if isinstance(write, SetVector) else changed.version if isinstance(write, Put) else 0


def staged(
    batches: Sequence[Sequence[Write]], cells: dict[Key, RowState], heads: dict[Namespace, int], now: datetime
) -> list[Outcome]:
    """Applies ``batches`` in turn to ``cells`` and ``heads``: each as a whole or, if it is refused, not at all."""
    outcomes: list[Outcome] = []
    for batch in batches:
        staging = WriteSet(cells.get, lambda scope: heads.get(scope, 0), now)
        try:
            outcomes.append(staging.apply(batch))
        except StoreError as error:
            outcomes.append(error)
        else:
            cells.update(staging.cells)
            heads.update(staging.heads)
    return outcomes


def _changed(write: Put | Delete | SetVector | Expire, cell: RowState | None, now: datetime) -> RowState | None:
    """The cell after ``write``, but for its sequence number; None if nothing changes."""
    if isinstance(write, Put):
        updated = aware(write.updated_at)
        first = cell.created_at if cell and cell.is_alive(now) else updated
        return RowState(
            seq=0,
            version=max(cell.version if cell else 0, write.above) + 1,
            kind=write.kind,
            created_at=aware(write.created_at) if write.created_at else first,
            updated_at=updated,
            value=write.value,
            document=write.document,
            expiry=write.expiry,
        )
    if cell is None or cell.value is None:
        return None
    # Whoever sends an Expire has been told by the database that the time has come; a lost cell does not tell itself.
    if isinstance(write, Delete) or (isinstance(write, Expire) and (cell.is_expired(now) or cell.value == LOST)):
        return replace(cell, version=cell.version + 1, kind="", value=None, document=None, expiry=None)
    if isinstance(write, Expire) or cell.document is None or cell.version != write.version:
        return None
    return replace(cell, document=cell.document._replace(model=write.model, vector=write.vector, tokens=write.tokens))


# Finding rows by reading all of their terms: what answers while there is no index yet.

MAX_WORDS: Final = 64
"""A scan looks for that many words of a query at most."""


def holding_most(changes: Iterable[Change], words: Sequence[Term], limit: int) -> list[Change]:
    """At most ``limit`` of ``changes``: those that hold the most of ``words``, of equal ones the last written."""
    wanted = [forms_of(word) for word in words[:MAX_WORDS]]
    found: list[tuple[int, int, Change]] = []
    for change in changes:
        if change.document:
            terms = set(change.document.terms.split())
            if count := sum(not terms.isdisjoint(forms) for forms in wanted):
                found.append((count, change.seq, change))
    return [change for _, _, change in nlargest(limit, found, key=lambda one: one[:2])]


def forms_of(word: Term) -> tuple[str, ...]:
    """All forms in which documents may hold ``word``."""
    return (word,) if isinstance(word, str) else word


T = TypeVar("T")


class Table:
    """The newest cell of each key. Not safe for threads while it is written. Expired cells stay until they are set."""

    def __init__(self) -> None:
        self._scopes: dict[Namespace, dict[str, RowState]] = {}
        self._heads: dict[Namespace, int] = {}
        self._orders: dict[Namespace, list[tuple[int, str]]] = {}
        """Where the values of a scope stand in a page, in order; of the scopes that pages were asked of."""

    def copy(self) -> Table:
        """A table of the same cells, which can be changed by itself."""
        other = Table()
        other._scopes = {scope: dict(cells) for scope, cells in self._scopes.items()}
        other._heads = dict(self._heads)
        return other

    def set(self, key: Key, cell: RowState) -> None:
        """Makes ``cell`` the newest one of ``key``; one of a later write moves the scope's head."""
        namespace, name = key
        cells = self._scopes.setdefault(namespace, {})
        if (order := self._orders.get(namespace)) is not None:  # to sort it anew for each page is dear in a large scope
            old = cells.get(name)
            if old and old.value is not None:
                del order[bisect_left(order, (_age(old), name))]
            if cell.value is not None:
                insort(order, (_age(cell), name))
        cells[name] = cell
        self._heads[namespace] = max(self.head(namespace), cell.seq)

    def cell(self, key: Key) -> RowState | None:
        """The cell of ``key``."""
        return self._scopes.get(key[0], {}).get(key[1])

    def head(self, scope: Namespace) -> int:
        """The sequence number of the last write of ``scope``; 0 if it was never written."""
        return self._heads.get(scope, 0)

    def cells(self) -> Iterator[tuple[Key, RowState]]:
        """All cells, also those of deleted keys."""
        return (((scope, key), cell) for scope, cells in self._scopes.items() for key, cell in cells.items())

    def alive(self, scopes: Iterable[Namespace], now: datetime) -> Iterator[tuple[Namespace, str, RowState]]:
        """The cells of exactly ``scopes`` that are there for a reader."""
        for scope in set(scopes):
            yield from ((scope, key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.is_alive(now))

    def ordered(self, scopes: Iterable[Namespace], after: Cursor | None) -> Iterator[tuple[Place, Namespace, RowState]]:
        """The cells of exactly ``scopes`` that have a value, behind ``after``, the newest first."""
        return heapq.merge(*(self._behind(scope, after) for scope in set(scopes)), key=lambda one: one[0])

    def namespaces(self, prefix: Namespace, now: datetime) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        names = [name for name in self._scopes if name[: len(prefix)] == prefix]
        return [name for name in names if any(self.alive([name], now))]

    def changes(self, scope: Namespace, since: int) -> list[Change]:
        """The newest state of every key written after ``since``, in the order of the writes."""
        cells = [(key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.seq > since]
        return [cell.change(key) for key, cell in sorted(cells, key=lambda found: found[1].seq)]

    def rows(self, root: str | None) -> Iterator[Row]:
        """The rows of one user, or all, also those whose time has come."""
        found = (cell.row(*key) for key, cell in self.cells() if root in (None, key[0][0]))
        return (row for row in found if row)

    def _behind(self, scope: Namespace, after: Cursor | None) -> Iterator[tuple[Place, Namespace, RowState]]:
        cells, name = self._scopes.get(scope, {}), pack_namespace(scope)
        order = self._orders.get(scope)
        if order is None:
            order = sorted((_age(cell), key) for key, cell in cells.items() if cell.value is not None)
            self._orders[scope] = order
        start = 0
        if after is not None:
            created, last, of = after.place
            # A row of the same age and key comes after the cursor's if its namespace does.
            start = (bisect_left if name > of else bisect_right)(order, (created, last))
        return (((created, key, name), scope, cells[key]) for created, key in islice(order, start, None))


class TableBackend(ABC):
    """The questions of a Backend, answered from tables; whoever extends it says where they are, and writes them."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()

    @abstractmethod
    def _table(self, root: str) -> AbstractContextManager[Table]:
        """The table with the rows of the namespaces that begin with ``root``, for as long as it may be read."""

    @abstractmethod
    def _tables(self) -> Generator[Table]:
        """All tables that can be read."""

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        now = self._clock.now()
        cells = self._each(keys, Table.cell)
        return [cell.row(*key) if cell and cell.is_alive(now) else None for key, cell in zip(keys, cells, strict=True)]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        return [cell.document.tokens if cell and cell.document else None for cell in self._each(keys, Table.cell)]

    def page(self, request: PageRequest) -> list[Row]:
        """Rows of exactly the scopes that ``request`` names, the newest first."""
        now, kinds = self._clock.now(), request.kinds
        with ExitStack() as reading:
            owned = _by_root(request.scopes, lambda scope: scope)
            tables = [(reading.enter_context(self._table(root)), scopes) for root, scopes in owned]
            ordered = (table.ordered(scopes, request.after) for table, scopes in tables)
            alive = (
                (scope, key, cell)
                for (_, key, _), scope, cell in heapq.merge(*ordered, key=lambda one: one[0])
                if cell.is_alive(now) and (kinds is None or cell.kind in kinds)
            )
            rows = filter(None, (cell.row(scope, key) for scope, key, cell in islice(alive, request.offset, None)))
            return list(islice(rows, request.limit))

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold."""
        return sum(kinds is None or kind in kinds for _, kind, _ in self._kinds(scopes))

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        return tally(self._kinds(scopes))

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``; without one all tables are read."""
        now = self._clock.now()
        if prefix:
            with self._table(prefix[0]) as table:
                return sorted(table.namespaces(prefix, now))
        return sorted(chain.from_iterable(table.namespaces((), now) for table in self._tables()))

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        return self._each([(scope, "") for scope in scopes], lambda table, key: table.head(key[0]))

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``."""
        with self._table(scope[0]) as table:
            return table.changes(scope, since)

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``."""
        return holding_most(self.changes(scope, 0), words, limit)

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        with closing(self._tables()) as tables:
            cells = chain.from_iterable(table.cells() for table in tables)
            return list(islice(filter(None, (cell.pending(*key, model) for key, cell in cells)), limit))

    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come."""
        now = self._clock.now()
        with closing(self._tables()) as tables:
            cells = chain.from_iterable(table.cells() for table in tables)
            return list(islice((key for key, cell in cells if cell.is_expired(now)), limit))

    def forget(self, user: str) -> None:
        """Nothing is remembered of who follows changes."""
        del user

    def _each(self, keys: Sequence[Key], question: Callable[[Table, Key], T]) -> list[T]:
        """The answer for each key, in the order of the keys."""
        found: dict[Key, T] = {}
        for root, owned in _by_root(keys, lambda key: key[0]):
            with self._table(root) as table:
                found |= {key: question(table, key) for key in owned}
        return [found[key] for key in keys]

    def _kinds(self, scopes: Sequence[Namespace]) -> Iterator[tuple[Namespace, str, datetime]]:
        """Namespace, kind and creation of each row of exactly ``scopes``."""
        now = self._clock.now()
        for root, owned in _by_root(scopes, lambda scope: scope):
            with self._table(root) as table:
                yield from ((scope, cell.kind, cell.created_at) for scope, _, cell in table.alive(owned, now))


def tally(rows: Iterable[tuple[Namespace, str, datetime]]) -> list[Tally]:
    """How many ``rows`` there are, each given by its namespace, kind and creation, by namespace and kind."""
    found: dict[tuple[Namespace, str], tuple[int, datetime]] = {}
    for namespace, kind, created in rows:
        group = namespace, kind
        count, oldest = found.get(group, (0, created))
        found[group] = count + 1, min(oldest, created)
    return [Tally(*group, count, oldest) for group, (count, oldest) in found.items()]


def _by_root(given: Iterable[T], namespace_of: Callable[[T], Namespace]) -> Iterable[tuple[str, list[T]]]:
    owned: dict[str, list[T]] = {}
    for one in given:
        owned.setdefault(namespace_of(one)[0], []).append(one)
    return owned.items()


def _age(cell: RowState) -> int:
    return -to_micros(cell.created_at)
