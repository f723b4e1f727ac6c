"""Splits texts that are too long for a memory at the end of a paragraph, a sentence or a word."""

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
    """``text`` in parts of at most ``max_bytes`` of UTF-8 (but at least a character), each as long as possible.

    Only white space between the parts is dropped. All parts but the last are at least half as long as allowed.
    """
    parts: list[str] = []
    start = 0
    while start < len(text):
        limit = max(max_bytes, _MAX_UTF8)
        window = text[start : start + limit].encode()[:limit].decode(errors="ignore")
        is_last = start + len(window) == len(text)
        end = len(window) if is_last else _cut(window)
        parts.append(window[:end].strip())
        start += end
    return [part for part in parts if part]


def _cut(window: str) -> int:
    """Where to cut: the last paragraph end in the second half, else sentence or word end, else the window's end."""
    for ends in _ENDS:
        if found := [end.end() for end in ends.finditer(window, len(window) // 2)]:
            return found[-1]
    return len(window)
