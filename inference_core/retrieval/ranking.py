"""From evidence to an order: score fusion in two stages, the second with late interaction over the best candidates.

Each kind of evidence is brought to one scale, spread within its session, and summed by weight. Scores are fused instead
of ranks because how much better one text matches than the next is evidence too (Bruch et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.evidence import (
    DECIMALS,
    Matches,
    Signals,
    feedback,
    priors,
    promising,
    relevance,
    spread,
    standardized,
)
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.vectors import Floats, dimensions_of, interact
from inference_core.retrieval.weights import HYBRID, LATE, LEXICAL, Weights, ignore_session

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
    """First the documents of ``head``; the rest of ``pool`` is ranked only if so many are asked for."""

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
    pool: Pool,
    query: Query,
    tokens_of: TokensOf | None = None,
    groups: Sequence[Collection[int]] | None = None,
) -> Ranking | LazyRanking:
    """The documents of ``pool`` by score, best first, with statistics over all of its views.

    ``tokens_of`` returns the token vectors of the best candidates, if the query has some. Of more than `FEW` documents,
    only sessions with a promising one of a group (default: all views) are ranked at first.
    """
    matches = Matches.of(pool, query)
    if len(pool) <= FEW:
        return _ranked(pool, matches, query, tokens_of)
    weights = _weights(LEXICAL if matches.dense is None else HYBRID, query)
    positions = promising(pool, matches, query, weights, groups or [range(len(pool.views))])
    head = _ranked(pool.only(positions), matches.only(positions), query, tokens_of)
    return LazyRanking(pool, head, positions, partial(_ranked, pool, matches, query, tokens_of))


def _ranked(pool: Pool, matches: Matches, query: Query, tokens_of: TokensOf | None) -> Ranking:
    signals = Signals(sum(map(len, pool.views)), matches.coverage, matches.closeness)
    if matches.dense is None:
        return Ranking(pool, _first_stage(pool, matches, query, _weights(LEXICAL, query)), signals, matches.is_hit)
    shares = _first_stage(pool, matches, query, _weights(HYBRID, query))
    scores = _total(shares, len(pool))
    candidates = next(_in_order(pool, scores, matches.is_hit, CANDIDATES), _NOBODY)[:CANDIDATES]
    late = None if tokens_of is None else _late(pool, query, candidates, tokens_of, signals)
    if late is None:
        shares["feedback"] = HYBRID.feedback * feedback(pool, candidates, matches.dense)
        return Ranking(pool, shares, signals, matches.is_hit)
    weights = _weights(LATE, query)
    shares = _first_stage(pool, matches, query, weights)
    shares["late_interaction"] = spread(late, weights.late, pool.order)
    shares["feedback"] = weights.feedback * feedback(pool, candidates, matches.dense + late)
    return Ranking(pool, shares, signals, matches.is_hit)


def _weights(weights: Weights, query: Query) -> Weights:
    return ignore_session(weights) if query.ignore_session else weights


def _first_stage(pool: Pool, matches: Matches, query: Query, weights: Weights) -> Shares:
    """The weighted evidence available for all documents, by kind."""
    shares = {"lexical": spread(matches.lexical, weights.lexical, pool.order)}
    if weights.coverage:
        shares["coverage"] = weights.coverage * matches.coverage
    if matches.dense is not None:
        shares["dense"] = spread(matches.dense, weights.dense, pool.order)
    return shares | priors(pool, query, weights)


def _late(pool: Pool, query: Query, candidates: Positions, tokens_of: TokensOf, signals: Signals) -> Floats | None:
    """Standardised late-interaction evidence of the candidates, 0 for others; None without any token vectors."""
    if query.tokens is None or not len(candidates):
        return None
    found = tokens_of([pool.place(at) for at in candidates.tolist()])
    usable = {
        at: packed
        for at, packed in zip(candidates.tolist(), found, strict=True)
        if packed is not None and dimensions_of(packed) == query.tokens.shape[1]
    }
    if not usable:
        return None
    interaction = interact(query.tokens, list(usable.values()))
    late = np.zeros(len(pool), np.float32)
    late[list(usable)] = standardized(interaction.evidence)
    signals.similarity = np.full(len(pool), np.nan, np.float32)
    signals.similarity[list(usable)] = interaction.similarity
    return late


def _total(shares: Shares, size: int) -> NDArray[np.float64]:
    total = np.zeros(size)
    for share in shares.values():
        total += share
    return total.round(DECIMALS)


def _in_order(pool: Pool, scores: NDArray[np.float64], wanted: Mask, portion: int) -> Iterator[Positions]:
    """The wanted positions by score, then age, then key, sorted in portions, as only a few are ever used."""
    left = np.flatnonzero(wanted)
    created, ranks = pool.created, pool.ranks
    while len(left):
        head, rest = left, left[:0]
        if len(left) > portion:
            values = scores[left]
            is_head = values >= np.partition(values, -portion)[-portion]
            head, rest = left[is_head], left[~is_head]
        yield head[np.lexsort((ranks[head], -created[head], -scores[head]))]
        left, portion = rest, portion * _GROWTH
