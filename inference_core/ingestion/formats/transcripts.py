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
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, cast

from langchain_core.messages import AIMessage, HumanMessage

from inference_core.clock import moment_of
from inference_core.errors import InvalidInput, cannot_read
from inference_core.ingestion import FORMATS
from inference_core.ingestion.formats.chat_exports import (
    chatgpt_entries,
    claude_entries,
    json_values,
    openai_entries,
    text_files,
    text_lines,
    thread_entries,
)
from inference_core.ingestion.formats.entries import (
    BAD_LABEL,
    DAMAGED,
    FORM,
    FRAMEWORKS,
    NO_CONTENT,
    NO_MESSAGE,
    NO_ROLE,
    UNEXPECTED,
    Entry,
    Odd,
    fields_of,
    held_messages,
    is_message,
)
from inference_core.ingestion.formats.whatsapp import DELETED, MEDIA, NOTICE, chat_of, is_whatsapp, whatsapp_entries
from inference_core.memory.secrets import quoted
from inference_core.memory.text import MAX_LABEL_BYTES
from inference_core.outbox.messages import (
    EMPTY,
    NO_DATE,
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
LISTED: Final = 50
"""The most entries whose places are listed."""
_ROLES: Final = {
    **dict.fromkeys(("user", "human"), Role.USER),
    **dict.fromkeys(("assistant", "ai", "model"), Role.ASSISTANT),
}
_RESULTS: Final = frozenset({"tool", "function", FRAMEWORKS})
_REASONS: Final = frozenset({FRAMEWORKS, NOTICE, MEDIA, DELETED})
"""The roles that readers give, of what nobody said."""
_UNSPOKEN: Final = frozenset({"system", "developer", "tool", "function"}) | _REASONS
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
_TRIED: Final = 20
"""So many values or lines are looked at for the format: the first ones may be odd."""
_LOCOMO_SAMPLE: Final = re.compile(rb'(?:\[\s*)?\{\s*"(?:sample_id|conversation|qa)"')
_BEAM_CHAT: Final = re.compile(rb'\[\s*\{\s*"batch_number"')
_READERS: Final = {"chatgpt": chatgpt_entries, "claude": claude_entries}
_FIELDS: Final = {"mapping": "chatgpt", "chat_messages": "claude", "conversation": "locomo"}
"""The field of a conversation by which each format is recognized."""


def read_messages(path: Path, own: Iterable[str] = (), *, strict: bool = False) -> Transcript:
    """The messages in a file of JSON Lines, read line by line; those without a session form one named after the file.

    Each line has ``role`` and ``content`` (text, or OpenAI's content parts) and may have ``id``, ``session_id`` (or
    ``thread_id``, ``conversation_id``), ``timestamp`` (or ``created_at``; ISO 8601, UTC if it has no offset, or seconds
    since 1970) and ``name``; or it is a message in another shape that `fields_of` knows. Messages of the system and of
    tools are skipped. ``own`` are the user's own names. Raises InvalidInput for a file that cannot be read; reading
    does if no line is a message, and if ``strict``, for each that is not, with its number.
    """
    total = sum(1 for _, line in _lines(path) if line.strip())
    return Reader(path, own, strict=strict).transcript(_json_lines(path), total)


def _json_lines(path: Path) -> Iterator[Entry]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        entry: Any
        try:
            entry = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:
            why = f"it is not JSON in UTF-8: {error!s:.100}"
            if not line.endswith(b"\n"):
                why = "the file ends in the midst of it, so it was cut off"
            entry = Odd(DAMAGED, why)
        yield f"line {number}", entry


class Reader:
    """Turns the entries of the file ``path`` into messages, and skips, counts and lists those that are none.

    Messages without a session form one named after the file. A user's message with a name that is not one of ``own`` is
    another person's. A message with a part, a field or a source that is not known to be harmless is not proven, and
    marks its session, even if it is left out. If ``strict``, an entry or a time that cannot be read raises
    InvalidInput, which names it.
    """

    def __init__(self, path: Path, own: Iterable[str] = (), *, strict: bool = False) -> None:
        self._path, self._own, self._strict = path, tuple(own), strict
        self._skipped, self._faults = Counter[str](), list[str]()
        self._positions = Counter[str]()
        self._with_outside: set[str] = set()

    def transcript(self, entries: Iterable[Entry], total: int, skipped: Counter[str] | None = None) -> Transcript:
        """The messages of ``entries``, which count in ``skipped`` what they leave out themselves."""
        self._skipped = self._skipped if skipped is None else skipped
        return Transcript(self._messages(entries), total, self._skipped, self._faults)

    def _messages(self, entries: Iterable[Entry]) -> Iterator[ConversationMessage]:
        """The messages. Raises InvalidInput if there are none but entries that cannot be read."""
        file_session, odd = mended(self._path.stem), 0
        read = False
        for where, given in entries:
            session, message, is_outside = file_session, None, True
            try:
                if isinstance(given, Odd):
                    session = _label({"session_id": given.session}, "session_id") or file_session
                    raise given
                fields = fields_of(given)
                session = _label(fields, *_SESSIONS) or file_session
                reason = _role(fields)
                if reason in _ROLES:
                    message, is_outside = self._message(fields, session)
                    reason = EMPTY
                else:  # an application's instructions may hold what it looked up
                    is_said = bool(fields.get("content")) or not has_only(_unframed(fields), frozenset())
                    is_outside = reason in _RESULTS or is_said
            except UNEXPECTED as error:
                if self._strict:
                    raise InvalidInput(f"{self._path}, {where}: {error}. {_AGAIN}") from error
                reason = error.reason if isinstance(error, Odd) else NO_MESSAGE
                odd += 1
                if len(self._faults) < LISTED:
                    self._faults.append(f"{where}: {error!s:.300}")
            self._positions[session] += 1
            if is_outside:
                self._with_outside.add(session)
            if message is None:
                self._skipped[reason] += 1
            else:
                read = True
                yield replace(message, is_marked=session in self._with_outside)
        if odd and not read and self._skipped.total() == odd:
            raise InvalidInput(f"{self._path} holds no message that can be read. {self._faults[0]}")

    def _message(self, fields: Mapping[str, Any], session: str) -> tuple[ConversationMessage | None, bool]:
        """The message in ``fields``, None without text; and whether something in it is from outside."""
        role = _ROLES[fields["role"].casefold()]
        text, is_proven = self._text(fields, role)
        if not text.strip():
            return None, not is_proven
        said_at = next((fields[name] for name in _TIMES if fields.get(name) not in (None, "")), None)
        at = moment_of(said_at)
        if at is None and said_at is not None:
            if self._strict:
                raise InvalidInput(f"its time {quoted(said_at)} is neither ISO 8601 nor seconds since 1970")
            self._skipped[NO_DATE] += 1
        message = ConversationMessage(
            session_id=session,
            role=role,
            text=text,
            id=_label(fields, "id"),
            position=self._positions[session],
            author=author_of(_label(fields, "name"), *(self._own if role is Role.USER else ())),
            at=at,
            is_proven=is_proven,
        )
        return message, brings_outside(message)

    def _text(self, fields: Mapping[str, Any], role: Role) -> tuple[str, bool]:
        """The text of a message, and whether nothing in it is from outside; counts parts without text."""
        content = fields.get("content")
        if content is None and ("content" in fields or "tool_calls" in fields):
            content = ""
        if not isinstance(content, str | list):
            raise Odd(NO_CONTENT, "its 'content' is neither text nor a list of content parts")
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
                self._skipped[OTHER_PARTS] += 1
                is_odd = is_odd or kind in _TEXT_PARTS
        kind_of = HumanMessage if role is Role.USER else AIMessage
        made = kind_of.model_construct(content=parts, additional_kwargs=_unframed(fields))
        return mended("\n".join(texts)), is_plain(made) and not has_calls(made) and not is_odd


def _role(fields: Mapping[str, Any]) -> str:
    role: Any = fields.get("role")
    if not isinstance(role, str):
        raise Odd(NO_MESSAGE, f"it is not {FORM}")
    name = role.casefold()
    if name not in _ROLES and name not in _UNSPOKEN:
        known = ", ".join((*_ROLES, *sorted(_UNSPOKEN - _REASONS)))
        raise Odd(NO_ROLE, f"its role {quoted(name)} is not known; known: {known}")
    return name


def _unframed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _FRAME and (name, value) != _MESSAGE}


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
                    raise InvalidInput(
                        f"{path}, line {number} has more than {MAX_LINE_BYTES} bytes; write one message a line"
                    )
                yield number, line
    except OSError as error:
        raise cannot_read(path, error) from error


