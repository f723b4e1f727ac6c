"""Conversations in the exports of ChatGPT, Claude and WhatsApp, and in lists of messages as OpenAI's API takes them.

Each reader turns the values or lines of a file into messages in one form: role, content, id, session_id, timestamp.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, tzinfo
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from inference_core.errors import InvalidInput
from inference_core.memory.secrets import quoted

Entry = tuple[str, Mapping[str, Any]]
"""Where a message is in its file, for errors, and its fields."""
_SPOKEN: Final = frozenset({"text", "multimodal_text"})
_SPEAKERS: Final = ("user", "human", "assistant")
_UNSAID: Final = "system"
"""The role given to what nobody said or saw, such as a model's thoughts; it is skipped."""
_MARKS: Final = r"[\u200e\u200f\u202a-\u202c]{0,4}"
"""Marks of the direction of text, which WhatsApp writes beside dates and names."""
_HEAD: Final = re.compile(
    rf"{_MARKS}\[?{_MARKS}(\d{{1,4}}){_MARKS}[./-]{_MARKS}(\d{{1,2}}){_MARKS}[./-]{_MARKS}(\d{{1,4}}){_MARKS}[,\u060c]?"
    rf"\s+{_MARKS}(\d{{1,2}})[:.](\d\d)(?:[:.](\d\d))?(?:\s*([AaPp\u0635\u0645])(?:\.?\s?[Mm]\.?)?)?{_MARKS}"
    r"(?:\]|\s+-)\s+(.*)",
    re.DOTALL,
)
_LATIN_HALVES: Final = frozenset("AaPp")
_AFTERNOON: Final = frozenset("Pp\u0645")
_AUTHOR: Final = re.compile(r"([^:\n]{1,100}): ?(.*)", re.DOTALL)
_MEDIA: Final = re.compile(r"\A(?:<[^<>\n]{1,60}>\Z|(?:\u200e[^\n]*(?:\n|\Z))+)")
"""A placeholder for a picture or other media, or a notice of WhatsApp itself. The picture's caption may follow."""
_HEADS: Final = 20
_MONTHS: Final = 12
_CENTURY: Final = 100


