"""Worker: empties the outbox in the background, in this process or in a separate one.

The worker decides when to work. Its `Pipeline` does the work (claim, extract, consolidate, settle, and periodic work on
demand), and decides what happens if the process is killed or the user is erased in between.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from enum import Enum
from functools import partial
from inspect import signature
from typing import Any, Final, Protocol, runtime_checkable

from inference_core.clock import time_zone
from inference_core.effects import Operation, WorkerPool, run, start_thread
from inference_core.errors import (
    ConfigurationError,
    ModelError,
    QuotaExceeded,
    StoreUnavailable,
    UserErased,
    VersionConflict,
    only_warned,
)
from inference_core.ingestion.consolidation import MemoryChanges, consolidated, offered_for
from inference_core.ingestion.extraction.captions import captions_of, made_media_model
from inference_core.ingestion.periodic.insights import Beliefs, beliefs, changed_groups, groups_answered
from inference_core.ingestion.periodic.tasks import PeriodicWork, TaskHandler, insight_work, session_work
from inference_core.ingestion.undo import is_done, job_put
from inference_core.memory.namespaces import MemoryNamespaceBuilder, encode_label
from inference_core.memory.redaction import told_error
from inference_core.memory.trust import MemorySource, Origin
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import (
    Candidate,
    ConversationMessage,
    Extraction,
    KnownMemory,
    any_outside,
    noted_outside,
    session_name,
)
from inference_core.outbox.outbox import Claim, Limits, Outbox, Partition
from inference_core.services.agent_memory_service import AgentMemoryStoreService, SyncMemoryService
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.backend import Check, Write
from inference_core.stores.factory import refuse_mock
from inference_core.telemetry import DIRECTION, OPERATION, TOKENS, processing, record

_LOG = logging.getLogger(__name__)
_ATTEMPTS: Final = 3
_FULL_S: Final = 900.0
"""How long the messages of a user whose memory is full wait for the next attempt."""
_ENDED: Final = "The worker ended, or lost the database, each time it worked on this message"


@runtime_checkable
class Extractor(Protocol):
    """Finds memories in messages, with a language model or by rules.

    An extractor whose ``extract`` has a keyword ``earlier`` is also given the session's last messages before these.
    """

    def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Operation[Extraction]:
        """The candidates of ``messages``. Raises ModelError."""
        ...


def checked_extractor(extractor: Extractor) -> Extractor:
    """``extractor``. Raises ConfigurationError if it is none, but for example a model, its name or a class."""
    if isinstance(extractor, type) or not isinstance(extractor, Extractor):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise ConfigurationError(f"{extractor!r:.80} is no extractor: pass ModelExtractor([model]) or RuleExtractor()")
    return extractor


class BatchOutcome(str, Enum):
    """The outcome of an attempt to work on a partition.

    ALONE: not tried, because a worker died while it worked on these messages. Try again while this worker does nothing
    else: if it dies too, no other messages are affected.
    """

    NOTHING = "nothing"
    DONE = "done"
    LATER = "later"
    ALONE = "alone"
    MODEL_FAILED = "model failed"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The messages that left the outbox in an attempt, how many of them are dead letters, and whether more is due now.

    For periodic work, ``periodic`` counts pieces of work instead of ``messages``; ``dead`` counts either kind.
    """

    outcome: BatchOutcome
    messages: int = 0
    dead: int = 0
    has_more: bool = False
    periodic: int = 0


class MessageWork:
    """Makes memories of messages, and schedules the ``periodic`` work that follows from them."""

    def __init__(self, outbox: Outbox, extractor: Extractor, periodic: PeriodicWork) -> None:
        self._outbox = outbox
        self._extractor = extractor
        self._takes_earlier = "earlier" in signature(extractor.extract).parameters
        self._periodic = periodic

    async def extracted(self, scope: MemoryScope, claim: Claim) -> Extraction:
        """The candidates of the messages. Raises ModelError, StoreError."""
        messages = [waiting.message.in_words for waiting in claim.batch]
        offered = await offered_for(scope, claim.partition.user_id, messages)
        if not any_outside([*claim.earlier, *messages]):
            # A model that was shown text from outside could repeat it as the user's.
            offered = [memory for memory in offered if not memory.is_external]
        more: dict[str, Any] = {"earlier": claim.earlier} if self._takes_earlier else {}
        found = await self._extractor.extract(messages, offered, scope.clock.now(), scope.zone, **more)
        captions = [
            Candidate(
                content=caption,
                memory_type=MemoryType.INTERACTION,
                message_ids=(message.id,) if message.id else (),
                origin=Origin.DOCUMENT,
            )
            for message in (waiting.message for waiting in claim.batch)
            for caption in message.captions
        ]
        return replace(found, candidates=[*captions, *found.candidates]) if captions else found

    def changes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[MemoryChanges]:
        """What the candidates change in memory. Raises StoreError."""
        messages = [waiting.message for waiting in claim.batch]
        user, candidates = claim.partition.user_id, extraction.candidates
        return consolidated(scope, user, candidates, messages, claim.job_id, earlier=claim.earlier)

    async def completion_writes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> list[Write]:
        """The writes by which the messages leave the outbox and periodic work is scheduled. Raises StoreError."""
        del extraction
        following = await self._periodic.following(scope, self._outbox, claim)
        return [*self._outbox.completion_writes(claim), *following]


