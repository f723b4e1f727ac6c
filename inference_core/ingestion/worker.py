"""Worker: empties the outbox in the background, in this process or in a separate one.

The worker decides when to work. `pipeline.py` does the work, and decides what happens if the process is killed or the
user is erased in between.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from inference_core.effects import WorkerPool, run, start_thread
from inference_core.errors import StoreError, only_warned
from inference_core.ingestion.periodic.tasks import PeriodicWork
from inference_core.ingestion.pipeline import BatchOutcome, BatchReport, Extractor, Pipeline
from inference_core.outbox.outbox import Limits
from inference_core.outbox.partitions import Partition
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService

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
    """What a worker has done: batches, messages that left the outbox, dead letters, failed attempts, periodic work."""

    batches: int = 0
    messages: int = 0
    dead: int = 0
    failures: int = 0
    periodic: int = 0


@dataclass(slots=True)
class _Lap:
    """A pass over the partitions: those in progress, those to work on alone, and whether another pass is due."""

    under_way: set[Partition] = field(default_factory=set[Partition])
    alone: list[tuple[Partition, int]] = field(default_factory=list[tuple[Partition, int]])
    has_more: bool = False


class Worker:
    """Extracts memories from messages in the outbox, for ``threads`` users at once.

    It checks the outbox every ``interval_s`` seconds, when woken, and when code in this process has added a full batch
    of a user's messages. After five failures of the model in a row it pauses, up to five minutes, so that an outage
    does not use up the attempts of all messages. Any number of workers may share an outbox. ``chore`` is called after
    each check of the background thread.
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
        self._changed = threading.Condition()
        self._is_woken = False
        self._noted: dict[Partition, int] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._failures = 0
        self._paused_until = 0.0

    @classmethod
    def of(
        cls,
        service: AgentMemoryStoreService | SyncMemoryService,
        extractor: Extractor,
        *,
        limits: Limits | None = None,
        periodic: PeriodicWork | None = None,
        interval_s: float = INTERVAL_S,
        threads: int = THREADS,
    ) -> Worker:
        """A worker for the outbox in the service's store, for all of its users and agents."""
        pipeline = Pipeline(service.scope, extractor, limits=limits, periodic=periodic)
        return cls(pipeline, interval_s=interval_s, threads=threads)

    def drain(self) -> Progress:
        """Processes all messages that are due now. Raises StoreError if the outbox cannot be read."""
        # A model may take minutes, and its calls have their own timeout: the pool never takes a long one for hung.
        pool = WorkerPool(self._threads, "memory-worker", hang_s=math.inf)
        try:
            while self._pass(pool):
                pass
        finally:
            pool.close()
        return self.progress

    def waiting(self) -> list[Partition]:
        """The partitions that may have something to do now. Raises StoreError."""
        return [partition for partition, _ in run(self._pipeline.partitions())]

    def work_on(self, partition: Partition) -> None:
        """Works on ``partition`` alone, until it has nothing left to do now.

        Raises StoreError if the outbox cannot be read.
        """
        has_more = True
        while has_more:
            seen = run(self._pipeline.outbox.seen(partition))
            has_more = seen > 0 and self._tried((partition, seen), alone=True).has_more

    def start(self) -> None:
        """Starts the background thread, once."""
        with self._lock:
            if self._thread is None:
                self._pipeline.outbox.watch(self.note)
                thread = threading.Thread(target=self._work, name="memory-worker", daemon=True)
                start_thread(thread)
                self._thread = thread

    def wake(self) -> None:
        """Makes the background thread check for work now. Safe to call from any thread."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def note(self, partition: Partition, count: int) -> None:
        """Notes ``count`` new messages of ``partition``; wakes the worker once a full batch of them waits."""
        with self._changed:
            waiting = self._noted.get(partition, 0) + count
            self._noted[partition] = waiting
        if waiting >= self._pipeline.outbox.limits.batch_messages:
            self.wake()

    def close(self, timeout: float = _PARTING_S) -> None:
        """Stops after the current batches; waits ``timeout`` seconds for them. Other messages stay in the outbox."""
        self._pipeline.outbox.unwatch(self.note)
        self._closed.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout)

    @property
    def _rests(self) -> bool:
        return self._closed.is_set() or time.monotonic() < self._paused_until

    def _work(self) -> None:
        while not self._closed.is_set():
            # Whatever failed may work at the next check, and nobody would notice that the thread has ended.
            with only_warned(_LOG, "The outbox cannot be read: %s"):
                self.drain()
            if self._chore and not self._closed.is_set():
                with only_warned(_LOG, "A worker's chore failed: %s"):
                    self._chore()
            with self._changed:
                # `_pass` may have cleared the flag by which close() wakes this thread, so check `_closed` as well.
                self._changed.wait_for(lambda: self._is_woken or self._closed.is_set(), self._interval_s)
                self._is_woken = False

    def _pass(self, pool: WorkerPool) -> bool:
        """Works on all partitions, including those that come in meanwhile; returns whether to make another pass.

        Each partition goes on by itself: a slow one occupies a thread, but no other partition waits for it.
        """
        lap = _Lap()
        try:
            while not self._rests and not lap.alone:
                with self._changed:  # before reading the outbox, so that nothing put in meanwhile is missed
                    noted, self._noted = self._noted, {}
                    self._is_woken = False
                listed = run(self._pipeline.partitions())
                with self._changed:  # all before the first one goes on, which needs this lock for that
                    for found in listed:
                        is_new = found[0] not in lap.under_way
                        # The partition's last batch may have been read before this message was put in.
                        lap.has_more |= not is_new and found[0] in noted
                        if is_new:
                            pool.submit(partial(self._go_on, pool, lap, found))
                            lap.under_way.add(found[0])
                with self._changed:  # until all is done, or it is time to look for other partitions
                    self._changed.wait_for(lambda: not lap.under_way or lap.alone or self._is_woken, self._interval_s)
                    if not lap.under_way:
                        break
        finally:
            # Even if the outbox cannot be read: nothing may still run when the next pass begins or the worker closes.
            with self._changed:
                self._changed.wait_for(lambda: not lap.under_way)
        # Last, while this worker has nothing else in progress: a message that killed another worker may kill it too.
        for found in lap.alone:
            lap.has_more |= self._tried(found, alone=True).has_more
        return lap.has_more

    def _go_on(self, pool: WorkerPool, lap: _Lap, found: tuple[Partition, int]) -> None:
        """Works on one batch of a partition, then queues its next batch behind those of all other partitions."""
        partition, _ = found
        report = self._tried(found, alone=False)
        goes_on = False
        try:
            seen = run(self._pipeline.outbox.seen(partition)) if report.has_more and not self._rests else 0
            if seen:
                with self._changed:
                    pool.submit(partial(self._go_on, pool, lap, (partition, seen)))
                goes_on = True
        except StoreError as error:
            _LOG.warning("Messages of one user wait for the next look: %s", error)
        finally:  # whatever happens, else the pass would wait for this partition forever
            with self._changed:
                lap.has_more |= report.has_more
                if report.outcome is BatchOutcome.ALONE:
                    lap.alone.append(found)
                if not goes_on:
                    lap.under_way.discard(partition)
                self._changed.notify_all()

    def _tried(self, found: tuple[Partition, int], *, alone: bool) -> BatchReport:
        """Works on one batch of a partition. An error is only logged; the batch is retried later."""
        if self._rests:
            return BatchReport(BatchOutcome.LATER)
        report = BatchReport(BatchOutcome.LATER)
        with only_warned(_LOG, "Work on messages stopped: %s"):
            report = run(self._pipeline.process(*found, alone=alone))
        with self._lock:
            self.progress.batches += report.outcome is BatchOutcome.DONE
            self.progress.messages += report.messages
            self.progress.dead += report.dead
            self.progress.periodic += report.periodic
            self.progress.failures += report.outcome in (BatchOutcome.LATER, BatchOutcome.MODEL_FAILED)
            if report.outcome is BatchOutcome.DONE:
                self._failures = 0
            elif report.outcome is BatchOutcome.MODEL_FAILED:
                self._failures += 1
                if self._failures >= _FAILURES:
                    pause = min(_FIRST_PAUSE_S * 2.0 ** min(_DOUBLINGS, self._failures - _FAILURES), _LONGEST_PAUSE_S)
                    self._paused_until = time.monotonic() + pause
                    _LOG.warning("The model failed %d times in a row; the worker rests for %d s", self._failures, pause)
        return report
