"""One turn of a conversation: what an agent's stream shows of memory, tools and reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
