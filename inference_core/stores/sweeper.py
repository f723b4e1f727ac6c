"""Removes rows whose time has come, in the background, so that they take no room in the database and in indexes."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from inference_core.errors import InferenceCoreError
from inference_core.stores.backend import Backend, Expire

if TYPE_CHECKING:
    from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
SWEEP_INTERVAL_S: Final = 60.0
_PORTION: Final = 256
_PARTING_S: Final = 5.0


class Sweeper:
    """One daemon thread that looks for expired rows every ``interval_s`` seconds; the first time after one interval."""

    def __init__(self, backend: Backend, writer: GroupWriter, interval_s: float = SWEEP_INTERVAL_S) -> None:
        self._backend = backend
        self._writer = writer
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="memory-sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops after the portion in hand."""
        self._closed.set()
        self._thread.join(_PARTING_S)

    def _work(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                while not self._closed.is_set() and self._sweep():
                    pass
            except InferenceCoreError as error:
                _LOG.info("Expired rows stay until the next sweep: %s", error)

    def _sweep(self) -> bool:
        found = self._backend.expired(_PORTION)
        removals: list[Future[list[int]]] = [
            self._writer.submit([Expire(namespace=namespace, key=key)]) for namespace, key in found
        ]
        for removal in removals:
            removal.result()
        return bool(found)
