"""Which of several hits that speak of the same is newer, where a question asks for what holds now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from inference_core.retrieval.analysis import analyze, query_alternatives

Moment = tuple[float, float]
"""When something happened and when it was stored, in seconds since 1970."""
WINDOW: Final = 6
"""So many of the best hits are compared; what is given stays the same, only its order changes."""
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


def asks_for_present(text: str) -> bool:
    """Whether ``text`` is an English question for how something of the user's is now, not for what was or a course."""
    patterns = (_PRESENT, _OWN)
    return bool(_OPENS.match(text) and not _PAST.search(text) and all(one.search(text) for one in patterns))


def newest_first(query: str, texts: Sequence[str], moments: Sequence[Moment | None]) -> list[int]:
    """The positions of ``texts``, the best first, with what is newer before the older text of the same.

    A text is of the same as another if it holds two fifths of the words of ``query`` that the other one holds, and at
    least two of them.
    One without a moment stays where it is among the others.
    """
    words = query_alternatives(query)
    held = [_held(words, text) for text in texts]
    order: list[int] = []
    for at, moment in enumerate(moments):
        place = len(order)
        if moment is not None:
            older = (spot for spot, other in enumerate(order) if (moments[other] or moment) < moment)
            place = next((spot for spot in older if _is_of_same(held[at], held[order[spot]])), place)
        order.insert(place, at)
    return order


def _held(words: Sequence[tuple[str, ...]], text: str) -> frozenset[int]:
    terms = set(analyze(text))
    return frozenset(at for at, forms in enumerate(words) if not terms.isdisjoint(forms))


def _is_of_same(newer: frozenset[int], older: frozenset[int]) -> bool:
    return len(newer & older) >= max(_FEW, _SHARED * len(older))
