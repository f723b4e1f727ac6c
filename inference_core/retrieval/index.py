"""The postings and vectors of one scope, kept up to date change by change.

A key's new state takes a new slot and its old slot dies. Nothing that ranks depends on the order of the slots, so an
index that grew and one that was built afresh rank alike.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.documents import Change

Floats = NDArray[np.float32]
K1: Final = 1.2
B: Final = 0.75
_INITIAL_CAPACITY: Final = 64
_BYTES_PER_SLOT: Final = 200
_BYTES_PER_POSTING: Final = 4


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


_NewSlot = tuple[int, float, int, int]
"""Slot, creation time, length in terms, rank."""


class ScopeIndex:
    """Incremental index of one scope; vectors of any model but ``model`` are left out. Not safe for threads.

    ``alive`` and ``created`` have an entry for each slot; ``keys`` and ``kinds`` too.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.head = 0
        self.length = 0
        self.keys: list[str] = []
        self.kinds: list[str] = []
        self._slots: dict[str, int] = {}
        self._states: list[int] = []
        self._postings: defaultdict[str, array[int]] = defaultdict(partial(array, "I"))
        self._posted = 0
        self._columns = _Columns()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> int:
        """How many slots there are, living and dead."""
        return len(self.keys)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which slots hold a document that is there."""
        return self._columns.alive[: self.slots]

    @property
    def created(self) -> NDArray[np.float64]:
        """When each slot's document was created, in seconds since 1970."""
        return self._columns.created[: self.slots]

    @property
    def ranks(self) -> NDArray[np.uint32]:
        """A number of each slot's key, the same in every process, that decides between equals."""
        return self._columns.ranks[: self.slots]

    @property
    def is_sparse(self) -> bool:
        """Whether most slots are dead, so that building it afresh saves room and time."""
        return self.slots > _INITIAL_CAPACITY and self.slots > 2 * len(self)

    @property
    def nbytes(self) -> int:
        """Memory in bytes, about."""
        return self._columns.nbytes + self._posted * _BYTES_PER_POSTING + self.slots * _BYTES_PER_SLOT

    def update(self, changes: Iterable[Change]) -> None:
        """Applies ``changes`` in their order."""
        added: list[_NewSlot] = []
        vectors: list[tuple[int, bytes | None]] = []
        for change in changes:
            self.head = change.seq
            document = change.document
            terms = None if document is None else document.current_terms
            slot = self._slots.get(change.key)
            state = hash((terms, change.kind, change.created_at))
            if slot is None or terms is None or self._states[slot] != state:
                if slot is not None:
                    self._columns.extend(added)
                    added = []
                    self._remove(change.key, slot)
                if terms is None:
                    continue
                slot = self._add(change, terms, state, added)
            usable = document is not None and document.model == self.model
            vectors.append((slot, document.vector if document is not None and usable else None))
        self._columns.extend(added)
        self._columns.set_vectors(vectors)

    def document_frequency(self, term: str) -> int:
        """How many living documents hold ``term``."""
        slots, _ = self._posting_list(term)
        return int(np.count_nonzero(self.alive[slots]))

    def bm25(self, terms: Sequence[str], statistics: CollectionStatistics) -> tuple[Floats, Floats]:
        """Per slot its BM25 score, and its coverage: the share of the query's idf that it matches, 0 to 1.

        Robertson and Zaragoza 2009, k1 1.2, b .75.
        """
        scores, coverage = np.zeros(self.slots, np.float32), np.zeros(self.slots, np.float32)
        mean_length = max(statistics.length / max(statistics.documents, 1), 1.0)
        weights = {term: statistics.idf(term) for term in dict.fromkeys(terms)}
        total = sum(weights.values())
        for term, weight in weights.items():
            slots, counts = self._posting_list(term)
            norm = K1 * (1 - B + B * self._columns.lengths[slots] / mean_length)
            scores[slots] += weight * counts * (K1 + 1) / (counts + norm)
            coverage[slots] += weight / total
        return scores, coverage

    def cosine(self, query: Floats) -> Floats:
        """Per slot the cosine of its vector and ``query`` (both of unit length); NaN where there is no vector."""
        return self._columns.cosine(query)[: self.slots]

    def _posting_list(self, term: str) -> tuple[NDArray[np.intp], Floats]:
        """The slots whose documents hold ``term``, dead ones too, and how often each does."""
        if term not in self._postings:
            return np.empty(0, np.intp), np.empty(0, np.float32)
        slots, counts = np.unique(np.array(self._postings[term], np.intp), return_counts=True)
        return slots, counts.astype(np.float32)

    def _add(self, change: Change, terms: str, state: int, added: list[_NewSlot]) -> int:
        slot = self.slots
        words = terms.split()
        for word in words:
            self._postings[word].append(slot)
        self._posted += len(words)
        self.keys.append(change.key)
        self.kinds.append(change.kind)
        self._states.append(state)
        self._slots[change.key] = slot
        self.length += len(words)
        added.append((slot, change.created_at, len(words), crc32(change.key.encode(errors="surrogatepass"))))
        return slot

    def _remove(self, key: str, slot: int) -> None:
        del self._slots[key]
        self.length -= self._columns.kill(slot)