class Pipeline:
    """Makes memories of the messages in ``outbox``, by default the outbox in the store of ``scope``.

    Any number of workers, on any number of machines, may call ``process`` at once. If the outbox is in another
    database, the memories are written first, with a note of the job, so that a repetition changes nothing. ``periodic``
    is the workers' other work; by default none.
    """

    def __init__(
        self,
        scope: MemoryScope,
        extractor: Extractor,
        *,
        outbox: Outbox | None = None,
        limits: Limits | None = None,
        periodic: PeriodicWork | None = None,
    ) -> None:
        self.scope = scope
        self.outbox = outbox or Outbox(scope.engine, scope.clock, limits)
        self.periodic = periodic or PeriodicWork()
        messages = MessageWork(self.outbox, checked_extractor(extractor), self.periodic)
        self._handlers: dict[str | None, TaskHandler] = {None: messages, **self.periodic.works(self.outbox)}

    def partitions(self) -> Operation[list[Partition]]:
        """The partitions that may have work to do now."""
        return self.outbox.partitions(self._handlers)

    async def process(self, partition: Partition, *, alone: bool = True) -> BatchReport:
        """Works on one batch of ``partition``. Raises StoreError; the claimed messages are then retried later.

        ``alone``: the caller does nothing else meanwhile; only then are messages tried that a worker was working on
        when it died.
        """
        fence: Sequence[Check] = ()
        if self.outbox.engine is not self.scope.engine:  # else the claim's fence tells if the user was erased since
            fence = await self.scope.engine.fence_checks([encode_label(partition.user_id)])
        found = await self.outbox.next_batch(partition)
        if found is None:
            return BatchReport(BatchOutcome.NOTHING)
        if self.outbox.is_exhausted(found):
            return await self._failed(found, _ENDED)
        if found.is_interrupted and not alone:
            return BatchReport(BatchOutcome.ALONE)
        claim = await self.outbox.claim(found)
        if claim is None:
            return BatchReport(BatchOutcome.NOTHING)
        began = time.perf_counter()
        with processing([message.trace for message in claim.batch], len(claim.batch)):
            report = await self._work_on(claim, fence)
        record("inference_core.worker.duration", time.perf_counter() - began, {"outcome": report.outcome.value})
        for outcome, count in (("done", report.messages - report.dead), ("dead", report.dead)):
            record("inference_core.worker.messages", max(0, count), {"outcome": outcome})
        return report

    async def _work_on(self, claim: Claim, fence: Sequence[Check]) -> BatchReport:
        # The agent's view, and the time zone in which the messages were written.
        namespaces = MemoryNamespaceBuilder(
            agent_name=claim.partition.agent_name, agent_scope_enabled=claim.partition.agent_scope_enabled
        )
        zone = self.scope.zone
        with suppress(ConfigurationError):  # an unknown zone
            zone = time_zone(claim.batch[0].zone) if claim.batch[0].zone else zone
        scope = replace(self.scope, namespaces=namespaces, zone=zone)
        try:
            work = self._handlers[claim.partition.task]
            extraction = claim.extraction
            if extraction is None:
                await scope.engine.check_room(claim.partition.user_id, claim.partition.agent_name)
                for waiting in [one for one in claim.batch if one.has_media]:
                    media = await self.outbox.media_of(claim, waiting)
                    captions = await captions_of(scope.media_model, media, scope.max_content_bytes)
                    session = waiting.message.session_id
                    await noted_outside(scope.engine, scope.clock, claim.partition.user_id, session, is_outside=True)
                    claim = await self.outbox.describe(claim, waiting, captions)
                extraction = await work.extracted(scope, claim)
                tokens = {"input": extraction.input_tokens, "output": extraction.output_tokens}
                for kind, count in tokens.items() if extraction.model_calls else ():
                    record(TOKENS, count, {OPERATION: "chat", DIRECTION: kind})
                claim = await self.outbox.keep(claim, extraction)
            has_more = await self._apply(scope, work, claim, extraction, fence)
        except QuotaExceeded as error:
            # The extraction, if it was made, is kept: no model is asked again once there is room.
            await self.outbox.release(claim, _FULL_S)
            _LOG.warning("Messages of one user wait for %d s: %s", _FULL_S, error)
            return BatchReport(BatchOutcome.LATER)
        except (VersionConflict, UserErased):
            await self.outbox.release(claim)
            # The lease ran out and another worker has the batch, memories keep changing, or the user was erased.
            return BatchReport(BatchOutcome.LATER)
        except StoreUnavailable:
            await self.outbox.release(claim)
            raise
        except Exception as error:  # noqa: BLE001 - whatever an extractor raises must not end the worker
            _LOG.warning("Messages of one user could not be made memories: %s", told_error(error))
            outcome = BatchOutcome.MODEL_FAILED if isinstance(error, ModelError) else BatchOutcome.LATER
            return await self._failed(claim, f"{type(error).__name__}: {error}", outcome)
        return _report(claim, BatchOutcome.DONE, len(claim.batch), has_more=has_more)

    async def _failed(self, claim: Claim, reason: str, outcome: BatchOutcome = BatchOutcome.LATER) -> BatchReport:
        try:
            dead = await self.outbox.failed(claim, reason)
        except VersionConflict:
            # Periodic work was put off meanwhile, which makes it new work; or another worker has the lease by now.
            await self.outbox.release(claim)
            return BatchReport(BatchOutcome.LATER)
        report = _report(claim, outcome, len(dead), has_more=bool(dead) or len(claim.batch) > 1)
        return replace(report, dead=len(dead))

    async def _apply(
        self,
        scope: MemoryScope,
        work: TaskHandler,
        claim: Claim,
        extraction: Extraction,
        fence: Sequence[Check],
    ) -> bool:
        """Applies the extraction and removes the batch from the outbox; atomically if both are in one database.

        Returns whether the partition may have more to do now.
        """
        user, name = claim.partition.user_id, claim.partition.task or "consolidate"
        source = MemorySource(origin=Origin.AGENT, thread_id=session_name(claim.batch[0].message.session_id))
        for attempt in range(1, _ATTEMPTS + 1):
            settled = await work.completion_writes(scope, claim, extraction)
            writes: list[Write] = []
            if not await is_done(scope, user, claim.job_id):
                changes = await work.changes(scope, claim, extraction)
                writes = changes.writes
                # Periodic work that changed nothing, without asking a model, leaves no note.
                if not claim.partition.task or changes.changed or changes.problems or extraction.model_calls:
                    writes.append(job_put(scope, user, claim.batch[0].message.session_id, changes, extraction))
            try:
                if self.outbox.engine is scope.engine:
                    await scope.write([*settled, *writes], name, source=source, job=claim.job_id)
                else:
                    # Memories and the note first: after a crash in between, the note tells that they are written.
                    if writes:
                        await scope.write([*writes, *fence], name, source=source, job=claim.job_id)
                    await self.outbox.engine.write(settled)
            except VersionConflict:
                if attempt == _ATTEMPTS:
                    raise
                claim = replace(claim, listed=0)  # perhaps a message has come in: the partition stays on the list
            else:
                break
        return not claim.listed


