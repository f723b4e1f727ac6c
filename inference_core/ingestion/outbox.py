"""The outbox: messages that wait to become memories, in the memories' own database.

A message is put in once, however often it comes, and leaves in the very transaction that writes what was made of it,
so that nothing is lost and nothing happens twice. What it leaves behind is a mark: the reply path only looks whether
there is one, the worker writes it. Whoever works on a user's messages holds a lease whose version fences
off those that held it before. The result of a model is kept until it is applied: a replay never asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from inference_core.clock import Clock
from inference_core.drivers import Plan
from inference_core.errors import StoreError, VersionConflict
from inference_core.ingestion.candidates import Extraction, extraction_from_json, extraction_to_json
from inference_core.ingestion.drafts import marks_of
from inference_core.ingestion.messages import Message, mended
from inference_core.ingestion.partitions import CLOSING, OUTBOX, Partition, digest, places
from inference_core.ingestion.waiting import Waiting
from inference_core.memory.namespaces import QUEUE_ROOT, Namespace
from inference_core.memory.text import encode_json, text_tokens
from inference_core.stores.backend import Check, Delete, Put, Row, Write
from inference_core.stores.engine import StoreEngine

DEAD_LIST: Final[Namespace] = (QUEUE_ROOT, "dead")
"""Where it stands which messages could not be dealt with, of all users."""
TASK_LEASES: Final = 10
"""For so many leases a worker may do periodic work, which may take many calls of a model."""
_LEASE: Final = "lease"
RESULT: Final = "result"
"""The row that keeps what a model made of a batch."""
_TICK: Final = timedelta(microseconds=1)
_PAGE: Final = 200
_MAX_LISTED: Final = 10_000
_MAX_REASON: Final = 500


class Tried(NamedTuple):
    """How often a message was tried, and from when on it may be again (seconds since 1970).

    ``is_open``: nobody knows yet what came of the last time. Where no worker is at it any more, that worker ended in
    the midst, or lost the database.
    """

    times: int = 0
    not_before: float = 0.0
    is_open: bool = False


Tries = Mapping[str, Tried]
_NEVER: Final = Tried()


@dataclass(frozen=True, slots=True)
class Limits:
    """``batch_messages`` and ``batch_tokens`` bound what is worked on at once, ``lease_s`` for how long a worker may.

    A message is given up after ``max_tries``. A batch that failed is tried again message by message, at once; one that
    failed by itself after ``backoff_s``, then after six times that, and from then on after 36 times that.
    """

    batch_messages: int = 10
    batch_tokens: int = 4_000
    lease_s: float = 60.0
    max_tries: int = 3
    backoff_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that this worker works on.

    ``token`` is the version of its lease. ``tries`` are those of the messages that were tried, by their keys,
    ``before`` is what they were when the batch was claimed.
    """

    partition: Partition
    token: int
    batch: Sequence[Waiting]
    tries: Tries
    extraction: Extraction | None = None
    before: Tries = field(default_factory=dict[str, Tried])

    @property
    def is_interrupted(self) -> bool:
        """Whether a worker ended while it worked on one of these messages, which may have been the reason."""
        return any(self.before.get(one.key, _NEVER).is_open for one in self.batch)

    @property
    def job_id(self) -> str:
        """Names the work on these very messages."""
        return digest([self.partition.to_value(), *(waiting.name for waiting in self.batch)])


