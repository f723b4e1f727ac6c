"""CaptureMiddleware: puts messages into the outbox, from which a worker makes memories after the reply."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, Unpack

from langchain.agents.middleware.types import ModelRequest, PrivateStateAttr
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from inference_core.agents.identity import (
    CHECKPOINTER,
    BindingOptions,
    MemoryBinding,
    MemoryService,
    UserSource,
    configurable_of,
    forgets_state,
    thread_of,
)
from inference_core.agents.middleware.calls import OperationMiddleware, Update
from inference_core.agents.provenance import (
    OutsideState,
    asked_update,
    heard_update,
    judge_of,
    outside_update,
    told_by_agent,
)
from inference_core.effects import arun, run
from inference_core.errors import IdentityError, InferenceCoreError, InvalidInput, only_warned
from inference_core.ingestion.extraction.captions import made_media_model
from inference_core.ingestion.periodic.tasks import PeriodicWork
from inference_core.ingestion.worker import INTERVAL_S, Extractor, Pipeline, Progress, Worker, checked_extractor
from inference_core.memory.namespaces import is_owner, owner_mark
from inference_core.outbox.media import MAX_MEDIA, may_wait, media_in
from inference_core.outbox.messages import NO_THREAD, ConversationMessage, Role, author_of, noted_outside
from inference_core.outbox.outbox import Limits, Outbox, Partition, check_outbox
from inference_core.services.operations.scope import MemoryScope
from inference_core.short_term.window import Window, count_tokens, is_said_by_user
from inference_core.stores.factory import any_engine_of

if TYPE_CHECKING:
    from inference_core.stores.engine import StoreEngine

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 2.0
_said_of_media = threading.Event()


class Captured(TypedDict):
    """The mark of whom messages are captured for ("": nobody), and the ``id`` of the last one captured.

    ``known``, only in a thread that another user began: the ids of all messages up to the last one. The application may
    remove that one, and which of the others are this user's must not be guessed then. ``texts``: hashes of the texts of
    the captured messages that are still there, by id, which tell when one is edited.
    """

    user: str
    id: str
    known: NotRequired[list[str]]
    texts: NotRequired[dict[str, str]]


class CaptureState(OutsideState):
    """Adds to the agent's state how far the thread was captured, and for whom."""

    captured: NotRequired[Annotated[Captured, PrivateStateAttr]]


