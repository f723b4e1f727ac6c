"""The result of an agent's run: the response at its end, and steps and tokens while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata, add_usage

from inference_core.agents.streams import MEMORY_STATE_KEYS

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
