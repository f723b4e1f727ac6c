"""Where a memory came from, how far that source is trusted, and what the memory may therefore become."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final, cast

from inference_core.errors import InvalidInput, UntrustedWrite
from inference_core.memory.text import mapping_field, text_field, texts_field
from inference_core.memory.types import GUIDING_TYPES, MemoryCategory, MemoryType

LEFTOVERS: Final = "legacy"
"""The key of ``extra_metadata`` under which an import keeps all that fits no field of a record."""


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

    A memory of `EXTERNAL` trust never supersedes a more trusted one, even if it is newer.
    """

    EXTERNAL = 0
    INFERRED = 1
    STATED = 2


_ORIGINS = tuple(known.value for known in Origin)
_TRUST = {Origin.USER: Trust.STATED, Origin.APPLICATION: Trust.STATED, Origin.AGENT: Trust.INFERRED}


class Decision(Enum):
    """Whether a memory is stored: at once, once the user has confirmed it, or not at all."""

    YES = "yes"
    PENDING = "pending"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """Where a memory comes from: who said it, in which thread and messages, through which tool.

    ``approved_by`` is who confirmed a memory that had to wait for confirmation.
    """

    origin: Origin = Origin.APPLICATION
    thread_id: str | None = None
    message_ids: tuple[str, ...] = ()
    tool: str | None = None
    approved_by: str | None = None
    author: str | None = None
    """In a space, a keyed pseudonym of the user who wrote it, so that an erasure of that user need not change it."""

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
            "approved_by": self.approved_by,
            "author": self.author,
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
            approved_by=text_field(value, "approved_by"),
            author=text_field(value, "author"),
        )


def origin_shown(source: MemorySource, trust: int) -> str:
    """The origin that is shown to readers for a memory of this ``trust``; "" unless the memory is external."""
    if trust > Trust.EXTERNAL:
        return ""
    return source.origin.value if source.trust is Trust.EXTERNAL else "external"


def decide(
    source: MemorySource, category: MemoryCategory, kind: MemoryType | None = None, confirm: Collection[str] = ()
) -> Decision:
    """Whether text from ``source`` may be stored as ``category`` at once (YES) or has to wait (PENDING).

    No other place decides this, and only `services/operations/admission.py` asks. `outbox/said.py` decides whether a
    text that an agent saves, or a model extracts, is the user's own: an agent that passes on a web page is not its
    source.

    Text that the user or the application states is stored at once. External text waits for the user if it is procedural
    or, given its ``kind``, guides an agent in another way, such as a preference. In the categories to ``confirm``, all
    text waits that neither the user nor the application stated.
    """
    if checked_source(source).trust is Trust.STATED:
        return Decision.YES
    guides = category is MemoryCategory.PROCEDURAL or (kind is not None and kind.value in GUIDING_TYPES)
    waits = (guides and source.trust is Trust.EXTERNAL) or category.value in confirm
    return Decision.PENDING if waits else Decision.YES


def checked_source(source: MemorySource) -> MemorySource:
    """``source``. Raises InvalidInput if it is something else."""
    if not isinstance(source, MemorySource):  # pyright: ignore[reportUnnecessaryIsInstance] - for callers without types
        raise InvalidInput(f"source must be a MemorySource, not {type(source).__name__}")
    return source


def check_write(source: MemorySource, category: MemoryCategory, kind: MemoryType | None = None) -> None:
    """Raises UntrustedWrite unless text from ``source`` may be stored at once; categories to confirm do not count."""
    if decide(source, category, kind) is not Decision.YES:
        raise UntrustedWrite(
            f"{why_it_waits(source, category)}; save it as 'facts', or let the user or the application state the rule"
        )


def why_it_waits(source: MemorySource, category: MemoryCategory) -> str:
    """Why text from ``source`` may not be stored as ``category`` at once."""
    if source.trust is Trust.STATED:
        return "An import trusts it less than what the user stated"
    if source.author and source.trust is not Trust.EXTERNAL:
        return "It is a member's proposal for a space"
    if source.trust is not Trust.EXTERNAL:
        return f"What an agent concludes cannot become {category.value} memory by itself"
    is_rule = category is MemoryCategory.PROCEDURAL
    what = "procedural memory" if is_rule else "a preference of the user or replace what the user stated"
    return f"Text from {'the web' if source.origin is Origin.WEB else f'a {source.origin.value}'} cannot become {what}"


def lowered(value: Any) -> Any:
    """The stored ``value`` of an imported memory, trusted no more than its source earns; anything else as it is."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    level = fields.get("trust")
    return fields if not isinstance(level, int) or level <= trust_of(fields) else {**fields, "trust": trust_of(fields)}


def trust_of(value: Mapping[str, Any]) -> int:
    """The trust of a memory's stored ``value``, never above its source's."""
    earned, level = MemorySource.from_value(mapping_field(value, "source")).trust, value.get("trust")
    return min(level, earned.value) if isinstance(level, int) else earned.value


def no_higher(value: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The ``value`` of a memory with which an import replaces ``before``, trusted no more than that.

    If the value claims more trust than ``before``, it stays pinned only if ``before`` was pinned.
    """
    if trust_of(value) <= trust_of(before):
        return value
    return {**value, "trust": trust_of(before), "pinned": before.get("pinned") is True and value.get("pinned") is True}


def guides(kind: str | None, category: str | None) -> bool:
    """Whether memories of this type and category guide the agent: rules, procedures and preferences."""
    return kind in GUIDING_TYPES or category == MemoryCategory.PROCEDURAL.value


def as_fact(value: Mapping[str, Any]) -> dict[str, Any]:
    """A memory's stored ``value``, turned into a fact; its metadata keep the type that it claimed."""
    metadata = mapping_field(value, "extra_metadata")
    claimed = {**mapping_field(metadata, LEFTOVERS), "memory_type": value.get("memory_type")}
    return {
        **value,
        "memory_type": MemoryType.FACTS.value,
        "memory_category": MemoryCategory.SEMANTIC.value,
        "extra_metadata": {**metadata, LEFTOVERS: claimed},
    }