class CaptureMiddleware(OperationMiddleware):
    """Extracts memories from conversations, without slowing down the reply.

    At the end of a run, all new messages of the user and the assistant go into an outbox, in one durable commit. They
    stay there until a worker has stored the memories that it extracts from them. Messages of a run that failed, was
    interrupted, or was killed before the commit are captured with the next run of their thread, before its first
    request to the model, if a checkpointer or the application supplies them again. If another user continues a thread,
    earlier messages are not captured for that user. A message that is edited is captured anew. Capture never breaks a
    run: failures are logged, and the messages are captured later. Another person's messages, which have a ``name``
    other than the user's id, tell nothing of the user; messages that a framework writes in the user's role are not
    captured. With ``media_model``, pictures and recordings wait with their message until the worker has put them into
    words; else they are left out.

    Put it before `ShortTermMemoryMiddleware`, so that messages are captured before they leave the conversation.

    Args:
        extractor: Extracts memories from messages, for example `ModelExtractor` or `RuleExtractor`.
        outbox: A store for the outbox, such as ``open_store("sqlite:///outbox.db")``. None: the agent's store, which
            must then come from `open_store`.
        works: Whether this process runs a worker. If not, run ``inference-core worker``.
        interval_s: How often the worker checks the outbox, in seconds.
        limits: The size of batches, and how often and how long they are retried. None: the defaults.
        dispatch: Called with the user and agent whose messages wait, to wake a worker in another process. If it fails,
            workers find the messages at their next check.
        periodic: Summaries of sessions and insights that the worker generates as well. None: none.
        memory_service: As for `MemoryMiddleware`.
        user_id: As for `MemoryMiddleware`.
        **options: `BindingOptions`, for use without a service.

    Raises:
        ConfigurationError: ``extractor`` cannot extract, or ``media_model`` cannot be made; or, in the first run, the
            store cannot hold an outbox and no ``outbox`` was given.
    """

    state_schema = CaptureState
    start_timeout = call_timeout = _TIMEOUT_S

    def __init__(
        self,
        extractor: Extractor,
        *,
        outbox: BaseStore | None = None,
        works: bool = True,
        interval_s: float = INTERVAL_S,
        limits: Limits | None = None,
        dispatch: Callable[[Partition], object] | None = None,
        periodic: PeriodicWork | None = None,
        memory_service: MemoryService | None = None,
        user_id: UserSource = None,
        **options: Unpack[BindingOptions],
    ) -> None:
        super().__init__()
        self._binding = MemoryBinding(memory_service, user_id, **options)
        self._extractor = checked_extractor(extractor)
        if works and self._binding.media_model is not None:
            made_media_model(self._binding.media_model)  # slow to make; and a wrong name shows before the first run
        self._outbox = outbox
        self._works = works
        self._interval_s = interval_s
        self._limits = limits or Limits()
        self._dispatch = dispatch
        self._periodic = periodic
        self._workers: dict[StoreEngine, tuple[Pipeline, Worker | None]] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Its name in the agent's graph."""
        return "MemoryCapture"

    async def at_start(self, state: Mapping[str, Any], runtime: Runtime[Any]) -> Update | None:
        """Notes for whom the messages of this run are captured."""
        try:
            user = self._binding.user(runtime)
        except (IdentityError, InvalidInput) as error:
            _log_closed(error)
            user = ""
        captured: Captured | None = state.get("captured")
        asked = asked_update(state)
        if captured is not None and is_owner(captured["user"], user):
            return asked
        messages: Sequence[AnyMessage] = state.get("messages") or []
        if captured is None and not forgets_state():
            return {"captured": _up_to([], user, is_shared=False), **asked}
        # Somebody else continues the thread, or may do so: what was said before this run is not captured for them.
        before = messages[: _last_of_user(messages)]
        # The assistant may repeat what the other one said, and the tools must not take it for this user's.
        shared: Update = {"memory_outside": True, "memory_others": before[-1].id} if captured and before else {}
        return {"captured": _up_to(before, user, is_shared=True), **shared, **asked}

    async def before_call(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], Update | None]:
        """Captures messages older than the last exchange, because they may leave the conversation before the next call.

        Even the user's last message may: it stays in this package's `Window`, but other middleware summarizes it.
        """
        messages: Sequence[AnyMessage] = request.state.get("messages") or []
        new = _new(request.state)
        end = len(messages) - len(Window(messages, count_tokens).units[-1].messages) if new else 0
        update: Update = {}
        if any(at < end for at in new):
            update = await self._captured(request.state, request.runtime, end) or {}
        user: str | None = None
        with suppress(IdentityError, InvalidInput):
            user = self._binding.user(request.runtime)
        return request, {**update, **outside_update(request.state, user, self._binding.is_trusted)}

    async def after_call(self, request: ModelRequest[Any], said: Sequence[BaseMessage]) -> Update:
        """Records what the model said."""
        del request
        return heard_update(said)

    def after_agent(self, state: CaptureState, runtime: Runtime[Any]) -> Update | None:
        """Puts new messages into the outbox. Raises ConfigurationError if the store cannot hold one."""
        return run(self._captured(state, runtime), _TIMEOUT_S)

    async def aafter_agent(self, state: CaptureState, runtime: Runtime[Any]) -> Update | None:
        """Like `after_agent`."""
        return await arun(self._captured(state, runtime), _TIMEOUT_S)

    def drain(self) -> Progress:
        """Makes memories of all messages that are due, and counts them. Raises StoreError if an outbox cannot be read.

        Those that failed wait for their next attempt, and all do while a model that keeps failing is left alone.
        """
        total = Progress()
        for pipeline, worker in list(self._workers.values()):
            used = worker or Worker(pipeline)
            before = asdict(used.progress)
            after = asdict(used.drain())
            for name, count in after.items():
                setattr(total, name, getattr(total, name) + count - before[name])
        return total

    def close(self) -> None:
        """Stops the workers after their current batches; other messages stay in the outbox."""
        for _, worker in list(self._workers.values()):
            if worker:
                worker.close()

    async def _captured(self, state: Mapping[str, Any], runtime: Runtime[Any], end: int | None = None) -> Update | None:
        """Puts new messages before ``end`` into the outbox; returns the change to the state."""
        scope = self._binding.scope_of(runtime)
        pipeline, _ = self._pipeline(scope)
        messages: Sequence[AnyMessage] = state.get("messages") or []
        try:
            captured: Captured | None = state.get("captured")
            user = self._binding.user(runtime, captured and captured["user"])
            # After the first text from outside, the assistant may be repeating it.
            judge = judge_of(state, user, self._binding.is_trusted)
            first = judge.first()
            thread, told = thread_of(), told_by_agent()
            if thread is not None:
                note = scope.engine, scope.clock, user, thread
                was_there = await noted_outside(*note, is_outside=first is not None)
                first = -1 if was_there else first
            now, after = scope.clock.now(), len(messages) if first is None else first
            # Without a checkpointer the caller passes the whole history each time, with new ids: then the position of a
            # message identifies it.
            is_kept = thread is not None and configurable_of().get(CHECKPOINTER, True) is not None
            places = _new(state, end)
            new: list[ConversationMessage] = []
            for at in places:
                said = messages[at]
                found = media_in(said)
                media = found if self._binding.media_model is not None and may_wait(found) else ()
                if len(media) < len(found):
                    _tell_of_media()
                if not (said.text or media):
                    continue
                is_agents = isinstance(said, AIMessage) or told is not None
                message = ConversationMessage(
                    session_id=NO_THREAD if thread is None else thread,
                    role=Role.ASSISTANT if is_agents else Role.USER,
                    text=said.text,
                    id=said.id if is_kept else None,
                    position=at,
                    author=None if is_agents else author_of(said.name, user),
                    at=now,
                    is_proven=judge.is_proven(at) and not media,
                    is_marked=at >= after or bool(told),
                    media=media,
                )
                new.append(message)
            partition = Partition.of(user, scope.namespaces)
            count = await pipeline.outbox.put(partition, new, str(scope.zone))
        except (IdentityError, InvalidInput) as error:
            _log_closed(error)
            return None
        except InferenceCoreError as error:
            _LOG.warning("Messages wait for the next run to be captured: %s", error)
            return None
        if self._dispatch and count:
            with only_warned(_LOG, "No worker was called: %s"):  # the messages are in the outbox
                await scope.engine.pool.call(self._dispatch, partition)
        is_shared = captured is not None and "known" in captured
        noted = {messages[at].id for at in places} | (captured or {}).get("texts", {}).keys()
        texts = {message.id: _hash(message) for message in messages[:end] if message.id and message.id in noted}
        return {"captured": {**_up_to(messages[:end], user, is_shared=is_shared), "texts": texts}}

    def _pipeline(self, scope: MemoryScope) -> tuple[Pipeline, Worker | None]:
        """The pipeline from the outbox into ``scope``'s store, and its worker; made once for each store."""
        with self._lock:
            found = self._workers.get(scope.engine)
            if found is None:
                engine = scope.engine if self._outbox is None else any_engine_of(self._outbox)
                check_outbox(engine, "Pass CaptureMiddleware(…, outbox=open_store('sqlite:///outbox.db'))")
                outbox = Outbox(engine, scope.clock, self._limits)
                pipeline = Pipeline(scope, self._extractor, outbox=outbox, periodic=self._periodic)
                worker = Worker(pipeline, interval_s=self._interval_s) if self._works else None
                found = self._workers[scope.engine] = (pipeline, worker)
                if worker:
                    worker.start()
        return found


