"""Whose words a run holds: what is not proven to be the user's or the model's own marks the conversation, for good.

The mark is in the thread's private state and, by user and session, in the store. So it outlives messages that leave the
conversation, and agents whose state a graph forgets.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Final, NamedTuple, NotRequired, cast

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.types import Command

from inference_core.agents.identity import agent_of, field_of, forgets_state, is_subagent
from inference_core.errors import StoreError, only_warned
from inference_core.memory.namespaces import is_owner, space_in
from inference_core.memory.record import MemoryRecord, MemoryStoreDocument
from inference_core.memory.text import new_id
from inference_core.memory.trust import MemorySource, Origin, Trust
from inference_core.outbox.messages import OWN_ARTIFACT, ConversationMessage, Role, is_plain, noted_outside, quotes
from inference_core.outbox.said import Said, same_subject
from inference_core.services.operations.review import withdraw
from inference_core.services.operations.scope import MemoryScope
from inference_core.short_term.window import is_said_by_user, is_summary, last_of_user

_LOG = logging.getLogger(__name__)
_FROM_OUTSIDE: Final = re.compile(r"\[(?:source: (?:tool|document|web|external)\]|space: )")
"""In a prompt or a memory tool's answer, marks a memory of external trust, or of a space, in which others write."""
IsTrusted = Callable[[BaseMessage], bool | None]
"""An application's own judgement of a message: trusted, from outside, or None for this package's."""
_PINNED: Final = "this memory is pinned"
_STATED: Final = "only the user decides about this memory"
_CHANGE: Final = (
    "✗ Nothing was changed: {why}. Pass a whole sentence of the user about it, word for word. Or end "
    "your answer with this question, with the whole text in it, and retry when the user says yes: Remember “…”? Do not "
    "retry otherwise"
)
_DELETE: Final = (
    "✗ Nothing was deleted: {why}. If the user asked for it, end your answer with exactly this question, and retry "
    "when the user says yes. Do not retry otherwise\nForget “{text}”?"
)


class MemoryToolCall(NamedTuple):
    """Whose memory a tool call works on, and where it comes from; ``said`` is None for an application's own call."""

    scope: MemoryScope
    user_id: str
    source: MemorySource
    session_id: str | None
    said: Said | None = None

    def admitted(self, text: str, topic: str | None) -> tuple[str, str | None, MemorySource]:
        """``text`` and ``topic``, which the model passed, as they may be stored, and their source.

        In a conversation with text from outside, that is the user's own sentence with a topic made of its words, or
        else text of origin TOOL.
        """
        if self.said is None or not self.said.has_outside:
            return text, topic, self.source
        owned = self.said.owned(text)
        if owned is None:
            return text, topic, replace(self.source, origin=Origin.TOOL)
        return owned, topic and (topic if topic.casefold() in owned.casefold() else None), self.source

    async def stated(self, text: str, source: MemorySource) -> None:
        """Removes pending memories with the words of ``text``, which the user stated and which was just stored.

        Does nothing without text from outside in the conversation, or if ``source`` is external itself.
        """
        if self.said is not None and self.said.has_outside and source.trust is not Trust.EXTERNAL:
            with suppress(StoreError):  # ``text`` is stored all the same
                await withdraw(self.scope, self.user_id, text)

    def refusal(self, old: MemoryStoreDocument, new: str | None) -> str | None:
        """Why ``new`` may not replace ``old``, or why ``old`` may not be deleted (``new`` is None); None if it may.

        A memory that the user stated or pinned is deleted only after a yes to a question that shows it, and so is any
        trusted one once text from outside is in the conversation. A pinned memory is replaced only by a sentence of the
        user on the same subject, or one that the user confirmed; so is one that the user stated, beside text from
        outside. Any other new text is not refused here: without the user's words, it waits.
        """
        said, trust, is_pinned = self.said, old.value.get("trust"), old.value.get("pinned") is True
        if new is None or not any(map(str.isalnum, new)):  # "." deletes, too
            is_users = said is not None and (trust == Trust.STATED or (said.has_outside and trust != Trust.EXTERNAL))
            if not (is_pinned or is_users) or (said and said.has_dismissed(old.content)):
                return None
            text = " ".join(old.content.split())  # as a question can show it
            return _DELETE.format(why=_PINNED if is_pinned else _STATED, text=text)
        is_own = said is not None and said.owned(new) is not None
        if is_pinned:
            is_fit = said and (said.has_confirmed(new) or (is_own and same_subject(old.content, new)))
        else:
            is_fit = not (said and is_own and trust == Trust.STATED and said.is_apart(new, old.content))
        return None if is_fit else _CHANGE.format(why=_PINNED if is_pinned else _STATED)


