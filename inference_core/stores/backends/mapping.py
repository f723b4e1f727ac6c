"""A Backend in a mapping of the caller's: a dict, a ``shelve``, or anything else with the methods of a dict."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from inference_core.clock import Clock
from inference_core.errors import ConfigurationError, StoreUnavailable, in_one_line
from inference_core.stores.backend import Key
from inference_core.stores.backends.file_format import pack_row, unpack_row
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.backends.rows import RowState
from inference_core.stores.codec import UNREADABLE, fault_of

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

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self._open():
            self._mapping[SETTINGS] = {**self._meta, name: value}
            self._meta[name] = value

    def _keep(self, states: Mapping[Key, RowState]) -> None:
        changed: dict[str, dict[Key, Any]] = {}
        for key, state in states.items():
            root = key[0][0]
            changed.setdefault(root, dict(self._entries.get(root, {})))[key] = json.loads(pack_row(key, state))
        stored: list[str] = []
        try:
            for root, entries in changed.items():
                self._mapping[root] = list(entries.values())
                stored.append(root)
        except Exception as error:
            for root in stored:  # the batch is refused as a whole
                if root in self._entries:
                    self._mapping[root] = list(self._entries[root].values())
                else:
                    self._mapping.pop(root, None)
            raise StoreUnavailable(f"The mapping does not take the write: {in_one_line(error)}") from error
        self._entries |= changed
