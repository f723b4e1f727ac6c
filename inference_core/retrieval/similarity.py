"""How alike two texts are by their words: repetitions, diversity, and which of several hits is the newer fact.

Word sets instead of vectors: a negation or another number hardly moves a vector and changes everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from inference_core.retrieval.analysis import analyze, query_alternatives
from inference_core.retrieval.languages import WORDS

_SENTENCE_MARKS: Final = ".,;:!?\"'\u2026\u3002\uff0c\uff01\uff1f"
_EMPTY_WORDS: Final = frozenset(WORDS["empty_words"].split())
"""English words without which a note says the same; no negation, quantity or modal verb is among them."""
Moment = tuple[float, float]
"""When something happened and when it was stored, in seconds since 1970."""
WINDOW: Final = 6
"""This many of the best hits are compared. Only their order changes, not which hits are returned."""
_SHARED: Final = 0.4
_FEW: Final = 2
_OPENS: Final = re.compile(r"\s*(?:what|which|how (?:many|much|long|often|far|old)|when|where|who)\b", re.IGNORECASE)
_PRESENT: Final = re.compile(r"\b(?:is|are|am|has|have|do|does|should|can|will)\b", re.IGNORECASE)
_OWN: Final = re.compile(r"\b(?:my|i|me|our|we|us)\b|\b(?:is|are|do|does|has|have) (?:the|there)\b", re.IGNORECASE)
_PAST: Final = re.compile(
    r"\b(?:did|was|were|had|used to|originally|initial(?:ly)?|before|previous(?:ly)?|between|order|ago|earlier|list"
    r"|summar\w+|over time|throughout|across|ever)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=4_096)
def words_of(text: str) -> frozenset[str]:
    """The words of ``text``, in lower case, without punctuation. Other symbols count: C is not C#."""
    return frozenset(filter(None, (word.strip(_SENTENCE_MARKS) for word in text.casefold().split())))


@lru_cache(maxsize=4_096)
def gist(text: str) -> frozenset[str]:
    """The words of ``text`` without empty ones. Texts with the same, non-empty gist say the same."""
    return words_of(text) - _EMPTY_WORDS


def overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """The share of words that both have, from 0 to 1 (Jaccard 1901)."""
    return len(first & second) / max(len(first | second), 1)


def diversified(scores: Sequence[float], texts: Sequence[str], limit: int, diversity: float) -> list[int]:
    """Positions of ``limit`` texts by maximal marginal relevance (Carbonell and Goldstein 1998).

    Each is the best of the rest, by its score minus ``diversity`` times its largest overlap with the chosen ones.
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


def asks_for_present(text: str) -> bool:
    """Whether ``text`` is an English question about the user's present, not about the past or a development."""
    patterns = (_PRESENT, _OWN)
    return bool(_OPENS.match(text) and not _PAST.search(text) and all(one.search(text) for one in patterns))


def newest_first(query: str, texts: Sequence[str], moments: Sequence[Moment | None]) -> list[int]:
    """The positions of ``texts``, which come best first, with newer texts before older ones on the same subject.

    Two texts have the same subject if the newer one has two fifths of the query's words that the older one has, and at
    least two of them. Texts without a moment keep their place.
    """
    words = query_alternatives(query)
    terms = [set(analyze(text)) for text in texts]
    held = [{at for at, forms in enumerate(words) if not own.isdisjoint(forms)} for own in terms]
    order: list[int] = []
    for at, moment in enumerate(moments):
        place = len(order)
        if moment is not None:
            for spot, other in enumerate(order):
                is_same = len(held[at] & held[other]) >= max(_FEW, _SHARED * len(held[other]))
                if is_same and (moments[other] or moment) < moment:
                    place = spot
                    break
        order.insert(place, at)
    return order
