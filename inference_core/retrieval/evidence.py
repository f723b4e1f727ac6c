"""The evidence that documents answer a query, the weights of each kind, and the relevance of a hit.

All kinds of evidence are brought to a scale on which 1 is a lot.

Functions take a `Pool` and return arrays by its positions.

Relevance, from 0 to 1, estimates how likely a hit answers the query, from absolute signals: a share of the best hit's
score would call the best of an unrelated set perfect. The weights come from a logistic regression on the labelled
halves of several data sets, rounded; see `docs/retrieval.md`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.columns import SessionOrder
from inference_core.retrieval.documents import QueryVectors
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.vectors import Floats, inner_products

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

    def alone(one: Spread) -> Spread:
        return Spread(alone=one.alone, own=one.alone)

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

    def less(one: Spread) -> Spread:
        return Spread(*(trust * weight for weight in one))

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
    deviation = math.sqrt(float(np.square(exact, out=exact).sum()) / len(exact))
    if deviation < _NO_SPREAD:
        return np.zeros_like(scores)
    result = (scores - np.float32(mean)) * np.float32(1 / (DEVIATIONS * deviation))
    result[unknown] = 0
    return result


def spread(values: Floats, weights: Spread, order: SessionOrder) -> Floats:
    """The weighted sum of each turn's value and of its surroundings' in the session; `Spread` says what counts."""
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
        {space: one.vector - pool.mean_vector(space, len(one.vector)) for space, one in queries.items()}
    )


def by_space(pool: Pool, queries: Mapping[int, QueryVectors]) -> Iterator[tuple[NDArray[np.intp] | slice, float]]:
    """For each vector space, the positions of its documents and the weight of closeness in it (the largest is 1).

    Cosines of two models are on different scales, so evidence is standardised within each space.
    """
    spaces = pool.held_spaces & queries.keys()
    most = max((queries[space].weight for space in spaces), default=1.0)
    for space in sorted(spaces):
        positions = slice(None) if len(pool.held_spaces) == 1 else np.flatnonzero(pool.spaces == space)
        yield positions, queries[space].weight / most


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
    def of(cls, pool: Pool, query: Query) -> Matches:
        """The evidence for ``query``. Without a query vector, only documents with one of its terms are hits."""
        bm25, coverage = pool.bm25(query.terms)
        if not query.vectors:
            return cls(bm25 > 0, over_maximum(bm25), coverage)
        near = closeness(pool, query.vectors)
        is_hit = (bm25 > 0) | ~np.isnan(near)
        dense = np.zeros_like(near)
        for positions, weight in by_space(pool, query.vectors):
            dense[positions] = weight * standardized(near[positions])
        if len(pool) <= _MANY:
            sizes = {space: len(one.vector) for space, one in query.vectors.items()}
            near += np.float32(_UNKNOWN / (len(pool) + _UNKNOWN)) * pool.commonness(sizes)
        return cls(is_hit, over_maximum(bm25), coverage, near, dense)

    def only(self, positions: NDArray[np.intp]) -> Matches:
        """The evidence at some positions."""
        return Matches(*(None if values is None else values[positions] for values in self))  # pyright: ignore[reportArgumentType] - fields in their order


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
    pool: Pool, matches: Matches, query: Query, weights: Weights, groups: Sequence[Collection[int]]
) -> NDArray[np.intp]:
    """The positions of all sessions with one of a group's best `PROMISING` documents, by the documents' own evidence.

    A group is a set of the pool's views.
    """
    own = weights.lexical.own * matches.lexical + weights.coverage * matches.coverage
    if matches.dense is not None:
        own += weights.dense.own * matches.dense
    for share in priors(pool, query, weights).values():
        own += share
    scores = own.round(DECIMALS)
    is_wanted = np.zeros(len(pool.order.starts), np.bool_)
    for group in groups:
        members = np.flatnonzero(pool.owned_by(group))
        if len(members) > PROMISING:
            found = scores[members]
            members = members[found >= np.partition(found, -PROMISING)[-PROMISING]]
        is_wanted[pool.order.session[members]] = True
    return np.flatnonzero(is_wanted[pool.order.session])


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


def relevance(signals: Signals, at: int) -> float:
    """The relevance of the document at a position, to three decimals."""
    coverage = signals.coverage.item(at)
    closeness = math.nan if signals.closeness is None else signals.closeness.item(at)
    similarity = math.nan if signals.similarity is None else signals.similarity.item(at)
    weights, among = _BY_WORDS, 0.0
    if not math.isnan(closeness):  # the number of texts matters only for closeness, not for shared words
        weights = _BY_MEANING if math.isnan(similarity) else _BY_TOKENS
        among = _AMONG * math.log(signals.documents - 0.5)
    known = zip(weights, (1.0, coverage, closeness, similarity), strict=False)
    evidence = sum((weight * signal for weight, signal in known), start=among)
    return round(1 / (1 + math.exp(-evidence)), 3)
