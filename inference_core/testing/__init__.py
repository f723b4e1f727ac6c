"""For tests, and examples without an API key: a scripted chat model, a frozen clock, a conformance suite for stores.

`StoreConformance`, which needs pytest, is imported when it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field, PrivateAttr, SkipValidation

from inference_core.clock import aware
from inference_core.lazy import lazy_exports

if TYPE_CHECKING:
    from inference_core.testing.conformance.runner import StoreConformance

__all__ = ["FrozenClock", "ScriptedChatModel", "StoreConformance", "Turn", "call_tool"]

__getattr__ = lazy_exports(__name__, {"StoreConformance": "inference_core.testing.conformance.runner"})

Turn = str | AIMessage | Exception | Callable[[list[BaseMessage]], str | AIMessage]
"""A reply: text, a message (`call_tool` makes one with a tool call), an error to raise, or a function that makes the
reply from the messages that the model was given."""


def call_tool(name: str, **arguments: Any) -> AIMessage:
    """A reply that calls the tool ``name`` with ``arguments``, under a new call id."""
    return AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": f"call_{uuid4().hex[:12]}"}])


class ScriptedChatModel(BaseChatModel):
    """Replies with the ``turns`` one after the other, then repeats the last one. Safe to call from any thread.

    ``requests`` holds the messages of every call, so that a test can check the prompt. ``record=False`` keeps none, for
    long runs.
    """

    turns: Sequence[SkipValidation[Turn]] = Field(min_length=1)
    record: bool = True
    requests: list[list[BaseMessage]] = Field(default_factory=list[list[BaseMessage]])
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _next: int = PrivateAttr(default=0)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedChatModel:
        """The model itself: the script decides which tools are called."""
        del tools, kwargs
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, run_manager, kwargs
        with self._lock:
            turn = self.turns[min(self._next, len(self.turns) - 1)]
            self._next += 1
            if self.record:
                self.requests.append(list(messages))
        if isinstance(turn, Exception):
            raise turn
        reply = turn if isinstance(turn, str | AIMessage) else turn(messages)
        message = AIMessage(content=reply) if isinstance(reply, str) else reply.model_copy(update={"id": None})
        return ChatResult(generations=[ChatGeneration(message=message)])


class FrozenClock:
    """A clock for `AgentMemoryStoreService(clock=…)` that stands at ``moment``; a naive one is in UTC.

    Not safe to move while other threads read it.
    """

    def __init__(self, moment: datetime = datetime(2026, 1, 15, 12, tzinfo=UTC)) -> None:
        self._moment = aware(moment)

    def now(self) -> datetime:
        """The instant at which the clock stands, in its time zone."""
        return self._moment

    def advance(self, step: timedelta) -> None:
        """Moves the clock by ``step``, which may be negative."""
        self._moment += step

    def set(self, moment: datetime) -> None:
        """Sets the clock to ``moment``; a naive one is in UTC."""
        self._moment = aware(moment)
