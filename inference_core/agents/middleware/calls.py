"""What the middlewares share: hooks written once for sync and async, a run's state, memories in requests, receipts."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Final, NotRequired, TypedDict

from langchain.agents.middleware.types import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    OmitFromSchema,
    PrivateStateAttr,
)
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.runtime import Runtime
from langgraph.types import Command

from inference_core import telemetry
from inference_core.agents.identity import current_config, thread_of
from inference_core.agents.provenance import OutsideState
from inference_core.context.render import PROFILE, ProfileMark, marks_in
from inference_core.effects import Operation, arun, run
from inference_core.errors import only_warned
from inference_core.memory.namespaces import is_owner
from inference_core.memory.receipt import Receipt, ReceiptLine, ReceiptPlace, evidence, text_hash
from inference_core.memory.text import new_id, text_tokens
from inference_core.services.operations.prompt_context import TurnContext
from inference_core.services.operations.receipts import keep_receipt
from inference_core.services.operations.scope import MemoryScope
from inference_core.short_term.window import last_of_user

_LOG = logging.getLogger(__name__)
_PREFIX: Final = "inference_core.memory."
"""Prefix of the attributes of traced runs."""
Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
Response = ModelResponse[Any] | ExtendedModelResponse[Any]
Update = dict[str, Any]
"""Changes to the agent's state."""
_WAIT_SHARE: Final = 0.7
MAX_MARKERS: Final = 4
"""The most cache markers that Anthropic accepts in a request."""
_CACHE_CONTROL: Final = "cache_control"
_Reported = OmitFromSchema(input=True, output=False)


def time_to_wait(seconds: float, usual: float) -> float:
    """How many of the ``seconds`` that a recall may take it waits for the model, its vectors, or an index.

    After that, recall goes on by words only. The remaining seconds, at most the ``usual`` limit, are for ranking and
    rendering: without them, a slow server would use up the whole time, and the run would have no memory at all.
    """
    return max(_WAIT_SHARE * seconds, seconds - usual)


class FirstOfRun(UntrackedValue[Any]):
    """A value that only the first write of a run sets, so that a subagent's report does not replace it."""

    def update(self, values: Sequence[Any]) -> bool:
        """Sets the value if there is none yet."""
        return not self.is_available() and super().update(values[:1])


class MemoryStatus(str, Enum):
    """The outcome of recall in a run. ``memory_status_reason`` says why it is not ``RECALLED``.

    RECALLED: memories were ranked by words and meaning. LEXICAL: by words only. DEGRADED: recall failed or took longer
    than ``recall_timeout``, and the agent answers without memory. CLOSED: no user is known, the user id is invalid, or
    two sources contradict each other, so nothing is read or written. OFF: automatic recall is off in this run; the
    tools work.
    """

    RECALLED = "recalled"
    LEXICAL = "lexical"
    DEGRADED = "degraded"
    CLOSED = "closed"
    OFF = "off"


class MemoryReport(TypedDict):
    """What a run's result says of memory. ``status`` is a value of `MemoryStatus`, ``recalled`` counts memories."""

    status: str
    reason: str | None
    recalled: int
    latency_ms: float
    types: list[str]
    categories: list[str]


class PromptMemory(TypedDict):
    """The texts about memory in a run's prompts: the ``block`` of the turn and the ``profile``, "" if there is none.

    ``evidence`` is the part of their receipt that `evidence_of` makes: streams may show the state, so it is JSON data.
    """

    block: str
    profile: str
    evidence: dict[str, Any]


class MemoryState(OutsideState):
    """What the middleware adds to the agent's state.

    Private to the run: the texts in its prompts. Private to the thread, without texts and user ids: marks of the user
    of the last run, and of the profile with its owner. In the result: the status and its reason, how many memories were
    recalled, their types and categories, and how many milliseconds that took; ``memory`` has all of these.
    """

    memory_context: NotRequired[Annotated[PromptMemory | None, UntrackedValue, PrivateStateAttr]]
    memory_owner: NotRequired[Annotated[str, PrivateStateAttr]]
    memory_profile: NotRequired[Annotated[dict[str, Any] | None, PrivateStateAttr]]
    memory: NotRequired[Annotated[MemoryReport, FirstOfRun(object), _Reported]]
    memory_status: NotRequired[Annotated[str, FirstOfRun(object), _Reported]]
    memory_status_reason: NotRequired[Annotated[str | None, FirstOfRun(object), _Reported]]
    memories_recalled: NotRequired[Annotated[int, FirstOfRun(object), _Reported]]
    memory_recall_latency_ms: NotRequired[Annotated[float, FirstOfRun(object), _Reported]]
    memory_types_recalled: NotRequired[Annotated[list[str], FirstOfRun(object), _Reported]]
    memory_categories_recalled: NotRequired[Annotated[list[str], FirstOfRun(object), _Reported]]


