"""Partition: the messages or periodic work that one worker holds at a time; and the queue's status and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from inference_core.clock import Clock
from inference_core.errors import VersionConflict
from inference_core.memory.namespaces import QUEUE_ROOT, MemoryNamespaceBuilder, Namespace, Owner, encode_label
from inference_core.memory.text import digest_of, encode_json, moment_field
from inference_core.outbox.messages import ConversationMessage, Role, mended, session_name
from inference_core.stores.backend import Put, Remove, Row, Write
from inference_core.stores.engine import StoreEngine

OUTBOX: Final = "outbox"
"""Second label of the namespaces, below the user, that hold waiting messages."""
DEAD: Final = "outbox_dead"
"""Second label of the namespaces, below the user, that hold dead letters."""
MARKS: Final = "ingested"
"""Second label of the namespace, below the user, that holds the marks of messages that were taken in."""
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
_EARLIER: Final = "earlier"
DEAD_LIST: Final[Namespace] = (QUEUE_ROOT, "dead")
"""Lists the dead letters of all users."""
_PAGE: Final = 200


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
    def dead(self) -> Namespace:
        """Where its dead letters are."""
        return (encode_label(self.user_id), DEAD, self._agent)

    @property
    def kept(self) -> Namespace:
        """Where the newest messages that an application handed over are kept for prompts."""
        return (encode_label(self.user_id), KEPT, self._agent)

    @property
    def place(self) -> tuple[Namespace, str]:
        """The row that lists it as having messages."""
        one = [self.user_id, self.agent_name, self.agent_scope_enabled, *([self.task] if self.task else [])]
        key = digest_of(one)
        return places(self.task)[int(key[:8], 16) % SHARDS], key

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

    def listing(self, at: datetime, expected: int | None = None, due: float | None = None) -> Put:
        """The write that lists it, with the time (seconds since 1970) before which it has nothing to do."""
        where, key = self.place
        value = self.to_value() | ({} if due is None else {"due": due})
        return Put(namespace=where, key=key, value=encode_json(value, what="outbox"), updated_at=at, expected=expected)

    def unlisting(self, expected: int) -> Remove:
        """The write that takes it off the list, unless something came in after ``expected``, the listing's version."""
        where, key = self.place
        return Remove(namespace=where, key=key, expected=expected)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Partition:
        """The partition that `to_value` gave."""
        return cls(value["user"], value["agent"], value["scoped"], value.get("task"))


def places(task: str | None) -> list[Namespace]:
    """The namespaces that list the partitions with messages or, given a ``task``, with work of that kind."""
    return [(QUEUE_ROOT, f"{task}-{shard:02d}" if task else f"{shard:02d}") for shard in range(SHARDS)]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in the outbox; ``zone`` names the time zone in which it was said, if known.

    With ``due`` it is periodic work, which waits until then and may be put off meanwhile. ``trace`` is the span in
    which it came, as W3C's traceparent, if that was traced.
    """

    key: str
    version: int
    message: ConversationMessage
    zone: str | None = None
    due: datetime | None = None
    trace: str | None = None

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
        }

    @classmethod
    def of(cls, row: Row) -> Waiting:
        """The message that a row of the outbox holds."""
        value = row.value
        due = moment_field(value, "due")
        return cls(row.key, row.version, message_of(value), value.get("zone"), due, value.get("trace"))

    def put(self, namespace: Namespace, at: datetime, expected: int | None = None) -> Put:
        """The write that puts it into the outbox."""
        value = encode_json(self.to_json(), what="outbox")
        return Put(namespace=namespace, key=self.key, value=value, created_at=at, updated_at=at, expected=expected)


def message_to_json(message: ConversationMessage) -> dict[str, Any]:
    """``message`` as JSON data that every store can hold."""
    return {
        "session": session_name(message.session_id),
        "role": message.role.value,
        "text": mended(message.text),
        "id": message.id and mended(message.id),
        "position": message.position,
        "author": message.author and mended(message.author),
        "at": message.at and message.at.isoformat(),
        **({"after_tool": True} if message.is_marked else {}),
        **({} if message.is_proven else {"unproven": True}),
    }


def message_of(value: Mapping[str, Any]) -> ConversationMessage:
    """The message that `message_to_json` wrote."""
    return ConversationMessage(
        session_id=value["session"],
        role=Role(value["role"]),
        text=value["text"],
        id=value["id"],
        position=value["position"],
        author=value["author"],
        at=datetime.fromisoformat(value["at"]) if value["at"] else None,
        is_proven=not value.get("unproven", False),
        is_marked=value.get("after_tool", False),
    )


def marks_of(user_id: Owner) -> Namespace:
    """The namespace of the marks of this user's messages."""
    return (encode_label(user_id), MARKS)


def mark(namespace: Namespace, key: str, clock: Clock) -> Put:
    """The write that marks a message as taken in; it fails if the message is marked already."""
    return Put(namespace=namespace, key=key, value="{}", updated_at=clock.now(), expected=0)


async def unmarked(engine: StoreEngine, marks: Namespace, keys: Iterable[str]) -> list[str]:
    """Those of ``keys`` without a mark among ``marks``. Raises StoreError."""
    asked = list(keys)
    rows = await engine.get([(marks, key) for key in asked])
    return [key for key, row in zip(asked, rows, strict=True) if row is None]


async def noted_outside(
    engine: StoreEngine, clock: Clock, user_id: Owner, session_id: str | None, is_outside: bool
) -> bool:
    """Whether text from outside was in the user's session before; if it ``is_outside`` now, a mark remembers it.

    The mark stays until the user is erased. Raises StoreError.
    """
    marks, key = marks_of(user_id), digest_of(["tool", session_name(session_id)])
    is_first = bool(await unmarked(engine, marks, [key]))
    if is_first and is_outside:
        with suppress(VersionConflict):  # another process was faster
            await engine.write([mark(marks, key, clock)])
    return not is_first


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
    partitions = [Partition.from_value(row.value) for row in await engine.scan(places(None))]
    found = await engine.tally([partition.messages for partition in partitions])
    dead = await engine.count([DEAD_LIST])
    now = clock.now()
    oldest = max([0.0, *((now - one.oldest).total_seconds() for one in found)])
    return QueueStatus(len(partitions), sum(one.rows for one in found), oldest, dead)


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
            Remove(namespace=DEAD_LIST, key=row.key),
        ]
        if clock:
            now = clock.now()
            writes += [Waiting.of(row).put(letter.partition.messages, now), letter.partition.listing(now)]
        with suppress(VersionConflict):
            await engine.write(writes)
            done += 1
    return done


async def _dead(engine: StoreEngine, limit: int | None = None) -> list[tuple[DeadMessage, Row]]:
    pointers = await engine.scan([DEAD_LIST], limit=limit)
    found: list[tuple[DeadMessage, Row]] = []
    for at in range(0, len(pointers), _PAGE):
        page = [(Partition.from_value(pointer.value), pointer.key) for pointer in pointers[at : at + _PAGE]]
        rows = await engine.get([(partition.dead, key) for partition, key in page])
        for (partition, key), row in zip(page, rows, strict=True):
            if row:
                letter = DeadMessage(key, partition, row.value["text"], row.value["reason"], row.value["tries"])
                found.append((letter, row))
    return found
