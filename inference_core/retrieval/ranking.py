"""From evidence to a ranking: score fusion in two stages, the second with late interaction, and what links add.

Each kind of evidence is brought to one scale, spread within its session, and summed by weight. Scores are fused instead
of ranks because how much better one text matches than the next is evidence too (Bruch et al. 2023). The weights are in
`evidence.py`, those of links here. `stores/indexing/search.py` then collapses duplicates and puts newer statements
before older ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.memory.record import MemoryLink
from inference_core.retrieval.analysis import words_by_term
from inference_core.retrieval.evidence import (
    DECIMALS,
    HYBRID,
    LATE,
    LEXICAL,
    MULTILINGUAL_HYBRID,
    MULTILINGUAL_LATE,
    Matches,
    Signals,
    Weights,
    between,
    faded,
    feedback,
    ignore_session,
    priors,
    promising,
    relevance,
    spread,
    standardized,
)
from inference_core.retrieval.index import ScopeView
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Named, Query
from inference_core.retrieval.vectors import (
    MULTILINGUAL,
    Floats,
    Interaction,
    dimensions_of,
    interact,
    space_and_dimensions,
    space_of,
)

CANDIDATES: Final = 100
FEW: Final = 4_000
"""Up to this many documents, all are ranked."""
_FIRST_PORTION: Final = 64
_GROWTH: Final = 8
_NOBODY: Final = np.empty(0, np.intp)
TokensOf = Callable[[Sequence[Place]], Sequence[bytes | None]]
"""Returns the packed token vectors of documents; None for those without."""
Shares = dict[str, Floats]
Mask = NDArray[np.bool_]
Positions = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching document, its score (higher is better), and its relevance from 0 to 1."""

    place: Place
    score: float
    relevance: float
    _position: int = field(compare=False)
    _shares: Shares = field(compare=False, repr=False)

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the score, by kind of evidence."""
        return {name: round(share.item(self._position), DECIMALS) for name, share in self._shares.items()}


class Ranking:
    """The documents of a pool, best first."""

    def __init__(self, pool: Pool, shares: Shares, signals: Signals, is_hit: Mask) -> None:
        self._pool = pool
        self._shares = shares
        self._signals = signals
        self._is_hit = is_hit
        self._scores = _total(shares, len(pool))

    def of(
        self, views: Collection[int], kinds: frozenset[str] | None = None, without: Positions | None = None
    ) -> Iterator[Hit]:
        """The hits in ``views`` (and of ``kinds``), except at positions ``without``, best first; ties newest first."""
        wanted = self._is_hit & self._is_wanted(views, kinds)
        if without is not None:
            wanted[without] = False
        return self._given(self._scores, wanted)

    def others(self, views: Collection[int], kinds: frozenset[str] | None = None) -> Iterator[Hit]:
        """The documents in ``views`` (and of ``kinds``) that are no hits, the newest first."""
        return self._given(np.zeros(len(self._pool)), ~self._is_hit & self._is_wanted(views, kinds))

    def _is_wanted(self, views: Collection[int], kinds: frozenset[str] | None) -> Mask:
        is_owned = self._pool.owned_by(views)
        return is_owned if kinds is None else is_owned & self._pool.kinds_in(kinds)

    def _given(self, scores: NDArray[np.float64], wanted: Mask) -> Iterator[Hit]:
        for portion in _in_order(self._pool, scores, wanted, _FIRST_PORTION):
            for at in portion.tolist():
                place = self._pool.place(at)
                yield Hit(place, self._scores.item(at), relevance(self._signals, at), at, self._shares)


class LazyRanking:
    """The documents of ``head``, then the rest of ``pool``, which is ranked only if a caller reads that far."""

    def __init__(self, pool: Pool, head: Ranking, positions: Positions, whole: Callable[[], Ranking]) -> None:
        self._pool = pool
        self._head = head
        self._positions = positions
        self._make_whole = whole

    def of(self, views: Collection[int], kinds: frozenset[str] | None = None) -> Iterator[Hit]:
        """The hits in ``views`` (and of ``kinds``), the best first."""
        yield from self._head.of(views, kinds)
        if not self._is_complete(views):
            yield from self._whole.of(views, kinds, self._positions)

    def others(self, views: Collection[int], kinds: frozenset[str] | None = None) -> Iterator[Hit]:
        """The documents in ``views`` (and of ``kinds``) that are no hits, the newest first."""
        yield from (self._head if self._is_complete(views) else self._whole).others(views, kinds)

    @cached_property
    def _whole(self) -> Ranking:
        return self._make_whole()

    def _is_complete(self, views: Collection[int]) -> bool:
        is_own = self._pool.owned_by(views)
        return np.count_nonzero(is_own[self._positions]) == np.count_nonzero(is_own)


def rank(
    pool: Pool, query: Query, tokens_of: TokensOf | None = None, groups: Sequence[Collection[int]] | None = None
) -> Ranking | LazyRanking:
    """The documents of ``pool`` by score, best first, with statistics over all of its views.

    ``tokens_of`` is asked for the token vectors of the best candidates, if the query has token vectors. Of more than
    `FEW` documents, only the sessions with promising ones are ranked at first: the best `PROMISING` of each of
    ``groups``, which are sets of views (default: one group of all views).
    """
    matches = Matches.of(pool, query)
    if len(pool) <= FEW:
        return _ranked(pool, matches, query, tokens_of)
    weights = (
        _weights(pool, query, LEXICAL) if matches.dense is None else _weights(pool, query, HYBRID, MULTILINGUAL_HYBRID)
    )
    positions = promising(pool, matches, query, weights, groups or [range(len(pool.views))])
    head = _ranked(pool.only(positions), matches.only(positions), query, tokens_of)
    return LazyRanking(pool, head, positions, partial(_ranked, pool, matches, query, tokens_of))


def _ranked(pool: Pool, matches: Matches, query: Query, tokens_of: TokensOf | None) -> Ranking:
    signals = Signals(sum(map(len, pool.views)), matches.coverage, matches.closeness)
    if matches.dense is None:
        return Ranking(
            pool, _first_stage(pool, matches, query, _weights(pool, query, LEXICAL)), signals, matches.is_hit
        )
    hybrid = _weights(pool, query, HYBRID, MULTILINGUAL_HYBRID)
    shares = _first_stage(pool, matches, query, hybrid)
    scores = _total(shares, len(pool))
    candidates = next(_in_order(pool, scores, matches.is_hit, CANDIDATES), _NOBODY)[:CANDIDATES]
    late = None if tokens_of is None else _late(pool, query, candidates, tokens_of)
    if late is None:
        shares["feedback"] = spread(feedback(pool, candidates, matches.dense), hybrid.feedback, pool.order)
        return Ranking(pool, shares, signals, matches.is_hit)
    signals.similarity = late.similarity
    weights = faded(_weights(pool, query, LATE, MULTILINGUAL_LATE), late.similarity)
    shares = _first_stage(pool, matches, query, weights)
    shares["late_interaction"] = spread(late.evidence, weights.late, pool.order)
    best = feedback(pool, candidates, matches.dense + late.evidence)
    shares["feedback"] = spread(best, weights.feedback, pool.order)
    return Ranking(pool, shares, signals, matches.is_hit)


def _weights(pool: Pool, query: Query, weights: Weights, multilingual: Weights | None = None) -> Weights:
    """The weights for a pool: a mix of those for its two vector spaces, by the share of its vectors in each."""
    if multilingual:
        weights = between(weights, multilingual, pool.share_in(MULTILINGUAL))
    return ignore_session(weights) if query.ignore_session else weights


def _first_stage(pool: Pool, matches: Matches, query: Query, weights: Weights) -> Shares:
    """The weighted evidence available for all documents, by kind."""
    shares = {"lexical": spread(matches.lexical, weights.lexical, pool.order)}
    if weights.coverage:
        shares["coverage"] = weights.coverage * matches.coverage
    if matches.dense is not None:
        shares["dense"] = spread(matches.dense, weights.dense, pool.order)
    return shares | priors(pool, query, weights)


def _late(pool: Pool, query: Query, candidates: Positions, tokens_of: TokensOf) -> Interaction | None:
    """Late interaction with the candidates, its evidence standardised; None without enough token vectors.

    For others, evidence is 0 and similarity NaN.
    """
    tokens = {space: one.tokens for space, one in query.vectors.items() if one.tokens is not None and len(one.tokens)}
    if not tokens or not len(candidates):
        return None
    found = tokens_of([pool.place(at) for at in candidates.tolist()])
    alike: dict[bytes, dict[int, bytes]] = {}
    for at, packed in zip(candidates.tolist(), found, strict=True):
        if packed is not None:
            alike.setdefault(space_and_dimensions(packed), {})[at] = packed
    usable: dict[int, dict[int, bytes]] = {}
    for group in alike.values():
        one = next(iter(group.values()))
        own = tokens.get(space_of(one))
        if own is not None and dimensions_of(one) == own.shape[1]:
            usable[space_of(one)] = group
    if 2 * sum(map(len, usable.values())) < len(candidates):
        return None  # the minority that has any would be ranked by other evidence than the rest
    late = Interaction(np.zeros(len(pool), np.float32), np.full(len(pool), np.nan, np.float32))
    most = max(query.vectors[space].weight for space in usable)
    for space, packed in usable.items():
        interaction = interact(tokens[space], list(packed.values()), query.vectors[space].words)
        late.evidence[list(packed)] = query.vectors[space].weight / most * standardized(interaction.evidence)
        late.similarity[list(packed)] = interaction.similarity
    return late


def _total(shares: Shares, size: int) -> NDArray[np.float64]:
    total = np.zeros(size)
    for share in shares.values():
        total += share
    return total.round(DECIMALS)


def _in_order(pool: Pool, scores: NDArray[np.float64], wanted: Mask, portion: int) -> Iterator[Positions]:
    """The wanted positions by score, then age, then key, sorted in portions, as only a few are ever used."""
    left = np.flatnonzero(wanted)
    created, ranks = pool.column("created"), pool.column("ranks")
    while len(left):
        head, rest = left, left[:0]
        if len(left) > portion:
            values = scores[left]
            is_head = values >= np.partition(values, -portion)[-portion]
            head, rest = left[is_head], left[~is_head]
        yield head[np.lexsort((ranks[head], -created[head], -scores[head]))]
        left, portion = rest, portion * _GROWTH


# What links add to the score of memories: spreading activation in two steps. First from the query to memories about the
# people it names, then from the best memories to others that share a rare word, an entity or a tag with them, or
# superseded them (Collins and Loftus 1975; entity links as in HippoRAG, Gutierrez et al. 2024, but over the existing
# postings, without a graph or a model).

ABOUT: Final = 2.5
"""The most that a memory gains if it is about somebody whom the query names."""
SHARED: Final = 1.5
"""The most it gains for what it shares with one of the best."""
UNNAMED: Final = 0.33
"""The fraction of `SHARED` that counts if the query names nobody whom a candidate is about."""
_SURE: Final = 4.0
"""A name in a query is fully trusted if the best memory about that person leads all others by this much in score."""
_HALF: Final = 12.0
"""The shared idf that gives half of `SHARED`."""
_SAME_FACT: Final = 12.0
MAX_WORDS: Final = 32
"""The number of a memory's words by which other memories are looked up."""
_RARE_SHARE: Final = 100
_RARE_IN_FEW: Final = 3
_RARE_IN_MANY: Final = 64
"""A word is rare if it occurs in at most 1 % of the memories; among few, in at most 3; in any case, in at most 64."""
Bridges = dict[Place, tuple[float, str]]
"""For each document that shares something with another, how much it shares, and the name of the weightiest part."""


