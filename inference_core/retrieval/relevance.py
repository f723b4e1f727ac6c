"""Relevance: how likely a hit answers the query, from 0 to 1, judged by absolute signals.

A share of the best hit's score would call the best of an unrelated set perfect. Logistic regression on the labelled
halves of several data sets, rounded; see `docs/retrieval.md` for how well it is calibrated elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from inference_core.retrieval.vectors import Floats


@dataclass(slots=True)
class Signals:
    """Absolute evidence by position; NaN where it is not known.

    ``coverage`` is the share of the query's idf that is matched, ``closeness`` how much closer the vectors are than
    average, ``similarity`` the mean best cosine of the query's tokens.
    """

    coverage: Floats
    closeness: Floats | None = None
    similarity: Floats | None = None


_LEXICAL: Final = (-3.2, 3.5)
_HYBRID: Final = (-3.0, 2.0, 3.5)
_LATE: Final = (-3.1, 1.9, 3.8, 0.3)
"""The intercept, and the weights of coverage, closeness and similarity."""


def relevance(signals: Signals, at: int) -> float:
    """The relevance of the document at a position, to three decimals."""
    coverage = signals.coverage.item(at)
    closeness = math.nan if signals.closeness is None else signals.closeness.item(at)
    similarity = math.nan if signals.similarity is None else signals.similarity.item(at)
    if math.isnan(closeness):
        evidence = _LEXICAL[0] + _LEXICAL[1] * coverage
    elif math.isnan(similarity):
        evidence = _HYBRID[0] + _HYBRID[1] * coverage + _HYBRID[2] * closeness
    else:
        evidence = _LATE[0] + _LATE[1] * coverage + _LATE[2] * closeness + _LATE[3] * similarity
    return round(1 / (1 + math.exp(-evidence)), 3)
