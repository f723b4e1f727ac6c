"""Sources of what is there without a search: the conversation, and what the application knows from the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from langchain_core.messages import BaseMessage, SystemMessage

from inference_core.clock import aware
from inference_core.context.items import ContextItem
from inference_core.drivers import Plan
from inference_core.memory.namespaces import global_namespace
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory
from inference_core.services.context.source import ContextRequest
from inference_core.services.operations.scope import record_of

TIMESTAMP: Final = "timestamp"
"""The name in a message's ``additional_kwargs`` under which AgentMemory keeps when it was said, in ISO 8601."""
_SPEAKERS: Final = {"human": ("user", Trust.STATED), "ai": ("assistant", Trust.INFERRED)}
_OTHERS: Final = ("tool", Trust.EXTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentMessages:
    """The last ``limit`` messages and answers of the request, in their order, without the question itself."""

    name: str = "recent_messages"
    section: str = "recent_messages"
    limit: int = 10

    def fetch(self, request: ContextRequest) -> list[ContextItem]:
        """The messages that hold text, but for system messages."""
        said = [one for one in request.messages if not isinstance(one, SystemMessage) and one.text.strip()]
        if said and said[-1].text == request.query:
            said = said[:-1]
        items: list[ContextItem] = []
        first = max(0, len(said) - self.limit)
        for at, message in enumerate(said[first:], first):
            kind, trust = _SPEAKERS.get(message.type, _OTHERS)
            items.append(
                ContextItem(
                    id=message.id or str(at),
                    text=message.text,
                    section=self.section,
                    source=self.name,
                    kind=kind,
                    happened_at=_said_at(message),
                    trust=trust,
                    score=at,
                )
            )
        return items


@dataclass(frozen=True, slots=True)
class StaticFacts:
    """What holds for all users: ``facts``, or, without them, what the `StaticMemory` of this ``name`` has stored."""

    facts: Sequence[str] | None = None
    name: str = "static_memory"
    section: str = "static_memory"
    limit: int = 50

    def fetch(self, request: ContextRequest) -> Plan[list[ContextItem]]:
        """Plan: the facts in their order. Raises StoreUnavailable."""
        if self.facts is not None:
            return [
                ContextItem(id=str(at), text=fact, section=self.section, source=self.name, kind="facts", score=-at)
                for at, fact in enumerate(self.facts)
            ]
        namespace = global_namespace(MemoryCategory.SEMANTIC, self.name)
        rows = yield from request.scope.engine.page([namespace], limit=self.limit)
        return [
            replace(ContextItem.of(record, source=self.name, section=self.section), happened_at=None)
            for record in map(record_of, rows)
        ]


def _said_at(message: BaseMessage) -> datetime | None:
    try:
        return aware(datetime.fromisoformat(message.additional_kwargs[TIMESTAMP]))
    except (KeyError, TypeError, ValueError):
        return None
