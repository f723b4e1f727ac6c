"""Embeddings for the tried store: deterministic, without a model, and watched."""

from __future__ import annotations

import functools
import hashlib
import re
import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig

DIMENSIONS: Final = 64
_WORDS: Final = re.compile(r"\w+")


class WatchedEmbeddings(Embeddings):
    """A text is the sum of its words, each a fixed direction; of length 1. Safe for threads.

    ``texts`` are the documents that were embedded. While ``seconds`` is set, embedding documents takes that long;
    ``begun`` is set when it starts.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.begun = threading.Event()
        self.texts: list[str] = []

    @property
    def index(self) -> IndexConfig:
        """The ``index`` of a LangGraph store with these embeddings."""
        return {"dims": DIMENSIONS, "embed": self, "fields": ["text"]}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of length 1 for each text."""
        self.texts += texts
        self.begun.set()
        time.sleep(self.seconds)
        return [_vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return _vector(text)


def _vector(text: str) -> list[float]:
    total = sum(map(_direction, _WORDS.findall(text.lower())), np.full(DIMENSIONS, 1e-3))
    return (total / np.linalg.norm(total)).tolist()


@functools.cache
def _direction(word: str) -> NDArray[np.float64]:
    digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=DIMENSIONS // 8).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(np.float64) * 2 - 1
