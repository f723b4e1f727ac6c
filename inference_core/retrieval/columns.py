"""The arrays of an index, and the order of its texts by session. Arrays only grow: a reader needs only their length.

Once a view shows a slot, its values never change, except for three sequence numbers: of the write that ended it, of the
write that gave it vectors, and of the row's last write. A new value is always larger than the sequence number of every
existing view, so no view sees the change.

In a `SessionOrder`, the turns of a session are adjacent, oldest first; a text without a session is alone. Spreading
evidence from neighbours is the context window of conversation search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.documents import Term
from inference_core.retrieval.vectors import Floats, grown

NEVER: Final = np.iinfo(np.int64).max
"""The sequence number of an event that has not happened."""
_FEW: Final = 64
ColumnName = Literal["created", "ranks", "kinds", "by_assistant", "happened", "importance", "asks"]
"""The columns that ranking reads as a whole."""
_SMALL_TAIL: Final = 1_024
_TAIL_SHARE: Final = 16
"""The tail is merged in when it exceeds this fraction (1/16) of the whole: searching it stays cheap, and so does the
merge, one pass over two sorted runs."""
_MAX_COUNT: Final = 255
_REMEMBERED: Final = 64
Found = tuple[NDArray[np.intp], Floats]
SESSIONLESS: Final = -1
_BEST: Final = 3
_DECIMALS: Final = 5


@dataclass(slots=True)
class Columns:
    """One value per slot.

    ``written``, ``died`` and ``embedded`` are the sequence numbers of the writes that wrote its row last, ended it,
    and gave it vectors; only these change after a view shows the slot. ``lengths`` are in terms. ``ranks``, checksums
    of the keys, break ties. ``asks``: the text is a short question. ``before`` is the key's previous slot, or -1.
    ``text_marks`` and ``vector_marks`` are hashes.
    """

    written: NDArray[np.int64]
    died: NDArray[np.int64]
    embedded: NDArray[np.int64]
    created: NDArray[np.float64]
    lengths: Floats
    ranks: NDArray[np.uint32]
    kinds: NDArray[np.int32]
    sessions: NDArray[np.int32]
    by_assistant: NDArray[np.bool_]
    happened: NDArray[np.float64]
    importance: Floats
    asks: NDArray[np.bool_]
    has_text: NDArray[np.bool_]
    before: NDArray[np.int32]
    text_marks: NDArray[np.int64]
    vector_marks: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Columns:
        """Columns with room for the first few slots."""
        kinds = (
            *(np.int64, np.int64, np.int64, np.float64, np.float32, np.uint32, np.int32, np.int32),
            *(np.bool_, np.float64, np.float32, np.bool_, np.bool_, np.int32, np.int64, np.int64),
        )
        columns: list[Any] = [np.zeros(_FEW, kind) for kind in kinds]
        return cls(*columns)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, in bytes."""
        return sum(column.nbytes for column in self._all())

    def extend(self, start: int, added: Sequence[tuple[Any, ...]]) -> None:
        """Fills the slots from ``start`` on; each of ``added`` has its values in the order of the columns."""
        end = start + len(added)
        if end > len(self.died):
            for name in self.__slots__:
                setattr(self, name, grown(getattr(self, name), end))
        for column, values in zip(self._all(), zip(*added, strict=True), strict=False):
            column[start:end] = values

    def first(self, slots: int) -> Columns:
        """The first ``slots`` of the same arrays."""
        return Columns(*(column[:slots] for column in self._all()))

    def _all(self) -> list[NDArray[Any]]:
        return [getattr(self, name) for name in self.__slots__]


