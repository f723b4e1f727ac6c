"""Group commit: one thread joins the writes that wait into one durable transaction of the database.

Users take turns, so that a user with thousands of writes does not hold up the others. If a write's caller has gone, the
write is dropped while it is queued, and finished once it is in a transaction. The writer refuses further writes only if
a transaction has been running for `HANG_S` seconds.

A save never waits for a reader on SQLite, whose WAL lets both go on at once (`backends/sql/sqlite.py`), nor in the file
store, whose readers need no lock. In ``memory://``, readers and writers share one lock, so a save waits for a read that
is under way.

Source: Gray and Reuter, Transaction Processing, 1993, section 9.4 (group commit).

Circuit breaker: a database that keeps failing is left alone for a while, so that nobody waits for it in vain.

The breaker counts the errors that calls of the database raise, in the thread that makes them. A caller's timeout does
not count, as it says nothing about the database.
If the database does not answer at all, the pool and the writer refuse calls (`HANG_S`).

Source: Nygard, Release It!, 2nd edition 2018, section 5.2.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from inference_core.effects import HANG_S, Process, awake_s, start_thread
from inference_core.errors import StoreBusy, StoreError, StoreUnavailable
from inference_core.stores.backend import Backend, Batch, Outcome, keys_in
from inference_core.stores.rules.write_rules import rules_of

PATIENCE: Final = 5
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0


class Breaker:
    """Refuses calls after five failures in a row; after a pause, which doubles up to 4 s, it lets one through.

    Each call of the database is made in a ``with`` of it, and only if `check` allows it.
    """

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

    def __enter__(self) -> None:
        """Begins a call of the database, whether or not `check` would refuse it."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Counts how the call ended.

        StoreUnavailable is a failure. StoreBusy and every other StoreError end a row of failures, as a success does:
        the database has answered.
        """
        if kind is not None and issubclass(kind, StoreUnavailable) and not issubclass(kind, StoreBusy):
            with self._lock:
                self._failures += 1
                self._refuses_until = time.monotonic() + self._pause()
        elif self._failures and (kind is None or issubclass(kind, StoreError)):
            with self._lock:
                self._failures = 0

    def check(self) -> None:
        """Raises StoreUnavailable while the circuit is open: the database is left alone after failures in a row."""
        with self._lock:
            if not self.is_open:
                return
            left = self._refuses_until - time.monotonic()
            if left > 0:
                raise StoreUnavailable(
                    f"{self._what} failed {self._failures} times in a row; left alone for {left:.1f} s"
                )
            self._refuses_until = time.monotonic() + self._pause()

    def _pause(self) -> float:
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(16, max(0, self._failures - PATIENCE)))


_LOG = logging.getLogger(__name__)
MAX_BATCHES: Final = 512
SHARE: Final = 64
"""The most writes of one user in a transaction, so that a user with thousands of writes holds nobody up for long."""
GATHER_S: Final = 0.002
"""The longest wait for more writes to join a transaction, in seconds: about what a commit takes."""
_LOOK_S: Final = 0.0003
_Ticket = tuple[Batch, Future[list[int]]]


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
        self.backend, self._rules = backend, rules_of(backend)
        self._breaker = breaker or Breaker(f"Writing {backend.name}")
        self._max_batches = max_batches
        self._hang_s = hang_s
        self._waiting: SimpleQueue[_Ticket | None] = SimpleQueue()
        self._turns: dict[str, deque[_Ticket]] = {}
        """What the writer's thread has taken from the queue, by user, in the order of their turns."""
        self._is_ending = False
        self._turn = threading.Lock()
        self._process = Process()
        self._thread: threading.Thread | None = None
        self._has_company = False
        self._began: float | None = None
        self._closed = False

    @property
    def writable(self) -> bool:
        """Whether the database takes writes."""
        return self.backend.capabilities.writable

    def submit(self, batch: Batch) -> Future[list[int]]:
        """Queues ``batch``, which is applied as a whole or not at all; the future gives the version after each write.

        Raises StoreUnavailable if the writer is closed, hangs in an earlier write, or this process is a fork.
        """
        self._process.check()
        future: Future[list[int]] = Future()
        with self._turn:
            if self._closed:
                raise StoreUnavailable("The store is closed")
            if self._busy_s() >= self._hang_s:
                raise StoreUnavailable("The store hangs in an earlier write")
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="memory-writer", daemon=True)
                start_thread(thread)
                self._thread = thread
            self._waiting.put((batch, future))
        return future

    @property
    def is_slow(self) -> bool:
        """Whether a transaction has been running for half the time after which it counts as hung."""
        return self._busy_s() >= self._hang_s / 2

    def _busy_s(self) -> float:
        began = self._began  # read once: the writer's thread changes it at any time
        return 0.0 if began is None else awake_s() - began

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
            if not running:
                continue
            outcomes: Sequence[Outcome]
            self._began = awake_s()
            try:
                with self._breaker:
                    outcomes = self._rules.apply([batch for batch, _ in running])
            except Exception as error:  # noqa: BLE001 - belongs to everybody who waits for this transaction
                _LOG.warning("A transaction of %d writes failed: %s", len(running), error)
                outcomes = [error] * len(running)
            self._began = None
            for (_, future), outcome in zip(running, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _next(self) -> list[_Ticket]:
        """The next tickets, at most ``max_batches``; none once the writer is closed and nothing waits any more."""
        if not (self._turns or self._is_ending):
            self._queue(self._waiting.get())
            if self._has_company:
                # Callers whose writes were committed together come back shortly after each other. To commit the first
                # by itself would make two groups that take turns, and twice the commits. A lone caller never waits.
                until, seen = time.monotonic() + GATHER_S, -1
                while self._waiting.qsize() not in (seen, self._max_batches) and time.monotonic() < until:
                    seen = self._waiting.qsize()
                    time.sleep(_LOOK_S)
        with suppress(Empty):
            while True:
                self._queue(self._waiting.get_nowait())
        tickets: list[_Ticket] = []
        for _ in range(SHARE):
            if not self._turns:
                break
            for user in list(self._turns)[: self._max_batches - len(tickets)]:
                waiting = self._turns.pop(user)
                tickets.append(waiting.popleft())
                if waiting:
                    self._turns[user] = waiting  # behind those who had no turn yet
        self._has_company = len(tickets) > 1
        return tickets

    def _queue(self, ticket: _Ticket | None) -> None:
        if ticket is None:
            self._is_ending = True
        else:
            first = next(keys_in(ticket[0]), None)
            user = first[0][0] if first else ""
            self._turns.setdefault(user, deque()).append(ticket)
