"""CaptureMiddleware: puts what was said into the outbox, from which a worker makes memories off the reply path."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
)
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Command

from inference_core.agents.binding import BindingOptions, MemoryBinding, with_zone
from inference_core.agents.identity import UserSource, current_config, field_of
from inference_core.agents.middleware.calls import AsyncHandler, Handler
from inference_core.blocks.conversation import NO_THREAD
from inference_core.clock import Clock
from inference_core.drivers import Plan, arun, run
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.errors import ConfigurationError, IdentityError, InferenceCoreError, InvalidInput
from inference_core.ingestion.messages import Message, Role
from inference_core.ingestion.outbox import Limits, Outbox, Partition
from inference_core.ingestion.pipeline import Extractor, Pipeline
from inference_core.ingestion.worker import INTERVAL_S, Worker
from inference_core.services.operations.scope import MemoryScope
from inference_core.short_term.tokens import count_tokens
from inference_core.short_term.window import Window, is_said_by_user
from inference_core.stores.factory import engine_of

if TYPE_CHECKING:
    from inference_core.stores.engine import StoreEngine

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 2.0
_CHECKPOINTER = "__pregel_checkpointer"
"""LangGraph's name, in a run's configuration, of what keeps its threads."""


class CaptureState(AgentState[Any]):
    """What the middleware adds to the agent's state: for whom it captures ("": nobody), and what it captured last."""

    captured: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]


