"""Cells by scope and key, and the questions of a Backend: for the databases that hold their rows in this process."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import datetime
from itertools import chain, islice
from typing import TypeVar

from inference_core.clock import Clock, SystemClock
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import Key, Pending, Row, Tally
from inference_core.stores.cells import Cell
from inference_core.stores.codec import pack_namespace, to_micros
from inference_core.stores.cursor import Cursor, PageRequest, Place
from inference_core.stores.scan import holding_most

T = TypeVar("T")


class Table:
    """The newest cell of each key. Not safe for threads while it is written. Expired cells stay until they are set."""

    def __init__(self) -> None:
        self._scopes: dict[Namespace, dict[str, Cell]] = {}
        self._heads: dict[Namespace, int] = {}
        self._orders: dict[Namespace, list[tuple[int, str]]] = {}
        """Where the values of a scope stand in a page, in order; of the scopes that pages were asked of."""

    def copy(self) -> Table:
        """A table of the same cells, which can be changed by itself."""
        other = Table()
        other._scopes = {scope: dict(cells) for scope, cells in self._scopes.items()}
        other._heads = dict(self._heads)
        return other

    def set(self, key: Key, cell: Cell) -> None:
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

    def cell(self, key: Key) -> Cell | None:
        """The cell of ``key``."""
        return self._scopes.get(key[0], {}).get(key[1])

    def head(self, scope: Namespace) -> int:
        """The sequence number of the last write of ``scope``; 0 if it was never written."""
        return self._heads.get(scope, 0)

    def cells(self) -> Iterator[tuple[Key, Cell]]:
        """All cells, also those of deleted keys."""
        return (((scope, key), cell) for scope, cells in self._scopes.items() for key, cell in cells.items())

    def alive(self, scopes: Iterable[Namespace], now: datetime) -> Iterator[tuple[Namespace, str, Cell]]:
        """The cells of exactly ``scopes`` that are there for a reader."""
        for scope in set(scopes):
            yield from ((scope, key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.is_alive(now))

    def ordered(self, scopes: Iterable[Namespace], after: Cursor | None) -> Iterator[tuple[Place, Namespace, Cell]]:
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

    def _behind(self, scope: Namespace, after: Cursor | None) -> Iterator[tuple[Place, Namespace, Cell]]:
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


def _age(cell: Cell) -> int:
    return -to_micros(cell.created_at)
