"""Conversations in exports of ChatGPT and Claude, in LangGraph's checkpoints, and as OpenAI's API takes them.

Each reader turns the values of a file into entries (see `entries`). What a reader does not know to be harmless becomes
one field more, so that the message is not proven. JSON files, folders and zip archives of any size are read value by
value; hostile input is refused.

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
from functools import partial
from io import BufferedReader, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from inference_core.clock import moment_of
from inference_core.errors import InvalidInput, MissingExtra, StoreUnavailable, cannot_read, without_quotes
from inference_core.ingestion.formats.entries import (
    DAMAGED,
    FORM,
    NO_CONTENT,
    NO_CONVERSATION,
    NO_ROLE,
    OUTSIDE,
    UNEXPECTED,
    UNSAID,
    Entry,
    Odd,
    entry_of,
    held_messages,
    is_message,
    list_in,
    message_fields,
    object_in,
    session_of,
)
from inference_core.memory.namespaces import is_owner
from inference_core.memory.secrets import quoted
from inference_core.outbox.messages import has_only

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


MAX_VALUE_CHARACTERS: Final = 64 * 1024 * 1024
"""The longest single value: a conversation, a line."""
_CHUNK: Final = 1024 * 1024
_MAX_RATIO: Final = 200
_FREE_BYTES: Final = 16 * _CHUNK
_BETWEEN: Final = re.compile(r"[\s,]*")
_DECODER: Final = json.JSONDecoder()
_MAX_DAMAGED: Final = 100
"""So many values of a file may be no JSON: looking for the next one reads the rest of the file."""
_BROKEN_ARCHIVE: Final = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError)
_ERRORS: Final = "surrogateescape"


def json_values(path: Path) -> Iterator[tuple[str, Any]]:
    """The values in a JSON file, each with its place: the elements of arrays, or values one after the other.

    Of a folder or zip archive, those of its files ``conversations….json``. Only one value at a time is in memory. What
    is not JSON, or too large, is an `Odd`; the values behind it follow if they begin on a line of their own. Raises
    InvalidInput for a file that cannot be read at all.
    """
    with text_files(path, r"conversations[^/]*\.json") as files:
        for name, file in files:
            for number, value in enumerate(_values(file), 1):
                yield f"{name}, value {number}" if name else f"value {number}", value


def _values(file: IO[str]) -> Iterator[Any]:
    buffer, at, is_array, is_over, indent, damaged = "", 0, None, False, "", 0
    while True:
        between = cast("re.Match[str]", _BETWEEN.match(buffer, at))  # matches anything
        at = between.end()
        if "\n" in between[0]:
            indent = between[0].rpartition("\n")[2]
        if is_array is None and at < len(buffer):
            is_array = buffer[at] == "["
            at += is_array
        elif is_array and buffer.startswith("]", at):
            is_array, at = None, at + 1  # another array may follow, such as the next page of an API
        elif found := _decoded(buffer, at, is_over=is_over, is_array=bool(is_array)):
            value, end = found
            yield value
            if end is None:
                damaged += 1
                following = re.compile(rf"\n{indent}[\[{{]").search(buffer, at)
                if following is None or damaged == _MAX_DAMAGED:
                    return
                end = following.end() - 1
            at = end
        elif is_over:
            return
        else:
            try:
                more = file.read(max(_CHUNK, len(buffer) - at))  # doubles the buffer, so that the total time is linear
            except (*_BROKEN_ARCHIVE, InvalidInput) as error:
                yield Odd(DAMAGED, f"it cannot be read on: {error}")
                return
            is_over = not more
            buffer, at = buffer[at:] + more, 0


def _decoded(buffer: str, at: int, *, is_over: bool, is_array: bool) -> tuple[Any, int | None] | None:
    """The value that begins at ``at``, and its end; an `Odd` without one; None if it is not known before more is read.

    ``is_over``: nothing follows the buffer.
    """
    try:
        value, end = _DECODER.raw_decode(buffer, at)
    except (ValueError, RecursionError) as error:
        if is_over and (at < len(buffer) or is_array):
            return Odd(DAMAGED, f"it is not JSON, or cut off: {error!s:.100}"), None
    else:
        if end < len(buffer) or is_over:  # else a number may go on in the next chunk: 12, 123
            return (value if was_utf8(buffer[at:end]) else Odd(DAMAGED, "it is not text in UTF-8")), end
    if not is_over and len(buffer) - at > MAX_VALUE_CHARACTERS:
        return Odd(DAMAGED, f"it is not JSON, or has more than {MAX_VALUE_CHARACTERS // 1024**2} MB"), None
    return None


def was_utf8(text: str) -> bool:
    """Whether all bytes of ``text``, read from one of the `text_files`, were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def text_files(path: Path, member: str) -> Generator[Iterator[tuple[str, IO[str]]]]:
    """The file as text; of a folder or zip archive, the files whose names match ``member``, sorted.

    Each comes with its name, "" for the only one. Bytes that are not UTF-8 become lone surrogates. Raises InvalidInput.
    """
    try:
        if path.is_dir():
            found = [one for one in _files_in(path) if re.fullmatch(member, one.name)]
            yield ((file.name if len(found) > 1 else "", text) for file in found for text in _opened_text(file))
            return
        if not zipfile.is_zipfile(path):
            yield (("", text) for text in _opened_text(path))
            return
        with zipfile.ZipFile(path) as archive:
            names = sorted(one for one in archive.namelist() if re.fullmatch(member, one.rpartition("/")[2]))
            if not names:
                raise InvalidInput(f"{path} holds no conversations: no file in it is named as in a known export")
            sizes = {name: archive.getinfo(name).compress_size for name in names}
            bounded = ((name, _Bounded(archive.open(name), f"{path}, {name}", size)) for name, size in sizes.items())
            yield (
                (name if len(names) > 1 else "", TextIOWrapper(BufferedReader(raw, _CHUNK), "utf-8-sig", _ERRORS))
                for name, raw in bounded
            )
    except OSError as error:
        raise cannot_read(path, error) from error
    except _BROKEN_ARCHIVE as error:
        raise InvalidInput(f"{path} is no zip archive that can be read: {error}") from error