async def said_in(
    runtime: Any, scope: MemoryScope, user: str, session: str | None, is_trusted: IsTrusted | None = None
) -> Said | None:
    """What the user said in the conversation that a tool is called in; None if the application's own code calls it.

    Without proof that nothing in it is from outside, it counts as if something were: in an agent without this package's
    middleware, and where a model made the call (``runtime.tool_call_id`` tells) but no message can be seen, as in MCP.
    """
    state, config = getattr(runtime, "state", None), getattr(runtime, "config", None)
    heard = _heard(state, config, user, is_trusted, _OUTER.get())
    if heard is None:
        return Said((), has_outside=True) if hasattr(runtime, "tool_call_id") else None
    has_outside = heard.has_outside
    if session is not None:
        was_there = await noted_outside(scope.engine, scope.clock, user, session, is_outside=has_outside)
        has_outside = has_outside or was_there
    return Said(heard.messages, has_outside=has_outside)


class _Heard(NamedTuple):
    """The messages of a conversation, and whether text from outside was in it."""

    messages: list[ConversationMessage]
    has_outside: bool


_Outer = Callable[[], _Heard | None] | None
_OUTER: Final[ContextVar[_Outer]] = ContextVar("_OUTER", default=None)
"""Tells the conversation of the agent whose tool runs now."""
_NOTHING: Final = ConversationMessage(session_id=None, role=Role.ASSISTANT, text="")
"""Stands between messages of which the later does not answer the earlier."""


def _heard(
    state: Any, config: Mapping[str, Any] | None, user: str | None, is_trusted: IsTrusted | None, outer: _Outer
) -> _Heard | None:
    """What was said in a run; None if no messages can be seen in ``state``.

    A subagent's user messages are the words of the agent that called it; the user's own words are in that agent's
    conversation. If that conversation is unknown, it counts as one with text from outside.
    """
    lists = _lists_of_messages(state)
    if not lists:
        return None
    messages, *others = lists
    is_inner = outer is not None or is_subagent(config)
    judge = Judge(state, messages, user, is_trusted, config, is_inner=is_inner)
    start = _start_of_own(messages, field_of(state, "memory_others"))
    said: list[ConversationMessage] = []
    for at, message in enumerate(messages):
        is_users = isinstance(message, HumanMessage) and not is_inner and at >= start and judge.is_harmless(at)
        if is_users or (isinstance(message, AIMessage) and judge.may_ask(at)):
            role = Role.USER if is_users else Role.ASSISTANT
            said.append(ConversationMessage(session_id=None, role=role, text=message.text))
        else:
            said.append(_NOTHING)
    # Other lists hold what agents tell one another.
    has_outside = bool(others) or judge.first() is not None
    if not is_inner:
        return _Heard(said, has_outside)
    before = (outer() if outer else None) or _Heard([], has_outside=True)
    return _Heard([*before.messages, _NOTHING, *said], has_outside or before.has_outside)


