"""ContextBuilder: the context of a prompt, from many sources that are asked side by side under one deadline.

For applications that build prompts themselves. An agent's turn does not come through here, but through
`operations/prompt_context.py`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, Final, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import MessageLikeRepresentation, convert_to_messages

from inference_core.asking import check_model
from inference_core.context.engineer import DEFAULT_MAX_TOKENS, SUMMARY, ContextEngineer, with_summary
from inference_core.context.items import AssembledContext, ContextItem
from inference_core.effects import Deadline, Effect, Operation, WorkerPool, arun, run
from inference_core.errors import (
    ConfigurationError,
    DeadlineExceeded,
    IdentityError,
    InvalidId,
    ModelError,
    StoreUnavailable,
)
from inference_core.memory.namespaces import Space, encode_label, global_namespace
from inference_core.memory.types import MemoryCategory
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.context_builder.memories import (
    AssociatedMemories,
    Entities,
    Memories,
    RecentMessages,
    StaticFacts,
    consolidated_memories,
    goals,
    ideas,
)
from inference_core.services.context_builder.source import (
    ContextRequest,
    ContextSource,
    SearchingSource,
    SharedSearches,
)
from inference_core.services.operations.scope import UserId
from inference_core.stores.indexing.search import Search

DEFAULT_DEADLINE_S: Final = 1.0
DEFAULT_SOURCES: Final[tuple[ContextSource, ...]] = (
    RecentMessages(),
    Memories(),
    Entities(),
    AssociatedMemories(),
    consolidated_memories(),
    goals(),
    ideas(),
    StaticFacts(),
)
WORKERS: Final = 8
"""How many calls of one source run at a time; while all of them hang, the source is left out at once."""
_HANG_S: Final = 2.0
"""A call that has run for this long counts as hung; no prompt waits for a source nearly as long."""
_AN_INSTANT_S: Final = 0.001
_MAX_REASON: Final = 200
_EVERYBODY: Final = global_namespace(MemoryCategory.SEMANTIC, "any")[0]


class ContextBuilder:
    """Builds context for prompts: asks all sources at once, then selects and renders with an engineer.

    Safe to share between users, threads and event loops. `sync` has the same `build` for sync code.

    Args:
        service: The memory as the agent sees it.
        sources: Where items come from. By default all sources of this package.
        engineer: Selects, orders and renders the items.
        deadline: Seconds for all sources together. A late source is left out. None: no limit.
        max_tokens: The maximum size of the text, by the engineer's counter.
        model: Summarizes items that do not fit; `build` waits for it. None: they are left out.

    Raises:
        ConfigurationError: Two sources have the same name, an object is not a source, or the deadline is not positive.
    """

    def __init__(
        self,
        service: AgentMemoryStoreService | SyncMemoryService,
        sources: Sequence[ContextSource] = DEFAULT_SOURCES,
        *,
        engineer: ContextEngineer | None = None,
        deadline: float | None = DEFAULT_DEADLINE_S,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        model: BaseChatModel | None = None,
    ) -> None:
        if deadline is not None and not deadline > 0:
            raise ConfigurationError(f"deadline must be a positive number of seconds, or None, not {deadline}")
        for one in sources:
            if not isinstance(one, ContextSource):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
                raise ConfigurationError(
                    f"{one!r:.80} is not a context source: it needs name, section, limit and fetch"
                )
        if model is not None:
            check_model(model)
        # Each has workers of its own, so that a source that hangs takes nothing from the others.
        self._pools = {one.name: WorkerPool(WORKERS, f"context-{one.name}", hang_s=_HANG_S) for one in sources}
        if len(self._pools) < len(sources):
            raise ConfigurationError("Two context sources have the same name; give one of them another")
        for pool in self._pools.values():
            weakref.finalize(self, pool.close)
        self._scope = service.scope
        self._sources = tuple(sources)
        self.engineer = engineer or ContextEngineer()
        self.deadline = deadline
        self.max_tokens = max_tokens
        self.model = model
        self.sync = SyncContextBuilder(self)

    async def build(
        self,
        user_id: UserId,
        query: str | None = None,
        *,
        messages: Sequence[MessageLikeRepresentation] = (),
        max_tokens: int | None = None,
    ) -> AssembledContext:
        """Builds the context for a question.

        Args:
            user_id: The user whose memories are used.
            query: The question. Without one, sources return their newest items.
            messages: The conversation so far.
            max_tokens: Overrides the builder's own.

        Returns:
            The rendered ``text`` and what it was made of. ``left_out`` names the sources that failed or were late.

        Raises:
            InvalidId: ``user_id`` is not usable.
        """
        return await arun(self.operation(user_id, query, messages, max_tokens))

    def operation(
        self, user_id: UserId, query: str | None, messages: Sequence[MessageLikeRepresentation], max_tokens: int | None
    ) -> Operation[AssembledContext]:
        """What `build` does, for its async and its sync form."""
        encode_label(user_id)
        if isinstance(user_id, Space):
            raise InvalidId("A context is for a user, whose spaces are in it; pass the ID of a user")
        request = ContextRequest(
            user_id=str(user_id),
            query=query,
            messages=convert_to_messages(messages),
            scope=self._scope,
            now=self._scope.clock.now(),
        )
        items, left_out, necessity = yield from self._gathered(request)
        room = self.max_tokens if max_tokens is None else max_tokens
        now, zone = request.now, request.zone
        if self.model is not None:
            try:
                context = yield from with_summary(
                    self.engineer,
                    items,
                    self.model,
                    query=query,
                    now=now,
                    zone=zone,
                    max_tokens=room,
                    necessity=necessity,
                )
                return replace(context, left_out=left_out)
            except ModelError as error:
                left_out[SUMMARY] = str(error)
        context = self.engineer.assemble(items, query=query, now=now, zone=zone, max_tokens=room, necessity=necessity)
        return replace(context, left_out=left_out)

    def _gathered(self, request: ContextRequest) -> Operation[tuple[list[ContextItem], dict[str, str], float | None]]:
        """The items of the sources that answer in time, why the others gave none, and whether memory is needed.

        Raises no source's error.
        """
        deadline = Deadline(self.deadline)
        items: list[ContextItem] = []
        left_out: dict[str, str] = {}
        searches: dict[str, Search] = {}
        for source in self._sources:
            with suppress(Exception):  # its fetch asks the same, and says what is wrong
                search = source.question(request) if isinstance(source, SearchingSource) else None
                if search is not None and search.text == request.query:
                    searches[source.name] = search
        shared = SharedSearches(request.scope.engine, searches)
        request = replace(request, shared=shared)
        under_way: list[tuple[str, Future[list[ContextItem]]]] = []
        for source in self._sources:
            try:
                under_way.append((source.name, self._pools[source.name].submit(partial(_fetched, source, request))))
            except (StoreUnavailable, RuntimeError) as error:  # its workers hang, or no thread can be started
                left_out[source.name] = _reason(error)
        try:
            for name, future in under_way:
                try:
                    left = deadline.remaining()
                except DeadlineExceeded:
                    left = _AN_INSTANT_S  # what is there by now is taken
                try:
                    may_block = request.scope.engine.pool.may_block
                    items += yield Effect(lambda own=future: own, timeout=left, may_block=may_block)
                except DeadlineExceeded:
                    left_out[name] = "late"
                except Exception as error:  # noqa: BLE001 - whatever one source raises, the others are shown
                    left_out[name] = _reason(error)
        finally:
            for _, future in under_way:
                future.cancel()
        return items, left_out, shared.necessity


class SyncContextBuilder:
    """`ContextBuilder` for code without async."""

    def __init__(self, builder: ContextBuilder) -> None:
        self._builder = builder

    def build(
        self,
        user_id: UserId,
        query: str | None = None,
        *,
        messages: Sequence[MessageLikeRepresentation] = (),
        max_tokens: int | None = None,
    ) -> AssembledContext:
        """Like `ContextBuilder.build`; it blocks."""
        return run(self._builder.operation(user_id, query, messages, max_tokens))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_REASON]}"


def _fetched(source: ContextSource, request: ContextRequest) -> list[ContextItem]:
    """The items of ``source``, under its name. Raises what it raises, IdentityError for a memory of another user."""

    async def awaited(given: Awaitable[Sequence[ContextItem]]) -> Sequence[ContextItem]:
        return await given

    given: Any = source.fetch(request)
    if isinstance(given, Generator):
        given = run(cast("Operation[Sequence[ContextItem]]", given))
    elif isawaitable(given):
        given = asyncio.run(awaited(cast("Awaitable[Sequence[ContextItem]]", given)))
    items: list[ContextItem] = list(given)[: source.limit]
    owners = (encode_label(request.user_id), _EVERYBODY)
    if any(item.record is not None and item.record.namespace[0] not in owners for item in items):
        raise IdentityError(f"Source {source.name} gave a memory of another user")
    return [replace(item, source=source.name) for item in items]
