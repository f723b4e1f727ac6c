"""The postings and vectors of one scope, kept up to date change by change.

A key's new state takes a new slot and its old slot dies. Nothing that ranks depends on the order of the slots, so an
index that grew and one that was built afresh rank alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.analysis import ANALYZER, analyze
from inference_core.retrieval.columns import ColumnName, Columns, NewSlot
from inference_core.retrieval.documents import Change, Document, Term
from inference_core.retrieval.postings import Postings
from inference_core.retrieval.sessions import SESSIONLESS, SessionOrder
from inference_core.retrieval.vectors import Floats, is_packed

K1: Final = 1.2
B: Final = 0.75
_SPARSE_SLOTS: Final = 64
_BYTES_PER_SLOT: Final = 250


@dataclass(frozen=True, slots=True)
class CollectionStatistics:
    """What BM25 weighs terms by: number of documents, their total length, and each term's document frequency."""

    documents: int
    length: int
    frequency: Mapping[Term, int]

    @classmethod
    def of(cls, indexes: Iterable[ScopeIndex], terms: Sequence[Term]) -> CollectionStatistics:
        """The statistics of all ``indexes`` together, for the terms of one query."""
        held = [index for index in indexes if len(index)]
        frequency = {term: sum(index.document_frequency(term) for index in held) for term in terms}
        return cls(sum(map(len, held)), sum(index.length for index in held), frequency)

    def idf(self, term: Term) -> float:
        """Inverse document frequency, never negative (Robertson and Zaragoza 2009, with Lucene's + 1)."""
        found = self.frequency[term]
        return math.log1p((self.documents - found + 0.5) / (found + 0.5))


