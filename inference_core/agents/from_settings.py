"""Builds what settings name for agents and workers: chat models, extractors, capture and short-term memory."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

from langchain.agents.middleware.types import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langgraph.errors import GraphBubbleUp

from inference_core.agents.middleware.calls import AsyncHandler, Handler
from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.agents.middleware.short_term import ShortTermMemoryMiddleware
from inference_core.asking import named_model
from inference_core.errors import ConfigurationError, InferenceCoreError, ModelError
from inference_core.ingestion.periodic.insights import ModelInsights
from inference_core.ingestion.periodic.summaries import Summarizer
from inference_core.ingestion.periodic.tasks import PeriodicWork
from inference_core.ingestion.worker import Extractor
from inference_core.memory.redaction import told_error
from inference_core.outbox.outbox import Limits
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import AgentSettings, MemorySettings
from inference_core.short_term.strategies import Delete, FlushToLongTerm, Overflow, OverflowStrategy, Summarize, Trim

ShortTerm = Overflow | ShortTermMemoryMiddleware
_LOG = logging.getLogger(__name__)
_REFUSED: Final = (401, 403)
_CLIENT_FAULT: Final = 400
_SERVER_FAULT: Final = 500
_ADVICE: Final = {
    404: "is not known there: check AGENT_MODEL",
    429: "is busy or its quota is used up: wait, or set AGENT_MODEL_FALLBACKS",
}
_HOUR_S: Final = 3_600.0
_EXPLAINED: Final = "_inference_core_explained"
"""The attribute of a chat model's error that says what to do about it."""


def make_chat_model(settings: AgentSettings, model: str | BaseChatModel | None = None) -> BaseChatModel:
    """The chat model: ``model``, the model with that name, or if it is None the one that ``settings`` name.

    Raises ConfigurationError if there is none or it cannot be made, MissingExtra if its provider's package is missing.
    """
    chosen = settings.model if model is None else model
    if not chosen:
        raise ConfigurationError("No chat model: set AGENT_MODEL, for example openai:gpt-5-mini, or give a model")
    return named_model(chosen) if isinstance(chosen, str) else chosen


def make_chat_models(names: Sequence[str], **options: Any) -> list[BaseChatModel]:
    """The chat models with these names and LangChain's ``options``. Raises what `make_chat_model` raises."""
    return [named_model(name, **options) for name in names]


def guards(settings: AgentSettings) -> list[AgentMiddleware[Any, Any, Any]]:
    """The innermost middleware: the fallback models that ``settings`` name, and notes for `ModelErrors`.

    A fallback gets the same messages and tools. In a stream, what the first model said before it failed stays, and the
    fallback's answer follows as a separate message. Raises what `make_chat_model` raises.
    """
    fallbacks = make_chat_models(settings.model_fallbacks)
    if not fallbacks:
        return [FailedModels()]
    from langchain.agents.middleware import ModelFallbackMiddleware  # noqa: PLC0415 - only for those who have some

    class ConfiguredFallbacks(ModelFallbackMiddleware[Any, Any]):
        """Has its own class name, so that an agent may add LangChain's fallback middleware as well."""

    return [ConfiguredFallbacks(*fallbacks), FailedModels(are_logged=True)]


def outer_guards(name: str | BaseChatModel | None, model: BaseChatModel) -> list[AgentMiddleware[Any, Any, Any]]:
    """The outermost middleware: a chat model for each event loop if it has a ``name``, and ModelError for failures."""
    loops = [LoopModels(name, model)] if isinstance(name, str) else []
    return [*loops, ModelErrors()]


class LoopModels(AgentMiddleware[Any, Any, Any]):
    """Replaces ``model`` by a new chat model ``name`` in the runs of each event loop but the first.

    A client keeps connections that belong to the loop that opened them. In the next ``asyncio.run`` they would fail.
    """

    def __init__(self, name: str, model: BaseChatModel) -> None:
        super().__init__()
        self._named = name
        self._model = model
        self._first: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._models: WeakKeyDictionary[asyncio.AbstractEventLoop, BaseChatModel] = WeakKeyDictionary()

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        """Asks the model."""
        return handler(request)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> ModelResponse[Any]:
        """Asks the model of this loop."""
        loop = asyncio.get_running_loop()
        self._first = self._first or weakref.ref(loop)
        if request.model is self._model and loop is not self._first():
            if loop not in self._models:
                self._models[loop] = named_model(self._named, shares_connections=False)
            request = request.override(model=self._models[loop])
        return await handler(request)


class ModelErrors(AgentMiddleware[Any, Any, Any]):
    """Raises ModelError for the failures that `FailedModels` noted, with the original error as its cause.

    Outermost, so that retries, fallbacks and whatever else comes in between see the provider's own errors.
    """

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        """Asks the model. Raises ModelError."""
        with _explained():
            return handler(request)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> ModelResponse[Any]:
        """Like `wrap_model_call`."""
        with _explained():
            return await handler(request)


