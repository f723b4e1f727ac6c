"""Messages in one form, whatever file they come from; and those of JSON Lines, one chat message a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from inference_core.clock import aware
from inference_core.errors import InvalidInput
from inference_core.ingestion.chat_exports import Entry
from inference_core.memory.text import MAX_LABEL_BYTES
from inference_core.outbox.messages import EMPTY, OTHER_PARTS, Message, Role, Transcript, mended

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
FORM: Final = "an object with 'role' and 'content'"
_ROLES: Final = {"user": Role.USER, "human": Role.USER, "assistant": Role.ASSISTANT, "ai": Role.ASSISTANT}
_UNSPOKEN: Final = frozenset({"system", "developer", "tool", "function"})
_RESULTS: Final = frozenset({"tool", "function"})
_SESSIONS: Final = ("session_id", "thread_id", "conversation_id")
_TIMES: Final = ("timestamp", "created_at")
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_MILLISECONDS_FROM: Final = 1e11
_AGAIN: Final = "What came before is kept; correct the file and run the same command again"


def read_messages(path: Path) -> Transcript:
    """The messages in a file of JSON Lines, read line by line; those without a session are one named after the file.

    Each line has ``role`` and ``content`` (text, or OpenAI's content parts) and may have ``id``, ``session_id`` (or
    ``thread_id``, ``conversation_id``), ``timestamp`` (or ``created_at``; ISO 8601, UTC if it has no offset, or seconds
    since 1970) and ``name``. Messages of the system and of tools are skipped. Raises InvalidInput for a file that
    cannot be read; reading raises it for a line that is not such an object, with the line's number.
    """
    skipped = Counter[str]()
    total = sum(1 for _, line in _lines(path) if line.strip())
    entries = (
        (f"line {number}", _parsed(line, f"{path}, line {number}", is_first=number == 1))
        for number, line in _lines(path)
        if line.strip()
    )
    return Transcript(messages_of(entries, path, skipped), total, skipped)


def messages_of(entries: Iterable[Entry], path: Path, skipped: Counter[str]) -> Iterator[Message]:
    """The messages in ``entries`` of the file ``path``; those without a session are one named after the file.

    What is left out is counted in ``skipped``. Raises InvalidInput that names the entry.
    """
    file_session = mended(path.stem)
    positions = Counter[str]()
    with_results: set[str] = set()
    for where, fields in entries:
        try:
            name = _role(fields)
            session = _label(fields, *_SESSIONS) or file_session
            message: Message | None = None
            reason = name
            if name in _ROLES:
                text, reason = _text(fields, skipped), EMPTY
                if text.strip():
                    message = Message(
                        session_id=session,
                        role=_ROLES[name],
                        text=text,
                        id=_label(fields, "id"),
                        position=positions[session],
                        author=_label(fields, "name"),
                        at=_moment(fields),
                        after_tool=_ROLES[name] is Role.ASSISTANT and session in with_results,
                    )
            elif name not in _UNSPOKEN:
                _refuse(f"its role {name[:40]!r} is not known; known: {', '.join((*_ROLES, *sorted(_UNSPOKEN)))}")
        except InvalidInput as error:
            raise InvalidInput(f"{path}, {where}: {error}. {_AGAIN}") from error
        positions[session] += 1
        if name in _RESULTS:
            with_results.add(session)
        if message is None:
            skipped[reason] += 1
        else:
            yield message


def _role(fields: Mapping[str, Any]) -> str:
    if not isinstance(fields.get("role"), str):
        _refuse(f"it is not {FORM}")
    return fields["role"].casefold()


def _text(fields: Mapping[str, Any], skipped: Counter[str]) -> str:
    """The text of a message; parts of it that have none are counted in ``skipped``."""
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


def _parsed(line: bytes, where: str, *, is_first: bool) -> Mapping[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8-sig" if is_first else "utf-8"))
    except (ValueError, RecursionError) as error:
        why = f"it is not JSON in UTF-8: {error!s:.100}"
        if not line.endswith(b"\n"):
            why = "the file ends in the midst of it, so it was cut off"
        raise InvalidInput(f"{where}: {why}. {_AGAIN}") from error
    return cast("Mapping[str, Any]", entry) if isinstance(entry, dict) else {}


def _label(fields: Mapping[str, Any], *names: str) -> str | None:
    """The first of the fields that is there, as text; None for none and for blank text."""
    found = next((fields[name] for name in names if fields.get(name) is not None), None)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, str | int):
        _refuse(f"its '{names[0]}' is neither text nor a whole number")
    text = " ".join(mended(str(found)).split())
    if len(text.encode()) > MAX_LABEL_BYTES:
        _refuse(f"its '{names[0]}' has more than {MAX_LABEL_BYTES} bytes")
    return text or None


def _moment(fields: Mapping[str, Any]) -> datetime | None:
    given = next((fields[name] for name in _TIMES if fields.get(name) is not None), None)
    if given is None:
        return None
    try:
        if isinstance(given, bool):
            raise TypeError  # noqa: TRY301 - it would count as a number
        if isinstance(given, str):
            return aware(datetime.fromisoformat(given.strip()))
        seconds = given / 1000 if abs(given) >= _MILLISECONDS_FROM else given
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        _refuse(f"its time {given!r:.40} is neither ISO 8601 nor seconds since 1970")


def _refuse(why: str) -> NoReturn:
    raise InvalidInput(why)
