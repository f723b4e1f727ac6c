"""Writes that nobody waits for: kept in memory for a moment, then written together."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from inference_core.errors import InferenceCoreError
from inference_core.stores.backend import Backend, Delete, Put, Write
from inference_core.stores.background import Background
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
INTERVAL_S: Final = 1.0
MOST: Final = 1_000
"""So many writes wait at most; then the oldest are dropped."""
_BATCH: Final = 100
_TIMEOUT_S: Final = 5.0


class Later(Background):
    """One daemon thread that writes what was put here, ``interval_s`` seconds later and when it is closed.

    A crash loses what waits then; so does a database that is away for long. Rows on a database that does not expire
    them itself are removed by whoever put them.
    """

    def __init__(self, backend: Backend, writer: GroupWriter, interval_s: float = INTERVAL_S) -> None:
        super().__init__("memory-later")
        self._backend = backend
        self._writer = writer
        self._interval_s = interval_s
        self._waiting: deque[Write] = deque(maxlen=MOST)
        self._turn = threading.Lock()
        self._is_started = False

    def put(self, *writes: Put | Delete) -> None:
        """Has ``writes`` written soon; never waits and never raises."""
        if self._closed.is_set():
            return
        self._waiting.extend(writes)
        with self._turn:
            if not self._is_started:
                self._is_started = True
                self._start()
        self.wake()

    def flush(self) -> None:
        """Writes what waits. What cannot be written is dropped, and the log says so."""
        while batch := [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]:
            try:
                self._writer.submit(batch).result(_TIMEOUT_S)
            except (InferenceCoreError, TimeoutError) as error:
                _LOG.warning("%d notes on what was told are lost: %s", len(batch), error)

    def close(self) -> None:
        """Writes what waits, and ends."""
        if self._is_started:
            super().close()
        self._closed.set()
        self.flush()

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wake.wait()
            self._wake.clear()
            self._closed.wait(self._interval_s)
            self.flush()
