"""The short-term memory of `AgentService`, as settings name it."""

from __future__ import annotations

from inference_core.agents.middleware.short_term import ShortTermMemoryMiddleware
from inference_core.settings import AgentSettings
from inference_core.short_term.policy import Overflow
from inference_core.short_term.strategies import Delete, FlushToLongTerm, OverflowStrategy, Summarize, Trim

ShortTerm = Overflow | ShortTermMemoryMiddleware


def named(settings: AgentSettings, *, recalls: bool) -> list[OverflowStrategy]:
    """The strategies that ``settings`` name; ``recalls``: what is flushed is put into prompts by the flush itself."""
    made = {
        "flush": lambda: FlushToLongTerm(into_system_prompt=recalls),
        "summarize": Summarize,
        "trim": Trim,
        "delete": Delete,
    }
    return [made[name]() for name in settings.short_term]
