"""Which format a file of conversations has, and its messages."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Final, cast

from inference_core.errors import InvalidInput
from inference_core.ingestion import FORMATS
from inference_core.ingestion.chat_exports import Entry, chatgpt_entries, claude_entries, openai_entries
from inference_core.ingestion.json_values import json_values, text_files, text_lines
from inference_core.ingestion.threads import thread_entries
from inference_core.ingestion.transcripts import FORM, messages_of, read_messages
from inference_core.ingestion.whatsapp import is_whatsapp, order_of, whatsapp_entries
from inference_core.outbox.messages import Transcript

_START_BYTES: Final = 1024 * 1024
_CHATS: Final = r".*\.txt"
_ARRAY: Final = re.compile(rb"\[\s*[\[{\]]")
_BEAM_CHAT: Final = re.compile(rb'\[\s*\{\s*"batch_number"')
_READERS: Final = {"chatgpt": chatgpt_entries, "claude": claude_entries, "openai": openai_entries}
_FIELDS: Final = {"mapping": "chatgpt", "chat_messages": "claude", "conversation": "locomo", "messages": "openai"}
"""The field of a conversation by which each format is known."""


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
    return _form_of_text(path, start)


def _form_of_text(path: Path, start: bytes) -> str:
    if _BEAM_CHAT.match(start):
        raise InvalidInput(f"{path} is a chat of BEAM; give the folder that it is in")
    if is_whatsapp(start.decode(errors="replace").splitlines()):
        return "whatsapp"
    if start.startswith((b"{", b"[")) and (found := _form_of_first(path, in_array=start.startswith(b"["))):
        return found
    if _ARRAY.match(start):
        return "locomo"
    if start.startswith(b"{"):  # the first line of an object over many lines, or of a broken one
        line = start.partition(b"\n")[0]
        return "locomo" if b'"role"' not in line and b'"content"' not in line else "messages"
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
    """The messages of a file in one of FORMATS, other than the data sets'. It is read twice, first to count them.

    Of a checkpointer (``langgraph``), the threads that name ``user_id``, and those of ``threads`` that name nobody.
    ``zone`` is where a WhatsApp chat was exported. Raises InvalidInput, StoreUnavailable.
    """
    path = Path(place)
    if form == "messages":
        return read_messages(path)
    if form not in FORMATS:
        raise InvalidInput(f"Unknown format {form!r}; known: {', '.join(FORMATS)}")

    def entries(skipped: Counter[str]) -> Iterator[Entry]:
        if form == "langgraph":
            return thread_entries(str(place), user_id, threads, skipped)
        if form == "whatsapp":
            return _chat_entries(path, zone)
        return _READERS[form](json_values(path))

    skipped = Counter[str]()
    total = sum(1 for _ in entries(Counter()))
    return Transcript(messages_of(entries(skipped), path, skipped), total, skipped)


def _chat_entries(path: Path, zone: tzinfo) -> Iterator[Entry]:
    with text_files(path, _CHATS) as files:
        order = order_of(line for file in files for _, line in text_lines(file, str(path)))
    with text_files(path, _CHATS) as files:
        for file in files:
            yield from whatsapp_entries(text_lines(file, str(path)), order, path.stem, zone)
