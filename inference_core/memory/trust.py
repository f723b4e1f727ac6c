"""Where a memory came from, how far that is trusted, and what it may therefore become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, cast

from inference_core.errors import InvalidInput, UntrustedWrite
from inference_core.memory.text import text_field, texts_field
from inference_core.memory.types import GUIDING_TYPES, MemoryCategory, MemoryType


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


def check_write(source: MemorySource, category: MemoryCategory, kind: MemoryType | None = None) -> None:
    """Raises UntrustedWrite if ``source`` may not write ``category``: external text never becomes a rule.

    With the ``kind`` that a model chose, it never becomes anything that guides an agent, such as a preference.
    """
    if not isinstance(source, MemorySource):  # pyright: ignore[reportUnnecessaryIsInstance] - for callers without types
        raise InvalidInput(f"source must be a MemorySource, not {type(source).__name__}")
    if source.trust is not Trust.EXTERNAL:
        return
    if category is MemoryCategory.PROCEDURAL or (kind is not None and kind.value in GUIDING_TYPES):
        what = "procedural memory" if category is MemoryCategory.PROCEDURAL else "a preference of the user"
        place = "the web" if source.origin is Origin.WEB else f"a {source.origin.value}"
        raise UntrustedWrite(
            f"Text from {place} cannot become {what}; "
            "save it as 'facts', or let the user or the application state the rule"
        )


def lowered(value: Any) -> Any:
    """A memory's stored ``value`` from outside, with no more trust than its source earns; anything else as it is."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    given, level = fields.get("source"), fields.get("trust")
    earned = MemorySource.from_value(cast("dict[str, Any]", given) if isinstance(given, dict) else {}).trust
    return fields if not isinstance(level, int) or level <= earned else {**fields, "trust": int(earned)}
