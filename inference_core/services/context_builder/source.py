"""ContextSource: where a part of the context comes from, and the request that it answers."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, tzinfo
from inspect import isawaitable
from typing import Protocol, runtime_checkable

from langchain_core.messages import BaseMessage

from inference_core.context.items import ContextItem
from inference_core.effects import Effect, Operation, run, settle
from inference_core.services.operations.recall import asks
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing.search import Search, SearchResult

Given = Operation[Sequence[ContextItem]] | Awaitable[Sequence[ContextItem]] | Sequence[ContextItem]
"""Items, an operation that returns them, or an awaitable of them, which runs on an event loop of its own."""


class SharedSearches:
    """The searches of several sources, by source; the first one that asks for its result runs all of them at once."""

    def __init__(self, engine: StoreEngine, searches: Mapping[str, Search]) -> None:
        self._engine = engine
        self._searches = searches
        self._results: Future[dict[str, SearchResult]] = Future()
        self._lock = threading.Lock()
        self._is_begun = False

    def holds(self, source: str) -> bool:
        """Whether the search of ``source`` is among them."""
        return source in self._searches

    @property
    def necessity(self) -> float | None:
        """The log-odds that a reply to their text needs memory; None if no model tells, or nothing was found so far."""
        is_found = self._results.done() and not self._results.cancelled() and self._results.exception() is None
        return next((one.necessity for one in self._results.result().values()), None) if is_found else None

    def result_of(self, source: str) -> Operation[SearchResult]:
        """What the search of ``source`` found. Blocks the thread of the source. Raises StoreError."""
        with self._lock:
            is_first, self._is_begun = not self._is_begun, True

        def search() -> dict[str, SearchResult]:
            found = run(self._engine.search_together(list(self._searches.values())))
            return dict(zip(self._searches, found, strict=True))

        if is_first:
            settle(self._results, search)
        return (yield Effect(lambda: self._results))[source]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """What the sources of a context are asked. ``scope`` is the agent's view of the store, ``now`` an aware datetime.

    ``shared`` holds the search results that sources share, so each search runs once.
    """

    user_id: str
    query: str | None
    messages: Sequence[BaseMessage]
    scope: MemoryScope
    now: datetime
    shared: SharedSearches | None = None

    def search(self, source: str, search: Search) -> Operation[SearchResult]:
        """What ``source`` finds by ``search``, ranked once for all that ask the same. Raises StoreError."""
        if self.shared is None or not self.shared.holds(source):
            return self.scope.engine.search(search)
        return self.shared.result_of(source)

    @property
    def question(self) -> str | None:
        """The query, None if it is blank. Raises InvalidInput if it is not text."""
        return self.query if self.query is not None and asks(self.query) else None

    @property
    def zone(self) -> tzinfo:
        """The user's time zone."""
        return self.scope.zone


@runtime_checkable
class ContextSource(Protocol):
    """A source of context. It returns items of the request's user only.

    ``fetch`` may block and may raise: it runs on a thread of its own, and a source that is late or fails is left out.
    """

    @property
    def name(self) -> str:
        """Unique among the sources of a builder."""
        ...

    @property
    def section(self) -> str:
        """The heading of its items; "" if it has several."""
        ...

    @property
    def limit(self) -> int:
        """How many items it may return; more are cut off."""
        ...

    def fetch(self, request: ContextRequest) -> Given:
        """Its items for ``request``, the best first."""
        ...


@runtime_checkable
class SearchingSource(ContextSource, Protocol):
    """A source that searches for the question, and takes the result from `ContextRequest.search`."""

    def question(self, request: ContextRequest) -> Search | None:
        """Its search for the question; None if it runs none, or another one. May raise what its ``fetch`` raises."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSource:
    """Your own source. ``find`` returns texts or items, and may be a coroutine function."""

    name: str
    find: Callable[[ContextRequest], Iterable[str | ContextItem] | Awaitable[Iterable[str | ContextItem]]]
    section: str = ""
    limit: int = 10

    def fetch(self, request: ContextRequest) -> Given:
        """The items that ``find`` returns. Texts have no relevance, so they are not pruned."""
        section = self.section or self.name

        def items(found: Iterable[str | ContextItem]) -> list[ContextItem]:
            return [
                ContextItem(id=str(at), text=one, section=section, source=self.name, score=-at)
                if isinstance(one, str)
                else one
                for at, one in enumerate(found)
            ]

        async def awaited(found: Awaitable[Iterable[str | ContextItem]]) -> Sequence[ContextItem]:
            return items(await found)

        found = self.find(request)
        return awaited(found) if isawaitable(found) else items(found)
