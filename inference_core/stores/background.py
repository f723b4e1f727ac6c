"""Background: a daemon thread of a store that works, rests, and ends with it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final

_PARTING_S: Final = 5.0


class Background(ABC):
    """Calls `_work` on a thread named ``name``, which `_start` starts; that returns soon after `_closed` is set."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    def close(self) -> None:
        """Stops after the portion in hand."""
        self._closed.set()
        self._wake.set()
        self._thread.join(_PARTING_S)

    def _start(self) -> None:
        self._thread.start()

    @abstractmethod
    def _work(self) -> None:
        """Works until it is closed."""
