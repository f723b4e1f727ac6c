"""Memories in requests and responses, with the names of the service's arguments and of stored memories."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from inference_core.memory.document import MemoryStoreDocument, RecalledMemories
from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.text import MAX_CONTENT_BYTES, moment_field, share_field, text_field, texts_field
from inference_core.memory.trust import MemorySource, Origin
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.services.operations.recall import MAX_DIVERSITY, MAX_RESULTS
from inference_core.services.operations.scope import MAX_TAGS

MAX_PAGE = 200
MAX_QUERY = 16_384
Tags = Annotated[list[str], Field(max_length=MAX_TAGS)]
Share = Annotated[float, Field(ge=0, le=1)]


class Body(BaseModel):
    """A request's body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class NewMemory(Body):
    """A memory to save. ``origin`` says who said it: text of a tool, a document or the web is trusted less."""

    content: str = Field(max_length=MAX_CONTENT_BYTES, description="The text.")
    memory_type: MemoryType = MemoryType.GENERAL
    category: MemoryCategory | None = Field(None, description="By default that of the type.")
    topic: str | None = Field(None, description="A short label.")
    session_id: str | None = Field(None, description="The conversation that the memory belongs to.")
    tags: Tags = []
    importance: Share = DEFAULT_IMPORTANCE
    pinned: bool = Field(False, description="Always in the prompt's profile, and never forgotten.")
    extra_metadata: dict[str, Any] | None = Field(None, description="Your own JSON data.")
    origin: Origin = Origin.APPLICATION
    valid_from: datetime | None = Field(None, description="When it happened or became true.")
    expires_at: datetime | None = Field(None, description="From this time on, it is not found.")

    def arguments(self) -> dict[str, Any]:
        """The arguments of the service's ``save_memory``."""
        return self.model_dump(exclude={"origin"}) | {"source": MemorySource(origin=self.origin)}


class MemoryChange(Body):
    """The fields of a memory to change; what is left out or null stays."""

    content: str | None = Field(None, max_length=MAX_CONTENT_BYTES)
    memory_type: MemoryType | None = None
    category: MemoryCategory | None = None
    topic: str | None = Field(None, description='"" removes it.')
    tags: Tags | None = Field(None, description="Replaces all tags.")
    importance: Share | None = None
    pinned: bool | None = None
    extra_metadata: dict[str, Any] | None = Field(None, description="Merged into what is there.")
    origin: Origin = Origin.APPLICATION
    expires_at: datetime | Literal["never"] | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of the service's ``update_memory``."""
        return self.model_dump(exclude={"origin"}) | {"source": MemorySource(origin=self.origin)}


class Question(Body):
    """What to find, and among which memories."""

    query: str = Field(max_length=MAX_QUERY, description="A question or keywords; blank: the newest memories.")
    k: int | None = Field(None, ge=1, le=MAX_RESULTS, description="How many memories at most.")
    memory_type: MemoryType | None = None
    category: MemoryCategory | None = None
    sort_by_time: bool = False
    explain: bool = Field(False, description="Adds the parts of each score, and what was left out and why.")
    max_characters: int | None = Field(None, ge=1, description="Of all contents together.")
    diversity: float = Field(0.0, ge=0, le=MAX_DIVERSITY)
    backfill: bool = Field(False, description="Adds the newest other memories if fewer than k match.")
    as_of: datetime | None = Field(None, description="What was true at this time.")
    ignore_session: bool = False
    links: bool | None = None
    tags: Tags = Field([], description="Only memories that have all of these.")
    session_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    min_relevance: Share = 0.0


class Source(BaseModel):
    """Where a memory comes from."""

    origin: str
    thread_id: str | None = None
    message_ids: list[str] = []
    tool: str | None = None


class Link(BaseModel):
    """What a memory shares with another one, or with the query if there is no memory_id."""

    model_config = ConfigDict(from_attributes=True)

    entity: str
    memory_id: str | None


class Memory(BaseModel):
    """A memory. ``version`` is also its ETag; score and relevance are those of a search."""

    id: str
    version: int
    content: str
    memory_type: str
    category: str
    topic: str | None
    session_id: str | None
    agent_name: str | None
    tags: list[str]
    importance: float
    pinned: bool
    extra_metadata: dict[str, Any]
    source: Source
    trust: int = Field(description="0: from a tool, a document or the web; 1: inferred by an agent; 2: stated.")
    valid_from: datetime | None
    valid_to: datetime | None
    expires_at: datetime | None
    supersedes: list[str]
    superseded_by: str | None
    created_at: datetime | None
    updated_at: datetime | None
    score: float | None = None
    relevance: float | None = Field(None, description="From 0 to 1: how likely it answers the query.")
    explanation: dict[str, float] | None = None
    links: list[Link] = []

    @classmethod
    def of(cls, document: MemoryStoreDocument) -> Memory:
        """The memory for a response."""
        value = document.value
        source = MemorySource.from_value(value.get("source") or {})
        return cls(
            id=document.id,
            version=document.version,
            content=document.content,
            memory_type=document.memory_type or "",
            category=document.memory_category or "",
            topic=document.topic,
            session_id=text_field(value, "session_id"),
            agent_name=text_field(value, "agent_name"),
            tags=list(texts_field(value, "tags")),
            importance=share_field(value, "importance", DEFAULT_IMPORTANCE),
            pinned=value.get("pinned") is True,
            extra_metadata=document.metadata,
            source=Source(
                origin=source.origin.value,
                thread_id=source.thread_id,
                message_ids=list(source.message_ids),
                tool=source.tool,
            ),
            trust=int(value.get("trust", source.trust)),
            valid_from=moment_field(value, "valid_from"),
            valid_to=moment_field(value, "valid_to"),
            expires_at=moment_field(value, "expires_at"),
            supersedes=list(texts_field(value, "supersedes")),
            superseded_by=text_field(value, "superseded_by"),
            created_at=document.created_at,
            updated_at=document.updated_at,
            score=document.score,
            relevance=document.relevance,
            explanation=document.explanation,
            links=list(map(Link.model_validate, document.links)),
        )


class SavedMemory(Memory):
    """A memory that was saved. ``was_stored``: it had been saved before. ``redacted``: kinds of secrets left out."""

    was_stored: bool = False
    redacted: list[str] = []


class MemoryList(BaseModel):
    """A page of memories, the newest first. Send ``next_cursor`` as ``cursor`` for the next one; null: the last."""

    memories: list[Memory]
    next_cursor: str | None
    total: int = Field(description="How many match in all.")


class LeftOut(BaseModel):
    """A memory that a search dropped, and why."""

    memory: Memory
    reason: str


class Found(BaseModel):
    """The memories that a search found, the best first."""

    memories: list[Memory]
    left_out: list[LeftOut] = []
    by_meaning: bool = Field(default=False, description="Whether meaning was compared, not only words.")

    @classmethod
    def of(cls, recalled: RecalledMemories) -> Found:
        """The result for a response."""
        dropped = [LeftOut(memory=Memory.of(document), reason=reason) for document, reason in recalled.left_out]
        return cls(memories=memories_of(recalled), left_out=dropped, by_meaning=recalled.by_meaning)


class Status(BaseModel):
    """Whether the server works."""

    status: Literal["ok"] = "ok"


class Version(BaseModel):
    """The package's version."""

    version: str


def memories_of(documents: Iterable[MemoryStoreDocument]) -> list[Memory]:
    """The memories for a response."""
    return list(map(Memory.of, documents))
