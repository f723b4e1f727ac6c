"""``chat``: talk with an agent that remembers, and see what its memory does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

import typer

from inference_core.cli.options import AsJson, Embeddings, Url, User, memory_settings, wait_ready
from inference_core.cli.output import console, fail, harmless, note, one_line, print_json
from inference_core.errors import InferenceCoreError

# One turn of a conversation: what an agent's stream shows of memory, tools and reply.

STREAM_MODES: Final = ("updates", "messages")


@dataclass(slots=True)
class Turn:
    """What was said and answered, what was recalled for it, what the tools did; ``error`` if the turn failed."""

    said: str
    reply: str = ""
    memory_status: str | None = None
    memory_status_reason: str | None = None
    memories_recalled: int = 0
    memory_recall_latency_ms: float = 0.0
    memories: list[str] = field(default_factory=list[str])
    tools: list[str] = field(default_factory=list[str])
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """Called while a turn happens: with the turn after recall, with each tool's answer and each piece of the reply."""

    recalled: Callable[[Turn], None]
    tool: Callable[[str], None]
    piece: Callable[[str], None]


def follow(turn: Turn, stream: Iterable[tuple[str, Any]], listener: Listener) -> None:
    """Collects what ``stream`` (of `STREAM_MODES`) gives into ``turn``, and passes it on at once."""
    calls: dict[str, Mapping[str, Any]] = {}
    speaking: str | None = None
    for mode, part in stream:
        if mode == "messages":
            message = part[0]
            if message.type in ("ai", "AIMessageChunk") and message.text:
                if message.id != speaking:
                    _end_line(turn, listener)
                speaking = message.id
                _say(turn, message.text, listener)
            continue
        for update in filter(None, part.values()):
            if update.get("memory_status"):
                _record_recall(turn, update)
                listener.recalled(turn)
            for message in update.get("messages") or ():
                calls |= {call["id"]: call for call in getattr(message, "tool_calls", ())}
                if message.type == "tool":
                    turn.tools.append(_tool_line(calls.get(message.tool_call_id, {}), message))
                    _end_line(turn, listener)
                    listener.tool(turn.tools[-1])


def _say(turn: Turn, piece: str, listener: Listener) -> None:
    turn.reply += piece
    listener.piece(piece)


def _end_line(turn: Turn, listener: Listener) -> None:
    if turn.reply and not turn.reply.endswith("\n"):
        _say(turn, "\n", listener)


def _record_recall(turn: Turn, update: Mapping[str, Any]) -> None:
    from inference_core.agents.middleware.memory import told_profile

    turn.memory_status = update["memory_status"]
    turn.memory_status_reason = update.get("memory_status_reason")
    turn.memories_recalled = update.get("memories_recalled", 0)
    turn.memory_recall_latency_ms = round(update.get("memory_recall_latency_ms", 0.0), 1)
    block = f"{told_profile(update)}\n{update.get('memory_context') or ''}"
    turn.memories = [line.removeprefix("  - ") for line in block.splitlines() if line.startswith("  - [")]


def _tool_line(call: Mapping[str, Any], message: Any) -> str:
    arguments: Mapping[str, Any] = call.get("args", {})
    subject = arguments.get("content") or arguments.get("query") or arguments.get("memory_id") or ""
    return f"{call.get('name', message.name)}{f' “{subject}”' if subject else ''}: {message.text}"


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
        str | None, typer.Option("--thread", metavar="ID", help="Continue this conversation, and keep it.")
    ] = None,
    url: Url = None,
    embeddings: Embeddings = None,
    json: AsJson = False,
) -> None:
    """Talk with an agent that remembers you.

    Reads what you say from standard input, a line at a time. /memory shows what was recalled for the last answer,
    /quit leaves.
    """
    from langgraph.checkpoint.memory import InMemorySaver

    from inference_core.agents.service import AgentService
    from inference_core.settings import AgentSettings, read_settings

    # Without --thread the conversation ends with the program; what was remembered stays.
    checkpoints: dict[str, Any] = {"checkpointer": InMemorySaver()} if thread is None else {}
    service = AgentService(
        agent,
        use_memory=True,
        use_checkpoints=True,
        user_id=user,
        session_id=thread,
        settings=memory_settings(url, embeddings),
        agent_settings=read_settings(AgentSettings, **({} if model is None else {"model": model})),
        **checkpoints,
    )
    is_person = sys.stdin.isatty() and not json
    turns: list[Turn] = []
    with service:
        service.create_agent_sync(system_prompt=system)
        if service.memory is not None:
            wait_ready(service.memory.scope.engine.embedder)
        if is_person:
            note(_HELP)
        for said in _lines(asks=is_person):
            if said == "/memory":
                _print_memories(turns[-1].memories if turns else [])
            elif said.startswith("/"):
                note(f"{said.split()[0]} is no command: {_HELP}")
            else:
                turns.append(_turn(service.stream, said, quiet=json))
    if json:
        print_json({"turns": [asdict(turn) for turn in turns]})
    if not is_person and any(turn.error for turn in turns):
        raise typer.Exit(1)


def _lines(*, asks: bool) -> Iterator[str]:
    """What the user says, line by line, until /quit or the end of the input."""
    if asks:
        import readline  # noqa: F401 # pyright: ignore[reportUnusedImport] - gives input() arrow keys
    while True:
        try:
            said = input(_PROMPT if asks else "").strip()
        except EOFError:
            if asks:
                note("")
            return
        if said in ("/quit", "/exit"):
            return
        if said:
            yield said


def _turn(stream: Callable[..., Any], said: str, *, quiet: bool) -> Turn:
    """One turn, shown while it happens. An error is printed on one line, and the conversation continues."""
    turn = Turn(said)
    say: Callable[[str], None] = (lambda _: None) if quiet else _say_chat
    try:
        follow(turn, stream(said, stream_mode=list(STREAM_MODES)), Listener(_print_recall, _print_tool, say))
    except (InferenceCoreError, RecursionError) as error:  # LangGraph's limit of steps is a RecursionError
        turn.error = str(error) or type(error).__name__
    if turn.reply:
        say("\n")
    if turn.error:
        fail(turn.error)
    return turn


def _say_chat(piece: str) -> None:
    sys.stdout.write(harmless(piece))
    sys.stdout.flush()


def _print_tool(answer: str) -> None:
    note(f"memory: {answer}", "yellow")


def _print_recall(turn: Turn) -> None:
    count = turn.memories_recalled
    reason = f" ({turn.memory_status_reason})" if turn.memory_status_reason else ""
    memories = "memory" if count == 1 else "memories"
    note(f"{turn.memory_status}: {count} {memories} in {turn.memory_recall_latency_ms:.0f} ms{reason}")


def _print_memories(memories: list[str]) -> None:
    from rich.text import Text

    for memory in memories:
        console(stderr=True).print(Text(f"  {one_line(memory)}", "cyan"))
    if not memories:
        note("Nothing was recalled")
