"""How vectors are stored and compared: a text's passages in half precision, its tokens in 8 bits, all of unit length.

A model may have several vector spaces: one for English texts, one for all others. Each text has vectors in one space,
and only vectors of one space are compared.

Sums of half-precision numbers in double precision are exact, so a mean does not depend on their order. Token vectors
serve late interaction: a text matches a query as well as its best token matches each token of the query (MaxSim;
Khattab and Zaharia, ColBERT, 2020).
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
PLAIN: Final = 0
"""The space of vectors of a model that has only one."""
MULTILINGUAL: Final = 1
"""The space of vectors of the local multilingual model."""
SPACES: Final = 2
_HEADER: Final = struct.Struct("<BBH")
"""Passages, space, dimensions. Older versions gave passages, at most 64, both first bytes: that reads as space 0."""
_MOST_BY_MATRIX: Final = 262_144
"""Up to this many multiplications, OpenBLAS computes a product in the caller's thread (interface/gemm.c)."""
_SCALE: Final = 127.0
_NO_SPREAD: Final = 1e-6
_TINY: Final = np.float32(1e-12)
_MANTISSA_BITS: Final = 13
"""The mantissa has so many bits more in single precision."""
_COPIED_SIGN: Final = np.int32(0x70000000)
_EXPONENT: Final = np.float32(2.0**112)
"""The exponents of single and of half precision count from 127 and from 15."""


_einsum: Final = partial(np.einsum, "ij,j->i")
_vecdot: Final[Callable[..., object]] = getattr(np, "vecdot", _einsum)
"""NumPy 2 has `vecdot`, which takes two thirds of einsum's time."""


Multiply = Callable[[NDArray[np.int8], NDArray[np.int8]], Any]
multiply_codes: Multiply | None = None
"""The products of rows of 8-bit numbers and a vector of them; None without simsimd, which is an extra."""
with suppress(ImportError):
    multiply_codes = import_module("simsimd").dot


def pack_vectors(vectors: Floats, space: int = PLAIN) -> bytes:
    """``vectors`` (passages, dimensions), all of one ``space``, as bytes."""
    return _HEADER.pack(len(vectors), space, vectors.shape[1]) + vectors.astype("<f2").tobytes()


def is_packed(packed: bytes) -> bool:
    """Whether ``packed`` is a valid result of `pack_vectors`."""
    return len(packed) >= _HEADER.size and len(packed) == _size_of(shape_of(packed))


@lru_cache(maxsize=1_024)
def _size_of(shape: bytes) -> int | None:
    """The bytes of packed vectors of a ``shape``; None if there are none of that shape."""
    rows, space, columns = _HEADER.unpack(shape)
    return _HEADER.size + 2 * rows * columns if rows > 0 and space < SPACES and columns > 0 else None


def shape_of(packed: bytes) -> bytes:
    """The part of ``packed`` that encodes the matrix's shape and space."""
    return packed[: _HEADER.size]


def space_and_dimensions(packed: bytes) -> bytes:
    """The part of ``packed`` vectors or token vectors that encodes what they can be compared with."""
    return packed[1 : _HEADER.size]


def space_of(packed: bytes) -> int:
    """The space of packed vectors, or of packed token vectors."""
    return _HEADER.unpack_from(packed)[1]


def unpack_vectors(packed: bytes) -> NDArray[np.float16]:
    """The matrix (passages, dimensions) given to `pack_vectors`, in half precision."""
    rows, _, columns = _HEADER.unpack_from(packed)
    return np.frombuffer(packed, "<f2", rows * columns, _HEADER.size).reshape(rows, columns)


def unpack_first_vectors(packed: list[bytes]) -> NDArray[np.float16]:
    """The first vector of each text (texts, dimensions); all must have the same shape."""
    columns = dimensions_of(packed[0])
    matrix = np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), -1)
    start = _HEADER.size
    return np.ascontiguousarray(matrix[:, start : start + 2 * columns]).view("<f2")


