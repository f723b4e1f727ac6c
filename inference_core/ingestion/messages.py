"""Message: one message of a conversation, as every reader gives it. Transcript: the messages of a file."""

from __future__ import annotations

import hashlib
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


class Role(str, Enum):
    """Who said it: the user and other people, the assistant, or a tool that the assistant called."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ORIGINS: Final = {Role.USER: Origin.USER, Role.ASSISTANT: Origin.AGENT, Role.TOOL: Origin.TOOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. ``at`` is when it was said, aware; None where the source does not say.

    ``id`` is the source's own; without one, ``position``, counted from 0 in the session, tells equal messages apart.
    ``after_tool``: an assistant said it after a tool's results, and may only repeat them.
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

    Reading may raise InvalidInput; the messages before it are complete.
    """

    messages: Iterable[Message]
    total: int
    skipped: Counter[str] = field(default_factory=Counter[str])


def traced(messages: Iterable[Message]) -> Iterator[Message]:
    """``messages``, those of the assistant that follow a tool's in the same session marked as ``after_tool``."""
    told: set[str | None] = set()
    for message in messages:
        if message.role is Role.TOOL:
            told.add(message.session_id)
        is_told = message.role is Role.ASSISTANT and message.session_id in told
        yield replace(message, after_tool=True) if is_told else message


def label(text: str | None) -> str | None:
    """``text`` as a short field of a memory, cut if it is too long; None if nothing is left of it."""
    clean = mended(text or "").encode()[:MAX_LABEL_BYTES].decode(errors="ignore")
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
