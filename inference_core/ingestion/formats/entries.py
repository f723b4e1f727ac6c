"""Entries of files of conversations: messages in the shapes of many programs, each turned into one form.

The form is a mapping with ``role``, ``content``, ``id``, ``session_id``, ``timestamp`` and ``name``, as in OpenAI's
API. A reader gives what it cannot read as an `Odd`, in its place: whoever collects the messages skips and counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    ToolMessage,
    messages_from_dict,
)

from inference_core.errors import InvalidInput
from inference_core.outbox.messages import has_calls, has_only, is_plain, label

FORM: Final = "an object with 'role' and 'content'"
NO_MESSAGE: Final = "not a message"
NO_CONVERSATION: Final = "not a conversation"
NO_ROLE: Final = "unknown role"
NO_CONTENT: Final = "content in no known form"
BAD_LABEL: Final = "unreadable id, session or name"
DAMAGED: Final = "damaged"
FRAMEWORKS: Final = "messages of a framework"
"""The role given to what a framework wrote, such as a summary, in whatever role; it is skipped."""
UNSAID: Final = "system"
"""The role given to what nobody said or saw, such as a model's thoughts; it is skipped."""
OUTSIDE: Final = {"outside": "yes"}
"""A field that no message has: it says that the message, or something that came with it, may be from outside."""
_FRAMEWORK_MARKS: Final = ("lc_source", "read_file_media_result")
_KINDS: Final = {
    HumanMessage: "user",
    AIMessage: "assistant",
    ToolMessage: "tool",
    FunctionMessage: "function",
}
_LANGCHAIN: Final = {
    "HumanMessage": "human",
    "AIMessage": "ai",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "ChatMessage": "chat",
}
"""LangChain's classes of messages, and their types in JSON."""
_KEPT: Final = ("session_id", "thread_id", "conversation_id", "timestamp", "created_at")
"""Fields that may stand beside a message of LangChain, or a call, instead of in it."""
_SHAREGPT: Final = {
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "tool",
    "observation": "tool",
}
_ITEMS: Final = ("_call", "_output", "_list_tools", "_approval_request", "_approval_response", "item_reference")
"""How the types of the Responses API's items end that are calls, results and the like."""
_GEMINI_TEXT: Final = frozenset({"text", "thought", "thoughtSignature", "thought_signature"})
_GEMINI_CALLS: Final = ("functionCall", "function_call")
_GEMINI_RESULTS: Final = ("functionResponse", "function_response")
_CHUNK: Final = frozenset({"role", "text", "tokenCount", "isThought", "finishReason", *_KEPT})
"""The harmless fields of a message in a chat that Google's AI Studio saved."""
_HOLDERS: Final = ("messages", "conversations", "contents", "history", "items", "output", "input", "data", "chunks")
_AROUND: Final = ("values", "chunkedPrompt")
"""Fields whose object holds the list of messages: of a state in LangGraph's API, of a chat in AI Studio."""
UNEXPECTED: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a value of a shape that nobody promised may raise."""


class Odd(InvalidInput):
    """Why an entry is no message, and the session that it stands in, if that is known.

    ``reason`` is one of a few fixed texts, by which it is counted; the message says more.
    """

    def __init__(self, reason: str, detail: str | None = None, session: Any = None) -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.session = session


Entry = tuple[str, Any]
"""Where a message is in its file, and its fields; or whatever else stands there; or an `Odd`."""


def entry_of(where: str, session: Any, read: Callable[..., Mapping[str, Any]], *given: Any) -> Entry:
    """What ``read`` makes of an entry at ``where`` in ``session``; if it is none, an `Odd`."""
    try:
        return where, {"session_id": session, **read(*given)}
    except Odd as error:
        return where, Odd(error.reason, str(error), session)
    except UNEXPECTED as error:
        return where, Odd(NO_MESSAGE, f"it is not a message: {error!r:.200}", session)


def object_in(value: Any, why: str, reason: str = NO_MESSAGE) -> Mapping[str, Any]:
    """``value`` if it is a JSON object. Raises Odd, which says ``why`` the entry is no message."""
    if not isinstance(value, dict):
        raise Odd(reason, why)
    return cast("Mapping[str, Any]", value)


def session_of(*names: Any) -> Any:
    """The first of ``names`` that can name a session."""
    return next((name for name in names if name and isinstance(name, str | int) and not isinstance(name, bool)), None)


def list_in(value: Any) -> list[Any]:
    """``value`` as a list: what is no list is its only element, unless it is empty."""
    return cast("list[Any]", value) if isinstance(value, list) else [value] if value else []


def is_message(value: Any) -> bool:
    """Whether ``value`` has the fields of a message in a shape that `fields_of` knows."""
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    kind = fields.get("type")
    is_kind = kind in _LANGCHAIN.values() or str(kind).endswith("MessageChunk")
    is_known = is_kind and not fields.keys().isdisjoint(("content", "data"))
    return is_known or "role" in fields or "lc" in fields or {"from", "value"} <= fields.keys() or _is_item(fields)


def held_messages(value: Any) -> list[Any] | None:
    """The messages in a conversation, which is an array, or an object with one; None if it is neither.

    Raises Odd if the object has something else in the place of the array.
    """
    if isinstance(value, list):
        return cast("list[Any]", value)
    if not isinstance(value, dict) or is_message(value):
        return None
    fields = cast("dict[str, Any]", value)
    around = next((fields[name] for name in _AROUND if isinstance(fields.get(name), dict)), fields)
    name = next((name for name in _HOLDERS if name in around), None)
    if name is None:
        return None
    if not isinstance(around[name], list):
        raise Odd(NO_CONVERSATION, f"its {name!r} are no list of messages")
    return around[name]


def fields_of(given: Any) -> Mapping[str, Any]:
    """A message in the shape of LangChain, ShareGPT, OpenAI's Responses API or Gemini in the form of the readers.

    An object of another shape is returned as it is. Raises Odd for what is no object, or no message of LangChain.
    """
    fields = object_in(given, f"it is not {FORM}")
    if "role" in fields:
        return fields if "content" in fields else _gemini(fields)
    if {"from", "value"} <= fields.keys():
        rest = {name: value for name, value in fields.items() if name not in ("from", "value")}
        role = fields["from"]
        known = _SHAREGPT.get(role.casefold(), role) if isinstance(role, str) else role
        return {**rest, "role": known, "content": fields["value"]}
    if _is_item(fields):
        is_thought = fields["type"] == "reasoning"
        return {**_kept(fields), "role": UNSAID if is_thought else "tool"}
    return _langchain(fields)


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """A message of LangChain in the readers' form; a `FRAMEWORKS` message if a framework marked it as its own."""
    role = next((role for kind, role in _KINDS.items() if isinstance(message, kind)), "system")
    is_harmless = is_plain(message) and not has_calls(message)
    return {
        "role": FRAMEWORKS if any(map(message.additional_kwargs.get, _FRAMEWORK_MARKS)) else role,
        "content": message.text,
        "id": message.id,
        "timestamp": message.additional_kwargs.get("timestamp"),
        "name": label(message.name) if isinstance(message, HumanMessage) else None,
        **({} if is_harmless else OUTSIDE),
    }