class Judge:
    """Which ``messages`` of a run are proven to be the user's or the model's own.

    A model's message is only if the middleware saw the model say it: an application may pass a history without the
    results of tools that its answers repeat.
    """

    def __init__(
        self,
        state: Any,
        messages: Sequence[BaseMessage],
        user: str | None,
        is_trusted: IsTrusted | None,
        config: Mapping[str, Any] | None = None,
        *,
        is_inner: bool,
    ) -> None:
        self._state, self._messages, self._is_trusted, self._is_inner = state, messages, is_trusted, is_inner
        self._names = (None, "" if user is None else user.casefold())
        self._agent = agent_of(config)
        last = field_of(state, "memory_heard")
        self._heard = next((at for at, message in enumerate(messages) if last and message.id == last), -1)
        asked = field_of(state, "memory_asked")
        self._asked = (
            next((at for at, message in enumerate(messages) if message.id == asked), -1) if asked else len(messages)
        )

    def is_harmless(self, at: int) -> bool:
        """Whether the message at ``at`` holds nothing from outside."""
        message = self._messages[at]
        judged = self.given(message)
        if judged is not None:
            return judged
        if isinstance(message, ToolMessage):
            return message.artifact == OWN_ARTIFACT and not _is_marked(message.text)
        if isinstance(message, AIMessage):
            return at <= self._heard and is_plain(message)
        name = message.name and message.name.casefold()
        # What a calling agent writes looks like anything; `told_by_agent` says whether it may be from outside.
        is_typed = self._is_inner or not quotes(message.text)
        return is_plain(message) and name in self._names and is_typed and not self.is_added(at)

    def is_proven(self, at: int) -> bool:
        """Whether the message at ``at`` holds words of this agent or of a person only; they may repeat others."""
        judged = self.given(self._messages[at])
        if judged is not None:
            return judged
        return self.may_ask(at) if isinstance(self._messages[at], AIMessage) else self._is_said(at)

    def given(self, message: BaseMessage) -> bool | None:
        """The application's judgement. What it fails to judge counts as from outside."""
        if self._is_trusted is None:
            return None
        with only_warned(_LOG, "is_trusted failed, so a message counts as one from outside: %s"):
            return self._is_trusted(message)
        return False

    def _is_said(self, at: int) -> bool:
        return is_plain(self._messages[at]) and not self.is_added(at)

    def is_added(self, at: int) -> bool:
        """Whether a tool or other middleware has added the message in the user's role at ``at`` during the run."""
        return at > self._asked and isinstance(self._messages[at], HumanMessage)

    def may_ask(self, at: int) -> bool:
        """Whether the user's yes after the model's message at ``at`` answers the agent, not another or a found text."""
        message = self._messages[at]
        return is_plain(message) and message.name in (None, self._agent)

    def first(self, last: int = 1) -> int | None:
        """The position of the first message from outside; -1 if one has left or the prompt shows one; None: none.

        ``last``: how many messages the model's last answer has.
        """
        state = self._state
        shown = field_of(field_of(state, "memory_context"), "block"), field_of(state, "short_term_recalled")
        if field_of(state, "memory_outside") or any(map(_is_marked, shown)):
            return -1
        # What was there when the model gave its last answer was judged before that, unless it was put there later.
        start = max(self._heard + 1 - last, 0)
        later = (at for at, message in enumerate(self._messages) if at >= start or _is_instruction(message))
        return next((at for at in later if not self.is_harmless(at)), None)

    def last_added(self) -> str | None:
        """The id of the last message that would count as the user's, if the user had not asked before it."""
        added = (at for at in range(len(self._messages) - 1, self._asked, -1) if self.is_added(at))
        return next((self._messages[at].id for at in added if is_plain(self._messages[at])), None)


def _is_instruction(message: BaseMessage) -> bool:
    return isinstance(message, SystemMessage) and not is_summary(message)


def _start_of_own(messages: Sequence[BaseMessage], others: str | None) -> int:
    """The position after the last message of other users, whose id is ``others``; if it has left, the last asked."""
    if not others:
        return 0
    found = next((at + 1 for at, message in enumerate(messages) if message.id == others), None)
    asked = (at for at in reversed(range(len(messages))) if is_said_by_user(messages[at]))
    return next(asked, len(messages)) if found is None else found


def others_update(state: Mapping[str, Any], user: str) -> dict[str, Any]:
    """The change to ``state`` if another user may have said what was there before this run; {} if not."""
    owner: str | None = state.get("memory_owner")  # "" after a run of nobody
    messages: Sequence[BaseMessage] = state.get("messages") or []
    if not forgets_state() if owner is None else is_owner(owner, user):
        return {}
    last = next((at for at in reversed(range(len(messages))) if is_said_by_user(messages[at])), len(messages))
    before = messages[:last]
    shared = {"memory_outside": True} if owner is not None and before else {}
    return shared | ({"memory_others": before[-1].id} if before else {})


def _lists_of_messages(state: Any) -> list[list[BaseMessage]]:
    """All lists of messages in ``state``, the user's first: ``messages``, or without it the first list.

    An entry that is not a message counts as a message of a tool.
    """
    if isinstance(state, list | tuple):
        held: dict[str, Any] = {"messages": state}
    elif is_dataclass(state):
        held = {field.name: getattr(state, field.name) for field in fields(state)}
    else:
        held = cast("dict[str, Any]", state if isinstance(state, Mapping) else getattr(state, "__dict__", {}))
    lists = {name: cast("Sequence[Any]", value) for name, value in held.items() if isinstance(value, list | tuple)}
    messages = {
        name: [message if isinstance(message, BaseMessage) else ToolMessage("", tool_call_id="") for message in entries]
        for name, entries in lists.items()
        if any(isinstance(entry, BaseMessage) for entry in entries)
    }
    return [messages[name] for name in sorted(messages, key=lambda name: name != "messages")]


