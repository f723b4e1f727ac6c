"""The searches of several sources that ask the same, done at once by whoever needs the first."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from inference_core.drivers import Plan, Wait, run, settle
from inference_core.stores.engine import StoreEngine
from inference_core.stores.search import Search, SearchResult


class Together:
    """``searches`` by the names of their sources; the first that asks for its result has all of them done."""

    def __init__(self, engine: StoreEngine, searches: Mapping[str, Search]) -> None:
        self._engine = engine
        self._searches = searches
        self._results: Future[dict[str, SearchResult]] = Future()
        self._turn = threading.Lock()
        self._is_begun = False

    def holds(self, source: str) -> bool:
        """Whether the search of ``source`` is among them."""
        return source in self._searches

    def result_of(self, source: str) -> Plan[SearchResult]:
        """Plan: what the search of ``source`` found; for the thread of a source, which may wait. Raises StoreError."""
        with self._turn:
            is_first, self._is_begun = not self._is_begun, True
        if is_first:
            settle(self._results, partial(run, self._all()))
        return (yield Wait(lambda: self._results))[source]

    def _all(self) -> Plan[dict[str, SearchResult]]:
        found = yield from self._engine.search_together(list(self._searches.values()))
        return dict(zip(self._searches, found, strict=True))
