"""The living documents of several indexes, seen as one collection in session order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.columns import ColumnName
from inference_core.retrieval.documents import Term
from inference_core.retrieval.index import CollectionStatistics, ScopeIndex
from inference_core.retrieval.sessions import SessionOrder
from inference_core.retrieval.vectors import Floats


class Place(NamedTuple):
    """Where a document is: which of the indexes, and its slot there."""

    owner: int
    slot: int


class Pool:
    """Positions are those of ``order``; every array that it gives has a value for each position."""

    def __init__(self, indexes: Sequence[ScopeIndex]) -> None:
        self.indexes = indexes = indexes or [ScopeIndex("")]
        sizes = [index.slots for index in indexes]
        self.order = SessionOrder.joined([index.order for index in indexes], sizes)
        self.starts = list(accumulate(sizes[:-1], initial=0))
        self.owners = np.repeat(np.arange(len(indexes)), [len(index) for index in indexes])

    @cached_property
    def created(self) -> NDArray[np.float64]:
        """When each document was created, in seconds since 1970."""
        return self.column("created")

    @cached_property
    def ranks(self) -> NDArray[np.uint32]:
        """A number of each document's key, the same in every process, that decides between equals."""
        return self.column("ranks")

    def __len__(self) -> int:
        return len(self.order.slots)

    def only(self, positions: NDArray[np.intp]) -> Pool:
        """The documents at ``positions``, which are whole sessions, as a pool."""
        return _Part(self, positions)

    def place(self, at: int) -> Place:
        """Where the document at a position is."""
        owner = self.owners.item(at)
        return Place(owner, self.order.slots.item(at) - self.starts[owner])

    def owned_by(self, indexes: Collection[int]) -> NDArray[np.bool_]:
        """Whether each document is in one of ``indexes``."""
        is_wanted = np.zeros(len(self.indexes), np.bool_)
        is_wanted[list(indexes)] = True
        return is_wanted[self.owners]

    def column(self, name: ColumnName) -> NDArray[Any]:
        """One of the indexes' columns."""
        return _joined([index.in_order(name) for index in self.indexes])

    def kinds_in(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        """Whether each document's kind is one of ``kinds``."""
        return _joined([index.is_of(kinds) for index in self.indexes])

    def bm25(self, terms: Sequence[Term]) -> tuple[Floats, Floats]:
        """BM25 score and coverage; the statistics are those of all indexes together."""
        statistics = CollectionStatistics.of(self.indexes, terms)
        parts = [index.bm25(terms, statistics) for index in self.indexes]
        return self._placed([scores for scores, _ in parts]), self._placed([coverage for _, coverage in parts])

    def products(self, query: Floats) -> Floats:
        """The largest inner product of each document's vectors and ``query``; NaN where there is no vector."""
        return self._placed([index.columns.vectors.products(query, index.slots) for index in self.indexes])

    def first_vectors(self, positions: NDArray[np.intp]) -> tuple[NDArray[np.intp], Floats]:
        """Those of ``positions`` that have vectors, in their order, and the first vector of each."""
        size = max(index.columns.vectors.size for index in self.indexes)
        vectors = np.zeros((len(positions), size), np.float32)
        known = np.zeros(len(positions), np.bool_)
        owners: NDArray[np.intp] = self.owners[positions]
        for owner, index in enumerate(self.indexes):
            own = np.flatnonzero(owners == owner)
            slots = self.order.slots[positions[own]] - self.starts[owner]
            found, rows = index.columns.vectors.rows(slots)
            if rows.shape[1] == size:
                known[own], vectors[own] = found, rows
        return positions[known], vectors[known]

    def mean_vector(self, size: int) -> Floats:
        """The mean of all vectors that have ``size`` dimensions; zeros if there are none."""
        held = [index.columns.vectors for index in self.indexes if index.columns.vectors.size == size]
        total = sum((vectors.total for vectors in held), start=np.zeros(size))
        return (total / max(sum(vectors.count for vectors in held), 1)).astype(np.float32)

    def _placed(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Values by slot, index after index, as values by position."""
        return _joined(columns)[self.order.slots]


class _Part(Pool):
    """Some sessions of a pool."""

    def __init__(self, whole: Pool, positions: NDArray[np.intp]) -> None:
        self.indexes = whole.indexes
        self.order = whole.order.only(positions)
        self.owners = whole.owners[positions]
        self.starts = whole.starts
        self._whole = whole
        self._positions = positions

    def column(self, name: ColumnName) -> NDArray[Any]:
        """One of the indexes' columns."""
        return self._whole.column(name)[self._positions]

    def kinds_in(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        """Whether each document's kind is one of ``kinds``."""
        return self._whole.kinds_in(kinds)[self._positions]


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
