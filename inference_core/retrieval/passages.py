"""Long texts are embedded by passage, so that none of their parts is lost in an average."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from inference_core.retrieval.analysis_letters import UNSPACED

PASSAGE_WORDS: Final = 90
MAX_PASSAGES: Final = 64
_SENTENCE_END: Final = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_LONG_WORD: Final = 24
_UNSPACED: Final = re.compile(rf"[{UNSPACED}]")


def passages(text: str, limit: int = PASSAGE_WORDS) -> list[str]:
    """``text`` in passages of at most ``limit`` words, cut at the ends of sentences where that is possible.

    Scripts without spaces count by character, two to a word. Text beyond 64 passages belongs to the last of them.
    """
    if len(text) <= limit or _size(text) <= limit:
        return [text]
    found = _joined(_parts(text, limit), limit)
    rest = found[MAX_PASSAGES - 1 :]
    return [*found[: MAX_PASSAGES - 1], " ".join(rest)] if rest else found


def _size(text: str) -> int:
    """Length in words; a run of characters without spaces counts as several if it is long or of such a script."""
    return sum((len(word) + 1) // 2 if len(word) > _LONG_WORD or _UNSPACED.search(word) else 1 for word in text.split())


def _parts(text: str, limit: int) -> list[str]:
    """Sentences; those beyond ``limit`` words in pieces."""
    parts: list[str] = []
    for sentence in filter(None, map(str.strip, _SENTENCE_END.split(text))):
        if _size(sentence) <= limit:
            parts.append(sentence)
        else:
            parts += _joined([piece for word in sentence.split() for piece in _pieces(word, limit)], limit)
    return parts


def _joined(parts: Sequence[str], limit: int) -> list[str]:
    """As many parts at a time as have at most ``limit`` words together."""
    found: list[str] = []
    current: list[str] = []
    size = 0
    for part in parts:
        if current and size + _size(part) > limit:
            found.append(" ".join(current))
            current, size = [], 0
        current.append(part)
        size += _size(part)
    return [*found, " ".join(current)]


def _pieces(word: str, limit: int) -> list[str]:
    if _size(word) <= 1:
        return [word]
    return [word[start : start + 2 * limit] for start in range(0, len(word), 2 * limit)]
