"""Long texts are embedded by passage, so that none of their parts is lost in an average."""

from __future__ import annotations

import re
from typing import Final

PASSAGE_WORDS: Final = 90
MAX_PASSAGES: Final = 64
_SENTENCE_END: Final = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_LONG_WORD: Final = 24


def passages(text: str, limit: int = PASSAGE_WORDS) -> list[str]:
    """``text`` in passages of at most ``limit`` words, cut at the ends of sentences where that is possible.

    Scripts without spaces count by character, two to a word. Text beyond 64 passages belongs to the last of them.
    """
    if len(text) <= limit or _size(text) <= limit:
        return [text]
    found: list[str] = []
    current: list[str] = []
    size = 0
    for part in _parts(text, limit):
        if current and size + _size(part) > limit and len(found) < MAX_PASSAGES - 1:
            found.append(" ".join(current))
            current, size = [], 0
        current.append(part)
        size += _size(part)
    return [*found, " ".join(current)]


def _size(text: str) -> int:
    """Length in words; a long run of characters without spaces counts as several."""
    return sum(1 if len(word) <= _LONG_WORD else len(word) // 2 for word in text.split())


def _parts(text: str, limit: int) -> list[str]:
    """Sentences; those beyond ``limit`` words in pieces."""
    parts: list[str] = []
    for sentence in filter(None, map(str.strip, _SENTENCE_END.split(text))):
        if _size(sentence) <= limit:
            parts.append(sentence)
        else:
            words = [piece for word in sentence.split() for piece in _pieces(word, limit)]
            parts += [" ".join(words[start : start + limit]) for start in range(0, len(words), limit)]
    return parts


def _pieces(word: str, limit: int) -> list[str]:
    if len(word) <= _LONG_WORD:
        return [word]
    return [word[start : start + 2 * limit] for start in range(0, len(word), 2 * limit)]
