"""Conversations in the exports of ChatGPT and Claude, and in lists of messages as OpenAI's API takes them.

Each reader turns the values of a file into messages in one form: role, content, id, session_id, timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from inference_core.errors import InvalidInput

Entry = tuple[str, Mapping[str, Any]]
"""A message, and where it is."""
_SPOKEN: Final = frozenset({"text", "multimodal_text"})
_SPEAKERS: Final = ("user", "human", "assistant")
_UNSAID: Final = "system"
"""The role of what is shown to nobody, such as a model's thoughts."""


def chatgpt_entries(values: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    """The branch of each conversation that its user saw last.

    A conversation has a ``mapping`` of nodes with ``parent``, ``children`` and ``message``, and a ``current_node``.
    """
    for where, value in values:
        conversation = _object(value, where, "a conversation of ChatGPT")
        mapping = _object(conversation.get("mapping"), where, "a conversation of ChatGPT with a 'mapping'")
        session = conversation.get("conversation_id") or conversation.get("id") or conversation.get("title")
        for name, node in _branch(mapping, conversation.get("current_node"), where):
            place = f"{where}, node {name[:60]}"
            if node.get("message") is None:
                continue
            message = _object(node["message"], place, "a message")
            author = _object(message.get("author"), place, "an author with a 'role'")
            content = _object(message.get("content") or {"content_type": "none"}, place, "content with 'parts'")
            metadata = message.get("metadata")
            is_hidden = isinstance(metadata, dict) and "is_visually_hidden_from_conversation" in metadata
            role = author.get("role")
            is_said = not is_hidden and content.get("content_type", "text") in _SPOKEN
            if role != "tool" and (role not in _SPEAKERS or not is_said):
                role = _UNSAID
            yield (
                place,
                {
                    "role": role,
                    "content": [_part(part) for part in _list(content.get("parts", []), place, "parts")],
                    "id": message.get("id") or name,
                    "session_id": session,
                    "timestamp": message.get("create_time"),
                },
            )


def _branch(mapping: Mapping[str, Any], last: Any, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The nodes from the first to ``last``, or if that is unknown to the newest leaf."""
    if last not in mapping:
        last = next(reversed(list(mapping)), None)
    found: dict[str, Mapping[str, Any]] = {}
    while isinstance(last, str) and last in mapping:
        if last in found:
            raise InvalidInput(f"{where}: node {last[:60]!r} is its own ancestor")
        found[last] = _object(mapping[last], where, "a node")
        last = found[last].get("parent")
    return list(reversed(found.items()))


def _part(part: Any) -> Any:
    """A text, or a part in the form of the API: a transcript of what was spoken is text, an image is not."""
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, Any]", part)
    return {"type": "text" if isinstance(fields.get("text"), str) else "other", "text": fields.get("text")}


def claude_entries(values: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    """Conversations with ``chat_messages``; attachments and the results of tools are not what anybody said."""
    for where, value in values:
        conversation = _object(value, where, "a conversation of Claude")
        for at, one in enumerate(_list(conversation.get("chat_messages"), where, "'chat_messages'"), 1):
            place = f"{where}, message {at}"
            message = _object(one, place, "a message")
            content: Any = message.get("content") or message.get("text") or ""
            session = conversation.get("uuid") or conversation.get("name")
            if isinstance(content, list) and any(map(_is_of_tool, cast("list[Any]", content))):
                yield place, {"role": "tool", "session_id": session}  # what follows may only repeat its results
            yield (
                place,
                {
                    "role": message["sender"] if message.get("sender") in _SPEAKERS else _UNSAID,
                    "content": content,
                    "id": message.get("uuid"),
                    "session_id": session,
                    "timestamp": message.get("created_at"),
                },
            )


def _is_of_tool(part: Any) -> bool:
    return isinstance(part, dict) and str(cast("dict[str, Any]", part).get("type")).startswith("tool")


def openai_entries(values: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    """Messages in an array, arrays of them, or objects with ``messages``; also LangChain's ``messages_to_dict``.

    Messages that stand alone are one conversation, those of each array or object another.
    """
    for number, (where, value) in enumerate(values, 1):
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        held = given.get("messages") if isinstance(value, dict) else value
        if held is None:
            yield where, _plain(value, where)
            continue
        session = given.get("id") or given.get("session_id") or given.get("thread_id") or f"conversation {number}"
        for at, message in enumerate(_list(held, where, "a list of messages"), 1):
            place = f"{where}, message {at}"
            yield place, {"session_id": session} | _plain(message, place)


def _plain(value: Any, where: str) -> dict[str, Any]:
    fields = dict(_object(value, where, "a message with 'role' and 'content'"))
    data = fields.get("data")
    if isinstance(data, dict) and "role" not in fields:
        held = cast("dict[str, Any]", data)
        return {"role": fields.get("type"), "content": held.get("content"), "id": held.get("id")}
    return fields


def _object(value: Any, where: str, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} is not {what}")
    return cast("Mapping[str, Any]", value)


def _list(value: Any, where: str, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"{where} has no {what}, or not as a list")
    return cast("list[Any]", value)