class ScopeIndex:
    """Incremental index of one scope; vectors of any model but ``model`` are left out. Not safe for threads.

    ``keys`` and ``kinds`` have an entry for each slot, and so have the arrays of ``columns``.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.head = 0
        self.length = 0
        self.keys: list[str] = []
        self.kinds: list[str] = []
        self.columns = Columns()
        self._slots: dict[str, int] = {}
        self._states: list[tuple[int, int | None]] = []
        self._kind_codes: dict[str, int] = {}
        self._sessions: dict[str, int] = {}
        self._postings = Postings()
        self._order: SessionOrder | None = None
        self._in_order: dict[ColumnName, NDArray[Any]] = {}
        self._nbytes: int | None = None

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> int:
        """How many slots there are, living and dead."""
        return len(self.keys)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which slots hold a document that is there."""
        return self.columns.alive[: self.slots]

    def in_order(self, column: ColumnName) -> NDArray[Any]:
        """A column of the living slots, by ``order``."""
        if column not in self._in_order:
            self._in_order[column] = getattr(self.columns, column)[self.order.slots]
        return self._in_order[column]

    def is_of(self, kinds: frozenset[str]) -> NDArray[np.bool_]:
        """Of the living slots, by ``order``, whether the kind is one of ``kinds``."""
        is_wanted = np.array([kind in kinds for kind in self._kind_codes], np.bool_)
        return is_wanted[self.in_order("kinds")]

    @property
    def is_sparse(self) -> bool:
        """Whether most slots are dead, so that building it afresh saves room and time."""
        return self.slots > _SPARSE_SLOTS and self.slots > 2 * len(self)

    @property
    def nbytes(self) -> int:
        """Memory in bytes, about."""
        if self._nbytes is None:
            self._nbytes = self.columns.nbytes + self._postings.nbytes + self.slots * _BYTES_PER_SLOT
        return self._nbytes

    @property
    def order(self) -> SessionOrder:
        """The living slots by session and time."""
        if self._order is None:
            slots = np.flatnonzero(self.alive)
            columns = self.columns
            self._order = SessionOrder.of(slots, columns.sessions[slots], columns.created[slots], columns.ranks[slots])
        return self._order

    def update(self, changes: Iterable[Change]) -> None:
        """Applies ``changes`` in their order."""
        added: list[NewSlot] = []
        vectors: dict[int, bytes] = {}
        for change in changes:
            self.head = change.seq
            document = change.document
            slot = self._slots.get(change.key)
            if document is None:
                if slot is not None:
                    self._remove(change.key, slot, added, vectors)
                continue
            vector = document.vector if document.model == self.model and is_packed(document.vector or b"") else None
            terms = _current_terms(document)
            state = _state(change, document, terms, vector)
            known = None if slot is None else self._states[slot]
            if slot is not None and known is not None and known[0] == state[0] and known[1] in (None, state[1]):
                self._states[slot] = state
            else:
                known = None
                if slot is not None:
                    self._remove(change.key, slot, added, vectors)
                slot = self._add(change, document, terms, state, added)
            if vector and (known is None or known[1] is None):
                vectors[slot] = vector
        self._settle(added, vectors)
        self._postings.settle()
        self._nbytes = None

    def document_frequency(self, term: Term) -> int:
        """How many living documents hold ``term``, in any of its forms."""
        slots, _ = self._postings.find(term)
        if len(self) == self.slots:
            return len(slots)
        return int(np.count_nonzero(self.alive[slots]))

    def holding(self, term: Term, most: int) -> list[int]:
        """The slots of the living documents that hold ``term``; of more than ``most``, some that are more."""
        slots, _ = self._postings.find(term)
        living = slots[self.alive[slots]]
        return living[: most + 1].tolist()

    def slots_of(self, keys: Iterable[str]) -> list[int]:
        """The slots of those of ``keys`` that have a document here."""
        return [self._slots[key] for key in keys if key in self._slots]

    def bm25(self, terms: Sequence[Term], statistics: CollectionStatistics) -> tuple[Floats, Floats]:
        """Per slot its BM25 score, and its coverage: the share of the query's idf that it matches, 0 to 1.

        Robertson and Zaragoza 2009, k1 1.2, b .75.
        """
        scores, coverage = np.zeros(self.slots, np.float32), np.zeros(self.slots, np.float32)
        mean_length = max(statistics.length / max(statistics.documents, 1), 1.0)
        weights = {term: statistics.idf(term) for term in terms}
        total = sum(weights.values())
        norms = K1 * (1 - B + B * self.columns.lengths[: self.slots] / mean_length)
        for term, weight in weights.items():
            slots, counts = self._postings.find(term)
            scores[slots] += weight * counts * (K1 + 1) / (counts + norms[slots])
            coverage[slots] += weight / total
        return scores, coverage

    def _add(
        self, change: Change, document: Document, terms: str, state: tuple[int, int | None], added: list[NewSlot]
    ) -> int:
        slot = self.slots
        words = terms.split()
        self._postings.add(slot, words)
        self.keys.append(change.key)
        self.kinds.append(change.kind)
        self._states.append(state)
        self._slots[change.key] = slot
        self.length += len(words)
        session, by_assistant, happened, importance = document.situation
        code = self._sessions.setdefault(session, len(self._sessions)) if session else SESSIONLESS
        added.append(
            NewSlot(
                slot=slot,
                created=change.created_at,
                length=len(words),
                rank=crc32(change.key.encode(errors="surrogatepass")),
                kind=self._kind_codes.setdefault(change.kind, len(self._kind_codes)),
                session=code,
                by_assistant=by_assistant,
                happened=change.created_at if happened is None else happened,
                importance=importance,
            )
        )
        return slot

    def _remove(self, key: str, slot: int, added: list[NewSlot], vectors: dict[int, bytes]) -> None:
        self._settle(added, vectors)
        del self._slots[key]
        self.length -= self.columns.kill(slot)

    def _settle(self, added: list[NewSlot], vectors: dict[int, bytes]) -> None:
        self._order = None
        self._in_order = {}
        self.columns.extend(added)
        self.columns.vectors.set(vectors)
        added.clear()
        vectors.clear()


def _current_terms(document: Document) -> str:
    """The document's terms, made again from its text if another analysis made them."""
    return document.terms if document.analyzer == ANALYZER else " ".join(analyze(document.text))


def _state(change: Change, document: Document, terms: str, vector: bytes | None) -> tuple[int, int | None]:
    text = hash((terms, change.kind, change.created_at, document.situation))
    return text, None if vector is None else hash(vector)