@dataclass(slots=True)
class RankingCandidate:
    """A memory that recall may return. ``share`` is what its ``links`` add to its score.

    ``subjects`` maps the canonical name of each entity that it is about to the name as written; ``marks`` adds its tags
    to these. ``asks``: it is a question.
    """

    key: str
    score: float
    subjects: Mapping[str, str]
    marks: Mapping[str, str]
    asks: bool = False
    share: float = 0.0
    links: list[MemoryLink] = field(default_factory=list[MemoryLink])

    def gain(self, share: float, link: MemoryLink) -> None:
        """Adds a link and its share of the score."""
        self.share += share
        self.links.append(link)


def link_to_query(candidates: Sequence[RankingCandidate], named: Named) -> float:
    """Raises candidates about an entity that the query names. Returns how much further links count, 0 to 1.

    The less they lead the candidates about others, the less they gain, down to nothing: the query may name the wrong
    entity. Candidates that are questions answer nothing, so they neither gain nor count.
    """
    about: dict[int, str] = {}
    for is_named in (named.__contains__, named.resembles):
        for at, one in enumerate(candidates):
            name = next(filter(is_named, one.subjects), None)
            if name is not None:
                about[at] = one.subjects[name]
        if about:
            break
    else:
        return UNNAMED
    telling = [at for at, one in enumerate(candidates) if not one.asks]
    own, others = [at for at in telling if at in about], [at for at in telling if at not in about]
    trust = float(bool(own))
    if own and others:
        ahead = max(candidates[at].score for at in own) - max(candidates[at].score for at in others)
        trust = min(max(ahead / _SURE, 0.0), 1.0)
    for at in own if trust else ():
        candidates[at].gain(trust * ABOUT, MemoryLink(about[at]))
    return trust


def link_to_best(candidate: RankingCandidate, bridges: Mapping[str, tuple[float, str]], strength: float) -> None:
    """Raises ``candidate`` by the best of its ``bridges``, which are keyed by the id of the memory at the other end.

    ``strength`` is the result of `link_to_query`.
    """
    if bridges:
        key, (mass, name) = max(bridges.items(), key=lambda end: (end[1][0], end[0]))
        candidate.gain(strength * SHARED * mass / (mass + _HALF), MemoryLink(name, key))


def shared_marks(source: RankingCandidate, candidates: Mapping[Place, RankingCandidate]) -> Bridges:
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

    Reads only the views at ``owners``, and in these only the postings of a few words.
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


def _heavier(known: tuple[float, str] | None, weight: float, name: str) -> tuple[float, str]:
    """``known`` plus ``weight``. The name stays that of the first part, which weighs most."""
    return (weight, name) if known is None else (known[0] + weight, known[1])


def _most(size: int) -> int:
    """The number of memories, of ``size``, in which a rare word may occur."""
    return min(max(_RARE_IN_FEW, size // _RARE_SHARE), _RARE_IN_MANY)


def _idf(found: int, size: int) -> float:
    return math.log1p((size - found + 0.5) / (found + 0.5))
