"""The outbox: messages that wait to become memories, in the memories' own database, and periodic work.

A message is put in once, however often it comes, and leaves in the transaction that writes what was made of it, so that
nothing is lost and nothing happens twice. It leaves a mark behind: the reply path reads marks, the worker writes them.
Whoever works on a user's messages holds a lease, whose version fences off earlier holders. The result of a model is
kept until it is applied, so that a replay never asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from inference_core.clock import Clock
from inference_core.errors import ConfigurationError, StoreError, VersionConflict
from inference_core.memory.namespaces import QUEUE_ROOT, MemoryNamespaceBuilder, Namespace, Owner, encode_label
from inference_core.memory.redaction import Guard
from inference_core.memory.text import digest_of, encode_json, moment_field, text_tokens
from inference_core.outbox.messages import (
    NO_THREAD,
    ConversationMessage,
    Extraction,
    extraction_from_json,
    extraction_to_json,
    marks_of,
    mended,
    message_of,
    message_to_json,
    session_name,
    traced,
)
from inference_core.stores.backend import Backend, Check, Expiry, Key, Put, Remove, Row, Write, beside
from inference_core.stores.engine import StoreEngine
from inference_core.stores.rules.erasure_epoch import AllFences
from inference_core.telemetry import traceparent

OUTBOX: Final = "outbox"
"""Second label of the namespaces, below the user, that hold waiting messages."""
DEAD: Final = "outbox_dead"
"""Second label of the namespaces, below the user, that hold dead letters."""
SESSIONS: Final = "sessions"
"""The task of summarizing sessions."""
INSIGHTS: Final = "insights"
"""The task of drawing higher-level memories from several."""
KEPT: Final = "messages"
"""Second label of the namespaces, below the user, that keep the newest messages for prompts."""
SHARDS: Final = 16
_NO_AGENT: Final = "~shared"
STATE: Final = "state"
"""Last label of the namespace that holds a partition's lease and kept result."""
_SAID: Final = "said"
_MEDIA: Final = "media"
_EARLIER: Final = "earlier"
DEAD_LIST: Final[Namespace] = (QUEUE_ROOT, "dead")
"""Lists the dead letters of all users."""
TASK_LEASES: Final = 10
"""A lease of periodic work is this many times longer, as the work may take many calls of a model."""
_LEASE: Final = "lease"
RESULT: Final = "result"
"""The row that keeps what a model extracted from a batch."""
_TICK: Final = timedelta(microseconds=1)
_PAGE: Final = 200
_MAX_REASON: Final = 500
MAX_EARLIER: Final = 6
"""How many messages before a batch an extractor is shown, of at most so many letters together."""
MAX_EARLIER_LETTERS: Final = 4_000
_EARLIER_LIFE: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Partition:
    """The messages of a user with an agent, processed in their order, batch by batch.

    With a ``task``, the periodic work of that kind instead, each piece of it as a message that waits until it is due.
    """

    user_id: str
    agent_name: str | None = None
    agent_scope_enabled: bool = True
    task: str | None = None

    @classmethod
    def of(cls, user_id: Owner, agent: MemoryNamespaceBuilder) -> Partition:
        """The partition of the user's messages to ``agent``."""
        return cls(str(user_id), agent.agent_name, agent.is_agent_scoped)

    @property
    def messages(self) -> Namespace:
        """Where its waiting messages are."""
        return (*self._base, *([self.task] if self.task else []))

    @property
    def state(self) -> Namespace:
        """Where its lease and its result are."""
        return (*self.messages, STATE)

    @property
    def said(self) -> Namespace:
        """Where the messages are that have become memories and wait for the summary of their session."""
        return (*self._base, _SAID)

    @property
    def earlier(self) -> Namespace:
        """Where, for each session, the last messages are that have become memories."""
        return (*self._base, _EARLIER)

    @property
    def media(self) -> Namespace:
        """Where the pictures and recordings of waiting messages and dead letters are, until they are put into words."""
        return (*self._base, _MEDIA)

    @property
    def dead(self) -> Namespace:
        """Where its dead letters are."""
        return (encode_label(self.user_id), DEAD, self._agent)

    @property
    def kept(self) -> Namespace:
        """Where the newest messages that an application handed over are kept for prompts."""
        return (encode_label(self.user_id), KEPT, self._agent)

    @property
    def name(self) -> str:
        """The key of the row that lists it as having messages."""
        return digest_of([self.user_id, self.agent_name, self.agent_scope_enabled, *([self.task] if self.task else [])])

    def place(self, backend: Backend) -> Key:
        """The row that lists it as having messages."""
        shard = places(self.task)[int(self.name[:8], 16) % SHARDS]
        return beside(backend, shard, encode_label(self.user_id)), self.name

    def dead_list(self, backend: Backend) -> Namespace:
        """The namespace that lists its dead letters."""
        return beside(backend, DEAD_LIST, encode_label(self.user_id))

    @property
    def _base(self) -> Namespace:
        return (encode_label(self.user_id), OUTBOX, self._agent)

    @property
    def _agent(self) -> str:
        return encode_label(self.agent_name, what="agent_name") if self.agent_name else _NO_AGENT

    def to_value(self) -> dict[str, Any]:
        """Itself as JSON data."""
        value = {"user": self.user_id, "agent": self.agent_name, "scoped": self.agent_scope_enabled}
        return {**value, **({"task": self.task} if self.task else {})}

    def listing(self, backend: Backend, at: datetime, expected: int | None = None, due: float | None = None) -> Put:
        """The write that lists it, with the time (seconds since 1970) before which it has nothing to do."""
        where, key = self.place(backend)
        value = self.to_value() | ({} if due is None else {"due": due})
        return Put(namespace=where, key=key, value=encode_json(value, what="outbox"), updated_at=at, expected=expected)

    def unlisting(self, backend: Backend, expected: int) -> Remove:
        """The write that takes it off the list, unless something came in after ``expected``, the listing's version."""
        where, key = self.place(backend)
        return Remove(namespace=where, key=key, expected=expected)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Partition:
        """The partition that `to_value` gave."""
        return cls(value["user"], value["agent"], value["scoped"], value.get("task"))


