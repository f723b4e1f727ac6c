"""How vectors are stored and compared: a text's passages in half precision, its tokens in 8 bits, all of unit length.

A model may have several vector spaces: one for English texts, one for all others. Each text has vectors in one space,
and only vectors of one space are compared.

Sums of half-precision numbers in double precision are exact, so a mean does not depend on their order. Token vectors
serve late interaction: a text matches a query as well as its best token matches each token of the query (MaxSim;
Khattab and Zaharia, ColBERT, 2020).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
PLAIN: Final = 0
"""The space of vectors of a model that has only one."""
MULTILINGUAL: Final = 1
"""The space of vectors of the local multilingual model."""
SPACES: Final = 2
_HEADER: Final = struct.Struct("<BBH")
"""Passages, space, dimensions. Before there were spaces, passages took both bytes, but there are at most 64."""
_MOST_BY_MATRIX: Final = 262_144
"""Up to this many multiplications, OpenBLAS computes a product in the caller's thread (interface/gemm.c)."""
_SCALE: Final = 127.0
_NO_SPREAD: Final = 1e-6


def _einsum(matrix: Floats, vector: Floats, *, out: Floats) -> None:
    np.einsum("ij,j->i", matrix, vector, out=out)


_vecdot: Final[Callable[..., object]] = getattr(np, "vecdot", _einsum)
"""NumPy 2 has `vecdot`, which takes two thirds of einsum's time."""


def pack_vectors(vectors: Floats, space: int = PLAIN) -> bytes:
    """``vectors`` (passages, dimensions), all of one ``space``, as bytes."""
    return _HEADER.pack(len(vectors), space, vectors.shape[1]) + vectors.astype("<f2").tobytes()


def is_packed(packed: bytes) -> bool:
    """Whether ``packed`` is a valid result of `pack_vectors`."""
    if len(packed) < _HEADER.size:
        return False
    rows, space, columns = _HEADER.unpack_from(packed)
    return rows > 0 and space < SPACES and columns > 0 and len(packed) == _HEADER.size + 2 * rows * columns


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


def inner_products(matrix: Floats, vector: Floats, into: Floats) -> None:
    """Writes ``matrix`` @ ``vector`` into ``into``, in this thread.

    Row by row, because BLAS's matrix-vector product reads rows at half the speed of memory, and on a busy processor
    waits for its threads.
    """
    _vecdot(matrix, vector, out=into)


def by_matrix(first: NDArray[np.int8], second: Floats) -> Floats:
    """``first`` @ ``second`` in this thread, in portions, as floats need four times the memory of bytes."""
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
    then the mean over the words. A text counts as its best passage. ``words`` are the numbers of the tokens' words,
    those of one word side by side; by default each token is a word.
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
