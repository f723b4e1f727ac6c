"""Conversations in exports of ChatGPT, Claude and WhatsApp, in LangGraph's checkpoints, and as OpenAI's API takes them.

Each reader turns the values or lines of a file into messages in one form: role, content, id, session_id, timestamp,
name. What a reader does not know to be harmless becomes one field more, so that the message is not proven. JSON files
and zip archives of any size are read value by value; damaged and hostile input is refused.

A checkpointer's database is only read, and holds the threads of many users. So a thread is read if its checkpoint names
the user, or if the caller names the thread; a thread that names another user never is.
"""

from __future__ import annotations

import json
import re
import sqlite3
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, tzinfo
from functools import partial
from io import BufferedReader, RawIOBase, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast

from langchain_core.messages import AIMessage, BaseMessage, FunctionMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from inference_core.errors import InvalidInput, MissingExtra, StoreUnavailable, without_quotes
from inference_core.memory.namespaces import is_owner
from inference_core.memory.secrets import quoted
from inference_core.outbox.messages import has_calls, has_only, is_plain, label

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


MAX_VALUE_CHARACTERS: Final = 64 * 1024 * 1024
"""The longest single value: a conversation, a line."""
_CHUNK: Final = 1024 * 1024
_MAX_RATIO: Final = 200
_FREE_BYTES: Final = 16 * _CHUNK
_BETWEEN: Final = re.compile(r"[\s,]*")


def json_values(path: Path) -> Iterator[tuple[str, Any]]:
    """The values in a JSON file, each with its place: the elements of arrays, or values one after the other.

    Of a zip archive, those of its files ``conversations….json``. Only one value at a time is in memory. Raises
    InvalidInput, which says where, for input that is not JSON, damaged, too large, or unpacks to far more than its
    size.
    """
    with text_files(path, r"conversations[^/]*\.json") as files:
        count = 0
        for file in files:
            for value in _values(file, f"{path}, value", count):
                count += 1
                yield f"value {count}", value


def _values(file: IO[str], where: str, before: int) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    buffer, at, count, is_array, is_over = "", 0, before, None, False
    while True:
        at = _BETWEEN.match(buffer, at).end()  # pyright: ignore[reportOptionalMemberAccess] - matches anything
        if is_array is None and at < len(buffer):
            is_array = buffer[at] == "["
            at += is_array
            continue
        if is_array and buffer.startswith("]", at):
            is_array, at = None, at + 1  # another array may follow, such as the next page of an API
            continue
        try:
            value, end = decoder.raw_decode(buffer, at)
            if end < len(buffer) or is_over:  # else a number may go on in the next chunk: 12, 123
                at, count = end, count + 1
                yield value
                continue
        except (ValueError, RecursionError) as error:
            if is_over and (at < len(buffer) or is_array):
                raise InvalidInput(f"{where} {count + 1} is not JSON, or cut off: {error!s:.100}") from error
        if is_over:
            return
        size = len(buffer) - at
        if size > MAX_VALUE_CHARACTERS:
            raise InvalidInput(
                f"{where} {count + 1} is not JSON, or has more than {MAX_VALUE_CHARACTERS // 1024**2} MB"
            )
        try:
            more = file.read(max(_CHUNK, size))  # doubles the buffer, so that the total time is linear
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{where.removesuffix(', value')} is not text in UTF-8: {error}") from error
        is_over = not more
        buffer, at = buffer[at:] + more, 0


@contextmanager
def text_files(path: Path, member: str) -> Generator[Iterator[IO[str]]]:
    """The file as text, or the files in a zip archive whose names match ``member``, sorted. Raises InvalidInput."""
    try:
        if not zipfile.is_zipfile(path):
            with path.open(encoding="utf-8-sig") as file:
                yield iter([file])
            return
        with zipfile.ZipFile(path) as archive:
            names = sorted(one for one in archive.namelist() if re.fullmatch(member, one.rpartition("/")[2]))
            if not names:
                raise InvalidInput(f"{path} holds no conversations: no file in it is named as in a known export")
            sizes = {name: archive.getinfo(name).compress_size for name in names}
            bounded = (_Bounded(archive.open(name), f"{path}, {name}", size) for name, size in sizes.items())
            yield (TextIOWrapper(BufferedReader(raw, _CHUNK), encoding="utf-8-sig") for raw in bounded)
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error}") from error
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise InvalidInput(f"{path} is no zip archive that can be read: {error}") from error


class _Bounded(RawIOBase):
    """A file in an archive that may not unpack to far more than its size."""

    def __init__(self, file: IO[bytes], name: str, packed: int) -> None:
        self._file, self._name = file, name
        self._left = packed * _MAX_RATIO + _FREE_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        self._left -= len(found)
        if self._left < 0:
            raise InvalidInput(f"{self._name} unpacks to more than {_MAX_RATIO} times its size")
        return len(found)


def text_lines(file: IO[str], where: str) -> Iterator[tuple[int, str]]:
    """The lines of ``file`` and their numbers, from 1. Raises InvalidInput for one too long or not in UTF-8."""
    try:
        for number, line in enumerate(iter(partial(file.readline, _CHUNK + 1), ""), 1):
            if len(line) > _CHUNK:
                raise InvalidInput(f"{where}, line {number} has more than {_CHUNK} characters")
            yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where} is not text in UTF-8: {error}") from error


OTHERS: Final = "threads of other users"
NOBODYS: Final = "threads that name no user"
_THREADS: Final = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id"
_USERS: Final = ("langgraph_auth_user_id", "user_id")
FRAMEWORKS: Final = "messages of a framework"
"""The role given to what a framework wrote, such as a summary, in whatever role; it is skipped."""
_KINDS: Final = {
    HumanMessage: "user",
    AIMessage: "assistant",
    ToolMessage: "tool",
    FunctionMessage: "function",
}


