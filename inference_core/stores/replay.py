"""Stores what waits in a spool, in the background, as soon as the database is back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from inference_core.errors import StoreError, StoreUnavailable, VersionConflict
from inference_core.stores.backend import Backend, Delete, Outcome, Put
from inference_core.stores.background import Background
from inference_core.stores.codec import unpack_value
from inference_core.stores.spool import Spool

_LOG = logging.getLogger(__name__)
_PORTION: Final = 64
_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)


class Replay(Background):
    """One daemon thread that stores the spool's memories in their order, each once, and tells ``stored``.

    A memory whose id another one has taken meanwhile is a conflict: it stays in the spool's file and on its list.
    """

    def __init__(self, spool: Spool, backend: Backend, stored: Callable[[], None]) -> None:
        super().__init__("memory-spool")
        self._spool = spool
        self._backend = backend
        self._stored = stored
        self._start()

    def _work(self) -> None:
        failures = 0
        while not self._closed.is_set():
            if not len(self._spool):
                self._wake.wait()
                self._wake.clear()
                continue
            try:
                self._store(self._spool.first(_PORTION))
                failures = 0
            except StoreError as error:
                _LOG.info("%d memories wait in the spool: %s", len(self._spool), error)
                self._closed.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1

    def _store(self, puts: Sequence[Put]) -> None:
        outcomes = self._backend.apply([[put] for put in puts])
        for put, outcome in zip(puts, outcomes, strict=True):
            self._settle(put, outcome)
        self._stored()

    def _settle(self, put: Put, outcome: Outcome) -> None:
        key = (put.namespace, put.key)
        if isinstance(outcome, StoreUnavailable):
            raise outcome
        if isinstance(outcome, StoreError) and not self._is_stored(put, outcome):
            _LOG.warning("A memory could not be taken from the spool, which keeps it: %s", outcome)
            self._spool.conflict(key)
        elif not self._spool.remove([key]) and not isinstance(outcome, Exception):
            self._backend.apply([[Delete(namespace=put.namespace, key=put.key, expected=outcome[0])]])

    def _is_stored(self, put: Put, outcome: StoreError) -> bool:
        """Whether what stands under the id is this memory: a write that was not confirmed had been made."""
        if not isinstance(outcome, VersionConflict):
            return False
        row = self._backend.get([(put.namespace, put.key)])[0]
        return row is not None and row.value == unpack_value(put.value)
