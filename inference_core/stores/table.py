"""Cells by scope and key, and what is asked of them: for the backends that hold their rows in this process."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change
from inference_core.stores.backend import Key, Pending, Row, Tally
from inference_core.stores.cells import Cell
from inference_core.stores.codec import pack_namespace, to_micros
from inference_core.stores.cursor import Cursor, PageRequest, Place


class Table:
    """The newest cell of each key. Not safe for threads. Expired cells are there for whoever does not give ``now``."""

    def __init__(self) -> None:
        self._scopes: dict[Namespace, dict[str, Cell]] = {}
        self._heads: dict[Namespace, int] = {}
        self._orders: dict[Namespace, list[tuple[int, str]]] = {}
        """Where the values of a scope stand in a page, in order; of the scopes that pages were asked of."""

    def set(self, key: Key, cell: Cell) -> None:
        """Makes ``cell`` the newest one of ``key``; one of a later write moves the scope's head."""
        namespace, name = key
        cells = self._scopes.setdefault(namespace, {})
        if (order := self._orders.get(namespace)) is not None:
            self._move(order, name, cells.get(name), cell)
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

    def get(self, key: Key, now: datetime) -> Row | None:
        """The row of ``key``."""
        cell = self.cell(key)
        return cell.row(*key) if cell and cell.is_alive(now) else None

    def tokens(self, key: Key) -> bytes | None:
        """The packed token vectors of ``key``."""
        cell = self.cell(key)
        return cell.document.tokens if cell and cell.document else None

    def page(self, request: PageRequest, now: datetime) -> list[Row]:
        """The rows that ``request`` asks for."""
        behind = (self._behind(scope, request.after) for scope in set(request.scopes))
        found = heapq.merge(*behind, key=lambda one: one[0])
        alive = (
            (scope, key, cell)
            for (_, key, _), scope, cell in found
            if cell.is_alive(now) and (request.kinds is None or cell.kind in request.kinds)
        )
        rows = filter(None, (cell.row(scope, key) for scope, key, cell in islice(alive, request.offset, None)))
        return list(islice(rows, request.limit))

    def count(self, scopes: Sequence[Namespace], now: datetime, kinds: frozenset[str] | None) -> int:
        """How many rows exactly ``scopes`` hold (of ``kinds``)."""
        return sum(1 for _, _, cell in self._alive(scopes, now) if kinds is None or cell.kind in kinds)

    def tally(self, scopes: Sequence[Namespace], now: datetime) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        alive = ((scope, cell.kind, cell.created_at) for scope, _, cell in self._alive(scopes, now))
        return tally(alive)

    def namespaces(self, prefix: Namespace, now: datetime) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``, sorted."""
        names = [name for name in self._scopes if name[: len(prefix)] == prefix]
        return sorted(name for name in names if any(self._alive([name], now)))

    def changes(self, scope: Namespace, since: int) -> list[Change]:
        """The newest state of every key written after ``since``, in the order of the writes."""
        cells = [(key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.seq > since]
        return [cell.change(key) for key, cell in sorted(cells, key=lambda found: found[1].seq)]

    def rows(self, root: str | None) -> Iterator[Row]:
        """The rows of one user, or all, also those whose time has come."""
        found = (cell.row(*key) for key, cell in self.cells() if root in (None, key[0][0]))
        return (row for row in found if row)

    def pending(self, model: str) -> Iterator[Pending]:
        """Rows whose text has no vector of ``model``."""
        return filter(None, (cell.pending(*key, model) for key, cell in self.cells()))

    def expired(self, now: datetime) -> Iterator[Key]:
        """Rows whose time has come."""
        return (key for key, cell in self.cells() if cell.is_expired(now))

    def _behind(self, scope: Namespace, after: Cursor | None) -> Iterator[tuple[Place, Namespace, Cell]]:
        """The cells of ``scope`` that have a value, behind ``after``, the newest first."""
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

    def _move(self, order: list[tuple[int, str]], key: str, old: Cell | None, new: Cell) -> None:
        was = (_age(old), key) if old and old.value is not None else None
        now = (_age(new), key) if new.value is not None else None
        if was == now:
            return
        if was:
            del order[bisect_left(order, was)]
        if now:
            insort(order, now)

    def _alive(self, scopes: Sequence[Namespace], now: datetime) -> Iterator[tuple[Namespace, str, Cell]]:
        for scope in set(scopes):
            yield from ((scope, key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.is_alive(now))


def tally(rows: Iterable[tuple[Namespace, str, datetime]]) -> list[Tally]:
    """How many ``rows`` there are, each given by its namespace, kind and creation, by namespace and kind."""
    found: dict[tuple[Namespace, str], tuple[int, datetime]] = {}
    for namespace, kind, created in rows:
        group = namespace, kind
        count, oldest = found.get(group, (0, created))
        found[group] = count + 1, min(oldest, created)
    return [Tally(*group, count, oldest) for group, (count, oldest) in found.items()]


def _age(cell: Cell) -> int:
    return -to_micros(cell.created_at)
