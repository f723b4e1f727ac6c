"""Conversations in the exports of ChatGPT, Claude and WhatsApp, and in lists of messages as OpenAI's API takes them.

Each reader turns the values or lines of a file into messages in one form: role, content, id, session_id, timestamp,
name. What a reader does not know to be harmless becomes one field more, so that the message is not proven.
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
from inference_core.outbox.outside import has_only

Entry = tuple[str, Mapping[str, Any]]
"""Where a message is in its file, for errors, and its fields."""
OUTSIDE: Final = {"outside": "yes"}
"""A field that no message has: it says that the message, or something that came with it, may be from outside."""
_SPEAKERS: Final = ("user", "human", "assistant")
_UNSAID: Final = "system"
"""The role given to what nobody said or saw, such as a model's thoughts; it is skipped."""
_SPOKEN: Final = frozenset({"text", "multimodal_text"})
_THOUGHT: Final = frozenset({"thoughts", "reasoning_recap"})
_CHATGPT_MESSAGE: Final = frozenset({
    "id", "author", "create_time", "update_time", "content", "status", "end_turn", "weight", "metadata", "recipient",
    "channel",
})  # fmt: skip
_CHATGPT_METADATA: Final = frozenset({
    "request_id", "message_type", "model_slug", "default_model_slug", "resolved_model_slug", "parent_id",
    "finish_details", "is_complete", "timestamp_", "message_source", "turn_exchange_id", "working_turn_id",
    "conversation_id", "reasoning_status", "reasoning_title", "thinking_effort", "finished_text", "initial_text",
    "voice_mode_message", "is_visually_hidden_from_conversation", "serialization_metadata", "gizmo_id", "pad",
    "requested_model_slug", "sonic_classification_result", "selected_sources", "system_hints",
})  # fmt: skip
_TRANSCRIPT: Final = frozenset({"content_type", "text", "direction", "decoding_id"})
_CLAUDE_MESSAGE: Final = frozenset({
    "uuid", "text", "content", "sender", "created_at", "updated_at", "parent_message_uuid", "stop_reason", "input_mode",
    "attachments", "files",
})  # fmt: skip
_CLAUDE_BLOCK: Final = frozenset({"start_timestamp", "stop_timestamp", "flags"})
_CLAUDE_THOUGHT: Final = frozenset({"thinking", "redacted_thinking", "token_budget"})
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
        if conversation.get("gizmo_id") or conversation.get("plugin_ids"):
            yield where, {"role": _UNSAID, "session_id": session, **OUTSIDE}  # instructions and files of somebody else
        for name, node in branch:
            place = f"{where}, node {name[:60]}"
            if node.get("message") is None:
                continue
            message = _object(node["message"], place, "a message")
            author = _object(message.get("author"), place, "an author with a 'role'")
            content = _object(message.get("content") or {"content_type": "none"}, place, "content with 'parts'")
            metadata = _object(message.get("metadata") or {}, place, "metadata")
            parts = _list(content.get("parts", []), place, "parts")
            kind, role = content.get("content_type", "text"), author.get("role")
            is_hidden = bool(metadata.get("is_visually_hidden_from_conversation"))
            is_said = role in _SPEAKERS and not is_hidden and kind in _SPOKEN
            is_plain_text = has_only(content, frozenset({"content_type", "parts"}))
            is_empty = is_plain_text and not any(parts)
            is_harmless = (
                (is_plain_text if is_said else is_empty or (role == "assistant" and kind in _THOUGHT))
                and message.get("recipient") in (None, "all")  # else it calls a tool
                and has_only(message, _CHATGPT_MESSAGE)
                and has_only(metadata, _CHATGPT_METADATA)
                and has_only(author, frozenset({"role", "name"}))
            )
            yield (
                place,
                {
                    "role": role if is_said or role == "tool" else _UNSAID,
                    "content": [_part(part) for part in parts] if is_said else None,
                    "id": message.get("id") or name,
                    "session_id": session,
                    "timestamp": message.get("create_time"),
                    "name": author.get("name") if is_said else None,
                    **({} if is_harmless else OUTSIDE),
                },
            )


def _part(part: Any) -> Any:
    """A part of a message of ChatGPT in the form of OpenAI's API. A transcript of speech is text, an image is not."""
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, Any]", part)
    is_transcript = fields.get("content_type") == "audio_transcription" and has_only(fields, _TRANSCRIPT)
    is_text = isinstance(fields.get("text"), str)
    named = {"type": "text"} if is_transcript else {}
    return {**named, "text": fields["text"]} if is_text else {"type": "other"}


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
    """The messages of conversations with ``chat_messages``, without results of tools.

    An attachment or file is a part without text: what is in it, somebody else may have written.
    """
    for where, value in values:
        conversation = _object(value, where, "a conversation of Claude")
        for at, one in enumerate(_list(conversation.get("chat_messages"), where, "'chat_messages'"), 1):
            place = f"{where}, message {at}"
            message = _object(one, place, "a message")
            content: Any = message.get("content") or message.get("text") or ""
            session = conversation.get("uuid") or conversation.get("name")
            parts = cast("list[Any]", content) if isinstance(content, list) else [content]
            blocks = [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]
            if any(str(block.get("type")).startswith("tool") for block in blocks):
                yield place, {"role": "tool", "session_id": session}  # what follows may only repeat its results
            files = [file for name in ("attachments", "files") for file in message.get(name) or ()]
            is_known = message.get("sender") in _SPEAKERS and has_only(message, _CLAUDE_MESSAGE)
            yield (
                place,
                {
                    "role": message["sender"] if message.get("sender") in _SPEAKERS else _UNSAID,
                    "content": [*map(_block, parts), *({"type": "file"} for _ in files)],
                    "id": message.get("uuid"),
                    "session_id": session,
                    "timestamp": message.get("created_at"),
                    **({} if is_known else OUTSIDE),
                },
            )


def _block(part: Any) -> Any:
    """A block of a message of Claude, without its times; of a thought, only that it is one."""
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, Any]", part)
    if fields.get("type") in _CLAUDE_THOUGHT:
        return {"type": "thinking"}
    return {name: held for name, held in fields.items() if name not in _CLAUDE_BLOCK}


def openai_entries(values: Iterable[tuple[str, Any]], name: str) -> Iterator[Entry]:
    """Messages in an array, arrays of them, or objects with ``messages``; OpenAI's or LangChain's.

    Messages outside of such arrays and objects form one conversation, those of each array or object another. Without
    an id, its session is ``name``, that of the file, and its number.
    """
    what = "a message with 'role' and 'content'"
    for number, (where, value) in enumerate(values, 1):
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        held = given.get("messages") if isinstance(value, dict) else value
        if held is None:
            yield where, _object(value, where, what)
            continue
        session = given.get("id") or given.get("session_id") or given.get("thread_id") or f"{name} {number}"
        for at, message in enumerate(_list(held, where, "a list of messages"), 1):
            place = f"{where}, message {at}"
            yield place, {"session_id": session, **_object(message, place, what)}


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
