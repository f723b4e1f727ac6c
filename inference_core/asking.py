"""The memory's own calls of a chat model, of which nothing reaches the user's stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig

from inference_core.effects import Effect, in_thread
from inference_core.errors import ConfigurationError, DeadlineExceeded, InferenceCoreError, ModelError, raised_as
from inference_core.memory.redaction import told_error

MODEL_TIMEOUT_S: Final = 30.0
_UNHEARD: Final[RunnableConfig] = {"callbacks": [], "tags": ["nostream"]}
"""Without the callbacks of the surrounding run, through which LangGraph and LangChain stream a model's output."""


def check_model(model: object) -> None:
    """Raises ConfigurationError if ``model`` is no chat model, but for example the name of one."""
    if not isinstance(model, Runnable):
        raise ConfigurationError(
            f"A model must be a chat model, such as init_chat_model('openai:gpt-5-mini'), not a {type(model).__name__}"
        )


async def ask(
    model: Runnable[Any, Any], messages: Sequence[BaseMessage], timeout: float | None = MODEL_TIMEOUT_S
) -> Any:
    """The answer of ``model`` to ``messages``. Raises ModelError, also after ``timeout`` seconds without an answer."""
    call = partial(model.invoke, list(messages), _UNHEARD)
    wait: Effect[Any] = replace(in_thread(call, timeout), native=partial(model.ainvoke, list(messages), _UNHEARD))
    with raised_as(
        lambda error: ModelError(f"The chat model failed: {type(error).__name__}: {told_error(error)}"),
        but=InferenceCoreError,
    ):
        try:
            answer: Any = await wait
        except DeadlineExceeded as error:
            raise ModelError("The chat model did not answer in time") from error
        return answer
