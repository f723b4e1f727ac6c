"""What commands print: results to standard output, notes and progress to standard error, control characters escaped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inference_core.errors import InferenceCoreError
from inference_core.memory.record import WEAK_RELEVANCE
from inference_core.memory.text import ADDED, REMOVED, SAME, harmless, word_changes

if TYPE_CHECKING:
    from rich.console import Console

    from inference_core.memory.record import MemoryStoreDocument

_UNWRAPPED: Final = 100_000
"""Columns of a file or a pipe."""
FAILED: Final = 1
NOT_FOUND: Final = 3


class CommandFailed(InferenceCoreError):
    """What a command could not do, and its exit code: `FAILED`, or `NOT_FOUND` for an ID that does not exist."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def one_line(text: str) -> str:
    """``text`` as `harmless` gives it, with its lines joined by ⏎."""
    return harmless(" ⏎ ".join(text.splitlines()))


def console(*, stderr: bool = False) -> Console:
    """Standard output or error: in colour on a terminal, plain text elsewhere and with NO_COLOR."""
    options: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    made = Console(**options)
    return Console(color_system=None, **options) if made.no_color else made


def draw(thing: Any) -> None:
    """Prints ``thing``, which Rich can draw, to standard output; if output is plain, without trailing spaces.

    In a file or a pipe, no line is wrapped.
    """
    printer = console()
    if not is_plain():
        printer.print(thing)
        return
    if not printer.is_terminal:
        printer.width = _UNWRAPPED
    with printer.capture() as drawn:
        printer.print(thing)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def is_plain() -> bool:
    """Whether colours and boxes are off: with NO_COLOR, or if standard output is not a terminal."""
    made = console()
    return made.no_color or not made.is_terminal


def print_json(document: Any) -> None:
    """Prints one JSON document, which is all that a command with ``--json`` writes to standard output."""
    text = json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None, default=str)
    sys.stdout.write(harmless(text) + "\n")


def note(text: str, style: str = "dim") -> None:
    """Prints something besides the result on one line of standard error."""
    console(stderr=True).print(Text(one_line(text), style), soft_wrap=True)


def fail(text: str) -> None:
    """Prints on one line of standard error what went wrong and what to do."""
    note(f"Error: {text}", "red")


def print_id(name: str, text: str) -> None:
    """Prints an ID or a secret alone on standard output, where scripts take it, and ``text`` beside it."""
    sys.stdout.write(f"{harmless(name)}\n")
    sys.stdout.flush()
    if text:
        note(text)


@contextmanager
def working(what: str) -> Generator[None]:
    """Shows ``what`` on a terminal's standard error while the block runs."""
    with console(stderr=True).status(what):
        yield


@contextmanager
def progress_bar(what: str) -> Generator[Callable[[int, int], None]]:
    """A bar on the standard error of a terminal while the block runs, from the first step on; elsewhere nothing.

    Yields a function that takes how many are done and how many there are.
    """
    if not console(stderr=True).is_terminal:
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - slow

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)


def print_history(versions: Sequence[MemoryStoreDocument], zone: tzinfo) -> None:
    """Prints versions of a memory, the oldest first; below each, the words that changed since the one before."""
    rows: list[tuple[str, list[str]]] = []
    last = ""
    for memory in versions:
        when = stamp(memory.updated_at, zone)
        facts = [f"{memory.memory_type} · version {memory.version} · {when}", f"id {memory.id}"]
        rows.append((memory.content, [*([word_diff(last, memory.content)] if last else []), *facts]))
        last = memory.content
    print_numbered(rows)


def word_diff(old: str, new: str) -> str:
    """``new`` with the differences from ``old`` marked: removed words as [-old-], added words as {+new+}."""
    marks = {SAME: "{}", REMOVED: "[-{}-]", ADDED: "{{+{}+}}"}
    return " ".join(marks[kind].format(words) for kind, words in word_changes(old, new))


def print_memories(documents: Iterable[MemoryStoreDocument], zone: tzinfo, first: int = 1) -> None:
    """Prints memories, numbered from ``first``; below each its type, date, relevance, topic, space, id and score."""
    rows: list[tuple[str, list[str]]] = []
    for document in documents:
        match document.relevance:
            case None:
                relevance = ""
            case weak if weak < WEAK_RELEVANCE:
                relevance = "weak match"
            case share:
                relevance = f"relevance {share:.0%}"
        topic = f"about {document.topic}" if document.topic else ""
        space = f"space {document.space}" if document.space else ""
        facts = [document.memory_type or "", stamp(document.created_at, zone), relevance, topic, space]
        line = " · ".join(filter(None, facts))
        rows.append((document.content, [line, f"id {document.id}", *shares(document.explanation)]))
    print_numbered(rows, first)


def print_numbered(rows: Iterable[tuple[str, Sequence[str]]], first: int = 1) -> None:
    """Prints texts, numbered from ``first``, each with the lines that belong below it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, style="bold cyan")
    grid.add_column(overflow="fold")
    for number, (content, facts) in enumerate(rows, first):
        grid.add_row(f"{number}.", Text(harmless(content)))
        for fact in facts:
            grid.add_row("", Text(one_line(fact), "dim"))
    draw(grid)


def print_figures(figures: Mapping[str, Any]) -> None:
    """Prints names and values, one pair a line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        grid.add_row(Text(one_line(name.replace("_", " ")), "bold"), Text(one_line(str(value))))
    draw(grid)


def counted(count: int, one: str, several: str) -> str:
    """How many there are: "1 memory", "2 memories"."""
    return f"{count} {one if count == 1 else several}"


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


def confirm(question: str) -> None:
    """Asks ``question`` on standard error. Raises CommandFailed unless the answer on standard input is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:  # at the end of the input nobody has ended the line
        sys.stderr.write("\n")
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was deleted. Answer y to delete, or pass --yes to skip the question")