def chatgpt_entries(values: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    """The branch of each conversation that its user saw last.

    A conversation has a ``mapping`` of nodes with ``parent``, ``children`` and ``message``, and a ``current_node``.
    """
    for where, value in values:
        conversation = _object(value, where, "a conversation of ChatGPT")
        mapping = _object(conversation.get("mapping"), where, "a conversation of ChatGPT with a 'mapping'")
        branch = _branch(mapping, conversation.get("current_node"), where)
        # Old exports have no ids of conversations, and many titles are "New chat": their roots tell them apart.
        root = next((name for name, _ in branch), None)
        session = conversation.get("conversation_id") or conversation.get("id") or root
        for name, node in branch:
            place = f"{where}, node {name[:60]}"
            if node.get("message") is None:
                continue
            message = _object(node["message"], place, "a message")
            author = _object(message.get("author"), place, "an author with a 'role'")
            content = _object(message.get("content") or {"content_type": "none"}, place, "content with 'parts'")
            metadata = _object(message.get("metadata") or {}, place, "metadata")
            is_hidden = bool(metadata.get("is_visually_hidden_from_conversation"))
            # A transcript of speech is text, an image is not. The parts take the form of OpenAI's API.
            parts: list[Any] = [
                {"type": "text" if isinstance(part.get("text"), str) else "other", "text": part.get("text")}
                if isinstance(part, dict)
                else part
                for part in _list(content.get("parts", []), place, "parts")
            ]
            role = author.get("role")
            is_said = not is_hidden and content.get("content_type", "text") in _SPOKEN
            if role != "tool" and (role not in _SPEAKERS or not is_said):
                role = _UNSAID
            yield (
                place,
                {
                    "role": role,
                    "content": parts,
                    "id": message.get("id") or name,
                    "session_id": session,
                    "timestamp": message.get("create_time"),
                },
            )


def _branch(mapping: Mapping[str, Any], last: Any, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The nodes from the root to ``last``, or if that is unknown to the last node in ``mapping``."""
    if last not in mapping:
        last = next(reversed(list(mapping)), None)
    found: dict[str, Mapping[str, Any]] = {}
    while isinstance(last, str) and last in mapping:
        if last in found:
            raise InvalidInput(f"{where}: node {quoted(last)} is its own ancestor")
        found[last] = _object(mapping[last], where, "a node")
        last = found[last].get("parent")
    return list(reversed(found.items()))


def claude_entries(values: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    """The messages of conversations with ``chat_messages``, without attachments and results of tools."""
    for where, value in values:
        conversation = _object(value, where, "a conversation of Claude")
        for at, one in enumerate(_list(conversation.get("chat_messages"), where, "'chat_messages'"), 1):
            place = f"{where}, message {at}"
            message = _object(one, place, "a message")
            content: Any = message.get("content") or message.get("text") or ""
            session = conversation.get("uuid") or conversation.get("name")
            parts = cast("list[Any]", content) if isinstance(content, list) else []
            if any(
                isinstance(part, dict) and str(cast("dict[str, Any]", part).get("type")).startswith("tool")
                for part in parts
            ):
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


def openai_entries(values: Iterable[tuple[str, Any]], name: str) -> Iterator[Entry]:
    """Messages in an array, arrays of them, or objects with ``messages``; also LangChain's ``messages_to_dict``.

    Messages outside of such arrays and objects form one conversation, those of each array or object another. Without
    an id, its session is ``name``, that of the file, and its number.
    """
    for number, (where, value) in enumerate(values, 1):
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        held = given.get("messages") if isinstance(value, dict) else value
        if held is None:
            yield where, _plain(value, where)
            continue
        session = given.get("id") or given.get("session_id") or given.get("thread_id") or f"{name} {number}"
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


class Order(NamedTuple):
    """The positions, from 1, of the day, the month and the year in a date."""

    day: int
    month: int
    year: int


def is_whatsapp(lines: Iterable[str]) -> bool:
    """Whether one of the first lines begins like a WhatsApp message."""
    return any(_HEAD.match(line) for line in islice(lines, _HEADS))


def order_of(lines: Iterable[str]) -> Order:
    """The order of day, month and year in this chat. It depends on the phone's settings; numbers above 12 reveal it."""
    seen = Counter[str]()
    for found in filter(None, map(_HEAD.match, lines)):
        first, second = int(found[1]), int(found[2])
        if first > 31:  # noqa: PLR2004 - no day
            return Order(3, 2, 1)
        seen["day first"] += first > _MONTHS
        seen["month first"] += second > _MONTHS
        seen["american"] += found[7] in _LATIN_HALVES
    is_month_first = seen["month first"] or (seen["american"] and not seen["day first"])
    return Order(2, 1, 3) if is_month_first else Order(1, 2, 3)


def whatsapp_entries(lines: Iterable[tuple[int, str]], order: Order, name: str, zone: tzinfo) -> Iterator[Entry]:
    """The messages of a chat; those of one day form a session. ``zone`` is the phone's time zone."""
    held: tuple[int, re.Match[str], list[str]] | None = None
    for number, line in lines:
        if found := _HEAD.match(line):
            if held:
                yield from _entry(*held, order, name, zone)
            held = number, found, [found[8]]
        elif held:
            held[2].append(line)
    if held:
        yield from _entry(*held, order, name, zone)


def _entry(
    number: int, head: re.Match[str], texts: list[str], order: Order, name: str, zone: tzinfo
) -> Iterator[Entry]:
    said = _AUTHOR.fullmatch("\n".join(texts))
    year, hour = int(head[order.year]), int(head[4])
    if head[7]:
        hour = hour % 12 + 12 * (head[7] in _AFTERNOON)
    try:
        at = datetime(
            year + 2000 * (year < _CENTURY),
            int(head[order.month]),
            int(head[order.day]),
            hour,
            int(head[5]),
            int(head[6] or 0),
            tzinfo=zone,
        )
    except ValueError:
        at = None
    day = f"{at:%Y-%m-%d}" if at else "without date"
    fields = {"session_id": f"{name} {day}", "timestamp": at and at.isoformat()}
    text = _MEDIA.sub("", said[2]) if said else ""
    if said is None or not text:
        yield f"line {number}", {"role": "system", **fields}
    else:
        yield (
            f"line {number}",
            {"role": "user", "name": said[1].strip("\u200e\u200f\u202a\u202b\u202c "), "content": text, **fields},
        )
