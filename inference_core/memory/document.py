"""What recall returns, and the plain data classes of the public API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from inference_core.memory.namespaces import space_in
from inference_core.memory.record import MemoryLink, MemoryRecord
from inference_core.memory.text import copied
from inference_core.memory.types import MemoryCategory, get_category_for_type

T = TypeVar("T")
WEAK_RELEVANCE: Final = 0.1
"""Below it what answers the query and what has nothing to do with it look alike, so displays give no figure."""


def _now_iso() -> str:
    return datetime.now(UTC).isoformat()


@dataclass
class MemoryStoreDocument:
    """A recalled memory: its id, stored value, your own metadata, and how well it matched.

    ``score`` orders the hits of one recall, higher first. ``relevance``, from 0 to 1, estimates how likely the memory
    answers the query. Both are None if nothing was ranked. ``explanation`` splits the score by kind of evidence, and
    ``links`` lists the links that raised it, if you asked for them. ``version`` grows with each write; 0 means unknown.
    ``space`` names the `Space` that it belongs to; None if it is the user's own.
    """

    id: str
    value: dict[str, Any]
    metadata: dict[str, Any]
    score: float | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    relevance: float | None = None
    explanation: dict[str, float] | None = None
    links: tuple[MemoryLink, ...] = ()
    version: int = 0
    space: str | None = None

    @classmethod
    def of(cls, record: MemoryRecord, score: float | None = None) -> MemoryStoreDocument:
        """A document with copies of the record's values: records are cached, documents belong to the caller."""
        return cls(
            id=record.id,
            value=copied(record.to_value()),
            metadata=copied(dict(record.extra_metadata)),
            score=score,
            created_at=record.created_at,
            updated_at=record.updated_at,
            version=record.version,
            space=space_in(record.namespace) if record.namespace else None,
        )

    @property
    def content(self) -> str:
        """The memory's text."""
        return str(self.value.get("content") or "")

    @property
    def topic(self) -> str | None:
        """The memory's topic."""
        return self.value.get("topic")

    @property
    def memory_type(self) -> str | None:
        """The name of the memory's type."""
        return self.value.get("memory_type")

    @property
    def memory_category(self) -> str | None:
        """The stored category, else the one that the type belongs to."""
        if stored := self.value.get("memory_category"):
            return str(stored)
        return get_category_for_type(self.memory_type).value if self.memory_type else None

    @property
    def created_at_iso(self) -> str | None:
        """When it was first stored, in ISO 8601."""
        return self.created_at and self.created_at.isoformat()

    @property
    def updated_at_iso(self) -> str | None:
        """When it was last written, in ISO 8601."""
        return self.updated_at and self.updated_at.isoformat()


class MemoryPage(list[T]):
    """A page of results. Pass ``next_cursor`` as ``after`` to get the next page; it is None on the last one."""

    def __init__(self, items: Iterable[T] = (), next_cursor: str | None = None) -> None:
        super().__init__(items)
        self.next_cursor = next_cursor


class RecalledMemories(list[MemoryStoreDocument]):
    """The memories that a recall found. ``left_out`` lists those it dropped, each with the reason, if you asked."""

    def __init__(self, memories: Iterable[MemoryStoreDocument] = ()) -> None:
        super().__init__(memories)
        self.left_out: list[tuple[MemoryStoreDocument, str]] = []


@dataclass
class MemoryData:
    """The fields of a memory's stored value as a flat data class."""

    content: str
    memory_type: str
    memory_category: str = ""
    session_id: str | None = None
    topic: str | None = None
    agent_name: str | None = None
    extra_metadata: dict[str, Any] | None = None
    created_at: str = field(default_factory=_now_iso)

    def __post_init__(self) -> None:
        self.memory_category = self.memory_category or get_category_for_type(self.memory_type).value


@dataclass
class MemoryMetadata:
    """Who and what a memory belongs to, for stores that keep metadata apart from the value."""

    user_id: str
    memory_type: str = "general"
    memory_category: str = MemoryCategory.SEMANTIC.value
    created_at: str = field(default_factory=_now_iso)
    session_id: str | None = None
    topic: str | None = None
    agent_name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, merged with ``extra``, whose keys never replace them."""
        own = {name: value for name, value in vars(self).items() if name != "extra" and value}
        return {**self.extra, **own}
