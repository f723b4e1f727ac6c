"""How well each document matches a query by itself, and which documents are worth a look at their surroundings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval import evidence
from inference_core.retrieval.evidence import over_maximum, standardized
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.query import Query
from inference_core.retrieval.vectors import Floats
from inference_core.retrieval.weights import Weights

PROMISING: Final = 256
"""So many of the best documents of a group are looked at, with their whole sessions."""


class Matches(NamedTuple):
    """Evidence by position of a pool.

    ``lexical`` is BM25 over its maximum, ``coverage`` the share of the query's idf that is matched. ``closeness`` is to
    the query's vector, NaN where there is none, ``dense`` the same standardised; None without a query vector.
    """

    is_hit: NDArray[np.bool_]
    lexical: Floats
    coverage: Floats
    closeness: Floats | None = None
    dense: Floats | None = None

    @classmethod
    def of(cls, pool: Pool, query: Query) -> Matches:
        """Without a query vector only documents that hold a term are hits."""
        bm25, coverage = pool.bm25(query.terms)
        if query.vector is None:
            return cls(bm25 > 0, over_maximum(bm25), coverage)
        closeness = evidence.closeness(pool, query.vector)
        is_hit = (bm25 > 0) | ~np.isnan(closeness)
        return cls(is_hit, over_maximum(bm25), coverage, closeness, standardized(closeness))

    def only(self, positions: NDArray[np.intp]) -> Matches:
        """The evidence at some positions."""
        return Matches(*(None if values is None else values[positions] for values in self))  # pyright: ignore[reportArgumentType]


def priors(pool: Pool, query: Query, weights: Weights) -> dict[str, Floats]:
    """What speaks for a document whatever its words, by kind and weight."""
    found = {
        "role": weights.not_assistant * evidence.not_assistant(pool),
        "importance": weights.importance * evidence.importance(pool),
    }
    if query.wants_action:
        found["guidance"] = weights.guidance * evidence.guidance(pool)
    if query.interval is not None:
        found["time"] = weights.interval * evidence.within(pool, query.interval)
    return found


def promising(
    pool: Pool, matches: Matches, query: Query, weights: Weights, groups: Sequence[Collection[int]]
) -> NDArray[np.intp]:
    """The positions of all sessions that hold one of the best `PROMISING` documents of a group, judged by themselves.

    A group is some of the pool's indexes.
    """
    own = weights.lexical.own * matches.lexical + weights.coverage * matches.coverage
    if matches.dense is not None:
        own += weights.dense.own * matches.dense
    for share in priors(pool, query, weights).values():
        own += share
    scores = own.round(evidence.DECIMALS)
    is_wanted = np.zeros(len(pool.order.starts), np.bool_)
    for group in groups:
        members = np.flatnonzero(pool.owned_by(group))
        if len(members) > PROMISING:
            found = scores[members]
            members = members[found >= np.partition(found, -PROMISING)[-PROMISING]]
        is_wanted[pool.order.session[members]] = True
    return np.flatnonzero(is_wanted[pool.order.session])
