"""Vectors of documents and queries as the index stores them: by passage, packed, with those of content tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from inference_core.effects import Operation
from inference_core.embeddings.embedder import Embedder, TextEncoding
from inference_core.retrieval.analysis import is_content_token
from inference_core.retrieval.documents import passages

if TYPE_CHECKING:
    from inference_core.retrieval.vectors import Floats


class DocumentVectors(NamedTuple):
    """A text's passages packed by `pack_vectors`, and their tokens, if any, packed by `pack_tokens`."""

    vector: bytes
    tokens: bytes | None


class QueryVectors(NamedTuple):
    """A query's vector, those of its content tokens (tokens, dimensions), and the number of each token's word."""

    vector: Floats
    tokens: Floats | None
    words: Sequence[int] = ()


def embed_documents(
    embedder: Embedder, texts: Sequence[str], timeout: float | None, *, with_tokens: bool
) -> Operation[list[DocumentVectors]]:
    """The vectors of each text. Raises EmbeddingError or DeadlineExceeded."""
    parts = [passages(text) for text in texts]
    encodings = yield from embedder.documents([passage for part in parts for passage in part], timeout)
    return _packed(parts, encodings, with_tokens=with_tokens)


def embed_documents_now(embedder: Embedder, texts: Sequence[str], *, with_tokens: bool) -> list[DocumentVectors]:
    """The vectors of each text, made in the caller's thread. Raises EmbeddingError."""
    parts = [passages(text) for text in texts]
    encodings = embedder.embed_now([passage for part in parts for passage in part])
    return _packed(parts, encodings, with_tokens=with_tokens)


def embed_query(embedder: Embedder, text: str, timeout: float | None, *, with_tokens: bool) -> Operation[QueryVectors]:
    """The vectors of a query. Raises EmbeddingError or DeadlineExceeded."""
    encoding = yield from embedder.query(text, timeout)
    if encoding.tokens is None or not with_tokens:
        return QueryVectors(encoding.vector, None)
    words = word_numbers(encoding.pieces)
    chosen = [at for at, piece in enumerate(encoding.pieces) if is_content_token(piece)] or [*range(len(words))]
    return QueryVectors(encoding.vector, encoding.tokens[chosen], [words[at] for at in chosen])


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece of a text belongs to, counted from 0."""
    begins = [at == 0 or not piece.startswith("##") for at, piece in enumerate(pieces)]
    return [number - 1 for number in accumulate(begins)]


def _packed(
    parts: Sequence[Sequence[str]], encodings: Sequence[TextEncoding], *, with_tokens: bool
) -> list[DocumentVectors]:
    import numpy as np  # noqa: PLC0415 - keeps the import of the package light

    from inference_core.retrieval.vectors import pack_tokens, pack_vectors  # noqa: PLC0415 - imports numpy

    left = iter(encodings)
    found: list[DocumentVectors] = []
    for own in ([next(left) for _ in part] for part in parts):
        vector = pack_vectors(np.stack([encoding.vector for encoding in own]))
        tokens = [encoding.tokens for encoding in own if encoding.tokens is not None and len(encoding.tokens)]
        found.append(DocumentVectors(vector, pack_tokens(tokens) if with_tokens and tokens else None))
    return found
