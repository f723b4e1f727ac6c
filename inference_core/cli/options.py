"""Options that several commands share, and checks of what is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from inference_core.memory.types import MEMORY_CATEGORIES, MEMORY_TYPES, MemoryCategory, MemoryType

TYPES: Final = ", ".join(MEMORY_TYPES)
CATEGORIES: Final = ", ".join(MEMORY_CATEGORIES)
User = Annotated[str, typer.Option("--user", metavar="ID", help="Whose memories.")]
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
    typer.Option("--category", metavar="CATEGORY", help=f"Of {CATEGORIES}; by default the type's."),
]
Metadata = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="Data of your own, a JSON object.")]


def one_of(names: Sequence[str]) -> dict[str, Any]:
    """What makes an option or an argument accept only ``names``."""

    def known(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    checks: dict[str, Callable[[str], Any]] = {"callback": known, "autocompletion": complete}
    return {"metavar": "|".join(names), **checks}


def json_object(text: str | None) -> dict[str, Any] | None:
    """The object that ``text`` holds; None for None. Raises BadParameter for anything else."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--metadata is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter('--metadata must be a JSON object such as {"source": "form"}')
    return found  # pyright: ignore[reportUnknownVariableType]
