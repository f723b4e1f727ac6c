"""Removes rows whose time has come, in the background, so that they take no room in the database and in indexes."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from inference_core.errors import InferenceCoreError
from inference_core.stores.backend import Backend, Expire
from inference_core.stores.background import Background

if TYPE_CHECKING:
    from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
SWEEP_INTERVAL_S: Final = 60.0
_PORTION: Final = 256


class Sweeper(Background):
    """One daemon thread that looks for expired rows every ``interval_s`` seconds; the first time after one interval."""

    def __init__(self, backend: Backend, writer: GroupWriter, interval_s: float = SWEEP_INTERVAL_S) -> None:
        super().__init__("memory-sweeper")
        self._backend = backend
        self._writer = writer
        self._interval_s = interval_s
        self._start()

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
