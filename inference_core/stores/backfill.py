"""Gives vectors, in the background, to texts that were stored while the embedding model was away or another one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from inference_core.embeddings.documents import embed_documents_now
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import EmbeddingError
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import EMBEDDING_META, Backend, Pending, SetVector
from inference_core.stores.writer import GroupWriter

PORTION: Final = 32
_FEW: Final = 3
_PAUSE_S: Final = 0.5


class Backfill:
    """Embeds what is pending, portion by portion; ``wake`` has it called again after so many seconds."""

    def __init__(
        self,
        backend: Backend,
        writer: GroupWriter,
        embedder: Embedder,
        *,
        with_tokens: bool,
        wake: Callable[[float], None],
    ) -> None:
        self._backend = backend
        self._writer = writer
        self._embedder = embedder
        self._with_tokens = with_tokens
        self._wake = wake
        self._running: Future[bool] | None = None
        self._refused: set[tuple[Namespace, str, int]] = set()

    def fill_portion(self) -> bool:
        """Has the model's own thread embed some of what is pending; whether to go on at once.

        Called again when that is done. Raises then what it raised: EmbeddingError if the model fails or refuses what is
        left, StoreError.
        """
        # Never in the thread of the chores: a model that hangs would hold up all of them.
        running = self._running
        if running is not None and not running.done():
            return False
        self._running = None
        if running is not None:
            return self._is_more_left(filled=running.result())
        if not self._embedder.is_loaded:
            return False  # whoever loads it has the chore woken
        if not self._embedder.is_ready:
            self._wake(_PAUSE_S)
            return False
        self._running = self._embedder.in_background(self._fill_some)
        self._running.add_done_callback(lambda _: self._wake(0.0))
        return False

    def _is_more_left(self, *, filled: bool) -> bool:
        if not filled and self._refused:
            count = len(self._refused)
            self._refused.clear()
            raise EmbeddingError(f"The embedding model refuses {count} texts; they are tried again later")
        return filled

    def _fill_some(self) -> bool:
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
        """Embeds one text at a time, so that one that cannot be embedded holds up no others; whether any could.

        In any order, so that the first few that are refused, after which the model counts as away, are not always the
        same.
        """
        refused: list[Pending] = []
        is_answering = False
        for row in random.sample(portion, len(portion)):
            try:
                self._fill([row])
                is_answering = True
            except EmbeddingError:
                refused.append(row)
                if not is_answering and len(refused) == _FEW:
                    return False
        if is_answering:
            self._refused.update((row.namespace, row.key, row.version) for row in refused)
        return is_answering


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
