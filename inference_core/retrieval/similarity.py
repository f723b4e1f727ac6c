"""How alike two texts are: repetitions, diversity, and which of several hits is the newer fact.

Words count beside vectors: a negation or another number changes everything, but hardly moves a vector.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from inference_core.memory.text import Uncased
from inference_core.retrieval.analysis import WORDS, analyze, language_of, query_alternatives

if TYPE_CHECKING:  # imports numpy, which is slow
    from inference_core.retrieval.vectors import Floats

_QUERIES: Final = 16
"""What a query asks for is read once, and used for each group of memories."""
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
"""Texts are compared only if their cosine is above this: less similar texts hardly ever replace each other."""
_REPLACES: Final = 0.65
_HALF: Final = 0.5
_MOST_LOOKED_UP: Final = 100_000_000
"""Limit on the postings read for diversity. Choosing 100 of 300 texts, however long, stays below it."""
_OPENS: Final = re.compile(r"\s*(?:what|which|how (?:many|much|long|often|far|old)|when|where|who)\b", re.IGNORECASE)
_PRESENT: Final = re.compile(r"\b(?:is|are|am|has|have|do|does|should|can|will)\b", re.IGNORECASE)
_OWN: Final = re.compile(r"\b(?:my|i|me|our|we|us)\b|\b(?:is|are|do|does|has|have) (?:the|there)\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<![\w.,:/-])\d[\d.,:]*(?![\w/-])")
_PHRASES: Final = [line for lines in WORDS["hypothetical"].values() for line in lines.splitlines() if line]
_UNSPACED_PHRASES: Final[list[str]] = WORDS["hypothetical_in_unspaced"].split()
_HYPOTHETICAL: Final = Uncased(
    rf"{'|'.join(_UNSPACED_PHRASES)}|"
    rf"\b(?:{'|'.join(map(re.escape, _PHRASES))}|if\b.*\b(?:would|could|\w+['\u2019]d))\b"
)
_OTHERS: Final = {language: frozenset(words.split()) for language, words in WORDS["others"].items()}
_PETS: Final = frozenset(WORDS["pets"].split())
_UNSPACED: Final = frozenset({"zh", "ja"})
_LETTERS: Final = re.compile(r"[^\W\d_]+")
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
    """The share of all words that both sets have, from 0 to 1 (Jaccard 1901)."""
    shared = len(first & second)
    return shared / max(len(first) + len(second) - shared, 1)


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


@lru_cache(maxsize=_QUERIES)
def asks_for_present(text: str) -> bool:
    """Whether ``text`` is an English question about the user's present, not about the past or a development."""
    patterns = (_PRESENT, _OWN)
    return bool(_OPENS.match(text) and not _PAST.search(text) and all(pattern.search(text) for pattern in patterns))


@lru_cache(maxsize=_QUERIES)
def asks_for_past(text: str) -> bool:
    """Whether a word of ``text`` refers to the past or to a development."""
    is_marked = _PAST.search(text) is not None or not _PAST_WORDS.isdisjoint(words_of(text))
    return is_marked or any(mark in text for mark in _UNSPACED_PAST)


class Compared(NamedTuple):
    """What a text is compared by, besides its vector: its ``terms`` and ``numbers``.

    ``held`` are the positions of those words of the query that the text has. ``others`` are words for people in it whom
    the query does not mention, ``pets`` its words for pets. ``is_supposed``: the text is hypothetical.
    """

    terms: frozenset[str]
    numbers: frozenset[str]
    held: frozenset[int]
    others: frozenset[str]
    pets: frozenset[str]
    is_supposed: bool


def compared(query: str, texts: Iterable[str]) -> list[Compared]:
    """Each of ``texts``, prepared for a comparison with the others."""
    words, asked = _asked(query)
    alone = [_alone(text) if len(text) <= _SHORT else _alone.__wrapped__(text) for text in texts]
    return [compared._replace(held=_held(words, compared.terms), others=compared.others - asked) for compared in alone]


@lru_cache(maxsize=_QUERIES)
def _asked(query: str) -> tuple[list[tuple[str, ...]], frozenset[str]]:
    """The words of ``query``, each as its index terms, and those for people."""
    return query_alternatives(query), others_in(query)


