"""Jobs: work that takes longer than a request may, as rows of the store with their progress.

A job runs in a thread of the server that accepted it. If that server ends, another one takes it over: each kind of work
can be done twice without harm. A job's row lies under a hash of its user. Its input and output are stored in portions
beside the user's memories, for two days, and are removed with the user.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, get_args
from weakref import WeakValueDictionary

from inference_core.clock import Clock
from inference_core.effects import Operation, WorkerPool, arun, run
from inference_core.errors import (
    ConfigurationError,
    InferenceCoreError,
    InvalidInput,
    UserErased,
    VersionConflict,
    without_quotes,
)
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.forgetting import ForgettingPolicy, forget
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.audit import Actor
from inference_core.memory.namespaces import JOBS_ROOT, PORTIONS, Namespace, encode_label
from inference_core.memory.record import MemoryPage, MemoryStoreDocument
from inference_core.memory.text import encode_json
from inference_core.memory.wire import Memory
from inference_core.server.api.wire import Forgetting, NewMemory, Saved
from inference_core.server.problems import Refusal, problem_of, status_of, told
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.services.operations.list import list_memories
from inference_core.services.operations.save import save
from inference_core.services.operations.scope import MemoryScope, retried
from inference_core.stores.backend import Check, Expiry, Put, Row
from inference_core.stores.engine import StoreEngine

Kind = Literal["export", "forget", "save", "erase"]
LIFE: Final = timedelta(days=1)
"""A job is kept for this long after its last change."""
_LIFE_OF_PORTIONS: Final = 2 * LIFE
"""A job's input and output are kept for this long: longer than `LIFE`, as they are older than its last change."""
QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
_BESIDE: Final = ("id", "place", "version", "created_at", "updated_at", "is_stopped")


class Stopped(Exception):
    """Ends a job's work, since its server ends or another one has taken the job over."""


@dataclass(slots=True, kw_only=True)
class StoredJob:
    """A job, as its row stores it. ``user`` None: it is an erasure, which must not leave a name behind.

    ``is_given_up``: its server has shut down in good order, so another one need not wait for `ABANDONED` to take over.
    ``actor`` asked for the job, and ``server`` runs it. ``is_stopped`` asks its thread to end; it is not stored.
    """

    id: str
    place: Namespace
    kind: Kind
    user: str | None
    arguments: dict[str, Any]
    digest: str
    created_at: datetime
    updated_at: datetime
    state: str = QUEUED
    done: int = 0
    total: int | None = None
    portions: int = 0
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
    version: int = 0
    actor: dict[str, str] | None = None
    server: str = ""
    is_given_up: bool = False
    is_stopped: bool = False

    @classmethod
    def of(cls, row: Row) -> StoredJob:
        """The job in ``row``; fields that a later version of this package has added are left out."""
        known = {field.name for field in fields(cls)}.difference(_BESIDE)
        value = {name: what for name, what in row.value.items() if name in known}
        when = {"created_at": row.created_at, "updated_at": row.updated_at}
        return cls(id=row.key, place=row.namespace, version=row.version, **when, **value)

    def to_value(self) -> dict[str, Any]:
        """The value of its row."""
        return {name: value for name, value in asdict(self).items() if name not in _BESIDE}

    @property
    def is_over(self) -> bool:
        """Whether it is done or has failed."""
        return self.state in (DONE, FAILED)

    def advance(self, done: int, total: int | None) -> None:
        """Notes the progress, called from the job's thread. Raises Stopped once the job is to stop."""
        self.done, self.total = done, total
        if self.is_stopped:
            raise Stopped


