"""Measures of a ranking against the relevant ids, each from 0 to 1, and the confidence of their means.

A ranked id counts once, at its first place. Every measure needs at least one relevant id.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

DEPTH: Final = 20
"""How many hits are asked for and looked at."""
MEASURES: Final = ("R@5", "R@10", "R@20", "any@10", "all@10", "MRR", "nDCG@10")
_RESAMPLES: Final = 2_000
_SEED: Final = 20_260
_MIN_GROUPS: Final = 2
_BINS: Final = 10


def recall_at(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Share of the relevant ids that are among the first ``k``."""
    return len(set(_top(ranked, k)) & set(relevant)) / len(set(relevant))


def reciprocal_rank(ranked: Sequence[str], relevant: Collection[str], k: int = DEPTH) -> float:
    """One over the place of the first relevant id, 0 if none is among the first ``k`` (Voorhees, TREC-8, 1999)."""
    return next((1 / place for place, name in enumerate(_top(ranked, k), 1) if name in relevant), 0.0)


def ndcg_at(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Discounted cumulative gain of the first ``k``, over that of the ideal order; gains are 0 or 1.

    Discount log2(place + 1), after Järvelin and Kekäläinen, ACM TOIS 20 (2002).
    """
    discounts = [1 / math.log2(place + 1) for place in range(1, k + 1)]
    gain = sum(discount for discount, name in zip(discounts, _top(ranked, k), strict=False) if name in relevant)
    return gain / sum(discounts[: len(set(relevant))])


def measures(ranked: Sequence[str], relevant: Collection[str]) -> dict[str, float]:
    """All of MEASURES for one question."""
    recall = recall_at(ranked, relevant, 10)
    return {
        "R@5": recall_at(ranked, relevant, 5),
        "R@10": recall,
        "R@20": recall_at(ranked, relevant, 20),
        "any@10": float(recall > 0),
        "all@10": float(recall == 1),
        "MRR": reciprocal_rank(ranked, relevant),
        "nDCG@10": ndcg_at(ranked, relevant, 10),
    }


def session_any_at(ranked: Sequence[str], relevant: Collection[str], sessions: Mapping[str, str], k: int) -> float:
    """1 if a relevant id's session is among the first ``k`` distinct sessions of the ranking, else 0.

    ``sessions`` is the session of each id. The measure of session retrieval that published memory systems report.
    """
    found = list(dict.fromkeys(sessions[name] for name in ranked if name in sessions))[:k]
    return float(any(sessions.get(name) in found for name in relevant))


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which ``percent`` of ``values`` lie, interpolated; None without values."""
    return float(np.percentile(values, percent)) if values else None


def confidence_interval(groups: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """95 % interval of the mean over all values, by resampling whole groups (percentile bootstrap, seeded).

    Questions about one conversation are not independent, so conversations are resampled (Field and Welsh, JRSS B 69,
    2007). None with fewer than two groups that have values.
    """
    sizes = np.array([len(group) for group in groups if group], np.float64)
    if len(sizes) < _MIN_GROUPS:
        return None
    sums = np.array([math.fsum(group) for group in groups if group])
    drawn = np.random.default_rng(_SEED).integers(0, len(sizes), (_RESAMPLES, len(sizes)))
    low, high = np.percentile(sums[drawn].sum(1) / sizes[drawn].sum(1), (2.5, 97.5))
    return float(low), float(high)


def calibration_error(judged: Sequence[tuple[float, bool]]) -> float | None:
    """Expected calibration error of probabilities (0 to 1) of what then was true or not; None without any.

    In ten bins of equal width the mean distance between the probability and the share of true ones, weighted by size
    (Naeini, Cooper and Hauskrecht 2015).
    """
    bins: dict[int, list[tuple[float, bool]]] = {}
    for probability, is_true in judged:
        bins.setdefault(min(int(probability * _BINS), _BINS - 1), []).append((probability, is_true))
    gaps = [abs(sum(probability - is_true for probability, is_true in group)) for group in bins.values()]
    return sum(gaps) / len(judged) if judged else None


def _top(ranked: Sequence[str], k: int) -> list[str]:
    return list(dict.fromkeys(ranked))[:k]
