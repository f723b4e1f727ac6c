"""Confirmation by a run's user: an interrupt at its end, and a predicate for LangChain's HumanInTheLoopMiddleware.

Only a person resumes an interrupt. A model cannot, whatever tools it has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NotRequired, Unpack

from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr, ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from inference_core.agents.identity import (
    CHECKPOINTER,
    BindingOptions,
    MemoryBinding,
    MemoryService,
    UserSource,
    configurable_of,
    field_of,
    thread_of,
)
from inference_core.agents.middleware.calls import Update
from inference_core.effects import arun, run
from inference_core.errors import IdentityError, InferenceCoreError, InvalidInput
from inference_core.memory.namespaces import is_owner, owner_mark
from inference_core.memory.record import PendingMemory
from inference_core.memory.secrets import quoted
from inference_core.memory.text import moment_field
from inference_core.memory.types import GUIDING_TYPES, MemoryCategory
from inference_core.services.operations.review import approve_pending, list_pending, reject_pending

_LOG = logging.getLogger(__name__)
_TIMEOUT_S: Final = 2.0


def is_procedural(request: ToolCallRequest) -> bool:
    """Whether a call of a memory tool may write what guides the agent: a rule, a preference or a procedure.

    For ``when`` of LangChain's HumanInTheLoopMiddleware. An update that names no type may change a rule, so it counts.
    """
    given: Mapping[str, Any] = request.tool_call["args"]
    kind, category = given.get("memory_type"), given.get("category")
    is_unknown = kind is None and category is None and "memory_id" in given and "content" in given
    return is_unknown or category == MemoryCategory.PROCEDURAL.value or kind in GUIDING_TYPES


class ReviewDecision(BaseModel):
    """What a user decides about one pending memory. ``edit`` approves it with ``content`` as its text."""

    model_config = ConfigDict(extra="forbid")
    id: str
    type: Literal["approve", "edit", "reject"]
    content: str | None = None
    message: str | None = None


_DECISIONS: Final = TypeAdapter(list[ReviewDecision])


class ReviewState(AgentState[Any]):
    """Adds to the agent's state a mark of whose run it is, and up to which time of proposals the user was asked."""

    memory_review: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]


class MemoryReviewMiddleware(AgentMiddleware[Any, Any, Any]):
    """Asks the user, at the end of a run, about the memories of its thread that wait for confirmation.

    The run is interrupted with ``{"type": "memory_review", "pending": […]}``. Resume it with
    ``Command(resume={"decisions": [{"id": …, "type": "approve"}]})``; ``edit`` has a ``content``, ``reject`` may have a
    ``message``. After an answer of another form the run is interrupted again, with a ``problem``. What is not decided
    keeps waiting, and is not asked about again in this thread; nor is what is proposed between question and answer.
    Whoever resumes must be the user of the run; for anybody else nothing is shown or decided. A run without a thread or
    a checkpointer is not interrupted.

    Args:
        memory_service: As for `MemoryMiddleware`.
        user_id: As for `MemoryMiddleware`.
        **options: `BindingOptions`, for use without a service.
    """

    state_schema = ReviewState

    def __init__(
        self,
        memory_service: MemoryService | None = None,
        *,
        user_id: UserSource = None,
        **options: Unpack[BindingOptions],
    ) -> None:
        super().__init__()
        self._binding = MemoryBinding(memory_service, user_id, **options)

    @property
    def name(self) -> str:
        """Its name in the agent's graph."""
        return "MemoryReview"

    def before_agent(self, state: ReviewState, runtime: Runtime[Any]) -> Update | None:
        """Notes whose run this is."""
        try:
            user = self._binding.user(runtime)
        except (IdentityError, InvalidInput):
            user = ""
        known = state.get("memory_review") or {}
        is_known = is_owner(known.get("owner"), user)
        return {"memory_review": {**(known if is_known else {}), "owner": owner_mark(user)}}

    def after_agent(self, state: ReviewState, runtime: Runtime[Any]) -> Update | None:
        """Asks, and does what the user decides; asks again if the answer is invalid. Raises StoreError."""
        user, pending = run(self._waiting(state, runtime), _TIMEOUT_S)
        question = _question(pending)
        while pending:
            try:
                return run(self._decided(state, runtime, user, pending, interrupt(question)), _TIMEOUT_S)
            except InvalidInput as error:
                question = question | {"problem": str(error)}
        return None

    async def aafter_agent(self, state: ReviewState, runtime: Runtime[Any]) -> Update | None:
        """Like `after_agent`."""
        user, pending = await arun(self._waiting(state, runtime), _TIMEOUT_S)
        question = _question(pending)
        while pending:
            try:
                return await arun(self._decided(state, runtime, user, pending, interrupt(question)), _TIMEOUT_S)
            except InvalidInput as error:
                question = question | {"problem": str(error)}
        return None

    async def _waiting(self, state: ReviewState, runtime: Runtime[Any]) -> tuple[str, list[PendingMemory]]:
        """The user and this thread's pending memories that were not asked about yet; none if the run is another's.

        LangGraph runs this again when the run is resumed, so it also decides who may answer.
        """
        thread, noted = thread_of(), state.get("memory_review") or {}
        if thread is None or configurable_of().get(CHECKPOINTER, True) is None or not noted.get("owner"):
            return "", []
        try:
            user = self._binding.user(runtime, noted["owner"])
            proposals = await list_pending(self._binding.scope_of(runtime), user, session_id=thread)
        except InferenceCoreError as error:
            _LOG.warning("Nobody is asked about memories that wait for confirmation: %s", error)
            return "", []
        until = moment_field(noted, "until")
        return user, [pending for pending in proposals if until is None or pending.proposed_at > until]

    async def _decided(
        self, state: ReviewState, runtime: Runtime[Any], user: str, pending: Sequence[PendingMemory], answer: Any
    ) -> Update:
        try:
            decisions = _DECISIONS.validate_python(field_of(answer, "decisions"))
        except ValidationError as error:
            raise InvalidInput(
                'Resume with {"decisions": [{"id": …, "type": "approve", "edit" or "reject"}]}; '
                '"edit" has a "content", "reject" may have a "message"'
            ) from error
        known = {proposal.id for proposal in pending}
        for decision in decisions:  # all are checked before any is applied
            if decision.id not in known:
                raise InvalidInput(f"{quoted(decision.id)} is not among the memories that were asked about")
            if (decision.type == "edit") is (decision.content is None):
                raise InvalidInput('"edit" needs the new text in "content", and nothing else has one')
        scope, noted = self._binding.scope_of(runtime), state.get("memory_review") or {}
        for decision in decisions:
            if decision.type == "reject":
                await reject_pending(scope, user, decision.id, decision.message, by=user)
            else:
                await approve_pending(scope, user, decision.id, decision.content, by=user)
        asked: datetime = max(proposal.proposed_at for proposal in pending)
        return {"memory_review": {**noted, "until": asked.isoformat()}}


def _question(pending: Sequence[PendingMemory]) -> dict[str, Any]:
    """What the user is asked, as JSON data."""
    return {
        "type": "memory_review",
        "pending": [
            {
                "id": proposal.id,
                "content": proposal.document.content,
                "memory_type": proposal.document.memory_type,
                "topic": proposal.document.topic,
                "why": proposal.why,
                "source": proposal.document.value["source"],
                "ends": [{"id": old.id, "content": old.content} for old in proposal.ends],
            }
            for proposal in pending
        ],
    }
