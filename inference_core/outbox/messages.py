"""Message: one message of a conversation, whatever its source. Transcript: the messages of a file.

The module also says from which message on a session holds text from outside, and splits texts into memories.
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
from inference_core.memory.namespaces import Owner
from inference_core.memory.text import MAX_LABEL_BYTES, optional_text
from inference_core.memory.trust import Origin
from inference_core.outbox.outside import quotes

NO_THREAD: Final = "threadless"
"""The session of runs without a thread, whose callers pass the whole history each time."""
EMPTY: Final = "empty"
"""Why a message without text is skipped."""
OTHER_PARTS: Final = "parts without text"
"""Why a part of a message is skipped, such as an image. Counts parts, not messages."""
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

    ``id`` is the source's own; without one, ``position``, counted from 0 in the session, tells equal messages apart. It
    also tells whether something that is not here was said between two messages.
    ``author`` is the name of another person who said it; None for the user, whatever the user's name.
    ``is_proven``: nothing in it is from outside, such as a file or a citation (see `outside`).
    ``is_marked``: text from outside was in the conversation by then, which an assistant may repeat.
    """

    session_id: str | None
    role: Role
    text: str
    id: str | None = None
    position: int = 0
    author: str | None = None
    at: datetime | None = None
    is_proven: bool = True
    is_marked: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the user said it. Its `own_sentences` are then the user's words."""
        return self.role is Role.USER and self.author is None and self.is_proven

    @property
    def origin(self) -> Origin:
        """Whose words they are; what may be from outside counts as a tool's or a document's."""
        if self.role is Role.USER:
            return Origin.DOCUMENT if brings_outside(self) else Origin.USER
        return Origin.TOOL if self.is_marked or not self.is_proven else _ORIGINS[self.role]


@dataclass(frozen=True, slots=True)
class Transcript:
    """Messages in their order and how many there are at most; ``skipped`` counts by reason while they are read.

    Reading may raise InvalidInput; the messages read before that are complete.
    """

    messages: Iterable[ConversationMessage]
    total: int
    skipped: Counter[str] = field(default_factory=Counter[str])


def traced(messages: Iterable[ConversationMessage]) -> Iterator[ConversationMessage]:
    """``messages``, marked from the first on that `brings_outside` text into their session."""
    with_outside: set[str | None] = set()
    for message in messages:
        if any_outside([message]):
            with_outside.add(message.session_id)
        yield replace(message, is_marked=True) if message.session_id in with_outside else message


def brings_outside(message: ConversationMessage) -> bool:
    """Whether ``message`` holds text from outside, which the assistant may repeat from then on."""
    is_others = message.role is Role.TOOL or message.author is not None or not message.is_proven
    return is_others or (message.role is Role.USER and quotes(message.text))


def any_outside(messages: Iterable[ConversationMessage]) -> bool:
    """Whether text from outside is in ``messages``, or was in their conversation before."""
    return any(one.is_marked or brings_outside(one) for one in messages)


def author_of(name: str | None, *own: Owner) -> str | None:
    """``name`` as the author of a message in the user's role; None if it is one of the user's ``own`` names.

    The case of letters makes no difference.
    """
    return None if not name or name.casefold() in (str(one).casefold() for one in own) else name


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