def _langchain(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as ``messages_to_dict``, ``dumpd``, ``model_dump`` or LangGraph's API writes it."""
    outer = _kept(fields)
    flat = {name: value for name, value in fields.items() if name not in outer}
    data: Any = next((fields[name] for name in ("data", "kwargs") if isinstance(fields.get(name), dict)), flat)
    kind, path = data.get("type") or fields.get("type"), fields.get("id")
    if kind == "constructor" and isinstance(path, list) and path:
        kind = _LANGCHAIN.get(str(cast("list[Any]", path)[-1]), kind)
    if "content" not in data or not isinstance(kind, str):
        return fields
    try:
        (message,) = messages_from_dict([{"type": kind, "data": data}])
    except UNEXPECTED as error:
        raise Odd(NO_MESSAGE, f"it is no message of LangChain: {error!s:.200}") from error
    return {**message_fields(message), **outer}


def _gemini(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of Gemini's API, with ``parts``, or of AI Studio, with ``text``; any other one as it is."""
    rest = {name: value for name, value in fields.items() if name != "parts"}
    parts: Any = fields.get("parts")
    if isinstance(parts, str | list):
        given = cast("list[Any]", [parts] if isinstance(parts, str) else parts)
        is_result = any(isinstance(part, dict) and not part.keys().isdisjoint(_GEMINI_RESULTS) for part in given)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - JSON
        return {**rest, "content": [_gemini_part(part) for part in given], **({"role": "tool"} if is_result else {})}
    if "text" in fields and "parts" not in fields and has_only(fields, _CHUNK):
        said = {"role": UNSAID} if fields.get("isThought") else {"role": fields["role"], "content": fields["text"]}
        return {**_kept(fields), **said}
    return fields


def _gemini_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, Any]", part)
    if isinstance(fields.get("text"), str) and has_only(fields, _GEMINI_TEXT):
        return {"type": "thinking"} if fields.get("thought") else {"type": "text", "text": fields["text"]}
    return {"type": "tool_use" if not fields.keys().isdisjoint(_GEMINI_CALLS) else "other"}


def _is_item(fields: Mapping[str, Any]) -> bool:
    """Whether it is an item of the Responses API that is no message: a call, a result, a thought."""
    kind = fields.get("type")
    return "role" not in fields and isinstance(kind, str) and (kind == "reasoning" or kind.endswith(_ITEMS))


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in _KEPT if name in fields}
