"""``chat``: talk with an agent that remembers, and see what its memory does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

import typer
from langgraph.checkpoint.memory import InMemorySaver
from rich.text import Text

from inference_core.agents.middleware.calls import told_in
from inference_core.agents.service import AgentService
from inference_core.cli.options import Target, on_store, option, wait_ready
from inference_core.cli.output import console, fail, note, one_line, print_json
from inference_core.context.render import lines_in
from inference_core.errors import InferenceCoreError
from inference_core.memory.text import harmless
from inference_core.settings import AgentSettings, read_settings

_PROMPT: Final = "you: "
_HELP: Final = "/memory shows what was recalled for the last answer, /quit leaves (Ctrl-D too)"


@on_store("user", "agent", "url", "embeddings", "json")
def chat(
    target: Target,
    model: Annotated[str | None, option("--model NAME", "The chat model (default: AGENT_MODEL).")] = None,
    system: Annotated[str | None, option("--system TEXT", "The system prompt.")] = None,
    thread: Annotated[str | None, option("--thread ID", "Continue this conversation, and keep it.")] = None,
) -> None:
    """Talk with an agent that remembers you.

    Reads what you say from standard input, a line at a time. /memory shows what was recalled for the last answer,
    /quit leaves.
    """
    # Without --thread the conversation ends with the program; what was remembered stays.
    checkpoints: dict[str, Any] = {"checkpointer": InMemorySaver()} if thread is None else {}
    service = AgentService(
        target.agent or "",
        use_memory=True,
        use_checkpoints=True,
        user_id=target.user,
        session_id=thread,
        settings=target.settings(creates=True),
        agent_settings=read_settings(AgentSettings, **({} if model is None else {"model": model})),
        **checkpoints,
    )
    is_person = sys.stdin.isatty() and not target.json
    turns: list[Turn] = []
    with service:
        service.create_agent_sync(system_prompt=system)
        if service.memory is not None:
            wait_ready(service.memory.scope.engine.embedder)
        if is_person:
            note(_HELP)
        for said in _lines(asks=is_person):
            if said == "/memory":
                memories = turns[-1].memories if turns else []
                for memory in memories:
                    console(stderr=True).print(Text(f"  {one_line(memory)}", "cyan"))
                if not memories:
                    note("Nothing was recalled")
            elif said.startswith("/"):
                note(_HELP if said == "/help" else f"{said.split()[0]} is not a command: {_HELP}")
            else:
                turn = Turn(said, quiet=target.json)
                turn.follow(service.stream(said, stream_mode=["updates", "messages"]))
                turns.append(turn)
    if target.json:
        print_json({"turns": [turn.to_json() for turn in turns]})
    if not is_person and any(turn.error for turn in turns):
        raise typer.Exit(1)


def _lines(*, asks: bool) -> Iterator[str]:
    """What the user says, line by line, until /quit or the end of the input."""
    if asks:
        import readline  # noqa: F401, PLC0415 # pyright: ignore[reportUnusedImport] - gives input() arrow keys
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


@dataclass(slots=True)
class Turn:
    """What was said and answered, what was recalled for it, what the tools did; ``error`` if the turn failed.

    `follow` prints these as they come; with ``quiet``, all but the reply.
    """

    said: str
    quiet: bool
    reply: str = ""
    memory_status: str | None = None
    memory_status_reason: str | None = None
    memories_recalled: int = 0
    memory_recall_latency_ms: float = 0.0
    memories: list[str] = field(default_factory=list[str])
    tools: list[str] = field(default_factory=list[str])
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The turn as JSON data."""
        return {name: value for name, value in asdict(self).items() if name != "quiet"}

    def follow(self, stream: Iterable[tuple[str, Any]]) -> None:
        """Reads the agent's stream of updates and messages to its end. Prints errors, so that the chat continues."""
        try:
            self._read(stream)
        except (InferenceCoreError, RecursionError) as error:  # LangGraph's limit of steps is a RecursionError
            self.error = str(error) or type(error).__name__
        if self.reply and not self.quiet:
            sys.stdout.write("\n")
            sys.stdout.flush()
        if self.error:
            fail(self.error)

    def _read(self, stream: Iterable[tuple[str, Any]]) -> None:
        calls: dict[str, Mapping[str, Any]] = {}
        speaking: str | None = None
        for mode, part in stream:
            if mode == "messages":
                message = part[0]
                if message.type in ("ai", "AIMessageChunk") and message.text:
                    self._say(message.text, ends_line=message.id != speaking)
                    speaking = message.id
                continue
            for update in filter(None, part.values()):
                if update.get("memory_status"):
                    self._recall(update)
                for message in update.get("messages") or ():
                    calls |= {call["id"]: call for call in getattr(message, "tool_calls", ())}
                    if message.type == "tool":
                        call = calls.get(message.tool_call_id, {})
                        given: Mapping[str, Any] = call.get("args", {})
                        subject = given.get("content") or given.get("query") or given.get("memory_id") or ""
                        name = f"{call.get('name', message.name)}{f' “{subject}”' if subject else ''}"
                        self.tools.append(f"{name}: {message.text}")
                        self._say("", ends_line=True)
                        note(f"memory: {self.tools[-1]}", "yellow")

    def _say(self, piece: str, *, ends_line: bool) -> None:
        """Prints and keeps a piece of the reply; ``ends_line``: on a new line, unless it is the first."""
        if ends_line and self.reply and not self.reply.endswith("\n"):
            piece = f"\n{piece}"
        self.reply += piece
        if not self.quiet:
            sys.stdout.write(harmless(piece))
            sys.stdout.flush()

    def _recall(self, update: Mapping[str, Any]) -> None:
        self.memory_status = update["memory_status"]
        self.memory_status_reason = update.get("memory_status_reason")
        self.memories_recalled = count = update.get("memories_recalled", 0)
        self.memory_recall_latency_ms = round(update.get("memory_recall_latency_ms", 0.0), 1)
        self.memories = lines_in("\n".join(told_in(update)))
        reason = f" ({self.memory_status_reason})" if self.memory_status_reason else ""
        memories = "memory" if count == 1 else "memories"
        note(f"{self.memory_status}: {count} {memories} in {self.memory_recall_latency_ms:.0f} ms{reason}")
