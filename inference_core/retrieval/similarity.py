"""How alike two texts are by their words: repetitions, diversity, and which of several hits is the newer fact.

Word sets instead of vectors: a negation or another number changes everything, but hardly moves a vector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from inference_core.retrieval.analysis import analyze, query_alternatives
from inference_core.retrieval.languages import WORDS

if TYPE_CHECKING:  # imports numpy, which is slow
    from inference_core.retrieval.vectors import Floats

_SENTENCE_MARKS: Final = ".,;:!?\"'\u2026\u3002\uff0c\uff01\uff1f"
_OPENING_MARKS: Final = _SENTENCE_MARKS.replace(".", "")
"""A point before a word belongs to it: .5 is not 5."""
_EMPTY_WORDS: Final = frozenset(WORDS["empty_words"].split())
"""English words without which a note says the same; no negation, quantity or modal verb is among them."""
_PAST_WORDS: Final = frozenset(WORDS["past"].split())
_UNSPACED_PAST: Final = tuple(WORDS["past_in_unspaced"].split())
_SHORT: Final = 500
"""The words of longer texts are not cached: a few thousand such texts would take more memory than all indexes."""
Moment = tuple[float, float]
"""When something happened and when it was stored, in seconds since 1970."""
WINDOW: Final = 10
"""Only among this many of the best hits do newer ones move before older ones."""
WINDOW_OF_TURNS: Final = 6
"""The same for turns of conversations."""
_SHARED: Final = 0.4
_FEW: Final = 2
_ALIKE: Final = 0.35
_LEAST: Final = 0.3
_RANGE: Final = 0.3
"""To a newer text at a cosine of `_ALIKE`, a text loses `_LEAST`; for each `_RANGE` above, it loses 1 more, up to 1."""
_MOST_LOOKED_UP: Final = 100_000_000
"""Limit on the postings read for diversity. Choosing 100 of 300 texts, however long, stays below it."""
_OPENS: Final = re.compile(r"\s*(?:what|which|how (?:many|much|long|often|far|old)|when|where|who)\b", re.IGNORECASE)
_PRESENT: Final = re.compile(r"\b(?:is|are|am|has|have|do|does|should|can|will)\b", re.IGNORECASE)
_OWN: Final = re.compile(r"\b(?:my|i|me|our|we|us)\b|\b(?:is|are|do|does|has|have) (?:the|there)\b", re.IGNORECASE)
_PAST: Final = re.compile(
    r"\b(?:did|was|were|had|used to|originally|initial(?:ly)?|before|previous(?:ly)?|between|order|ago|earlier|list"
    r"|summar\w+|over time|throughout|across|ever)\b",
    re.IGNORECASE,
)


def words_of(text: str) -> frozenset[str]:
    """The words of ``text``, in lower case, without punctuation. Other symbols count: C is not C#."""
    return frozenset(_in_order(text))


def gist(text: str) -> tuple[str, ...]:
    """The words of ``text`` in their order, without empty ones. Texts with the same, non-empty gist say the same.

    In another order, they do not: who flies from Lisbon to Porto does not fly from Porto to Lisbon.
    """
    return tuple(word for word in _in_order(text) if word not in _EMPTY_WORDS)


def _in_order(text: str) -> tuple[str, ...]:
    return _words(text) if len(text) <= _SHORT else _words.__wrapped__(text)


@lru_cache(maxsize=4_096)
def _words(text: str) -> tuple[str, ...]:
    words = (word.rstrip(_SENTENCE_MARKS).lstrip(_OPENING_MARKS) for word in text.casefold().split())
    return tuple(filter(None, words))


def overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """The share of words that both have, from 0 to 1 (Jaccard 1901)."""
    return len(first & second) / max(len(first | second), 1)


