"""The memory's own calls of a chat model, of which nothing reaches the user's stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from langchain_core.messages import BaseMessage

from inference_core.effects import Effect, in_thread
from inference_core.errors import (
    ConfigurationError,
    DeadlineExceeded,
    InferenceCoreError,
    MissingExtra,
    ModelError,
    in_one_line,
    raised_as,
)
from inference_core.memory.redaction import told_error

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import Runnable, RunnableConfig

MODEL_TIMEOUT_S: Final = 30.0
_UNHEARD: Final[RunnableConfig] = {"callbacks": [], "tags": ["nostream"]}
"""Without the callbacks of the surrounding run, through which LangGraph and LangChain stream a model's output."""
_EXTRAS: Final = ("openai", "ollama")
_NAME: Final = re.compile(r"[a-z0-9_]+:\S+", re.ASCII)
_KEY_MISSING: Final = re.compile(r"api.?key|credential", re.IGNORECASE)


def chat_model(given: BaseChatModel | str) -> BaseChatModel:
    """The chat model ``given``, itself or by its name. Raises ConfigurationError for anything else, MissingExtra."""
    if isinstance(given, str):
        return named_model(given)
    from langchain_core.runnables import Runnable  # noqa: PLC0415 - it loads LangSmith, which takes long

    if not isinstance(given, Runnable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise ConfigurationError(
            "A model must be a chat model or the name of one, such as 'openai:gpt-5-mini', "
            f"not a {type(given).__name__}"
        )
    return given


def chat_models(given: BaseChatModel | str | Sequence[BaseChatModel | str]) -> list[BaseChatModel]:
    """The chat models ``given``, one or several. Raises what `chat_model` raises."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [chat_model(one) for one in several]


def named_model(name: str, *, shares_connections: bool = True, **options: Any) -> BaseChatModel:
    """The chat model ``name``, as ``provider:model``, with LangChain's ``options``.

    ``shares_connections``: with other models, so that it belongs to the event loop that opened them. Raises
    ConfigurationError if it cannot be made, MissingExtra if its provider's package is missing.
    """
    from langchain.chat_models import init_chat_model  # noqa: PLC0415 - slow to import, and needed only here

    provider = name.partition(":")[0]
    unknown = f"Unknown chat model {name!r}: use provider:model, for example openai:gpt-5-mini"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(unknown)
    if provider == "ollama" and "max_tokens" in options:
        options["num_predict"] = options.pop("max_tokens")
    if provider == "openai" and not shares_connections:  # LangChain shares one client among all models
        from openai import DefaultAsyncHttpxClient  # noqa: PLC0415 - an extra

        options["http_async_client"] = DefaultAsyncHttpxClient()

    def refusal(error: Exception) -> ConfigurationError:
        if isinstance(error, ImportError):
            if provider in _EXTRAS:
                return MissingExtra(f"The chat model {name!r}", provider)
            return ConfigurationError(f"The chat model {name!r} needs a package: {in_one_line(error)}")
        if "model provider" in str(error):
            return ConfigurationError(unknown)
        if provider == "openai" and _KEY_MISSING.search(str(error)):
            return ConfigurationError(
                f"The chat model {name!r} needs a key: set OPENAI_API_KEY. "
                "For a compatible server set OPENAI_BASE_URL too, and whatever key it wants"
            )
        return ConfigurationError(f"The chat model {name!r} cannot be made: {in_one_line(error)}")

    with raised_as(refusal):
        return cast("BaseChatModel", init_chat_model(name, **options))


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
