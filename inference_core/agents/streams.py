"""What leaves an agent's run: its result, its steps and tokens while it runs, and a stream without what is private."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
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
        return [without_memory(entry) for entry in entries if not _is_private_pair(entry)]
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


_MODEL_NODE: Final = "model"
"""The name that `create_agent` gives the node that asks the agent's model."""
OnStep = Callable[[AnyMessage], object]
OnToken = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class AgentResponse:
    """The result of a run.

    ``text`` is the text of the agent's last message, "" without one. ``messages`` is the whole conversation, ``steps``
    the part after the user's last message. ``state`` is the agent's final state, with ``structured_response`` or
    ``__interrupt__`` if there is one.
    """

    text: str
    messages: list[AnyMessage] = field(repr=False)
    steps: list[AnyMessage]
    state: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> AgentResponse:
        """The response in a run's final state."""
        messages: list[AnyMessage] = list(state.get("messages") or ())
        asked = next((at for at in reversed(range(len(messages))) if isinstance(messages[at], HumanMessage)), -1)
        said = (message.text for message in reversed(messages) if isinstance(message, AIMessage))
        return cls(next(said, ""), messages, messages[asked + 1 :], state)

    @property
    def usage(self) -> UsageMetadata:
        """The tokens of this run's calls of the chat model, as far as the provider counts them."""
        counted = (step.usage_metadata for step in self.steps if isinstance(step, AIMessage))
        return reduce(add_usage, counted, UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0))

    @property
    def structured_response(self) -> Any:
        """The answer in the form that ``response_format`` asks for; None without one."""
        return self.state.get("structured_response")

    @property
    def memory_status(self) -> str | None:
        """A value of `MemoryStatus`; None for an agent without memory."""
        return self.state.get("memory_status")


def _ignore(_: object) -> None:
    """The callback of a caller who gave none."""


class RunObserver:
    """Calls ``on_step`` with each message that a run adds, and ``on_token`` with each piece of the agent's text."""

    modes: Final = ["updates", "messages", "values"]
    """The stream modes that `note` needs."""

    def __init__(self, on_step: OnStep | None, on_token: OnToken | None) -> None:
        self._on_step = on_step or _ignore
        self._on_token = on_token or _ignore
        self._seen: set[str | None] | None = None
        self._interrupts: Mapping[str, Any] = {}
        self._values: Mapping[str, Any] = {}

    def note(self, mode: str, part: Any) -> None:
        """Processes one part of the stream, which came in ``mode``."""
        if mode == "updates":
            if "__interrupt__" in part:
                self._interrupts = part
        elif mode == "messages":
            message, whence = part
            # What tools and other middleware ask models, such as for a summary, is not said to the user.
            is_agents = "ls_model_type" not in whence or whence.get("langgraph_node") == _MODEL_NODE
            if is_agents and isinstance(message, AIMessage) and message.text:
                self._on_token(message.text)
        else:
            messages: list[AnyMessage] = part.get("messages") or []
            if self._seen is not None:  # the first state is the input
                for message in messages:
                    if message.id not in self._seen:
                        self._on_step(message)
            self._seen = {message.id for message in messages}
            self._values = {name: value for name, value in part.items() if name not in MEMORY_STATE_KEYS}

    @property
    def state(self) -> Mapping[str, Any]:
        """The state as ``invoke`` would have returned it."""
        return {**self._values, **self._interrupts}
