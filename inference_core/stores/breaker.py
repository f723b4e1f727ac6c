"""Circuit breaker: a database that keeps failing is left alone for a while, so that nobody waits for it in vain.

It counts what calls of the database raise, in the thread that makes them. A caller's timeout does not count, as it says
nothing about the database. If the database does not answer at all, the pool and the writer refuse calls (`HANG_S`).

Source: Nygard, Release It!, 2nd edition 2018, section 5.2.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from inference_core.errors import StoreBusy, StoreError, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE: Final = 5
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0


class Breaker:
    """Refuses calls after five failures in a row; after a pause, which doubles up to 4 s, it lets one through."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._failures = 0
        self._refuses_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, except for one after each pause."""
        return self._failures >= PATIENCE

    @property
    def has_failed(self) -> bool:
        """Whether the last call failed."""
        return self._failures > 0

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls ``function``, which asks the database, and returns what it returns.

        StoreUnavailable counts as a failure. StoreBusy and every other StoreError end a row of failures, as a success
        does: the database has answered.
        """
        try:
            result = function(*args, **kwargs)
        except StoreBusy:  # the database answers; others hold what the call needs
            self._succeeded()
            raise
        except StoreUnavailable:
            with self._lock:
                self._failures += 1
                self._refuses_until = time.monotonic() + self._pause()
            raise
        except StoreError:
            self._succeeded()
            raise
        self._succeeded()
        return result

    def check(self) -> None:
        """Raises StoreUnavailable if the database is left alone at the moment."""
        with self._lock:
            if not self.is_open:
                return
            left = self._refuses_until - time.monotonic()
            if left > 0:
                raise StoreUnavailable(
                    f"{self._what} failed {self._failures} times in a row; left alone for {left:.1f} s"
                )
            self._refuses_until = time.monotonic() + self._pause()

    def _succeeded(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0

    def _pause(self) -> float:
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(16, max(0, self._failures - PATIENCE)))
