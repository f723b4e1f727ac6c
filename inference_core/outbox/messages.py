"""Message: one message of a conversation, whatever its source. Transcript: the messages of a file.

The module also answers questions about their text: which part the user wrote, and how to split it into memories.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Final

from inference_core.errors import InvalidMemory
from inference_core.memory.text import MAX_LABEL_BYTES, optional_text
from inference_core.memory.trust import Origin

NO_THREAD: Final = "threadless"
"""The session of runs without a thread, whose callers pass the whole history each time."""
EMPTY: Final = "empty"
"""Why a message without text is skipped."""
OTHER_PARTS: Final = "parts without text"
"""Why a part of a message is skipped, such as an image. Counts parts, not messages."""
FENCE: Final = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
SIGNS: Final = (
    r"^[ \t]{0,8}(?:[>|#$]|(?:from|to|subject|date|sent|cc):\s|-{3,}|={3,}|_{3,}|(?:dear|hi|hello) "
    r"[^\n]{1,40},\s*$|\[?\d\d:\d\d)"
)
"""The start of a line from which a message is pasted text (MULTILINE, IGNORECASE)."""
_PASTED: Final = re.compile(SIGNS, re.IGNORECASE | re.MULTILINE)
_DOCUMENT: Final = (
    r"(?:e-?mail|mail|message|document|doc|article|page|letter|text|note|notes|log|logs|output|readme|ticket|transcript"
    r"|file|review|post)\b"
)
_TO_WORK_ON: Final = re.compile(
    r"\b(?:summari[sz]e|translate|proofread|review|rephrase|rewrite|shorten|analy[sz]e|explain|what does|look at|read"
    r"|check|here(?:'s| is| are)"
    rf"|(?:this|these|following|attached|forwarded) {_DOCUMENT})\b"
    r"[^\n:]{0,80}:(?=[\s\"'\u201c\u201e\u00ab])",
    re.IGNORECASE,
)
_CODE: Final = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for code while signs of pasted text are looked for."""
_INTRODUCES_CODE: Final = re.compile(rf"(?!.*\b{_DOCUMENT})[^\n]*:\s*{_CODE}", re.IGNORECASE)
"""A `_TO_WORK_ON` sign that introduces code, not a document: once the code has ended, the user speaks again."""
_QUOTED: Final = re.compile(
    r"[:\uff1a]\s?[\"\u201c\u201e\u00ab\u300c\u2018](?=[^\n\"\u201d\u201c\u00bb\u300d\u2019]{20})"
)
"""A colon and the start of a quotation that is a text of its own."""
_ENDS: Final = (
    re.compile(r"\n{2,}"),
    re.compile(r"\n+|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])"),
    re.compile(r"\s+"),
)
_MAX_UTF8: Final = 4


class Role(str, Enum):
    """Who said it: the user and other people, the assistant, or a tool that the assistant called."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ORIGINS: Final = {Role.USER: Origin.USER, Role.ASSISTANT: Origin.AGENT, Role.TOOL: Origin.TOOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMessage:
    """One message. ``at`` is when it was said, aware; None where the source does not say.

    ``id`` is the source's own; without one, ``position``, counted from 0 in the session, tells equal messages apart.
    ``after_tool``: an assistant said it after a tool's results or pasted text, and may only repeat them.
    """

    session_id: str | None
    role: Role
    text: str
    id: str | None = None
    position: int = 0
    author: str | None = None
    at: datetime | None = None
    after_tool: bool = False

    @property
    def origin(self) -> Origin:
        """Whose words they are; what may be a tool's counts as a tool's."""
        return Origin.TOOL if self.after_tool else _ORIGINS[self.role]


@dataclass(frozen=True, slots=True)
class Transcript:
    """Messages in their order and how many there are at most; ``skipped`` counts by reason while they are read.

    Reading may raise InvalidInput; the messages read before that are complete.
    """

    messages: Iterable[ConversationMessage]
    total: int
    skipped: Counter[str] = field(default_factory=Counter[str])


def traced(messages: Iterable[ConversationMessage]) -> Iterator[ConversationMessage]:
    """``messages``, the assistant's marked ``after_tool`` once a message of their session `brings_outside` text."""
    with_outside: set[str | None] = set()
    for message in messages:
        if message.session_id not in with_outside and brings_outside(message):
            with_outside.add(message.session_id)
        is_after = message.role is Role.ASSISTANT and message.session_id in with_outside
        yield replace(message, after_tool=True) if is_after else message


def brings_outside(message: ConversationMessage) -> bool:
    """Whether ``message`` holds text from outside, which the assistant may repeat from then on."""
    return message.role is Role.TOOL or (message.role is Role.USER and has_pasted(message.text))


def label(text: str | None, limit: int = MAX_LABEL_BYTES) -> str | None:
    """``text`` as a short field of a memory, cut after ``limit`` characters; None if nothing is left of it."""
    clean = mended(text or "")[:limit].encode()[:MAX_LABEL_BYTES].decode(errors="ignore")
    try:
        return optional_text(clean, what="label")
    except InvalidMemory:
        return None


def mended(text: str) -> str:
    """``text`` as valid Unicode without NUL; a lone surrogate becomes U+FFFD."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def session_name(session_id: str | None) -> str | None:
    """``session_id`` as it is stored: mended, or its digest if it is too long."""
    name = session_id and mended(session_id)
    if name and len(raw := name.encode()) > MAX_LABEL_BYTES:
        return hashlib.sha256(raw).hexdigest()
    return name


def session_label(session_id: str | None) -> str | None:
    """``session_id`` as a field of a memory: a `label`, but ids that are too long stay distinct."""
    return label(session_name(session_id))


def own_words(text: str) -> str:
    """``text`` without code, up to the first sign of pasted text; a greeting in the first line is not such a sign."""
    text = FENCE.sub(f"\n{_CODE}\n", text.replace(_CODE, ""))
    start = 0 if text.lstrip().startswith(">") else max(text.find("\n"), 0)
    signs = [sign.start() for sign in (_PASTED.search(text, start), _QUOTED.search(text)) if sign]
    at = 0
    while sign := _TO_WORK_ON.search(text, at):
        if not _INTRODUCES_CODE.match(text, sign.start()):
            signs.append(sign.end())
            break
        at = text.index("\n", sign.start())  # what introduces code ends its line, so all signs of the line do
    return text[: min(signs, default=len(text))].replace(f"\n{_CODE}\n", "\n")


def has_pasted(text: str) -> bool:
    """Whether something follows the user's `own_words` in ``text``, or code stands in it."""
    return bool(text.removeprefix(own_words(text)).strip())


def quotes(text: str) -> bool:
    """Whether ``text`` repeats a text of somebody else: a quotation after a colon."""
    return bool(_QUOTED.search(FENCE.sub("\n", text)))


def split_text(text: str, max_bytes: int) -> list[str]:
    """``text`` in parts of at most ``max_bytes`` of UTF-8, or of one character.

    A part ends at the last paragraph end in its second half, else at a sentence or word end, else where it is full.
    Only white space between the parts is dropped.
    """
    parts: list[str] = []
    start = 0
    while start < len(text):
        limit = max(max_bytes, _MAX_UTF8)
        window = text[start : start + limit].encode()[:limit].decode(errors="ignore")
        is_last = start + len(window) == len(text)
        cuts = ([end.end() for end in ends.finditer(window, len(window) // 2)] for ends in _ENDS)
        end = len(window) if is_last else next((found[-1] for found in cuts if found), len(window))
        parts.append(window[:end].strip())
        start += end
    return [part for part in parts if part]
