"""ShortTermMemoryMiddleware: keeps a conversation within a token limit, and can keep what leaves it findable."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, Unpack

from langchain.agents.middleware.types import AgentState, ModelRequest, PrivateStateAttr
from langchain_core.messages import AnyMessage, RemoveMessage, SystemMessage
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.runtime import Runtime

from inference_core.agents.identity import (
    BindingOptions,
    MemoryBinding,
    MemoryService,
    UserSource,
    forgets_state,
    thread_of,
)
from inference_core.agents.middleware.calls import (
    MemoryStatus,
    OperationMiddleware,
    Update,
    time_to_wait,
    told_in,
    with_system_text,
)
from inference_core.context.render import contents_in, delimited, neutral_line, render_blocks, with_notice
from inference_core.effects import COLD_TIMEOUT_S, RECALL_TIMEOUT_S, patiently
from inference_core.errors import ConfigurationError, IdentityError, InferenceCoreError, InvalidInput
from inference_core.memory.namespaces import is_owner, owner_mark
from inference_core.memory.record import MemoryStoreDocument
from inference_core.outbox.messages import NO_THREAD
from inference_core.services.operations.scope import MemoryScope
from inference_core.short_term.agent_memory import recalled_for
from inference_core.short_term.blocks.memory import UserSession
from inference_core.short_term.strategies import DEFAULT_MAX_TOKENS, Eviction, Overflow, OverflowPolicy, OverflowResult
from inference_core.short_term.window import (
    TokenCounter,
    Window,
    count_tokens,
    in_turn,
    is_said_by_user,
    is_summary,
    last_of_user,
    view,
)

_LOG = logging.getLogger(__name__)
OVERFLOW_TIMEOUT_S: Final = 60.0


class ShortTermMemoryEvent(TypedDict):
    """The event in ``stream_mode="custom"`` when a conversation exceeded its limit.

    ``strategies`` names the strategies that ran, ``evicted`` counts the messages that left the state. ``tokens_before``
    and ``tokens_after`` are the tokens of the messages before and after, as shown to the model. ``notice`` says what
    failed, if anything; then messages stayed in the state even if the model did not see them.
    """

    type: Literal["short_term_memory"]
    strategies: list[str]
    evicted: int
    summarized: bool
    tokens_before: int
    tokens_after: int
    notice: str | None


class ShortTermMemoryState(AgentState[Any]):
    """Adds to the agent's state marks of the users of the thread and of the run, and what the blocks recalled."""

    short_term_owner: NotRequired[Annotated[str, PrivateStateAttr]]
    short_term_user: NotRequired[Annotated[str, PrivateStateAttr]]
    short_term_recalled: NotRequired[Annotated[str | None, UntrackedValue, PrivateStateAttr]]