class Outbox:
    """The outbox in the database of ``engine``. Its methods are plans and raise StoreError."""

    def __init__(self, engine: StoreEngine, clock: Clock, limits: Limits | None = None) -> None:
        self.engine = engine
        self.limits = limits or Limits()
        self._clock = clock
        self._listed: dict[Partition, int] = {}

    def put(self, partition: Partition, messages: Sequence[Message], zone: str | None = None) -> Plan[int]:
        """Plan: puts in those of ``messages`` that never were in; how many. Durable when it ends, in one commit.

        ``zone`` names the user's time zone.
        """
        found = [Waiting(_key(partition, message), 0, message, zone) for message in messages]
        fresh = {one.key: one for one in found}
        while fresh:
            listed = self._listed.get(partition, 0)
            try:
                versions = yield from self.engine.write(self._puts(partition, fresh, listed))
            except VersionConflict:
                fresh = yield from self._unknown(partition, fresh)
            else:
                self._note(partition, versions[0])
                break
        return len(fresh)

    def partitions(self) -> Plan[list[tuple[Partition, int]]]:
        """Plan: those that have messages, each with the version of the row that says so, the longest waiting first."""
        return [(Partition.from_value(row.value), row.version) for row in (yield from self._places(places(None)))]

    def due(self, tasks: Sequence[str]) -> Plan[list[tuple[Partition, int]]]:
        """Plan: those that may have periodic work of these kinds to do now; otherwise like `partitions`."""
        rows = yield from self._places([place for task in tasks for place in places(task)])
        now = self._clock.now().timestamp()
        return [(Partition.from_value(row.value), row.version) for row in rows if row.value.get("due", 0.0) <= now]

    def seen(self, partition: Partition) -> Plan[int]:
        """Plan: the version of the row that says that ``partition`` has messages; 0 if none does."""
        (row,) = yield from self.engine.get([partition.place])
        return row.version if row else 0

    def claim(self, partition: Partition, seen: int) -> Plan[Claim | None]:
        """Plan: a batch to work on; None if there is none, it is somebody else's, or its time has not come.

        ``seen`` is the version that `partitions` gave: a partition without messages is taken off that list.
        """
        found = yield from self.ready(partition, seen)
        return None if found is None else (yield from self.take(found))

    def ready(self, partition: Partition, seen: int) -> Plan[Claim | None]:
        """Plan: what `claim` would claim, which stays free for others until `take`."""
        now = self._clock.now().timestamp()
        lease, result = yield from self.engine.get([(partition.state, _LEASE), (partition.state, RESULT)])
        if lease is not None and _not_before(lease) > now:
            return None
        rows = yield from self._oldest(partition)
        if not rows:
            yield from self._taken_off(partition, seen)
            return None
        tries = _tries_of(lease)
        batch, extraction = _kept(rows, tries, result)
        batch = batch or self._batch(rows, tries, now)
        if not batch and partition.task:
            yield from self._put_off(partition, seen, rows, tries)
        token = 0 if lease is None else lease.version
        return Claim(partition, token, batch, tries, extraction, before=tries) if batch else None

    def take(self, found: Claim) -> Plan[Claim | None]:
        """Plan: claims what `ready` found; None if somebody else did."""
        until = self._lease_end(found.partition)
        tries = {**found.before, **{one.key: self._another(found, one, until) for one in found.batch}}
        try:
            (token,) = yield from self.engine.write([self._lease(found.partition, until, tries, found.token)])
        except VersionConflict:
            return None
        return replace(found, token=token, tries=tries)

    def is_spent(self, claim: Claim) -> bool:
        """Whether the messages were tried often enough; nobody knows what came of the last time."""
        return all(_count(claim.tries, one) >= self.limits.max_tries for one in claim.batch)

    def release(self, claim: Claim) -> Plan[None]:
        """Plan: leaves the batch to others as if it had not been claimed, if the database allows that."""
        with suppress(StoreError):
            yield from self.engine.write([self._lease(claim.partition, 0.0, claim.before, claim.token)])

    def planned(
        self, partition: Partition, work: Message, due: datetime, zone: str | None = None, *, puts_off: bool = False
    ) -> Plan[list[Write]]:
        """Plan: the writes after which ``work`` of ``partition``'s task waits until ``due``.

        If it waits already it stays due when it was, unless ``puts_off``; either way it is other work from then on.
        """
        now = self._clock.now()
        key = digest([partition.task, work.session_id])
        row, place = yield from self.engine.get([(partition.messages, key), partition.place])
        known = None if row is None or puts_off else Waiting.of(row).due
        one = Waiting(key, 0, work, zone, due if known is None else min(known, due))
        first = min(due.timestamp(), float("inf") if place is None else place.value.get("due", 0.0))
        return [one.put(partition.messages, now), self._listing(partition, due=first)]

    def keep(self, claim: Claim, extraction: Extraction) -> Plan[Claim]:
        """Plan: keeps what a model made of the batch. Raises VersionConflict if the lease is somebody else's by now."""
        until = self._lease_end(claim.partition)
        value = {"keys": [one.name for one in claim.batch], "extraction": extraction_to_json(extraction)}
        state = claim.partition.state
        kept = Put(namespace=state, key=RESULT, value=_json(value), updated_at=self._clock.now())
        lease = self._lease(claim.partition, until, claim.tries, claim.token)
        token, _ = yield from self.engine.write([lease, kept])
        return replace(claim, token=token, extraction=extraction)

    def settled(self, claim: Claim, again: datetime | None = None) -> list[Write]:
        """The writes with which the batch is done; they fail if the lease is somebody else's by now.

        Periodic work that is to be done ``again`` waits until then.
        """
        keys = {one.key for one in claim.batch}
        tries = {key: tried for key, tried in claim.tries.items() if key not in keys}
        return [
            self._lease(claim.partition, 0.0, tries, claim.token),
            Delete(namespace=claim.partition.state, key=RESULT),
            *(write for one in claim.batch for write in self._left(claim, one, again)),
        ]

    def failed(self, claim: Claim, reason: str) -> Plan[list[str]]:
        """Plan: leaves the batch for later, message by message; those tried too often die. The keys of the dead."""
        now = self._clock.now()
        dead = [one for one in claim.batch if _count(claim.tries, one) >= self.limits.max_tries]
        tries = dict(claim.tries)
        for one in claim.batch:
            count = _count(tries, one)
            pause = self._pause(count) if len(claim.batch) == 1 else 0.0
            tries[one.key] = Tried(count, now.timestamp() + pause)
        for one in dead:
            del tries[one.key]
        writes: list[Write] = [
            self._lease(claim.partition, 0.0, tries, claim.token),
            Delete(namespace=claim.partition.state, key=RESULT),
            *(write for one in dead for write in _burial(claim, one, mended(reason)[:_MAX_REASON], now)),
        ]
        yield from self.engine.write(writes)
        return [one.key for one in dead]

    def _left(self, claim: Claim, one: Waiting, again: datetime | None) -> list[Write]:
        now = self._clock.now()
        later = replace(one, due=again)
        return [later.put(claim.partition.messages, now, one.version)] if again else _gone(claim.partition, one, now)

    def _lease_end(self, partition: Partition) -> float:
        return self._clock.now().timestamp() + self.limits.lease_s * (TASK_LEASES if partition.task else 1)

    def _another(self, found: Claim, one: Waiting, until: float) -> Tried:
        """One more try, which ends at ``until``; if its worker ends in the midst, others go first for a while."""
        count = _count(found.before, one) + 1
        return Tried(count, until + (self._pause(count) if len(found.batch) == 1 else 0.0), is_open=True)

    def _pause(self, count: int) -> float:
        return self.limits.backoff_s * 6.0 ** min(count - 1, 2)

    def _puts(self, partition: Partition, fresh: Mapping[str, Waiting], listed: int) -> list[Write]:
        """The writes that put in what is neither waiting nor marked; ``listed`` as the partition should be listed."""
        now = self._clock.now()
        where, place = partition.place
        marks, messages = marks_of(partition.user_id), partition.messages
        return [
            Check(namespace=where, key=place, expected=listed) if listed else self._listing(partition),
            *(Check(namespace=marks, key=key, expected=0) for key in fresh),
            *(one.put(messages, now + at * _TICK, expected=0) for at, one in enumerate(fresh.values())),
        ]

    def _listing(
        self, partition: Partition, expected: int | None = None, due: float | None = None, *, is_closing: bool = False
    ) -> Put:
        """The write that lists the partition."""
        where, key = partition.place
        value = partition.to_json(due, is_closing=is_closing)
        return Put(namespace=where, key=key, value=value, updated_at=self._clock.now(), expected=expected)

    def _unknown(self, partition: Partition, fresh: Mapping[str, Waiting]) -> Plan[dict[str, Waiting]]:
        """Plan: those of ``fresh`` that are neither waiting nor marked; learns anew how the partition is listed."""
        marks, messages = marks_of(partition.user_id), partition.messages
        keys = [partition.place, *((scope, key) for scope in (marks, messages) for key in fresh)]
        place, *rows = yield from self.engine.get(keys)
        self._note(partition, place.version if place and CLOSING not in place.value else 0)
        known = {row.key for row in rows if row}
        return {key: one for key, one in fresh.items() if key not in known}

    def _note(self, partition: Partition, version: int) -> None:
        """Remembers at which version the partition is listed, 0 if it is not: a guess that every put verifies."""
        if len(self._listed) >= _MAX_LISTED:
            self._listed.clear()
        self._listed[partition] = version

    def _places(self, scopes: Sequence[Namespace]) -> Plan[list[Row]]:
        """Plan: the rows of ``scopes``, the oldest first."""
        return (yield from self.engine.scan(scopes))[::-1]

    def _oldest(self, partition: Partition) -> Plan[list[Waiting]]:
        """Plan: the messages that wait longest, the oldest first, also if others come in while they are read."""
        waiting = yield from self.engine.count([partition.messages])
        rows = yield from self.engine.page([partition.messages], limit=2 * _PAGE, offset=max(0, waiting - _PAGE))
        return [Waiting.of(row) for row in reversed(rows)]

    def _batch(self, waiting: Sequence[Waiting], tries: Tries, now: float) -> list[Waiting]:
        """The first messages of one session that fit; one that was tried before is tried by itself."""
        ready = [one for one in waiting if _time_of(one, tries) <= now]
        batch: list[Waiting] = []
        tokens = 0
        for one in ready[: self.limits.batch_messages]:
            tokens += text_tokens(one.message.text)
            has_failed = _count(tries, one) > 0
            is_other = bool(batch) and one.message.session_id != batch[0].message.session_id
            if batch and (has_failed or is_other or tokens > self.limits.batch_tokens):
                break
            batch.append(one)
            if has_failed:
                break
        return batch

    def _lease(self, partition: Partition, until: float, tries: Tries, expected: int) -> Put:
        value = _json({"until": until, "tries": dict(tries)})
        return Put(namespace=partition.state, key=_LEASE, value=value, updated_at=self._clock.now(), expected=expected)

    def _taken_off(self, partition: Partition, seen: int) -> Plan[None]:
        """Plan: takes a partition off the list, unless a message came in meanwhile."""
        where, key = partition.place
        with suppress(VersionConflict):  # a message has come in between
            # Whoever knew the list at an earlier version has to look again, and then finds that it is closing. Its
            # message lists the partition anew, so that the deletion fails: else it would lie there unseen.
            closing = self._listing(partition, seen, is_closing=True)
            (version,) = yield from self.engine.write([closing])
            if not (yield from self.engine.count([partition.messages])):
                yield from self.engine.write([Delete(namespace=where, key=key, expected=version)])
                self._note(partition, 0)

    def _put_off(self, partition: Partition, seen: int, waiting: Sequence[Waiting], tries: Tries) -> Plan[None]:
        """Plan: nobody need look at ``partition`` before the first of what waits is due."""
        due = min(_time_of(one, tries) for one in waiting)
        with suppress(VersionConflict):
            yield from self.engine.write([self._listing(partition, seen, due)])


