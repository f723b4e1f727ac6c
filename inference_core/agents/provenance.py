"""Whose words a run's conversation is made of, so that what a model saves in it is trusted no further than they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from inference_core.agents.identity import field_of
from inference_core.outbox.grounding import Grounding
from inference_core.outbox.messages import Message, Role
from inference_core.short_term.window import is_said_by_user

MEMORY_TOOLS: Final = frozenset(
    f"{name}_store" for name in ("save_memory", "recall_memories", "update_memory", "delete_memory", "list_memories")
)
_FROM_OUTSIDE: Final = re.compile(r"\[source: (?:tool|document|web|external)\]")
"""The mark of a memory of external trust, in a prompt or in what a memory tool gave."""
_RESULT_BLOCKS: Final = re.compile("tool_result|search_result|search_call|citation")
"""Parts of an assistant's message that hold what a provider's own tools found."""


def grounding_of(runtime: Any) -> Grounding | None:
    """The words of the conversation that a tool is called in; None if the tool knows of none, as outside of an agent.

    Outside text is what tools other than the memory tools returned, what the user pasted, and memories of external
    trust that stand in the prompt or that a memory tool showed.
    """
    state = getattr(runtime, "state", None)
    messages: Sequence[Any] | None = field_of(state, "messages")
    if not isinstance(messages, list | tuple):
        return None
    said = [_message(one) for one in messages if isinstance(one, BaseMessage)]
    recalled = field_of(state, "memory_context")
    return Grounding([one for one in said if one], [recalled] if _is_outside(recalled) else [])


def _message(message: BaseMessage) -> Message | None:
    """``message`` with the role of whose words it holds; None if they are nobody's, such as a memory tool's own."""
    if isinstance(message, ToolMessage):
        is_own = message.name in MEMORY_TOOLS and not _is_outside(message.text)
        role = None if is_own else Role.TOOL
    elif isinstance(message, AIMessage):
        role = Role.TOOL if _RESULT_BLOCKS.search(_block_types(message)) else Role.ASSISTANT
    else:
        role = Role.USER if is_said_by_user(message) else None
    return (
        None
        if role is None
        else Message(session_id=None, role=role, text=message.text or "\N{OBJECT REPLACEMENT CHARACTER}")
    )


def _is_outside(text: Any) -> bool:
    return isinstance(text, str) and bool(_FROM_OUTSIDE.search(text))


def _block_types(message: BaseMessage) -> str:
    blocks: Any = message.content if isinstance(message.content, list) else []
    return " ".join(str(field_of(block, "type")) for block in blocks)
