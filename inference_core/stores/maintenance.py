"""Maintenance: one thread of a store that does what nobody waits for, chore by chore.

A chore does a bounded portion of its work at a time and then lets the others have their turn. Whatever one of them
raises is counted and logged, and ends neither the thread nor another chore. Logs name the kind of a fault and not its
message, which may quote what is stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from inference_core.errors import ConfigurationError, InferenceCoreError
from inference_core.memory.namespaces import USAGE, holds_memories, sidecar_namespace
from inference_core.stores.backend import Backend, Delete, Expire, Write
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
_PATIENCE_S: Final = (0.5, 2.0, 10.0, 60.0)
"""So long a chore rests after its first failure in a row, its second, and so on."""
_PARTING_S: Final = 5.0
_NEVER: Final = float("inf")
_EXPIRED_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class ChoreReport:
    """How often a chore has run and failed; ``last_error`` names the kind of its last failure."""

    name: str
    runs: int
    failures: int
    last_error: str | None


@dataclass(slots=True)
class _Chore:
    name: str
    work: Callable[[], object]
    interval: float | None
    is_flushed: bool
    due: float
    not_before: float = 0.0
    in_a_row: int = 0
    runs: int = 0
    failures: int = 0
    last_error: str | None = None


class Maintenance:
    """One daemon thread for all chores of a store. Its methods wait for nothing, but `close`."""

    def __init__(self) -> None:
        self._chores: dict[str, _Chore] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="memory-maintenance", daemon=True)
        self._thread.start()

    def add(
        self, name: str, work: Callable[[], object], interval: float | None = None, *, is_flushed: bool = False
    ) -> None:
        """Has ``work`` done every ``interval`` seconds, and whenever ``name`` is woken.

        A call of ``work`` does a portion, and says by what it returns whether there is more to do at once.
        ``is_flushed``: it is also called when the store is closed, until nothing is left. Raises ConfigurationError if
        there is such a chore.
        """
        with self._changed:
            if name in self._chores:
                raise ConfigurationError(f"There is a chore {name!r} already")
            due = _NEVER if interval is None else time.monotonic() + interval
            self._chores[name] = _Chore(name, work, interval, is_flushed, due)
            self._changed.notify()

    def wake(self, name: str, after: float = 0.0) -> None:
        """There is something to do for the chore: now, or ``after`` so many seconds; later if it has just failed."""
        with self._changed:
            chore = self._chores[name]
            due = max(time.monotonic() + after, chore.not_before)
            if due < chore.due:  # else the thread wakes soon enough by itself; callers wake it turn after turn
                chore.due = due
                self._changed.notify()

    def report(self) -> list[ChoreReport]:
        """What the chores have done so far."""
        with self._changed:
            return [ChoreReport(one.name, one.runs, one.failures, one.last_error) for one in self._chores.values()]

    def close(self, timeout: float = _PARTING_S) -> None:
        """Ends after the portion in hand and after what has to be flushed, for which it waits ``timeout`` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (chore := self._next_due()) is not None:
            self._do(chore)
        for chore in list(self._chores.values()):
            while chore.is_flushed and self._do(chore):
                pass

    def _next_due(self) -> _Chore | None:
        """Waits for the chore that has been due for the longest time; None once the store is closed."""
        with self._changed:
            while not self._closed:
                chore = min(self._chores.values(), key=lambda one: one.due, default=None)
                left = _NEVER if chore is None else chore.due - time.monotonic()
                if chore is not None and left <= 0:
                    # Set before the work begins, so that a wake-up in its midst is not lost.
                    chore.due = _NEVER if chore.interval is None else time.monotonic() + chore.interval
                    return chore
                self._changed.wait(None if left == _NEVER else left)
            return None

    def _do(self, chore: _Chore) -> bool:
        """Does a portion; whether there is more to do."""
        has_more, fault = False, None
        try:
            has_more = bool(chore.work())
        except Exception as error:  # noqa: BLE001 - a fault in one chore must not end the others
            fault = error
        with self._changed:
            chore.runs += 1
            if has_more:
                chore.due = time.monotonic()
            if fault is None:
                chore.in_a_row, chore.not_before = 0, 0.0
                return has_more
            pause = _PATIENCE_S[min(chore.in_a_row, len(_PATIENCE_S) - 1)]
            chore.in_a_row += 1
            chore.failures += 1
            chore.last_error = type(fault).__name__
            chore.due = chore.not_before = time.monotonic() + pause
        level = logging.INFO if isinstance(fault, InferenceCoreError) else logging.ERROR
        _LOG.log(level, "Chore %r failed (%s); it is tried again in %g s", chore.name, chore.last_error, pause)
        return False


def remove_expired(backend: Backend, writer: GroupWriter) -> bool:
    """Chore: removes rows whose time has come, so that they take no room; whether there may be more."""
    removals: list[Future[list[int]]] = []
    for namespace, key in backend.expired(_EXPIRED_AT_ONCE):
        batch: list[Write] = [Expire(namespace=namespace, key=key)]
        if holds_memories(namespace):
            batch.append(Delete(namespace=sidecar_namespace(namespace, USAGE), key=key))
        removals.append(writer.submit(batch))
    for removal in removals:
        removal.result()
    return bool(removals)
