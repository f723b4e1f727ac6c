"""Batching across callers: texts that wait for a model at the same time are embedded in one call.

A model embeds a batch much faster than its texts one by one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Final

from inference_core.drivers import Pool
from inference_core.embeddings.tokens import TextEncoding
from inference_core.errors import EmbeddingError, EmbeddingMismatch

_TEXTS_AT_ONCE: Final = 32
Encodings = list[TextEncoding]
_Waiting = tuple[Sequence[str], "Future[Encodings]"]


class JoinedCalls:
    """Calls ``embed`` on ``pool`` for everybody who waits, with at most 32 texts of several callers at once."""

    def __init__(self, pool: Pool, embed: Callable[[list[str]], Encodings]) -> None:
        self._pool = pool
        self._embed = embed
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def submit(self, texts: Sequence[str]) -> Future[Encodings]:
        """The encoding of each text, or the model's EmbeddingError. Raises StoreUnavailable if every worker hangs."""
        future: Future[Encodings] = Future()
        waiting = (texts, future)
        with self._lock:
            self._waiting.append(waiting)
        try:
            self._pool.submit(self._serve)
        except BaseException:
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
            raise
        return future

    def _serve(self) -> None:
        """Answers the waiting callers, unless another worker has done so."""
        taken: list[_Waiting] = []
        size = 0
        with self._lock:
            while self._waiting and (not size or size + len(self._waiting[0][0]) <= _TEXTS_AT_ONCE):
                texts, future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    taken.append((texts, future))
                    size += len(texts)
        if taken:
            self._answer(taken)

    def _answer(self, taken: Sequence[_Waiting]) -> None:
        """One call for all. If it fails, one call for each caller, so that a text the model refuses harms no other."""
        try:
            encodings = iter(self._embed([text for texts, _ in taken for text in texts]))
        except (EmbeddingError, EmbeddingMismatch) as error:
            if len(taken) == 1:
                taken[0][1].set_exception(error)
                return
            for one in taken:
                self._answer([one])
        else:
            for texts, future in taken:
                future.set_result(list(islice(encodings, len(texts))))