def as_floats(halves: NDArray[np.float16]) -> Floats:
    """``halves``, all of them finite, in single precision. `astype` takes six times as long: it converts one by one."""
    wide = np.left_shift(halves.view(np.int16), _MANTISSA_BITS, dtype=np.int32)  # the sign fills the upper half
    wide &= ~_COPIED_SIGN
    floats = wide.view(np.float32)
    floats *= _EXPONENT
    return floats


def inner_products(matrix: Floats, vector: Floats, into: Floats) -> None:
    """Writes ``matrix`` @ ``vector`` into ``into``, in this thread.

    Row by row, because the matrix-vector product of BLAS reads rows at half the speed of memory, and on a busy
    processor waits for its own threads.
    """
    _vecdot(matrix, vector, out=into)


def by_matrix(first: NDArray[np.int8], second: Floats) -> Floats:
    """``first`` @ ``second`` in this thread, in portions, because as floats ``first`` takes four times the memory."""
    rows = max(_MOST_BY_MATRIX // max(second.size, 1), 1)
    portions = [first[start : start + rows] for start in range(0, len(first), rows)]
    return np.concatenate([portion.astype(np.float32) @ second for portion in portions])


class Interaction(NamedTuple):
    """For each candidate text, the standardised evidence, and the mean best cosine of the query's tokens (0 to 1)."""

    evidence: Floats
    similarity: Floats


def pack_tokens(passages: Sequence[Floats], space: int = PLAIN) -> bytes:
    """The unit vectors of each passage's tokens (tokens, dimensions), all of one ``space``, packed as 8-bit numbers."""
    counts = [len(tokens) for tokens in passages]
    columns = passages[0].shape[1]
    joined = np.clip(np.rint(np.concatenate(list(passages)) * _SCALE), -127, 127).astype(np.int8)
    return _HEADER.pack(len(counts), space, columns) + np.array(counts, "<u2").tobytes() + joined.tobytes()


def interact(query: Floats, packed: Sequence[bytes], words: Sequence[int] = ()) -> Interaction:
    """How well each packed text (at least one) matches the tokens of ``query`` (tokens, dimensions).

    For each token, the best cosine in a passage; the mean over the tokens of each word, standardised over all passages;
    then the mean over the words. A text counts as its best passage. ``words`` holds the number of each token's word;
    tokens of one word are adjacent. By default each token is a word.
    """
    passages = [_HEADER.unpack_from(blob)[0] for blob in packed]
    ends = [_HEADER.size + 2 * count for count in passages]  # of the numbers of tokens
    sizes = b"".join([blob[_HEADER.size : end] for blob, end in zip(packed, ends, strict=True)])
    joined = b"".join([blob[end:] for blob, end in zip(packed, ends, strict=True)])
    vectors = np.frombuffer(joined, np.int8).reshape(-1, dimensions_of(packed[0]))
    counts = np.frombuffer(sizes, "<u2").astype(np.intp)
    starts, first = np.cumsum(counts) - counts, np.cumsum([0, *passages[:-1]])
    best = np.maximum.reduceat(by_matrix(vectors, query.T / _SCALE), starts, axis=0)
    if len(words):
        first_tokens = np.flatnonzero(np.diff(words, prepend=-1))
        best = np.add.reduceat(best, first_tokens, axis=1) / np.diff(first_tokens, append=len(words))
    spread = best.std(axis=0)
    standard = (best - best.mean(axis=0)) / np.where(spread > _NO_SPREAD, spread, 1.0)
    evidence = np.maximum.reduceat(standard.mean(axis=1), first)
    similarity = np.maximum.reduceat(best.mean(axis=1), first)
    return Interaction(evidence.astype(np.float32), np.clip(similarity, 0, 1).astype(np.float32))


def dimensions_of(packed: bytes) -> int:
    """The number of dimensions of packed vectors, or of packed token vectors."""
    return _HEADER.unpack_from(packed)[2]


# The vectors of an index.

_FEW: Final = 64
_BLOCK: Final = 2_048
"""Rows in a block of vectors. Further rows go into new blocks: nothing is copied, and at most one block is not full."""
LARGE: Final = 2 * _BLOCK
"""From so many slots on, first vectors are kept compact: fewer are ranked in full anyway."""
_WAITING: Final = 256
"""So many rows may be missing from the moments: a search multiplies them one by one."""
_SURE: Final = 6 / math.sqrt(12)
"""Six standard deviations of what rounding to whole numbers changes: of uniform errors, each up to one half."""


class Moments(NamedTuple):
    """Sums over vectors: their number, the sum of them, and that of their outer products (dimensions, dimensions).

    From these follow the mean and the deviation of the vectors' products with any query.
    """

    number: int
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def none(cls, size: int) -> Moments:
        """Of no vectors of ``size`` dimensions."""
        return cls(0, np.zeros(size), np.zeros((size, size)))

    def plus(self, sign: int, vectors: Floats) -> Moments:
        """With more ``vectors``, or without them where ``sign`` is -1."""
        wide = vectors.astype(np.float64)
        return Moments(
            self.number + sign * len(wide), self.total + sign * wide.sum(axis=0), self.squares + sign * (wide.T @ wide)
        )


class Estimate(NamedTuple):
    """Inner products with a query, each off by less than its margin; and of all that live, exactly: number and sums."""

    products: Floats
    margins: Floats
    number: int
    total: float
    squares: float


class Vectors:
    """Vectors in blocks of rows: the first of each slot and, separately, those of further passages with their slots.

    ``counts`` (spaces,) and ``totals`` (spaces, dimensions) are the number and the sum of living vectors by space.
    Written by one thread; readers share what `view` returns.
    """

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(SPACES, np.int64)
        self.totals: NDArray[np.float64] = np.zeros((SPACES, 0))
        self._spaces: NDArray[np.uint8] = np.zeros(_FEW, np.uint8)
        self._lives: NDArray[np.bool_] = np.zeros(_FEW, np.bool_)
        self._is_measured: NDArray[np.bool_] = np.zeros(_FEW, np.bool_)
        self._moments: dict[int, Moments] = {}
        self._first = _Blocks()
        self._further = _Blocks()
        self._owners: NDArray[np.int64] = np.zeros(0, np.int64)
        self._passages = 0

    @property
    def nbytes(self) -> int:
        """Memory of all blocks and moments, in bytes."""
        moments = sum(moments.squares.nbytes for moments in self._moments.values())
        return self._first.nbytes + self._further.nbytes + self._owners.nbytes + self._spaces.nbytes + moments

    @property
    def is_unmeasured(self) -> bool:
        """Whether `measure` would make searches quicker."""
        return bool(self._first.codes) and not self._moments

    def set(self, packed: Mapping[int, bytes]) -> list[int]:
        """Sets the vectors of slots that have none. Returns the slots that it set: it skips vectors of another size."""
        alike: dict[bytes, list[int]] = {}
        for slot, blob in sorted(packed.items()):
            alike.setdefault(shape_of(blob), []).append(slot)
        known: list[int] = []
        for slots in alike.values():
            space, size = space_of(packed[slots[0]]), dimensions_of(packed[slots[0]])
            if not self.totals.size:
                self.totals = np.zeros((SPACES, size))
            if size != self.totals.shape[1]:
                continue
            known += slots
            if slots[-1] >= len(self._spaces):
                self._spaces = grown(self._spaces, slots[-1] + 1)
                self._lives = grown(self._lives, len(self._spaces))
                self._is_measured = grown(self._is_measured, len(self._spaces))
            self._spaces[slots] = space
            self._lives[slots] = True
            first, compact = unpack_first_vectors([packed[slot] for slot in slots]), multiply_codes is not None
            self._count(1, space, self._first.put(slots, first, compact=compact and slots[-1] >= LARGE))
            for slot in slots:
                further = unpack_vectors(packed[slot])[1:]
                if not len(further):
                    break  # none of them has any, as all have the same shape
                start, self._passages = self._passages, self._passages + len(further)
                if self._passages > len(self._owners):
                    self._owners = grown(self._owners, self._passages)
                self._owners[start : self._passages] = slot
                self._count(1, space, self._further.put(range(start, self._passages), further))
        return known

    def forget(self, slot: int) -> None:
        """Removes the vectors of ``slot`` from ``counts`` and ``totals``. Existing views keep showing them."""
        further = np.flatnonzero(self._owners[: self._passages] == slot)
        space = self._spaces.item(slot)
        self._lives[slot] = False
        self._count(-1, space, self._first.rows([slot]))
        if len(further):
            self._count(-1, space, self._further.rows(further))

    def measure(self) -> None:
        """Brings the moments up to date. Takes 4 ms for each 1,000 vectors that are new."""
        size = self.totals.shape[1]
        for sign, missing in ((1, self._lives & ~self._is_measured), (-1, self._is_measured & ~self._lives)):
            for space in range(SPACES):
                slots = np.flatnonzero(missing & (self._spaces == space))
                moments = self._moments.get(space) or Moments.none(size)
                for start in range(0, len(slots), _BLOCK):
                    moments = moments.plus(sign, self._first.rows(slots[start : start + _BLOCK]))
                    self._moments[space] = moments
        self._is_measured[:] = self._lives

    def view(self) -> VectorsView:
        """The present state."""
        waiting = np.zeros(0, np.intp)
        if self._moments:
            waiting = np.flatnonzero(self._lives != self._is_measured)
            if len(waiting) > _WAITING:
                self.measure()
                waiting = waiting[:0]
        return VectorsView(
            size=self.totals.shape[1],
            counts=self.counts.copy(),
            totals=self.totals.copy(),
            spaces=self._spaces,
            first=tuple(self._first.blocks),
            further=tuple(self._further.blocks),
            owners=self._owners[: self._passages],
            codes=tuple(self._first.codes),
            steps=self._first.steps,
            moments=dict(self._moments),
            waiting=waiting,
            signs=np.where(self._lives[waiting], 1.0, -1.0),
        )

    def _count(self, sign: int, space: int, vectors: Floats) -> None:
        self.counts[space] += sign * len(vectors)
        self.totals[space] += sign * vectors.sum(axis=0, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorsView:
    """A snapshot of vectors: ``size`` is their dimensions (0 for none), ``counts`` and ``totals`` cover living ones.

    ``spaces`` has the space of each slot that has vectors. Of compacted vectors there are also ``codes``, whole numbers
    by slot that count in ``steps``, and the ``moments`` of each space, which do not have the slots ``waiting`` yet (a
    sign of 1), or still have them (-1).
    """

    size: int
    counts: NDArray[np.int64]
    totals: NDArray[np.float64]
    spaces: NDArray[np.uint8]
    first: tuple[NDArray[Any], ...]
    further: tuple[NDArray[Any], ...]
    owners: NDArray[np.int64]
    codes: tuple[NDArray[np.int8], ...]
    steps: Floats
    moments: Mapping[int, Moments]
    waiting: NDArray[np.intp]
    signs: NDArray[np.float64]

    @property
    def held_spaces(self) -> frozenset[int]:
        """The spaces that living vectors are in."""
        return frozenset(np.flatnonzero(self.counts).tolist())

    def products(self, queries: Mapping[int, Floats], known: NDArray[np.bool_]) -> Floats:
        """The largest inner product of each slot's vectors and the query of their space; NaN for slots without either.

        ``known`` marks the slots that have vectors.
        """
        scores = np.full(len(known), np.nan, np.float32)
        held = self.held_spaces
        for space in [space for space in held & queries.keys() if len(queries[space]) == self.size]:
            if len(held) == 1:
                self._multiply(queries[space], scores)
            else:
                in_space = np.flatnonzero(self.spaces[: len(known)] == space)
                products = np.full(len(known), np.nan, np.float32)
                self._multiply(queries[space], products)
                scores[in_space] = products[in_space]
        if not known.all():
            scores[~known] = np.nan
        return scores

    def estimated(self, space: int, query: Floats, living: NDArray[np.bool_]) -> Estimate:
        """The largest inner product of each slot's vectors and ``query``, about, if they are in ``space``.

        ``living`` marks the slots of which that is true; what is given for others means nothing.
        """
        products, margins = np.zeros(len(living), np.float32), np.zeros(len(living), np.float32)
        if not self.codes:
            self._multiply(query, products)
            exact = products[living].astype(np.float64)
            return Estimate(products, margins, len(exact), float(exact.sum()), float(exact @ exact))
        step = max(float(np.abs(query).max()) / _SCALE, _TINY)
        code = np.rint(query / step).astype(np.int8)
        multiply = multiply_codes or _multiply_by_numpy
        for at, block in enumerate(self.codes):
            target = products[at * _BLOCK : (at + 1) * _BLOCK]
            target[: len(block)] = multiply(block[: len(target)], code)
        steps = self.steps[: len(living)]
        products[: len(steps)] *= steps * np.float32(step)
        margins[: len(steps)] = steps * np.float32(_SURE * float(np.linalg.norm(query))) + np.float32(_SURE * step)
        number, total, squares = self._sums(space, query)
        if len(self.owners):
            own = living[self.owners]
            slots = np.unique(self.owners[own])
            first, further = self.products_of(slots, query).astype(np.float64), np.empty(len(self.owners), np.float32)
            products[slots] = first
            _fill(further, self.further, query)
            np.maximum.at(products, self.owners[own], further[own])
            margins[slots] = 0
            best = products[slots].astype(np.float64)
            total += float(best.sum() - first.sum())
            squares += float(best @ best - first @ first)
        return Estimate(products, margins, number, total, squares)

    def _sums(self, space: int, query: Floats) -> tuple[int, float, float]:
        """How many first vectors live in ``space``, and the sums of their products with ``query`` and the squares."""
        moments, wide = self.moments.get(space) or Moments.none(self.size), query.astype(np.float64)
        own = self.spaces[self.waiting] == space
        late, signs = self.products_of(self.waiting[own], query).astype(np.float64), self.signs[own]
        return (
            moments.number + int(signs.sum()),
            float(moments.total @ wide + signs @ late),
            float(wide @ moments.squares @ wide + signs @ np.square(late)),
        )

    def products_of(self, slots: NDArray[np.intp], query: Floats) -> Floats:
        """The inner product of the first vector of each of ``slots`` and ``query``."""
        products = np.empty(len(slots), np.float32)
        inner_products(self.rows(slots), query, products)
        return products

    def _multiply(self, query: Floats, scores: Floats) -> None:
        """Writes the largest product of each slot's vectors and ``query`` into ``scores``."""
        _fill(scores, self.first, query)
        if len(self.owners):
            further = np.empty(len(self.owners), np.float32)
            _fill(further, self.further, query)
            np.maximum.at(scores, self.owners, further)

    def rows(self, slots: NDArray[np.intp]) -> Floats:
        """The first vector of each of ``slots``, all of which have vectors."""
        return _gathered(self.first, slots, self.size)


class _Blocks:
    """Numbered rows of one length, in blocks, in single precision until they are compacted.

    Views share the blocks: only a first block that is not full, and all if they are compacted, are ever replaced.
    Compacted rows have ``codes`` too: the row is about its code times its step.
    """

    def __init__(self) -> None:
        self.blocks: list[NDArray[Any]] = []
        self.codes: list[NDArray[np.int8]] = []
        self.steps: Floats = np.zeros(0, np.float32)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in (*self.blocks, *self.codes, self.steps))

    def put(self, numbers: Sequence[int], halves: NDArray[np.float16], *, compact: bool = False) -> Floats:
        """Sets the rows with these ``numbers``, which ascend, after making all ``compact``, if they are not yet.

        Returns them in single precision.
        """
        rows, where = as_floats(halves), np.asarray(numbers, np.intp)
        self._make_room(int(where[-1]) + 1, rows.shape[1])
        if compact and not self.codes:
            coded = [_coded(block) for block in self.blocks]
            self.blocks = [block.astype(np.float16) for block in self.blocks]  # which holds the same numbers
            self.codes, self.steps = [codes for codes, _ in coded], np.concatenate([steps for _, steps in coded])
        kept = halves if self.codes else rows
        for block, own, at in _by_block(where):
            self.blocks[block][at] = kept[own]
        if self.codes:
            codes, self.steps[where] = _coded(rows)
            for block, own, at in _by_block(where):
                self.codes[block][at] = codes[own]
        return rows

    def _make_room(self, room: int, size: int) -> None:
        if not self.blocks:
            self.blocks.append(np.zeros((_FEW, size), np.float32))
        if (first := len(self.blocks[0])) < min(room, _BLOCK):
            # Views keep the smaller block, which holds all the rows that they show.
            larger = np.zeros((min(_BLOCK, max(room, 2 * first)), size), np.float32)
            larger[:first] = self.blocks[0]
            self.blocks[0] = larger
        while len(self.blocks) * _BLOCK < room:
            self.blocks.append(np.zeros((_BLOCK, size), self.blocks[0].dtype))
            if self.codes:
                self.codes.append(np.zeros((_BLOCK, size), np.int8))
                self.steps = np.concatenate([self.steps, np.zeros(_BLOCK, np.float32)])

    def rows(self, numbers: Sequence[int] | NDArray[np.intp]) -> Floats:
        return _gathered(self.blocks, numbers, self.blocks[0].shape[1] if self.blocks else 0)


def _coded(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Whole numbers from -127 to 127 for each row, and the step that they count in."""
    steps = np.maximum(np.abs(rows).max(axis=1), _TINY) / np.float32(_SCALE)
    scaled = rows * (1 / steps)[:, np.newaxis]
    return np.rint(scaled, out=scaled).astype(np.int8), steps


def _multiply_by_numpy(rows: NDArray[np.int8], vector: NDArray[np.int8]) -> Floats:
    return by_matrix(rows, vector.astype(np.float32))


def _by_block(where: NDArray[np.intp]) -> Iterator[tuple[int, slice, NDArray[np.intp]]]:
    """Each block that has some of the rows ``where``, which ascend: which of them, and their places in the block."""
    first, last = int(where[0]) // _BLOCK, int(where[-1]) // _BLOCK
    ends = where.searchsorted(np.arange(first + 1, last + 2) * _BLOCK).tolist()
    for block, start, end in zip(range(first, last + 1), [0, *ends], ends, strict=False):
        if start < end:
            yield block, slice(start, end), where[start:end] - block * _BLOCK


def _gathered(blocks: Sequence[NDArray[Any]], numbers: Sequence[int] | NDArray[np.intp], size: int) -> Floats:
    if not len(numbers):
        return np.empty((0, size), np.float32)
    where = np.asarray(numbers, np.intp)
    order = None if (where[1:] >= where[:-1]).all() else np.argsort(where)
    rows = np.empty((len(where), size), blocks[0].dtype)
    for block, own, at in _by_block(where if order is None else where[order]):
        blocks[block].take(at, axis=0, out=rows[own], mode="clip")  # the default mode would make a copy first
    if order is None:
        return _read(rows)
    result = np.empty(rows.shape, np.float32)
    result[order] = _read(rows)
    return result


def _fill(scores: Floats, blocks: Sequence[NDArray[Any]], query: Floats) -> None:
    """Writes the product of each row of ``blocks`` and ``query`` into ``scores``, as far as both reach."""
    for number, block in enumerate(blocks):
        target = scores[number * _BLOCK : (number + 1) * _BLOCK]
        inner_products(_read(block[: len(target)]), query, target[: len(block)])


def _read(rows: NDArray[Any]) -> Floats:
    """``rows``, in half or in single precision."""
    floats: Floats = as_floats(rows) if rows.dtype == np.float16 else rows
    return floats


def grown(values: NDArray[Any], room: int) -> NDArray[Any]:
    """``values`` in an array of at least ``room`` entries, and at least a quarter larger than before."""
    result = np.zeros((max(room, len(values) + len(values) // 4), *values.shape[1:]), values.dtype)
    result[: len(values)] = values
    return result


def give_memory_back() -> None:
    """Returns freed memory to the system, as the C library keeps what many small objects leave behind."""
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