class OperationMiddleware(AgentMiddleware[Any, Any, Any], ABC):
    """Middleware whose hooks are operations, written once for sync and async agents.

    Its type names no state (``state_schema`` does): a list of middlewares with different ones has no type that
    `create_agent` accepts.

    ``start_timeout`` and ``call_timeout`` (seconds, None: no limit) bound `at_start` and `before_call`.
    """

    start_timeout: float | None
    call_timeout: float | None

    @abstractmethod
    def at_start(self, state: Any, runtime: Runtime[Any]) -> Operation[Update | None]:
        """What to do before the first step of a run; returns changes to the state."""

    @abstractmethod
    def before_call(self, request: ModelRequest[Any]) -> Operation[tuple[ModelRequest[Any], Update | None]]:
        """The request to send, and changes to the state that are made together with the model's answer."""

    async def after_call(self, request: ModelRequest[Any], said: Sequence[BaseMessage]) -> Update:
        """What to do after a call of the model; ``said`` is its answer. Returns changes to the state."""
        del request, said
        return {}

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> Update | None:
        """Runs `at_start`. Raises ConfigurationError if there is no memory to use."""
        return run(self.at_start(state, runtime), self.start_timeout)

    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> Update | None:
        """Like `before_agent`."""
        return await arun(self.at_start(state, runtime), self.start_timeout)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Response:
        """Runs `before_call`, then the model. Raises ConfigurationError if there is no memory to use."""
        request, update = run(self.before_call(request), self.call_timeout)
        response = handler(request)
        return _with_update(response, {**(update or {}), **run(self.after_call(request, messages_of(response)))})

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Response:
        """Like `wrap_model_call`."""
        request, update = await arun(self.before_call(request), self.call_timeout)
        response = await handler(request)
        after = await arun(self.after_call(request, messages_of(response)))
        return _with_update(response, {**(update or {}), **after})


def messages_of(response: Response | AIMessage) -> Sequence[BaseMessage]:
    """The messages of a model's response, in each form in which a handler may return it."""
    if isinstance(response, AIMessage):
        return [response]
    return (response.model_response if isinstance(response, ExtendedModelResponse) else response).result


def _with_update(response: ModelResponse[Any], update: Update | None) -> Response:
    return ExtendedModelResponse(response, Command(update=update)) if update else response


def text_block(text: str) -> Mapping[str, Any]:
    """``text`` as a content block."""
    return {"type": "text", "text": text}


def with_system_text(request: ModelRequest[Any], texts: Sequence[str]) -> ModelRequest[Any]:
    """``request`` with ``texts`` after its own system text, which stays unchanged so that prompt caching works."""
    return with_system_blocks(request, [text_block(text) for text in texts])


def with_system_blocks(request: ModelRequest[Any], blocks: Sequence[Mapping[str, Any]]) -> ModelRequest[Any]:
    """Like `with_system_text`, with text blocks that may have cache markers."""
    if not blocks:
        return request
    return request.override(system_message=appended(request.system_message or SystemMessage(""), blocks))


def appended(system: SystemMessage, blocks: Sequence[Mapping[str, Any]]) -> SystemMessage:
    """``system`` with text ``blocks`` after its own content."""
    # Not `content_blocks`, which wraps a provider's own blocks (Bedrock's cache points) in others.
    given: Any = system.content
    own: list[Any] = [text_block(given)] if given and isinstance(given, str) else [*given]
    behind = [{**block, "text": f"\n\n{block['text']}" if own else block["text"]} for block in blocks]
    return system.model_copy(update={"content": [*own, *behind]})


def append_to_user_message(request: ModelRequest[Any], text: str) -> ModelRequest[Any] | None:
    """``request``, not the state, with ``text`` after the user's last message; None if there is no such message."""
    said = last_of_user(request.messages)
    if said is None:
        return None
    own: Any = said.content
    content = f"{own}\n{text}" if isinstance(own, str) else [*own, text_block(text)]
    amended = said.model_copy(update={"content": content})
    return request.override(messages=[amended if message is said else message for message in request.messages])


def marked_for_cache(request: ModelRequest[Any], block: Mapping[str, Any]) -> Mapping[str, Any]:
    """``block`` with a cache marker, if the caller's system message has one and there is room for one more."""
    system = request.system_message.content if request.system_message else ""
    own = _marked(system)
    others = sum(map(_marked, (message.content for message in request.messages)))
    others += _marked([tool for tool in request.tools if isinstance(tool, dict)])
    others += _CACHE_CONTROL in (request.model_settings or {})
    return {**block, _CACHE_CONTROL: {"type": "ephemeral"}} if own and own + others < MAX_MARKERS else block