@contextmanager
def delegating(
    state: Any, config: Mapping[str, Any] | None, user: str | None, is_trusted: IsTrusted | None
) -> Generator[None]:
    """While a tool runs, makes this agent's conversation known to any agent that the tool runs.

    That agent's memory tools can then tell the user's words from text from outside.
    """
    outer = _OUTER.get()
    token = _OUTER.set(lambda: _heard(state, config, user, is_trusted, outer))
    try:
        yield
    finally:
        _OUTER.reset(token)


def told_by_agent() -> bool | None:
    """Whether the words of the agent that calls this run may hold text from outside; None if no agent calls it."""
    outer = _OUTER.get()
    if outer is None:
        return True if is_subagent() else None
    heard = outer()
    return heard is None or heard.has_outside


def _latest(before: str, after: str) -> str:
    del before
    return after


class OutsideState(AgentState[Any]):
    """Adds to the agent's state whether the thread has ever held text from outside, and what proves that it has not.

    ``memory_heard`` is the id of the last message that the agent's model was seen to say, ``memory_asked`` that of the
    user's last message when the run began; ``memory_others`` that of the last message that another user may have said,
    or a tool in the user's role.
    """

    memory_outside: NotRequired[Annotated[bool, PrivateStateAttr, operator.or_]]
    memory_heard: NotRequired[Annotated[str, PrivateStateAttr, _latest]]
    memory_asked: NotRequired[Annotated[str, PrivateStateAttr, _latest]]
    memory_others: NotRequired[Annotated[str, PrivateStateAttr, _latest]]


def judge_of(
    state: Mapping[str, Any],
    user: str | None,
    is_trusted: IsTrusted | None,
    config: Mapping[str, Any] | None = None,
) -> Judge:
    """Who judges the messages in ``state``, for the run of ``config``, by default the current one."""
    messages: Sequence[BaseMessage] = state.get("messages") or []
    return Judge(state, messages, user, is_trusted, config, is_inner=told_by_agent() is not None)


def outside_update(
    state: Mapping[str, Any], user: str | None = None, is_trusted: IsTrusted | None = None, last: int = 1
) -> dict[str, Any]:
    """The change to ``state`` that records text from outside, which counts even after it has left; {} for none.

    ``last``: how many messages the model's last answer has.
    """
    judge = judge_of(state, user, is_trusted)
    is_news = not state.get("memory_outside") and judge.first(last) is not None
    added = judge.last_added()
    return {
        **({"memory_outside": True} if is_news else {}),
        **({"memory_others": added} if added and added != state.get("memory_others") else {}),
    }


def asked_update(state: Mapping[str, Any]) -> dict[str, Any]:
    """The change to ``state`` at the start of a run that records the user's last message; {} if there is none."""
    asked = last_of_user(state.get("messages") or [])
    return {"memory_asked": asked.id} if asked and asked.id else {}


def unseen_in(request: Sequence[Any], state: Mapping[str, Any]) -> bool:
    """Whether other middleware shows the model a text in ``request`` that is in no message of ``state``.

    Summaries do not count, as what they sum up was judged.
    """
    messages: Sequence[BaseMessage] = state.get("messages") or []
    known = {message.id for message in messages}
    shown = (one for one in request if not isinstance(one, ToolMessage) and field_of(one, "id") not in known)
    return not all(isinstance(one, BaseMessage) and is_summary(one) for one in shown)


def disowned(result: Any) -> None:
    """Takes from the ``result`` of a tool that is no memory tool any artifact that says it is one."""
    update: Any = cast("Any", result).update if isinstance(result, Command) else {"messages": [result]}
    for message in cast("Sequence[Any]", update.get("messages") or () if isinstance(update, Mapping) else ()):
        if isinstance(message, ToolMessage) and message.artifact == OWN_ARTIFACT:
            message.artifact = None


def heard_update(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    """The change to a state that records which messages the agent's model said; gives those without an id one."""
    for message in messages:
        message.id = message.id or new_id()
    return {"memory_heard": messages[-1].id} if messages else {}


def is_from_outside(record: MemoryRecord) -> bool:
    """Whether others than the user and the user's agents may have worded a memory."""
    return record.trust <= Trust.EXTERNAL or space_in(record.namespace) is not None


def _is_marked(text: Any) -> bool:
    return isinstance(text, str) and bool(_FROM_OUTSIDE.search(text))
