"""The short-term memory of `AgentService`: what it is given, or what settings name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference_core.agents.middleware.short_term import ShortTermMemoryMiddleware
from inference_core.errors import ConfigurationError
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import AgentSettings
from inference_core.short_term.policy import Overflow
from inference_core.short_term.strategies import Delete, FlushToLongTerm, OverflowStrategy, Summarize, Trim

ShortTerm = Overflow | ShortTermMemoryMiddleware


def make_short_term(
    settings: AgentSettings, given: ShortTerm, memory: AgentMemoryStoreService | None, **options: Any
) -> ShortTermMemoryMiddleware | None:
    """``given``, or else what ``settings`` name, on ``memory``; None if that is nothing.

    A flush without ``memory`` puts what it recalls into the prompt itself. Raises ConfigurationError.
    """
    if isinstance(given, ShortTermMemoryMiddleware):
        return given
    overflow = named(settings, recalls=memory is None) if given is None else given
    if given is None and not overflow:
        return None
    return ShortTermMemoryMiddleware(
        overflow, max_tokens=settings.short_term_max_tokens, memory_service=memory, **options
    )


def named(settings: AgentSettings, *, recalls: bool) -> list[OverflowStrategy]:
    """The strategies that ``settings`` name; ``recalls``: what is flushed is put into prompts by the flush itself."""
    made = {
        "flush": lambda: FlushToLongTerm(into_system_prompt=recalls),
        "summarize": Summarize,
        "trim": Trim,
        "delete": Delete,
    }
    return [made[name]() for name in settings.short_term]


def needs_store(settings: AgentSettings, given: ShortTerm) -> bool:
    """Whether it flushes into the agent's own memory; a middleware that is given looks after itself."""
    if given is None:
        return "flush" in settings.short_term
    strategies = given if isinstance(given, Sequence) else [given]
    flushes = [one for one in strategies if isinstance(one, FlushToLongTerm)]
    return any(not block.has_store for flush in flushes for block in flush.memory)


def has_short_term(middleware: Sequence[Any], given: ShortTerm) -> bool:
    """Whether there is one among ``middleware``, which is used then. Raises ConfigurationError if it is one of two."""
    is_there = any(isinstance(one, ShortTermMemoryMiddleware) for one in middleware)
    if is_there and given is not None:
        raise ConfigurationError("Give short_term= or a ShortTermMemoryMiddleware among middleware, not both")
    return is_there
