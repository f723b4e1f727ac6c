"""Gives vectors, in the background, to texts that were stored while the embedding model was away or another one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from inference_core.embeddings.documents import embed_documents_now
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import EmbeddingError, InferenceCoreError
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import EMBEDDING_META, Backend, Pending, SetVector
from inference_core.stores.background import Background
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
PORTION: Final = 32
_PATIENCE_S: Final = (0.5, 2.0, 10.0, 60.0)


class Backfill(Background):
    """One daemon thread that embeds what is pending, at once and whenever it is woken; failures are retried later."""

    def __init__(self, backend: Backend, writer: GroupWriter, embedder: Embedder, *, with_tokens: bool) -> None:
        super().__init__("memory-backfill")
        self._backend = backend
        self._writer = writer
        self._embedder = embedder
        self._with_tokens = with_tokens
        self._refused: set[tuple[Namespace, str, int]] = set()
        self._start()

    def _work(self) -> None:
        failures = 0
        while not self._closed.is_set():
            self._wake.clear()
            try:
                while not self._closed.is_set() and self._embedder.is_ready and self._fill_portion():
                    pass
                failures = failures + 1 if self._refused else 0
                self._refused.clear()
            except InferenceCoreError as error:
                failures += 1
                _LOG.info("Vectors are still pending: %s", error)
            self._rest(failures)

    def _rest(self, failures: int) -> None:
        """Waits until there is something to do: soon after a failure or while the model loads, else until woken."""
        if failures:
            self._closed.wait(_PATIENCE_S[min(failures, len(_PATIENCE_S)) - 1])
        elif self._embedder.is_ready or self._embedder.failure:
            self._wake.wait()
        else:
            self._closed.wait(0.1)

    def _fill_portion(self) -> bool:
        """Embeds some of what is pending; texts that the model refuses wait until all others are done.

        A store that was given another model meanwhile is left to those who have that.
        """
        if self._backend.get_meta(EMBEDDING_META) not in (None, self._embedder.fingerprint):
            return False
        found = self._backend.pending(self._embedder.fingerprint, PORTION + len(self._refused))
        portion = [row for row in found if (row.namespace, row.key, row.version) not in self._refused]
        try:
            if portion:
                self._fill(portion)
        except EmbeddingError:
            if not self._fill_singly(portion):
                raise
        return bool(portion)

    def _fill(self, portion: Sequence[Pending]) -> None:
        fill(self._writer, self._embedder, portion, with_tokens=self._with_tokens)

    def _fill_singly(self, portion: Sequence[Pending]) -> bool:
        """Embeds one text at a time, so that one that cannot be embedded holds up no others; whether any could."""
        refused: list[Pending] = []
        for row in portion:
            try:
                self._fill([row])
            except EmbeddingError:
                refused.append(row)
        if len(refused) < len(portion):
            self._refused.update((row.namespace, row.key, row.version) for row in refused)
        return len(refused) < len(portion)


def fill(writer: GroupWriter, embedder: Embedder, portion: Sequence[Pending], *, with_tokens: bool) -> None:
    """Embeds ``portion`` and stores the vectors. Raises EmbeddingError, StoreError."""
    made = embed_documents_now(embedder, [pending.text for pending in portion], with_tokens=with_tokens)
    writer.submit(
        [
            SetVector(
                namespace=row.namespace,
                key=row.key,
                version=row.version,
                model=embedder.fingerprint,
                vector=vectors.vector,
                tokens=vectors.tokens,
            )
            for row, vectors in zip(portion, made, strict=True)
        ]
    ).result()
