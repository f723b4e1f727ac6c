"""Messages of a conversation as what ingestion makes memories of, word for word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, FunctionMessage, HumanMessage, ToolMessage

from inference_core.ingestion.messages import Message, Role, label, traced

_MAX_REFERENCE: Final = 300
_CALLS: Final = ("tool_use", "tool_call", "function_call", "invalid_tool_call")
_THOUGHTS: Final = ("reasoning", "thinking")


def passage(message: AnyMessage, session_id: str, position: int = 0) -> Message:
    """What ``message`` says, tool calls and what it shows besides text as text too."""
    is_result = isinstance(message, ToolMessage | FunctionMessage)
    is_answer = isinstance(message, AIMessage)
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    told = (f"{call['name']}({json.dumps(call['args'], ensure_ascii=False, default=str)})" for call in calls)
    return Message(
        session_id=session_id,
        role=Role.TOOL if is_result else Role.ASSISTANT if is_answer else Role.USER,
        text="\n".join(part for part in (text_in(message), *told) if part),
        id=message.id,
        position=position,
        author=label(message.name) if is_result or isinstance(message, HumanMessage) else None,
    )


def passages(messages: Sequence[AnyMessage], session_id: str) -> list[Message]:
    """The passages of ``messages``, in their order."""
    return list(traced(passage(message, session_id, at) for at, message in enumerate(messages)))


def text_in(message: AnyMessage) -> str:
    """The content of ``message``, what it shows besides text as the name of it."""
    content: Any = message.content
    parts = [content] if isinstance(content, str) else map(_part, content)
    return "\n".join(part for part in parts if part)


def is_call(block: str | Mapping[str, Any]) -> bool:
    """Whether ``block`` of a message's content is one of its tool calls, in the form of some provider."""
    return not isinstance(block, str) and block.get("type") in _CALLS


def _part(block: str | Mapping[str, Any]) -> str:
    if isinstance(block, str):
        return block
    text = block.get("text")
    if isinstance(text, str):
        return text
    kind = str(block.get("type", "data"))
    if kind in (*_CALLS, *_THOUGHTS):
        return ""
    return f"[{kind}{_reference(block)}]"


def _reference(block: Mapping[str, Any]) -> str:
    """Where what ``block`` shows can be found, or of what kind it is; not what it holds."""
    inner: Any = block.get(str(block.get("type")))
    fields: dict[str, Any] = {**block, **(inner if isinstance(inner, Mapping) else {"url": block.get("url") or inner})}
    url = fields.get("url")
    name = url if isinstance(url, str) and not url.startswith("data:") else fields.get("mime_type")
    return f" {name or ''}".rstrip()[:_MAX_REFERENCE]
