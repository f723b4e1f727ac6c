"""From evidence to one order: score fusion in two stages, the second with late interaction over the best candidates.

Each kind of evidence is brought to one scale, spread within its session, and added up by weight. Score fusion rather
than rank fusion: how much better one text matches than the next is evidence too (Bruch et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval import evidence
from inference_core.retrieval.evidence import DECIMALS, spread, standardized
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.late_interaction import dimensions_of, interact
from inference_core.retrieval.matches import Matches, priors, promising
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.relevance import Signals, relevance
from inference_core.retrieval.vectors import Floats
from inference_core.retrieval.weights import HYBRID, LATE, LEXICAL, Weights, by_itself

CANDIDATES: Final = 100
FEW: Final = 4_000
"""So many documents are ranked whole."""
_FIRST_PORTION: Final = 256
_GROWTH: Final = 8
TokensOf = Callable[[Sequence[Place]], Sequence[bytes | None]]
"""Gives the packed token vectors of documents, None where there are none."""
Accepts = Callable[[Place], bool]
"""Whether the document at a place is wanted."""
Shares = dict[str, Floats]
Mask = NDArray[np.bool_]
Positions = NDArray[np.intp]


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
        return {name: round(share.item(self._position), DECIMALS) for name, share in self._shares.items()}


class Ranking:
    """Matching documents of several indexes, the best first."""

    def __init__(self, pool: Pool, shares: Shares, signals: Signals, is_hit: Mask) -> None:
        self._pool = pool
        self._shares = shares
        self._signals = signals
        self._is_hit = is_hit
        self._scores = _total(shares, len(pool))

    def of(
        self, indexes: Collection[int], accepts: Accepts | None = None, without: Positions | None = None
    ) -> Iterator[Hit]:
        """The hits in ``indexes`` but for those at positions ``without``, the best first, of equal ones the newest.

        ``accepts`` says whether the document at a place is wanted.
        """
        wanted = self._is_hit & self._pool.owned_by(indexes)
        if without is not None:
            wanted[without] = False
        return self._given(self._scores, wanted, accepts)

    def others(self, indexes: Collection[int], accepts: Accepts | None = None) -> Iterator[Hit]:
        """The documents in ``indexes`` that are no hits, the newest first."""
        return self._given(np.zeros(len(self._pool)), self._pool.owned_by(indexes) & ~self._is_hit, accepts)

    def _given(self, scores: NDArray[np.float64], wanted: Mask, accepts: Accepts | None) -> Iterator[Hit]:
        for at in _in_order(self._pool, scores, wanted):
            place = self._pool.place(at)
            if accepts is None or accepts(place):
                yield Hit(place, self._scores.item(at), relevance(self._signals, at), at, self._shares)


class HeadFirst:
    """First the documents of ``head``, then, for who asks for so many, all others of ``pool``."""

    def __init__(self, pool: Pool, head: Ranking, positions: Positions, whole: Callable[[], Ranking]) -> None:
        self._pool = pool
        self._head = head
        self._positions = positions
        self._make_whole = whole

    def of(self, indexes: Collection[int], accepts: Accepts | None = None) -> Iterator[Hit]:
        """The hits in ``indexes`` that it ``accepts``, the best first."""
        yield from self._head.of(indexes, accepts)
        if not self._is_complete(indexes):
            yield from self._whole.of(indexes, accepts, self._positions)

    def others(self, indexes: Collection[int], accepts: Accepts | None = None) -> Iterator[Hit]:
        """The documents in ``indexes`` that are no hits, the newest first."""
        yield from (self._head if self._is_complete(indexes) else self._whole).others(indexes, accepts)

    @cached_property
    def _whole(self) -> Ranking:
        return self._make_whole()

    def _is_complete(self, indexes: Collection[int]) -> bool:
        is_own = self._pool.owned_by(indexes)
        return np.count_nonzero(is_own[self._positions]) == np.count_nonzero(is_own)


def rank(
    indexes: Sequence[ScopeIndex],
    query: Query,
    tokens_of: TokensOf | None = None,
    groups: Sequence[Collection[int]] | None = None,
) -> Ranking | HeadFirst:
    """The documents of ``indexes`` by score, the best first.

    Statistics run over all indexes together. ``tokens_of`` is asked for the token vectors of the best candidates, if
    the query has some too. Of many documents, only sessions are ranked that hold a promising one of a group (default:
    all indexes), until more are asked for.
    """
    pool = Pool(indexes)
    matches = Matches.of(pool, query)
    if len(pool) <= FEW:
        return _ranked(pool, matches, query, tokens_of)
    weights = _weights(LEXICAL if matches.dense is None else HYBRID, query)
    positions = promising(pool, matches, query, weights, groups or [range(len(indexes))])
    head = _ranked(pool.only(positions), matches.only(positions), query, tokens_of)
    return HeadFirst(pool, head, positions, partial(_ranked, pool, matches, query, tokens_of))


def _ranked(pool: Pool, matches: Matches, query: Query, tokens_of: TokensOf | None) -> Ranking:
    signals = Signals(matches.coverage, matches.closeness)
    if matches.dense is None:
        return Ranking(pool, _first_stage(pool, matches, query, _weights(LEXICAL, query)), signals, matches.is_hit)
    shares = _first_stage(pool, matches, query, _weights(HYBRID, query))
    candidates = list(islice(_in_order(pool, _total(shares, len(pool)), matches.is_hit), CANDIDATES))
    late = None if tokens_of is None else _late(pool, query, candidates, tokens_of, signals)
    if late is None:
        shares["feedback"] = HYBRID.feedback * evidence.feedback(pool, candidates, matches.dense)
        return Ranking(pool, shares, signals, matches.is_hit)
    weights = _weights(LATE, query)
    shares = _first_stage(pool, matches, query, weights)
    shares["late_interaction"] = spread(late, weights.late, pool.order)
    shares["feedback"] = weights.feedback * evidence.feedback(pool, candidates, matches.dense + late)
    return Ranking(pool, shares, signals, matches.is_hit)


def _weights(weights: Weights, query: Query) -> Weights:
    return by_itself(weights) if query.by_itself else weights


def _first_stage(pool: Pool, matches: Matches, query: Query, weights: Weights) -> Shares:
    """The evidence that is there for all documents, by kind."""
    shares = {"lexical": spread(matches.lexical, weights.lexical, pool.order)}
    if weights.coverage:
        shares["coverage"] = weights.coverage * matches.coverage
    if matches.dense is not None:
        shares["dense"] = spread(matches.dense, weights.dense, pool.order)
    return shares | priors(pool, query, weights)


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
    return total.round(DECIMALS)


def _in_order(pool: Pool, scores: NDArray[np.float64], wanted: Mask) -> Iterator[int]:
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
