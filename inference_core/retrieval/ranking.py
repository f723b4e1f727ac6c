"""From evidence to a ranking: score fusion in two stages, the second with late interaction, and what links add.

Functions return arrays by the positions of a `Pool`. Each kind of evidence is brought to one scale, on which 1 is a
lot, spread within its session, and summed by weight. Scores are fused instead of ranks because how much better one text
matches than the next is evidence too (Bruch et al. 2023). `stores/indexing/search.py` then collapses duplicates and
puts newer statements before older ones.

Relevance, from 0 to 1, estimates how likely a hit answers the query, from absolute signals: a share of the best hit's
score would call the best of an unrelated set perfect. The weights come from a logistic regression on the labelled
halves of several data sets, rounded; see `docs/retrieval.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.memory.record import MemoryLink
from inference_core.retrieval.analysis import words_by_term
from inference_core.retrieval.documents import QueryVectors
from inference_core.retrieval.index import ScopeView, SessionOrder
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Named, Query
from inference_core.retrieval.vectors import (
    MULTILINGUAL,
    Floats,
    Interaction,
    dimensions_of,
    inner_products,
    interact,
    space_and_dimensions,
    space_of,
)

PROMISING: Final = 256
"""This many of the best documents of a group are ranked, with their whole sessions."""
DEVIATIONS: Final = 4.0
"""Standardised evidence is divided by this, so four standard deviations above the mean count as 1."""
FEEDBACK_TEXTS: Final = 3
DECIMALS: Final = 5
"""Scores are compared to this many decimals, so that the order of summation does not matter."""
_NO_SPREAD: Final = 1e-6
_FADING: Final = 3
_NEUTRAL_IMPORTANCE: Final = 0.5
_UNKNOWN: Final = 100
_MANY: Final = 4_000
"""Among more texts than this, `_UNKNOWN` more would change nothing."""


# All weights of ranking, few and round. Chosen on one half of several data sets and measured on the other; see
# `docs/retrieval.md`.


class Spread(NamedTuple):
    """The weights of one kind of evidence: of the turn itself (``own``) and of its surroundings in the session.

    ``previous`` and ``reply`` are for the turns before and after it, ``around`` for those two turns away, ``best`` for
    the best turns of the session. For a text without a session, or alone in it, only ``alone`` counts.
    """

    alone: float = 0.0
    own: float = 0.0
    previous: float = 0.0
    around: float = 0.0
    reply: float = 0.0
    best: float = 0.0


class Weights(NamedTuple):
    """The weights of everything that adds to a score, and the similarity from which words are ``sure`` to be found."""

    lexical: Spread = Spread()
    coverage: float = 0.0
    dense: Spread = Spread()
    late: Spread = Spread()
    feedback: Spread = Spread(alone=0.5, own=0.5)
    not_assistant: float = 2.0
    guidance: float = 2.0
    interval: float = 2.0
    importance: float = 0.5
    asks: float = 0.0
    sure: float = 0.55


LATE: Final = Weights(
    lexical=Spread(alone=0.4, own=0.7, previous=0.7, around=0.2, reply=0.7, best=0.7),
    dense=Spread(alone=1.45, own=1.25, reply=0.6, best=0.6),
    late=Spread(alone=2.7, own=2, previous=0.5, around=0.25, best=1),
    feedback=Spread(alone=0.75, own=0.5),
    asks=0.5,
)
"""Words, meaning and token vectors."""
HYBRID: Final = Weights(
    lexical=Spread(alone=2.67, own=2, previous=1, around=0.5, reply=1, best=2),
    coverage=2,
    dense=Spread(alone=2.33, own=2, previous=0.5, reply=0.5, best=1),
)
"""Words and meaning. Also the first stage, which picks the candidates of late interaction."""
LEXICAL: Final = Weights(
    lexical=Spread(alone=1.33, own=1, previous=1, around=0.5, reply=1, best=1), coverage=1, guidance=0.5
)
"""Words alone."""


MULTILINGUAL_LATE: Final = Weights(
    lexical=Spread(alone=0.5, own=0.5, previous=0.25, around=0.125, reply=0.25, best=0.5),
    coverage=0.5,
    dense=Spread(alone=3.33, own=3, previous=0.5, reply=0.5, best=1),
    late=Spread(alone=2.33, own=2, previous=0.5, around=0.25, best=1),
    asks=0.5,
    sure=0.45,
)
"""The same for texts in other languages: words count less, as most languages have more forms of a word."""
MULTILINGUAL_HYBRID: Final = MULTILINGUAL_LATE._replace(
    dense=Spread(alone=4.33, own=4, previous=0.5, reply=0.5, best=1), asks=0.0
)


def between(first: Weights, second: Weights, share: float) -> Weights:
    """Weights ``share`` of the way from ``first`` to ``second``."""

    def mixed(one: Any, other: Any) -> Any:
        if isinstance(one, Spread):
            return Spread(*map(mixed, one, other))
        return (1 - share) * one + share * other

    return Weights(*map(mixed, first, second)) if share else first


def ignore_session(weights: Weights) -> Weights:
    """``weights`` with which each text counts as if it were without a session, whoever said it."""

    def alone(spread: Spread) -> Spread:
        return Spread(alone=spread.alone, own=spread.alone)

    return weights._replace(
        lexical=alone(weights.lexical),
        dense=alone(weights.dense),
        late=alone(weights.late),
        feedback=alone(weights.feedback),
        not_assistant=0.0,
        asks=0.0,
    )


def faded(weights: Weights, similarity: Floats) -> Weights:
    """``weights`` for a query whose words no text says: what depends on words counts less, and so do surroundings.

    Evidence is on the scale of its own spread or maximum, so the best of only bad matches would count like a good one.
    ``similarity`` is the mean best cosine of the query's tokens in each candidate, NaN for others; its largest shows
    how well the words are found at all. They count in full from ``weights.sure`` on.
    """
    trust = min(float(np.nanmax(similarity)) / weights.sure, 1.0) ** _FADING

    def less(spread: Spread) -> Spread:
        return Spread(*(trust * weight for weight in spread))

    return weights._replace(
        lexical=less(weights.lexical),
        dense=less(weights.dense)._replace(alone=weights.dense.alone, own=weights.dense.own),
        late=less(weights.late),
    )


def over_maximum(scores: Floats) -> Floats:
    """``scores``, none of them negative, divided by the largest."""
    top = float(scores.max(initial=0.0))
    return scores / top if top > 0 else scores


def standardized(scores: Floats) -> Floats:
    """``scores`` minus their mean, divided by four standard deviations; 0 without a score or without any spread."""
    unknown = np.isnan(scores)
    known = scores[~unknown] if unknown.any() else scores
    if not len(known):
        return np.zeros_like(scores)
    exact = known.astype(np.float64)
    mean = float(exact.sum()) / len(exact)
    exact -= mean
    deviation = math.sqrt(float(exact @ exact) / len(exact))
    if deviation < _NO_SPREAD:
        return np.zeros_like(scores)
    result = (scores - np.float32(mean)) * np.float32(1 / (DEVIATIONS * deviation))
    if known is not scores:
        result[unknown] = 0
    return result


def spread(values: Floats, weights: Spread, order: SessionOrder) -> Floats:
    """The weighted sum of each turn's value and of its surroundings' in the session; `Spread` says what counts."""
    if order.is_flat:
        return np.float32(weights.alone) * values
    total = weights.own * values
    if weights.previous:
        total += weights.previous * order.shifted(values, 1)
    if weights.around:
        total += weights.around * (order.shifted(values, 2) + order.shifted(values, -2))
    if weights.reply:
        total += weights.reply * order.shifted(values, -1)
    if weights.best:
        total += weights.best * order.best(values)
    return np.where(order.alone, np.float32(weights.alone) * values, total)


def closeness(pool: Pool, queries: Mapping[int, QueryVectors]) -> Floats:
    """How much closer each document is to the query than the mean of its vector space is; NaN without a vector.

    The mean is subtracted from the query only, which gives the order of mean-centred cosine at half its cost (Mu and
    Viswanath 2018: the common component of embeddings carries no meaning).
    """
    return pool.products(
        {space: vectors.vector - pool.mean_vector(space, len(vectors.vector)) for space, vectors in queries.items()}
    )


def by_space(pool: Pool, queries: Mapping[int, QueryVectors]) -> Iterator[tuple[int, NDArray[np.intp] | slice, float]]:
    """Each vector space, the positions of its documents and the weight of closeness in it (the largest is 1).

    Cosines of two models are on different scales, so evidence is standardised within each space.
    """
    spaces = pool.held_spaces & queries.keys()
    most = max((queries[space].weight for space in spaces), default=1.0)
    for space in sorted(spaces):
        positions = slice(None) if len(pool.held_spaces) == 1 else np.flatnonzero(pool.spaces == space)
        yield space, positions, queries[space].weight / most


def feedback(pool: Pool, candidates: NDArray[np.intp], scores: Floats) -> Floats:
    """How close the ``candidates`` are to the best three of them by ``scores`` (Rocchio 1971); 0 for all others."""
    result = np.zeros(len(pool), np.float32)
    if len(candidates) <= FEEDBACK_TEXTS:
        return result
    known, vectors = pool.first_vectors(candidates)
    for space in sorted(pool.held_spaces):
        own = np.flatnonzero(pool.spaces[known] == space) if len(pool.held_spaces) > 1 else np.arange(len(known))
        if len(own) > FEEDBACK_TEXTS:
            best = own[np.argsort(-np.round(scores[known[own]], DECIMALS), kind="stable")[:FEEDBACK_TEXTS]]
            target = vectors[best].mean(axis=0) - pool.mean_vector(space, vectors.shape[1])
            products = np.empty(len(own), np.float32)
            inner_products(vectors[own], target, products)
            result[known[own]] = standardized(products)
    return result


class Matches(NamedTuple):
    """Evidence by position of a pool.

    ``lexical`` is BM25 divided by its maximum, ``coverage`` the share of the query's idf that is matched. ``dense`` is
    the closeness to the query's vector, standardised. ``closeness`` is the same on an absolute scale, NaN for texts
    without a vector; it is computed as if there were `_UNKNOWN` more texts with a mean of 0, because a few texts do not
    show what all texts have in common. Both are None without a query vector.
    """

    is_hit: NDArray[np.bool_]
    lexical: Floats
    coverage: Floats
    closeness: Floats | None = None
    dense: Floats | None = None

    @classmethod
    def of(cls, pool: Pool, query: Query, estimated: EstimatedCloseness | None = None) -> Matches:
        """The evidence for ``query``. Without a query vector, only documents with one of its terms are hits.

        The evidence of vectors is what is ``estimated``, if it is given.
        """
        bm25, coverage = pool.bm25(query.terms)
        if not query.vectors:
            return cls(bm25 > 0, over_maximum(bm25), coverage)
        if estimated:
            near, dense = estimated.closeness, estimated.dense
            return cls((bm25 > 0) | ~np.isnan(near), over_maximum(bm25), coverage, near, dense)
        near = closeness(pool, query.vectors)
        is_hit = (bm25 > 0) | ~np.isnan(near)
        dense = np.zeros_like(near)
        for _, positions, weight in by_space(pool, query.vectors):
            dense[positions] = weight * standardized(near[positions])
        if len(pool) <= _MANY:
            sizes = {space: len(vectors.vector) for space, vectors in query.vectors.items()}
            near += np.float32(_UNKNOWN / (len(pool) + _UNKNOWN)) * pool.commonness(sizes)
        return cls(is_hit, over_maximum(bm25), coverage, near, dense)

    def only(self, positions: NDArray[np.intp]) -> Matches:
        """The evidence at some positions."""
        return Matches(*(None if values is None else values[positions] for values in self))  # pyright: ignore[reportArgumentType] - fields in their order


class EstimatedCloseness:
    """`Matches.closeness` and ``dense`` of a large pool, estimated; exact where it was refined.

    Each document's ``dense`` is off by less than its margin, or exact if that is 0. Mean and deviation are exact.
    """

    def __init__(self, pool: Pool, queries: Mapping[int, QueryVectors]) -> None:
        self._pool = pool
        self._scales: dict[int, tuple[Floats, float, float, float]] = {}
        self.closeness: Floats = np.full(len(pool), np.nan, np.float32)
        self.dense: Floats = np.zeros(len(pool), np.float32)
        self.margins: Floats = np.zeros(len(pool), np.float32)
        for space, _, weight in by_space(pool, queries):
            vector = queries[space].vector
            query = vector - pool.mean_vector(space, len(vector))
            found = pool.estimated(space, query)
            own = np.flatnonzero(pool.spaces == space) if np.any(pool.spaces != space) else slice(None)
            mean = found.total / found.number
            deviation = math.sqrt(max(found.squares / found.number - mean * mean, 0.0))
            scale = 1 / (DEVIATIONS * deviation) if deviation >= _NO_SPREAD else 0.0
            self._scales[space] = query, mean, scale, weight
            self.closeness[own] = found.products[own]
            self.dense[own] = _scaled(found.products[own], mean, scale, weight)
            self.margins[own] = np.float32(weight * scale) * found.margins[own]

    @classmethod
    def of(cls, pool: Pool, query: Query) -> EstimatedCloseness | None:
        """The estimates for ``query``; None if no vectors of the pool are measured, or not all fit the query's."""
        held = [view.vectors for view in pool.views if view.vectors.size]
        is_measured = any(one.moments for one in held) and all(one.moments or not one.codes for one in held)
        fits = {len(vectors.vector) for vectors in query.vectors.values()} == {one.size for one in held}
        return cls(pool, query.vectors) if is_measured and fits else None

    def refine(self, positions: NDArray[np.intp]) -> None:
        """Makes the values at ``positions`` exact."""
        rough = positions[self.margins[positions] > 0]
        for space, (query, mean, scale, weight) in self._scales.items():
            own = rough if len(self._scales) == 1 else rough[self._pool.spaces[rough] == space]
            products = self._pool.products_of(own, query)
            self.closeness[own] = products
            self.dense[own] = _scaled(products, mean, scale, weight)
        self.margins[rough] = 0