def _files_in(folder: Path) -> list[Path]:
    """The files in ``folder`` and in the folders in it, sorted."""
    return sorted(one for depth in ("*", "*/*") for one in folder.glob(depth) if one.is_file())


def _opened_text(path: Path) -> Iterator[IO[str]]:
    with path.open(encoding="utf-8-sig", errors=_ERRORS) as file:
        yield file


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
    """The lines of ``file`` and their numbers, from 1. Raises InvalidInput for one that is too long."""
    for number, line in enumerate(iter(partial(file.readline, _CHUNK + 1), ""), 1):
        if len(line) > _CHUNK:
            raise InvalidInput(f"{where}, line {number} has more than {_CHUNK} characters")
        yield number, line.rstrip("\r\n")


OTHERS: Final = "threads of other users"
NOBODYS: Final = "threads that name no user"
_THREADS: Final = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id"
_USERS: Final = ("langgraph_auth_user_id", "user_id")


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
            where = f"thread {thread[:60]}"
            try:
                state = saver.get_tuple({"configurable": {"thread_id": thread}})
            except UNEXPECTED as error:  # whose it is is not known either
                yield where, Odd(DAMAGED, f"its state cannot be read: {error!r:.200}", thread)
                continue
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
                yield where, {"role": UNSAID, "session_id": thread, **OUTSIDE}
            messages: Any = values.get("messages")
            for at, message in enumerate(cast("list[Any]", messages) if isinstance(messages, list) else [], 1):
                place = f"{where}, message {at}"
                if isinstance(message, BaseMessage):
                    fields = {"session_id": thread, **message_fields(message)}
                    fields["timestamp"] = fields["timestamp"] or state.checkpoint["ts"]
                    yield place, fields
                else:  # a graph of one's own may keep them as OpenAI's API takes them
                    yield entry_of(place, thread, object_in, message, "it is not a message")


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


