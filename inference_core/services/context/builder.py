"""ContextBuilder: the context of a prompt, from many sources at once."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, Final, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import MessageLikeRepresentation, convert_to_messages

from inference_core.context.engineer import DEFAULT_MAX_TOKENS, SUMMARY, ContextEngineer, with_summary
from inference_core.context.items import AssembledContext, ContextItem
from inference_core.effects import Deadline, Effect, Operation, WorkerPool, arun, run
from inference_core.errors import ConfigurationError, DeadlineExceeded, IdentityError, ModelError, StoreUnavailable
from inference_core.memory.namespaces import encode_label, global_namespace
from inference_core.memory.types import MemoryCategory
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.context.memories import (
    AssociatedMemories,
    Entities,
    Memories,
    RecentMessages,
    StaticFacts,
    consolidated_memories,
    goals,
    ideas,
)
from inference_core.services.context.source import ContextRequest, ContextSource, SearchingSource, Together
from inference_core.services.operations.scope import UserId
from inference_core.stores.search import Search

# Asks sources side by side, under one deadline; what fails or is late is left out and named.

WORKERS: Final = 8
"""Calls of one source at a time; while all of them hang, the source is left out at once."""
_HANG_S: Final = 2.0
"""No prompt waits for a source nearly so long."""
_AN_INSTANT_S: Final = 0.001
_MAX_REASON: Final = 200
_EVERYBODY: Final = global_namespace(MemoryCategory.SEMANTIC, "any")[0]
Fetching = Future[list[ContextItem]]


class Sources:
    """Some sources, each with workers of its own, so that one that hangs takes nothing from the others.

    Raises ConfigurationError if two have the same name, or one is no source.
    """

    def __init__(self, sources: Sequence[ContextSource]) -> None:
        for one in sources:
            if not isinstance(one, ContextSource):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{one!r:.80} is no context source: it needs name, section, limit and fetch")
        self._pools = {one.name: WorkerPool(WORKERS, f"context-{one.name}", hang_s=_HANG_S) for one in sources}
        if len(self._pools) < len(sources):
            raise ConfigurationError("Two context sources have the same name; give one of them another")
        self._sources = tuple(sources)
        for pool in self._pools.values():
            weakref.finalize(self, pool.close)

    def fetch(
        self, request: ContextRequest, seconds: float | None
    ) -> Operation[tuple[list[ContextItem], dict[str, str]]]:
        """What all sources give within ``seconds``, and why some give nothing. Never raises for a source."""
        deadline = Deadline(seconds)
        items: list[ContextItem] = []
        left_out: dict[str, str] = {}
        request = replace(request, together=Together(request.scope.engine, dict(self._questions(request))))
        under_way: list[tuple[ContextSource, Fetching]] = []
        for source in self._sources:
            try:
                under_way.append((source, self._pools[source.name].submit(partial(_fetched, source, request))))
            except (StoreUnavailable, RuntimeError) as error:  # its workers hang, or no thread can be started
                left_out[source.name] = _reason(error)
        try:
            for source, future in under_way:
                try:
                    items += yield self._wait(future, request, deadline)
                except DeadlineExceeded:
                    left_out[source.name] = "late"
                except Exception as error:  # noqa: BLE001 - whatever one source raises, the others are shown
                    left_out[source.name] = _reason(error)
        finally:
            for _, future in under_way:
                future.cancel()
        return items, left_out

    def _questions(self, request: ContextRequest) -> Iterator[tuple[str, Search]]:
        """The searches for the question itself, by source."""
        for source in self._sources:
            with suppress(Exception):  # its fetch asks the same, and says what is wrong
                search = source.question(request) if isinstance(source, SearchingSource) else None
                if search is not None and search.text == request.query:
                    yield source.name, search

    def _wait(self, future: Fetching, request: ContextRequest, deadline: Deadline) -> Effect[list[ContextItem]]:
        try:
            left = deadline.remaining()
        except DeadlineExceeded:
            left = _AN_INSTANT_S  # what is there by now is taken
        return Effect(lambda: future, timeout=left, may_block=request.scope.engine.pool.may_block)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_REASON]}"


def _fetched(source: ContextSource, request: ContextRequest) -> list[ContextItem]:
    """What ``source`` gives, in its name. Raises what it raises, IdentityError for a memory of another user."""
    given: Any = source.fetch(request)
    if isinstance(given, Generator):
        given = run(cast("Operation[Sequence[ContextItem]]", given))
    elif isawaitable(given):
        given = asyncio.run(_awaited(cast("Awaitable[Sequence[ContextItem]]", given)))
    items: list[ContextItem] = list(given)[: source.limit]
    owners = (encode_label(request.user_id), _EVERYBODY)
    if any(item.record is not None and item.record.namespace[0] not in owners for item in items):
        raise IdentityError(f"Source {source.name} gave a memory of another user")
    return [replace(item, source=source.name) for item in items]


async def _awaited(given: Awaitable[Sequence[ContextItem]]) -> Sequence[ContextItem]:
    return await given


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


class SyncContextBuilder:
    """The builder without async: the same method, which blocks."""

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
        """Like `ContextBuilder.build`."""
        return run(self._builder.plan(user_id, query, messages=messages, max_tokens=max_tokens))


class ContextBuilder:
    """Builds the context of prompts from ``sources``, by default all that this package has, with ``engineer``.

    ``service`` is the user's memory as the agent sees it. All sources are asked at once and get ``deadline`` seconds
    together (None: as long as they take). ``max_tokens`` bounds the block. With a ``model``, what does not fit is
    summed up, which takes as long as the model takes; without, it is left out. Raises ConfigurationError for two
    sources of one name, an object that is no source, or a deadline that is not positive.
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
        self._scope = service.scope
        self._sources = Sources(sources)
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
        """The context for ``query`` and ``messages``, the conversation so far.

        ``max_tokens`` overrides the builder's own. ``left_out`` of the result names the sources that failed or were
        late. Raises InvalidId for a bad user id.
        """
        return await arun(self.plan(user_id, query, messages=messages, max_tokens=max_tokens))

    def plan(
        self,
        user_id: UserId,
        query: str | None = None,
        *,
        messages: Sequence[MessageLikeRepresentation] = (),
        max_tokens: int | None = None,
    ) -> Operation[AssembledContext]:
        """What `build` gives."""
        encode_label(user_id)
        request = ContextRequest(
            user_id=str(user_id),
            query=query,
            messages=convert_to_messages(messages),
            scope=self._scope,
            now=self._scope.clock.now(),
        )
        items, left_out = yield from self._sources.fetch(request, self.deadline)
        room = self.max_tokens if max_tokens is None else max_tokens
        now, zone = request.now, request.zone
        if self.model is not None:
            try:
                context = yield from with_summary(
                    self.engineer, items, self.model, query=query, now=now, zone=zone, max_tokens=room
                )
                return replace(context, left_out=left_out)
            except ModelError as error:
                left_out[SUMMARY] = str(error)
        context = self.engineer.assemble(items, query=query, now=now, zone=zone, max_tokens=room)
        return replace(context, left_out=left_out)
