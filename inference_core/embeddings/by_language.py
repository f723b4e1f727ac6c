"""Two local models: one for texts in English, one for all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from langchain_core.embeddings import Embeddings

from inference_core.embeddings import large, local, multilingual
from inference_core.embeddings.embedder import TextEncoding
from inference_core.retrieval.analysis import language_of
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN, SPACES

FINGERPRINT: Final = f"local-by-language:{local.FINGERPRINT}+{multilingual.FINGERPRINT}"
LARGE_FINGERPRINT: Final = f"local-large-by-language:{large.FINGERPRINT}+{multilingual.FINGERPRINT}"
_ENGLISH: Final = ("en", "")
"""Text of unknown language counts as English."""


class LanguageEmbeddings(Embeddings):
    """``LocalEmbeddings`` for texts in English, ``MultilingualEmbeddings`` for all others. Raises what they raise.

    Their vectors are in two spaces, `PLAIN` and `MULTILINGUAL`, which are never compared with each other. All have as
    many dimensions as those of the model that has more; the others end in zeros.
    """

    _dimensions = local.DIMENSIONS

    def __init__(self) -> None:
        self._models = {PLAIN: self._english(), MULTILINGUAL: multilingual.MultilingualEmbeddings()}

    def _english(self) -> local.LocalEmbeddings | large.LargeEmbeddings:
        return local.LocalEmbeddings()

    def load(self) -> None:
        """Loads both models."""
        for model in self._models.values():
            model.load()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text: both spaces side by side, with zeros for the space that the text is not in."""
        encodings = self.encode_in(texts, [language_of(text) for text in texts])
        return [self._side_by_side([encoding]) for encoding in encodings]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query, with both spaces side by side."""
        return self._side_by_side(self.encode_query_in(text, frozenset(self._models)))

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        """The encoding of each text, in the space of its language; if that is unknown, in that of English."""
        encodings: dict[int, TextEncoding] = {}
        spaces = [PLAIN if language in _ENGLISH else MULTILINGUAL for language in languages]
        for space, model in self._models.items():
            own = [at for at, other in enumerate(spaces) if other == space]
            encodings |= zip(own, model.encode([texts[at] for at in own]) if own else [], strict=True)
        return [self._filled(encodings[at]) for at in range(len(texts))]

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        """The encoding of a query in each of ``spaces``."""
        return self.encode_queries_in([text], spaces)[0]

    def encode_queries_in(self, texts: list[str], spaces: frozenset[int]) -> list[list[TextEncoding]]:
        """The encodings of each query in each of ``spaces``."""
        by_space = [self._models[space].encode_queries(texts) for space in sorted(spaces)]
        return [[self._filled(encodings[at]) for encodings in by_space] for at in range(len(texts))]

    def _filled(self, encoding: TextEncoding) -> TextEncoding:
        missing = self._dimensions - len(encoding.vector)
        return encoding._replace(vector=np.pad(encoding.vector, (0, missing))) if missing else encoding

    def _side_by_side(self, encodings: Iterable[TextEncoding]) -> list[float]:
        vectors = np.zeros((SPACES, self._dimensions), np.float32)
        for encoding in encodings:
            vectors[encoding.space] = encoding.vector
        return vectors.reshape(-1).tolist()


class LargeLanguageEmbeddings(LanguageEmbeddings):
    """The same with ``LargeEmbeddings`` for texts in English."""

    _dimensions = large.DIMENSIONS

    def _english(self) -> large.LargeEmbeddings:
        return large.LargeEmbeddings()
