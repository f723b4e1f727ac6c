"""An embedding that costs almost nothing, so that a benchmark measures the store and not a model."""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from inference_core.embeddings.embedder import TextEncoding

_WORD: Final = re.compile(r"\w+")
_FLOOR: Final = 1e-3
_TOKEN_VECTORS: Final = 4_096
_TOKEN_DIMENSIONS: Final = 128


class HashingEmbeddings(Embeddings):
    """Feature hashing of words (Weinberger et al., arXiv 0902.2206) into as many dimensions as the local model has."""

    dimensions = 384
    runs_in_process = True

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text; the same text always gives the same one."""
        return self.vector(_hashes(_words(text))).tolist()

    def vector(self, hashes: NDArray[np.int64]) -> NDArray[np.floating]:
        """The vector of a text's hashed words."""
        signs = 1.0 - 2.0 * (hashes >> 16 & 1)
        return np.bincount(hashes % self.dimensions, signs, self.dimensions) + _FLOOR


class HashingTokenEmbeddings(HashingEmbeddings):
    """The same with a vector for each word, as late interaction wants it."""

    def __init__(self) -> None:
        vectors = np.random.default_rng(0).standard_normal((_TOKEN_VECTORS, _TOKEN_DIMENSIONS), np.float32)
        self._tokens = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The vectors of each text and of its words."""
        return [self._encoding(_words(text)) for text in texts]

    def encode_query(self, text: str) -> TextEncoding:
        """The same for a query."""
        return self.encode([text])[0]

    def _encoding(self, words: list[str]) -> TextEncoding:
        hashes = _hashes(words)
        return TextEncoding(self.vector(hashes).astype(np.float32), self._tokens[hashes % _TOKEN_VECTORS], tuple(words))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _hashes(words: list[str]) -> NDArray[np.int64]:
    return np.array([crc32(word.encode()) for word in words], np.int64)
