"""The inverted index: for each term the slots whose documents hold it, and how often.

A term is known by its 64-bit hash, so that no dictionary of all words has to be filled when an index is built. Most
postings are sorted; what was added last waits unsorted in a tail, which is small enough to be searched as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.documents import Term
from inference_core.retrieval.vectors import Floats

_SMALL_TAIL: Final = 512
_TAIL_SHARE: Final = 8
_MAX_COUNT: Final = 255
_REMEMBERED: Final = 64
_BYTES_IN_TAIL: Final = 12


class Postings:
    """Terms of slots, of which each is added once and as a whole."""

    def __init__(self) -> None:
        self._remembered: dict[Term, tuple[NDArray[np.intp], Floats]] = {}
        self._tail_terms = array("q")
        self._tail_slots = array("I")
        self._terms: NDArray[np.int64] = np.empty(0, np.int64)
        self._starts: NDArray[np.intp] = np.zeros(1, np.intp)
        self._slots: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._counts: NDArray[np.uint8] = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        held = (self._terms, self._starts, self._slots, self._counts)
        return sum(part.nbytes for part in held) + _BYTES_IN_TAIL * len(self._tail_terms)

    def add(self, slot: int, words: Sequence[str]) -> None:
        """Adds the terms of a slot, with repetitions."""
        self._remembered.clear()
        self._tail_terms.extend(map(hash, words))
        self._tail_slots.extend(array("I", [slot]) * len(words))

    def settle(self) -> None:
        """Sorts what was added, if it is so much that searching it takes time."""
        if len(self._tail_terms) > max(_SMALL_TAIL, len(self._slots) // _TAIL_SHARE):
            self._sort()

    def find(self, term: Term) -> tuple[NDArray[np.intp], Floats]:
        """The slots that hold ``term`` in any of its forms, each once, and how often (at most 255 times).

        A query asks for each term several times, so the last ones are remembered.
        """
        if term not in self._remembered:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[term] = self._look_up(term)
        return self._remembered[term]

    def _look_up(self, term: Term) -> tuple[NDArray[np.intp], Floats]:
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

    def _find(self, term: int) -> tuple[NDArray[np.intp], Floats]:
        at = int(self._terms.searchsorted(term))
        is_known = at < len(self._terms) and self._terms[at] == term
        own = slice(self._starts[at], self._starts[at + 1]) if is_known else slice(0)
        slots, counts = self._slots[own].astype(np.intp), self._counts[own].astype(np.float32)
        if not self._tail_terms:
            return slots, counts
        waiting = np.frombuffer(self._tail_slots, np.uint32)[np.frombuffer(self._tail_terms, np.int64) == term]
        if not len(waiting):
            return slots, counts
        late_slots, late_counts = np.unique(waiting.astype(np.intp), return_counts=True)
        late = np.minimum(late_counts, _MAX_COUNT).astype(np.float32)
        return np.concatenate([slots, late_slots]), np.concatenate([counts, late])

    def _sort(self) -> None:
        """Joins the tail with the rest. Slots of the tail are younger, so a stable sort by term keeps them in order."""
        terms, slots, counts = _counted(np.array(self._tail_terms), np.array(self._tail_slots))
        terms = np.concatenate([np.repeat(self._terms, np.diff(self._starts)), terms])
        order = np.argsort(terms, kind="stable")
        self._slots = np.concatenate([self._slots, slots])[order]
        self._counts = np.concatenate([self._counts, counts])[order]
        self._terms, starts = np.unique(terms[order], return_index=True)
        self._starts = np.append(starts, len(terms))
        self._tail_terms, self._tail_slots = array("q"), array("I")


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
