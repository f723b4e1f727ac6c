"""``chat``: talk with an agent that remembers, and see what its memory does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inference_core.cli.opening import LOADING_S, memory_settings
from inference_core.cli.options import AsJson, Embeddings, Url, User
from inference_core.cli.output import console, fail, harmless, note, one_line, print_json, working
from inference_core.cli.turns import STREAM_MODES, Listener, Turn, follow
from inference_core.errors import InferenceCoreError

if TYPE_CHECKING:
    from inference_core.agents.service import AgentService

_PROMPT: Final = "you: "
_HELP: Final = "/memory shows what was recalled for the last answer, /quit leaves (Ctrl-D too)"


def chat(
    user: User,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent, with memories of its own.")] = "",
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The chat model (default: AGENT_MODEL).")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="Go on with this conversation, and keep it.")
    ] = None,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Talk with an agent that remembers you.

    Lines of standard input are what you say. /memory shows what was recalled for the last answer, /quit leaves.
    """
    turns: list[Turn] = []
    with _service(user, agent, model, thread, url, embeddings) as service:
        service.create_agent_sync(system_prompt=system)
        _wait_ready(service)
        is_person = sys.stdin.isatty() and not json
        if is_person:
            note(_HELP)
        for said in _lines(asks=is_person):
            if said == "/memory":
                _print_memories(turns[-1] if turns else None)
            elif said.startswith("/"):
                note(f"{said.split()[0]} is no command: {_HELP}")
            else:
                turns.append(_turn(service, said, quiet=json))
    if json:
        print_json({"turns": [asdict(turn) for turn in turns]})
    if not is_person and any(turn.error for turn in turns):
        raise typer.Exit(1)


def _service(
    user: str, agent: str, model: str | None, thread: str | None, url: str | None, embeddings: str | None
) -> AgentService:
    """The agent's service; the one place where the chat model comes from."""
    from inference_core.agents.service import AgentService  # noqa: PLC0415 - LangChain is slow to import
    from inference_core.settings import AgentSettings, read_settings  # noqa: PLC0415

    settings = memory_settings(url, embeddings)
    given: dict[str, Any] = {} if model is None else {"model": model}
    options: dict[str, Any] = {} if thread is not None else {"checkpointer": _forgetful()}
    return AgentService(
        agent,
        use_memory=True,
        use_checkpoints=True,
        user_id=user,
        session_id=thread,
        settings=settings,
        agent_settings=read_settings(AgentSettings, **given),
        **options,
    )


def _forgetful() -> Any:
    """Where a conversation without a name is kept: it ends with the program, what was remembered stays."""
    from langgraph.checkpoint.memory import InMemorySaver  # noqa: PLC0415 - LangGraph is slow to import

    return InMemorySaver()


def _wait_ready(service: AgentService) -> None:
    if service.memory is not None and (embedder := service.memory.scope.engine.embedder):
        with working("Loading the embedding model …"):
            embedder.wait_ready(LOADING_S)


def _lines(*, asks: bool) -> Iterator[str]:
    """What the user says, line by line, until /quit or the end of the input."""
    if asks:
        import readline  # noqa: F401, PLC0415 # pyright: ignore[reportUnusedImport] - arrow keys, for a person only
    while True:
        try:
            said = (input(_PROMPT) if asks else input()).strip()
        except EOFError:
            if asks:
                note("")
            return
        if said in ("/quit", "/exit"):
            return
        if said:
            yield said


def _turn(service: AgentService, said: str, *, quiet: bool) -> Turn:
    """One turn, shown while it happens; its error, if it failed, is said on one line and the conversation goes on."""
    turn = Turn(said)
    listener = Listener(_tell_recalled, lambda told: note(f"memory: {told}", "yellow"), _ignore if quiet else _say)
    try:
        follow(turn, service.stream(said, stream_mode=list(STREAM_MODES)), listener)
    except (InferenceCoreError, RecursionError) as error:  # LangGraph's limit of steps is a RecursionError
        turn.error = str(error) or type(error).__name__
    if turn.reply and not quiet:
        _say("\n")
    if turn.error:
        fail(turn.error)
    return turn


def _say(piece: str) -> None:
    sys.stdout.write(harmless(piece))
    sys.stdout.flush()


def _ignore(piece: str) -> None:
    """The reply is printed at the end."""


def _tell_recalled(turn: Turn) -> None:
    count = turn.memories_recalled
    reason = f" ({turn.memory_status_reason})" if turn.memory_status_reason else ""
    memories = "memory" if count == 1 else "memories"
    note(f"{turn.memory_status}: {count} {memories} in {turn.memory_recall_latency_ms:.0f} ms{reason}")


def _print_memories(turn: Turn | None) -> None:
    from rich.text import Text  # noqa: PLC0415 - an extra

    for memory in turn.memories if turn else ():
        console(stderr=True).print(Text(f"  {one_line(memory)}", "cyan"))
    if turn is None or not turn.memories:
        note("Nothing was recalled")