def _marked(content: Any) -> int:
    """The number of a message's blocks, or of tools, that have a cache marker."""
    blocks = () if isinstance(content, str) else content
    return sum(isinstance(block, dict) and _CACHE_CONTROL in block for block in blocks)


def evidence_of(turn: TurnContext) -> dict[str, Any]:
    """The part of a receipt that describes the turn; holds no content of memories."""
    frame = {"recalled_at": turn.now.isoformat(), "zone": str(turn.zone), "form": turn.form}
    lines = [
        ReceiptLine(id=line.id, version=line.version, place=ReceiptPlace.PROFILE, rank=rank, cut=line.cut)
        for rank, line in enumerate(turn.profile.lines, 1)
    ]
    versions = {line.id: line.version for line in turn.profile.lines}
    groups = {item.id: number for number, group in enumerate(turn.context.conflicts) for item in group}
    lines += [
        ReceiptLine(
            id=item.id,
            version=item.record.version if item.record else 0,
            place=ReceiptPlace.NEWS if item.source == PROFILE else ReceiptPlace.RECALLED,
            rank=rank,
            score=item.score if item.relevance is not None else None,
            relevance=item.relevance,
            signals=dict(item.signals),
            old=versions.get(item.id),
            cut=item.cut,
            group=groups.get(item.id),
            doubts=tuple(sorted(doubt.value for doubt in item.doubts or ())),
        )
        for rank, item in enumerate(turn.context.items, 1)
    ]
    return frame | evidence(lines, turn.dropped)


def note_receipt(
    scope: MemoryScope,
    user_of: Callable[[], str],
    request: ModelRequest[Any],
    state: Mapping[str, Any],
    placement: str,
    days: float | None,
    *,
    has_profile: bool,
) -> None:
    """Keeps a receipt of this call for ``days`` (None: none), without delaying the reply; annotates the traced run.

    Never raises. ``has_profile``: whether the run has a profile, even an empty one.
    """
    with only_warned(_LOG, "No receipt of this model call was kept: %s"):
        now, run = scope.clock.now(), getattr(request.runtime, "execution_info", None)
        run_id = getattr(run, "run_id", None) or current_config().get("run_id")
        model = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        fields: dict[str, Any] = {
            "id": new_id(),
            "at": now.isoformat(),
            "until": (now + timedelta(days=days or 0)).isoformat(),
            "status": state["memory_status"],
            "placement": placement,
            "has_profile": has_profile,
            "model": model if isinstance(model, str) else type(request.model).__name__,
            "thread_id": thread_of(),
            "run_id": None if run_id is None else str(run_id),
            "agent_name": scope.namespaces.agent_name,
        }
        make = cache(partial(_receipt_of, state["memory_context"], fields))
        if days is not None:
            keep_receipt(scope, user_of(), make)
        annotate(make)


def _receipt_of(told: PromptMemory, fields: Mapping[str, Any]) -> Receipt:
    """The receipt of a call that was given ``told``."""
    block, profile = told["block"], told["profile"]
    return Receipt.from_value(
        {
            **told["evidence"],
            **fields,
            "tokens": text_tokens(block) + text_tokens(profile),
            "profile_hash": text_hash(profile),
            "block_hash": text_hash(block),
        }
    )


def annotate(make: Callable[[], Receipt]) -> None:
    """Adds ids, counts and hashes to LangSmith's current run and OpenTelemetry's current span, if the process has any.

    Imports neither library; the receipt is made only if there is a run or a span.
    """
    traced = telemetry.current_run()
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    span = current() if current else None
    if traced is None and (span is None or not span.is_recording()):
        return
    receipt = make()
    facts: dict[str, str | int] = {
        "receipt": receipt.id,
        "status": receipt.status,
        "ids": ",".join(dict.fromkeys(line.id for line in receipt.lines)),
        "told": len(receipt.lines),
        "dropped": len(receipt.dropped),
        "tokens": receipt.tokens,
        "profile_hash": receipt.profile_hash,
        "block_hash": receipt.block_hash,
    }
    attributes = {f"{_PREFIX}{name}": value for name, value in facts.items()}
    if traced:
        traced.add_metadata(attributes)
    if span and span.is_recording():
        span.set_attributes(attributes)


def told_in(state: Mapping[str, Any]) -> tuple[str, str]:
    """The profile and the block that the model gets in a run with this ``state``; "" for none."""
    told: PromptMemory | None = state.get("memory_context")
    return (told["profile"], told["block"]) if told else ("", "")


def marks_of(state: Mapping[str, Any], user: str) -> list[ProfileMark] | None:
    """The marks of the thread's profile, if it is the ``user``'s."""
    kept = state.get("memory_profile")
    return marks_in(kept["lines"]) if kept and is_owner(kept["owner"], user) else None
