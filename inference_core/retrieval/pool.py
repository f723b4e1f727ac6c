"""The texts of several views as one collection, in session order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.memory.types import GUIDING_TYPES
from inference_core.retrieval.columns import ColumnName
from inference_core.retrieval.documents import Term
from inference_core.retrieval.index import CollectionStatistics, ScopeView
from inference_core.retrieval.sessions import SessionOrder
from inference_core.retrieval.vectors import Floats

_TINY: Final = 1e-12


class Place(NamedTuple):
    """A document's view and its slot there."""

    owner: int
    slot: int


class Pool:
    """Positions are those of ``order``; every array it returns has a value for each position.

    Immutable like its views, so everything it computes serves all queries until the next write.
    """

    def __init__(self, views: Sequence[ScopeView]) -> None:
        self.views = views = views or [ScopeView()]
        sizes = [view.slots for view in views]
        self.order = SessionOrder.joined([view.order for view in views], sizes)
        self.starts = list(accumulate(sizes[:-1], initial=0))
        self.owners = np.repeat(np.arange(len(views)), [len(view) for view in views])
        self._columns: dict[ColumnName, NDArray[Any]] = {}
        self._kinds: dict[frozenset[str], NDArray[np.bool_]] = {}
        self._means: dict[int, Floats] = {}
        self._commonness: dict[int, Floats] = {}

    @cached_property
    def guiding(self) -> Floats:
        """1 for rules, procedures and preferences, which guide actions (CoALA's procedural memory)."""
        return self.kinds_in(GUIDING_TYPES).astype(np.float32)

    @cached_property
    def not_assistant(self) -> Floats:
        """1 for texts not by an assistant, whose replies are long and mostly repeat what the user said."""
        return (~self.column("by_assistant")).astype(np.float32)

    def __len__(self) -> int:
        return len(self.order.slots)

    def only(self, positions: NDArray[np.intp]) -> Pool:
        """A pool of the documents at ``positions``, which are whole sessions."""
        return _Part(self, positions)

    def place(self, at: int) -> Place:
        """The place of the document at a position."""
        owner = self.owners.item(at)
        return Place(owner, self.order.slots.item(at) - self.starts[owner])

    def owned_by(self, views: Collection[int]) -> NDArray[np.bool_]:
        """Whether each document is in one of ``views``."""
        is_wanted = np.zeros(len(self.views), np.bool_)
        is_wanted[list(views)] = True
        return is_wanted[self.owners]

    def column(self, name: ColumnName) -> NDArray[Any]:
        """A column of the views."""
        if name not in self._columns:
            self._columns[name] = self._column(name)
        return self._columns[name]

    def kinds_in(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        """Whether each document's kind is one of ``kinds``."""
        if kinds not in self._kinds:
            self._kinds[kinds] = self._of_kinds(kinds)
        return self._kinds[kinds]

    def bm25(self, terms: Sequence[Term]) -> tuple[Floats, Floats]:
        """BM25 score and coverage, with statistics over all views."""
        statistics = CollectionStatistics.of(self.views, terms)
        parts = [view.bm25(terms, statistics) for view in self.views]
        return self._placed([scores for scores, _ in parts]), self._placed([coverage for _, coverage in parts])

    def products(self, query: Floats) -> Floats:
        """The largest inner product of each document's vectors and ``query``; NaN where there is no vector."""
        return self._placed([view.products(query) for view in self.views])

    def first_vectors(self, positions: NDArray[np.intp]) -> tuple[NDArray[np.intp], Floats]:
        """The ``positions`` that have vectors, in their order, and the first vector of each."""
        size = max(view.vectors.size for view in self.views)
        vectors = np.zeros((len(positions), size), np.float32)
        known = np.zeros(len(positions), np.bool_)
        owners: NDArray[np.intp] = self.owners[positions]
        for owner, view in enumerate(self.views):
            own = np.flatnonzero(owners == owner)
            if len(own) and view.vectors.size == size:
                slots = self.order.slots[positions[own]] - self.starts[owner]
                there = view.embedded[slots]
                known[own] = there
                vectors[own[there]] = view.vectors.rows(slots[there])
        return positions[known], vectors[known]

    def alike(self, places: Sequence[Place]) -> Floats:
        """How close the first vectors of documents are to each other (places, places); NaN without a vector.

        Cosines after subtracting the mean of all, which for unrelated texts are 0 however few there are.
        """
        size = max(view.vectors.size for view in self.views)
        count = max(sum(view.vectors.count for view in self.views if view.vectors.size == size), 1)
        vectors = np.zeros((len(places), size), np.float32)
        known = np.zeros(len(places), np.bool_)
        for at, (owner, slot) in enumerate(places):
            view = self.views[owner]
            if view.vectors.size == size and view.embedded[slot]:
                vectors[at], known[at] = view.vectors.rows(np.array([slot])), True
        vectors -= self.mean_vector(size)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY)
        # The mean of n texts holds an n-th of each, so any two of them look opposed by 1 / (n - 1).
        cosines = (vectors @ vectors.T * (count - 1) + 1) / count
        return np.where(known & known[:, None], cosines, np.float32(np.nan))

    def mean_vector(self, size: int) -> Floats:
        """The mean of all vectors of ``size`` dimensions; zeros if there are none."""
        if size not in self._means:
            held = [view.vectors for view in self.views if view.vectors.size == size]
            total = sum((vectors.total for vectors in held), start=np.zeros(size))
            self._means[size] = (total / max(sum(vectors.count for vectors in held), 1)).astype(np.float32)
        return self._means[size]

    def commonness(self, size: int) -> Floats:
        """The inner product of each document's vectors of ``size`` dimensions and the mean of all; NaN without one."""
        if size not in self._commonness:
            self._commonness[size] = self.products(self.mean_vector(size))
        return self._commonness[size]

    def _column(self, name: ColumnName) -> NDArray[Any]:
        return _joined([view.in_order(name) for view in self.views])

    def _of_kinds(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        return _joined([view.is_of(kinds, view.order.slots) for view in self.views])

    def _placed(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Values by slot, view after view, brought into the order of positions."""
        return _joined(columns)[self.order.slots]


class _Part(Pool):
    """Some sessions of a pool."""

    def __init__(self, whole: Pool, positions: NDArray[np.intp]) -> None:
        self.views = whole.views
        self.order = whole.order.only(positions)
        self.owners = whole.owners[positions]
        self.starts = whole.starts
        self._whole = whole
        self._positions = positions
        self._columns, self._kinds, self._means, self._commonness = {}, {}, {}, {}

    def mean_vector(self, size: int) -> Floats:
        """The mean over the whole pool, including the sessions left out."""
        return self._whole.mean_vector(size)

    def _column(self, name: ColumnName) -> NDArray[Any]:
        return self._whole.column(name)[self._positions]

    def _of_kinds(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        return self._whole.kinds_in(kinds)[self._positions]


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
