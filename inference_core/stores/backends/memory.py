"""Backends in the memory of this process: one that ends with it, and one in a mapping of the caller's.

The first is for tests, notebooks and throw-away agents. The mapping is a dict, a ``shelve``, or anything else with the
methods of a dict.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from inference_core.clock import Clock
from inference_core.errors import ConfigurationError, StoreError, StoreUnavailable, in_one_line, raised_as
from inference_core.stores.backend import (
    UNREADABLE,
    Batch,
    Capabilities,
    Key,
    Outcome,
    Row,
    RowState,
    Unreadable,
    fault_of,
)
from inference_core.stores.backends.file import pack_row, unpack_row
from inference_core.stores.backends.rows import Table, TableBackend, WriteSet


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

    def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
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
        with self._open():
            return self._meta.get(name)

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        with self._open():
            if not (is_first and name in self._meta):
                self._meta[name] = value

    def inspect(self, root: str | None = None) -> list[Row | Unreadable]:
        """Every row of one user, or all: nothing here can be damaged."""
        with self._open() as table:
            return list(table.rows(root))

    def discard(self, unreadable: Sequence[Unreadable]) -> int:
        """Removes nothing: nothing here can be damaged."""
        del unreadable
        return 0

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        with self._open() as table:
            table.erase(root, also)

    def reclaim(self, *, fully: bool = False) -> list[str]:
        """Does nothing: what was removed is gone."""
        del fully
        return []

    def files(self) -> list[Path]:
        """None."""
        return []

    def close(self) -> None:
        """Makes later calls raise StoreUnavailable."""
        self._closed = True

    def _keep(self, states: Mapping[Key, RowState]) -> None:
        """Stores ``states`` beyond this object, in a subclass. Raises StoreError."""

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


SETTINGS: Final = "#store"
"""The key of the store's own settings. No user's label begins with "#"."""


class MappingBackend(InMemoryBackend):
    """Keeps each user's rows in ``mapping`` as a list of JSON data under the user's label.

    It is as durable as the mapping. Only one process may use it at a time, and only through one store. Raises
    ConfigurationError if the mapping holds anything else.
    """

    def __init__(self, mapping: MutableMapping[str, Any], clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.name = f"a {type(mapping).__name__} in this process"
        self._mapping = mapping
        self._entries: dict[str, dict[Key, Any]] = {}
        for root, entries in mapping.items():
            try:
                if root == SETTINGS:
                    self._meta = dict(entries)
                    continue
                for entry in entries:
                    key, state = unpack_row(entry)
                    self._rows.set(key, state)
                    self._entries.setdefault(root, {})[key] = entry
            except UNREADABLE as error:
                raise ConfigurationError(
                    f"The mapping holds something else under {root!r:.80} ({fault_of(error)}): give the store an empty "
                    "mapping of its own"
                ) from None

    def set_meta(self, name: str, value: str, *, is_first: bool = False) -> None:
        with self._open():
            if not (is_first and name in self._meta):
                self._mapping[SETTINGS] = {**self._meta, name: value}
                self._meta[name] = value

    def erase(self, root: str, also: Sequence[Key] = ()) -> None:
        with self._open():
            super().erase(root, also)
            for key in also:
                if self._entries.get(key[0][0], {}).pop(key, None) is not None:
                    self._mapping[key[0][0]] = list(self._entries[key[0][0]].values())
            self._entries.pop(root, None)
            self._mapping.pop(root, None)

    def _keep(self, states: Mapping[Key, RowState]) -> None:
        changed: dict[str, dict[Key, Any]] = {}
        for key, state in states.items():
            root = key[0][0]
            changed.setdefault(root, dict(self._entries.get(root, {})))[key] = json.loads(pack_row(key, state))

        def refusal(error: Exception) -> StoreUnavailable:
            return StoreUnavailable(f"The mapping does not take the write: {in_one_line(error)}")

        def restore(root: str) -> None:
            if root in self._entries:
                self._mapping[root] = list(self._entries[root].values())
            else:
                self._mapping.pop(root, None)

        with raised_as(refusal), ExitStack() as undo:  # if one user's rows are refused, the whole batch is undone
            for root, entries in changed.items():
                self._mapping[root] = list(entries.values())
                undo.callback(restore, root)
            undo.pop_all()
        self._entries |= changed
