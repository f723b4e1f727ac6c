"""Memory types, their CoALA categories, and their descriptions for the model.

Source: Sumers et al., Cognitive Architectures for Language Agents, arXiv 2309.02427.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from inference_core.errors import InvalidCategory, InvalidMemoryType
from inference_core.memory.secrets import quoted
from inference_core.memory.text import did_you_mean


class MemoryCategory(str, Enum):
    """The three kinds of long-term memory."""

    SEMANTIC = "semantic"
    EPISODIC = "episodic"
    PROCEDURAL = "procedural"


class MemoryType(str, Enum):
    """The type of a memory, such as a fact or an instruction; each type belongs to one category."""

    PREFERENCES = "preferences"
    FACTS = "facts"
    GOALS = "goals"
    GENERAL = "general"
    CONTEXT = "context"
    SESSION_SUMMARY = "session_summary"
    INTERACTION = "interaction"
    INSTRUCTION = "instructions"
    WORKFLOW = "workflow"
    SKILL = "skill"


IDEA: Final = "idea"
"""The tag of short-term ideas, which are goals or general memories."""


class MemoryTypeDescription(str, Enum):
    """What each type is for: a sentence for tool descriptions, then examples."""

    PREFERENCES = (
        "How the user likes things: style, format, tastes and habits.\n"
        "Examples: prefers short answers; vegetarian; window seats."
    )
    FACTS = (
        "Stable facts about the user and their world: people, places, work, dates.\n"
        "Examples: lives in Warsaw; daughter is called Ida; works as a nurse."
    )
    GOALS = (
        "What the user wants to reach.\n"
        "Examples: run a marathon in October; finish the thesis by June; save for a flat."
    )
    GENERAL = (
        "Anything worth keeping that fits no other type.\n"
        "Examples: asked twice about tide tables; mentioned a favourite café."
    )
    CONTEXT = (
        "The user's current circumstances, which will pass.\n"
        "Examples: is travelling until Friday; is on call this week."
    )
    SESSION_SUMMARY = (
        "What a finished conversation was about and what was decided.\n"
        "Examples: discussed the roadmap and chose the API redesign first."
    )
    INTERACTION = (
        "A single event between user and agent that is worth remembering.\n"
        "Examples: the user corrected the currency in the report."
    )
    INSTRUCTION = (
        "A standing rule for how to do tasks for this user.\n"
        "Examples: always run the tests before committing; never book night flights."
    )
    WORKFLOW = (
        "A process of several steps that the user follows.\n"
        "Examples: invoices go to Ana for approval and then to accounting."
    )
    SKILL = (
        "Something learned about how to solve a kind of task well.\nExamples: the export works only in batches of 500."
    )


_TYPES_BY_CATEGORY: Final = {
    MemoryCategory.SEMANTIC: (MemoryType.PREFERENCES, MemoryType.FACTS, MemoryType.GOALS, MemoryType.GENERAL),
    MemoryCategory.EPISODIC: (MemoryType.CONTEXT, MemoryType.SESSION_SUMMARY, MemoryType.INTERACTION),
    MemoryCategory.PROCEDURAL: (MemoryType.INSTRUCTION, MemoryType.WORKFLOW, MemoryType.SKILL),
}
GUIDING_TYPES: Final = frozenset(
    [MemoryType.PREFERENCES.value, *(kind.value for kind in _TYPES_BY_CATEGORY[MemoryCategory.PROCEDURAL])]
)
"""The types that guide what an agent does: its procedures, and how the user likes things."""
MEMORY_CATEGORIES: Final[list[str]] = [category.value for category in MemoryCategory]
MEMORY_TYPES: Final[list[str]] = [kind.value for kind in MemoryType]
MEMORY_TYPE_TO_CATEGORY: Final[dict[str, MemoryCategory]] = {
    kind.value: category for category, kinds in _TYPES_BY_CATEGORY.items() for kind in kinds
}
SINGULAR_TYPES: Final[dict[str, str]] = {
    "preference": "preferences",
    "fact": "facts",
    "goal": "goals",
    "instruction": "instructions",
}
"""Type names in data from before the CoALA categories, and what they are called now."""


def type_meant(given: object) -> object:
    """The name of the type that a text means, in any case and number; unchanged what means none, or is no text."""
    if not isinstance(given, str):
        return given
    name = "_".join(given.casefold().replace("-", " ").split())
    singular = name if name.endswith("ss") else name.removesuffix("s")
    names = (name, f"{name}s", singular, f"{name.removesuffix('ies')}y")
    return next((one for one in names if one in MEMORY_TYPE_TO_CATEGORY), given)


def category_meant(given: object) -> object:
    """The name of the category that a text means, in any case; unchanged what means none, or is no text."""
    name = given.strip().casefold() if isinstance(given, str) else ""
    return name if name in MEMORY_CATEGORIES else given


def _plain(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def validate_memory_type(value: str | MemoryType) -> str:
    """The type's name; raises InvalidMemoryType for any other value."""
    name = _plain(value)
    if name not in MEMORY_TYPE_TO_CATEGORY:
        known = f"{', '.join(MEMORY_TYPES)}{did_you_mean(name, MEMORY_TYPES)}"
        raise InvalidMemoryType(f"Invalid memory_type {quoted(name)}. Must be one of: {known}")
    return name


def validate_memory_category(value: str | MemoryCategory) -> str:
    """The category's name; raises InvalidCategory for any other value."""
    name = _plain(value)
    if name not in MEMORY_CATEGORIES:
        known = f"{', '.join(MEMORY_CATEGORIES)}{did_you_mean(name, MEMORY_CATEGORIES)}"
        raise InvalidCategory(f"Invalid memory_category {quoted(name)}. Must be one of: {known}")
    return name


def get_category_for_type(memory_type: str) -> MemoryCategory:
    """The category that a type belongs to; ``SEMANTIC`` for an unknown type."""
    return MEMORY_TYPE_TO_CATEGORY.get(_plain(memory_type), MemoryCategory.SEMANTIC)


def get_types_for_category(category: MemoryCategory) -> list[str]:
    """The names of the types of ``category``."""
    return [kind.value for kind in _TYPES_BY_CATEGORY[MemoryCategory(validate_memory_category(category))]]


def get_memory_type_literal() -> Any:
    """``typing.Literal`` of all type names, for schemas."""
    return Literal[*MEMORY_TYPES]  # pyright: ignore[reportInvalidTypeForm, reportInvalidTypeArguments, reportUnknownVariableType] - made at run time


def get_memory_category_literal() -> Any:
    """``typing.Literal`` of all category names, for schemas."""
    return Literal[*MEMORY_CATEGORIES]  # pyright: ignore[reportInvalidTypeForm, reportInvalidTypeArguments, reportUnknownVariableType] - made at run time


def format_memory_types_for_description() -> str:
    """The types by category, one line each, for a tool's description."""
    lines = ["Memory types by category:"]
    for category, kinds in _TYPES_BY_CATEGORY.items():
        lines.append(f"\n  [{category.name}]")
        for kind in kinds:
            sentence = MemoryTypeDescription[kind.name].value.split(".", 1)[0]
            lines.append(f"    - {kind.value}: {sentence}.")
    return "\n".join(lines)