def _key(partition: Partition, message: Message) -> str:
    """The same for the same message of the same session with the same agent, and for no other."""
    name = message.position if message.id is None else mended(message.id)
    return digest([OUTBOX, *partition.messages, message.session_id, name, mended(message.text)])


def _count(tries: Tries, waiting: Waiting) -> int:
    """How often the message was tried."""
    return tries.get(waiting.key, _NEVER).times


def _time_of(one: Waiting, tries: Tries) -> float:
    """From when on it may be worked on, in seconds since 1970."""
    return max(tries.get(one.key, _NEVER).not_before, one.due.timestamp() if one.due else 0.0)


def _gone(partition: Partition, one: Waiting, now: datetime) -> list[Write]:
    """The writes with which it leaves; the mark of a message stays."""
    gone = Delete(namespace=partition.messages, key=one.key, expected=one.version)
    marks = marks_of(partition.user_id)
    return [gone] if partition.task else [gone, Put(namespace=marks, key=one.key, value="{}", updated_at=now)]


def _kept(rows: Sequence[Waiting], tries: Tries, result: Row | None) -> tuple[list[Waiting], Extraction | None]:
    """The messages whose extraction is kept, with it. Two workers ended in the midst of them: each by itself then."""
    keys: Sequence[str] = [] if result is None else result.value["keys"]
    batch = [one for one in rows if one.name in keys]
    is_suspect = len(batch) > 1 and any(_count(tries, one) > 1 for one in batch)
    if result is None or not batch or is_suspect:
        return [], None
    return batch, extraction_from_json(result.value["extraction"])


def _burial(claim: Claim, one: Waiting, reason: str, now: datetime) -> list[Write]:
    """The writes that put a message among the dead."""
    value = {**one.to_json(), "reason": reason, "tries": _count(claim.tries, one)}
    pointer = {**claim.partition.to_value(), "key": one.key}
    return [
        *_gone(claim.partition, one, now),
        Put(namespace=claim.partition.dead, key=one.key, value=_json(value), updated_at=now),
        Put(namespace=DEAD_LIST, key=one.key, value=_json(pointer), updated_at=now),
    ]


def _tries_of(lease: Row | None) -> Tries:
    known: Mapping[str, Sequence[Any]] = {} if lease is None else lease.value["tries"]
    return {key: Tried(*tried) for key, tried in known.items()}


def _not_before(lease: Row) -> float:
    return float(lease.value["until"])


def _json(value: Mapping[str, Any]) -> str:
    return encode_json(value, what="outbox")