class ShortTermMemoryMiddleware(OperationMiddleware):
    """Keeps a conversation within a token limit.

    It counts the whole request to the model, with system prompt and tools. When that is too large, ``overflow``
    removes older messages from the thread's state, in the same step as the model's answer. `Summarize` and
    `FlushToLongTerm` do so only once they are safe: summarized, or durable in long-term memory. If that fails they stay
    in the state, and the model is shown as many of the newest as fit. `Trim` and `Delete` drop them. Put it last among
    ``middleware``, so that it sees what the others add.

    Args:
        overflow: One strategy or several: `Summarize`, `Trim`, `Delete`, `FlushToLongTerm`. None moves older messages
            into long-term memory word for word.
        max_tokens: The limit in tokens, unless ``max_ratio`` applies.
        max_ratio: The limit as a share (0 to 1) of the model's context window, if the model's profile has one.
        token_counter: Counts the tokens of messages, for example ``model.get_num_tokens_from_messages``.
        memory_service: As for `MemoryMiddleware`.
        user_id: As for `MemoryMiddleware`.
        timeout: Seconds that handling an overflow may take. None: no limit.
        **options: `BindingOptions`, for use without a service.

    Raises:
        ConfigurationError: An argument is invalid; or, in the first run, a block has no store.
    """

    state_schema = ShortTermMemoryState

    def __init__(
        self,
        overflow: Overflow = None,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        max_ratio: float | None = None,
        token_counter: TokenCounter = count_tokens,
        memory_service: MemoryService | None = None,
        user_id: UserSource = None,
        timeout: float | None = OVERFLOW_TIMEOUT_S,
        **options: Unpack[BindingOptions],
    ) -> None:
        super().__init__()
        self._policy = OverflowPolicy(overflow, max_tokens, max_ratio, token_counter)
        self._binding = MemoryBinding(memory_service, user_id, **options)
        self.call_timeout = timeout
        self.start_timeout = timeout
        self.needs_store = any(not block.has_store for block in self._policy.blocks)
        """Whether a block uses the agent's own memory."""

    @property
    def name(self) -> str:
        """Its name in the agent's graph."""
        return "ShortTermMemory"

    async def at_start(self, state: Mapping[str, Any], runtime: Runtime[Any]) -> Update:
        """Notes whose run it is, and recalls for the system prompt; a thread belongs to its first user."""
        self._scope(runtime)
        try:
            user = self._binding.user(runtime)
        except (IdentityError, InvalidInput):
            user = ""
        is_unknown = forgets_state() and sum(map(is_said_by_user, state.get("messages") or [])) > 1
        mark = owner_mark(user)
        owner = state.get("short_term_owner") or ("" if is_unknown else mark)
        begun = {"short_term_owner": owner, "short_term_user": mark}
        recalled = await self._for_prompt({**state, **begun}, runtime)
        return {**begun, "short_term_recalled": recalled}

    async def _for_prompt(self, state: Mapping[str, Any], runtime: Runtime[Any]) -> str:
        """What to append to the system prompt; "" for nothing."""
        blocks = self._policy.blocks
        if not self._policy.into_system_prompt:
            return ""
        if any(block.asks_model for block in blocks):
            return render_blocks(await self._recalled(state, runtime))
        # Without a block that asks a model, a reply waits no longer for memory than with MemoryMiddleware.
        engines = {block.scope(self._scope(runtime)).engine for block in blocks}
        seconds = max(
            (engine.patience(RECALL_TIMEOUT_S, COLD_TIMEOUT_S) for engine in engines), default=RECALL_TIMEOUT_S
        )
        recall = self._recalled(state, runtime, time_to_wait(seconds, RECALL_TIMEOUT_S))
        return render_blocks(await patiently(seconds, recall))

    async def _recalled(
        self, state: Mapping[str, Any], runtime: Runtime[Any], cold_seconds: float | None = None
    ) -> dict[str, list[MemoryStoreDocument]]:
        """What the blocks recall for the user's message, by section; nothing if the memory fails."""
        try:
            conversation = self._conversation(state, runtime)
            asked = last_of_user(state.get("messages") or [])
            scope = self._scope(runtime)
            found, notices = await recalled_for(self._policy.blocks, scope, conversation, asked, cold_seconds)
        except ConfigurationError:
            raise
        except InferenceCoreError as error:
            found, notices = {}, [str(error)]
        if notices:
            _LOG.warning("Blocks recalled less than they hold: %s", "; ".join(notices))
        # Leave out what MemoryMiddleware puts into the same request.
        there = contents_in("\n".join(told_in(state)))
        return {
            name: [memory for memory in own if neutral_line(memory.content) not in there] for name, own in found.items()
        }

    async def before_call(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], Update]:
        """Sends the model the messages that fit; evicted ones leave the state together with the model's answer."""
        recalled = request.state.get("short_term_recalled")
        update: Update = {}
        if recalled is None:
            recalled = await self._for_prompt(request.state, request.runtime)
            update = {"short_term_recalled": recalled}
        given = request
        if recalled:
            request = with_system_text(given, [delimited(with_notice(recalled))])
        room = self._policy.room(request.system_message, request.tools, request.model, warns=True)
        window = Window(request.messages, self._policy.counter)
        result = OverflowResult(window.messages)
        if self._policy.is_full(window, room):  # only then does it matter whose conversation it is
            conversation, problem = None, None
            try:
                conversation = self._conversation(request.state, request.runtime)
            except (IdentityError, InvalidInput) as error:
                problem = str(error)
            scope = self._scope(request.runtime)
            eviction = Eviction(
                room=room,
                model=request.model,
                conversation=conversation,
                scope=scope,
                problem=problem,
                thread=thread_of(),
            )
            result = await self._policy.handle(window, eviction)
        shown = view(Window(result.messages, self._policy.counter) if result.evicted else window, room)
        if result.evicted or result.notice:
            self._tell(request.runtime, window, result, shown)
        if result.evicted:
            update["messages"] = _changes(request.state.get("messages") or [], result)
            is_recalled = request.state.get("memory_status") in (
                MemoryStatus.RECALLED.value,
                MemoryStatus.LEXICAL.value,
            )
            # Do the blocks' memories reach the prompts of this run, by this middleware or by MemoryMiddleware?
            if self._policy.blocks and (self._policy.into_system_prompt or is_recalled):
                # What was recalled when the run began lacks what has just left, which the model would not see at all.
                found = await self._recalled(request.state, request.runtime)
                used = self._policy.counter(shown) if shown else 0
                update["short_term_recalled"], request = self._fitting(given, found, used)
        # A summary in the system's role goes behind the system prompt: models accept one system message.
        summaries = [message for message in shown if isinstance(message, SystemMessage) and is_summary(message)]
        request = with_system_text(request, [message.text for message in summaries])
        return request.override(messages=in_turn([one for one in shown if one not in summaries])), update

    def _fitting(
        self, request: ModelRequest[Any], found: dict[str, list[MemoryStoreDocument]], used: int
    ) -> tuple[str, ModelRequest[Any]]:
        """As much of ``found`` as fits beside messages of ``used`` tokens, rendered, and ``request`` with it."""
        left = {name: list(own) for name, own in found.items() if own}
        while left:
            recalled = render_blocks(left)
            amended = with_system_text(request, [delimited(with_notice(recalled))])
            if self._policy.room(amended.system_message, request.tools, request.model) >= used:
                return recalled, amended
            longest = max(left, key=lambda name: len(left[name]))
            left[longest].pop()  # the least relevant memory of the largest section
            left = {name: own for name, own in left.items() if own}
        return "", request

    def _conversation(self, state: Mapping[str, Any], runtime: Runtime[Any]) -> UserSession:
        """The user and the thread. Raises IdentityError if no user is known, or thread or run is another user's."""
        user = self._binding.user(runtime, state.get("short_term_user"))
        if not is_owner(state.get("short_term_owner"), user):
            raise IdentityError(
                "This conversation belongs to another user, or to an agent inside a graph that is not compiled with "
                "checkpointer=True, so that nobody knows"
            )
        thread = thread_of()
        return UserSession(user, NO_THREAD if thread is None else thread)

    def _scope(self, runtime: Runtime[Any]) -> MemoryScope | None:
        """The memory of blocks without a store of their own. Raises ConfigurationError if they need one."""
        return self._binding.scope_of(runtime) if self.needs_store else None

    def _tell(self, runtime: Runtime[Any], window: Window, result: OverflowResult, shown: Sequence[AnyMessage]) -> None:
        if result.notice:
            _LOG.warning("Short-term memory: %s", result.notice)
        event: ShortTermMemoryEvent = {
            "type": "short_term_memory",
            "strategies": [strategy.name for strategy in self._policy.strategies],
            "evicted": len(result.evicted),
            "summarized": result.summary is not None,
            "tokens_before": window.tokens,
            "tokens_after": self._policy.counter(shown),
            "notice": result.notice,
        }
        runtime.stream_writer(event)


def _changes(state: Sequence[AnyMessage], result: OverflowResult) -> list[Any]:
    """Changes to the state's messages; the summary takes the place of the first message that it replaces.

    Ignores messages that another middleware has put into the request only.
    """
    there = {message.id for message in state}
    gone = [message.id for message in result.evicted if message.id in there]
    if result.summary is None or not gone:
        return [RemoveMessage(id=message_id) for message_id in gone if message_id]
    place = result.summary.id if result.summary.id in there else gone[0]
    summary = result.summary.model_copy(update={"id": place})
    return [summary, *(RemoveMessage(id=message_id) for message_id in gone if message_id and message_id != place)]