class Portions:
    """The portions of jobs in the store of ``engine``."""

    def __init__(self, engine: StoreEngine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock

    async def take_in(self, user: str, job: StoredJob, number: int, portion: Sequence[object]) -> None:
        """Stores a portion of the job's input, also where an interrupted attempt of the same request has stored it.

        Raises VersionConflict if another request has stored it, or the job is under way.
        """
        value = {"given": portion, "request": job.digest}
        (known,) = await self._engine.get([(_portions(user, job.id), str(number))])
        if known and known.value.get("request") != job.digest:
            raise VersionConflict("Another request has been given this key")
        await self.put(user, job.id, number, value, expected=known.version if known else 0)

    def put(
        self,
        user: str,
        job_id: str,
        number: int,
        value: dict[str, Any],
        fence: Sequence[Check] = (),
        *,
        expected: int | None = None,
    ) -> Operation[list[int]]:
        """Stores a portion together with the checks ``fence``; of version ``expected``, if given."""
        now = self._clock.now()
        put = Put(
            namespace=_portions(user, job_id),
            key=str(number),
            value=encode_json(value, what="portion of a job"),
            updated_at=now,
            expected=expected,
            expiry=Expiry(now + _LIFE_OF_PORTIONS, _LIFE_OF_PORTIONS),
        )
        return self._engine.write([put, *fence])

    async def fence(self, user: str, job: StoredJob) -> list[Check]:
        """The checks that refuse what a portion writes if the user is erased after this, before it reads anything.

        Raises UserErased if that has happened already: an erasure removes the row of the job.
        """
        checks = await self._engine.fence_checks([encode_label(user)])
        (row,) = await self._engine.get([(job.place, job.id)])
        if row is None:
            raise UserErased
        return checks

    def count(self, user: str, job_id: str) -> Operation[int]:
        """How many portions of a job there are."""
        return self._engine.count([_portions(user, job_id)])

    async def get(self, user: str, job_id: str, number: int) -> dict[str, Any]:
        """A portion of a job. Raises InvalidInput if it is gone, or else the rest would pass for the whole."""
        (row,) = await self._engine.get([(_portions(user, job_id), str(number))])
        if row is None:
            raise InvalidInput("The input or output of this job is no longer kept; start a new one")
        return row.value


def _portions(user: str, job_id: str) -> Namespace:
    return (encode_label(user), PORTIONS, job_id)


MOST: Final = 10
"""A user may have this many jobs that are unfinished, or exports, which hold a copy of the memories."""
ABANDONED: Final = timedelta(seconds=60)
"""A server writes its jobs more often than this; one that was not written for so long has lost its server."""
BEAT_S: Final = 15.0
TELL_S: Final = 0.3
_AGAIN_S: Final = 5.0
PORTION: Final = 200
_AT_ONCE: Final = 2
_LOG = logging.getLogger(__name__)


class Jobs:
    """Runs jobs for users of ``service``, two at once. ``ledger`` records erasures; with None, they are refused."""

    def __init__(self, service: AgentMemoryStoreService, ledger: Path | None = None) -> None:
        self.ledger, self._scope, self._timeout = ledger, service.scope, service.timeout
        self._engine, self._clock = service.scope.engine, service.scope.clock
        self.portions = Portions(self._engine, self._clock)
        self._pool = WorkerPool(_AT_ONCE, "jobs", hang_s=math.inf)
        self._running: dict[asyncio.Task[None], StoredJob] = {}
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        self._name = token_hex(8)
        self.is_closing = False

    async def submit(
        self,
        scope: MemoryScope,
        user: str,
        kind: Kind,
        arguments: dict[str, Any],
        *,
        given: Sequence[object] = (),
        request_key: str | None = None,
    ) -> StoredJob:
        """Stores a job and its input ``given``, durably, and begins it; a repeated ``request_key`` returns its job.

        Raises InvalidInput if that key began a different job, Refusal for too many, ConfigurationError, StoreError.
        """
        if kind == "erase" and self.ledger is None:
            raise ConfigurationError("This server has no ledger of erasures; run inference-core erase")
        place = await self._place(user)
        digest = await self._keyed(json.dumps([kind, arguments, given], sort_keys=True))
        name = token_hex(16) if request_key is None else (await self._keyed(f"{user}\0{request_key}"))[:32]
        now, portions = self._clock.now(), [given[at : at + PORTION] for at in range(0, len(given), PORTION)]
        job = StoredJob(
            id=name,
            place=place,
            kind=kind,
            user=None if kind == "erase" else user,
            arguments=arguments,
            digest=digest,
            created_at=now,
            updated_at=now,
            total=len(given) or None,
            portions=len(portions),
            actor=None if kind == "erase" else scope.actor.to_value(),
            server=self._name,
        )
        try:
            async with self._turns.setdefault(user, asyncio.Lock()):  # else requests at once would not count
                if request_key is None or not (known := await self.get(user, name)):
                    kept = [job for job in await self.all_of(user) if not job.is_over or job.kind == "export"]
                    if len(kept) >= MOST and kind != "erase":
                        why = f"There are {len(kept)} unfinished jobs and exports of the last day; {MOST} are allowed"
                        raise Refusal(429, "too-many-jobs", why)
                    for number, portion in enumerate(portions):
                        await arun(self.portions.take_in(user, job, number, portion))
                    await self._write(job)
                    self._start(job, user, scope)
                    return job
        except VersionConflict:  # the same request, sent to two servers at once
            known = await self.get(user, name)
        if known is None or known.digest != digest:
            raise InvalidInput("This idempotency key was used for another job; choose a new one")
        return known

    async def get(self, user: str, job_id: str) -> StoredJob | None:
        """A job of ``user``; None if there is none with this id."""
        (row,) = await arun(self._engine.get([(await self._place(user), job_id)]), self._timeout)
        return row and StoredJob.of(row)

    async def all_of(self, user: str) -> list[StoredJob]:
        """The jobs of ``user``, the newest first."""
        return list(map(StoredJob.of, await arun(self._engine.scan([await self._place(user)]), self._timeout)))

    async def has_lines(self, user: str, job: StoredJob) -> bool:
        """Whether all of a job's output is still there: an erasure of the user removes it."""
        return await arun(self.portions.count(user, job.id), self._timeout) >= job.portions

    async def lines(self, user: str, job: StoredJob) -> AsyncIterator[str]:
        """A job's output, as JSON Lines. Raises InvalidInput where a portion of it is gone, StoreError."""
        for number in range(job.portions):
            for line in (await arun(self.portions.get(user, job.id, number)))["lines"]:
                yield json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"

    async def take_up(self) -> None:
        """Takes over jobs whose server has ended: looks for them every minute, until it is cancelled."""
        while True:
            try:
                places = await arun(self._engine.namespaces((JOBS_ROOT,)))
                for row in await arun(self._engine.scan(places)):
                    await self._take_up(StoredJob.of(row))
            except InferenceCoreError as error:
                _LOG.warning("Jobs were not looked through: %s", without_quotes(error))
            await asyncio.sleep(ABANDONED.total_seconds())

    async def _take_up(self, job: StoredJob) -> None:
        is_ours = any((one.place, one.id) == (job.place, job.id) for one in self._running.values())
        # A queued job waits in the pool of the server that accepted it, which writes it every `BEAT_S` seconds too.
        has_server = job.updated_at > self._clock.now() - ABANDONED and not job.is_given_up
        if job.is_over or is_ours or has_server or job.kind not in get_args(Kind):  # a kind of a later version
            return
        user = job.user
        if user is None:
            detail = "The server ended meanwhile. Send the request again: it completes the erasure"
            job.state, job.problem = FAILED, problem_of(503, "interrupted", detail).model_dump(exclude_none=True)
        else:
            job.state, job.is_given_up = RUNNING, False
        job.server = self._name
        try:
            await self._write(job)
        except VersionConflict:
            return  # another server was faster
        if user is not None:
            self._start(job, user, replace(self._scope, actor=Actor.from_value(job.actor or {})))

    def stop(self) -> None:
        """Tells jobs to stop, so that the next server takes them over, and event streams to end; does not wait."""
        self.is_closing = True
        for job in self._running.values():
            job.is_stopped = True

    async def close(self) -> None:
        """Stops jobs, and waits up to two seconds for them to end."""
        self.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=2)
        self._pool.close()

    def _start(self, job: StoredJob, user: str, scope: MemoryScope) -> None:
        work = {"export": self._export, "forget": self._forget, "save": self._save, "erase": self._erase}[job.kind]
        task = asyncio.create_task(self._run(job, partial(work, scope, user, job)))
        self._running[task] = job
        task.add_done_callback(self._running.pop)

    async def _run(self, job: StoredJob, work: Callable[[], dict[str, Any]]) -> None:
        """Runs ``work`` in a thread and writes its progress; only this task writes the job's row meanwhile."""

        def begin() -> dict[str, Any]:
            job.state = RUNNING
            job.advance(job.done, job.total)
            return work()

        loop = asyncio.get_running_loop()
        task, written, next_beat = asyncio.wrap_future(self._pool.submit(begin)), job.to_value(), loop.time() + BEAT_S
        while not (await asyncio.wait({task}, timeout=TELL_S))[0]:
            if job.to_value() != written or loop.time() > next_beat:
                written, next_beat = job.to_value(), loop.time() + BEAT_S
                await self._tell(job)
        try:
            job.result, job.state = task.result(), DONE
        except Stopped:
            job.state, job.is_given_up = QUEUED, True
        except InferenceCoreError as error:
            job.state, job.problem = FAILED, told(error).model_dump(exclude_none=True)
        except Exception as error:  # noqa: BLE001 - nobody else would see it; its text may quote memories
            _LOG.error("The job %s failed: %s", job.id, without_quotes(error))
            job.state, job.problem = FAILED, problem_of(500, "internal-error").model_dump(exclude_none=True)
        # Write the outcome until that succeeds: else the next server does the job again, or reports that it failed.
        while not await self._tell(job) and not job.is_stopped:  # noqa: ASYNC110 - no event says that a store is back
            await asyncio.sleep(_AGAIN_S)

    async def _tell(self, job: StoredJob) -> bool:
        """Writes the job; returns whether the store confirmed it. Stops the job if another server has taken it over."""
        try:
            try:
                await self._write(job)
            except VersionConflict:
                (row,) = await arun(self._engine.get([(job.place, job.id)]))
                if row is None or StoredJob.of(row).server != job.server:
                    job.is_stopped = True
                    return False
                job.version = row.version  # an earlier write, which the store did not confirm, is there after all
                await self._write(job)
        except InferenceCoreError as error:
            _LOG.warning("How far the job %s is was not written: %s", job.id, without_quotes(error))
            return False
        return True

    async def _write(self, job: StoredJob) -> None:
        now, value = self._clock.now(), encode_json(job.to_value(), what="job")
        put = Put(
            namespace=job.place,
            key=job.id,
            value=value,
            updated_at=now,
            expected=job.version,
            expiry=Expiry(now + LIFE, LIFE),
        )
        (job.version,) = await arun(self._engine.write([put], is_clean=True))

    async def _keyed(self, text: str) -> str:
        return hmac.digest(await arun(self._engine.content_key(), self._timeout), text.encode(), "sha256").hex()

    async def _place(self, user: str) -> Namespace:
        """Where a user's jobs are: under a hash of the id, not below the user, so that an erasure keeps its own job."""
        return (JOBS_ROOT, (await self._keyed(f"jobs\0{user}"))[:32])

    def _export(self, scope: MemoryScope, user: str, job: StoredJob) -> dict[str, Any]:
        number, done, after = 0, 0, None

        async def copied() -> tuple[MemoryPage[MemoryStoreDocument], int]:
            fence = await self.portions.fence(user, job)
            page, total = await list_memories(scope, user, limit=PORTION, after=after)
            lines = [Memory.of(memory).model_dump(mode="json") for memory in page]
            await self.portions.put(user, job.id, number, {"lines": lines}, fence)
            return page, total

        while number == 0 or after is not None:
            page, total = run(retried(copied))
            number, done, after = number + 1, done + len(page), page.next_cursor
            job.portions = number
            job.advance(done, total)
        return {"exported": done}

    def _forget(self, scope: MemoryScope, user: str, job: StoredJob) -> dict[str, Any]:
        policy = ForgettingPolicy(**job.arguments["policy"])
        report = run(forget(scope, user, policy, dry_run=job.arguments["dry_run"], progress=job.advance))
        return Forgetting.of(report).model_dump()

    def _save(self, scope: MemoryScope, user: str, job: StoredJob) -> dict[str, Any]:
        done, stored = 0, 0

        async def saved(number: int) -> list[dict[str, Any]]:
            fence = await self.portions.fence(user, job)
            portion = await self.portions.get(user, job.id, number)
            if "given" in portion:  # else it was done before a server ended
                given = list(map(NewMemory.model_validate, portion["given"]))
                results = asyncio.run(save_each(replace(scope, beside=tuple(fence)), user, given, None))
                portion = {"lines": [saved.model_dump(mode="json", exclude_none=True) for saved in results]}
                await self.portions.put(user, job.id, number, portion, fence)
            return portion.get("lines", [])

        for number in range(job.portions):
            lines = run(retried(partial(saved, number)))
            done, stored = done + len(lines), stored + sum("id" in line for line in lines)
            job.advance(done, job.total)
        return {"stored": stored, "refused": done - stored}

    def _erase(self, scope: MemoryScope, user: str, job: StoredJob) -> dict[str, Any]:
        assert self.ledger is not None  # noqa: S101 - such jobs are not taken in without one
        by, stores = scope.actor.id or "", [self._engine.backend]
        audit_key = self._engine.audit_log.given_key
        return erase(stores, user, Ledger(self.ledger), by=by, audit_key=audit_key, **job.arguments).to_json()


async def save_each(
    scope: MemoryScope,
    user: str,
    memories: Sequence[NewMemory],
    timeout: float | None,
) -> list[Saved]:
    """Saves memories together; each succeeds or fails alone."""

    async def one(new: NewMemory) -> Saved:
        try:
            saved = await arun(save(scope, user, **new.arguments()), timeout)
        except InferenceCoreError as error:
            return Saved(status=status_of(type(error)), problem=told(error))
        return Saved(status=200 if saved.was_stored else 201, id=str(saved), redacted=list(saved.redacted))

    return await asyncio.gather(*map(one, memories))
