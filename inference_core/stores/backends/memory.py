"""A Backend in the memory of this process: for tests, notebooks and throw-away agents. Nothing survives the process."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from inference_core.clock import Clock
from inference_core.errors import StoreError, StoreUnavailable
from inference_core.stores.backend import Capabilities, Key, Outcome, Row, Unreadable, Write
from inference_core.stores.backends.rows import RowState, Table, TableBackend, WriteSet


class InMemoryBackend(TableBackend):
    """A Backend over dictionaries, with the behaviour of the durable ones."""

    name = "memory://"
    capabilities = Capabilities(durable=False, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._lock = threading.RLock()
        self._rows = Table()
        self._meta: dict[str, str] = {}
        self._closed = False

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch as a whole or not at all."""
        outcomes: list[Outcome] = []
        with self._open() as table:
            for batch in batches:
                writes = WriteSet(table.state, table.head, self._clock.now())
                try:
                    versions = writes.apply(batch)
                    self._keep(writes.states)
                except StoreError as error:
                    outcomes.append(error)
                else:
                    outcomes.append(versions)
                    for key, state in writes.states.items():
                        table.set(key, state)
        return outcomes

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

    def close(self) -> None:
        """Later calls are refused."""
        self._closed = True

    def _keep(self, states: Mapping[Key, RowState]) -> None:
        """Makes ``states`` last longer than this object, in a subclass. Raises StoreError."""

    @contextmanager
    def _open(self) -> Generator[Table]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("The store is closed")
            yield self._rows

    def _table(self, root: str) -> AbstractContextManager[Table]:
        del root  # one table holds everybody
        return self._open()

    def _tables(self) -> Generator[Table]:
        with self._open() as table:
            yield table
