"""A Backend in the memory of this process: for tests, notebooks and throw-away agents. Nothing survives the process."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import islice

from inference_core.clock import Clock, SystemClock
from inference_core.errors import StoreUnavailable, VersionConflict
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Term
from inference_core.stores.backend import Capabilities, Key, Outcome, Pending, Row, Tally, Unreadable, Write
from inference_core.stores.cells import Staging
from inference_core.stores.cursor import PageRequest
from inference_core.stores.scan import holding_most
from inference_core.stores.table import Table


class InMemoryBackend:
    """A Backend over dictionaries, with the behaviour of the durable ones."""

    name = "memory://"
    capabilities = Capabilities(durable=False, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._table = Table()
        self._meta: dict[str, str] = {}
        self._closed = False

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch as a whole or not at all."""
        with self._open():
            return [self._apply_batch(batch) for batch in batches]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        now = self._clock.now()
        with self._open() as table:
            return [table.get(key, now) for key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        with self._open() as table:
            return [table.tokens(key) for key in keys]

    def page(self, request: PageRequest) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first."""
        with self._open() as table:
            return table.page(request, self._clock.now())

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        """How many rows exactly ``scopes`` hold."""
        with self._open() as table:
            return table.count(scopes, self._clock.now(), kinds)

    def tally(self, scopes: Sequence[Namespace]) -> list[Tally]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        with self._open() as table:
            return table.tally(scopes, self._clock.now())

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        with self._open() as table:
            return table.namespaces(prefix, self._clock.now())

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        with self._open() as table:
            return [table.head(scope) for scope in scopes]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``."""
        with self._open() as table:
            return table.changes(scope, since)

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``."""
        return holding_most(self.changes(scope, 0), words, limit)

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        with self._open() as table:
            return list(islice(table.pending(model), limit))

    def expired(self, limit: int) -> list[Key]:
        """Rows whose time has come."""
        with self._open() as table:
            return list(islice(table.expired(self._clock.now()), limit))

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        with self._open():
            return self._meta.get(name)

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self._open():
            self._meta[name] = value

    def inspect(self, root: str | None = None) -> list[Row | Unreadable]:
        """Every row of one user, or all: nothing here can be damaged."""
        with self._open() as table:
            return list(table.rows(root))

    def discard(self, found: Sequence[Unreadable]) -> int:
        """None: nothing here can be damaged."""
        del found
        return 0

    def forget(self, user: str) -> None:
        """Nothing is remembered of who follows changes."""

    def close(self) -> None:
        """Later calls are refused."""
        self._closed = True

    @contextmanager
    def _open(self) -> Generator[Table]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("The store is closed")
            yield self._table

    def _apply_batch(self, batch: Sequence[Write]) -> Outcome:
        staging = Staging(self._table.cell, self._table.head, self._clock.now())
        try:
            versions = staging.apply(batch)
        except VersionConflict as error:
            return error
        for key, cell in staging.cells.items():
            self._table.set(key, cell)
        return versions
