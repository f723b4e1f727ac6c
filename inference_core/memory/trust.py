"""Where a memory came from, how far that is trusted, and what it may therefore become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from inference_core.errors import InvalidInput, UntrustedWrite
from inference_core.memory.text import text_field, texts_field
from inference_core.memory.types import MemoryCategory


class Origin(str, Enum):
    """Who or what a memory's text comes from."""

    USER = "user"
    APPLICATION = "application"
    AGENT = "agent"
    TOOL = "tool"
    DOCUMENT = "document"
    WEB = "web"


class Trust(IntEnum):
    """How far a memory is trusted.

    A memory never supersedes a more trusted one, even if it is newer.
    """

    EXTERNAL = 0
    INFERRED = 1
    STATED = 2


_ORIGINS = tuple(known.value for known in Origin)
_TRUST = {Origin.USER: Trust.STATED, Origin.APPLICATION: Trust.STATED, Origin.AGENT: Trust.INFERRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """Where a memory comes from: who said it, in which thread and messages, through which tool."""

    origin: Origin = Origin.APPLICATION
    thread_id: str | None = None
    message_ids: tuple[str, ...] = ()
    tool: str | None = None

    @property
    def trust(self) -> Trust:
        """The trust this origin earns. Text from tools, documents and the web earns the least."""
        return _TRUST.get(self.origin, Trust.EXTERNAL)

    def to_value(self) -> dict[str, Any]:
        """The source as JSON data, without empty fields."""
        fields = {
            "origin": self.origin.value,
            "thread_id": self.thread_id,
            "message_ids": list(self.message_ids),
            "tool": self.tool,
        }
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> MemorySource:
        """The source of a `to_value` result; an unknown origin gets the least trust."""
        origin = value.get("origin", Origin.APPLICATION.value)
        return cls(
            origin=Origin(origin) if origin in _ORIGINS else Origin.WEB,
            thread_id=text_field(value, "thread_id"),
            message_ids=texts_field(value, "message_ids"),
            tool=text_field(value, "tool"),
        )


def check_write(source: MemorySource, category: MemoryCategory) -> None:
    """Raises UntrustedWrite if ``source`` may not write ``category``: external text never becomes a rule."""
    if not isinstance(source, MemorySource):  # pyright: ignore[reportUnnecessaryIsInstance] - for callers without types
        raise InvalidInput(f"source must be a MemorySource, not {type(source).__name__}")
    if category is MemoryCategory.PROCEDURAL and source.trust is Trust.EXTERNAL:
        place = "the web" if source.origin is Origin.WEB else f"a {source.origin.value}"
        raise UntrustedWrite(
            f"Text from {place} cannot become procedural memory; "
            "save it as 'facts', or let the user or the application state the rule"
        )
