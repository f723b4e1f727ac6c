"""The index of one scope (a namespace): arrays that only grow, read through immutable views.

A key's new state takes a new slot, and its old slot dies. A slot records the sequence numbers of the write that ended
it and of the write that gave it vectors. A view is therefore a number of slots and a sequence number: any number of
threads share it without a lock while one writer continues. Ranking does not depend on the order of slots, so an index
that grew ranks like one built at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.analysis import ANALYZER, analyze
from inference_core.retrieval.columns import (
    NEVER,
    SESSIONLESS,
    ColumnName,
    Columns,
    Postings,
    PostingsView,
    SessionOrder,
)
from inference_core.retrieval.documents import NO_EPOCH, Change, DocumentMetadata, Epoch, Term
from inference_core.retrieval.query import only_asks
from inference_core.retrieval.vectors import Floats, Vectors, VectorsView, is_packed

K1: Final = 1.2
B: Final = 0.75
_SPARSE_SLOTS: Final = 64
_BYTES_PER_SLOT: Final = 250
"""An estimate: the key, its dictionary entry, and what views derive from it."""
_OTHERS: Final = 10
"""Coverage counts so many more texts than there are, so that in a store of one text its words do not seem common."""
_NO_SLOT: Final = -1
_UNEMBEDDED: Final = 0


@dataclass(frozen=True, slots=True)
class CollectionStatistics:
    """BM25's statistics: number of documents, their total length in terms, and each term's document frequency."""

    documents: int
    length: int
    frequency: Mapping[Term, int]

    @classmethod
    def of(cls, views: Iterable[ScopeView], terms: Sequence[Term]) -> CollectionStatistics:
        """The statistics over all ``views``, for the terms of one query."""
        held = [view for view in views if len(view)]
        frequency = {term: sum(view.document_frequency(term) for view in held) for term in terms}
        return cls(sum(map(len, held)), sum(view.length for view in held), frequency)

    def idf(self, term: Term, others: int = 0) -> float:
        """Inverse document frequency, never negative (Robertson and Zaragoza 2009, with Lucene's + 1).

        It is computed as if there were ``others`` more documents without the term.
        """
        found = self.frequency[term]
        return math.log1p((self.documents + others - found + 0.5) / (found + 0.5))


@dataclass(frozen=True)
class ScopeView:
    """A scope as of its write number ``seq``. Safe to share between threads.

    ``keys`` and the arrays of ``columns`` have at least ``slots`` entries. ``length`` is the total length of all texts,
    in terms. ``len()`` is the number of texts. ``epoch`` is that of the database it was read from.
    """

    seq: int = 0
    epoch: Epoch = NO_EPOCH
    slots: int = 0
    length: int = 0
    keys: list[str] = field(default_factory=list[str])
    kind_names: list[str] = field(default_factory=list[str])
    columns: Columns = field(default_factory=lambda: Columns.empty().first(0))
    postings: PostingsView = field(default_factory=lambda: Postings().view())
    vectors: VectorsView = field(default_factory=lambda: Vectors().view())
    nbytes: int = 0
    _writer: ScopeIndex | None = None

    def __len__(self) -> int:
        return len(self.order.slots)

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """Which slots hold a living row, with or without a text."""
        # The writer may mark slots as dead at any time, but with sequence numbers above this view's.
        return self.columns.died > self.seq

    @cached_property
    def embedded(self) -> NDArray[np.bool_]:
        """Which slots have vectors."""
        return self.columns.embedded <= self.seq

    @cached_property
    def unembedded(self) -> NDArray[np.intp]:
        """The living slots whose text has no vectors."""
        return np.flatnonzero(self.alive & self.columns.has_text & ~self.embedded)

    @cached_property
    def order(self) -> SessionOrder:
        """The living slots with a text, by session and time."""
        slots = np.flatnonzero(self.alive & self.columns.has_text)
        columns = self.columns
        return SessionOrder.of(slots, columns.sessions[slots], columns.created[slots], columns.ranks[slots])

    @cached_property
    def by_age(self) -> NDArray[np.intp]:
        """The living slots, newest creation first; ties by key."""
        slots = np.flatnonzero(self.alive)
        newest_first = slots[np.argsort(-self.columns.created[slots], kind="stable")]
        created = self.columns.created[newest_first]
        if (created[1:] != created[:-1]).all():
            return newest_first
        keys: list[tuple[float, str, int]] = [
            (-self.columns.created.item(slot), self.keys[slot], slot) for slot in newest_first.tolist()
        ]
        return np.array([slot for _, _, slot in sorted(keys)], np.intp)

    @cached_property
    def important(self) -> list[int]:
        """The living slots of maximal importance, which pinned memories have."""
        return np.flatnonzero(self.alive & (self.columns.importance >= 1.0)).tolist()

    @cached_property
    def _by_kind(self) -> dict[frozenset[str], list[int]]:
        return {}

    def newest_of(self, kinds: frozenset[str] | None) -> Sequence[int] | NDArray[np.intp]:
        """The living slots of ``kinds`` (None: all), in the order of ``by_age``; cached."""
        if kinds is None:
            return self.by_age
        if kinds not in self._by_kind:
            self._by_kind[kinds] = self.by_age[self.is_of(kinds, self.by_age)].tolist()
        return self._by_kind[kinds]

    def in_order(self, column: ColumnName) -> NDArray[Any]:
        """A column of the texts, in ``order``."""
        return getattr(self.columns, column)[self.order.slots]

    def is_of(self, kinds: frozenset[str], slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """For each of ``slots``, whether its kind is one of ``kinds``."""
        return np.array([name in kinds for name in self.kind_names], np.bool_)[self.columns.kinds[slots]]

    def kind(self, slot: int) -> str:
        """The kind of the row in a slot."""
        return self.kind_names[self.columns.kinds.item(slot)]

    def slot_of(self, key: str) -> int | None:
        """The slot of the living row with this key; None if there is none."""
        slot = self._writer.newest(key, self.slots) if self._writer else _NO_SLOT
        return None if slot == _NO_SLOT or not self.alive[slot] else slot

    def slots_of(self, keys: Iterable[str]) -> list[int]:
        """The slots of those ``keys`` that have a text here."""
        found = (self.slot_of(key) for key in keys)
        return [slot for slot in found if slot is not None and self.columns.has_text[slot]]

    def document_frequency(self, term: Term) -> int:
        """How many texts contain ``term``, in any of its forms."""
        slots, _ = self.postings.find(term)
        return int(np.count_nonzero(self.alive[slots]))

    def holding(self, term: Term, most: int) -> list[int]:
        """The slots of the texts that contain ``term``: at most ``most + 1``, which tells that there are too many."""
        slots, _ = self.postings.find(term)
        living = slots[self.alive[slots]]
        return living[: most + 1].tolist()

    def bm25(self, terms: Sequence[Term], statistics: CollectionStatistics) -> tuple[Floats, Floats]:
        """For each slot, its BM25 score and its coverage: the share of the query's idf that it matches, 0 to 1.

        Robertson and Zaragoza 2009, k1 1.2, b .75.
        """
        scores, coverage = np.zeros(self.slots, np.float32), np.zeros(self.slots, np.float32)
        mean_length = max(statistics.length / max(statistics.documents, 1), 1.0)
        shares = {term: statistics.idf(term, _OTHERS) for term in terms}
        total = sum(shares.values())
        lengths = self.columns.lengths
        for term, share in shares.items():
            weight = statistics.idf(term)
            slots, counts = self.postings.find(term)
            norms = K1 * (1 - B) + (K1 * B / mean_length) * lengths[slots]
            scores[slots] += (weight * (K1 + 1)) * counts / (counts + norms)
            coverage[slots] += share / total
        return scores, coverage

    def products(self, queries: Mapping[int, Floats]) -> Floats:
        """The largest inner product of each slot's vectors and the query of their space; NaN for slots without."""
        return self.vectors.products(queries, self.embedded)


class ScopeIndex:
    """Writes the index of one scope, ignoring vectors of models other than ``model``. For one thread at a time.

    ``head`` is the number of the last write that was applied; ``view`` shows all writes up to the last `publish`. All
    of them must be of ``epoch``.
    """

    def __init__(self, model: str, epoch: Epoch = NO_EPOCH) -> None:
        self.model = model
        self.epoch = epoch
        self.head = 0
        self.view = ScopeView(epoch=epoch)
        self._slots = 0
        self._living = 0
        self._length = 0
        self._keys: list[str] = []
        self._newest: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._sessions: dict[str, int] = {}
        self._columns = Columns.empty()
        self._vectors = Vectors()
        self._postings = Postings()

    @property
    def is_sparse(self) -> bool:
        """Whether most slots are dead, so that a new index would save memory and time."""
        return self._slots > _SPARSE_SLOTS and self._slots > 2 * self._living

    def update(self, changes: Iterable[Change]) -> ScopeView:
        """Applies ``changes`` in their order and publishes them."""
        self.apply(changes)
        return self.publish()

    def apply(self, changes: Iterable[Change]) -> None:
        """Applies ``changes`` in their order; no view shows them yet."""
        added = _Added(self._slots)
        head = self.head
        for change in changes:
            head = change.seq
            slot = added.newest.get(change.key, self._newest.get(change.key))
            if slot is not None and (slot >= self._slots or slot in added.vectors):
                self._settle(added)  # this key has changed before in the same batch
            if slot is not None and self._columns.died[slot] != NEVER:
                before, slot = slot, None
            else:
                before = _NO_SLOT if slot is None else slot
            if not change.is_there:
                self._kill(slot, change.seq)
                continue
            terms = packed = None
            if document := change.document:  # another analysis, or another model, may have made what is stored
                terms = document.terms if document.analyzer == ANALYZER else " ".join(analyze(document.text))
                is_ours = document.model == self.model and is_packed(document.vector or b"")
                packed = document.vector if is_ours else None
            asks = document is not None and only_asks(document.text)
            text_mark = hash((terms, asks, change.kind, change.created_at, document and document.situation))
            vector_mark = (hash(packed) or 1) if packed else _UNEMBEDDED
            known = _UNEMBEDDED if slot is None else self._columns.vector_marks.item(slot)
            if slot is None or self._columns.text_marks[slot] != text_mark or known not in (_UNEMBEDDED, vector_mark):
                self._kill(slot, change.seq)
                known = _UNEMBEDDED
                kind = self._kinds.setdefault(change.kind, len(self._kinds))
                name = document.situation.session if document else ""
                session = self._sessions.setdefault(name, len(self._sessions)) if name else SESSIONLESS
                slot = added.put(change, terms, text_mark, (kind, session), before, asks=asks)
            else:
                self._columns.written[slot] = change.seq  # what is not ranked may have changed
            if packed and not known:
                added.vectors[slot] = (change.seq, vector_mark, packed)
        self._settle(added)
        self.head = head  # last, so that changes that failed are applied again

    def publish(self) -> ScopeView:
        """A view of everything applied."""
        postings = self._postings.view()
        self.view = ScopeView(
            seq=self.head,
            epoch=self.epoch,
            slots=self._slots,
            length=self._length,
            keys=self._keys,
            kind_names=list(self._kinds),
            columns=self._columns.first(self._slots),
            postings=postings,
            vectors=self._vectors.view(),
            nbytes=self._columns.nbytes + self._vectors.nbytes + self._postings.nbytes + _BYTES_PER_SLOT * self._slots,
            _writer=self,
        )
        return self.view

    def newest(self, key: str, slots: int) -> int:
        """The newest of the first ``slots`` slots that belongs to ``key``, else -1. Safe to call from any thread."""
        slot = self._newest.get(key, _NO_SLOT)
        while slot >= slots:
            slot = self._columns.before.item(slot)
        return slot

    def _kill(self, slot: int | None, seq: int) -> None:
        """Marks a slot as ended by the write number ``seq``."""
        if slot is None:
            return
        self._columns.died[slot] = seq
        self._living -= 1
        self._length -= int(self._columns.lengths[slot])
        if self._columns.embedded[slot] != NEVER:
            self._vectors.forget(slot)

    def _settle(self, added: _Added) -> None:
        """Moves the ``added`` slots into the arrays."""
        end = self._slots + len(added.slots)
        if added.slots:
            self._columns.extend(self._slots, added.slots)
            self._keys += added.newest
            self._postings.add(range(self._slots, end), added.words)
            self._living += len(added.slots)
            self._length += sum(map(len, added.words))
            self._slots = end
            # After the arrays: readers follow a key to its newest slot, and from there to the one before.
            self._newest |= added.newest
        for slot, (_, mark, _) in added.vectors.items():
            self._columns.vector_marks[slot] = mark
        for slot in self._vectors.set({slot: packed for slot, (_, _, packed) in added.vectors.items()}):
            self._columns.embedded[slot] = added.vectors[slot][0]
        added.reset(self._slots)


class _Added:
    """New slots that are not in the arrays yet, each with a different key."""

    def __init__(self, start: int) -> None:
        self.reset(start)

    def reset(self, start: int) -> None:
        """Empties it."""
        self._start = start
        self.slots: list[tuple[Any, ...]] = []
        self.words: list[list[str]] = []
        self.newest: dict[str, int] = {}
        self.vectors: dict[int, tuple[int, int, bytes]] = {}

    def put(
        self, change: Change, terms: str | None, mark: int, codes: tuple[int, int], before: int, *, asks: bool
    ) -> int:
        """Assigns the next slot to the row of ``change``."""
        slot = self._start + len(self.slots)
        words = (terms or "").split()
        created = change.created_at
        rank = crc32(change.key.encode(errors="surrogatepass"))
        _, by_assistant, happened, importance = change.document.situation if change.document else DocumentMetadata()
        self.slots.append(
            (
                *(change.seq, NEVER, NEVER, created, len(words), rank, *codes),
                *(by_assistant, created if happened is None else happened, importance, asks),
                *(terms is not None, before, mark, _UNEMBEDDED),
            )
        )
        self.words.append(words)
        self.newest[change.key] = slot
        return slot
