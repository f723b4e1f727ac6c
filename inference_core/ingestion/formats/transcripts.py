"""Detects the format of a file of conversations and turns its messages into one form; also reads JSON Lines."""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, tzinfo
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast

from langchain_core.messages import AIMessage, HumanMessage, messages_from_dict

from inference_core.clock import moment_of
from inference_core.errors import InvalidInput
from inference_core.ingestion import FORMATS
from inference_core.ingestion.formats.chat_exports import (
    FRAMEWORKS,
    Entry,
    chatgpt_entries,
    claude_entries,
    is_whatsapp,
    json_values,
    message_fields,
    openai_entries,
    order_of,
    text_files,
    text_lines,
    thread_entries,
    whatsapp_entries,
)
from inference_core.memory.secrets import quoted
from inference_core.memory.text import MAX_LABEL_BYTES
from inference_core.outbox.messages import (
    EMPTY,
    OTHER_PARTS,
    ConversationMessage,
    Role,
    Transcript,
    author_of,
    brings_outside,
    has_calls,
    has_only,
    is_plain,
    mended,
)

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
FORM: Final = "an object with 'role' and 'content'"
_ROLES: Final = {"user": Role.USER, "human": Role.USER, "assistant": Role.ASSISTANT, "ai": Role.ASSISTANT}
_RESULTS: Final = frozenset({"tool", "function", FRAMEWORKS})
_UNSPOKEN: Final = frozenset({"system", "developer", "tool", "function"})
_SESSIONS: Final = ("session_id", "thread_id", "conversation_id")
_TIMES: Final = ("timestamp", "created_at")
_FRAME: Final = frozenset({
    "role", "content", "id", "name", "status", "model", "finish_reason", "usage", "phase", *_SESSIONS, *_TIMES,
})  # fmt: skip
"""The harmless fields of a message, besides those that `is_plain` knows."""
_MESSAGE: Final = ("type", "message")
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_AGAIN: Final = "What came before is kept; correct the file and run the same command again"
_START_BYTES: Final = 1024 * 1024
_CHATS: Final = r".*\.txt"
_UNNAMED_CHAT: Final = "_chat"
"""What an iPhone calls each chat; once unpacked, only the folder tells chats apart."""
_ARRAY: Final = re.compile(rb"\[\s*[\[{\]]")
_BEAM_CHAT: Final = re.compile(rb'\[\s*\{\s*"batch_number"')
_READERS: Final = {"chatgpt": chatgpt_entries, "claude": claude_entries}
_FIELDS: Final = {"mapping": "chatgpt", "chat_messages": "claude", "conversation": "locomo", "messages": "openai"}
"""The field of a conversation by which each format is recognized."""


def read_messages(path: Path, own: Iterable[str] = ()) -> Transcript:
    """The messages in a file of JSON Lines, read line by line; those without a session form one named after the file.

    Each line has ``role`` and ``content`` (text, or OpenAI's content parts) and may have ``id``, ``session_id`` (or
    ``thread_id``, ``conversation_id``), ``timestamp`` (or ``created_at``; ISO 8601, UTC if it has no offset, or seconds
    since 1970) and ``name``; or it is a message of LangChain. Messages of the system and of tools are skipped. ``own``
    are the user's own names. Raises InvalidInput for a file that cannot be read; reading raises it for a line that is
    not such an object, with the line's number.
    """
    skipped = Counter[str]()
    total = sum(1 for _, line in _lines(path) if line.strip())

    def entries() -> Iterator[Entry]:
        for number, line in _lines(path):
            if not line.strip():
                continue
            try:
                entry = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                why = f"it is not JSON in UTF-8: {error!s:.100}"
                if not line.endswith(b"\n"):
                    why = "the file ends in the midst of it, so it was cut off"
                raise InvalidInput(f"{path}, line {number}: {why}. {_AGAIN}") from error
            yield f"line {number}", cast("Mapping[str, Any]", entry) if isinstance(entry, dict) else {}

    return Transcript(messages_of(entries(), path, skipped, own), total, skipped)


def messages_of(
    entries: Iterable[Entry], path: Path, skipped: Counter[str], own: Iterable[str] = ()
) -> Iterator[ConversationMessage]:
    """The messages in ``entries`` of the file ``path``; those without a session form one named after the file.

    A user's message with a name that is not one of ``own`` is another person's. A message with a part, a field or a
    source that is not known to be harmless is not proven, and marks its session, even if it is left out. Counts what is
    left out in ``skipped``. Raises InvalidInput, which names the entry.
    """
    own, file_session = tuple(own), mended(path.stem)
    positions = Counter[str]()
    with_outside: set[str] = set()
    for where, given in entries:
        try:
            fields = _from_langchain(given)
            name = _role(fields)
            session = _label(fields, *_SESSIONS) or file_session
            message: ConversationMessage | None = None
            if name in _ROLES:
                message, is_outside = _message(fields, session, positions[session], own, skipped)
            else:  # an application's instructions may hold what it looked up
                is_said = bool(fields.get("content")) or not has_only(_unframed(fields), frozenset())
                is_outside = name in _RESULTS or is_said
        except InvalidInput as error:
            raise InvalidInput(f"{path}, {where}: {error}. {_AGAIN}") from error
        positions[session] += 1
        if is_outside:
            with_outside.add(session)
        if message is None:
            skipped[EMPTY if name in _ROLES else name] += 1
        else:
            yield replace(message, is_marked=session in with_outside)