def _log_closed(error: Exception) -> None:
    """Logs that nothing is captured for lack of a user; as a warning if the application's own function failed."""
    _LOG.log(logging.INFO if error.__cause__ is None else logging.WARNING, "Nothing is captured: %s", error)


def _tell_of_media() -> None:
    """Warns once per process that pictures and recordings are left out."""
    if not _said_of_media.is_set():
        _said_of_media.set()
        _LOG.warning(
            "Pictures or recordings in messages are left out: set media_model= or AGENT_MEMORY_MEDIA_MODEL to a chat "
            "model that puts them into words (at most %d MB a message)",
            MAX_MEDIA // 1024**2,
        )


def _new(state: Mapping[str, Any], end: int | None = None) -> list[int]:
    """The positions before ``end`` of messages of the user and the assistant that are new or edited since captured."""
    messages: Sequence[AnyMessage] = state.get("messages") or []
    captured: Captured | None = state.get("captured")
    start, texts = _start(messages, captured), (captured or {}).get("texts", {})
    return [
        at
        for at, message in enumerate(messages[:end])
        if (at >= start or ((known := texts.get(message.id or "")) and known != _hash(message)))
        and (message.text or media_in(message))
        and (is_said_by_user(message) or isinstance(message, AIMessage))
    ]


def _hash(message: AnyMessage) -> str:
    return hashlib.blake2b(message.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _start(messages: Sequence[AnyMessage], captured: Captured | None) -> int:
    """The position from which messages are the user's and may be new; the outbox takes each only once."""
    if captured is None:
        return 0
    known = captured.get("known")
    marks = {captured["id"], *(known or ())}
    start = max((at + 1 for at, message in enumerate(messages) if message.id in marks), default=0)
    if known is None or start:
        return start
    # No known message is left. The others may be another user's under new ids, except for what this run asks.
    return _last_of_user(messages)


def _up_to(messages: Sequence[AnyMessage], user: str, *, is_shared: bool) -> Captured:
    """The note that each of ``messages`` is captured or not the user's."""
    ids = [message.id for message in messages if message.id]
    captured = Captured(user=owner_mark(user), id=ids[-1] if ids else "")
    if is_shared:
        captured["known"] = ids
    return captured


def _last_of_user(messages: Sequence[AnyMessage]) -> int:
    """The position of the user's last message; the number of messages if there is none."""
    return max((at for at, message in enumerate(messages) if is_said_by_user(message)), default=len(messages))
