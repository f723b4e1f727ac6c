"""Writes that nobody waits for: kept in memory for a moment, then written together."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from inference_core.errors import InferenceCoreError
from inference_core.stores.backend import Delete, Put, Touch, Write
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
INTERVAL_S: Final = 1.0
"""So long writes wait for others."""
MOST: Final = 1_000
"""So many writes wait at most; then the oldest are dropped."""
_BATCH: Final = 100
_TIMEOUT_S: Final = 5.0


class DeferredWriter:
    """Keeps what is put here until `write_portion` is called, for which ``wake`` asks.

    A crash loses what waits then; so does a database that is away for long. Rows on a database that does not expire
    them itself are removed by whoever put them.
    """

    def __init__(self, writer: GroupWriter, wake: Callable[[], None]) -> None:
        self._writer = writer
        self._wake = wake
        self._waiting: deque[Write] = deque(maxlen=MOST)
        self._flushing = threading.Lock()

    def put(self, *writes: Put | Delete | Touch) -> None:
        """Has ``writes`` written soon, unless the store is read-only; never waits and never raises."""
        if writes and self._writer.writable:
            self._waiting.extend(writes)
            self._wake()

    def flush(self) -> None:
        """Writes what waits."""
        while self.write_portion():
            pass

    def write_portion(self) -> bool:
        """Writes some of what waits; whether there is more. What cannot be written is dropped, and the log says so."""
        # One at a time: two that take turns would mix up the order of writes to the same row.
        with self._flushing:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                if batch:
                    self._writer.submit(batch).result(_TIMEOUT_S)
            except (InferenceCoreError, TimeoutError) as error:
                _LOG.warning("%d notes on what was told are lost: %s", len(batch), error)
            return bool(self._waiting)
