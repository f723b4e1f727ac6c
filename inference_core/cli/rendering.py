"""Memories as people read them, and as JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final

from inference_core.cli.output import console, draw, harmless, one_line

if TYPE_CHECKING:
    from inference_core.memory.document import MemoryStoreDocument
    from inference_core.memory.receipt import Receipt

_TOLD: Final = ("memory_type", "memory_category", "topic", "session_id", "agent_name")
_UNUSUAL: Final = (
    *("importance", "pinned", "tags", "valid_from", "valid_to", "expires_at"),
    *("supersedes", "superseded_by"),
)


def as_json(document: MemoryStoreDocument) -> dict[str, Any]:
    """All that is known of a memory, as JSON data; what does not apply is left out."""
    value = document.value
    ranking = {"score": document.score, "relevance": document.relevance, "explanation": document.explanation}
    return {
        "id": document.id,
        "version": document.version,
        "content": document.content,
        **{name: value.get(name) for name in _TOLD},
        "metadata": document.metadata,
        "created_at": document.created_at_iso,
        "updated_at": document.updated_at_iso,
        **{name: value[name] for name in _UNUSUAL if name in value},
        **{name: figure for name, figure in ranking.items() if figure is not None},
    }


def print_memories(documents: Iterable[MemoryStoreDocument], zone: tzinfo, first: int = 1) -> None:
    """Each memory with its number, its text and, below, what is known of it."""
    rows = [(document, _facts(document, zone)) for document in documents]
    _print_numbered([(document.content, facts) for document, facts in rows], first)


def print_left_out(left_out: Sequence[tuple[MemoryStoreDocument, str]]) -> None:
    """What recall left out, with the reasons."""
    from rich.text import Text  # noqa: PLC0415 - an extra

    if left_out:
        draw(Text("Left out", "bold"))
        _print_numbered(
            [(document.content, [reason, *_shares(document.explanation)]) for document, reason in left_out], 1
        )


def print_reasons(memories: Iterable[tuple[str, *tuple[str, ...]]]) -> None:
    """Contents with what is said of each."""
    _print_numbered([(content, facts) for content, *facts in memories], 1)


def told_as_json(receipt: Receipt, memory_id: str) -> dict[str, Any]:
    """What ``receipt`` says of one memory, as JSON data."""
    line = receipt.line_of(memory_id)
    names = ("id", "at", "thread_id", "run_id", "model", "agent_name", "status")
    said = {name: getattr(receipt, name) for name in names}
    return said | {"line": {name: one for name, one in asdict(line).items() if one not in (None, {})}} if line else said


def print_source(document: MemoryStoreDocument | None) -> None:
    """Who said it, in which thread and messages, through which tool."""
    source: Mapping[str, Any] = (document.value.get("source") if document else None) or {}
    texts = {name: value if isinstance(value, str) else ", ".join(map(str, value)) for name, value in source.items()}
    print_figures({f"source {name}": text for name, text in texts.items()})


def print_told(receipts: Iterable[Receipt], memory_id: str, zone: tzinfo) -> None:
    """A line a turn in which a model was told the memory, with its rank and the shares of its score."""
    for receipt in receipts:
        line = receipt.line_of(memory_id)
        if line is None:
            continue
        where = f"thread {receipt.thread_id}" if receipt.thread_id else "no thread"
        facts = [where, receipt.model or "unknown model", f"{line.place.value} {line.rank}, version {line.version}"]
        print_figures(
            {f"{receipt.at.astimezone(zone):%Y-%m-%d %H:%M:%S}": " · ".join([*facts, *_shares(line.signals)])}
        )


def print_figures(figures: Mapping[str, Any]) -> None:
    """Names and values, one pair a line."""
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415 - an extra

    grid = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        grid.add_row(Text(one_line(name.replace("_", " ")), "bold"), Text(one_line(str(value))))
    console().print(grid)


def stamp(moment: datetime | None, zone: tzinfo) -> str:
    """Date and time for somebody in ``zone``, to the minute."""
    if moment is None:
        return "unknown"
    try:
        return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"
    except OverflowError:
        return moment.isoformat(" ", "minutes")


def _print_numbered(rows: Sequence[tuple[str, Sequence[str]]], first: int) -> None:
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415 - an extra

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, style="bold cyan")
    grid.add_column(overflow="fold")
    for number, (content, facts) in enumerate(rows, first):
        grid.add_row(f"{number}.", Text(harmless(content)))
        for fact in facts:
            grid.add_row("", Text(one_line(fact), "dim"))
    draw(grid)


def _facts(document: MemoryStoreDocument, zone: tzinfo) -> list[str]:
    topic = f"about {document.topic}" if document.topic else ""
    relevance = "" if document.relevance is None else f"relevance {document.relevance:.0%}"
    told = [document.memory_type or "", stamp(document.created_at, zone), relevance, topic]
    return [" · ".join(filter(None, told)), f"id {document.id}", *_shares(document.explanation)]


def _shares(explanation: Mapping[str, float] | None) -> list[str]:
    if not explanation:
        return []
    parts = [
        f"{name} {share:+.3f}" for name, share in sorted(explanation.items(), key=lambda one: -abs(one[1])) if share
    ]
    return ["score " + ", ".join(parts)]