def _label(fields: Mapping[str, Any], *names: str) -> str | None:
    """The first of the fields ``names`` that is set, as text; None if none is, or if the text is blank."""
    found = next((fields[name] for name in names if fields.get(name) is not None), None)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise Odd(BAD_LABEL, f"its '{names[0]}' is neither text nor a whole number")
    text = " ".join(mended(str(found)).split())
    if len(text.encode()) > MAX_LABEL_BYTES:
        raise Odd(BAD_LABEL, f"its '{names[0]}' has more than {MAX_LABEL_BYTES} bytes")
    return text or None


def format_of(place: str | Path) -> str:
    """Which of FORMATS a file or folder has, judged by its beginning.

    Raises InvalidInput if it is none of them, or holds nothing.
    """
    path = Path(place)
    if str(place).startswith("postgres") and "://" in str(place):
        return "langgraph"
    if path.is_dir():
        return _form_of_values(path) or ("whatsapp" if _has_chat(path) else "beam")
    start, is_zip = _start_of(path)
    if start.startswith(b"SQLite format 3\x00"):
        return "langgraph"
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            has_chats = any(name.endswith(".txt") for name in archive.namelist())
        return _form_of_values(path) or ("whatsapp" if has_chats else "chatgpt")
    if _BEAM_CHAT.match(start):
        raise InvalidInput(f"{path} is a chat of BEAM; give the folder that it is in")
    lines = start.decode(errors="replace").splitlines()
    if is_whatsapp(lines):
        return "whatsapp"
    if found := _form_of_values(path, in_array=start.startswith(b"[")):
        return found
    if any(line.startswith("{") and ('"role"' in line or '"content"' in line) for line in lines[:_TRIED]):
        return "messages"  # none of the first lines is whole
    if _LOCOMO_SAMPLE.match(start):
        return "locomo"
    raise InvalidInput(
        f"{path} is in no known format; known: locomo (JSON), beam (a folder), messages (JSON Lines, each {FORM}), "
        "chatgpt and claude (their exports), openai (lists of messages), whatsapp (text), langgraph (a checkpointer)"
    )