def _report(claim: Claim, outcome: BatchOutcome, count: int, *, has_more: bool) -> BatchReport:
    messages, periodic = (0, count) if claim.partition.task else (count, 0)
    return BatchReport(outcome, messages, has_more=has_more, periodic=periodic)


@dataclass(frozen=True, slots=True)
class Done:
    """Counts pieces of periodic work: those done, and those that failed, to be retried later or dead letters now."""

    done: int = 0
    failed: int = 0


async def insights_to_do(pipeline: Pipeline, user_id: str) -> tuple[Beliefs, list[str]]:
    """What is known of the user, and the names of the groups that a model would be asked about."""
    found = await beliefs(pipeline.scope, user_id)
    answered = await groups_answered(pipeline.outbox, insight_work(user_id)[0])
    return found, [group.name for group in changed_groups(found, answered)]


async def summarize_now(pipeline: Pipeline, user_id: str, sessions: Sequence[str]) -> Done:
    """Summarizes these sessions of the user, which are over. Raises StoreError; one that fails is retried later."""
    partition = Partition.of(user_id, pipeline.scope.namespaces)
    works = [session_work(partition, session_name(session) or "") for session in sessions]
    return await _done_now(pipeline, works)


async def look_after_insights_now(pipeline: Pipeline, user_id: str) -> Done:
    """Makes and ends higher-level memories of the user now. Raises StoreError; what fails is retried later."""
    return await _done_now(pipeline, [insight_work(user_id)])


