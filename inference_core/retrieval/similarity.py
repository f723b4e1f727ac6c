"""How alike two texts are by their words: what is said twice, and what adds little.

Word sets rather than vectors: a negation or another number hardly moves a vector and changes everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_SENTENCE_MARKS: Final = ".,;:!?\"'\u2026\u3002\uff0c\uff01\uff1f"
_EMPTY_WORDS: Final = frozenset(
    [
        "a",
        "an",
        "the",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "i",
        "me",
        "my",
        "mine",
        "you",
        "your",
        "he",
        "him",
        "his",
        "she",
        "her",
        "it",
        "its",
        "we",
        "us",
        "our",
        "they",
        "them",
        "their",
        "user",
        "this",
        "that",
        "and",
        "of",
        "to",
        "at",
        "on",
        "in",
        "for",
        "with",
    ]
)
"""English words without which a note says the same; no negation, quantity or modal verb is among them."""


@lru_cache(maxsize=4_096)
def words_of(text: str) -> frozenset[str]:
    """The words of ``text``, in lower case and without the marks of sentences; other symbols count: C is not C#."""
    return frozenset(filter(None, (word.strip(_SENTENCE_MARKS) for word in text.casefold().split())))


@lru_cache(maxsize=4_096)
def gist(text: str) -> frozenset[str]:
    """The words of ``text`` but for empty ones; of texts that have some and the same, one is enough."""
    return words_of(text) - _EMPTY_WORDS


def overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """The share of all words that both have, from 0 to 1 (Jaccard 1901)."""
    return len(first & second) / max(len(first | second), 1)


def diversified(scores: Sequence[float], texts: Sequence[str], limit: int, diversity: float) -> list[int]:
    """Positions of ``limit`` texts, each the best of what is left after what it repeats has been taken off its score.

    Maximal marginal relevance (Carbonell and Goldstein 1998): score minus ``diversity`` times the largest overlap.
    """
    words = [words_of(text) for text in texts]
    left, chosen = list(range(len(texts))), list[int]()
    repeats = [0.0] * len(texts)
    while left and len(chosen) < limit:
        best = max(left, key=lambda at: (scores[at] - diversity * repeats[at], -at))
        left.remove(best)
        chosen.append(best)
        for at in left:
            repeats[at] = max(repeats[at], overlap(words[at], words[best]))
    return chosen
