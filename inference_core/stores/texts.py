"""What a store makes of texts before they are written and before they are searched for: terms and vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from inference_core.drivers import Plan, Pool
from inference_core.embeddings.documents import DocumentVectors, embed_documents, embed_query, embed_query_now
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import EmbeddingError, StoreError, StoreUnavailable
from inference_core.stores.backend import Backend, Put, Write
from inference_core.stores.search import QuestionVectors
from inference_core.stores.vector_space import VectorSpace

EMBED_TIMEOUT_S: Final = 1.0
"""Half of what a save by a tool may take, so that a slow model leaves time to store the text without its vector."""


class Texts:
    """Analyses and embeds for the store of ``backend``, outside of every lock and transaction.

    A text whose model is slow, fails or is away goes without its vectors, and gets them later. ``with_tokens``: also
    token vectors, for late interaction. Raises EmbeddingMismatch if ``embedder`` is not the store's.
    """

    def __init__(self, backend: Backend, embedder: Embedder | None, pool: Pool, *, with_tokens: bool) -> None:
        self._embedder = embedder
        self._space = VectorSpace(backend, embedder) if embedder else None
        self._pool = pool
        self._with_tokens = with_tokens

    def prepared(self, batch: Sequence[Write], *, embeds: bool) -> Plan[Sequence[Write]]:
        """Plan: ``batch`` with the terms of its texts and, if it ``embeds``, their vectors."""
        if not all(map(_is_analysed, batch)):
            batch = yield from self._pool.call(_analysed, batch)
        return (yield from self._embedded(batch)) if embeds else batch

    def question(self, text: str, patience: float) -> Plan[QuestionVectors]:
        """Plan: the vectors of a question, within ``patience`` seconds."""
        if self._embedder is None or not text.strip():
            return self.question_now(text)
        try:
            vectors = yield from embed_query(self._embedder, text, patience, with_tokens=self._with_tokens)
        except (EmbeddingError, StoreUnavailable) as error:
            return QuestionVectors(problem=str(error))
        return QuestionVectors(vectors)

    def question_now(self, text: str) -> QuestionVectors:
        """The vectors of a question, made in the caller's thread."""
        if self._embedder is None or not text.strip():
            return QuestionVectors(problem="no question" if self._embedder else "no embedding model")
        try:
            return QuestionVectors(embed_query_now(self._embedder, text, with_tokens=self._with_tokens))
        except EmbeddingError as error:
            return QuestionVectors(problem=str(error))

    def _embedded(self, batch: Sequence[Write]) -> Plan[list[Write]]:
        texts = [write.document.text for write in batch if isinstance(write, Put) and write.document]
        if not texts or self._embedder is None:
            return list(batch)
        try:
            vectors = yield from embed_documents(self._embedder, texts, EMBED_TIMEOUT_S, with_tokens=self._with_tokens)
        except (EmbeddingError, StoreUnavailable):
            return list(batch)
        if self._space and not self._space.is_recorded:
            with suppress(StoreError):  # if the database is away, the write will say so
                yield from self._pool.call(self._space.record)
        model = self._embedder.fingerprint
        made = iter(vectors)
        return [_with_vector(write, model, made) for write in batch]


def _is_analysed(write: Write) -> bool:
    return not isinstance(write, Put) or write.document is None or write.document.is_analysed


def _analysed(batch: Sequence[Write]) -> list[Write]:
    return [
        replace(write, document=write.document.analysed()) if isinstance(write, Put) and write.document else write
        for write in batch
    ]


def waits_for_vector(write: Write) -> bool:
    """Whether ``write`` puts a text that has no vector yet."""
    return isinstance(write, Put) and write.document is not None and write.document.vector is None


def _with_vector(write: Write, model: str, vectors: Iterator[DocumentVectors]) -> Write:
    if not isinstance(write, Put) or write.document is None:
        return write
    vector, tokens = next(vectors)
    return replace(write, document=write.document._replace(model=model, vector=vector, tokens=tokens))
