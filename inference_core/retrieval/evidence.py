"""The kinds of evidence that a document answers a query, each brought to a scale on which 1 is a lot.

Functions take a `Pool` and give an array by its positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from inference_core.memory.types import GUIDING_TYPES
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.sessions import SessionOrder
from inference_core.retrieval.vectors import Floats, by_vector
from inference_core.retrieval.weights import Spread

DEVIATIONS: Final = 4.0
"""Standardised evidence is divided by this: four standard deviations above the mean count as 1."""
FEEDBACK_TEXTS: Final = 3
DECIMALS: Final = 5
"""Scores are compared to this many decimals, so that the order of a summation decides nothing."""
_NO_SPREAD: Final = 1e-6
_NEUTRAL_IMPORTANCE: Final = 0.5


def over_maximum(scores: Floats) -> Floats:
    """``scores``, none of them negative, over the largest."""
    top = float(scores.max(initial=0.0))
    return scores / top if top > 0 else scores


def standardized(scores: Floats) -> Floats:
    """``scores`` minus their mean, over four standard deviations; 0 where there is no score or no spread."""
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
    """``values`` of each turn and of its surroundings in the session, added up by weight."""
    total = weights.own * values
    if weights.previous:
        total += weights.previous * order.shifted(values, 1)
    if weights.around:
        total += weights.around * (order.shifted(values, 2) + order.shifted(values, -2))
    if weights.reply:
        total += weights.reply * order.shifted(values, -1)
    if weights.best:
        total += weights.best * order.best(values)
    return total


def closeness(pool: Pool, query: Floats) -> Floats:
    """How much closer each document is to ``query`` than to the mean of all; NaN where there is no vector.

    The mean is taken from the query only, which orders like mean-centred cosine at half its cost (Mu and Viswanath
    2018: the common component of embeddings carries no meaning).
    """
    return pool.products(query - pool.mean_vector(len(query)))


def feedback(pool: Pool, candidates: Sequence[int], scores: Floats) -> Floats:
    """How close the ``candidates`` are to the best three of them by ``scores`` (Rocchio 1971); 0 for all others."""
    result = np.zeros(len(pool), np.float32)
    if len(candidates) <= FEEDBACK_TEXTS:
        return result
    known, vectors = pool.first_vectors(np.array(candidates, np.intp))
    if len(known) > FEEDBACK_TEXTS:
        best = np.argsort(-np.round(scores[known], DECIMALS), kind="stable")[:FEEDBACK_TEXTS]
        target = vectors[best].mean(axis=0) - pool.mean_vector(vectors.shape[1])
        result[known] = standardized(by_vector(vectors, target))
    return result


def guidance(pool: Pool) -> Floats:
    """1 for rules, procedures and preferences: what guides an action (CoALA's procedural memory)."""
    return pool.kinds_in(GUIDING_TYPES).astype(np.float32)


def within(pool: Pool, interval: tuple[float, float]) -> Floats:
    """1 for what happened within ``interval``, in seconds since 1970."""
    happened = pool.column("happened")
    return ((interval[0] <= happened) & (happened < interval[1])).astype(np.float32)


def not_assistant(pool: Pool) -> Floats:
    """1 for what was not said by an assistant: its replies are long and mostly about what the user said."""
    return (~pool.column("by_assistant")).astype(np.float32)


def importance(pool: Pool) -> Floats:
    """From -.5 to .5, 0 for what is as important as most."""
    return pool.column("importance") - np.float32(_NEUTRAL_IMPORTANCE)