class FailedModels(AgentMiddleware[Any, Any, Any]):
    """Notes for `ModelErrors` which chat model raised an error.

    ``are_logged``: also logs each failure, since an agent that continues with another model hides it.
    """

    def __init__(self, *, are_logged: bool = False) -> None:
        super().__init__()
        self._are_logged = are_logged

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        """Asks the model."""
        with self._noted(request.model):
            return handler(request)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> ModelResponse[Any]:
        """Like `wrap_model_call`."""
        with self._noted(request.model):
            return await handler(request)

    @contextmanager
    def _noted(self, model: BaseChatModel) -> Generator[None]:
        try:
            yield
        except (GraphBubbleUp, InferenceCoreError):
            raise
        except Exception as error:  # each provider raises errors of its own; all go on as they are
            explained = explain(model, error)
            setattr(error, _EXPLAINED, explained)
            if self._are_logged:
                _LOG.warning("%s", explained)
            raise


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except Exception as error:  # each provider raises errors of its own
        explained: str | None = getattr(error, _EXPLAINED, None)
        if explained is None:  # not a model's
            raise
        raise ModelError(explained) from error


def explain(model: BaseChatModel, error: Exception) -> str:
    """What went wrong with ``model`` and what to do about it, in one line."""
    name = getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__
    key = next(iter(model.lc_secrets.values()), "")
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if not isinstance(status, int) or status < _CLIENT_FAULT:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            address = key.replace("_API_KEY", "_BASE_URL") or "its address"
            failure = f"cannot be reached: is its server running, and {address} right?"
        else:
            what = f"{type(error).__name__}: {told_error(error)}"
            failure = f"failed or answered nonsense; is that the right server? ({what})"
    elif status in _REFUSED:
        failure = f"refused the key ({status}): check {key or 'that of its provider'}"
    elif status in _ADVICE:
        failure = f"{_ADVICE[status]} ({status})"
    elif status >= _SERVER_FAULT:
        failure = f"failed at its server: try again, or set AGENT_MODEL_FALLBACKS ({status})"
    else:
        failure = f"refused the request ({status}): {told_error(error)}"
    return f"The chat model {name} {failure}"


def make_extractor(settings: MemorySettings) -> Extractor:
    """A ModelExtractor if ``settings`` name a model, else a RuleExtractor. Raises ConfigurationError, MissingExtra."""
    if settings.model:
        from inference_core.ingestion.extraction.extractor import ModelExtractor  # noqa: PLC0415 - only for those who have one

        return ModelExtractor(_models_of(settings))
    from inference_core.ingestion.extraction.rules import RuleExtractor  # noqa: PLC0415 - slow to import

    return RuleExtractor()


def _models_of(settings: MemorySettings) -> list[BaseChatModel]:
    options = {"temperature": settings.model_temperature, "max_tokens": settings.model_tokens}
    return make_chat_models(settings.model, **{name: one for name, one in options.items() if one is not None})


def make_periodic(settings: MemorySettings) -> PeriodicWork:
    """The periodic work that ``settings`` ask for. Raises ConfigurationError, MissingExtra.

    Without a language model, a summary consists of sentences of its session, and there are no insights.
    """
    summarizer: Summarizer | None = None
    if settings.summaries and settings.model:
        from inference_core.ingestion.periodic.summaries import ModelSummarizer  # noqa: PLC0415 - only for those who have one

        summarizer = ModelSummarizer(_models_of(settings))
    elif settings.summaries:
        from inference_core.ingestion.periodic.summaries import ExtractiveSummarizer  # noqa: PLC0415 - slow to import

        summarizer = ExtractiveSummarizer()
    insights = ModelInsights(_models_of(settings)) if settings.insights else None
    return PeriodicWork(summarizer, insights, settings.session_quiet, settings.insights_hours * _HOUR_S)


def make_capture(
    settings: MemorySettings, memory: AgentMemoryStoreService, user_id: str | UUID | None
) -> CaptureMiddleware:
    """The `CaptureMiddleware` that ``settings`` describe. Raises ConfigurationError, MissingExtra."""
    return CaptureMiddleware(
        make_extractor(settings),
        interval_s=settings.worker_interval,
        limits=limits_of(settings),
        periodic=make_periodic(settings),
        memory_service=memory,
        user_id=user_id,
    )


def limits_of(settings: MemorySettings) -> Limits:
    """The sizes of batches that ``settings`` name."""
    return Limits(batch_messages=settings.batch_messages, batch_tokens=settings.batch_tokens)


def named(settings: AgentSettings, *, recalls: bool) -> list[OverflowStrategy]:
    """The overflow strategies that ``settings`` name. With ``recalls``, a flush also recalls into the system prompt."""
    made = {
        "flush": lambda: FlushToLongTerm(into_system_prompt=recalls),
        "summarize": Summarize,
        "trim": Trim,
        "delete": Delete,
    }
    return [made[name]() for name in settings.short_term]