def thread_entries(place: str, user_id: str, threads: Iterable[str], skipped: Counter[str]) -> Iterator[Entry]:
    """The messages in the newest state of the user's threads at ``place``, a path or a ``postgresql://`` URL.

    Those of ``threads`` that name no user are read, too. A message without a time gets that of the thread's newest
    checkpoint. Raises InvalidInput if one of ``threads`` does not exist or is another user's, StoreUnavailable.
    """
    named = set(threads)
    with _opened(place) as (saver, found):
        if missing := sorted(named.difference(found)):
            raise InvalidInput(f"{'The database' if '://' in place else place} has no thread {quoted(missing[0])}")
        for thread in found:
            state = saver.get_tuple({"configurable": {"thread_id": thread}})
            if state is None:
                continue
            # LangGraph's metadata name the user, or else this package's middleware does.
            metadata, values = cast("dict[str, Any]", state.metadata), state.checkpoint.get("channel_values", {})
            found_owner = next((metadata[name] for name in _USERS if metadata.get(name)), None)
            owner: str | None = values.get("memory_owner") if found_owner is None else str(found_owner)
            is_users = owner == user_id if found_owner is not None else is_owner(owner, user_id)
            if owner is not None and not is_users and thread in named:
                raise InvalidInput(f"The thread {quoted(thread)} is another user's")
            if not is_users and thread not in named:
                skipped[OTHERS if owner else NOBODYS] += 1
                continue
            if values.get("memory_outside"):  # its message may have been trimmed or summarized since
                yield f"thread {thread[:60]}", {"role": "system", "session_id": thread, **OUTSIDE}
            messages: Any = values.get("messages")
            for at, message in enumerate(cast("list[Any]", messages) if isinstance(messages, list) else [], 1):
                if isinstance(message, BaseMessage):
                    fields = {"session_id": thread, **message_fields(message)}
                    fields["timestamp"] = fields["timestamp"] or state.checkpoint["ts"]
                    yield f"thread {thread[:60]}, message {at}", fields


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """A message of LangChain in the readers' form; a `FRAMEWORKS` message if a framework marked it as its own."""
    role = next((role for kind, role in _KINDS.items() if isinstance(message, kind)), "system")
    is_harmless = is_plain(message) and not has_calls(message)
    return {
        "role": FRAMEWORKS if message.additional_kwargs.get("lc_source") else role,
        "content": message.text,
        "id": message.id,
        "timestamp": message.additional_kwargs.get("timestamp"),
        "name": label(message.name) if isinstance(message, HumanMessage) else None,
        **({} if is_harmless else OUTSIDE),
    }


@contextmanager
def _opened(place: str) -> Generator[tuple[BaseCheckpointSaver[str], list[str]]]:
    """The checkpointer, and its threads. Restores only built-in and LangChain's types; anything else stays data."""
    serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    if "://" not in place:
        try:
            uri = f"{Path(place).absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
                saver = SqliteSaver(connection, serde=serde)
                saver.is_setup = True  # its set-up would write to the file
                yield saver, [str(thread) for (thread,) in connection.execute(_THREADS)]
        except sqlite3.Error as error:
            raise StoreUnavailable(
                f"{place} cannot be read as a LangGraph checkpointer's: {without_quotes(error)}"
            ) from error
        return
    try:
        import psycopg  # noqa: PLC0415 - an extra
        from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - the same extra
        from psycopg.rows import dict_row  # noqa: PLC0415 - the same extra

        from inference_core.stores.backends.sql.postgres import parameters_of  # noqa: PLC0415 - the same extra
    except ImportError as error:
        raise MissingExtra("Checkpoints in PostgreSQL", "postgres") from error

    class Reader(PostgresSaver):
        @contextmanager
        def _cursor(self, *, pipeline: bool = False) -> Generator[Any]:
            with cast("Any", self.conn).transaction(), super()._cursor(pipeline=pipeline) as cursor:
                yield cursor

    try:
        with psycopg.connect(**parameters_of(place), autocommit=True) as connection:
            connection.read_only = True  # each transaction, not the session, which a pooler lends to others
            threads = [str(thread) for (thread,) in connection.execute(_THREADS)]
            connection.row_factory = cast("Any", dict_row)
            yield Reader(cast("Any", connection), serde=serde), threads
    except psycopg.Error as error:
        raise StoreUnavailable(f"PostgreSQL: {without_quotes(error)}") from error


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
    for match in filter(None, map(_HEAD.match, lines)):
        first, second = int(match[1]), int(match[2])
        if first > 31:  # noqa: PLR2004 - no day
            return Order(3, 2, 1)
        seen["day first"] += first > _MONTHS
        seen["month first"] += second > _MONTHS
        seen["american"] += match[7] in _LATIN_HALVES
    is_month_first = seen["month first"] or (seen["american"] and not seen["day first"])
    return Order(2, 1, 3) if is_month_first else Order(1, 2, 3)


def whatsapp_entries(lines: Iterable[tuple[int, str]], order: Order, name: str, zone: tzinfo) -> Iterator[Entry]:
    """The messages of a chat; those of one day form a session. ``zone`` is the phone's time zone."""
    held: tuple[int, re.Match[str], list[str]] | None = None
    for number, line in lines:
        if match := _HEAD.match(line):
            if held:
                yield from _entry(*held, order, name, zone)
            held = number, match, [match[8]]
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
