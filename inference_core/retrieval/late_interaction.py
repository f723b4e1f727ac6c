"""Late interaction: a text matches a query as well as its best token matches each token of the query.

Source: Khattab and Zaharia, ColBERT, 2020 (MaxSim). Token vectors are kept as bytes, a passage after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.retrieval.vectors import Floats, by_matrix

_SCALE: Final = 127.0
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
    counts, first, vectors = _unpacked(packed)
    starts = np.cumsum(counts) - counts
    best = np.maximum.reduceat(by_matrix(vectors, query.T / _SCALE), starts, axis=0)
    spread = best.std(axis=0)
    standard = (best - best.mean(axis=0)) / np.where(spread > _NO_SPREAD, spread, 1.0)
    evidence = np.maximum.reduceat(standard.mean(axis=1), first)
    similarity = np.maximum.reduceat(best.mean(axis=1), first)
    return Interaction(evidence.astype(np.float32), np.clip(similarity, 0, 1).astype(np.float32))


def dimensions_of(packed: bytes) -> int:
    """How many numbers each token vector has."""
    return _HEADER.unpack_from(packed)[1]


def _unpacked(packed: Sequence[bytes]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int8]]:
    """The number of tokens of each passage, the first passage of each text, and the vectors of all tokens."""
    passages = [_HEADER.unpack_from(blob)[0] for blob in packed]
    starts = [_HEADER.size + 2 * count for count in passages]
    counts = b"".join([blob[_HEADER.size : start] for blob, start in zip(packed, starts, strict=True)])
    vectors = b"".join([blob[start:] for blob, start in zip(packed, starts, strict=True)])
    return (
        np.frombuffer(counts, "<u2").astype(np.intp),
        np.cumsum([0, *passages[:-1]]),
        np.frombuffer(vectors, np.int8).reshape(-1, dimensions_of(packed[0])),
    )
