"""The numbers of an index's slots, in arrays that grow by a quarter when they are full."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.vectors import Floats, by_vector, shape_of, unpack_first_vectors, unpack_vectors

_INITIAL_CAPACITY: Final = 64
_UNKNOWN: Final = np.nan
ColumnName = Literal["created", "ranks", "kinds", "by_assistant", "happened", "importance"]
"""The columns that ranking reads whole."""


class NewSlot(NamedTuple):
    """What is known of a slot when it is taken. ``rank`` decides between equals; ``length`` is in terms."""

    slot: int
    created: float
    length: int
    rank: int
    kind: int
    session: int
    by_assistant: bool
    happened: float
    importance: float


class Columns:
    """Per slot: life, times, length, rank, session, role, importance and vectors."""

    def __init__(self) -> None:
        self.alive = np.zeros(_INITIAL_CAPACITY, np.bool_)
        self.created = np.zeros(_INITIAL_CAPACITY, np.float64)
        self.lengths = np.zeros(_INITIAL_CAPACITY, np.float32)
        self.ranks = np.zeros(_INITIAL_CAPACITY, np.uint32)
        self.kinds = np.zeros(_INITIAL_CAPACITY, np.uint16)
        self.sessions = np.zeros(_INITIAL_CAPACITY, np.int64)
        self.by_assistant = np.zeros(_INITIAL_CAPACITY, np.bool_)
        self.happened = np.zeros(_INITIAL_CAPACITY, np.float64)
        self.importance = np.zeros(_INITIAL_CAPACITY, np.float32)
        self.vectors = _Vectors()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(column.nbytes for column in self._all()) + self.vectors.nbytes

    def extend(self, added: Sequence[NewSlot]) -> None:
        """Fills new slots."""
        if not added:
            return
        slots, created, lengths, ranks, kinds, sessions, by_assistant, happened, importance = map(
            np.array, zip(*added, strict=True)
        )
        if slots[-1] >= len(self.alive):
            self._grow(int(slots[-1]) + 1)
        self.alive[slots] = True
        self.created[slots], self.happened[slots] = created, happened
        self.lengths[slots], self.ranks[slots], self.kinds[slots] = lengths, ranks, kinds
        self.sessions[slots], self.by_assistant[slots], self.importance[slots] = sessions, by_assistant, importance

    def kill(self, slot: int) -> int:
        """Ends a slot's life; its length in terms."""
        self.alive[slot] = False
        self.vectors.forget(slot)
        return int(self.lengths[slot])

    def _all(self) -> list[NDArray[Any]]:
        return [value for value in vars(self).values() if isinstance(value, np.ndarray)]

    def _grow(self, room: int) -> None:
        for name, value in list(vars(self).items()):
            if isinstance(value, np.ndarray):
                setattr(self, name, grown(cast("NDArray[Any]", value), room))


class _Vectors:
    """The first vector of each slot in a matrix, those of further passages in a second one with their owners."""

    def __init__(self) -> None:
        self.count = 0
        self.total: NDArray[np.float64] = np.zeros(0)
        self._known = np.zeros(_INITIAL_CAPACITY, np.bool_)
        self._first: Floats = np.zeros((_INITIAL_CAPACITY, 0), np.float32)
        self._owners = array("q")
        self._further: Floats = np.zeros((_INITIAL_CAPACITY, 0), np.float32)

    @property
    def nbytes(self) -> int:
        return self._first.nbytes + self._further.nbytes + self._known.nbytes

    @property
    def size(self) -> int:
        """Dimensions; 0 before there is a vector."""
        return self._first.shape[1]

    def set(self, packed: dict[int, bytes]) -> None:
        """Gives vectors to living slots that have none; those of another size than the first are left out."""
        alike: dict[bytes, list[int]] = {}
        for slot, blob in packed.items():
            alike.setdefault(shape_of(blob), []).append(slot)
        for slots in alike.values():
            if len(unpack_vectors(packed[slots[0]])) == 1:
                self._set_first(slots, unpack_first_vectors([packed[slot] for slot in slots]).astype(np.float32))
            else:
                for slot in slots:
                    self._set_passages(slot, unpack_vectors(packed[slot]).astype(np.float32))

    def rows(self, slots: NDArray[np.intp]) -> tuple[NDArray[np.bool_], Floats]:
        """Which of ``slots`` have vectors, and the first vector of each (anything where there is none)."""
        within = np.minimum(slots, len(self._known) - 1)
        return self._known[within] & (within == slots), self._first[within]

    def forget(self, slot: int) -> None:
        """Takes the vectors of ``slot`` away."""
        if slot >= len(self._known) or not self._known[slot]:
            return
        self._known[slot] = False
        further = self._further_of(slot)
        self._count(-1, np.concatenate([self._first[slot][None], self._further[further]]))
        for at in further:
            self._owners[at] = -1

    def products(self, query: Floats, slots: int) -> Floats:
        """Per slot the largest inner product of its vectors and ``query``; NaN where there is none."""
        scores = np.full(slots, _UNKNOWN, np.float32)
        if self.size != query.shape[0]:
            return scores
        known = self._known[:slots]
        np.copyto(scores[: len(known)], by_vector(self._first[: len(known)], query), where=known)
        if self._owners:
            owners = np.frombuffer(self._owners, np.int64)
            living = owners >= 0
            np.maximum.at(scores, owners[living], by_vector(self._further[: len(owners)], query)[living])
        return scores

    def _set_first(self, slots: Sequence[int], vectors: Floats) -> None:
        if not self.size:
            self._first = np.zeros((len(self._known), vectors.shape[1]), np.float32)
            self._further = np.zeros((_INITIAL_CAPACITY, vectors.shape[1]), np.float32)
            self.total = np.zeros(vectors.shape[1])
        if vectors.shape[1] != self.size:
            return
        if (room := max(slots) + 1) > len(self._known):
            self._known, self._first = grown(self._known, room), grown(self._first, room)
        self._known[slots] = True
        self._first[slots] = vectors
        self._count(1, vectors)

    def _set_passages(self, slot: int, vectors: Floats) -> None:
        self._set_first([slot], vectors[:1])
        if vectors.shape[1] != self.size:
            return
        start = len(self._owners)
        if (room := start + len(vectors) - 1) > len(self._further):
            self._further = grown(self._further, room)
        self._further[start : start + len(vectors) - 1] = vectors[1:]
        self._owners.extend([slot] * (len(vectors) - 1))
        self._count(1, vectors[1:])

    def _further_of(self, slot: int) -> NDArray[np.intp]:
        return np.flatnonzero(np.frombuffer(self._owners, np.int64) == slot) if self._owners else np.empty(0, np.intp)

    def _count(self, sign: int, vectors: Floats) -> None:
        self.count += sign * len(vectors)
        self.total += sign * vectors.sum(axis=0, dtype=np.float64)


def grown(values: NDArray[Any], room: int) -> NDArray[Any]:
    """``values`` in an array with ``room``, and a quarter more than they had at least."""
    result = np.zeros((max(room, len(values) + len(values) // 4), *values.shape[1:]), values.dtype)
    result[: len(values)] = values
    return result
