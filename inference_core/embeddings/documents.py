"""Vectors of documents and queries as the index stores them: by passage, packed, with those of content tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple

from inference_core.effects import Operation
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.models import Passage, TextEncoding
from inference_core.retrieval.analysis import is_content_token
from inference_core.retrieval.documents import QueryVectors, passages
from inference_core.retrieval.languages import language_of


class DocumentVectors(NamedTuple):
    """A text's passages packed by `pack_vectors`, and their tokens, if any, packed by `pack_tokens`."""

    vector: bytes
    tokens: bytes | None


_ENGLISH: Final = ("en", "")
ACROSS: Final = 0.25
"""For a query in another language than English, the weight of closeness to English texts; to other texts, it is 1."""


def embed_documents(
    embedder: Embedder, wholes: Sequence[Passage], timeout: float | None, *, with_tokens: bool
) -> Operation[list[DocumentVectors]]:
    """The vectors of each text. Raises EmbeddingError or DeadlineExceeded."""
    parts = _parts(wholes)
    encodings = yield from embedder.documents(list(chain.from_iterable(parts)), timeout)
    return _packed(parts, encodings, with_tokens=with_tokens)


def embed_documents_now(embedder: Embedder, wholes: Sequence[Passage], *, with_tokens: bool) -> list[DocumentVectors]:
    """The vectors of each text, made in the caller's thread. Raises EmbeddingError."""
    parts = _parts(wholes)
    encodings = embedder.embed_now(list(chain.from_iterable(parts)))
    return _packed(parts, encodings, with_tokens=with_tokens)


def embed_query(
    embedder: Embedder, text: str, timeout: float | None, spaces: frozenset[int], *, with_tokens: bool
) -> Operation[dict[int, QueryVectors]]:
    """The vectors of a query in each of ``spaces``, by space. Raises EmbeddingError or DeadlineExceeded.

    Only a model that knows the language of the query tells whether memory is needed. So a query that is not surely in
    English, such as "danke", has a vector in the multilingual space too, if there is one.
    """
    from inference_core.retrieval.vectors import MULTILINGUAL  # noqa: PLC0415 - imports numpy, which takes time

    language = language_of(text)
    is_english = language in _ENGLISH
    if spaces and language != "en" and embedder.has_languages:
        spaces |= {MULTILINGUAL}
    encodings = yield from embedder.query(text, timeout, spaces)
    found: dict[int, QueryVectors] = {}
    for encoding in encodings:
        weight = 1.0 if is_english or encoding.space == MULTILINGUAL else ACROSS
        is_known = encoding.space == MULTILINGUAL or language == "en" or (is_english and MULTILINGUAL not in spaces)
        necessity = encoding.necessity if is_known else None
        found[encoding.space] = QueryVectors(encoding.vector, weight=weight, necessity=necessity)
        if encoding.tokens is not None and with_tokens:
            words = word_numbers(encoding.pieces)
            chosen = [at for at, piece in enumerate(encoding.pieces) if is_content_token(piece)] or [*range(len(words))]
            tokens, numbers = encoding.tokens[chosen], [words[at] for at in chosen]
            found[encoding.space] = QueryVectors(encoding.vector, tokens, numbers, weight, necessity)
    return found


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece of a text belongs to, counted from 0."""
    begins = [at == 0 or not piece.startswith("##") for at, piece in enumerate(pieces)]
    return [number - 1 for number in accumulate(begins)]


def _parts(wholes: Sequence[Passage]) -> list[list[Passage]]:
    """The passages of each text, all with the whole text's language, so that they are in one vector space."""
    return [[Passage(part, whole.language) for part in passages(whole.text)] for whole in wholes]


def _packed(
    parts: Sequence[Sequence[Passage]], encodings: Sequence[TextEncoding], *, with_tokens: bool
) -> list[DocumentVectors]:
    import numpy as np  # noqa: PLC0415 - keeps the import of the package light

    from inference_core.retrieval.vectors import pack_tokens, pack_vectors  # noqa: PLC0415 - imports numpy

    left = iter(encodings)
    found: list[DocumentVectors] = []
    for own in ([next(left) for _ in part] for part in parts):
        space = own[0].space
        vector = pack_vectors(np.stack([encoding.vector for encoding in own]), space)
        tokens = [encoding.tokens for encoding in own if encoding.tokens is not None and len(encoding.tokens)]
        found.append(DocumentVectors(vector, pack_tokens(tokens, space) if with_tokens and tokens else None))
    return found
