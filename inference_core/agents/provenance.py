"""Whose words a run's conversation is made of, so that what a model saves in it is trusted no further than they are."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NotRequired

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from inference_core.agents.identity import field_of
from inference_core.outbox.grounding import Grounding
from inference_core.outbox.messages import Message, Role
from inference_core.short_term.window import is_summary

MEMORY_TOOLS: Final = frozenset(
    f"{name}_store" for name in ("save_memory", "recall_memories", "update_memory", "delete_memory", "list_memories")
)
_FROM_OUTSIDE: Final = re.compile(r"\[source: (?:tool|document|web|external)\]")
"""The mark of a memory of external trust, in a prompt or in what a memory tool gave."""
_FROM_ELSEWHERE: Final = re.compile("tool_result|search_result|search_call|citation|image|file|document|video")
"""Parts of a message that hold what a provider's own tools found, or files that the user has not written."""
_UNREADABLE: Final = "\N{OBJECT REPLACEMENT CHARACTER}"


def grounding_of(runtime: Any) -> Grounding | None:
    """The words of the conversation that a tool is called in; None if the tool knows of none, as outside of an agent.

    Outside text is what tools other than the memory tools returned, what the user pasted or attached, summaries, and
    memories of external trust that stand in the prompt or that a memory tool showed. ``memory_outside`` in the state
    says that there was some which has left the conversation since.
    """
    state = getattr(runtime, "state", None)
    messages: Sequence[Any] | None = field_of(state, "messages")
    if not isinstance(messages, list | tuple):
        return None
    said = [_message(one) for one in messages if isinstance(one, BaseMessage)]
    recalled: Any = field_of(state, "memory_context")
    others = [recalled] if _is_marked(recalled) else []
    others += [blocks] if _is_marked(blocks := field_of(state, "short_term_recalled")) else []
    if field_of(state, "memory_outside") or any(map(_has_file, messages)):
        others.append(_UNREADABLE)
    return Grounding([one for one in said if one], others)


class OutsideState(AgentState[Any]):
    """Adds to the agent's state whether something from outside has spoken in the thread."""

    memory_outside: NotRequired[Annotated[bool, PrivateStateAttr, operator.or_]]


def first_outside(state: Mapping[str, Any]) -> int | None:
    """The position of the first message in ``state`` that is from outside; None if nothing from there has spoken.

    -1 if that has left the conversation, or is a memory in the prompt. Pasted text does not count: it stays in the
    user's message.
    """
    if state.get("memory_outside") or _is_marked(state.get("memory_context")):
        return -1
    messages: Sequence[BaseMessage] = state.get("messages") or []
    return next((at for at, one in enumerate(messages) if _role(one) is Role.TOOL or _has_file(one)), None)


def noted_outside(state: Mapping[str, Any]) -> dict[str, Any]:
    """The change to ``state`` that remembers that something from outside has spoken, also when it has left."""
    is_news = not state.get("memory_outside") and first_outside(state) is not None
    return {"memory_outside": True} if is_news else {}


def _message(message: BaseMessage) -> Message | None:
    role = _role(message)
    return None if role is None else Message(session_id=None, role=role, text=message.text or _UNREADABLE)


def _role(message: BaseMessage) -> Role | None:
    """Whose words ``message`` holds; None if they are nobody's, such as a memory tool's own."""
    if isinstance(message, ToolMessage):
        return None if message.name in MEMORY_TOOLS and not _is_marked(message.text) else Role.TOOL
    if isinstance(message, AIMessage):
        return Role.TOOL if _has_file(message) else Role.ASSISTANT
    if is_summary(message):
        return Role.TOOL  # nobody knows of what it was made
    return Role.USER if isinstance(message, HumanMessage) else None


def _is_marked(text: Any) -> bool:
    return isinstance(text, str) and bool(_FROM_OUTSIDE.search(text))


def _has_file(message: BaseMessage) -> bool:
    blocks: Any = message.content if isinstance(message.content, list) else []
    return any(_FROM_ELSEWHERE.search(str(field_of(block, "type"))) for block in blocks)
