"""From per-document signals to one order: score fusion of lexical and dense evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.index import CollectionStatistics, Floats, ScopeIndex

DENSE_SCALE: Final = 4.0
LEXICAL_WEIGHT: Final = 1.0
COVERAGE_WEIGHT: Final = 1.0
MAX_QUERY_CHARACTERS: Final = 8_192
_DECIMALS: Final = 5
_NO_SPREAD: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: analysed terms and, if there is a model, a vector of unit length."""

    terms: Sequence[str]
    vector: Floats | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matches: which index it is in, its slot there, and its score (higher is better)."""

    index: int
    slot: int
    score: float


class Ranking:
    """Matching documents of several indexes, the best first."""

    def __init__(self, indexes: NDArray[np.intp], slots: NDArray[np.intp], scores: Floats) -> None:
        self._indexes = indexes
        self._slots = slots
        self._scores = scores

    def of(self, indexes: Collection[int]) -> Iterator[Hit]:
        """The hits in ``indexes``, the best first."""
        for at in np.flatnonzero(np.isin(self._indexes, list(indexes))):
            yield Hit(int(self._indexes[at]), int(self._slots[at]), float(self._scores[at]))


def query_of(text: str, vector: bytes | None) -> Query:
    """The query of a text and, if there is one, its vector."""
    terms = analyze(text[:MAX_QUERY_CHARACTERS])
    return Query(terms, None if vector is None else np.frombuffer(vector, np.float32))


def rank(indexes: Sequence[ScopeIndex], query: Query) -> Ranking:
    """The documents of ``indexes`` by score, the best first; of equal ones the newest.

    Statistics run over all indexes together. Without a query vector only documents that hold a term are hits.
    """
    sizes = [index.slots for index in indexes]
    if not sum(sizes):
        return Ranking(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.float32))
    statistics = CollectionStatistics.of(indexes, query.terms)
    lexical, coverage = _joined([index.bm25(query.terms, statistics) for index in indexes])
    alive = np.concatenate([index.alive for index in indexes])
    dense = None if query.vector is None else np.concatenate([index.cosine(query.vector) for index in indexes])
    eligible = alive & (lexical > 0) if dense is None else alive & ((lexical > 0) | ~np.isnan(dense))
    scores = np.round(fuse(lexical, coverage, dense, alive), _DECIMALS)
    created = np.concatenate([index.created for index in indexes])
    found = np.flatnonzero(eligible)
    ranks = np.concatenate([index.ranks for index in indexes])
    order = found[np.lexsort((ranks[found], -created[found], -scores[found]))]
    ends = np.cumsum(np.array(sizes, np.intp))
    owners = np.searchsorted(ends, order, side="right")
    starts = ends - np.array(sizes, np.intp)
    return Ranking(owners, order - starts[owners], scores[order])


def fuse(lexical: Floats, coverage: Floats, dense: Floats | None, alive: NDArray[np.bool_]) -> Floats:
    """One score per document.

    Lexical evidence is BM25 over its maximum, scaled by how much of the query the best document really covers, so that
    the best of a bad lexical match does not count as a good one. Dense evidence is standardised over the living
    documents; a document without a vector counts as an average one.
    """
    best = float(np.max(lexical, where=alive, initial=0.0))
    covered = float(np.max(coverage, where=alive, initial=0.0))
    evidence = COVERAGE_WEIGHT * coverage
    if best > 0:
        evidence = evidence + (LEXICAL_WEIGHT * covered / best) * lexical
    return evidence if dense is None else evidence + standardized(dense, alive) / DENSE_SCALE


def standardized(scores: Floats, alive: NDArray[np.bool_]) -> Floats:
    """``scores`` minus their mean, over their standard deviation; 0 where there is none."""
    known = scores[alive & ~np.isnan(scores)]
    if not len(known):
        return np.zeros_like(scores)
    spread = float(known.std())
    if spread < _NO_SPREAD:
        return np.zeros_like(scores)
    return np.nan_to_num((scores - known.mean()) / spread)


def _joined(parts: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return np.concatenate([first for first, _ in parts]), np.concatenate([second for _, second in parts])