def _start_of(path: Path) -> tuple[bytes, bool]:
    """How a file begins, and whether it is a zip archive. Raises InvalidInput if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_START_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n"), zipfile.is_zipfile(path)
    except OSError as error:
        raise cannot_read(path, error) from error


def _has_chat(folder: Path) -> bool:
    with text_files(folder, _CHATS) as files:
        return any(is_whatsapp(islice(file, _TRIED)) for _, file in files)


def _form_of_values(path: Path, *, in_array: bool = True) -> str | None:
    """The format by the first values in the file that have one; None if none has.

    Raises InvalidInput if there are only empty ones: exports of somebody who has said nothing.
    """
    try:
        values = [value for _, value in islice(json_values(path), _TRIED)]
    except InvalidInput:
        return None
    for value in values:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            if form := next((form for name, form in _FIELDS.items() if name in fields), None):
                return form
        if is_message(value):
            return "openai" if in_array else "messages"
        if _is_conversation(value):
            return "openai"
    if not any(map(_is_filled, values)) and (values or path.is_file()):
        raise InvalidInput(f"{path} holds nothing to import")
    return None


def _is_conversation(value: Any) -> bool:
    """Whether ``value`` is an array of messages, or an object with one; its first ones may be odd."""
    try:
        return any(map(is_message, (held_messages(value) or [])[:_TRIED]))
    except Odd:
        return False


def _is_filled(value: Any) -> bool:
    """Whether there is anything in ``value``: not in [], nor in an object whose lists are all empty."""
    if not isinstance(value, dict):
        return bool(value)
    held = list(cast("dict[str, Any]", value).values())
    lists: list[Any] = [one for one in held if isinstance(one, list | dict)]
    return any(map(_is_filled, lists)) if lists else bool(held)


def read_conversations(
    form: str,
    place: str | Path,
    *,
    user_id: str = "",
    me: Iterable[str] = (),
    threads: Iterable[str] = (),
    zone: tzinfo = UTC,
    strict: bool = False,
) -> Transcript:
    """The messages of a file in one of FORMATS except the data sets'. Reads the file twice, first to count them.

    A user's message with a name is another person's, unless the name is ``user_id`` or one of ``me``, in any case of
    letters. Of a checkpointer (``langgraph``), the threads that name ``user_id``, and those of ``threads`` that name
    nobody. ``zone`` is the time zone of the phone that exported a WhatsApp chat. An entry that cannot be read is
    skipped, counted and listed, and a time that cannot is no date; if ``strict``, either raises InvalidInput. Raises
    InvalidInput, StoreUnavailable.
    """
    path, threads, own = Path(place), tuple(threads), (user_id, *me)  # which are looked through twice
    if form == "messages":
        return read_messages(path, own, strict=strict)
    if form not in FORMATS:
        raise InvalidInput(f"Unknown format {quoted(form)}; known: {', '.join(FORMATS)}")

    def entries(skipped: Counter[str]) -> Iterator[Entry]:
        if form == "langgraph":
            return thread_entries(str(place), user_id, threads, skipped)
        if form == "whatsapp":
            return _chats(path, zone)
        values = json_values(path)
        return openai_entries(values, mended(path.stem)) if form == "openai" else _READERS[form](values)

    skipped, left_out = Counter[str](), Counter[str]()
    total = sum(1 for _ in entries(left_out)) + left_out.total()
    if form == "whatsapp" and not total:
        raise InvalidInput(f"{path} holds no messages in a form of WhatsApp that is known")
    return Reader(path, own, strict=strict).transcript(entries(skipped), total, skipped)


def _chats(path: Path, zone: tzinfo) -> Iterator[Entry]:
    name = path.resolve().parent.name if path.stem == _UNNAMED_CHAT else path.stem
    with text_files(path, _CHATS) as files:
        chat = chat_of(line for _, file in files for _, line in _chat_lines(file, str(path)))
    with text_files(path, _CHATS) as files:
        for member, file in files:
            for where, given in whatsapp_entries(_chat_lines(file, str(path)), chat, name, zone):
                yield f"{member}, {where}" if member else where, given