def _scaled(values: Floats, mean: float, scale: float, weight: float) -> Floats:
    scaled: Floats = values - np.float32(mean)
    scaled *= np.float32(scale)
    scaled *= np.float32(weight)
    return scaled


def priors(pool: Pool, query: Query, weights: Weights) -> dict[str, Floats]:
    """Weighted evidence that does not depend on a document's words, by kind."""
    found = {
        "role": weights.not_assistant * pool.not_assistant,
        "importance": weights.importance * (pool.column("importance") - np.float32(_NEUTRAL_IMPORTANCE)),
    }
    if weights.asks:
        found["question"] = -weights.asks * (pool.column("asks") & ~pool.order.alone).astype(np.float32)
    if query.wants_action:
        found["guidance"] = weights.guidance * pool.guiding
    if query.interval is not None:
        (start, end), happened = query.interval, pool.column("happened")
        found["time"] = weights.interval * ((start <= happened) & (happened < end)).astype(np.float32)
    return found


def promising(
    pool: Pool,
    matches: Matches,
    query: Query,
    weights: Weights,
    groups: Sequence[Collection[int]],
    estimated: EstimatedCloseness | None = None,
) -> NDArray[np.intp]:
    """The positions of all sessions with one of a group's best `PROMISING` documents, by the documents' own evidence.

    A group is a set of the pool's views. What is ``estimated`` of the ``matches`` is made exact where it matters.
    """
    others = list(priors(pool, query, weights).values())

    def scored(at: NDArray[np.intp] | slice) -> Floats:
        own = weights.lexical.own * matches.lexical[at]
        own += weights.coverage * matches.coverage[at]
        if matches.dense is not None:
            own += weights.dense.own * matches.dense[at]
        for share in others:
            own += share[at]
        return own.round(DECIMALS)

    scores = scored(slice(None))
    is_wanted = np.zeros(len(pool.order.starts), np.bool_)
    for group in groups:
        members = np.flatnonzero(pool.owned_by(group))
        if len(members) > PROMISING:
            if estimated:
                off = weights.dense.own * estimated.margins[members] + 1 / 10**DECIMALS
                least = np.partition(scores[members] - off, -PROMISING)[-PROMISING]
                members = members[scores[members] + off >= least]
                estimated.refine(members)
                scores[members] = scored(members)
            found = scores[members]
            members = members[found >= np.partition(found, -PROMISING)[-PROMISING]]
        is_wanted[pool.order.session[members]] = True
    positions = np.flatnonzero(is_wanted[pool.order.session])
    if estimated:
        estimated.refine(positions)
    return positions


