"""``demo``: an agent that remembers, in two processes; then recall from a conversation of several months."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inference_core.cli.opening import LOADING_S, memory_settings
from inference_core.cli.options import AsJson
from inference_core.cli.output import console, draw, harmless, is_plain, note, one_line, print_json, working
from inference_core.cli.progress import progress_bar

if TYPE_CHECKING:
    from inference_core.demo.months import Answer
    from inference_core.demo.sessions import Session
    from inference_core.evaluation.conversations import Conversation

_STEPS: Final = {"calls": ("agent calls ", "yellow"), "tool": ("tool says   ", "yellow"), "reply": ("Agent: ", "bold")}
_SHOWN: Final = 60
_DAYS: Final = {"first": "Monday: Ada tells the agent about herself", "second": "Tuesday: a new process, a new thread"}


def demo(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="A conversation of yours, in LoCoMo's format.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show an agent that remembers.

    Needs no key: a scripted stand-in replies, and the memory is real. With AGENT_MODEL set, that model talks.
    """
    from inference_core.demo.months import EXAMPLE  # noqa: PLC0415 - stores and LangChain are slow to import
    from inference_core.demo.sessions import in_a_new_process  # noqa: PLC0415
    from inference_core.evaluation.locomo import load_locomo  # noqa: PLC0415

    conversations = load_locomo(data or EXAMPLE)
    sessions: list[Session] = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/memory.db"
        for name, title in _DAYS.items():
            with working("Talking …"):
                sessions.append(in_a_new_process(name, url))
            if not json:
                _print_session(title, sessions[-1])
        answers = _months(url, conversations, shows=not json)
    if json:
        told = {name: [asdict(answer) for answer in found] for name, found in answers.items()}
        print_json({"sessions": [asdict(session) for session in sessions], "conversations": told})


def _months(url: str, conversations: Sequence[Conversation], *, shows: bool) -> dict[str, list[Answer]]:
    """Remembers each conversation as its own user's, and asks its questions."""
    from inference_core.demo.months import quiz, remember  # noqa: PLC0415 - stores are slow to import
    from inference_core.services.agent_memory_service import AgentMemoryStoreService  # noqa: PLC0415
    from inference_core.stores.factory import open_configured_store  # noqa: PLC0415

    answers: dict[str, list[Answer]] = {}
    if shows:
        _print_title("A conversation of several months")
    with open_configured_store(memory_settings(url), encryption_key=None) as store:
        if not store.wait_ready(LOADING_S):
            note("No local embedding model: recall is by words alone (extra: local)", "yellow")
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
    from rich.text import Text  # noqa: PLC0415 - an extra

    _print_title(title)
    stand_in = "none configured (AGENT_MODEL); a scripted stand-in replies, the memory is real"
    draw(Text(f"Model: {one_line(session.model or stand_in)}", "dim"))
    draw(Text.assemble(("Ada: ", "bold green"), harmless(session.said)))
    if session.prompt_block:
        _print_block(session.prompt_block)
    for kind, text in session.steps:
        label, style = _STEPS[kind]
        draw(Text.assemble((label, style), harmless(text)))
    draw(Text(f"process {session.process}, memory status: {session.memory_status}\n", "dim"))


def _print_block(block: str) -> None:
    from rich.panel import Panel  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415 - an extra

    title = "the memory block that reached the model"
    text = Text(harmless(block))
    if is_plain():
        draw(f"{title}:")
        draw(text)
    else:
        draw(Panel(text, title=title, border_style="cyan"))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _print_answers(conversation: Conversation, answers: Sequence[Answer]) -> None:
    from rich.box import ROUNDED  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415 - an extra
    from rich.text import Text  # noqa: PLC0415 - an extra

    options: dict[str, Any] = {"box": None} if is_plain() else {"box": ROUNDED, "show_lines": True}
    name = Text(f"Recall from {len(conversation.turns)} turns of “{one_line(conversation.id)}”")
    table = Table(title=name, **options)
    for heading, justify in (
        ("question", "left"),
        ("best hit", "left"),
        ("evidence in top 10", "left"),
        ("ms", "right"),
    ):
        table.add_column(heading, justify=justify)  # pyright: ignore[reportArgumentType]
    for one in answers:
        cells = (one.question, _cut(one.best), f"{one.found} of {one.evidence}", f"{one.ms:.0f}")
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    draw(table)
    whole = sum(one.found == one.evidence for one in answers)
    draw(Text(f"All evidence found for {whole} of {len(answers)} questions."))
