"""Memories as people read them, and as JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final

from inference_core.cli.output import console, draw, harmless, one_line

if TYPE_CHECKING:
    from inference_core.memory.document import MemoryStoreDocument

_ALWAYS: Final = ("memory_type", "memory_category", "topic", "session_id", "agent_name")
_IF_SET: Final = (
    *("importance", "pinned", "tags", "valid_from", "valid_to", "expires_at"),
    *("supersedes", "superseded_by"),
)


def as_json(document: MemoryStoreDocument) -> dict[str, Any]:
    """A memory as JSON data, without what does not apply."""
    value = document.value
    ranking = {"score": document.score, "relevance": document.relevance, "explanation": document.explanation}
    return {
        "id": document.id,
        "version": document.version,
        "content": document.content,
        **{name: value.get(name) for name in _ALWAYS},
        "metadata": document.metadata,
        "created_at": document.created_at_iso,
        "updated_at": document.updated_at_iso,
        **{name: value[name] for name in _IF_SET if name in value},
        **{name: figure for name, figure in ranking.items() if figure is not None},
    }


def print_memories(documents: Iterable[MemoryStoreDocument], zone: tzinfo, first: int = 1) -> None:
    """Each memory with its number and text; below, its type, date, relevance, topic, id and score."""
    rows: list[tuple[str, list[str]]] = []
    for document in documents:
        relevance = "" if document.relevance is None else f"relevance {document.relevance:.0%}"
        topic = f"about {document.topic}" if document.topic else ""
        facts = [document.memory_type or "", stamp(document.created_at, zone), relevance, topic]
        line = " · ".join(filter(None, facts))
        rows.append((document.content, [line, f"id {document.id}", *shares(document.explanation)]))
    print_numbered(rows, first)


def print_numbered(rows: Iterable[tuple[str, Sequence[str]]], first: int = 1) -> None:
    """Texts with their numbers, each with the lines that belong to it."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, style="bold cyan")
    grid.add_column(overflow="fold")
    for number, (content, facts) in enumerate(rows, first):
        grid.add_row(f"{number}.", Text(harmless(content)))
        for fact in facts:
            grid.add_row("", Text(one_line(fact), "dim"))
    draw(grid)


def print_figures(figures: Mapping[str, Any]) -> None:
    """Names and values, one pair a line."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        grid.add_row(Text(one_line(name.replace("_", " ")), "bold"), Text(one_line(str(value))))
    console().print(grid)


def shares(explanation: Mapping[str, float] | None) -> list[str]:
    """A line with the shares of a score, the largest first; none without an explanation."""
    if not explanation:
        return []
    ordered = sorted(explanation.items(), key=lambda one: -abs(one[1]))
    return ["score " + ", ".join(f"{name} {share:+.3f}" for name, share in ordered if share)]


def stamp(moment: datetime | None, zone: tzinfo) -> str:
    """Date and time in ``zone``, to the minute."""
    if moment is None:
        return "unknown"
    try:
        return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"
    except OverflowError:
        return moment.isoformat(" ", "minutes")
