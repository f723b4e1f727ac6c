"""MemoryMiddleware: recalls before a run, adds what it recalled to each request to the model, and brings the tools.

What was recalled lives in untracked state of the run: not on this object, not among the messages, not in a checkpoint.
Of the profile, which stays the same from run to run, the thread's private state has marks, which hold no text.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, cast, get_args

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import BaseMessage
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime

from inference_core.agents.identity import (
    BindingOptions,
    MemoryBinding,
    MemoryService,
    UserSource,
    configurable_of,
    thread_of,
)
from inference_core.agents.middleware.calls import (
    MemoryReport,
    MemoryState,
    MemoryStatus,
    OperationMiddleware,
    PromptMemory,
    Update,
    append_to_user_message,
    evidence_of,
    marked_for_cache,
    marks_of,
    note_receipt,
    text_block,
    time_to_wait,
    told_in,
    with_system_blocks,
)
from inference_core.agents.provenance import (
    asked_update,
    delegating,
    disowned,
    heard_update,
    is_from_outside,
    others_update,
    outside_update,
    unseen_in,
)
from inference_core.context.engineer import DEFAULT_MAX_TOKENS, ContextEngineer, Pruning
from inference_core.context.render import (
    COMPACT,
    DEFAULT_PROFILE_CHANGE,
    DEFAULT_PROFILE_TOKENS,
    FORMATS,
    XML,
    delimited,
    delimited_profile,
)
from inference_core.effects import COLD_TIMEOUT_S, RECALL_TIMEOUT_S, patiently, within
from inference_core.errors import ConfigurationError, IdentityError, InferenceCoreError, InvalidInput, only_warned
from inference_core.memory.namespaces import owner_mark
from inference_core.memory.types import MemoryCategory, validate_memory_category, validate_memory_type
from inference_core.outbox.messages import noted_outside
from inference_core.services.operations.prompt_context import PLACES, TurnContext, TurnOptions, build_turn_context
from inference_core.short_term.window import last_of_user
from inference_core.stores.indexing.search import RecallMode
from inference_core.telemetry import record

if TYPE_CHECKING:
    from inference_core.settings import MemorySettings
else:
    MemorySettings = Any  # pydantic-settings is slow to import: whoever has settings has loaded it

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
RECEIPT_DAYS: Final = 30.0
MAX_RECEIPT_DAYS: Final = 36_500
DEFAULT_ENGINEER: Final = ContextEngineer(pruning=Pruning(min_chance=0.025, keeps_standing=False))
"""Prunes harder than the default, since a turn recalls only the few best of each category (`docs/context-quality.md`).
Rules and preferences need no exemption: the profile has them."""
_WARNING_PERIOD_S: Final = 60.0
Placement = Literal["last_user", "system"]
"""Where memories outside the profile go."""


_said_nobody: Final = threading.Event()
"""Whether this process has logged that a run had no user; a server may serve anonymous users all day."""
_INSTEAD: Final = {
    "postrun_analysis": "add CaptureMiddleware(RuleExtractor()) to middleware=, which makes memories after each run",
    "postrun_analysis_model": "add CaptureMiddleware(ModelExtractor([model])) to middleware=",
    "memory_model": "add CaptureMiddleware(ModelExtractor([model])) to middleware=",
    "memory_model_override": "add CaptureMiddleware(ModelExtractor([model])) to middleware=",
    "active_tool_names": "name the tools in include_tools=",
    "request_id": 'put it into the run\'s config["metadata"]',
}
"""What to do instead of using arguments of the documented middleware that this one does not have."""


class MemoryMiddleware(OperationMiddleware):
    """Long-term memory for a LangChain agent: automatic recall, and tools to save, recall, update and delete.

    Before a run it recalls memories relevant to the user's message; each request to the model then contains them,
    escaped so that they cannot inject instructions. Memory never breaks a run: if it fails or no user is known, the
    agent answers without it, and ``memory_status`` and ``memory_status_reason`` in the result say why.

    The *profile* holds pinned memories, standing instructions and preferences. It follows the system prompt and stays
    byte for byte the same throughout a thread, so that prompt caching works. It is rewritten when more than the share
    ``profile_change`` of its lines has changed, and at once when one of them no longer holds.

    Args:
        memory_service: An `AgentMemoryStoreService` or its ``sync``. None: the store that the agent was compiled with.
        user_id: A user, or a function that takes the LangGraph runtime and returns one. None: the authenticated user of
            LangGraph Server, ``context.user_id`` or ``config["configurable"]["user_id"]``.
        require_user: Whether a run without a user raises IdentityError, and one with an invalid user id InvalidId,
            instead of going on without memory.
        auto_recall: Whether to recall before each run. Without it the agent has the tools only. A run's
            ``config["configurable"]["memory_session_context_enabled"]`` decides for that run.
        max_recall_results: The maximum number of memories of each category. None: those that fit the question
            best, up to ten of each category and fourteen in all, and less where the others fit far worse.
        include_memory_types: Recall only these types, such as ``["facts", "goals"]``. None: all.
        include_categories: Recall only these of ``semantic``, ``episodic`` and ``procedural``. None: all.
        include_tools: Names of the tools that the agent gets. None: save, recall, update and delete.
        tool_instructions_enabled: Whether the system prompt explains the tools. None: it does. It never does so twice,
            and a run's ``config["configurable"]["memory_tool_instructions_enabled"]`` decides for that run.
        session_id: The session that saved memories are marked with. None: the run's thread.
        recall_timeout: Seconds that a reply may wait for the database and the embedding model. After that the agent
            answers without memories, and ``memory_status`` is ``degraded``. Runs that start at the same time take
            turns; waiting for one's turn does not count.
        cold_timeout: The same for the first recall of a process, which has to load the model and build the user's
            index; ``recall_timeout`` if that is longer.
        placement: Where memories outside the profile go: ``"last_user"``, after the user's last message, so that
            everything before it stays cached, or ``"system"``, at the end of the system prompt.
        form: How memories are written: ``"compact"``, ``"xml"`` (the CoALA document's sections), ``"markdown"`` or
            ``"json"``. None: compact with ``"last_user"``, XML with ``"system"``. An engineer's own form wins.
        profile: Whether to keep a profile.
        profile_tokens: The maximum size of the profile in tokens; never more than half of ``max_tokens``.
        profile_change: The share of changed lines that rewrites the profile; 0: every change does.
        max_tokens: The maximum tokens of memories in a request, including markup; tools and their instructions do
            not count. Longer memories are cut; the recall tool returns them in full.
        engineer: Selects among the recalled memories. None: all of them are shown, and the newest if there are few.
        receipts: Whether to record, without content, which memories each request contained and why.
        receipt_days: Days for which receipts are kept.
        **options: `BindingOptions`, for use without a service.

    Raises:
        ConfigurationError: An argument is invalid; or, in the first run, there is neither a service nor a store.
        InvalidInput: A type or category does not exist.
    """

    state_schema = MemoryState

    def __init__(
        self,
        memory_service: MemoryService | None = None,
        *,
        user_id: UserSource = None,
        auto_recall: bool = True,
        max_recall_results: int | None = None,
        include_memory_types: Sequence[str] | None = None,
        include_categories: Sequence[str | MemoryCategory] | None = None,
        include_tools: list[str] | None = None,
        tool_instructions_enabled: bool | None = None,
        session_id: str | None = None,
        require_user: bool = False,
        recall_timeout: float = RECALL_TIMEOUT_S,
        cold_timeout: float = COLD_TIMEOUT_S,
        placement: Placement = "last_user",
        form: str | None = None,
        profile: bool = True,
        profile_tokens: int = DEFAULT_PROFILE_TOKENS,
        profile_change: float = DEFAULT_PROFILE_CHANGE,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        engineer: ContextEngineer | None = DEFAULT_ENGINEER,
        receipts: bool = True,
        receipt_days: float = RECEIPT_DAYS,
        **options: Unpack[BindingOptions],
    ) -> None:
        from inference_core.agents import tools  # noqa: PLC0415 - the schemas take time to make

        super().__init__()
        if (max_recall_results is not None and max_recall_results < 1) or min(recall_timeout, cold_timeout) <= 0:
            raise ConfigurationError("max_recall_results must be at least 1, recall_timeout and cold_timeout above 0")
        if not 0 < receipt_days <= MAX_RECEIPT_DAYS:
            raise ConfigurationError(f"receipt_days must be above 0 and at most {MAX_RECEIPT_DAYS}, not {receipt_days}")
        if placement not in get_args(Placement) or min(profile_tokens, max_tokens) < 1 or profile_change < 0:
            raise ConfigurationError(
                "placement must be 'last_user' or 'system', profile_tokens and max_tokens at least 1, "
                "profile_change not negative"
            )
        if form is not None and form not in FORMATS:
            raise ConfigurationError(f"form must be one of {', '.join(FORMATS)}, not {form!r}")
        for name in _INSTEAD.keys() & options.keys():
            if options[name]:  # what is None or off asks for nothing
                raise ConfigurationError(f"MemoryMiddleware has no {name}: {_INSTEAD[name]}")
            del options[name]
        self._binding = MemoryBinding(memory_service, user_id, **options)
        self.memory_service, self.user_id, self.session_id = memory_service, user_id, session_id
        self.auto_recall, self.max_recall_results = auto_recall, max_recall_results
        self._requires_user = require_user
        self._placement: Placement = placement
        self._receipt_days = receipt_days if receipts else None
        types = None if include_memory_types is None else [validate_memory_type(t) for t in include_memory_types]
        categories = [validate_memory_category(name) for name in include_categories or MemoryCategory]
        self.include_memory_types, self.include_categories = types, categories
        self._options = TurnOptions(
            types=types,
            categories=categories,
            per_category=max_recall_results,
            has_profile=profile,
            profile_tokens=profile_tokens,
            profile_change=profile_change,
            max_tokens=max_tokens,
            engineer=engineer,
            form=form or (COMPACT if placement == "last_user" else XML),
            explains=receipts,
        )
        self._recall_timeout, self._cold_timeout = recall_timeout, cold_timeout
        self.start_timeout = self.call_timeout = None  # recall has a limit of its own
        self._silent_until = 0.0
        self.tools: Sequence[BaseTool] = tools.get_memory_tools(
            self._binding, None, session_id, max_recall_results or PLACES, include_tools
        )
        self._explains_tools = tool_instructions_enabled is not False
        self._instructions = tools.instructions_beside_tools([tool.name for tool in self.tools])

    @property
    def name(self) -> str:
        """Its name in the agent's graph. The class's name would replace Deep Agents' middleware of the same name."""
        return "LongTermMemory"

    @classmethod
    def from_settings(
        cls, settings: MemorySettings, memory_service: MemoryService | None = None, **options: Any
    ) -> MemoryMiddleware:
        """The middleware that ``settings`` describe; ``options`` win over them.

        A ``memory_service`` keeps its own time zone, agent scope, embeddings and limit of content. Raises what the
        class raises: ConfigurationError, and InvalidInput for a type or category that does not exist.
        """
        from inference_core.settings import policy_of  # noqa: PLC0415 - whoever has settings has loaded it

        chosen: dict[str, Any] = {
            "auto_recall": settings.enabled and settings.auto_recall,
            "include_tools": None if settings.enabled else [],
            "max_recall_results": settings.max_results if "max_results" in settings.model_fields_set else None,
            "include_categories": settings.categories,
            "recall_timeout": settings.recall_timeout,
            "cold_timeout": settings.cold_timeout,
            "placement": settings.placement,
            "form": settings.form,
            "profile": settings.profile,
            "max_tokens": settings.max_tokens,
            "engineer": DEFAULT_ENGINEER if settings.engineer else None,
            "receipts": settings.receipts,
            "receipt_days": settings.receipt_days,
            **policy_of(settings),
        }
        return cls(memory_service, **chosen | options)

    async def at_start(self, state: Mapping[str, Any], runtime: Runtime[Any], *, is_resumed: bool = False) -> Update:
        """Recalls for the user of this run.

        Raises ConfigurationError for a developer's mistake; with ``require_user`` also IdentityError and InvalidId.
        """
        started = time.perf_counter()
        owner = state.get("memory_owner") if is_resumed else None
        scope = self._binding.scope_of(runtime)
        try:
            user = self._binding.user(runtime, owner)
        except (IdentityError, InvalidInput) as error:
            if self._requires_user:
                raise
            if error.__cause__ is not None:  # the application's own function failed
                self._warn(str(error))
            elif not _said_nobody.is_set():
                _said_nobody.set()
                _LOG.warning("A run has no memory. %s. To make this an error: require_user=True", error)
            closed = _update(state, MemoryStatus.CLOSED, started, owner or "", reason=str(error))
            return closed | {"memory_profile": None}
        mark = owner_mark(user)
        others = {} if is_resumed else others_update(state, user) | asked_update(state)
        if not _switch("memory_session_context_enabled", self.auto_recall):
            return _update(state, MemoryStatus.OFF, started, mark, reason="auto_recall is off") | others
        try:
            asked = last_of_user(state.get("messages") or [])
            frozen = marks_of(state, user)
            query = asked.text if asked else None
            seconds = scope.engine.patience(self._recall_timeout, self._cold_timeout)
            waits = time_to_wait(seconds, self._recall_timeout)
            options = replace(self._options, wait_seconds=waits, cold_seconds=waits)
            recall = build_turn_context.checked(scope, user, query, options, frozen)
            turn = await patiently(seconds, recall)
        except Exception as error:  # noqa: BLE001 - memory never breaks a run
            self._warn(f"Recall failed; the agent answers without memory: {error}")
            reason = str(error) if isinstance(error, InferenceCoreError) else f"{type(error).__name__}: {error}"
            return _update(state, MemoryStatus.DEGRADED, started, mark, reason=_public(reason)) | others
        status = MemoryStatus.RECALLED if turn.mode is RecallMode.HYBRID else MemoryStatus.LEXICAL
        has_profile = self._options.has_profile
        kept = {"owner": mark, "lines": [list(mark) for mark in turn.profile.marks]} if has_profile else None
        update = _update(state, status, started, mark, turn, _public(turn.reason)) | others
        if turn.block:
            profile = turn.profile.text if has_profile else ""
            update["memory_context"] = PromptMemory(block=turn.block, profile=profile, evidence=evidence_of(turn))
        if turn.form not in (XML, COMPACT) and any(map(is_from_outside, turn.records)):  # their marks are in the text
            update["memory_outside"] = True
        return update | {"memory_profile": kept}

    async def before_call(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], Update | None]:
        """Adds memories and instructions to the request, and records a receipt."""
        update: Update | None = None
        if request.state.get("memory_status") is None:  # a resumed run has lost what was recalled for it
            update = await self.at_start(request.state, request.runtime, is_resumed=True)
        state: Mapping[str, Any] = update or request.state
        recalled: PromptMemory | None = state.get("memory_context")
        seen = {**request.state, "memory_context": recalled}
        is_unseen = unseen_in(request.messages, request.state)
        if noted := await self._noted(seen, request.runtime, is_outside=is_unseen):
            update = {**(update or {}), **noted}
        profile, block = told_in(state)
        context = delimited(block) if block else ""
        blocks: list[Mapping[str, Any]] = []
        if self._instructions and _switch("memory_tool_instructions_enabled", self._explains_tools):
            heading = self._instructions.partition("\n")[0]
            if heading not in (request.system_message.text if request.system_message else ""):
                blocks.append(text_block(self._instructions))
        if context:
            scope = self._binding.scope_of(request.runtime)
            user_of = partial(self._binding.user, request.runtime, state.get("memory_owner"))
            has_profile = self._options.has_profile
            note_receipt(scope, user_of, request, state, self._placement, self._receipt_days, has_profile=has_profile)
        if profile:
            blocks.append(marked_for_cache(request, text_block(delimited_profile(profile))))
        asked = append_to_user_message(request, context) if context and self._placement == "last_user" else None
        if context and asked is None:
            blocks.append(text_block(context))
        return with_system_blocks(asked or request, blocks), update

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], T]) -> T:
        """Runs a tool."""
        with self._delegating(request):
            result = handler(request)
        if not _is_own(request):
            disowned(result)
        return result

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[T]]) -> T:
        """As `wrap_tool_call`."""
        with self._delegating(request):
            result = await handler(request)
        if not _is_own(request):
            disowned(result)
        return result

    def _delegating(self, request: ToolCallRequest) -> AbstractContextManager[None]:
        """Makes this conversation known to an agent inside the tool (see `delegating`)."""
        if _is_own(request):
            return nullcontext()
        user: str | None = None
        with suppress(IdentityError, InvalidInput):
            user = self._binding.user(cast("Any", request.runtime))
        return delegating(request.state, request.runtime.config, user, self._binding.is_trusted)

    async def after_call(self, request: ModelRequest[Any], said: Sequence[BaseMessage]) -> Update:
        """Records what the model said, and whether something in it is from outside, such as what a provider found."""
        heard = heard_update(said)
        state = {**request.state, **heard, "memory_context": None, "messages": [*request.state["messages"], *said]}
        return {**heard, **await self._noted(state, request.runtime, len(said))}

    async def _noted(
        self, state: Mapping[str, Any], runtime: Runtime[Any], last: int = 1, *, is_outside: bool = False
    ) -> Update:
        """The change to the state if text from outside is new in it, or ``is_outside``; the store keeps the mark, too.

        ``last``: how many messages the model's last answer has.
        """
        user: str | None = None
        with suppress(IdentityError, InvalidInput):
            user = self._binding.user(runtime)
        update, session = outside_update(state, user, self._binding.is_trusted, last), self.session_id or thread_of()
        if is_outside and not state.get("memory_outside"):
            update["memory_outside"] = True
        if "memory_outside" in update and user is not None and session is not None:
            scope = self._binding.scope_of(runtime)
            with only_warned(_LOG, "That the session holds text from outside was not noted in the store: %s"):
                kept = noted_outside(scope.engine, scope.clock, user, session, is_outside=True)
                await within(self._recall_timeout, kept)
        return update

    def _warn(self, problem: str) -> None:
        """Logs ``problem``, at most once a minute: in an outage each turn's status says the same."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _WARNING_PERIOD_S
            _LOG.warning("%s", problem)


def _is_own(request: ToolCallRequest) -> bool:
    """Whether it calls a memory tool."""
    return not getattr(request.tool, "runs_agents", True)


def _switch(name: str, default: bool) -> bool:
    """Whether this run's configuration switches ``name`` on or off; the ``default`` if it does neither."""
    given = configurable_of().get(name)
    return default if given is None else bool(given)