def _role(fields: Mapping[str, Any]) -> str:
    role: Any = fields.get("role")
    if not isinstance(role, str):
        _refuse(f"it is not {FORM}")
    name = role.casefold()
    if name not in _ROLES and name not in _UNSPOKEN | {FRAMEWORKS}:
        _refuse(f"its role {quoted(name)} is not known; known: {', '.join((*_ROLES, *sorted(_UNSPOKEN)))}")
    return name


def _message(
    fields: Mapping[str, Any], session: str, position: int, own: Iterable[str], skipped: Counter[str]
) -> tuple[ConversationMessage | None, bool]:
    """The message in ``fields``, None without text; and whether something in it is from outside."""
    role = _ROLES[fields["role"].casefold()]
    text, is_proven = _text(fields, role, skipped)
    if not text.strip():
        return None, not is_proven
    said_at = next((fields[name] for name in _TIMES if fields.get(name) is not None), None)
    at = moment_of(said_at)
    if at is None and said_at is not None:
        _refuse(f"its time {quoted(said_at)} is neither ISO 8601 nor seconds since 1970")
    message = ConversationMessage(
        session_id=session,
        role=role,
        text=text,
        id=_label(fields, "id"),
        position=position,
        author=author_of(_label(fields, "name"), *(own if role is Role.USER else ())),
        at=at,
        is_proven=is_proven,
    )
    return message, brings_outside(message)


