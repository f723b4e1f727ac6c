"""Worker: empties the outbox in the background, in this process or in one of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from inference_core.drivers import Pool, run
from inference_core.errors import StoreError
from inference_core.ingestion.partitions import Partition
from inference_core.ingestion.pipeline import Outcome, Pipeline, Report

_LOG = logging.getLogger(__name__)
INTERVAL_S: Final = 30.0
THREADS: Final = 4
_FAILURES: Final = 5
_FIRST_PAUSE_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 300.0
_DOUBLINGS: Final = 16
_PARTING_S: Final = 10.0


@dataclass(slots=True)
class Progress:
    """What a worker has done: batches, the messages in them, those that died, attempts that failed.

    ``periodic`` counts the batches that were no messages, but periodic work.
    """

    batches: int = 0
    messages: int = 0
    dead: int = 0
    failures: int = 0
    periodic: int = 0


class Worker:
    """Looks for messages every ``interval_s`` seconds, or when woken, and works on ``threads`` users at once.

    After five failures of the model in a row it rests, up to five minutes, so that an outage does not use up the tries
    of all messages. Any number of workers may share an outbox. ``chore`` is done after each look in the background.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        interval_s: float = INTERVAL_S,
        threads: int = THREADS,
        chore: Callable[[], object] | None = None,
    ) -> None:
        self.progress = Progress()
        self._pipeline = pipeline
        self._interval_s = interval_s
        self._threads = threads
        self._chore = chore
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._failures = 0
        self._paused_until = 0.0

    def drain(self) -> Progress:
        """Works until nothing is left that can be worked on now. Raises StoreError if the outbox cannot be read."""
        pool = Pool(self._threads, "memory-worker")
        try:
            while self._round(pool):
                pass
        finally:
            pool.close()
        return self.progress

    def waiting(self) -> list[Partition]:
        """Those that may have something to do now. Raises StoreError."""
        return [partition for partition, _ in run(self._pipeline.partitions())]

    def work_on(self, partition: Partition) -> None:
        """Works on ``partition`` alone, until nothing is left that can be worked on now.

        Raises StoreError if the outbox cannot be read.
        """
        has_more = True
        while has_more:
            seen = run(self._pipeline.outbox.seen(partition))
            has_more = seen > 0 and self._tried((partition, seen), alone=True).has_more

    def start(self) -> None:
        """Starts working in the background; does nothing if that has begun."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="memory-worker", daemon=True)
                self._thread.start()

    def wake(self) -> None:
        """There is work."""
        self._wake.set()

    def close(self, timeout: float = _PARTING_S) -> None:
        """Stops after the batches in hand, for which it waits ``timeout`` seconds; what was not finished stays."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def _rests(self) -> bool:
        return self._closed.is_set() or time.monotonic() < self._paused_until

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                self.drain()
            except StoreError as error:
                _LOG.warning("The outbox cannot be read: %s", error)
            if self._chore and not self._closed.is_set():
                self._chore()
            self._wake.wait(self._interval_s)
            self._wake.clear()

    def _round(self, pool: Pool) -> bool:
        """One batch of each partition; whether there is more to do now."""
        if self._rests:
            return False
        partitions = run(self._pipeline.partitions())
        futures = [pool.submit(partial(self._tried, one, alone=False)) for one in partitions]
        reports = [future.result() for future in futures]
        for at, one in enumerate(partitions):
            if reports[at].outcome is Outcome.ALONE:
                reports[at] = self._tried(one, alone=True)
        return any(report.has_more for report in reports)

    def _tried(self, found: tuple[Partition, int], *, alone: bool) -> Report:
        """One batch of a partition; what fails for the store's sake is worked on again later."""
        if self._rests:
            return Report(Outcome.LATER)
        try:
            report = run(self._pipeline.process(*found, alone=alone))
        except Exception as error:  # noqa: BLE001 - the other messages are worked on
            _LOG.warning("Work on messages stopped: %s", error)
            report = Report(Outcome.LATER)
        with self._lock:
            self._note(report)
        return report

    def _note(self, report: Report) -> None:
        self.progress.batches += report.outcome is Outcome.DONE
        self.progress.messages += report.messages
        self.progress.dead += report.dead
        self.progress.periodic += report.periodic
        self.progress.failures += report.outcome in (Outcome.LATER, Outcome.MODEL_FAILED)
        if report.outcome is Outcome.DONE:
            self._failures = 0
        elif report.outcome is Outcome.MODEL_FAILED:
            self._failures += 1
            if self._failures >= _FAILURES:
                pause = min(_FIRST_PAUSE_S * 2.0 ** min(_DOUBLINGS, self._failures - _FAILURES), _LONGEST_PAUSE_S)
                self._paused_until = time.monotonic() + pause
                _LOG.warning("The model failed %d times in a row; the worker rests for %d s", self._failures, pause)