@lru_cache(maxsize=4_096)  # the same memories are compared in turn after turn
def _alone(text: str) -> Compared:
    """``text`` prepared without a query."""
    numbers = frozenset(found.rstrip(".,:") for found in _NUMBER.findall(text))
    words: list[str] = _LETTERS.findall(text.casefold())
    others, pets = _others_among(words, text), _PETS.intersection(words)
    return Compared(frozenset(analyze(text)), numbers, frozenset(), others, pets, is_hypothetical(text))


def closeness(compared: Compared, other: Compared, alike: float = math.nan) -> float:
    """How far ``other`` is about the same subject as ``compared``, mostly from -1 to 1.5.

    The larger of ``alike``, the centred cosine of their vectors (NaN: unknown), and the share of the terms of
    ``compared`` that ``other`` has; plus half of that share; minus the share of the query's words in ``compared`` that
    ``other`` lacks, or minus a half if ``compared`` has none of them.
    """
    kept = len(compared.terms & other.terms) / max(len(compared.terms), 1)
    lacking = 1 - len(compared.held & other.held) / len(compared.held) if compared.held else _HALF
    return max(kept, alike) + _HALF * kept - lacking


def is_replaced(older: Compared, newer: Compared, alike: float = math.nan) -> bool:
    """Whether ``newer`` seems to replace what ``older`` says.

    False if ``newer`` is hypothetical, is about other people or another pet, or repeats all numbers of ``older``.
    """
    is_repeat = bool(older.numbers) and older.numbers <= newer.numbers
    is_beside = newer.others != older.others or not newer.pets <= older.pets
    if newer.is_supposed or is_repeat or is_beside:
        return False
    return closeness(older, newer, alike) > _REPLACES


def outdated(
    query: str, texts: Sequence[str], moment_of: Callable[[int], Moment | None], alike: Floats
) -> frozenset[int]:
    """The positions of those ``texts`` that a newer one may have replaced (`is_replaced`).

    ``alike`` are the centred cosines of their vectors (texts, texts), NaN if unknown; only alike texts are compared.
    Texts for which ``moment_of`` gives None neither replace others nor are replaced.
    """
    rows, columns = (alike > _ALIKE).nonzero()
    pairs = [(old, new) for old, new in zip(rows.tolist(), columns.tolist(), strict=True) if old != new]
    if not pairs:
        return frozenset()
    known = sorted({*chain.from_iterable(pairs)})
    found = dict(zip(known, compared(query, [texts[at] for at in known]), strict=True))
    moments = {at: moment_of(at) for at in known}
    return frozenset(
        old
        for old, new in pairs
        if (before := moments[old])
        and (after := moments[new])
        and before < after
        and is_replaced(found[old], found[new], alike.item(old, new))
    )


def newest_first(query: str, texts: Sequence[str], moments: Sequence[Moment | None]) -> list[int]:
    """The positions of ``texts``, given best first, with newer texts before older ones on the same subject.

    Two texts have the same subject if the newer one has two fifths of the query's words that the older one has, and at
    least two of them. Texts without a moment keep their place.
    """
    words, _ = _asked(query)
    held = [_held(words, terms_of(text)) for text in texts]
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


def _held(words: Sequence[Collection[str]], terms: frozenset[str]) -> frozenset[int]:
    """Which of a query's words are among ``terms``."""
    return frozenset(at for at, forms in enumerate(words) if not terms.isdisjoint(forms))


def is_hypothetical(text: str) -> bool:
    """Whether a word of a short ``text`` says that something is only considered, assumed or proposed."""
    return len(text) <= _SHORT and _is_supposed(text)


@lru_cache(maxsize=4_096)
def _is_supposed(text: str) -> bool:
    return _HYPOTHETICAL.is_in(text)


def others_in(text: str) -> frozenset[str]:
    """The words for people in ``text``, by the language that it is in."""
    return _others_among(_LETTERS.findall(text.casefold()), text)


def _others_among(words: Sequence[str], text: str) -> frozenset[str]:
    language = language_of(text) or "en"
    if language in _UNSPACED:
        return frozenset(word for word in _OTHERS[language] if word in text)
    singular = [word[:-1] for word in words if word.endswith("s")]
    return _OTHERS.get(language, frozenset()).intersection([*words, *singular])


@lru_cache(maxsize=256)
def terms_of(text: str) -> frozenset[str]:
    """The index terms of ``text``."""
    return frozenset(analyze(text))


@lru_cache(maxsize=65_536)
def terms_of_word(word: str) -> tuple[str, ...]:
    """The index terms of ``word``; none of a stop word."""
    return tuple(analyze(word))
