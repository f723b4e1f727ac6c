"""The form of a memory outside Python: what HTTP, the command line, MCP and the inspector tell is made from it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import UnionType
from typing import Any, Final, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from inference_core.memory.record import DEFAULT_IMPORTANCE, MemoryStoreDocument
from inference_core.memory.text import moment_field, share_field, text_field, texts_field
from inference_core.memory.types import category_meant, type_meant

AS_TYPE: Final = BeforeValidator(type_meant)
"""Takes the name of a memory type as people and models write it: "fact", "FACTS"."""
AS_CATEGORY: Final = BeforeValidator(category_meant)


class Given(BaseModel):
    """What clients and models pass. Of what may be left out, null is left out; so is "" where no text is asked for."""

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields, told = cls.model_fields, cast("dict[str, Any]", given)
        return {name: value for name, value in told.items() if not _is_left_out(value, fields.get(name))}


def _is_left_out(value: object, field: FieldInfo | None) -> bool:
    if field is None or field.is_required():
        return False
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else (field.annotation,)
    return value is None or (isinstance(value, str) and not value.strip() and str not in kinds)


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
        """The memory that ``document`` holds."""
        value, source = document.value, document.source
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
            pinned=document.pinned,
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


def memories_of(documents: Iterable[MemoryStoreDocument]) -> list[Memory]:
    """The memories that ``documents`` hold."""
    return list(map(Memory.of, documents))