def places(task: str | None) -> list[Namespace]:
    """The namespaces that list the partitions with messages or, given a ``task``, with work of that kind."""
    return [(QUEUE_ROOT, f"{task}-{shard:02d}" if task else f"{shard:02d}") for shard in range(SHARDS)]


def put_in_place(backend: Backend) -> None:
    """Moves the rows that list work to where `Partition.place` has them, as they come from a store of another kind.

    Blocks. Safe to repeat. Raises StoreError.
    """
    for row in list(backend.inspect(QUEUE_ROOT)):
        user = row.value.get("user") if isinstance(row, Row) else None
        if not isinstance(row, Row) or not isinstance(user, str):
            continue
        where = beside(backend, row.namespace[:2], encode_label(user))
        if where != row.namespace:
            put = Put(namespace=where, key=row.key, value=_json(row.value), updated_at=row.updated_at, expected=0)
            for write in (put, Remove(namespace=row.namespace, key=row.key)):
                (outcome,) = backend.apply([[write]])
                if isinstance(outcome, Exception) and not isinstance(outcome, VersionConflict):  # it is listed there
                    raise outcome


async def _there(engine: StoreEngine, lists: Sequence[Namespace]) -> Sequence[Namespace]:
    """The namespaces that hold ``lists``: a database that is split over servers has a part of each on several."""
    if not engine.backend.capabilities.split:
        return lists
    return [name for name in await engine.namespaces((QUEUE_ROOT,)) if name[:2] in lists]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in the outbox; ``zone`` names the time zone in which it was said, if known.

    With ``due`` it is periodic work, which waits until then and may be put off meanwhile. ``trace`` is the span in
    which it came, as W3C's traceparent, if that was traced. ``has_media``: its media wait in a row of their own.
    """

    key: str
    version: int
    message: ConversationMessage
    zone: str | None = None
    due: datetime | None = None
    trace: str | None = None
    has_media: bool = False

    @property
    def name(self) -> str:
        """Identifies the work: periodic work that was put off is other work."""
        return f"{self.key}:{self.version}" if self.due else self.key

    def to_json(self) -> dict[str, Any]:
        """Itself as JSON data."""
        return {
            **message_to_json(self.message),
            **({"zone": self.zone} if self.zone else {}),
            **({"due": self.due.isoformat()} if self.due else {}),
            **({"trace": self.trace} if self.trace else {}),
            **({"media": True} if self.has_media else {}),
        }

    @classmethod
    def of(cls, row: Row) -> Waiting:
        """The message that a row of the outbox holds."""
        value = row.value
        due, has_media = moment_field(value, "due"), value.get("media", False)
        return cls(row.key, row.version, message_of(value), value.get("zone"), due, value.get("trace"), has_media)

    def put(self, namespace: Namespace, at: datetime, expected: int | None = None) -> Put:
        """The write that puts it into the outbox."""
        value = encode_json(self.to_json(), what="outbox")
        return Put(namespace=namespace, key=self.key, value=value, created_at=at, updated_at=at, expected=expected)

    def media_put(self, namespace: Namespace, at: datetime) -> Put:
        """The write that keeps its media; their row names the session, with which they are undone."""
        value = {"session": session_name(self.message.session_id), "media": list(self.message.media)}
        return Put(namespace=namespace, key=self.key, value=_json(value), updated_at=at)


class Attempt(NamedTuple):
    """How often a message was tried, and the time before which it is not tried again (seconds since 1970).

    ``is_unfinished``: the last attempt has no outcome. If its lease is over, the worker died, or lost the database.
    """

    times: int = 0
    not_before: float = 0.0
    is_unfinished: bool = False


Tries = Mapping[str, Attempt]
Watcher = Callable[[Partition, int], None]
"""Called with a partition and the number of messages that were put into it; must be quick."""
_WATCHERS: Final[WeakKeyDictionary[StoreEngine, tuple[Watcher, ...]]] = WeakKeyDictionary()
_LOCK: Final = Lock()
_NEVER: Final = Attempt()


@dataclass(frozen=True, slots=True)
class Limits:
    """``batch_messages`` and ``batch_tokens`` bound a batch, ``lease_s`` (seconds) how long a worker may take for it.

    A batch that failed is retried at once, message by message; a single message after ``backoff_s``, then after six
    times, then after 36 times that. After ``max_tries`` it becomes a dead letter.
    """

    batch_messages: int = 10
    batch_tokens: int = 4_000
    lease_s: float = 60.0
    max_tries: int = 3
    backoff_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that `Outbox.next_batch` found, and that this worker holds once `Outbox.claim` has returned it.

    ``token`` is the version of its lease. ``tries`` are the attempts of messages by their keys, ``before`` what they
    were when the batch was claimed. ``fence`` refuses its writes if the user was erased since it was found.
    ``earlier`` are the messages of the session before the batch, as far as they were kept. ``listed`` is the version of
    the row that lists the partition, if nothing but the batch waits there; else 0.
    """

    partition: Partition
    token: int
    batch: Sequence[Waiting]
    tries: Tries
    extraction: Extraction | None = None
    before: Tries = field(default_factory=dict[str, Attempt])
    fence: Sequence[Check] = ()
    earlier: Sequence[ConversationMessage] = ()
    listed: int = 0

    @property
    def is_interrupted(self) -> bool:
        """Whether a worker died while it worked on one of these messages, which may have been the reason."""
        return any(self.before.get(message.key, _NEVER).is_unfinished for message in self.batch)

    @property
    def job_id(self) -> str:
        """Identifies the work on exactly these messages."""
        return digest_of([self.partition.to_value(), *(waiting.name for waiting in self.batch)])


