"""From evidence to one order: score fusion in two stages, the second with late interaction over the best candidates.

Each kind of evidence is brought to one scale, spread within its session, and added up by weight. Score fusion rather
than rank fusion: how much better one text matches than the next is evidence too (Bruch et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval import evidence
from inference_core.retrieval.evidence import DECIMALS, over_maximum, spread, standardized
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.late_interaction import dimensions_of, interact
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.relevance import Signals, relevance
from inference_core.retrieval.vectors import Floats
from inference_core.retrieval.weights import HYBRID, LATE, LEXICAL, Weights

CANDIDATES: Final = 100
_FIRST_PORTION: Final = 256
_GROWTH: Final = 8
TokensOf = Callable[[Sequence[Place]], Sequence[bytes | None]]
"""Gives the packed token vectors of documents, None where there are none."""
Shares = dict[str, Floats]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matches, its score (higher is better), and its relevance from 0 to 1."""

    place: Place
    score: float
    relevance: float
    _position: int = field(compare=False)
    _shares: Shares = field(compare=False, repr=False)

    @property
    def shares(self) -> dict[str, float]:
        """What the score is made of, by kind of evidence."""
        return {name: round(float(share[self._position]), DECIMALS) for name, share in self._shares.items()}


class Ranking:
    """Matching documents of several indexes, the best first."""

    def __init__(self, pool: Pool, shares: Shares, signals: Signals, is_hit: NDArray[np.bool_]) -> None:
        self._pool = pool
        self._shares = shares
        self._signals = signals
        self._is_hit = is_hit
        self._scores = _total(shares, len(pool))

    def of(self, indexes: Collection[int], *, fills: bool = False) -> Iterator[Hit]:
        """The hits in ``indexes``, the best first, of equal ones the newest; if it ``fills``, then all others."""
        if not indexes:
            return
        own = self._pool.owned_by(indexes)
        for at in _in_order(self._pool, self._scores, self._is_hit & own):
            yield self._hit(at)
        if fills:
            for at in _in_order(self._pool, np.zeros(len(self._pool)), own & ~self._is_hit):
                yield self._hit(at)

    def _hit(self, at: int) -> Hit:
        chance = relevance(self._signals, at)
        return Hit(self._pool.place(at), float(self._scores[at]), chance, at, self._shares)


def rank(indexes: Sequence[ScopeIndex], query: Query, tokens_of: TokensOf | None = None) -> Ranking:
    """The documents of ``indexes`` by score, the best first.

    Statistics run over all indexes together. Without a query vector only documents that hold a term are hits.
    ``tokens_of`` is asked for the token vectors of the best candidates, if the query has some too.
    """
    pool = Pool(indexes)
    bm25, coverage = pool.bm25(query.terms)
    signals = Signals(coverage=coverage)
    lexical = over_maximum(bm25)
    if query.vector is None:
        shares = _first_stage(pool, query, LEXICAL, lexical, coverage)
        return Ranking(pool, shares, signals, bm25 > 0)
    signals.closeness = evidence.closeness(pool, query.vector)
    is_hit = (bm25 > 0) | ~np.isnan(signals.closeness)
    dense = standardized(signals.closeness)
    shares = _first_stage(pool, query, HYBRID, lexical, coverage, dense)
    candidates = list(islice(_in_order(pool, _total(shares, len(pool)), is_hit), CANDIDATES))
    late = None if tokens_of is None else _late(pool, query, candidates, tokens_of, signals)
    if late is None:
        shares["feedback"] = HYBRID.feedback * evidence.feedback(pool, candidates, dense)
        return Ranking(pool, shares, signals, is_hit)
    shares = _first_stage(pool, query, LATE, lexical, coverage, dense)
    shares["late_interaction"] = spread(late, LATE.late, pool.order)
    shares["feedback"] = LATE.feedback * evidence.feedback(pool, candidates, dense + late)
    return Ranking(pool, shares, signals, is_hit)


def _first_stage(
    pool: Pool, query: Query, weights: Weights, lexical: Floats, coverage: Floats, dense: Floats | None = None
) -> Shares:
    """The evidence that is there for all documents, by kind."""
    shares = {"lexical": spread(lexical, weights.lexical, pool.order)}
    if weights.coverage:
        shares["coverage"] = weights.coverage * coverage
    if dense is not None:
        shares["dense"] = spread(dense, weights.dense, pool.order)
    return shares | _priors(pool, query, weights)


def _priors(pool: Pool, query: Query, weights: Weights) -> Shares:
    shares = {
        "role": weights.not_assistant * evidence.not_assistant(pool),
        "importance": weights.importance * evidence.importance(pool),
    }
    if query.wants_action:
        shares["guidance"] = weights.guidance * evidence.guidance(pool)
    if query.interval is not None:
        shares["time"] = weights.interval * evidence.within(pool, query.interval)
    return shares


def _late(pool: Pool, query: Query, candidates: Sequence[int], tokens_of: TokensOf, signals: Signals) -> Floats | None:
    """Standardised late-interaction evidence of the candidates, 0 for all others; None if nobody has token vectors."""
    if query.tokens is None or not candidates:
        return None
    found = tokens_of([pool.place(at) for at in candidates])
    usable = {
        at: packed
        for at, packed in zip(candidates, found, strict=True)
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
    return np.round(total, DECIMALS)


def _in_order(pool: Pool, scores: NDArray[np.float64], wanted: NDArray[np.bool_]) -> Iterator[int]:
    """The wanted positions by score, then age, then key; sorted in portions, as few of them are ever asked for."""
    left = np.flatnonzero(wanted)
    created, ranks = pool.created, pool.ranks
    portion = _FIRST_PORTION
    while len(left):
        head, rest = left, left[:0]
        if len(left) > portion:
            values = scores[left]
            is_head = values >= np.partition(values, -portion)[-portion]
            head, rest = left[is_head], left[~is_head]
        yield from head[np.lexsort((ranks[head], -created[head], -scores[head]))].tolist()
        left, portion = rest, portion * _GROWTH