@dataclass(slots=True)
class Signals:
    """Absolute evidence by position; NaN where it is unknown.

    ``documents`` is the size of the whole pool, ``coverage`` the share of the query's idf that is matched,
    ``closeness`` how much closer the vectors are than average, ``similarity`` the mean best cosine of the query's
    tokens.
    """

    documents: int
    coverage: Floats
    closeness: Floats | None = None
    similarity: Floats | None = None


_BY_WORDS: Final = (-1.9, 3.5)
_BY_MEANING: Final = (-2.8, 2.0, 3.5)
_BY_TOKENS: Final = (-2.9, 1.9, 3.8, 0.3)
"""The intercept, and the weights of coverage, closeness and similarity."""
_AMONG: Final = -0.12
"""The weight of the logarithm of the number of documents: the closest of many may be close by chance."""
_USUAL: Final = 100
_MORE: Final = 0.5
"""What necessity gains with the logarithm of the number of documents above `_USUAL`."""


def relevances(signals: Signals, positions: NDArray[np.intp]) -> list[float]:
    """The relevance of each document at ``positions``, to three decimals."""
    # The number of texts matters only for closeness, not for shared words.
    among = _AMONG * math.log(signals.documents - 0.5)
    known: list[NDArray[np.float64]] = []
    evidence = np.zeros(len(positions))
    for weights, start, signal in (
        (_BY_WORDS, 0.0, signals.coverage),
        (_BY_MEANING, among, signals.closeness),
        (_BY_TOKENS, among, signals.similarity),
    ):
        if signal is None:
            break
        known.append(signal[positions].astype(np.float64))
        total = start + weights[0]
        for weight, values in zip(weights[1:], known, strict=True):
            total = total + weight * values
        evidence = np.where(np.isnan(total), evidence, total)
    return (1 / (1 + np.exp(-evidence))).round(3).tolist()


