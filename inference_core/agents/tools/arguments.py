"""What a model may pass to each memory tool. Whose memory it is, is never among it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from langchain_core.tools import InjectedToolArg
from pydantic import BaseModel, Field

# fmt: off
TypeName = Literal[
    "preferences", "facts", "goals", "general", "context", "session_summary", "interaction", "instructions",
    "workflow", "skill",
]
# fmt: on
CategoryName = Literal["semantic", "episodic", "procedural"]
Injected = Annotated[Any, InjectedToolArg()]
_CATEGORY = "Category, if not the one that the type belongs to."


class MemoryToolArguments(BaseModel):
    """Base: LangGraph injects ``runtime``; models never see it."""

    runtime: Injected = Field(default=None, exclude=True)


class SaveArguments(MemoryToolArguments):
    """Arguments of save_memory_store."""

    content: str = Field(description="What to remember, as one sentence that can be understood on its own.")
    memory_type: TypeName = Field(default="general", description="What kind of memory it is.")
    topic: str | None = Field(default=None, description="A word or two that name its subject.")
    category: CategoryName | None = Field(default=None, description=_CATEGORY)


class RecallArguments(MemoryToolArguments):
    """Arguments of recall_memories_store."""

    query: str = Field(description="What to look for, in words that the memory may hold.")
    memory_type: TypeName | None = Field(default=None, description="Only memories of this type.")
    max_results: int | None = Field(default=None, ge=1, le=50, description="How many memories at most.")
    category: CategoryName | None = Field(default=None, description="Only memories of this category.")


class UpdateArguments(MemoryToolArguments):
    """Arguments of update_memory_store."""

    memory_id: str = Field(description="The id that save or recall gave.")
    content: str = Field(description="The new text, whole.")
    memory_type: TypeName | None = Field(default=None, description="The new type; leave out to keep it.")
    topic: str | None = Field(default=None, description="The new topic; leave out to keep it.")
    category: CategoryName | None = Field(default=None, description="The new category; leave out to keep it.")


class DeleteArguments(MemoryToolArguments):
    """Arguments of delete_memory_store."""

    memory_id: str = Field(description="The id that save or recall gave.")


class ListArguments(MemoryToolArguments):
    """Arguments of list_memories_store."""

    memory_type: TypeName | None = Field(default=None, description="Only memories of this type.")
    category: CategoryName | None = Field(default=None, description="Only memories of this category.")
    page: int = Field(default=1, ge=1, le=10_000, description="Which page, from 1.")
