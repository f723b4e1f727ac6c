"""How vectors are stored and compared: a text's passages in half precision, its tokens in 8 bits, all of unit length.

A model may have several vector spaces: one for English texts, one for all others. Each text has vectors in one space,
and only vectors of one space are compared.

Sums of half-precision numbers in double precision are exact, so a mean does not depend on their order. Token vectors
serve late interaction: a text matches a query as well as its best token matches each token of the query (MaxSim;
Khattab and Zaharia, ColBERT, 2020).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
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
_INFINITE: Final = np.int16(0x7C00)
"""The exponent of infinity, and of what is no number, in half precision."""
_MANTISSA_BITS: Final = 13
"""The mantissa has so many bits more in single precision."""
_COPIED_SIGN: Final = np.int32(0x70000000)
_EXPONENT: Final = np.float32(2.0**112)
"""The exponents of single and of half precision count from 127 and from 15."""


_einsum: Final = partial(np.einsum, "ij,j->i")
_vecdot: Final[Callable[..., object]] = getattr(np, "vecdot", _einsum)
"""NumPy 2 has `vecdot`, which takes two thirds of einsum's time."""


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
    """``halves`` in single precision. `astype` takes six times as long, as it converts number by number."""
    bits = halves.view(np.int16)
    if (bits & _INFINITE == _INFINITE).any():
        return halves.astype(np.float32)
    wide = bits.astype(np.int32)  # the sign fills the upper half
    wide <<= _MANTISSA_BITS
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


class Vectors:
    """Vectors in blocks of rows: the first of each slot and, separately, those of further passages with their slots.

    ``counts`` (spaces,) and ``totals`` (spaces, dimensions) are the number and the sum of living vectors by space.
    Written by one thread; readers share what `view` returns.
    """

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(SPACES, np.int64)
        self.totals: NDArray[np.float64] = np.zeros((SPACES, 0))
        self._spaces: NDArray[np.uint8] = np.zeros(_FEW, np.uint8)
        self._first = _Blocks()
        self._further = _Blocks()
        self._owners: NDArray[np.int64] = np.zeros(0, np.int64)
        self._passages = 0

    @property
    def nbytes(self) -> int:
        """Memory of all blocks, in bytes."""
        return self._first.nbytes + self._further.nbytes + self._owners.nbytes + self._spaces.nbytes

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
            self._spaces[slots] = space
            first = as_floats(unpack_first_vectors([packed[slot] for slot in slots]))
            self._first.put(slots, first)
            self._count(1, space, first)
            for slot in slots:
                further = as_floats(unpack_vectors(packed[slot])[1:])
                if not len(further):
                    break  # none of them has any, as all have the same shape
                start, self._passages = self._passages, self._passages + len(further)
                if self._passages > len(self._owners):
                    self._owners = grown(self._owners, self._passages)
                self._owners[start : self._passages] = slot
                self._further.put(range(start, self._passages), further)
                self._count(1, space, further)
        return known

    def forget(self, slot: int) -> None:
        """Removes the vectors of ``slot`` from ``counts`` and ``totals``. Existing views keep showing them."""
        further = np.flatnonzero(self._owners[: self._passages] == slot)
        space = self._spaces.item(slot)
        self._count(-1, space, self._first.rows([slot]))
        if len(further):
            self._count(-1, space, self._further.rows(further))

    def view(self) -> VectorsView:
        """The present state."""
        return VectorsView(
            size=self.totals.shape[1],
            counts=self.counts.copy(),
            totals=self.totals.copy(),
            spaces=self._spaces,
            first=tuple(self._first.blocks),
            further=tuple(self._further.blocks),
            owners=self._owners[: self._passages],
        )

    def _count(self, sign: int, space: int, vectors: Floats) -> None:
        self.counts[space] += sign * len(vectors)
        self.totals[space] += sign * vectors.sum(axis=0, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorsView:
    """A snapshot of vectors: ``size`` is their dimensions (0 for none), ``counts`` and ``totals`` cover living ones.

    ``spaces`` has the space of each slot that has vectors.
    """

    size: int
    counts: NDArray[np.int64]
    totals: NDArray[np.float64]
    spaces: NDArray[np.uint8]
    first: tuple[Floats, ...]
    further: tuple[Floats, ...]
    owners: NDArray[np.int64]

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
    """Numbered rows of one length, in blocks. Only the first block is ever replaced, by a larger one."""

    def __init__(self) -> None:
        self.blocks: list[Floats] = []

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def put(self, numbers: Sequence[int], rows: Floats) -> None:
        """Sets the rows with these ``numbers``, which ascend."""
        room, size = numbers[-1] + 1, rows.shape[1]
        if not self.blocks:
            self.blocks.append(np.zeros((_FEW, size), np.float32))
        if (first := len(self.blocks[0])) < min(room, _BLOCK):
            # Views keep the smaller block, which holds all the rows that they show.
            larger = np.zeros((min(_BLOCK, max(room, 2 * first)), size), np.float32)
            larger[:first] = self.blocks[0]
            self.blocks[0] = larger
        while len(self.blocks) * _BLOCK < room:
            self.blocks.append(np.zeros((_BLOCK, size), np.float32))
        where = np.asarray(numbers, np.intp)
        for block in range(int(where[0]) // _BLOCK, int(where[-1]) // _BLOCK + 1):
            here = where // _BLOCK == block
            self.blocks[block][where[here] - block * _BLOCK] = rows[here]

    def rows(self, numbers: Sequence[int] | NDArray[np.intp]) -> Floats:
        return _gathered(self.blocks, numbers, self.blocks[0].shape[1] if self.blocks else 0)


def _gathered(blocks: Sequence[Floats], numbers: Sequence[int] | NDArray[np.intp], size: int) -> Floats:
    where = np.asarray(numbers, np.intp)
    result = np.empty((len(where), size), np.float32)
    owners = where // _BLOCK
    for number in set(owners.tolist()):
        here = owners == number
        result[here] = blocks[number][where[here] - number * _BLOCK]
    return result


def _fill(scores: Floats, blocks: Sequence[Floats], query: Floats) -> None:
    """Writes the product of each row of ``blocks`` and ``query`` into ``scores``, as far as both reach."""
    for number, block in enumerate(blocks):
        target = scores[number * _BLOCK : (number + 1) * _BLOCK]
        inner_products(block[: len(target)], query, target[: len(block)])


def grown(values: NDArray[Any], room: int) -> NDArray[Any]:
    """``values`` in an array of at least ``room`` entries, and at least a quarter larger than before."""
    result = np.zeros((max(room, len(values) + len(values) // 4), *values.shape[1:]), values.dtype)
    result[: len(values)] = values
    return result


def give_memory_back() -> None:
    """Returns freed memory to the system, as the C library keeps what many small objects leave behind."""
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