def necessity_among(necessity: float, documents: int) -> float:
    """``necessity``, the log-odds that a reply needs memory by its message alone, among so many ``documents``.

    The more is known, the likelier some of it matters. Among many, this makes up for what their number takes from the
    relevance of each: the best of 10,000 need not stand out more than the best of 100 for any to be shown.
    """
    return necessity + _MORE * math.log(max(documents / _USUAL, 1))


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
            columns = self._pool.places(portion), self._scores[portion].tolist(), relevances(self._signals, portion)
            yield from map(Hit, *columns, portion.tolist(), repeat(self._shares))


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
    if len(pool) <= FEW:
        return _ranked(pool, Matches.of(pool, query), query, tokens_of)
    estimated = EstimatedCloseness.of(pool, query)
    matches = Matches.of(pool, query, estimated)
    weights = (
        _weights(pool, query, LEXICAL) if matches.dense is None else _weights(pool, query, HYBRID, MULTILINGUAL_HYBRID)
    )
    positions = promising(pool, matches, query, weights, groups or [range(len(pool.views))], estimated)
    head = _ranked(pool.only(positions), matches.only(positions), query, tokens_of)

    def whole() -> Ranking:
        return _ranked(pool, Matches.of(pool, query) if estimated else matches, query, tokens_of)

    return LazyRanking(pool, head, positions, whole)


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
    tokens = {
        space: vectors.tokens
        for space, vectors in query.vectors.items()
        if vectors.tokens is not None and len(vectors.tokens)
    }
    if not tokens or not len(candidates):
        return None
    found = tokens_of(list(pool.places(candidates)))
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
        values = scores[left]
        is_head = values >= (np.partition(values, -portion)[-portion] if len(left) > portion else -np.inf)
        head = left[is_head]
        yield head[np.lexsort((ranks[head], -created[head], -scores[head]))]
        left, portion = left[~is_head], portion * _GROWTH


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
        for at, candidate in enumerate(candidates):
            name = next(filter(is_named, candidate.subjects), None)
            if name is not None:
                about[at] = candidate.subjects[name]
        if about:
            break
    else:
        return UNNAMED
    telling = [at for at, candidate in enumerate(candidates) if not candidate.asks]
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
    bridges: Bridges = {}
    for name, written in source.marks.items():
        holders = [place for place, candidate in candidates.items() if name in candidate.marks]
        for place in holders if len(holders) <= _most(len(candidates)) else ():
            bridges[place] = _heavier(bridges.get(place), _idf(len(holders), len(candidates)), written)
    return bridges


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
    bridges: Bridges = {}
    words = [(term, word) for term, word in words_by_term(text).items() if term not in without]
    held = [
        ([Place(owner, slot) for owner in owners for slot in views[owner].holding(term, most)], word)
        for term, word in words[:MAX_WORDS]
    ]
    for places, word in sorted(held, key=lambda one: len(one[0])):
        for place in places if len(places) <= most else ():
            bridges[place] = _heavier(bridges.get(place), _idf(len(places), size), word)
    for owner in owners:
        for slot in views[owner].slots_of(neighbours):
            bridges[Place(owner, slot)] = (_SAME_FACT, "supersedes")
    return bridges


def _heavier(known: tuple[float, str] | None, weight: float, name: str) -> tuple[float, str]:
    """``known`` plus ``weight``. The name stays that of the first part, which weighs most."""
    return (weight, name) if known is None else (known[0] + weight, known[1])


def _most(size: int) -> int:
    """The number of memories, of ``size``, in which a rare word may occur."""
    return min(max(_RARE_IN_FEW, size // _RARE_SHARE), _RARE_IN_MANY)


def _idf(found: int, size: int) -> float:
    return math.log1p((size - found + 0.5) / (found + 0.5))