async def _done_now(pipeline: Pipeline, works: Sequence[tuple[Partition, ConversationMessage]]) -> Done:
    outbox, scope = pipeline.outbox, pipeline.scope
    for partition, work in works:
        writes = await outbox.schedule_writes(partition, work, scope.clock.now(), str(scope.zone), puts_off=True)
        await outbox.engine.write(writes)
    done = failed = 0
    for partition, _ in works:  # one attempt each: a failed piece is not due again before its backoff ends
        report = await pipeline.process(partition)
        done += report.periodic - report.dead
        failed += report.dead or report.outcome not in (BatchOutcome.DONE, BatchOutcome.NOTHING)
    return Done(done, failed)


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
    alone: list[Partition] = field(default_factory=list[Partition])
    has_more: bool = False


class Worker:
    """Extracts memories from messages in the outbox, for ``threads`` users at once.

    It checks the outbox every ``interval_s`` seconds, when woken, and when code in this process has added a full batch
    of a user's messages. After five failures of the model in a row it pauses, up to five minutes, so that an outage
    does not use up the attempts of all messages. Any number of workers may share an outbox. ``chore`` is called after
    each check of the background thread. Raises ConfigurationError and MissingExtra if the model for media cannot be
    made.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        interval_s: float = INTERVAL_S,
        threads: int = THREADS,
        chore: Callable[[], object] | None = None,
    ) -> None:
        if pipeline.scope.media_model is not None:
            made_media_model(pipeline.scope.media_model)  # a wrong name shows now, not when the first picture comes
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
        refuse_mock(service)
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
        return run(self._pipeline.partitions())

    def work_on(self, partition: Partition) -> None:
        """Works on ``partition`` alone, until it has nothing left to do now.

        Raises StoreError if the outbox cannot be read.
        """
        while run(self._pipeline.outbox.is_listed(partition)) and self._tried(partition, alone=True).has_more:
            pass

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
                    for partition in listed:
                        is_new = partition not in lap.under_way
                        # The partition's last batch may have been read before this message was put in.
                        lap.has_more |= not is_new and partition in noted
                        if is_new:
                            pool.submit(partial(self._go_on, pool, lap, partition))
                            lap.under_way.add(partition)
                with self._changed:  # until all is done, or it is time to look for other partitions
                    self._changed.wait_for(lambda: not lap.under_way or lap.alone or self._is_woken, self._interval_s)
                    if not lap.under_way:
                        break
        finally:
            # Even if the outbox cannot be read: nothing may still run when the next pass begins or the worker closes.
            with self._changed:
                self._changed.wait_for(lambda: not lap.under_way)
        # Last, while this worker has nothing else in progress: a message that killed another worker may kill it too.
        for partition in lap.alone:
            lap.has_more |= self._tried(partition, alone=True).has_more
        return lap.has_more

    def _go_on(self, pool: WorkerPool, lap: _Lap, partition: Partition) -> None:
        """Works on one batch of a partition, then queues its next batch behind those of all other partitions."""
        report = self._tried(partition, alone=False)
        goes_on = False
        try:
            if report.has_more and not self._rests:
                with self._changed:
                    pool.submit(partial(self._go_on, pool, lap, partition))
                goes_on = True
        finally:  # whatever happens, else the pass would wait for this partition forever
            with self._changed:
                lap.has_more |= report.has_more
                if report.outcome is BatchOutcome.ALONE:
                    lap.alone.append(partition)
                if not goes_on:
                    lap.under_way.discard(partition)
                self._changed.notify_all()

    def _tried(self, partition: Partition, *, alone: bool) -> BatchReport:
        """Works on one batch of a partition. An error is only logged; the batch is retried later."""
        if self._rests:
            return BatchReport(BatchOutcome.LATER)
        report = BatchReport(BatchOutcome.LATER)
        with only_warned(_LOG, "Work on messages stopped: %s"):
            report = run(self._pipeline.process(partition, alone=alone))
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