def check_outbox(engine: StoreEngine, remedy: str) -> None:
    """Raises ConfigurationError, with the ``remedy``, if the database of ``engine`` cannot hold an outbox."""
    if not engine.backend.capabilities.compare_and_set:
        raise ConfigurationError(f"{engine.backend.name} cannot hold an outbox: it has no compare-and-set. {remedy}")


class Outbox:
    """The outbox in the database of ``engine``. Operations raise StoreError."""

    def __init__(self, engine: StoreEngine, clock: Clock, limits: Limits | None = None) -> None:
        self.engine = engine
        self.limits = limits or Limits()
        self._clock = clock

    def watch(self, watcher: Watcher) -> None:
        """Has ``watcher`` called after each put into this database by this process. Safe to call from any thread."""
        with _LOCK:
            _WATCHERS[self.engine] = (*_WATCHERS.get(self.engine, ()), watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Ends `watch`."""
        with _LOCK:
            _WATCHERS[self.engine] = tuple(one for one in _WATCHERS.get(self.engine, ()) if one != watcher)

    async def put(
        self,
        partition: Partition,
        messages: Sequence[ConversationMessage],
        zone: str | None = None,
        *,
        keeps: bool = False,
        since: AllFences | None = None,
    ) -> int:
        """Puts in those of ``messages`` that were never in before, durably, in one commit; returns how many.

        ``zone`` names the user's time zone. ``keeps``: keep a copy of each message for later prompts, even after
        it has been processed. ``since`` is that of `StoreEngine.write`.
        """
        now, trace = self._clock.now(), traceparent()
        marks, waiting = marks_of(partition.user_id), partition.messages
        fresh: dict[str, Waiting] = {}
        size = sum(len(message.text) for message in messages)
        # Redacted before a key is made of the text, since the hash of a secret could give it away.
        redacted = await self.engine.redacting(
            lambda: [_redacted(message, self.engine.guard) for message in messages], size
        )
        for message, clean in zip(messages, redacted, strict=True):
            name = message.position if message.id is None else mended(message.id)
            # The user's and another person's message are two, so that an import can say later which are the user's.
            author = [mended(message.author)] if message.author else []
            media = [digest_of([message.media])] if message.media else []
            key = digest_of([OUTBOX, *waiting, message.session_id, name, mended(clean.text), *author, *media])
            fresh[key] = Waiting(key, 0, clean, zone, trace=trace, has_media=bool(media))
        while fresh:
            puts = [message.put(waiting, now + at * _TICK, expected=0) for at, message in enumerate(fresh.values())]
            writes: list[Write] = [
                # Each put gives the listing a new version, so that no worker takes it off the list meanwhile.
                partition.listing(self.engine.backend, now),
                *(Check(namespace=marks, key=key, expected=0) for key in fresh),
                *puts,
                *(one.media_put(partition.media, now) for one in fresh.values() if one.has_media),
                *(replace(put, namespace=partition.kept, expected=None) for put in puts if keeps),
            ]
            try:
                is_clean = not any(one.has_media for one in fresh.values())
                await self.engine.write(writes, since=since, is_clean=is_clean)
            except VersionConflict:  # some are waiting or marked already
                rows = await self.engine.get([(namespace, key) for namespace in (marks, waiting) for key in fresh])
                known = {row.key for row in rows if row}
                fresh = {key: message for key, message in fresh.items() if key not in known}
            else:
                for watcher in _WATCHERS.get(self.engine, ()):
                    watcher(partition, len(fresh))
                break
        return len(fresh)

    async def partitions(self, tasks: Iterable[str | None] = (None,)) -> list[Partition]:
        """The partitions that may have something to do now, messages first, then the longest waiting first.

        ``tasks`` are the kinds of periodic work to look for; None stands for messages.
        """
        rows = await self.engine.scan(await _there(self.engine, [one for task in tasks for one in places(task)]))
        now = self._clock.now().timestamp()
        found = [Partition.from_value(row.value) for row in reversed(rows) if row.value.get("due", 0.0) <= now]
        return sorted(found, key=lambda partition: partition.task is not None)

    async def is_listed(self, partition: Partition) -> bool:
        """Whether ``partition`` is on the list of those that may have something to do."""
        (row,) = await self.engine.get([partition.place(self.engine.backend)])
        return row is not None

    async def next_batch(self, partition: Partition) -> Claim | None:
        """The next batch to `claim`; None if there is none, another worker has it, or its time has not come.

        A partition without messages is taken off the list.
        """
        moment = self._clock.now()
        now = moment.timestamp()
        fence = await self.engine.fence_checks([encode_label(partition.user_id)])  # before anything of the user is read
        listing, lease, result = await self.engine.get(
            [partition.place(self.engine.backend), (partition.state, _LEASE), (partition.state, RESULT)]
        )
        listed = listing.version if listing else 0
        if lease is not None and lease.value["until"] > now:
            return None
        # Rows come newest first, so the oldest are at the end. More are read than were counted, as some may come in.
        count = await self.engine.count([partition.messages])
        rows = await self.engine.page([partition.messages], limit=2 * _PAGE, offset=max(0, count - _PAGE))
        waiting = [Waiting.of(row) for row in reversed(rows)]
        if not waiting:
            if listed:
                with suppress(VersionConflict):  # a message has come in between
                    await self.engine.write([partition.unlisting(self.engine.backend, listed)])
            return None
        tries: Tries = {} if lease is None else {key: Attempt(*one) for key, one in lease.value["tries"].items()}
        keys: Sequence[str] = [] if result is None else result.value["keys"]
        batch, extraction = [message for message in waiting if message.name in keys], None
        if len(batch) > 1 and any(_count(tries, message) > 1 for message in batch):
            batch = []  # two workers died at these, so each is tried alone, and extracted anew
        if result is not None and batch:
            extraction = extraction_from_json(result.value["extraction"])
        batch = batch or self._batch(waiting, tries, now)
        if not batch and partition.task:
            due = min(_time_of(message, tries) for message in waiting)
            with suppress(VersionConflict):  # more work has come in
                await self.engine.write([partition.listing(self.engine.backend, moment, listed, due)])
        token = 0 if lease is None else lease.version
        if not batch:
            return None
        earlier = await self._earlier(partition, batch[0].message)
        is_all = len(batch) >= count
        return Claim(partition, token, batch, tries, extraction, tries, fence, earlier, listed if is_all else 0)

    async def claim(self, found: Claim) -> Claim | None:
        """Claims what `next_batch` found; None if another worker did."""
        until = self._lease_end(found.partition)
        tries = dict(found.before)
        for message in found.batch:
            count = _count(tries, message) + 1
            # If this worker dies, a message by itself waits: others go first for a while.
            pause = self._pause(count) if len(found.batch) == 1 else 0.0
            tries[message.key] = Attempt(count, until + pause, is_unfinished=True)
        try:
            # It need not wait for the disk: if a power loss undoes it, only one worker can `keep`, which is durable.
            lease = replace(self._lease(found.partition, until, tries, found.token), waits_for_disk=False)
            token, *_ = await self.engine.write([lease, *found.fence])
        except VersionConflict:
            return None
        return replace(found, token=token, tries=tries)

    def is_exhausted(self, claim: Claim) -> bool:
        """Whether all attempts are used up, though the last one has no outcome."""
        return all(_count(claim.tries, message) >= self.limits.max_tries for message in claim.batch)

    async def release(self, claim: Claim, pause_s: float = 0.0) -> None:
        """Gives the batch back as if it had not been claimed, if the database can be reached.

        Nobody claims the partition again for ``pause_s`` seconds.
        """
        until = self._clock.now().timestamp() + pause_s if pause_s else 0.0
        with suppress(StoreError):
            lease = self._lease(claim.partition, until, claim.before, claim.token)
            await self.engine.write([lease, *claim.fence])

    async def schedule_writes(
        self,
        partition: Partition,
        work: ConversationMessage,
        due: datetime,
        zone: str | None = None,
        *,
        puts_off: bool = False,
    ) -> list[Write]:
        """The writes after which ``work`` of ``partition``'s task waits until ``due``.

        Work that waits already is not put off unless ``puts_off``. Either way its version, and so its job, is new.
        """
        now = self._clock.now()
        key = digest_of([partition.task, work.session_id])
        backend = self.engine.backend
        row, place = await self.engine.get([(partition.messages, key), partition.place(backend)])
        known = None if row is None or puts_off else Waiting.of(row).due
        message = Waiting(key, 0, work, zone, due if known is None else min(known, due))
        first = min(due.timestamp(), float("inf") if place is None else place.value.get("due", 0.0))
        return [message.put(partition.messages, now), partition.listing(backend, now, due=first)]

    async def keep(self, claim: Claim, extraction: Extraction) -> Claim:
        """Keeps what a model extracted and renews the lease. Raises VersionConflict if another worker has that now."""
        until = self._lease_end(claim.partition)
        value = {"keys": [message.name for message in claim.batch], "extraction": extraction_to_json(extraction)}
        state = claim.partition.state
        kept = Put(namespace=state, key=RESULT, value=_json(value), updated_at=self._clock.now())
        lease = self._lease(claim.partition, until, claim.tries, claim.token)
        token, *_ = await self.engine.write([lease, kept, *claim.fence])
        return replace(claim, token=token, extraction=extraction)

    async def media_of(self, claim: Claim, waiting: Waiting) -> list[dict[str, Any]]:
        """The media of a message in the batch."""
        (row,) = await self.engine.get([(claim.partition.media, waiting.key)])
        return row.value["media"] if row else []

    async def describe(self, claim: Claim, waiting: Waiting, captions: Sequence[str]) -> Claim:
        """Keeps ``captions`` in place of the media of a message in the batch, and renews the lease.

        Raises VersionConflict if another worker has that now.
        """
        now, partition = self._clock.now(), claim.partition
        clean = tuple(self.engine.guard.text(mended(caption)) for caption in captions)
        told = replace(waiting, message=replace(waiting.message, captions=clean), has_media=False)
        lease = self._lease(partition, self._lease_end(partition), claim.tries, claim.token)
        put = told.put(partition.messages, now, waiting.version)
        media = Remove(namespace=partition.media, key=waiting.key)
        token, version, *_ = await self.engine.write([lease, replace(put, created_at=None), media, *claim.fence])
        batch = [replace(told, version=version) if one is waiting else one for one in claim.batch]
        return replace(claim, token=token, batch=batch)

    def completion_writes(self, claim: Claim, again: datetime | None = None) -> list[Write]:
        """The writes with which the batch is done; they fail if another worker has the lease by now.

        Periodic work that is to be done ``again`` waits until then. If the claim says that nothing else waits, the
        partition leaves the list, too; the writes then also fail if anything has come in since.
        """
        now = self._clock.now()
        keys = {message.key for message in claim.batch}
        tries = {key: tried for key, tried in claim.tries.items() if key not in keys}
        writes: list[Write] = [
            self._lease(claim.partition, 0.0, tries, claim.token),
            Remove(namespace=claim.partition.state, key=RESULT),
            *claim.fence,
        ]
        for one in claim.batch:
            if again:
                writes.append(replace(one, due=again).put(claim.partition.messages, now, one.version))
            else:
                writes += _gone(claim.partition, one, now)
        if claim.listed:
            backend = self.engine.backend
            writes.append(
                claim.partition.listing(backend, now, claim.listed, again.timestamp())
                if again
                else claim.partition.unlisting(backend, claim.listed)
            )
        messages = [message.message for message in claim.batch]
        if _has_earlier(claim.partition, messages[0]):
            session = session_name(messages[0].session_id)
            tail = [message_to_json(message) for message in _tail([*claim.earlier, *messages])]
            put = Put(
                namespace=claim.partition.earlier,
                key=digest_of([session]),
                value=_json({"session": session, "messages": tail}),
                updated_at=now,
                expiry=Expiry(now + _EARLIER_LIFE, _EARLIER_LIFE),
            )
            writes.append(put)
        return writes

    async def failed(self, claim: Claim, reason: str) -> list[str]:
        """Leaves the batch for later, message by message; returns the keys of those that became dead letters."""
        now = self._clock.now()
        partition, listed = claim.partition, claim.partition.dead_list(self.engine.backend)
        tries = dict(claim.tries)
        dead: list[str] = []
        writes: list[Write] = []
        for message in claim.batch:
            count = _count(tries, message)
            pause = self._pause(count) if len(claim.batch) == 1 else 0.0
            tries[message.key] = Attempt(count, now.timestamp() + pause)
            if count >= self.limits.max_tries:
                del tries[message.key]
                dead.append(message.key)
                letter = {**message.to_json(), "reason": mended(reason)[:_MAX_REASON], "tries": count}
                pointer = {**partition.to_value(), "key": message.key}
                writes += [
                    *_gone(partition, message, now),
                    Put(namespace=partition.dead, key=message.key, value=_json(letter), updated_at=now),
                    Put(namespace=listed, key=message.key, value=_json(pointer), updated_at=now),
                ]
        lease = self._lease(partition, 0.0, tries, claim.token)
        await self.engine.write([lease, Remove(namespace=partition.state, key=RESULT), *writes, *claim.fence])
        return dead

    async def _earlier(self, partition: Partition, first: ConversationMessage) -> list[ConversationMessage]:
        """The messages that were kept of the session of ``first``; without those said later, if it comes late."""
        if not _has_earlier(partition, first):
            return []
        (row,) = await self.engine.get([(partition.earlier, digest_of([session_name(first.session_id)]))])
        kept = told_in(row) if row else []
        return [message for message in kept if not (message.at and first.at and message.at > first.at)]

    def _lease_end(self, partition: Partition) -> float:
        return self._clock.now().timestamp() + self.limits.lease_s * (TASK_LEASES if partition.task else 1)

    def _pause(self, count: int) -> float:
        return self.limits.backoff_s * 6.0 ** min(count - 1, 2)

    def _batch(self, waiting: Sequence[Waiting], tries: Tries, now: float) -> list[Waiting]:
        """The first messages of one session that fit; one that was tried before comes by itself."""
        ready = [message for message in waiting if _time_of(message, tries) <= now]
        batch: list[Waiting] = []
        tokens = 0
        for message in ready[: self.limits.batch_messages]:
            tokens += text_tokens(message.message.text)
            has_failed = _count(tries, message) > 0
            is_other = bool(batch) and message.message.session_id != batch[0].message.session_id
            if batch and (has_failed or is_other or tokens > self.limits.batch_tokens):
                break
            batch.append(message)
            if has_failed:
                break
        return batch

    def _lease(self, partition: Partition, until: float, tries: Tries, expected: int) -> Put:
        value = _json({"until": until, "tries": dict(tries)})
        return Put(namespace=partition.state, key=_LEASE, value=value, updated_at=self._clock.now(), expected=expected)


def holds_told(namespace: Namespace) -> bool:
    """Whether messages that have become memories are kept in ``namespace``, for a summary or the next extraction."""
    return namespace[1:2] == (OUTBOX,) and namespace[-1] in (_SAID, _EARLIER)


def told_in(row: Row) -> list[ConversationMessage]:
    """The messages that a row of such a namespace keeps."""
    messages = row.value.get("messages", [])
    values = messages if row.namespace[-1] == _EARLIER else [row.value]
    return [message_of(value).in_words for value in values]


def _redacted(message: ConversationMessage, guard: Guard) -> ConversationMessage:
    """``message`` without the secrets in what its user or the application says; the rest of its row is ours.

    Media are redacted with their row.
    """
    given = {"author": message.author, "id": message.id, "session_id": message.session_id}
    clean: dict[str, Any] = {name: text and guard.text(text) for name, text in given.items()}
    return replace(message, text=guard.text(message.text), **clean)


def _has_earlier(partition: Partition, message: ConversationMessage) -> bool:
    """Whether the messages before a batch are known: runs without a thread may be different conversations."""
    return partition.task is None and message.session_id not in (None, NO_THREAD)


def _tail(messages: Sequence[ConversationMessage]) -> list[ConversationMessage]:
    """The last of ``messages``, the first of them cut at its beginning if it is too long."""
    found: list[ConversationMessage] = []
    room = MAX_EARLIER_LETTERS
    for message in reversed([message.in_words for message in traced(messages)][-MAX_EARLIER:]):
        found.insert(0, replace(message, text=message.text[-room:]))
        room -= len(message.text)
        if room <= 0:
            break
    return found


def _count(tries: Tries, waiting: Waiting) -> int:
    """How often the message was tried."""
    return tries.get(waiting.key, _NEVER).times


def _time_of(message: Waiting, tries: Tries) -> float:
    """The time before which it is not worked on, in seconds since 1970."""
    return max(tries.get(message.key, _NEVER).not_before, message.due.timestamp() if message.due else 0.0)


def _gone(partition: Partition, message: Waiting, now: datetime) -> list[Write]:
    """The writes with which it leaves the outbox; a message leaves its mark."""
    gone = Remove(namespace=partition.messages, key=message.key, expected=message.version)
    marks = marks_of(partition.user_id)
    return [gone] if partition.task else [gone, Put(namespace=marks, key=message.key, value="{}", updated_at=now)]


def _json(value: Mapping[str, Any]) -> str:
    return encode_json(value, what="outbox")


# The state of an outbox: what waits, the dead letters, and retrying or dropping them.


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How many partitions and messages wait, for how long the oldest (seconds), and how many dead letters there are."""

    partitions: int
    waiting: int
    oldest_s: float
    dead: int


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that was given up, and why."""

    key: str
    partition: Partition
    text: str
    reason: str
    tries: int


async def status(engine: StoreEngine, clock: Clock) -> QueueStatus:
    """How much waits, periodic work aside, and how many dead letters there are. Raises StoreError."""
    partitions = [Partition.from_value(row.value) for row in await engine.scan(await _there(engine, places(None)))]
    tallies = await engine.tally([partition.messages for partition in partitions])
    dead = await engine.count(await _there(engine, [DEAD_LIST]))
    now = clock.now()
    oldest = max([0.0, *((now - tally.oldest).total_seconds() for tally in tallies)])
    return QueueStatus(len(partitions), sum(tally.rows for tally in tallies), oldest, dead)


async def dead_letters(engine: StoreEngine, limit: int | None = None) -> list[DeadMessage]:
    """The newest ``limit`` messages that were given up, or all, the newest first. Raises StoreError."""
    return [letter for letter, _ in await _dead(engine, limit)]


async def retry(engine: StoreEngine, clock: Clock, keys: Sequence[str] | None = None) -> int:
    """Puts dead letters (those with ``keys``, or all) back into the outbox; returns how many. Raises StoreError."""
    return await _removed(engine, keys, clock)


async def drop(engine: StoreEngine, keys: Sequence[str] | None = None) -> int:
    """Removes dead letters (those with ``keys``, or all) for good; returns how many. Raises StoreError."""
    return await _removed(engine, keys)


async def _removed(engine: StoreEngine, keys: Sequence[str] | None, clock: Clock | None = None) -> int:
    """Removes dead letters; with a ``clock``, puts them back into the outbox. Returns how many it removed."""
    done = 0
    for letter, row in await _dead(engine):
        if keys is not None and letter.key not in keys:
            continue
        writes: list[Write] = [
            Remove(namespace=row.namespace, key=row.key, expected=row.version),
            Remove(namespace=letter.partition.dead_list(engine.backend), key=row.key),
        ]
        if clock is None:
            writes.append(Remove(namespace=letter.partition.media, key=row.key))
        else:
            now = clock.now()
            writes += [
                Waiting.of(row).put(letter.partition.messages, now),
                letter.partition.listing(engine.backend, now),
            ]
        with suppress(VersionConflict):
            await engine.write(writes)
            done += 1
    return done


async def _dead(engine: StoreEngine, limit: int | None = None) -> list[tuple[DeadMessage, Row]]:
    pointers = await engine.scan(await _there(engine, [DEAD_LIST]), limit=limit)
    dead: list[tuple[DeadMessage, Row]] = []
    for at in range(0, len(pointers), _PAGE):
        page = [(Partition.from_value(pointer.value), pointer.key) for pointer in pointers[at : at + _PAGE]]
        rows = await engine.get([(partition.dead, key) for partition, key in page])
        for (partition, key), row in zip(page, rows, strict=True):
            if row:
                letter = DeadMessage(key, partition, row.value["text"], row.value["reason"], row.value["tries"])
                dead.append((letter, row))
    return dead
