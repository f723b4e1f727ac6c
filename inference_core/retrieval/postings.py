"""The inverted index: for each term the slots whose documents hold it, and how often.

A term is known by its 64-bit hash, so that no dictionary of all words has to be filled when an index is built. Most
postings are sorted, in arrays that are replaced as a whole; what was added last waits unsorted in a tail, which is
small enough to be searched as it is. A view is the sorted arrays and a length of the tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.columns import grown
from inference_core.retrieval.documents import Term
from inference_core.retrieval.vectors import Floats

_SMALL_TAIL: Final = 1_024
_TAIL_SHARE: Final = 16
"""The tail is sorted in when it is this part of the whole: searching it stays cheap, and so does sorting, as one
pass over two sorted runs."""
_MAX_COUNT: Final = 255
_REMEMBERED: Final = 64
Found = tuple[NDArray[np.intp], Floats]


class Postings:
    """Terms of slots, of which each is added once and as a whole. Written by one thread."""

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
        """What is there now; sorts what was added, if it is so much that searching it takes time."""
        if self._tail > max(_SMALL_TAIL, len(self._sorted.slots) // _TAIL_SHARE):
            self._sorted = self._sorted.joined(self._tail_terms[: self._tail], self._tail_slots[: self._tail])
            # New arrays, as views may still search the old tail.
            self._tail_terms, self._tail_slots = np.empty(_SMALL_TAIL, np.int64), np.empty(_SMALL_TAIL, np.uint32)
            self._tail = 0
        return PostingsView(self._sorted, self._tail_terms[: self._tail], self._tail_slots[: self._tail])


@dataclass(frozen=True, slots=True)
class _Sorted:
    """``slots`` and ``counts`` of each of ``terms``, from its start to the next one's."""

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
        """With a tail, whose slots are younger, so that a stable sort by term keeps a term's slots in order."""
        terms, slots, counts = _counted(tail_terms, tail_slots)
        terms = np.concatenate([np.repeat(self.terms, np.diff(self.starts)), terms])
        order = np.argsort(terms, kind="stable")
        terms = terms[order]
        is_first = np.ones(len(terms), np.bool_)
        is_first[1:] = terms[1:] != terms[:-1]
        starts = np.flatnonzero(is_first)
        return _Sorted(
            terms[starts],
            np.append(starts, len(terms)),
            np.concatenate([self.slots, slots])[order],
            np.concatenate([self.counts, counts])[order],
        )


@dataclass(frozen=True, slots=True)
class PostingsView:
    """Postings as they were."""

    whole: _Sorted
    tail_terms: NDArray[np.int64]
    tail_slots: NDArray[np.uint32]
    _remembered: dict[Term, Found] = field(default_factory=dict[Term, Found])

    def find(self, term: Term) -> Found:
        """The slots that hold ``term`` in any of its forms, each once, and how often (at most 255 times).

        A query asks for each term several times, so the last ones are remembered.
        """
        found = self._remembered.get(term)
        if found is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            found = self._remembered[term] = self._look_up(term)
        return found

    def _look_up(self, term: Term) -> Found:
        forms = (term,) if isinstance(term, str) else term
        found = [self._find(hash(form)) for form in forms]
        if len(found) == 1:
            return found[0]
        slots, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((counts, slots))
        slots, counts = slots[order], counts[order]
        is_last = np.ones(len(slots), np.bool_)
        is_last[:-1] = slots[1:] != slots[:-1]
        return slots[is_last], counts[is_last]

    def _find(self, term: int) -> Found:
        slots, counts = self.whole.find(term)
        waiting = self.tail_slots[self.tail_terms == term]
        if not len(waiting):
            return slots, counts
        late_slots, late_counts = np.unique(waiting.astype(np.intp), return_counts=True)
        late = np.minimum(late_counts, _MAX_COUNT).astype(np.float32)
        return np.concatenate([slots, late_slots]), np.concatenate([counts, late])


def _counted(
    terms: NDArray[np.int64], slots: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint8]]:
    """Each pair of term and slot once, by slot within a term, and how often it was there."""
    order = np.lexsort((slots, terms))
    terms, slots = terms[order], slots[order]
    is_first = np.ones(len(terms), np.bool_)
    is_first[1:] = (terms[1:] != terms[:-1]) | (slots[1:] != slots[:-1])
    starts = np.flatnonzero(is_first)
    counts = np.minimum(np.diff(starts, append=len(terms)), _MAX_COUNT)
    return terms[starts], slots[starts], counts.astype(np.uint8)
