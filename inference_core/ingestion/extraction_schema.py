"""The form in which a language model gives memories, and how large each part of it may be."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from inference_core.ingestion.candidates import STATES, Action
from inference_core.memory.types import MemoryType

MAX_MEMORIES: Final = 50
"""Of one answer of the model, no more memories than these are taken."""
MAX_CONTENT: Final = 2_000
"""A memory with more characters is no memory; the model is asked for a quarter."""
MAX_LABEL: Final = 100
"""Characters of a topic, a tag, a name."""
MAX_TAGS: Final = 8
MAX_ENTITIES: Final = 12
MAX_RELATIONS: Final = 12
MAX_SOURCES: Final = 20
EXTRACTED_TYPES: Final = tuple(kind for kind in MemoryType if kind is not MemoryType.SESSION_SUMMARY)
"""What messages may suggest; a summary is made of a whole session, when it is over."""
KINDS: Final = ("person", "place", "organization", "thing", "concept")
_Label = Field(max_length=MAX_LABEL)
_DATE: Final = "ISO 8601, a day or an instant; an absolute date, never a word such as yesterday"


def _one_of(*values: str | None) -> Any:
    return {"enum": list(values)}


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ExtractedEntity(_Closed):
    """Somebody or something that the memory is about."""

    name: str = _Label
    kind: str = Field(default="thing", json_schema_extra=_one_of(*KINDS))


class ExtractedRelation(_Closed):
    """How two of the entities stand to each other, such as Ada, sister_of, Ida."""

    source: str = _Label
    name: str = _Label
    target: str = _Label


class ExtractedMemory(_Closed):
    """One memory."""

    content: str = Field(
        max_length=MAX_CONTENT // 4, description="One sentence that makes sense on its own, in the user's language"
    )
    type: str = Field(json_schema_extra=_one_of(*(kind.value for kind in EXTRACTED_TYPES)))
    sources: list[str] = Field(
        max_length=MAX_SOURCES, description="Names of the messages that say it: m1, m2 and so on"
    )
    topic: str | None = Field(default=None, max_length=MAX_LABEL, description="One or two words")
    tags: list[str] = Field(default_factory=list[str], max_length=MAX_TAGS)
    importance: float = Field(default=0.5, ge=0, le=1, description="How much it matters for later conversations")
    happened_at: str | None = Field(default=None, description=f"When it happened or began to hold: {_DATE}")
    holds_until: str | None = Field(default=None, description=f"When it ends, if that was said: {_DATE}")
    state: str | None = Field(
        default=None, description="Of a goal or an idea alone", json_schema_extra=_one_of(*STATES, None)
    )
    entities: list[ExtractedEntity] = Field(default_factory=list[ExtractedEntity], max_length=MAX_ENTITIES)
    relations: list[ExtractedRelation] = Field(default_factory=list[ExtractedRelation], max_length=MAX_RELATIONS)
    action: str = Field(default=Action.ADD.value, json_schema_extra=_one_of(*(action.value for action in Action)))
    target: str | None = Field(default=None, description="The known memory, k1, k2 and so on, of any action but add")


class ExtractedMemories(_Closed):
    """The memories that should be kept of the conversation; an empty list if there are none."""

    memories: list[ExtractedMemory] = Field(max_length=MAX_MEMORIES)