class Postings:
    """The inverted index: for each term the slots that hold it, and how often. Written by one thread.

    Terms are identified by their 64-bit hash, so that building an index fills no dictionary of all words. Most postings
    are sorted, in arrays that are replaced as a whole; the latest are in an unsorted tail, which is small enough to be
    searched in full. A view is the sorted arrays and a length of the tail.
    """

    def __init__(self) -> None:
        self._sorted = _Sorted(np.empty(0, np.int64), np.zeros(1, np.intp), np.empty(0, np.uint32), np.empty(0, "u1"))
        self._tail_terms: NDArray[np.int64] = np.empty(_SMALL_TAIL, np.int64)
        self._tail_slots: NDArray[np.uint32] = np.empty(_SMALL_TAIL, np.uint32)
        self._tail = 0

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._sorted.nbytes + self._tail_terms.nbytes + self._tail_slots.nbytes

    def add(self, slots: Sequence[int], words: Sequence[Sequence[str]]) -> None:
        """Adds the terms of each slot, with repetitions."""
        terms = [hash(word) for one in words for word in one]
        start, self._tail = self._tail, self._tail + len(terms)
        if self._tail > len(self._tail_terms):
            self._tail_terms = grown(self._tail_terms, self._tail)
            self._tail_slots = grown(self._tail_slots, self._tail)
        self._tail_terms[start : self._tail] = terms
        self._tail_slots[start : self._tail] = np.repeat(np.array(slots, np.uint32), [len(one) for one in words])

    def view(self) -> PostingsView:
        """The present state. First merges the tail in if it has grown too long to search quickly."""
        if self._tail > max(_SMALL_TAIL, len(self._sorted.slots) // _TAIL_SHARE):
            self._sorted = self._sorted.joined(self._tail_terms[: self._tail], self._tail_slots[: self._tail])
            # New arrays, as views may still search the old tail.
            self._tail_terms, self._tail_slots = np.empty(_SMALL_TAIL, np.int64), np.empty(_SMALL_TAIL, np.uint32)
            self._tail = 0
        return PostingsView(self._sorted, self._tail_terms[: self._tail], self._tail_slots[: self._tail])


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The ``slots`` and ``counts`` of each of ``terms``, from its start to the next term's."""

    terms: NDArray[np.int64]
    starts: NDArray[np.intp]
    slots: NDArray[np.uint32]
    counts: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.terms.nbytes + self.starts.nbytes + self.slots.nbytes + self.counts.nbytes

    def find(self, term: int) -> Found:
        at = int(self.terms.searchsorted(term))
        is_known = at < len(self.terms) and self.terms[at] == term
        own = slice(self.starts[at], self.starts[at + 1]) if is_known else slice(0)
        return self.slots[own].astype(np.intp), self.counts[own].astype(np.float32)

    def joined(self, tail_terms: NDArray[np.int64], tail_slots: NDArray[np.uint32]) -> _Sorted:
        """The postings with the tail merged in. Its slots are newer, so a stable sort by term keeps slots in order."""
        order = np.lexsort((tail_slots, tail_terms))
        terms, slots = tail_terms[order], tail_slots[order]
        pairs = _starts((terms[1:] != terms[:-1]) | (slots[1:] != slots[:-1]), len(terms))
        counts = np.minimum(np.diff(pairs, append=len(terms)), _MAX_COUNT).astype(np.uint8)
        terms = np.concatenate([np.repeat(self.terms, np.diff(self.starts)), terms[pairs]])
        order = np.argsort(terms, kind="stable")
        terms = terms[order]
        starts = _starts(terms[1:] != terms[:-1], len(terms))
        return _Sorted(
            terms[starts],
            np.append(starts, len(terms)),
            np.concatenate([self.slots, slots[pairs]])[order],
            np.concatenate([self.counts, counts])[order],
        )


def _starts(differs: NDArray[np.bool_], size: int) -> NDArray[np.intp]:
    """Where runs of equal values start among ``size``; ``differs`` is whether each but the first starts a new run."""
    return np.concatenate([np.arange(min(size, 1)), 1 + np.flatnonzero(differs)])


@dataclass(frozen=True, slots=True)
class PostingsView:
    """A snapshot of postings."""

    whole: _Sorted
    tail_terms: NDArray[np.int64]
    tail_slots: NDArray[np.uint32]
    _remembered: dict[Term, Found] = field(default_factory=dict[Term, Found])

    def find(self, term: Term) -> Found:
        """The slots that hold ``term`` in any of its forms, and how often (at most 255 times).

        A query looks up each term several times, so recent results are kept.
        """
        known = self._remembered.get(term)  # another thread may clear it at any time
        if known is not None:
            return known
        found: list[Found] = []
        for form in (term,) if isinstance(term, str) else term:
            slots, counts = self.whole.find(hash(form))
            waiting = self.tail_slots[self.tail_terms == hash(form)]
            if len(waiting):
                late_slots, late_counts = np.unique(waiting.astype(np.intp), return_counts=True)
                late = np.minimum(late_counts, _MAX_COUNT).astype(np.float32)
                slots, counts = np.concatenate([slots, late_slots]), np.concatenate([counts, late])
            found.append((slots, counts))
        slots, counts = found[0]
        if len(found) > 1:  # if a slot holds several forms, the most frequent one counts
            slots, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
            order = np.lexsort((counts, slots))
            slots, counts = slots[order], counts[order]
            is_last = np.ones(len(slots), np.bool_)
            is_last[:-1] = slots[1:] != slots[:-1]
            slots, counts = slots[is_last], counts[is_last]
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._remembered[term] = slots, counts
        return slots, counts


@dataclass(frozen=True)
class SessionOrder:
    """``slots`` by session and time, the number of each position's ``session``, and where sessions start."""

    slots: NDArray[np.intp]
    session: NDArray[np.intp]
    starts: NDArray[np.intp]
    _near: dict[int, Floats] = field(default_factory=dict[int, Floats], init=False)

    @classmethod
    def of(
        cls,
        slots: NDArray[np.intp],
        sessions: NDArray[np.int32],
        created: NDArray[np.float64],
        ranks: NDArray[np.uint32],
    ) -> SessionOrder:
        """The order of ``slots``; each slot without a session is a session of its own."""
        codes = np.where(sessions == SESSIONLESS, -1 - slots, sessions)
        by_session = np.lexsort((ranks, created, codes))
        codes = codes[by_session]
        is_start = np.ones(len(codes), np.bool_)
        is_start[1:] = codes[1:] != codes[:-1]
        return cls(slots[by_session], np.cumsum(is_start) - 1, np.flatnonzero(is_start))

    @classmethod
    def joined(cls, orders: Sequence[SessionOrder], sizes: Sequence[int]) -> SessionOrder:
        """The orders of several indexes, one after the other; ``sizes`` are their numbers of slots."""
        if len(orders) == 1:
            return orders[0]
        slots, sessions, turns = 0, 0, 0
        parts: list[tuple[NDArray[np.intp], ...]] = []
        for order, size in zip(orders, sizes, strict=True):
            parts.append((order.slots + slots, order.session + sessions, order.starts + turns))
            slots, sessions, turns = slots + size, sessions + len(order.starts), turns + len(order.slots)
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def only(self, positions: NDArray[np.intp]) -> SessionOrder:
        """The order of the sessions at ``positions``, each of which must be there as a whole."""
        starts = np.flatnonzero(np.diff(self.session[positions], prepend=-1))
        numbers = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(positions)))
        return SessionOrder(self.slots[positions], numbers, starts)

    @cached_property
    def alone(self) -> NDArray[np.bool_]:
        """Whether each position is a session of its own."""
        return (np.diff(self.starts, append=len(self.slots)) == 1)[self.session]

    def shifted(self, values: Floats, by: int) -> Floats:
        """For each position, the value ``by`` turns earlier in the session (later if negative); 0 if there is none."""
        result = np.zeros(len(values), values.dtype)
        distance = abs(by)
        if not 0 < distance < len(values):
            return result
        target, source = (result[by:], values[:-by]) if by > 0 else (result[:by], values[distance:])
        if distance not in self._near:  # whether the turn ``distance`` later is of the same session
            self._near[distance] = (self.session[distance:] == self.session[:-distance]).astype(np.float32)
        np.multiply(source, self._near[distance], out=target)
        return result

    def best(self, values: Floats) -> Floats:
        """For each position, a third of the sum of its session's three best values.

        Values equal to five decimals count once.
        """
        if not len(values):
            return values
        left = values.round(_DECIMALS)
        total = top = np.maximum.reduceat(left, self.starts)
        for _ in range(_BEST - 1):
            np.copyto(left, -np.inf, where=left == top[self.session])
            top = np.maximum.reduceat(left, self.starts)
            total = total + np.where(np.isfinite(top), top, 0)
        return (total / _BEST).astype(np.float32)[self.session]
