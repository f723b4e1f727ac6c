"""Who changed what in a memory, and why: what every write says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from inference_core.memory.text import text_field
from inference_core.memory.trust import MemorySource, Origin

_UNKNOWN: Final = "write"
_FIELDS: Final = ("id", "agent", "thread_id", "run_id", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who changes a memory: ``kind`` is "application", "user", "agent", "tool", "document", "web", "worker" or "admin".

    ``id`` names them where there are several, such as an administrator; the rest says in which run it happened.
    """

    kind: str = Origin.APPLICATION.value
    id: str | None = None
    agent: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    tool: str | None = None

    def to_value(self) -> dict[str, str]:
        """The actor as JSON data, without empty fields."""
        return {name: value for name in ("kind", *_FIELDS) if (value := getattr(self, name))}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Actor:
        """The actor of a `to_value` result."""
        return cls(kind=text_field(value, "kind") or "", **{name: text_field(value, name) for name in _FIELDS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a batch is written: the operation, who asked for it, and when.

    ``keep_until`` is how long the earlier states of what it changes are kept; None: not at all, and those that were
    kept of what it removes are removed too. ``job`` is the work on messages that it belongs to, and ``details`` go
    into the audit event as they are.
    """

    at: datetime
    operation: str = _UNKNOWN
    actor: Actor = Actor()
    keep_until: datetime | None = None
    reason: str | None = None
    job: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


def actor_of(source: MemorySource, agent: str | None) -> Actor:
    """The actor that the source of a memory names."""
    return Actor(kind=source.origin.value, agent=agent, thread_id=source.thread_id, tool=source.tool)
