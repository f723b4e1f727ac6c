"""ContextBuilder: the context of a prompt, from many sources at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import MessageLikeRepresentation, convert_to_messages

from inference_core.context.engineer import DEFAULT_MAX_TOKENS, ContextEngineer
from inference_core.context.items import AssembledContext
from inference_core.context.summarizing import SUMMARY, with_summary
from inference_core.drivers import Plan, arun, run
from inference_core.errors import ConfigurationError, ModelError
from inference_core.memory.namespaces import encode_label
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.context.entities import Entities
from inference_core.services.context.fetching import Sources
from inference_core.services.context.given import RecentMessages, StaticFacts
from inference_core.services.context.memories import (
    AssociatedMemories,
    Memories,
    consolidated_memories,
    goals,
    ideas,
)
from inference_core.services.context.source import ContextRequest, ContextSource
from inference_core.services.operations.scope import UserId

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
    ) -> Plan[AssembledContext]:
        """Plan: what `build` gives."""
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
