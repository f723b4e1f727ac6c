"""Options that several commands share, and checks of what is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import typer

from inference_core.memory.types import MEMORY_CATEGORIES, MEMORY_TYPES, MemoryCategory, MemoryType

TYPES: Final = ", ".join(MEMORY_TYPES)
CATEGORIES: Final = ", ".join(MEMORY_CATEGORIES)
User = Annotated[str, typer.Option("--user", metavar="ID", help="Whose memories.")]
Users = Annotated[
    list[str] | None, typer.Option("--user", metavar="ID", help="Only this user's; may be given several times.")
]
Agent = Annotated[
    str | None, typer.Option("--agent", metavar="NAME", help="The agent whose own memories are read and written too.")
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The store (default: AGENT_MEMORY_STORE_URL).")]
Embeddings = Annotated[
    str | None, typer.Option("--embeddings", metavar="NAME", help="The model (default: AGENT_MEMORY_EMBEDDINGS).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Kind = Annotated[MemoryType | None, typer.Option("--type", metavar="TYPE", help=f"Only of this type: {TYPES}.")]
Category = Annotated[
    MemoryCategory | None, typer.Option("--category", metavar="CATEGORY", help=f"Only of this category: {CATEGORIES}.")
]
NewCategory = Annotated[
    MemoryCategory | None,
    typer.Option("--category", metavar="CATEGORY", help=f"One of {CATEGORIES}; by default the type's."),
]
Metadata = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="Data of your own, a JSON object.")]


def one_of(names: Sequence[str]) -> dict[str, Any]:
    """Arguments for an option or argument that accepts only ``names``."""

    def known(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return {"metavar": "|".join(names), "callback": known, "autocompletion": complete}


def json_object(text: str | None) -> dict[str, Any] | None:
    """The object that ``text`` holds; None for None. Raises BadParameter for anything else."""
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--metadata is not JSON: {error}") from error
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    raise typer.BadParameter('--metadata must be a JSON object such as {"source": "form"}')