class CaptureMiddleware(AgentMiddleware[CaptureState, Any, Any]):
    """Captures each message of user and assistant once, at the end of a run, with one durable commit.

    Messages of runs that failed or were interrupted are captured with the next run of their thread, before the model is
    asked, so that none leaves the conversation's window before; stands before `ShortTermMemoryMiddleware`. What others
    said in a thread is not captured for the user who goes on with it. ``extractor`` makes
    memories of them, in a worker of this process unless ``works`` is False: then `inference-core worker` does. The
    outbox lies in the agent's store; for a store that is not ours ``outbox`` names another, such as
    ``open_store("sqlite:///outbox.db")``. ``dispatch`` is called with the user and agent whose messages wait, as
    `Dispatcher.dispatch` calls a worker; if it fails, workers look by themselves later. Capture never breaks a run:
    what fails is logged, and captured later. Raises ConfigurationError in the first run if there is no outbox to use.
    """

    state_schema = CaptureState

    def __init__(
        self,
        extractor: Extractor,
        *,
        outbox: BaseStore | None = None,
        works: bool = True,
        interval_s: float = INTERVAL_S,
        limits: Limits | None = None,
        dispatch: Callable[[Partition], object] | None = None,
        memory_service: Any = None,
        user_id: UserSource = None,
        agent_name: str | None = None,
        agent_scope_enabled: bool = True,
        embeddings: EmbeddingsSpec = None,
        timezone: str | tzinfo = UTC,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        options = BindingOptions(
            agent_name=agent_name,
            agent_scope_enabled=agent_scope_enabled,
            embeddings=embeddings,
            timezone=timezone,
            clock=clock,
        )
        self._binding = MemoryBinding(memory_service, user_id, options)
        self._extractor = extractor
        self._outbox = outbox
        self._works = works
        self._interval_s = interval_s
        self._limits = limits or Limits()
        self._dispatch = dispatch
        self._workers: dict[StoreEngine, tuple[Pipeline, Worker | None]] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Its name in the agent's graph."""
        return "MemoryCapture"

    def before_agent(self, state: CaptureState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Notes for whom the messages of this run are captured."""
        return self._begun(state, runtime)

    async def abefore_agent(self, state: CaptureState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Like `before_agent`."""
        return self._begun(state, runtime)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Handler
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Puts what may leave the window with this call into the outbox before. Raises ConfigurationError."""
        update = run(self._secured(request), _TIMEOUT_S)
        response = handler(request)
        return ExtendedModelResponse(response, Command(update=update)) if update else response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: AsyncHandler
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Like `wrap_model_call`."""
        update = await arun(self._secured(request), _TIMEOUT_S)
        response = await handler(request)
        return ExtendedModelResponse(response, Command(update=update)) if update else response

    def after_agent(self, state: CaptureState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Puts what is new into the outbox. Raises ConfigurationError."""
        return run(self._captured(state, runtime), _TIMEOUT_S)

    async def aafter_agent(self, state: CaptureState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Like `after_agent`."""
        return await arun(self._captured(state, runtime), _TIMEOUT_S)

    def drain(self) -> None:
        """Makes memories of what waits, before it returns. Raises StoreError if an outbox cannot be read."""
        for pipeline, worker in list(self._workers.values()):
            (worker or Worker(pipeline)).drain()

    def close(self) -> None:
        """Stops the workers after the batches in hand; what waits stays in the outbox."""
        for _, worker in list(self._workers.values()):
            if worker:
                worker.close()

    def _begun(self, state: Mapping[str, Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        try:
            user = self._binding.user(runtime)
        except (IdentityError, InvalidInput) as error:
            _LOG.info("Nothing is captured: %s", error)
            user = ""
        captured: Mapping[str, str] | None = state.get("captured")
        if captured is not None and captured["user"] == user:
            return None
        messages: Sequence[AnyMessage] = state.get("messages") or []
        start = 0 if captured is None else _last_of_user(messages)
        return {"captured": {"user": user, "id": _last_id(messages[:start])}}

    def _secured(self, request: ModelRequest[Any]) -> Plan[dict[str, Any] | None]:
        """Plan: captures what is older than the last exchange, if the user's last message is not all there is."""
        messages: Sequence[AnyMessage] = request.state.get("messages") or []
        units = Window(messages, count_tokens).units
        end = len(messages) - (len(units[-1].messages) if units else 0)
        asked = _last_of_user(messages)
        new = [at for at in _new(request.state, end) if at != asked]
        return (yield from self._captured(request.state, request.runtime, end)) if new else None

    def _captured(
        self, state: Mapping[str, Any], runtime: Runtime[Any], end: int | None = None
    ) -> Plan[dict[str, Any] | None]:
        """Plan: puts what is new, before ``end``, into the outbox; what becomes of the state."""
        scope = with_zone(self._binding.scope(runtime.store), field_of(runtime.context, "timezone"))
        pipeline, worker = self._pipeline(scope)
        messages: Sequence[AnyMessage] = state.get("messages") or []
        try:
            captured: Mapping[str, str] = state.get("captured") or {}
            user = self._binding.user(runtime, captured.get("user"))
            new = [_message(messages[at], at, scope.clock.now()) for at in _new(state, end)]
            partition = Partition(user, scope.namespaces.agent_name, scope.namespaces.is_agent_scoped)
            count = yield from pipeline.outbox.put(partition, new, str(scope.zone))
        except (IdentityError, InvalidInput) as error:
            _LOG.info("Nothing was captured: %s", error)
            return None
        except InferenceCoreError as error:
            _LOG.warning("Messages wait for the next run to be captured: %s", error)
            return None
        if self._dispatch and count:
            yield from self._dispatched(scope, self._dispatch, partition)
        if worker and count >= self._limits.batch_messages:
            worker.wake()
        return {"captured": {"user": user, "id": _last_id(messages[:end])}}

    def _dispatched(
        self, scope: MemoryScope, dispatch: Callable[[Partition], object], partition: Partition
    ) -> Plan[None]:
        try:
            yield from scope.engine.pool.call(dispatch, partition)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the messages are in the outbox
            _LOG.warning("No worker was called: %s", error)

    def _pipeline(self, scope: MemoryScope) -> tuple[Pipeline, Worker | None]:
        """The way from the outbox into ``scope``'s store, with its worker; made once a store."""
        with self._lock:
            found = self._workers.get(scope.engine)
            if found is None:
                pipeline = Pipeline(scope, self._extractor, outbox=self._outbox_of(scope))
                worker = Worker(pipeline, interval_s=self._interval_s) if self._works else None
                found = self._workers[scope.engine] = (pipeline, worker)
                if worker:
                    worker.start()
        return found

    def _outbox_of(self, scope: MemoryScope) -> Outbox:
        engine = scope.engine if self._outbox is None else engine_of(self._outbox)
        if not engine.backend.capabilities.compare_and_set:
            raise ConfigurationError(
                f"{engine.backend.name} cannot hold an outbox: it has no compare-and-set. "
                "Pass CaptureMiddleware(…, outbox=open_store('sqlite:///outbox.db'))"
            )
        return Outbox(engine, scope.clock, self._limits)


def _new(state: Mapping[str, Any], end: int | None) -> list[int]:
    """Where the messages of user and assistant are that were not captured yet, up to ``end``."""
    messages: Sequence[AnyMessage] = state.get("messages") or []
    captured: Mapping[str, str] = state.get("captured") or {}
    start = next((at + 1 for at, message in enumerate(messages) if message.id == captured.get("id")), 0)
    return [
        at
        for at, message in enumerate(messages[:end])
        if at >= start and message.text and (is_said_by_user(message) or isinstance(message, AIMessage))
    ]


def _last_of_user(messages: Sequence[AnyMessage]) -> int:
    """Where the user's last message is; behind all, if there is none."""
    return max((at for at, message in enumerate(messages) if is_said_by_user(message)), default=len(messages))


def _last_id(messages: Sequence[AnyMessage]) -> str:
    return next((message.id for message in reversed(messages) if message.id), "")


def _message(message: AnyMessage, at: int, now: datetime) -> Message:
    """Without a checkpointer the whole history comes each time, with new ids: the position names a message then."""
    configurable: Mapping[str, Any] = current_config().get("configurable") or {}
    thread = configurable.get("thread_id")
    is_kept = thread is not None and configurable.get(_CHECKPOINTER, True) is not None
    return Message(
        session_id=NO_THREAD if thread is None else str(thread),
        role=Role.ASSISTANT if isinstance(message, AIMessage) else Role.USER,
        text=message.text,
        id=message.id if is_kept else None,
        position=at,
        author=None if isinstance(message, AIMessage) else message.name,
        at=now,
    )
