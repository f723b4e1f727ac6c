"""The result of an extractor: memories that messages suggest, and how each affects existing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from math import isfinite
from typing import Any, Final

from pydantic import TypeAdapter

from inference_core.memory.record import DEFAULT_IMPORTANCE
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import mended

STATES: Final = ("open", "done", "dropped")


class Action(str, Enum):
    """A candidate is new, repeats a known memory, or takes its place."""

    ADD = "add"
    REINFORCE = "reinforce"
    SUPERSEDE = "supersede"


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """An existing memory that a candidate may reinforce or supersede; ``name`` is its name in the request.

    ``is_external``: its text comes from a tool or a document. ``said_at``: when it was last said, if that is known.
    """

    name: str
    memory_id: str
    content: str
    is_external: bool = False
    said_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """Someone or something that a memory is about. ``kind``: person, place, organization, thing or concept."""

    name: str
    kind: str = "thing"


@dataclass(frozen=True, slots=True)
class Relation:
    """The relation ``name`` from ``source`` to ``target``, which are names of entities."""

    source: str
    name: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A memory that messages suggest. Instants are aware, in UTC.

    ``valid_from`` and ``valid_to`` bound when it holds, as far as that was said. ``state`` (of a goal or an idea) is
    open, done or dropped. ``target`` is the id of the offered memory that ``action`` is about. ``message_ids`` are its
    sources. ``origin`` is a tool if none of these is a user's and one is, or may be, a tool's, so that it never becomes
    a rule; otherwise the agent, who wrote it down. ``cites`` are the memories that a summary or an insight draws on.
    """

    content: str
    memory_type: MemoryType = MemoryType.FACTS
    topic: str | None = None
    tags: tuple[str, ...] = ()
    importance: float = DEFAULT_IMPORTANCE
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    state: str | None = None
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()
    message_ids: tuple[str, ...] = ()
    origin: Origin = Origin.AGENT
    action: Action = Action.ADD
    target: str | None = None
    cites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """The candidates of a batch of messages. ``problems``: the parts of the model's answer that are unusable, and why.

    ``notes`` are for the periodic work that applies the result.
    """

    candidates: Sequence[Candidate]
    problems: Sequence[str] = field(default_factory=list[str])
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


_EXTRACTION: Final = TypeAdapter(Extraction)


def extraction_to_json(extraction: Extraction) -> dict[str, Any]:
    """``extraction`` as JSON data that every store can hold; numbers that are not finite become 0."""
    return _storable(_EXTRACTION.dump_python(extraction))


def extraction_from_json(stored: object) -> Extraction:
    """The extraction that `extraction_to_json` wrote."""
    return _EXTRACTION.validate_python(stored)


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _storable(part) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType] - values of any type
    if isinstance(value, list | tuple):
        return [_storable(part) for part in value]  # pyright: ignore[reportUnknownVariableType] - values of any type
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return 0.0
    return mended(value) if isinstance(value, str) else value
