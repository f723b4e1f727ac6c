"""Two models, chosen by the language of each text: the English one for English, the multilingual one for the rest.

Each model fills its own part of the vector and leaves the other's part zero, so the two spaces never mix. A query fills
both parts and is compared with each text in the space of that text's model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from langchain_core.embeddings import Embeddings

from inference_core.embeddings.local import DIMENSIONS as ENGLISH_DIMENSIONS
from inference_core.embeddings.local import FINGERPRINT as ENGLISH_FINGERPRINT
from inference_core.embeddings.local import LocalEmbeddings
from inference_core.embeddings.multilingual import (
    MULTILINGUAL_DIMENSIONS,
    MULTILINGUAL_FINGERPRINT,
    MultilingualEmbeddings,
)
from inference_core.embeddings.tokens import TextEncoding
from inference_core.retrieval.languages import language_of
from inference_core.retrieval.vectors import Floats

BY_LANGUAGE_FINGERPRINT: Final = f"local-by-language:{ENGLISH_FINGERPRINT}+{MULTILINGUAL_FINGERPRINT}"
_ENGLISH: Final = ("en", "")
"""Text without a sign of its language counts as English."""
_NOT_ENGLISH: Final = np.zeros(ENGLISH_DIMENSIONS, np.float32)
_NOT_FOREIGN: Final = np.zeros(MULTILINGUAL_DIMENSIONS, np.float32)


class LanguageEmbeddings(Embeddings):
    """``LocalEmbeddings`` for English, ``MultilingualEmbeddings`` for the rest. Raises what they raise."""

    def __init__(self) -> None:
        self._english = LocalEmbeddings()
        self._multilingual = MultilingualEmbeddings()

    def load(self) -> None:
        """Loads both models."""
        self._english.load()
        self._multilingual.load()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text; only its model's part is not zero."""
        return [encoding.vector.tolist() for encoding in self.encode(texts)]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query, with both parts."""
        return self.encode_query(text).vector.tolist()

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each text; those in English have token vectors."""
        is_english = [language_of(text) in _ENGLISH for text in texts]
        english = iter(self._english.encode([text for text, own in zip(texts, is_english, strict=True) if own]))
        others = iter(self._foreign([text for text, own in zip(texts, is_english, strict=True) if not own]))
        return [
            _joined(next(english), _NOT_FOREIGN) if own else _joined(TextEncoding(_NOT_ENGLISH), next(others))
            for own in is_english
        ]

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query: both vectors, each of unit length, and the English model's token vectors."""
        (english,) = self._english.encode([text])
        (other,) = self._foreign([text])
        return _joined(english, other)

    def _foreign(self, texts: Sequence[str]) -> list[Floats]:
        return [np.array(vector, np.float32) for vector in self._multilingual.embed_documents(list(texts))]


def _joined(english: TextEncoding, other: Floats) -> TextEncoding:
    return english._replace(vector=np.concatenate([english.vector, other]))