def _public(reason: str | None) -> str | None:
    """``reason`` without what a database or a provider said, which follows a colon: clients see the result."""
    return reason and reason.partition(": ")[0]


def _update(
    state: Mapping[str, Any],
    status: MemoryStatus,
    started: float,
    owner: str,
    turn: TurnContext | None = None,
    reason: str | None = None,
) -> Update:
    record("inference_core.recall.status", 1, {"status": status.value})
    records = turn.records if turn else ()
    report = MemoryReport(
        status=status.value,
        reason=reason,
        recalled=len(records),
        latency_ms=(time.perf_counter() - started) * 1000,
        types=sorted({record.memory_type.value for record in records}),
        categories=sorted({record.category.value for record in records}),
    )
    return {
        "memory_context": None,
        "memory_owner": owner,
        **({} if "memory" in state else {"memory": report}),  # the application's own state may have one
        "memory_status": report["status"],
        "memory_status_reason": reason,
        "memories_recalled": report["recalled"],
        "memory_recall_latency_ms": report["latency_ms"],
        "memory_types_recalled": report["types"],
        "memory_categories_recalled": report["categories"],
    }


def create_memory_middleware(
    memory_service: MemoryService | None,
    user_id: UserSource = None,
    auto_recall: bool = True,
    max_recall_results: int | None = None,
    include_memory_types: Sequence[str] | None = None,
    include_categories: Sequence[str | MemoryCategory] | None = None,
    *,
    session_id: str | None = None,
    **options: Unpack[BindingOptions],
) -> MemoryMiddleware:
    """A `MemoryMiddleware`, with the signature that the CoALA document gives it."""
    return MemoryMiddleware(
        memory_service,
        user_id=user_id,
        auto_recall=auto_recall,
        max_recall_results=max_recall_results,
        include_memory_types=include_memory_types,
        include_categories=include_categories,
        session_id=session_id,
        **options,
    )
