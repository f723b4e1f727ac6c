"""The index cache of a store, made when it is needed for the first time: numpy is slow to import."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from inference_core.stores.backend import Backend

if TYPE_CHECKING:
    from inference_core.stores.indexes import IndexCache


class LazyIndexes:
    """Holds the cache. Chores hold this and not the engine, which they would keep alive."""

    def __init__(self, backend: Backend, model: str, max_bytes: int, wake: Callable[[float], None]) -> None:
        self.made: IndexCache | None = None
        self._given = backend, model, max_bytes, wake
        self._lock = threading.Lock()

    def cache(self) -> IndexCache:
        """The one cache."""
        with self._lock:
            if self.made is None:
                from inference_core.stores.indexes import IndexCache  # noqa: PLC0415 - numpy is slow to import

                self.made = IndexCache(*self._given)
            return self.made

    def follow(self) -> bool:
        """Chore: brings an index up to date; the first time, loads what the first search needs."""
        from inference_core.retrieval.analysis import analyze  # noqa: PLC0415 - its word lists take time

        analyze("loads the stemmer")
        return self.cache().follow()
