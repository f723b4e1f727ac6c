"""Texts that are longer than a memory may be, cut where a paragraph, a sentence or a word ends."""

from __future__ import annotations

import re
from typing import Final

_ENDS: Final = (
    re.compile(r"\n{2,}"),
    re.compile(r"\n+|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])"),
    re.compile(r"\s+"),
)
_MAX_UTF8: Final = 4


def split_text(text: str, max_bytes: int) -> list[str]:
    """``text`` in parts of at most ``max_bytes`` of UTF-8, or of one character, as long as the places to cut allow.

    Only white space between parts is lost. A part is at least half as long as it may be if there is more to come.
    """
    parts: list[str] = []
    start = 0
    while start < len(text):
        window = _window(text, start, max(max_bytes, _MAX_UTF8))
        end = start + len(window)
        if end < len(text):
            end = start + _cut(window)
        parts.append(text[start:end].strip())
        start = end
    return [part for part in parts if part]


def _window(text: str, start: int, max_bytes: int) -> str:
    return text[start : start + max_bytes].encode()[:max_bytes].decode(errors="ignore")


def _cut(window: str) -> int:
    """Where to end a part: after the last end of the best kind in the second half, else at the end."""
    for ends in _ENDS:
        found = [end.end() for end in ends.finditer(window, len(window) // 2)]
        if found:
            return found[-1]
    return len(window)
