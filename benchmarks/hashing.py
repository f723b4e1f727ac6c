"""An embedding that costs next to nothing, so that a benchmark measures the store and not a model."""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

import numpy as np
from langchain_core.embeddings import Embeddings

_WORD: Final = re.compile(r"\w+")
_FLOOR: Final = 1e-3


class HashingEmbeddings(Embeddings):
    """Feature hashing of words (Weinberger et al., arXiv 0902.2206) into as many dimensions as the local model has."""

    dimensions = 384

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text; the same text always gives the same one."""
        hashes = np.array([crc32(word.encode()) for word in _WORD.findall(text.lower())], np.int64)
        signs = 1.0 - 2.0 * (hashes >> 16 & 1)
        return (np.bincount(hashes % self.dimensions, signs, self.dimensions) + _FLOOR).tolist()
