"""Cells by scope and key, and what is asked of them: for the backends that hold their rows in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change
from inference_core.stores.backend import Key, Pending, Row
from inference_core.stores.cells import Cell


class Table:
    """The newest cell of each key. Not safe for threads. Expired cells are there for whoever does not give ``now``."""

    def __init__(self) -> None:
        self._scopes: dict[Namespace, dict[str, Cell]] = {}
        self._heads: dict[Namespace, int] = {}

    def set(self, key: Key, cell: Cell) -> None:
        """Makes ``cell`` the newest one of ``key``; one of a later write moves the scope's head."""
        namespace, name = key
        self._scopes.setdefault(namespace, {})[name] = cell
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

    def newest(
        self, scopes: Sequence[Namespace], now: datetime, *, kinds: frozenset[str] | None, limit: int, offset: int = 0
    ) -> list[Row]:
        """Rows of exactly ``scopes`` (and of ``kinds``), the newest first."""
        found = (
            ((-cell.created_at.timestamp(), key, scope), cell)
            for scope, key, cell in self._alive(scopes, now)
            if kinds is None or cell.kind in kinds
        )
        page = sorted(found, key=lambda one: one[0])[offset : offset + limit]
        return [cell.row(scope, key) for (_, key, scope), cell in page]

    def count(self, scopes: Sequence[Namespace], now: datetime) -> int:
        """How many rows exactly ``scopes`` hold."""
        return sum(1 for _ in self._alive(scopes, now))

    def namespaces(self, prefix: Namespace, now: datetime) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``, sorted."""
        names = [name for name in self._scopes if name[: len(prefix)] == prefix]
        return sorted(name for name in names if any(self._alive([name], now)))

    def changes(self, scope: Namespace, since: int) -> list[Change]:
        """The newest state of every key written after ``since``, in the order of the writes."""
        cells = [(key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.seq > since]
        return [cell.change(key) for key, cell in sorted(cells, key=lambda found: found[1].seq)]

    def pending(self, model: str) -> Iterator[Pending]:
        """Rows whose text has no vector of ``model``."""
        return filter(None, (cell.pending(*key, model) for key, cell in self.cells()))

    def expired(self, now: datetime) -> Iterator[Key]:
        """Rows whose time has come."""
        return (key for key, cell in self.cells() if cell.is_expired(now))

    def _alive(self, scopes: Sequence[Namespace], now: datetime) -> Iterator[tuple[Namespace, str, Cell]]:
        for scope in set(scopes):
            yield from ((scope, key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.is_alive(now))


def newest_first(row: Row) -> tuple[float, str, Namespace]:
    """The order of `Table.newest`, for merging what several tables gave."""
    return -row.created_at.timestamp(), row.key, row.namespace
