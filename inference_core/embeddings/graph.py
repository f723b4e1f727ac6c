"""Builds the graph of BERT's encoder for ONNX Runtime, with most weights of 4 or 8 bits. Needs the package ``onnx``."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MODEL: Final = "model.onnx"
WEIGHTS: Final = "weights.bin"
BLOCK: Final = 32
"""So many neighbouring weights share a scale."""
MICROSOFT: Final = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
_INPUTS: Final = ("input_ids", "attention_mask")
_PAGE: Final = 4096
"""Tensors start on a page of memory, so that they can be mapped from the file."""


def in_one(model: bytes, weights: bytes) -> bytes:
    """The graph with its weights inside, for a machine where no file can be written."""
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


class EncoderGraph(ABC):
    """A graph that takes ``input_ids`` and ``attention_mask`` and outputs the vectors of the tokens.

    The inputs are 64-bit integers (texts, tokens); ``last_hidden_state`` is (texts, tokens, width). ``weights`` is what
    the file `WEIGHTS` holds. Most methods add nodes and return the name of the tensor that these compute.
    """

    epsilon: float
    """What the normalization adds to the variance."""

    def __init__(self) -> None:
        self.weights = bytearray()
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []

    @abstractmethod
    def floats(self, name: str) -> NDArray[np.float32]:
        """The tensor of that name, as it is."""

    @abstractmethod
    def blocks(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """The weights of a matrix (outputs, inputs) in blocks of `BLOCK`, and the scale of each block (blocks, 1).

        A block has 32 bytes (0 stands for -128), or 16 bytes of two neighbours each (0 stands for -8).
        """

    def layer(self, states: str, layer: str, width: int, heads: int, inner: int, bias: str = "") -> str:
        """Attention and the two linear layers, each added to its input and normalized.

        ``bias`` names a tensor (1, heads, tokens, tokens) that is added to the attention before the softmax.
        """
        parts = [f"{layer}{part}" for part in "qkv"]
        self._linear(states, parts, width, width)
        split = [f"{part}.split" for part in parts]
        self.node("Split", [f"{parts[0]}.out"], split, axis=2, num_outputs=3)
        given = [*split, "", "mask", bias] if bias else [*split, "", "mask"]
        self.node("MultiHeadAttention", given, f"{layer}attended", MICROSOFT, num_heads=heads)
        attended = self._linear(f"{layer}attended", [f"{layer}ao"], width, width)
        states = self.normalized(states, attended, f"{layer}aln")
        self.node("Gelu", [self._linear(states, [f"{layer}fi"], width, inner)], f"{layer}gelu", MICROSOFT)
        return self.normalized(states, self._linear(f"{layer}gelu", [f"{layer}fo"], inner, width), f"{layer}oln")

    def places(self, positions: NDArray[np.float32]) -> str:
        """The rows of ``positions`` (positions, width) for the tokens, and "mask" and "length" of the texts."""
        from onnx import TensorProto  # noqa: PLC0415 - an extra, and needed only for the conversion

        self.weight("positions", positions)
        for value in range(3):
            number = TensorProto(name=str(value), data_type=TensorProto.INT64, dims=[1])
            number.raw_data = struct.pack("<q", value)
            self._initializers.append(number)
        self.node("Shape", ["input_ids"], "shape")
        self.node("Slice", ["shape", "1", "2"], "length")
        self.node("Slice", ["positions", "0", "length", "0"], "places")
        self.node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
        return "places"

    def normalized(self, one: str, other: str, name: str) -> str:
        """The sum of two tensors, normalized."""
        self.weight(f"{name}.w", self.floats(f"{name}.w"))
        self.weight(f"{name}.b", self.floats(f"{name}.b"))
        self.node("Add", [one, other], f"{name}.sum")
        return self.node(
            "LayerNormalization",
            [f"{name}.sum", f"{name}.w", f"{name}.b"],
            f"{name}.out",
            axis=-1,
            epsilon=self.epsilon,
        )

    def finished(self, name: str, states: str, width: int) -> bytes:
        """The serialized model, whose output is ``states``."""
        from onnx import TensorProto, helper  # noqa: PLC0415 - an extra, and needed only for the conversion

        texts = ["texts", "tokens"]
        inputs = [helper.make_tensor_value_info(given, TensorProto.INT64, texts) for given in _INPUTS]
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*texts, width])
        self.node("Identity", [states], output.name)
        graph = helper.make_graph(self._nodes, name, inputs, [output], self._initializers)
        operators = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=operators, ir_version=10).SerializeToString()

    def node(self, operator: str, given: Sequence[str], made: str | list[str], domain: str = "", **options: Any) -> str:
        """Adds one node, which makes the tensor or tensors ``made``; returns the first."""
        from onnx import helper  # noqa: PLC0415 - an extra, and needed only for the conversion

        names = [made] if isinstance(made, str) else made
        self._nodes.append(helper.make_node(operator, given, names, domain=domain, **options))
        return names[0]

    def weight(self, name: str, values: NDArray[Any], shape: Sequence[int] = (), kind: int | None = None) -> None:
        """Adds a tensor of weights; by default, it has the shape and the type of ``values``."""
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

    def _linear(self, states: str, names: Sequence[str], inputs: int, outputs: int) -> str:
        """``states`` times each of the matrices ``names``, plus its bias; the results side by side."""
        name, outputs = names[0], outputs * len(names)
        matrices, scales = zip(*(self.blocks(f"{name}.w") for name in names), strict=True)
        blocks, size = inputs // BLOCK, matrices[0].shape[1]
        self.weight(f"{name}.w", np.concatenate(matrices).reshape(outputs, blocks, size))
        self.weight(f"{name}.scales", np.concatenate(scales).astype(np.float32).reshape(outputs, blocks))
        self.weight(f"{name}.b", np.concatenate([self.floats(f"{name}.b") for name in names]))
        given = [states, f"{name}.w", f"{name}.scales"]
        sizes = {"K": inputs, "N": outputs, "bits": 8 * size // BLOCK, "block_size": BLOCK}
        self.node("MatMulNBits", given, f"{name}.product", MICROSOFT, **sizes, accuracy_level=4)  # 8-bit activations
        return self.node("Add", [f"{name}.product", f"{name}.b"], f"{name}.out")