class _Columns:
    """The numbers of each slot, in arrays that double when they are full."""

    def __init__(self) -> None:
        self.alive: NDArray[np.bool_] = np.zeros(_INITIAL_CAPACITY, np.bool_)
        self.created: NDArray[np.float64] = np.zeros(_INITIAL_CAPACITY, np.float64)
        self.lengths: Floats = np.zeros(_INITIAL_CAPACITY, np.float32)
        self.ranks: NDArray[np.uint32] = np.zeros(_INITIAL_CAPACITY, np.uint32)
        self._has_vector: NDArray[np.bool_] = np.zeros(_INITIAL_CAPACITY, np.bool_)
        self._vectors: Floats = np.zeros((_INITIAL_CAPACITY, 0), np.float32)

    @property
    def nbytes(self) -> int:
        return self._vectors.nbytes

    def extend(self, added: Sequence[_NewSlot]) -> None:
        """Fills new slots."""
        if not added:
            return
        slots, created, lengths, ranks = (np.array(column) for column in zip(*added, strict=True))
        while slots[-1] >= len(self.alive):
            self._grow()
        self.alive[slots], self.created[slots], self.lengths[slots], self.ranks[slots] = True, created, lengths, ranks

    def kill(self, slot: int) -> int:
        """Ends a slot's life; its length in terms."""
        self.alive[slot] = self._has_vector[slot] = False
        return int(self.lengths[slot])

    def set_vectors(self, vectors: Sequence[tuple[int, bytes | None]]) -> None:
        """Sets the vectors of living slots; None, or one of another size than the first, takes a vector away."""
        if not vectors:
            return
        size = self._vectors.shape[1] or next((len(blob) // 4 for _, blob in vectors if blob), 0)
        if self._vectors.shape[1] != size:
            self._vectors = np.zeros((len(self.alive), size), np.float32)
        last = dict(vectors)
        self._has_vector[list(last)] = False
        known = {slot: blob for slot, blob in last.items() if blob and len(blob) == 4 * size}
        if known:
            slots = list(known)
            self._vectors[slots] = np.frombuffer(b"".join(known.values()), np.float32).reshape(-1, size)
            self._has_vector[slots] = self.alive[slots]

    def cosine(self, query: Floats) -> Floats:
        scores = np.full(len(self.alive), np.nan, np.float32)
        if self._vectors.shape[1] == query.shape[0]:
            known = self._has_vector
            scores[known] = (self._vectors @ query)[known]
        return scores

    def _grow(self) -> None:
        self.alive, self.created = _doubled(self.alive), _doubled(self.created)
        self.lengths, self.ranks = _doubled(self.lengths), _doubled(self.ranks)
        self._has_vector, self._vectors = _doubled(self._has_vector), _doubled(self._vectors)


def _doubled(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values, np.zeros_like(values)])
