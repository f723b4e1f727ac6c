"""Pools: the texts of several views as one collection, in session order, with a value of each kind by position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.memory.types import GUIDING_TYPES
from inference_core.retrieval.documents import Term
from inference_core.retrieval.index import CollectionStatistics, ColumnName, ScopeView, SessionOrder
from inference_core.retrieval.vectors import (
    SPACES,
    Estimate,
    Floats,
)

_TINY: Final = 1e-12


class Place(NamedTuple):
    """A document's view and its slot there."""

    owner: int
    slot: int


class Pool:
    """The documents of ``views`` by position in ``order``; its arrays have a value for each position.

    Immutable like its views, so everything that it computes is cached and serves all queries until the next write.
    """

    def __init__(self, views: Sequence[ScopeView]) -> None:
        self.views = views = views or [ScopeView()]
        sizes = [view.slots for view in views]
        self.order = SessionOrder.joined([view.order for view in views], sizes)
        self.starts = list(accumulate(sizes[:-1], initial=0))
        self.owners = np.repeat(np.arange(len(views)), [len(view) for view in views])
        self._columns: dict[ColumnName, NDArray[Any]] = {}
        self._kinds: dict[frozenset[str], NDArray[np.bool_]] = {}
        self._means: dict[tuple[int, int], Floats] = {}
        self._commonness: dict[tuple[tuple[int, int], ...], Floats] = {}

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

    def places(self, positions: NDArray[np.intp]) -> Iterator[Place]:
        """The places of the documents at ``positions``."""
        owners: NDArray[np.intp] = self.owners[positions]
        slots = self.order.slots[positions] - np.array(self.starts)[owners]
        return map(Place, owners.tolist(), slots.tolist())

    def owned_by(self, views: Collection[int]) -> NDArray[np.bool_]:
        """Whether each document is in one of ``views``, which differ."""
        if len(views) == len(self.views):
            return self._everything
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

    @cached_property
    def _everything(self) -> NDArray[np.bool_]:
        return np.ones(len(self), np.bool_)

    @cached_property
    def _is_as_stored(self) -> bool:
        """Whether the positions are the slots of the only view."""
        return len(self.views) == 1 and self.order.is_flat and self.views[0].is_full

    @cached_property
    def spaces(self) -> NDArray[np.uint8]:
        """The vector space of each document that has vectors; `SPACES` for the others."""
        return self._placed([view.spaces for view in self.views])

    @cached_property
    def held_spaces(self) -> frozenset[int]:
        """The vector spaces in which any document has vectors."""
        return frozenset[int]().union(*(view.vectors.held_spaces for view in self.views))

    def share_in(self, space: int) -> float:
        """The share of vectors that are in ``space``, from 0 to 1; 0 without any vectors."""
        counts = sum((view.vectors.counts for view in self.views), start=np.zeros(SPACES, np.int64))
        return float(counts[space] / max(int(counts.sum()), 1))

    def products(self, queries: Mapping[int, Floats]) -> Floats:
        """The largest inner product of each document's vectors and the query of their space.

        NaN for a document without vectors, or in a space without a query.
        """
        return self._placed([view.products(queries) for view in self.views])

    def estimated(self, space: int, query: Floats) -> Estimate:
        """About the same for one space: what is given for documents without vectors in it means nothing."""
        parts = [view.estimated(space, query) for view in self.views]
        products, margins, *sums = zip(*parts, strict=True)
        return Estimate(self._placed(products), self._placed(margins), *map(sum, sums))

    def products_of(self, positions: NDArray[np.intp], query: Floats) -> Floats:
        """The inner product of the first vector of each of ``positions``, all of which have one, and ``query``."""
        products, owners = np.empty(len(positions), np.float32), self.owners[positions]
        for owner, view in enumerate(self.views):
            own = np.flatnonzero(owners == owner)
            if len(own):
                products[own] = view.vectors.products_of(self.order.slots[positions[own]] - self.starts[owner], query)
        return products

    def first_vectors(self, positions: NDArray[np.intp]) -> tuple[NDArray[np.intp], Floats]:
        """Those of ``positions`` that have vectors, in their order, and the first vector of each, in any space."""
        if len(self.views) == 1:
            (view,), slots = self.views, self.order.slots[positions]
            there = view.embedded[slots]
            return positions[there], view.vectors.rows(slots[there])
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
        """How close the first vectors of documents are to each other (places, places); NaN unless in one space.

        Cosines after subtracting the mean of the space, corrected so that unrelated texts are at 0 however few there
        are.
        """
        size = max(view.vectors.size for view in self.views)
        vectors = np.zeros((len(places), size), np.float32)
        spaces = np.full(len(places), SPACES)
        slots = np.array([place.slot for place in places], np.intp)
        for owner, view in enumerate(self.views):
            own = [at for at, place in enumerate(places) if place.owner == owner]
            if own and view.vectors.size == size:
                known = np.array(own)[view.embedded[slots[own]]]
                vectors[known], spaces[known] = view.vectors.rows(slots[known]), view.vectors.spaces[slots[known]]
        cosines = np.full((len(places), len(places)), np.nan, np.float32)
        for space in self.held_spaces:
            own = np.flatnonzero(spaces == space)
            count = max(sum(view.vectors.counts.item(space) for view in self.views if view.vectors.size == size), 1)
            centred = vectors[own] - self.mean_vector(space, size)
            centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), _TINY)
            # The mean of n texts contains 1/n of each, so the cosine of two unrelated ones is -1 / (n - 1), not 0.
            cosines[np.ix_(own, own)] = (centred @ centred.T * (count - 1) + 1) / count
        return cosines

    def mean_vector(self, space: int, size: int) -> Floats:
        """The mean of all vectors of a ``space`` with ``size`` dimensions; zeros if there are none."""
        if (space, size) not in self._means:
            held = [view.vectors for view in self.views if view.vectors.size == size]
            total = sum((vectors.totals[space] for vectors in held), start=np.zeros(size))
            count = sum(vectors.counts.item(space) for vectors in held)
            self._means[space, size] = (total / max(count, 1)).astype(np.float32)
        return self._means[space, size]

    def commonness(self, sizes: Mapping[int, int]) -> Floats:
        """The largest inner product of each document's vectors and the mean of its space; NaN without one.

        ``sizes`` maps each space to its dimensions.
        """
        key = tuple(sizes.items())
        if key not in self._commonness:
            self._commonness[key] = self.products({space: self.mean_vector(space, size) for space, size in key})
        return self._commonness[key]

    def _column(self, name: ColumnName) -> NDArray[Any]:
        return _joined([view.in_order(name) for view in self.views])

    def _of_kinds(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        return _joined([view.is_of(kinds, view.order.slots) for view in self.views])

    def _placed(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The values of each view's slots, reordered by position."""
        return columns[0] if self._is_as_stored else _joined(columns)[self.order.slots]


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

    def mean_vector(self, space: int, size: int) -> Floats:
        """The mean over the whole pool, including the sessions left out."""
        return self._whole.mean_vector(space, size)

    def _column(self, name: ColumnName) -> NDArray[Any]:
        return self._whole.column(name)[self._positions]

    def _of_kinds(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        return self._whole.kinds_in(kinds)[self._positions]


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
