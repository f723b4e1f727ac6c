"""A Backend in the memory of this process: for tests, notebooks and throw-away agents. Nothing survives the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from inference_core.clock import Clock, SystemClock
from inference_core.errors import StoreUnavailable, VersionConflict
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import Capabilities, Key, Outcome, Pending, Row, Write
from inference_core.stores.cells import Cell, Staging
from inference_core.stores.scan import holding_most


class InMemoryBackend:
    """A Backend over dictionaries, with the behaviour of the durable ones."""

    name = "memory://"
    capabilities = Capabilities(durable=False, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._scopes: dict[Namespace, dict[str, Cell]] = {}
        self._heads: dict[Namespace, int] = {}
        self._meta: dict[str, str] = {}
        self._closed = False

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch as a whole or not at all."""
        with self._open():
            return [self._apply_batch(batch) for batch in batches]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        now = self._clock.now()
        with self._open():
            cells = [(key, self._cell(key)) for key in keys]
        return [cell.row(*key) if cell and cell.is_alive(now) else None for key, cell in cells]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        with self._open():
            cells = [self._cell(key) for key in keys]
        return [cell.document.tokens if cell and cell.document else None for cell in cells]

    def newest(
        self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None, limit: int, offset: int = 0
    ) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first."""
        with self._open():
            found = [
                ((-cell.created_at.timestamp(), key, scope), cell)
                for scope, key, cell in self._alive(scopes)
                if kinds is None or cell.kind in kinds
            ]
        page = sorted(found, key=lambda one: one[0])[offset : offset + limit]
        return [cell.row(scope, key) for (_, key, scope), cell in page]

    def count(self, scopes: Sequence[Namespace]) -> int:
        """How many rows exactly ``scopes`` hold."""
        with self._open():
            return sum(1 for _ in self._alive(scopes))

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        with self._open():
            names = [name for name in self._scopes if name[: len(prefix)] == prefix]
            return sorted(name for name in names if any(self._alive([name])))

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        with self._open():
            return [self._heads.get(scope, 0) for scope in scopes]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``."""
        with self._open():
            cells = [(key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.seq > since]
        return [cell.change(key) for key, cell in sorted(cells, key=lambda found: found[1].seq)]

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``."""
        return holding_most(self.changes(scope, 0), words, limit)

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        with self._open():
            found = [cell.pending(scope, key, model) for scope, key, cell in self._all()]
        return [one for one in found if one][:limit]

    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come."""
        now = self._clock.now()
        with self._open():
            return [(scope, key) for scope, key, cell in self._all() if cell.is_expired(now)][:limit]

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        with self._open():
            return self._meta.get(name)

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self._open():
            self._meta[name] = value

    def close(self) -> None:
        """Later calls are refused."""
        self._closed = True

    def _open(self) -> threading.RLock:
        if self._closed:
            raise StoreUnavailable("The store is closed")
        return self._lock

    def _cell(self, key: Key) -> Cell | None:
        return self._scopes.get(key[0], {}).get(key[1])

    def _all(self) -> Iterator[tuple[Namespace, str, Cell]]:
        return ((scope, key, cell) for scope, cells in self._scopes.items() for key, cell in cells.items())

    def _alive(self, scopes: Sequence[Namespace]) -> Iterator[tuple[Namespace, str, Cell]]:
        now = self._clock.now()
        for scope in set(scopes):
            yield from ((scope, key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.is_alive(now))

    def _apply_batch(self, batch: Sequence[Write]) -> Outcome:
        staging = Staging(self._cell, lambda scope: self._heads.get(scope, 0), self._clock.now())
        try:
            versions = staging.apply(batch)
        except VersionConflict as error:
            return error
        for (namespace, key), cell in staging.cells.items():
            self._scopes.setdefault(namespace, {})[key] = cell
        self._heads |= staging.heads
        return versions
