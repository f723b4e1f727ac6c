"""An agent that remembers, in two processes; then recall from a conversation of several months: ``sh scripts/demo``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import sessions
import typer
from months import EXAMPLE, Answer, quiz, remember
from rich.box import ROUNDED
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from sessions import FIRST, SECOND, Session

from inference_core import AgentMemoryStoreService
from inference_core.cli.app import run
from inference_core.cli.options import LOADING_S, Target, on_store
from inference_core.cli.output import (
    console,
    draw,
    harmless,
    is_plain,
    note,
    one_line,
    print_json,
    progress_bar,
    working,
)
from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.formats import load_locomo
from inference_core.stores.factory import open_configured_store

_STEPS: Final = {"calls": ("agent calls ", "yellow"), "tool": ("tool says   ", "yellow"), "reply": ("Agent: ", "bold")}
_SHOWN: Final = 60
_DAYS: Final = {FIRST: "Monday: Ada tells the agent about herself", SECOND: "Tuesday: a new process, a new thread"}


@on_store("json")
def demo(
    target: Target,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="A conversation of yours, in LoCoMo's format.")
    ] = None,
) -> None:
    """Show an agent that remembers.

    Needs no key: a scripted stand-in replies, and the memory is real. With AGENT_MODEL set, that model talks.
    """
    conversations = load_locomo(data or EXAMPLE)
    talks: list[Session] = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/memory.db"
        for name, title in _DAYS.items():
            with working("Talking …"):
                talks.append(sessions.in_a_new_process(name, url))
            if not target.json:
                _print_session(title, talks[-1])
        answers = _months(url, conversations, shows=not target.json)
    if target.json:
        found = {name: [asdict(answer) for answer in answered] for name, answered in answers.items()}
        print_json({"sessions": [asdict(session) for session in talks], "conversations": found})


def _months(url: str, conversations: Sequence[Conversation], *, shows: bool) -> dict[str, list[Answer]]:
    """Remembers each conversation as its own user's, and asks its questions."""
    answers: dict[str, list[Answer]] = {}
    settings = Target(url=url).settings(creates=True)
    if shows:
        _print_title("A conversation of several months")
    with open_configured_store(settings, encryption_key=None) as store:
        if not store.wait_ready(LOADING_S):
            note("No local embedding model: recall is by words only (extra: local)", "yellow")
        service = AgentMemoryStoreService(store)
        for conversation in conversations:
            with progress_bar(f"Remembering {one_line(conversation.id)}") as advance:
                seconds = remember(service, conversation, advance)
            note(f"{len(conversation.turns)} memories in {seconds:.1f} s")
        for conversation in conversations:
            answers[conversation.id] = quiz(service, conversation)
            if shows:
                _print_answers(conversation, answers[conversation.id])
    return answers


def _print_title(title: str) -> None:
    if is_plain():
        draw(f"\n{title}\n")
    else:
        console().rule(title)


def _print_session(title: str, session: Session) -> None:

    _print_title(title)
    stand_in = "none configured (AGENT_MODEL); a scripted stand-in replies, the memory is real"
    draw(Text(f"Model: {one_line(session.model or stand_in)}", "dim"))
    draw(Text.assemble(("Ada: ", "bold green"), harmless(session.said)))
    if session.prompt_block:
        title, block = "the memory block that reached the model", Text(harmless(session.prompt_block))
        if is_plain():
            draw(f"{title}:")
        draw(block if is_plain() else Panel(block, title=title, border_style="cyan"))
    for kind, text in session.steps:
        label, style = _STEPS[kind]
        draw(Text.assemble((label, style), harmless(text)))
    draw(Text(f"process {session.process}, memory status: {session.memory_status}\n", "dim"))


def _print_answers(conversation: Conversation, answers: Sequence[Answer]) -> None:

    options: dict[str, Any] = {"box": None} if is_plain() else {"box": ROUNDED, "show_lines": True}
    name = Text(f"Recall from {len(conversation.turns)} turns of “{one_line(conversation.id)}”")
    table = Table(title=name, **options)
    for heading in ("question", "best hit", "evidence in top 10"):
        table.add_column(heading)
    table.add_column("ms", justify="right")
    for one in answers:
        best = one.best if len(one.best) <= _SHOWN else f"{one.best[:_SHOWN]}…"
        cells = (one.question, best, f"{one.found} of {one.evidence}", f"{one.ms:.0f}")
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    draw(table)
    whole = sum(one.found == one.evidence for one in answers)
    draw(Text(f"All evidence found for {whole} of {len(answers)} questions."))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demonstration; its exit code."""
    application = typer.Typer(add_completion=False)
    application.command()(demo)
    return run(arguments, application, "sh scripts/demo")


if __name__ == "__main__":
    sys.exit(main())
