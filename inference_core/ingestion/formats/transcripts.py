"""Detects the format of a file of conversations and turns its messages into one form; also reads JSON Lines."""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast

from inference_core.clock import moment_of
from inference_core.errors import InvalidInput
from inference_core.ingestion import FORMATS
from inference_core.ingestion.formats.chat_exports import (
    Entry,
    chatgpt_entries,
    claude_entries,
    is_whatsapp,
    openai_entries,
    order_of,
    whatsapp_entries,
)
from inference_core.ingestion.formats.json_values import json_values, text_files, text_lines
from inference_core.ingestion.formats.threads import thread_entries
from inference_core.memory.secrets import quoted
from inference_core.memory.text import MAX_LABEL_BYTES
from inference_core.outbox.messages import (
    EMPTY,
    OTHER_PARTS,
    ConversationMessage,
    Role,
    Transcript,
    brings_outside,
    mended,
)

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
FORM: Final = "an object with 'role' and 'content'"
_ROLES: Final = {"user": Role.USER, "human": Role.USER, "assistant": Role.ASSISTANT, "ai": Role.ASSISTANT}
_UNSPOKEN: Final = frozenset({"system", "developer", "tool", "function"})
_RESULTS: Final = frozenset({"tool", "function"})
_SESSIONS: Final = ("session_id", "thread_id", "conversation_id")
_TIMES: Final = ("timestamp", "created_at")
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


def read_messages(path: Path) -> Transcript:
    """The messages in a file of JSON Lines, read line by line; those without a session form one named after the file.

    Each line has ``role`` and ``content`` (text, or OpenAI's content parts) and may have ``id``, ``session_id`` (or
    ``thread_id``, ``conversation_id``), ``timestamp`` (or ``created_at``; ISO 8601, UTC if it has no offset, or seconds
    since 1970) and ``name``. Messages of the system and of tools are skipped. Raises InvalidInput for a file that
    cannot be read; reading raises it for a line that is not such an object, with the line's number.
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

    return Transcript(messages_of(entries(), path, skipped), total, skipped)


def messages_of(entries: Iterable[Entry], path: Path, skipped: Counter[str]) -> Iterator[ConversationMessage]:
    """The messages in ``entries`` of the file ``path``; those without a session form one named after the file.

    Counts what is left out in ``skipped``. Raises InvalidInput, which names the entry.
    """
    file_session = mended(path.stem)
    positions = Counter[str]()
    with_outside: set[str] = set()
    for where, fields in entries:
        try:
            if not isinstance(fields.get("role"), str):
                _refuse(f"it is not {FORM}")
            name = fields["role"].casefold()
            session = _label(fields, *_SESSIONS) or file_session
            message: ConversationMessage | None = None
            reason = name
            if name in _ROLES:
                text, reason = _text(fields, skipped), EMPTY
                given = next((fields[name] for name in _TIMES if fields.get(name) is not None), None)
                at = moment_of(given)
                if text.strip() and at is None and given is not None:
                    _refuse(f"its time {quoted(given)} is neither ISO 8601 nor seconds since 1970")
                if text.strip():
                    message = ConversationMessage(
                        session_id=session,
                        role=_ROLES[name],
                        text=text,
                        id=_label(fields, "id"),
                        position=positions[session],
                        author=_label(fields, "name"),
                        at=at,
                        after_tool=_ROLES[name] is Role.ASSISTANT and session in with_outside,
                    )
            elif name not in _UNSPOKEN:
                _refuse(f"its role {quoted(name)} is not known; known: {', '.join((*_ROLES, *sorted(_UNSPOKEN)))}")
        except InvalidInput as error:
            raise InvalidInput(f"{path}, {where}: {error}. {_AGAIN}") from error
        positions[session] += 1
        if name in _RESULTS or (message and session not in with_outside and brings_outside(message)):
            with_outside.add(session)
        if message is None:
            skipped[reason] += 1
        else:
            yield message


def _text(fields: Mapping[str, Any], skipped: Counter[str]) -> str:
    """The text of a message; counts its parts without text in ``skipped``."""
    content = fields.get("content")
    if isinstance(content, str):
        return mended(content)
    if content is None and ("content" in fields or "tool_calls" in fields):
        return ""
    if not isinstance(content, list):
        _refuse("its 'content' is neither text nor a list of content parts")
    texts: list[str] = []
    for part in cast("Sequence[Any]", content):
        text = part
        if isinstance(part, dict):
            named = cast("Mapping[str, Any]", part)
            text = named.get("text") if named.get("type", "text") in _TEXT_PARTS else None
        if isinstance(text, str):
            texts.append(text)
        else:
            skipped[OTHER_PARTS] += 1
    return mended("\n".join(texts))


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
    if known is None and in_array and ("role" in fields or "data" in fields):
        return "openai"
    return known or (None if in_array else "messages")


def read_conversations(
    form: str, place: str | Path, *, user_id: str = "", threads: Iterable[str] = (), zone: tzinfo = UTC
) -> Transcript:
    """The messages of a file in one of FORMATS except the data sets'. Reads the file twice, first to count them.

    Of a checkpointer (``langgraph``), the threads that name ``user_id``, and those of ``threads`` that name nobody.
    ``zone`` is the time zone of the phone that exported a WhatsApp chat. Raises InvalidInput, StoreUnavailable.
    """
    path, threads = Path(place), tuple(threads)  # which are looked through twice
    if form == "messages":
        return read_messages(path)
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
    return Transcript(messages_of(entries(skipped), path, skipped), total, skipped)