_CONVERSATION_IDS: Final = ("id", "session_id", "thread_id", "conversation_id")
_LOST: Final = ""
"""The parent of a message that names none."""
_SPEAKERS: Final = ("user", "human", "assistant")
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
    "attachments", "files", "index",
})  # fmt: skip
_CLAUDE_BLOCK: Final = frozenset({"start_timestamp", "stop_timestamp", "flags"})
_UNSHOWN: Final = re.compile(r"```\s?This block is not supported on your current device yet\.\s?```\s?")
"""What stands in a message's text in place of each block that is none."""
_CLAUDE_THOUGHT: Final = frozenset({"thinking", "redacted_thinking", "token_budget"})


def chatgpt_entries(values: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    """The branch of each conversation that its user saw last.

    A conversation has a ``mapping`` of nodes with ``parent``, ``children`` and ``message``, and a ``current_node``.
    """
    for where, value in values:
        conversation = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        mapping: Any = conversation.get("mapping")
        if not isinstance(mapping, dict):
            yield where, _no_conversation(value, "a conversation of ChatGPT with a 'mapping'")
            continue
        nodes = cast("dict[str, Any]", mapping)
        known = {name: cast("dict[str, Any]", node) for name, node in nodes.items() if isinstance(node, dict)}
        parents = {name: known[name].get("parent", _LOST) if name in known else _LOST for name in nodes}
        branch, is_circle = _branch(parents, conversation.get("current_node"))
        # Old exports have no ids of conversations, and many titles are "New chat": their roots tell them apart.
        session = session_of(conversation.get("conversation_id"), conversation.get("id"), *branch[:1])
        if is_circle:
            yield where, Odd(NO_CONVERSATION, f"node {quoted(branch[0])} is its own ancestor", session)
        if conversation.get("gizmo_id") or conversation.get("plugin_ids"):
            yield where, {"role": UNSAID, "session_id": session, **OUTSIDE}  # instructions and files of somebody else
        for name in branch:
            node: Any = nodes[name]
            if not isinstance(node, dict) or cast("dict[str, Any]", node).get("message") is not None:
                yield entry_of(f"{where}, node {name[:60]}", session, _chatgpt_message, name, node)


def _chatgpt_message(name: str, node: Any) -> dict[str, Any]:
    message = object_in(object_in(node, "it is not a node")["message"], "it is not a message")
    author = _as_object(message.get("author"), "role", "its author has no 'role'", NO_ROLE)
    content = _as_object(message.get("content") or {"content_type": "none"}, "parts", "its content has no 'parts'")
    metadata = object_in(message.get("metadata") or {}, "its metadata are no object")
    kind, role = content.get("content_type", "text"), author.get("role")
    has_text = "parts" not in content and kind in _SPOKEN
    given: Any = content.get("text" if has_text else "parts")
    if not isinstance(given, list | str | None):
        raise Odd(NO_CONTENT, "its content has no parts, or not as a list")
    parts = list_in(given)
    is_hidden = bool(metadata.get("is_visually_hidden_from_conversation"))
    is_said = role in _SPEAKERS and not is_hidden and kind in _SPOKEN
    is_plain_text = has_only(content, frozenset({"content_type", "text" if has_text else "parts"}))
    is_empty = is_plain_text and not any(parts)
    is_harmless = (
        (is_plain_text if is_said else is_empty or (role == "assistant" and kind in _THOUGHT))
        and message.get("recipient") in (None, "all")  # else it calls a tool
        and has_only(message, _CHATGPT_MESSAGE)
        and has_only(metadata, _CHATGPT_METADATA)
        and has_only(author, frozenset({"role", "name"}))
    )
    return {
        "role": role if is_said or role == "tool" else UNSAID,
        "content": [_part(part) for part in parts if part is not None] if is_said else None,
        "id": message.get("id") or name,
        "timestamp": message.get("create_time"),
        "name": author.get("name") if is_said else None,
        **({} if is_harmless else OUTSIDE),
    }


def _as_object(value: Any, name: str, why: str, reason: str = NO_CONTENT) -> Mapping[str, Any]:
    """``value``, or a text as an object that has it as ``name``. Raises Odd, which says ``why``."""
    return {name: value} if isinstance(value, str) else object_in(value, why, reason)


def _part(part: Any) -> Any:
    """A part of a message of ChatGPT in the form of OpenAI's API. A transcript of speech is text, an image is not."""
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, Any]", part)
    is_transcript = fields.get("content_type") == "audio_transcription" and has_only(fields, _TRANSCRIPT)
    is_text = isinstance(fields.get("text"), str)
    named = {"type": "text"} if is_transcript else {}
    return {**named, "text": fields["text"]} if is_text else {"type": "other"}