def diversified(scores: Sequence[float], texts: Sequence[str], limit: int, diversity: float) -> list[int]:
    """Positions of ``limit`` texts by maximal marginal relevance (Carbonell and Goldstein 1998).

    Each is the best of the rest, by its score minus ``diversity`` times its largest overlap with the chosen ones. Among
    hundreds of long texts, only overlaps with the first chosen ones count, to bound the time.
    """
    import numpy as np  # noqa: PLC0415 - slow to import

    words = [words_of(text) for text in texts]
    sizes = np.array([len(own) for own in words], np.int64)
    having: dict[str, list[int]] = {}
    for at, own in enumerate(words):
        for word in own:
            having.setdefault(word, []).append(at)
    places = {word: np.array(found, np.int64) for word, found in having.items() if len(found) > 1}
    own_scores, repeats = np.array(scores, np.float64), np.zeros(len(texts))
    is_left, looked_up = np.ones(len(texts), np.bool_), 0
    chosen: list[int] = []
    while len(chosen) < min(limit, len(texts)):
        best = int(np.where(is_left, own_scores - diversity * repeats, -np.inf).argmax())
        is_left[best] = False
        chosen.append(best)
        found = [places[word] for word in words[best] if word in places]
        looked_up += sum(map(len, found))
        if found and looked_up <= _MOST_LOOKED_UP:
            shared = np.bincount(np.concatenate(found), minlength=len(texts))
            np.maximum(repeats, shared / (sizes + sizes[best] - shared), out=repeats)
    return chosen


def asks_for_present(text: str) -> bool:
    """Whether ``text`` is an English question about the user's present, not about the past or a development."""
    patterns = (_PRESENT, _OWN)
    return bool(_OPENS.match(text) and not _PAST.search(text) and all(one.search(text) for one in patterns))


def asks_for_past(text: str) -> bool:
    """Whether a word of ``text`` refers to the past or to a development."""
    is_marked = _PAST.search(text) is not None or not _PAST_WORDS.isdisjoint(words_of(text))
    return is_marked or any(mark in text for mark in _UNSPACED_PAST)


def outdated(
    query: str,
    texts: Sequence[str],
    moment_of: Callable[[int], Moment | None],
    alike: Floats,
    is_beside: Callable[[str, str], bool] | None = None,
) -> dict[int, float]:
    """The penalty, up to 1, of each of ``texts`` (by position) that a newer one on the same subject may have replaced.

    ``alike`` are the centred cosines of their vectors (texts, texts), NaN if unknown. A text loses to a newer one that
    is alike, and more the closer that is, if the newer one has at least two fifths of the query's words that the text
    has, and at least one. Texts for which ``moment_of`` gives None neither lose nor make others lose; nor does a newer
    text make one lose that it ``is_beside``.
    """
    losses: dict[int, float] = {}
    rows, columns = (alike > _ALIKE).nonzero()
    pairs = [(one, other) for one, other in zip(rows.tolist(), columns.tolist(), strict=True) if one < other]
    if not pairs:
        return losses
    words = query_alternatives(query)
    known = {at: (moment_of(at), _held(words, texts[at])) for at in sorted({*chain.from_iterable(pairs)})}
    for one, other in pairs:
        (first, held_first), (second, held_second) = known[one], known[other]
        if first is None or second is None or first == second:
            continue
        older, newer, held = (one, other, held_first) if first < second else (other, one, held_second)
        is_on_it = len(held_first & held_second) >= max(1, _SHARED * len(held))
        if is_on_it and not (is_beside and is_beside(texts[older], texts[newer])):
            loss = min(1.0, _LEAST + (alike.item(one, other) - _ALIKE) / _RANGE)
            losses[older] = max(losses.get(older, 0.0), loss)
    return losses


def newest_first(query: str, texts: Sequence[str], moments: Sequence[Moment | None]) -> list[int]:
    """The positions of ``texts``, given best first, with newer texts before older ones on the same subject.

    Two texts have the same subject if the newer one has two fifths of the query's words that the older one has, and at
    least two of them. Texts without a moment keep their place.
    """
    words = query_alternatives(query)
    held = [_held(words, text) for text in texts]
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


def _held(words: Sequence[Collection[str]], text: str) -> set[int]:
    """Which of a query's words ``text`` has."""
    own = terms_of(text)
    return {at for at, forms in enumerate(words) if not own.isdisjoint(forms)}


@lru_cache(maxsize=256)
def terms_of(text: str) -> frozenset[str]:
    """The index terms of ``text``."""
    return frozenset(analyze(text))
