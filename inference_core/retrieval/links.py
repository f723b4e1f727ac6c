"""What links add to the score of memories: spreading activation in two steps, from the query and from its best hits.

First from the query to memories about the people it names, then from the best memories to others that share a rare
word, an entity or a tag with them, or superseded them (Collins and Loftus 1975; entity links as in HippoRAG, Gutierrez
et al. 2024, but over the existing postings, without a graph or a model).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from inference_core.memory.record import MemoryLink
from inference_core.retrieval.analysis import words_by_term
from inference_core.retrieval.index import ScopeView
from inference_core.retrieval.pool import Place
from inference_core.retrieval.query import Named

ABOUT: Final = 0.5
"""What a memory gains if it is about somebody the query names."""
ANSWERS: Final = 1.25
"""What it gains in addition if no candidate is more relevant by itself."""
SHARED: Final = 1.5
"""The most it gains for what it shares with one of the best."""
UNNAMED: Final = 0.33
"""The fraction of that it gains if the query names nobody a candidate is about."""
_SURE: Final = 0.3
"""The name in a query is trusted fully if memories about that person lead the others by these log odds."""
_HALF: Final = 12.0
"""The shared idf that gives half of `SHARED`."""
_SAME_FACT: Final = 12.0
MAX_WORDS: Final = 32
"""The number of words of a memory that are followed."""
_RARE_SHARE: Final = 100
_FEW: Final = 3
_MANY: Final = 64
"""A word is rare if it occurs in at most one of a hundred memories, or three of a few, but never in more than 64."""
_EXTREME: Final = 0.001
Bridges = dict[Place, tuple[float, str]]
"""For each document that shares something with another, how much it shares, and the name of the weightiest part."""


@dataclass(slots=True)
class Candidate:
    """A memory that recall may return. ``subjects`` are whom it is about; ``marks`` add its tags; by canonical name.

    ``share`` is what ``links`` add to its score.
    """

    key: str
    score: float
    relevance: float
    subjects: Mapping[str, str]
    marks: Mapping[str, str]
    asks: bool = False
    share: float = 0.0
    links: list[MemoryLink] = field(default_factory=list[MemoryLink])

    def gain(self, share: float, link: MemoryLink) -> None:
        """Adds a link and its share of the score."""
        self.share += share
        self.links.append(link)


def link_to_query(candidates: Sequence[Candidate], named: Named) -> float:
    """Raises candidates about an entity that the query names. Returns how much further links count, 0 to 1.

    If candidates about others answer as well, the query may name the wrong entity, and nothing is raised. Candidates
    that are questions answer nothing.
    """
    about: dict[int, str] = {}
    for at, one in enumerate(candidates):
        name = next((subject for subject in one.subjects if subject in named), None)
        if name is not None:
            about[at] = one.subjects[name]
    if not about:
        return UNNAMED
    telling = [at for at, one in enumerate(candidates) if not one.asks]
    own, others = [at for at in telling if at in about], [at for at in telling if at not in about]
    trust = float(bool(own))
    if own and others:
        ahead = _best_odds(candidates, own) - _best_odds(candidates, others)
        trust = min(max(ahead / _SURE, 0.0), 1.0)
    most = max(one.relevance for one in candidates) or 1.0
    for at in own if trust else ():
        one = candidates[at]
        one.gain(trust * (ABOUT + ANSWERS * one.relevance / most), MemoryLink(about[at]))
    return trust


def link_to_best(candidate: Candidate, bridges: Mapping[str, tuple[float, str]], strength: float) -> None:
    """Raises ``candidate`` by the best of its ``bridges``, which are keyed by the id of the memory at the other end.

    ``strength`` is the result of `link_to_query`.
    """
    if bridges:
        key, (mass, name) = max(bridges.items(), key=lambda end: (end[1][0], end[0]))
        candidate.gain(strength * SHARED * mass / (mass + _HALF), MemoryLink(name, key))


def shared_marks(source: Candidate, candidates: Mapping[Place, Candidate]) -> Bridges:
    """How much each of the ``candidates`` shares of the source's entities and tags, weighted by their rarity."""
    found: Bridges = {}
    for name, written in source.marks.items():
        holders = [place for place, one in candidates.items() if name in one.marks]
        for place in holders if len(holders) <= _most(len(candidates)) else ():
            found[place] = _heavier(found.get(place), _idf(len(holders), len(candidates)), written)
    return found


def bridges_of(
    text: str,
    without: Collection[str],
    neighbours: Collection[str],
    views: Sequence[ScopeView],
    owners: Collection[int],
) -> Bridges:
    """Documents that share rare words with ``text``, except the terms ``without``, or whose key is in ``neighbours``.

    Reads only the views ``owners``, and of these only the postings of a few words.
    """
    size = sum(len(views[owner]) for owner in owners)
    most = _most(size)
    found: Bridges = {}
    words = [(term, word) for term, word in words_by_term(text).items() if term not in without]
    held = [
        ([Place(owner, slot) for owner in owners for slot in views[owner].holding(term, most)], word)
        for term, word in words[:MAX_WORDS]
    ]
    for places, word in sorted(held, key=lambda one: len(one[0])):
        for place in places if len(places) <= most else ():
            found[place] = _heavier(found.get(place), _idf(len(places), size), word)
    for owner in owners:
        for slot in views[owner].slots_of(neighbours):
            found[Place(owner, slot)] = (_SAME_FACT, "supersedes")
    return found


def _best_odds(candidates: Sequence[Candidate], positions: Sequence[int]) -> float:
    chance = min(max(_EXTREME, *(candidates[at].relevance for at in positions)), 1 - _EXTREME)
    return math.log(chance / (1 - chance))


def _heavier(known: tuple[float, str] | None, weight: float, name: str) -> tuple[float, str]:
    """``known`` plus ``weight``. The name stays that of the first part, which weighs most."""
    return (weight, name) if known is None else (known[0] + weight, known[1])


def _most(size: int) -> int:
    """The number of memories, of ``size``, in which a rare word may occur."""
    return min(max(_FEW, size // _RARE_SHARE), _MANY)


def _idf(found: int, size: int) -> float:
    return math.log1p((size - found + 0.5) / (found + 0.5))