def _from_langchain(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of LangChain as JSON (``messages_to_dict``, ``dumpd``, ``model_dump``) as the readers give it.

    Anything else is returned as it is. Raises InvalidInput for a message that LangChain would not accept.
    """
    outer = {name: fields[name] for name in (*_SESSIONS, *_TIMES) if name in fields}
    flat = {name: value for name, value in fields.items() if name not in outer}
    data: Any = next((fields[name] for name in ("data", "kwargs") if isinstance(fields.get(name), dict)), flat)
    kind = data.get("type") or fields.get("type")
    if "role" in fields or "content" not in data or not isinstance(kind, str):
        return fields
    try:
        (message,) = messages_from_dict([{"type": kind, "data": data}])
    except (ValueError, TypeError, KeyError) as error:
        _refuse(f"it is no message of LangChain: {error!s:.200}")
    return {**message_fields(message), **outer}


def _unframed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _FRAME and (name, value) != _MESSAGE}


def _text(fields: Mapping[str, Any], role: Role, skipped: Counter[str]) -> tuple[str, bool]:
    """The text of a message, and whether nothing in it is from outside; counts parts without text in ``skipped``."""
    content = fields.get("content")
    if content is None and ("content" in fields or "tool_calls" in fields):
        content = ""
    if not isinstance(content, str | list):
        _refuse("its 'content' is neither text nor a list of content parts")
    parts = cast("list[Any]", content if isinstance(content, list) else [content])
    texts: list[str] = []
    is_odd = False
    for part in parts:
        text, kind = part, "text"
        if isinstance(part, dict):
            named = cast("Mapping[str, Any]", part)
            kind = str(named.get("type", "text"))
            text = named.get("text") if kind in _TEXT_PARTS else None
        if isinstance(text, str):
            texts.append(text)
        else:
            skipped[OTHER_PARTS] += 1
            is_odd = is_odd or kind in _TEXT_PARTS
    kind_of = HumanMessage if role is Role.USER else AIMessage
    made = kind_of.model_construct(content=parts, additional_kwargs=_unframed(fields))
    return mended("\n".join(texts)), is_plain(made) and not has_calls(made) and not is_odd


def _chat_lines(file: IO[str], where: str) -> Iterator[tuple[int, str]]:
    """`text_lines`; none of a file that cannot be read and is no chat: an archive also has the files that were sent."""
    is_chat = False
    try:
        for number, line in text_lines(file, where):
            is_chat = is_chat or is_whatsapp([line])
            yield number, line
    except InvalidInput:
        if is_chat:
            raise


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file and their numbers, from 1. Raises InvalidInput if it cannot be read."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), 1):
                if len(line) > MAX_LINE_BYTES:
                    _refuse(f"{path}, line {number} has more than {MAX_LINE_BYTES} bytes; write one message a line")
                yield number, line
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error}") from error


def _label(fields: Mapping[str, Any], *names: str) -> str | None:
    """The first of the fields ``names`` that is set, as text; None if none is, or if the text is blank."""
    found = next((fields[name] for name in names if fields.get(name) is not None), None)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, str | int):
        _refuse(f"its '{names[0]}' is neither text nor a whole number")
    text = " ".join(mended(str(found)).split())
    if len(text.encode()) > MAX_LABEL_BYTES:
        _refuse(f"its '{names[0]}' has more than {MAX_LABEL_BYTES} bytes")
    return text or None


def _refuse(why: str) -> NoReturn:
    raise InvalidInput(why)


def format_of(place: str | Path) -> str:
    """Which of FORMATS a file has, judged by its beginning. Raises InvalidInput if it is none of them."""
    path = Path(place)
    if str(place).startswith("postgres") and "://" in str(place):
        return "langgraph"
    if path.is_dir():
        return "beam"
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
        is_zip = zipfile.is_zipfile(path)
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error}") from error
    if start.startswith(b"SQLite format 3\x00"):
        return "langgraph"
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            has_chats = any(name.endswith(".txt") for name in archive.namelist())
        return _form_of_first(path) or ("whatsapp" if has_chats else "chatgpt")
    if _BEAM_CHAT.match(start):
        raise InvalidInput(f"{path} is a chat of BEAM; give the folder that it is in")
    if is_whatsapp(start.decode(errors="replace").splitlines()):
        return "whatsapp"
    if start.startswith((b"{", b"[")) and (found := _form_of_first(path, in_array=start.startswith(b"["))):
        return found
    if start.startswith(b"{") or _ARRAY.match(start):
        line = start.partition(b"\n")[0]  # the object may span many lines, or be broken
        is_message = start.startswith(b"{") and (b'"role"' in line or b'"content"' in line)
        return "messages" if is_message else "locomo"
    raise InvalidInput(
        f"{path} is in no known format; known: locomo (JSON), beam (a folder), messages (JSON Lines, each {FORM}), "
        "chatgpt and claude (their exports), openai (lists of messages), whatsapp (text), langgraph (a checkpointer)"
    )


def _form_of_first(path: Path, *, in_array: bool = True) -> str | None:
    """The format by the first value in the file; None if it has none that can be read."""
    try:
        _, value = next(json_values(path), ("", None))
    except InvalidInput:
        return None
    if isinstance(value, list):
        return "openai"
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    known = next((form for name, form in _FIELDS.items() if name in fields), None)
    if known is None and in_array and not fields.keys().isdisjoint(("role", "data", "lc")):
        return "openai"
    return known or (None if in_array else "messages")


def read_conversations(
    form: str,
    place: str | Path,
    *,
    user_id: str = "",
    me: Iterable[str] = (),
    threads: Iterable[str] = (),
    zone: tzinfo = UTC,
) -> Transcript:
    """The messages of a file in one of FORMATS except the data sets'. Reads the file twice, first to count them.

    A user's message with a name is another person's, unless the name is ``user_id`` or one of ``me``, in any case of
    letters. Of a checkpointer (``langgraph``), the threads that name ``user_id``, and those of ``threads`` that name
    nobody. ``zone`` is the time zone of the phone that exported a WhatsApp chat. Raises InvalidInput, StoreUnavailable.
    """
    path, threads, own = Path(place), tuple(threads), (user_id, *me)  # which are looked through twice
    if form == "messages":
        return read_messages(path, own)
    if form not in FORMATS:
        raise InvalidInput(f"Unknown format {quoted(form)}; known: {', '.join(FORMATS)}")

    def entries(skipped: Counter[str]) -> Iterator[Entry]:
        if form == "langgraph":
            return thread_entries(str(place), user_id, threads, skipped)
        if form == "whatsapp":
            return chats()
        values = json_values(path)
        return openai_entries(values, mended(path.stem)) if form == "openai" else _READERS[form](values)

    def chats() -> Iterator[Entry]:
        name = path.resolve().parent.name if path.stem == _UNNAMED_CHAT else path.stem
        with text_files(path, _CHATS) as files:
            order = order_of(line for file in files for _, line in _chat_lines(file, str(path)))
        with text_files(path, _CHATS) as files:
            for file in files:
                yield from whatsapp_entries(_chat_lines(file, str(path)), order, name, zone)

    skipped, left_out = Counter[str](), Counter[str]()
    total = sum(1 for _ in entries(left_out)) + left_out.total()
    if form == "whatsapp" and not total:
        raise InvalidInput(f"{path} holds no messages in a form of WhatsApp that is known")
    return Transcript(messages_of(entries(skipped), path, skipped, own), total, skipped)
