"""The index of one scope (a namespace): arrays that only grow, read through immutable views.

A key's new state takes a new slot, and its old slot dies. A slot records the sequence numbers of the write that ended
it and of the write that gave it vectors. A view is therefore a number of slots and a sequence number: any number of
threads share it without a lock while one writer continues. Ranking does not depend on the order of slots, so an index
that grew ranks like one built at once.

The arrays of an index, and the order of its texts by session. Arrays only grow: a reader needs only their length.

Once a view shows a slot, its values never change, except for three sequence numbers: of the write that ended it, of the
write that gave it vectors, and of the row's last write. A new value is always larger than the sequence number of every
existing view, so no view sees the change.

In a `SessionOrder`, the turns of a session are adjacent, oldest first; a text without a session is alone. Spreading
evidence from neighbours is the context window of conversation search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Final, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.analysis import ANALYZER, analyze
from inference_core.retrieval.documents import NO_EPOCH, Change, DocumentMetadata, Epoch, Term
from inference_core.retrieval.query import only_asks
from inference_core.retrieval.vectors import SPACES, Estimate, Floats, Vectors, VectorsView, grown, is_packed

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
        """Adds the terms of each slot, with repetitions. The slots ascend, and come behind all before."""
        lengths = list(map(len, words))
        start, self._tail = self._tail, self._tail + sum(lengths)
        if self._tail > len(self._tail_terms):
            self._tail_terms = grown(self._tail_terms, self._tail)
            self._tail_slots = grown(self._tail_slots, self._tail)
        hashes = map(hash, chain.from_iterable(words))
        self._tail_terms[start : self._tail] = np.fromiter(hashes, np.int64, self._tail - start)
        self._tail_slots[start : self._tail] = np.repeat(np.array(slots, np.uint32), lengths)

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
        """The postings with the tail merged in. Its slots are newer and ascend: a stable sort keeps their order."""
        order = np.argsort(tail_terms, kind="stable")
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
        """The order of ``slots``, which ascend; each slot without a session is a session of its own."""
        if (sessions == SESSIONLESS).all():
            return cls.flat(slots)
        codes = np.where(sessions == SESSIONLESS, -1 - slots, sessions)
        by_session = np.lexsort((ranks, created, codes))
        codes = codes[by_session]
        is_start = np.ones(len(codes), np.bool_)
        is_start[1:] = codes[1:] != codes[:-1]
        return cls(slots[by_session], np.cumsum(is_start) - 1, np.flatnonzero(is_start))

    @classmethod
    def flat(cls, slots: NDArray[np.intp]) -> SessionOrder:
        """``slots`` as they stand, each a session of its own."""
        numbers = np.arange(len(slots))
        return cls(slots, numbers, numbers)

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
        if self.is_flat:
            return SessionOrder.flat(self.slots[positions])
        starts = np.flatnonzero(np.diff(self.session[positions], prepend=-1))
        numbers = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(positions)))
        return SessionOrder(self.slots[positions], numbers, starts)

    @property
    def is_flat(self) -> bool:
        """Whether every position is a session of its own."""
        return len(self.starts) == len(self.slots)

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
        """For each position, of which there are some, a third of the sum of its session's three best values.

        Values equal to five decimals count once.
        """
        left = values.round(_DECIMALS)
        total = top = np.maximum.reduceat(left, self.starts)
        for _ in range(_BEST - 1):
            np.copyto(left, -np.inf, where=left == top[self.session])
            top = np.maximum.reduceat(left, self.starts)
            total = total + np.where(np.isfinite(top), top, 0)
        return (total / _BEST).astype(np.float32)[self.session]


K1: Final = 1.2
B: Final = 0.75
_SPARSE_SLOTS: Final = 64
_BYTES_PER_SLOT: Final = 250
"""An estimate: the key, its dictionary entry, and what views derive from it."""
_OTHERS: Final = 10
"""Coverage counts so many more texts than there are, so that in a store of one text its words do not seem common."""
_NO_SLOT: Final = -1
_UNEMBEDDED: Final = 0
_NOWHERE: Final = DocumentMetadata()
"""Of a row without a text."""


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
    def is_full(self) -> bool:
        """Whether every slot holds a living text."""
        return len(self) == self.slots

    @cached_property
    def spaces(self) -> NDArray[np.uint8]:
        """The space of the vectors of each slot; `SPACES` for dead ones, and for those without."""
        spaces = np.full(self.slots, SPACES, np.uint8)
        known = np.flatnonzero(self.embedded & self.alive)
        spaces[known] = self.vectors.spaces[known]
        return spaces

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
        return len(slots) if self.is_full else int(np.count_nonzero(self.alive[slots]))

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

    def estimated(self, space: int, query: Floats) -> Estimate:
        """The same for one space, about: what is given for slots without a living vector in it means nothing."""
        return self.vectors.estimated(space, query, self.spaces == space)


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

    @property
    def is_unmeasured(self) -> bool:
        """Whether `measure` would make searches quicker."""
        return self._vectors.is_unmeasured

    def measure(self) -> None:
        """Has its vectors searched by 8-bit codes from now on, and publishes that. Takes 4 ms for each 1,000 texts."""
        self._vectors.measure()
        self.publish()

    def update(self, changes: Iterable[Change]) -> ScopeView:
        """Applies ``changes`` in their order and publishes them."""
        self.apply(changes)
        return self.publish()

    def apply(self, changes: Iterable[Change]) -> None:
        """Applies ``changes`` in their order; no view shows them yet."""
        added = _Added()
        head = self.head
        for head, key, kind, created, document, is_there, _ in changes:
            slot = added.newest.get(key, self._newest.get(key))
            if slot is not None and (slot >= self._slots or slot in added.vectors):
                self._settle(added)  # this key has changed before in the same batch
                added = _Added()
            if slot is not None and self._columns.died[slot] != NEVER:
                before, slot = slot, None
            else:
                before = _NO_SLOT if slot is None else slot
            if not is_there:
                self._kill(slot, head)
                continue
            if document is None:
                terms, situation, asks, packed = None, _NOWHERE, False, None
            else:  # another analysis, or another model, may have made what is stored
                text, terms, analyzer, situation, model, packed, _ = document
                terms = terms if analyzer == ANALYZER else " ".join(analyze(text))
                asks = only_asks(text)
                if model != self.model or not is_packed(packed or b""):
                    packed = None
            text_mark = hash((terms, asks, kind, created, situation))
            vector_mark = (hash(packed) or 1) if packed else _UNEMBEDDED
            known = _UNEMBEDDED if slot is None else self._columns.vector_marks.item(slot)
            if slot is None or self._columns.text_marks[slot] != text_mark or known not in (_UNEMBEDDED, vector_mark):
                self._kill(slot, head)
                known = _UNEMBEDDED
                session, by_assistant, happened, importance = situation
                slot = self._slots + len(added.slots)
                words = terms.split() if terms else []
                added.slots.append(
                    (
                        head,
                        NEVER,
                        NEVER,
                        created,
                        len(words),
                        crc32(key.encode(errors="surrogatepass")),
                        self._kinds.setdefault(kind, len(self._kinds)),
                        self._sessions.setdefault(session, len(self._sessions)) if session else SESSIONLESS,
                        by_assistant,
                        created if happened is None else happened,
                        importance,
                        asks,
                        terms is not None,
                        before,
                        text_mark,
                        _UNEMBEDDED,
                    )
                )
                added.words.append(words)
                added.newest[key] = slot
            else:
                self._columns.written[slot] = head  # what is not ranked may have changed
            if packed and not known:
                added.vectors[slot] = (head, vector_mark, packed)
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


class _Added:
    """New slots that are not in the arrays yet, each with a different key; ``slots`` has their columns' values."""

    def __init__(self) -> None:
        self.slots: list[tuple[Any, ...]] = []
        self.words: list[list[str]] = []
        self.newest: dict[str, int] = {}
        self.vectors: dict[int, tuple[int, int, bytes]] = {}