def _branch(parents: Mapping[str, Any], last: Any) -> tuple[list[str], bool]:
    """The messages from the root to ``last``, by their ids and those of their parents; whether one is its own ancestor.

    If ``last`` is unknown, it is the newest message. The parent of one whose parent is not there is the message before
    it, unless this is where the first one begins, too.
    """
    names = list(parents)
    before = dict(zip(names[1:], names, strict=False))
    last = last if isinstance(last, str) and last in parents else next(reversed(names), None)
    found: dict[str, None] = {}
    while last is not None and last not in found:
        found[last] = None
        parent = parents[last]
        is_root = parent is None or (parent != _LOST and parent == parents[names[0]])
        is_known = isinstance(parent, str) and parent in parents
        last = parent if is_known else None if is_root else before.get(last)
        while last in found and not is_known:
            last = before.get(last)
    return [*reversed(found)], last is not None


def claude_entries(values: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    """The branch of each conversation with ``chat_messages`` that its user saw last, without results of tools.

    The text of an attachment is a message under the name of the file: somebody else may have written it.
    """
    for where, value in values:
        conversation = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        messages: Any = conversation.get("chat_messages")
        if not isinstance(messages, list):
            yield where, _no_conversation(value, "a conversation of Claude with a list of 'chat_messages'")
            continue
        session = session_of(conversation.get("uuid"), conversation.get("name"))
        hidden = _hidden(cast("list[Any]", messages), conversation.get("current_leaf_message_uuid"))
        for at, message in enumerate(cast("list[Any]", messages), 1):
            if _uuid(message) not in hidden:
                yield from _claude_message(f"{where}, message {at}", session, message)


def _hidden(messages: list[Any], last: Any) -> set[str]:
    """The ids of the messages that are not on the branch that ends with ``last``; none if none names its parent."""
    known = {name: cast("dict[str, Any]", message) for message in messages if (name := _uuid(message))}
    parents = {name: message.get("parent_message_uuid", _LOST) for name, message in known.items()}
    if last not in known and known:
        said = [moment_of(message.get("created_at")) for message in known.values()]
        newest = max((at for at in said if at), default=None)
        last = [name for name, at in zip(known, said, strict=True) if at == newest][-1]
    return {*parents}.difference(_branch(parents, last)[0]) if set(parents.values()) != {_LOST} else set()


def _uuid(message: Any) -> str | None:
    found: Any = cast("dict[str, Any]", message).get("uuid") if isinstance(message, dict) else None
    return found if isinstance(found, str) else None


def _claude_message(place: str, session: Any, message: Any) -> Iterator[Entry]:
    """A message, before it its tools, and behind it the texts of its attachments."""
    where, fields = entry_of(place, session, _claude_fields, message)
    if isinstance(fields, Odd):
        yield where, fields
        return
    texts = fields.pop("attached")
    if fields.pop("has_tools"):
        yield place, {"role": "tool", "session_id": session}  # what follows may only repeat its results
    yield where, fields
    for at, (name, text) in enumerate(texts, 1):
        shown = {"role": fields["role"], "content": text, "name": name, "timestamp": fields["timestamp"]}
        id_ = f"{fields['id']}#{at}" if fields["id"] else None
        yield f"{place}, attachment {at}", {"session_id": session, "id": id_, **shown, **OUTSIDE}


def _claude_fields(message: Any) -> dict[str, Any]:
    fields = object_in(message, "it is not a message")
    parts = list_in(fields.get("content"))
    blocks = [_block(part) for part in parts]
    kinds = [str(cast("dict[str, Any]", part).get("type")) for part in parts if isinstance(part, dict)]
    text: Any = fields.get("text")
    if text and not any(_has_text(block) for block in blocks):
        blocks.append(_UNSHOWN.sub("", text) if isinstance(text, str) else text)
    files = [file for name in ("attachments", "files") for file in list_in(fields.get(name))]
    attached = [found for file in files if (found := _attached(file))]
    is_known = fields.get("sender") in _SPEAKERS and has_only(fields, _CLAUDE_MESSAGE)
    return {
        "role": fields["sender"] if fields.get("sender") in _SPEAKERS else UNSAID,
        "content": [*blocks, *({"type": "file"} for file in files if not _attached(file))],
        "id": fields.get("uuid"),
        "timestamp": fields.get("created_at"),
        "attached": attached,
        "has_tools": any(kind.startswith("tool") for kind in kinds),
        **({} if is_known and not files else OUTSIDE),
    }


def _attached(file: Any) -> tuple[str, str] | None:
    """The name and the text of an attachment; None if the export does not have its text."""
    fields = cast("dict[str, Any]", file) if isinstance(file, dict) else {}
    text: Any = fields.get("extracted_content")
    named = next((fields[one] for one in ("file_name", "name", "id") if isinstance(fields.get(one), str)), "")
    return (named or "attachment", text) if isinstance(text, str) and text.strip() else None


def _has_text(block: Any) -> bool:
    text: Any = cast("dict[str, Any]", block).get("text") if isinstance(block, dict) else block
    return isinstance(text, str) and bool(text.strip())


def _block(part: Any) -> Any:
    """A block of a message of Claude, without its times; of a thought, only that it is one. Voice notes are text."""
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, Any]", part)
    if fields.get("type") in _CLAUDE_THOUGHT:
        return {"type": "thinking"}
    known = {name: held for name, held in fields.items() if name not in _CLAUDE_BLOCK}
    if fields.get("type") == "voice_note":
        return {name: held for name, held in known.items() if name != "title"} | {"type": "text"}
    return known


def openai_entries(values: Iterable[tuple[str, Any]], name: str) -> Iterator[Entry]:
    """Messages in an array, arrays of them, or objects with ``messages`` or the like; in any shape of `fields_of`.

    Messages outside of such arrays and objects form one conversation, those of each array or object another. Without
    an id, its session is ``name``, that of the file, and its number.
    """
    for number, (where, value) in enumerate(values, 1):
        try:
            messages = held_messages(value)
        except Odd as error:
            yield where, error
            continue
        if messages is None:
            yield where, value if is_message(value) else _no_conversation(value, "a message, or messages in a list")
            continue
        session = f"{name} {number}"
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            around: list[Any] = [given, given.get("checkpoint"), given.get("metadata")]
            dicts = [cast("dict[str, Any]", one) for one in around if isinstance(one, dict)]
            ids = [one.get(key) for one in dicts for key in _CONVERSATION_IDS]
            session = session_of(*ids) or session
        for at, message in enumerate(messages, 1):
            yield entry_of(f"{where}, message {at}", session, object_in, message, f"it is not {FORM}")


def _no_conversation(value: Any, what: str) -> Odd:
    return value if isinstance(value, Odd) else Odd(NO_CONVERSATION, f"it is not {what}")
