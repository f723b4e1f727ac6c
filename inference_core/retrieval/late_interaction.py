"""Late interaction: a text matches a query as well as its best token matches each token of the query.

Source: Khattab and Zaharia, ColBERT, 2020 (MaxSim). Token vectors are kept as bytes, a passage after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.vectors import Floats

_SCALE: Final = 127.0
_PORTION: Final = 8_192
_NO_SPREAD: Final = 1e-6
_HEADER: Final = struct.Struct("<HH")


class Interaction(NamedTuple):
    """Per candidate text the standardised evidence, and the mean best cosine of the query's tokens (0 to 1)."""

    evidence: Floats
    similarity: Floats


def pack_tokens(passages: Sequence[Floats]) -> bytes:
    """The unit vectors of each passage's tokens (tokens, dimensions) as 8-bit numbers."""
    counts = [len(tokens) for tokens in passages]
    columns = passages[0].shape[1]
    joined = np.clip(np.rint(np.concatenate(list(passages)) * _SCALE), -127, 127).astype(np.int8)
    return _HEADER.pack(len(counts), columns) + np.array(counts, "<u2").tobytes() + joined.tobytes()


def interact(query: Floats, packed: Sequence[bytes]) -> Interaction:
    """How well each packed text (at least one) answers the tokens of ``query`` (tokens, dimensions).

    Per token the best cosine in a passage, standardised over all passages, averaged over the tokens; a text counts as
    the best of its passages.
    """
    counts, owners, vectors = _unpacked(packed)
    starts = np.cumsum(counts) - counts
    best = np.maximum.reduceat(_products(vectors, query.T / _SCALE), starts, axis=0)
    spread = best.std(axis=0)
    standard = (best - best.mean(axis=0)) / np.where(spread > _NO_SPREAD, spread, 1.0)
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    evidence = np.maximum.reduceat(standard.mean(axis=1), first)
    similarity = np.maximum.reduceat(best.mean(axis=1), first)
    return Interaction(evidence.astype(np.float32), np.clip(similarity, 0, 1).astype(np.float32))


def dimensions_of(packed: bytes) -> int:
    """How many numbers each token vector has."""
    return _HEADER.unpack_from(packed)[1]


def _products(vectors: NDArray[np.int8], query: Floats) -> Floats:
    """``vectors`` @ ``query``, a portion at a time, because as floats they take four times the room."""
    portions = range(0, len(vectors), _PORTION)
    return np.concatenate([vectors[start : start + _PORTION].astype(np.float32) @ query for start in portions])


def _unpacked(packed: Sequence[bytes]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int8]]:
    counts: list[NDArray[np.uint16]] = []
    owners: list[int] = []
    vectors: list[NDArray[np.int8]] = []
    for owner, blob in enumerate(packed):
        passages, columns = _HEADER.unpack_from(blob)
        lengths = np.frombuffer(blob, "<u2", passages, _HEADER.size)
        start = _HEADER.size + 2 * passages
        counts.append(lengths)
        owners += [owner] * passages
        vectors.append(np.frombuffer(blob, np.int8, offset=start).reshape(-1, columns))
    return np.concatenate(counts).astype(np.intp), np.array(owners, np.intp), np.concatenate(vectors)
