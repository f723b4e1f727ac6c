"""The postings and vectors of one scope, kept up to date change by change.

A key's new state takes a new slot and its old slot dies; the order of the slots is the order of the writes, so an index
that grew and one that was built afresh rank alike.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.documents import Change, Document

Floats = NDArray[np.float32]
K1: Final = 1.2
B: Final = 0.75
_INITIAL_CAPACITY: Final = 64
_BYTES_PER_SLOT: Final = 200
_BYTES_PER_POSTING: Final = 8


@dataclass(frozen=True, slots=True)
class CollectionStatistics:
    """What BM25 weighs terms by: number of documents, their total length, and each term's document frequency."""

    documents: int
    length: int
    frequency: Counter[str]

    @classmethod
    def of(cls, indexes: Iterable[ScopeIndex], terms: Sequence[str]) -> CollectionStatistics:
        """The statistics of all ``indexes`` together, for the terms of one query."""
        documents, length, frequency = 0, 0, Counter[str]()
        for index in indexes:
            documents += len(index)
            length += index.length
            frequency.update({term: index.document_frequency(term) for term in terms})
        return cls(documents, length, frequency)

    def idf(self, term: str) -> float:
        """Inverse document frequency, never negative (Robertson and Zaragoza 2009, with Lucene's + 1)."""
        found = self.frequency[term]
        return float(np.log1p((self.documents - found + 0.5) / (found + 0.5)))


class ScopeIndex:
    """Incremental index of one scope; vectors of any model but ``model`` are left out. Not safe for threads."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.head = 0
        self.length = 0
        self.keys: list[str] = []
        self.kinds: list[str] = []
        self._slots: dict[str, int] = {}
        self._texts: list[int] = []
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._size = 0
        self._posted = 0
        self.alive: NDArray[np.bool_] = np.zeros(_INITIAL_CAPACITY, dtype=np.bool_)
        self.created: NDArray[np.float64] = np.zeros(_INITIAL_CAPACITY, dtype=np.float64)
        self._lengths: Floats = np.zeros(_INITIAL_CAPACITY, dtype=np.float32)
        self._vectors: Floats | None = None
        self._has_vector: NDArray[np.bool_] = np.zeros(_INITIAL_CAPACITY, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> int:
        """How many slots there are, living and dead."""
        return self._size

    @property
    def is_sparse(self) -> bool:
        """Whether most slots are dead, so that building it afresh saves room and time."""
        return self._size > _INITIAL_CAPACITY and self._size > 2 * len(self._slots)

    @property
    def nbytes(self) -> int:
        """Memory in bytes, about."""
        vectors = 0 if self._vectors is None else self._vectors.nbytes
        return vectors + self._posted * _BYTES_PER_POSTING + self._size * _BYTES_PER_SLOT

    def update(self, changes: Iterable[Change]) -> None:
        """Applies ``changes`` in their order."""
        for change in changes:
            self.head = change.seq
            terms = change.document.current_terms if change.document else None
            slot = self._slots.get(change.key)
            same_text = slot is not None and terms is not None and self._texts[slot] == hash(terms)
            if not same_text or (slot is not None and self.kinds[slot] != change.kind):
                self._remove(change.key)
                slot = None if terms is None else self._add(change, terms)
            if slot is not None and change.document is not None:
                self._set_vector(slot, change.document)

    def document_frequency(self, term: str) -> int:
        """How many living documents hold ``term``."""
        found = self._postings.get(term)
        return 0 if found is None else int(np.count_nonzero(self.alive[_view(found[0])]))

    def bm25(self, terms: Sequence[str], statistics: CollectionStatistics) -> tuple[Floats, Floats]:
        """Per slot its BM25 score, and its coverage: the share of the query's idf that it matches, 0 to 1.

        Robertson and Zaragoza 2009, k1 1.2, b .75.
        """
        scores, coverage = np.zeros(self._size, np.float32), np.zeros(self._size, np.float32)
        mean_length = max(statistics.length / max(statistics.documents, 1), 1.0)
        weights = {term: statistics.idf(term) for term in dict.fromkeys(terms)}
        total = sum(weights.values())
        for term, weight in weights.items():
            if (found := self._postings.get(term)) is not None:
                slots, counts = _view(found[0]), _view(found[1]).astype(np.float32)
                norm = K1 * (1 - B + B * self._lengths[slots] / mean_length)
                scores[slots] += weight * counts * (K1 + 1) / (counts + norm)
                coverage[slots] += weight / total
        return scores, coverage

    def cosine(self, query: Floats) -> Floats:
        """Per slot the cosine of its vector and ``query`` (both of unit length); NaN where there is no vector."""
        scores = np.full(self._size, np.nan, np.float32)
        if self._vectors is not None and self._vectors.shape[1] == query.shape[0]:
            known = self._has_vector[: self._size]
            scores[known] = (self._vectors[: self._size] @ query)[known]
        return scores

    def _add(self, change: Change, terms: str) -> int:
        slot = self._size
        if slot == len(self.alive):
            self._grow()
        self._size += 1
        counts = Counter(terms.split())
        for term, count in counts.items():
            slots, frequencies = self._postings.setdefault(term, (array("I"), array("I")))
            slots.append(slot)
            frequencies.append(count)
        self._posted += len(counts)
        self.keys.append(change.key)
        self.kinds.append(change.kind)
        self._texts.append(hash(terms))
        self._slots[change.key] = slot
        self.alive[slot] = True
        self.created[slot] = change.created_at
        self._lengths[slot] = counts.total()
        self.length += counts.total()
        return slot

    def _remove(self, key: str) -> None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            self.alive[slot] = False
            self._has_vector[slot] = False
            self.length -= int(self._lengths[slot])

    def _set_vector(self, slot: int, document: Document) -> None:
        usable = document.vector is not None and document.model == self.model
        self._has_vector[slot] = usable
        if document.vector is None or not usable:
            return
        vector = np.frombuffer(document.vector, dtype=np.float32)
        if self._vectors is None:
            self._vectors = np.zeros((len(self.alive), len(vector)), np.float32)
        self._vectors[slot] = vector

    def _grow(self) -> None:
        self.alive, self.created = _doubled(self.alive), _doubled(self.created)
        self._lengths, self._has_vector = _doubled(self._lengths), _doubled(self._has_vector)
        if self._vectors is not None:
            self._vectors = _doubled(self._vectors)


def _view(values: array[int]) -> NDArray[np.uint32]:
    return np.array(values, dtype=np.uint32)


def _doubled(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values, np.zeros_like(values)])
