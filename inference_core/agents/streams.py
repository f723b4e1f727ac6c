"""What must not leave with a stream of an agent's state, and how to remove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from langchain_core.messages import BaseMessage
from langgraph.types import Command, Send

MEMORY_STATE_KEYS: Final = frozenset(
    {
        "captured",
        "memory_asked",
        "memory_context",
        "memory_heard",
        "memory_others",
        "memory_outside",
        "memory_owner",
        "memory_profile",
        "memory_review",
        "short_term_owner",
        "short_term_recalled",
        "short_term_user",
    }
)
"""The keys of an agent's state that the middleware of this package keep to themselves: texts of memories, and marks."""
_IDENTITY: Final = frozenset({"user_id", "langgraph_auth_user", "langgraph_auth_user_id"})
"""Keys of a run's configuration that name its user."""
_CONFIGURATIONS: Final = ("configurable", "metadata")


def without_memory(chunk: Any) -> Any:
    """``chunk`` of a stream without memories and user ids; ``chunk`` itself is not changed.

    It takes what ``stream`` and ``astream`` yield in any mode, with or without mode and namespace in front, what
    ``astream_events`` yields, and a state. At any depth it removes `MEMORY_STATE_KEYS`, and from a run's configuration
    the user; from events also what models and chains are given, as a prompt holds memories. Messages stay as they are,
    with what tools have answered, and so do interrupts.
    """
    if isinstance(chunk, Mapping):
        fields = cast("Mapping[Any, Any]", chunk)
        return _event(fields) if "event" in fields and "data" in fields else _fields(fields)
    if isinstance(chunk, list | tuple):
        return _sequence(cast("Sequence[Any]", chunk))
    if isinstance(chunk, Command):
        command: Any = cast("Any", chunk)
        return replace(command, update=without_memory(command.update), goto=without_memory(command.goto))
    if isinstance(chunk, Send):
        return Send(chunk.node, without_memory(chunk.arg))
    return chunk


def _fields(fields: Mapping[Any, Any], *, is_configuration: bool = False) -> dict[Any, Any]:
    return {
        name: _fields(cast("Mapping[Any, Any]", value), is_configuration=True)
        if name in _CONFIGURATIONS and isinstance(value, Mapping)
        else without_memory(value)
        for name, value in fields.items()
        if not (_is_private(name, value) or (is_configuration and name in _IDENTITY))
    }


def _event(event: Mapping[Any, Any]) -> dict[Any, Any]:
    """An event of ``astream_events``; a tool's keeps what the tool was asked."""
    shown = _fields(event)
    if not str(event["event"]).startswith("on_tool") and isinstance(shown["data"], dict):
        shown["data"].pop("input", None)
    return shown


def _sequence(entries: Sequence[Any]) -> Any:
    """A list or tuple: a chunk behind its mode, a message before its metadata, names with values, or any entries."""
    if isinstance(entries, list):
        return [without_memory(one) for one in entries if not _is_private_pair(one)]
    match entries:
        case (BaseMessage() as message, dict()):
            return message, _fields(entries[1], is_configuration=True)
        case _:
            make = getattr(type(entries), "_make", tuple)  # a named tuple stays one
            return make(map(without_memory, entries))


def _is_private_pair(entry: Any) -> bool:
    match entry:
        case (str() as name, value):
            return _is_private(name, value)
        case _:
            return False


def _is_private(name: Any, value: Any) -> bool:
    # The one name that others may use as well is known by its fields.
    is_ours = name != "captured" or (isinstance(value, Mapping) and {"user", "id"} <= value.keys())
    return name in MEMORY_STATE_KEYS and is_ours
