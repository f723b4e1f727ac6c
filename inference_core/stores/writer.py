"""Group commit: one thread joins the writes that wait into one durable transaction of the database.

Nobody's patience is anybody else's fault: a write whose caller has gone is dropped while it is queued and finished once
it is in a transaction. Only a transaction that has been running for `HANG_S` makes the writer refuse.

Source: Gray and Reuter, Transaction Processing, 1993, section 9.4 (group commit).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Final, ParamSpec, TypeVar

from inference_core.effects import HANG_S
from inference_core.errors import InferenceCoreError, StoreBusy, StoreError, StoreUnavailable
from inference_core.stores.backend import Backend, Delete, Outcome, Put, Touch, Write

# Circuit breaker: a database that keeps failing is left alone for a while, so that nobody waits for it in vain.
#
# It counts what calls of the database raise, in the thread that makes them. How long a caller was ready to wait says
# nothing about the database. One that does not answer at all is refused by the pool and by the writer (`HANG_S`).
#
# Source: Nygard, Release It!, 2nd edition 2018, section 5.2.

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
        self._closed_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, but for one now and then."""
        return self._failures >= PATIENCE

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``function``, a call of the database, returns; its failures are counted."""
        try:
            result = function(*args, **kwargs)
        except StoreBusy:
            self._succeeded()
            raise
        except StoreUnavailable:
            self._failed()
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
            left = self._closed_until - time.monotonic()
            if left > 0:
                raise StoreUnavailable(
                    f"{self._what} failed {self._failures} times in a row; left alone for {left:.1f} s"
                )
            self._closed_until = time.monotonic() + self._pause()

    def _succeeded(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0

    def _failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._closed_until = time.monotonic() + self._pause()

    def _pause(self) -> float:
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(16, max(0, self._failures - PATIENCE)))


_LOG = logging.getLogger(__name__)
MAX_BATCHES: Final = 512
GATHER_S: Final = 0.002
"""About what a commit takes."""
_LOOK_S: Final = 0.0003
_Ticket = tuple[Sequence[Write], Future[list[int]]]


class GroupWriter:
    """Hands writes to ``backend`` from one daemon thread; at most ``max_batches`` of them in a transaction.

    ``breaker`` counts the transactions that fail.
    """

    def __init__(
        self,
        backend: Backend,
        max_batches: int = MAX_BATCHES,
        *,
        breaker: Breaker | None = None,
        hang_s: float = HANG_S,
    ) -> None:
        self._backend = backend
        self._breaker = breaker or Breaker(f"Writing {backend.name}")
        self._max_batches = max_batches
        self._hang_s = hang_s
        self._waiting: SimpleQueue[_Ticket | None] = SimpleQueue()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_company = False
        self._began: float | None = None
        self._closed = False

    @property
    def writable(self) -> bool:
        """Whether the database takes writes."""
        return self._backend.capabilities.writable

    def submit(self, batch: Sequence[Write]) -> Future[list[int]]:
        """Queues ``batch``, which is applied as a whole or not at all; the future gives the versions after it.

        Raises StoreUnavailable if the writer is closed, or hangs in an earlier write.
        """
        future: Future[list[int]] = Future()
        with self._turn:
            if self._closed:
                raise StoreUnavailable("The store is closed")
            began = self._began  # read once: the writer's thread changes it at any time
            if began is not None and time.monotonic() - began >= self._hang_s:
                raise StoreUnavailable("The store hangs in an earlier write")
            self._waiting.put((batch, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="memory-writer", daemon=True)
                self._thread.start()
        return future

    def close(self, timeout: float = 10.0) -> None:
        """Refuses further writes and waits at most ``timeout`` seconds for those that were accepted."""
        with self._turn:
            self._closed = True
            self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        while tickets := self._next():
            running = [(batch, future) for batch, future in tickets if future.set_running_or_notify_cancel()]
            if running:
                self._commit(running)

    def _next(self) -> list[_Ticket]:
        """What waits, at most so many; nothing once the writer is closed and all that came before is done."""
        tickets: list[_Ticket] = []
        found = self._waiting.get()
        if self._has_company:
            self._gather()
        while found is not None:
            tickets.append(found)
            if len(tickets) == self._max_batches:
                break
            try:
                found = self._waiting.get_nowait()
            except Empty:
                break
        else:
            self._waiting.put(None)  # the end, for the call after this one
        self._has_company = len(tickets) > 1
        return tickets

    def _gather(self) -> None:
        """Waits a moment for others, as long as more of them come.

        Callers whose writes were committed together come back together, one by one. Whoever commits the first of them
        by itself makes two groups that take turns, and twice the commits. A caller alone never waits.
        """
        until = time.monotonic() + GATHER_S
        seen = -1
        while (waiting := self._waiting.qsize()) != seen and waiting < self._max_batches and time.monotonic() < until:
            seen = waiting
            time.sleep(_LOOK_S)

    def _commit(self, tickets: Sequence[_Ticket]) -> None:
        outcomes: Sequence[Outcome]
        self._began = time.monotonic()
        try:
            outcomes = self._breaker.call(self._backend.apply, [batch for batch, _ in tickets])
        except Exception as error:  # noqa: BLE001 - belongs to everybody who waits for this transaction
            _LOG.warning("A transaction of %d writes failed: %s", len(tickets), error)
            outcomes = [error] * len(tickets)
        self._began = None
        for (_, future), outcome in zip(tickets, outcomes, strict=True):
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


# Writes that nobody waits for: kept in memory for a moment, then written together.


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
