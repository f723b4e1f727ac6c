"""`MemoryLifecycle`: forgetting moves the memories that a policy chooses to the archive; they can be restored.

Whatever fails, each memory is in its namespace or in the archive, and the next run continues. A memory that is changed,
pinned or (unless it has expired) recalled between choice and move stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Generic, TypeVar

from inference_core.effects import Operation, Progress, run
from inference_core.errors import InferenceCoreError, InvalidId
from inference_core.lifecycle.archive import documents, forgotten, portions, restore
from inference_core.lifecycle.policy import Choice, EvictionCandidate, ForgettingPolicy, ForgettingReason
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.namespaces import (
    USAGE,
    VERSIONS,
    Namespace,
    decode_label,
    encode_label,
    holds_forgotten,
    holds_memories,
    memory_namespace,
    sidecar_namespace,
)
from inference_core.memory.record import MemoryRecord
from inference_core.retrieval.documents import Document
from inference_core.services.agent_memory_service import AgentMemoryStoreService, ServiceBase, asynchronous, synchronous
from inference_core.services.operations.delete import archive_writes, forgotten_of, is_over
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_of, records_of, retried
from inference_core.stores.access_counts import Usage
from inference_core.stores.backend import Key, Remove, Row, Write
from inference_core.stores.engine import StoreEngine

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_PORTION: Final = 100
_READ_AT_ONCE: Final = 2_000
_HOUR_S: Final = 3_600.0


@dataclass(slots=True)
class ForgettingReport:
    """What was forgotten, or would be, and why.

    ``kept`` are the ids of memories that were changed, pinned or recalled after they were chosen, ``erased`` of those
    that can no longer be restored; ``remaining`` counts the memories that the user has left.
    """

    forgotten: list[EvictionCandidate] = field(default_factory=list[EvictionCandidate])
    kept: list[str] = field(default_factory=list[str])
    erased: list[str] = field(default_factory=list[str])
    remaining: int = 0


def forget(
    scope: MemoryScope,
    user_id: UserId,
    policy: ForgettingPolicy | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Operation[ForgettingReport]:
    """Forgets the user's memories that ``policy`` chooses (default: those that have expired), of all agents.

    ``dry_run`` only reports what would be forgotten and erased. If a run is interrupted, run it again to finish.
    Raises InvalidInput, StoreError.
    """
    chosen = policy or ForgettingPolicy()
    engine, now = scope.engine, scope.clock.now()
    names = yield from engine.namespaces((encode_label(user_id),))
    scopes = [name for name in names if holds_memories(name)]
    found = yield from engine.scan(scopes, accepts=is_known)
    rows = {(row.namespace, row.key): row for row in found}
    usages = yield from usages_beside(engine, scopes)
    archived = yield from engine.scan([name for name in names if holds_forgotten(name)], accepts=is_known)
    memories = [row for row in found if row.value.get("content")]
    held = yield from engine.held([*memories, *archived])
    choice = Choice(list(map(record_of, memories)), usages, chosen, now).leaving.values()
    leaving = [one for one in choice if one.key not in held]
    since = now - timedelta(days=chosen.keep_days)
    # An archived memory that is also in its namespace is left from a move or a restoration that was interrupted.
    # What somebody deleted, and earlier texts, have an end of their own.
    overdue = [
        row
        for row in archived
        if (row.namespace, row.key) not in held
        and (
            is_over(row, now)
            or (
                (one := forgotten_of(row)).until is None
                and (one.forgotten_at <= since or (memory_namespace(row.namespace), row.key) in rows)
            )
        )
    ]
    if dry_run:
        return ForgettingReport(leaving, [], [row.key for row in overdue], len(memories) - len(leaving))
    forgotten = yield from _archive(scope, leaving, now, progress)
    erased: list[str] = []
    # Under an id that is in use again, erasing would take the earlier texts of the memory that is there.
    doubled = [row for row in overdue if (memory_namespace(row.namespace), row.key) in rows]
    single = [row for row in overdue if row not in doubled]
    for some, at_once in ((doubled, scope), (single, replace(scope, deleted_days=0.0))):
        for portion in portions(some, _PORTION):
            erased += yield from retried(partial(_erase, at_once, portion))
    for orphans in portions([key for key in usages if key not in rows], _PORTION):
        yield from engine.write(
            [Remove(namespace=sidecar_namespace(namespace, USAGE), key=key) for namespace, key in orphans]
        )
    if not engine.backend.capabilities.change_feed:  # such a store does not remove by itself what has ended
        versions = [sidecar_namespace(name, VERSIONS) for name in scopes]
        over = yield from engine.scan(versions, accepts=lambda row: is_over(row, now))
        yield from engine.remove_later(over)
    kept = [one.record.id for one in leaving if one.key not in forgotten]
    return ForgettingReport(list(forgotten.values()), kept, erased, len(memories) - len(forgotten))


def _archive(
    scope: MemoryScope, leaving: Sequence[EvictionCandidate], now: datetime, progress: Progress | None
) -> Operation[dict[Key, EvictionCandidate]]:
    """Moves ``leaving`` to the archive, portion by portion; returns those that were moved, by key."""
    engine, done = scope.engine, 0
    gone: dict[Key, EvictionCandidate] = {}

    def move(portion: Sequence[EvictionCandidate], known: Mapping[Key, Document]) -> Operation[list[EvictionCandidate]]:
        """Moves those that have not changed since. Raises VersionConflict if one changes during the move."""
        yield from engine.pool.call(engine.accesses.flush)
        rows = yield from engine.get([one.key for one in portion])
        figures = yield from engine.get(
            [(sidecar_namespace(one.record.namespace, USAGE), one.record.id) for one in portion]
        )
        going: dict[Key, EvictionCandidate] = {}
        writes: list[Write] = []
        for one, row, figure in zip(portion, rows, figures, strict=True):
            if row is None or row.version != one.record.version:
                continue
            if one.reason is not ForgettingReason.EXPIRED and Usage.of(figure) != one.usage:
                continue  # recalled since it was chosen; what has expired goes even so
            # History goes after what superseded it: while that stays, so does this.
            if one.successor is None or one.successor in gone or one.successor in going:
                going[one.key] = one
                writes += archive_writes(row, figure, now, one.reason.value, document=known.get(one.key))
        if writes:
            yield from scope.write(writes, "forget", embeds=False)
        return list(going.values())

    for stretch in portions(leaving, _READ_AT_ONCE):
        known = yield from documents(engine, [one.key for one in stretch])
        for portion in portions(stretch, _PORTION):
            went = yield from retried(partial(move, portion, known))
            gone |= {one.key: one for one in went}
            done += len(portion)
            if progress:
                progress(done, len(leaving))
    return gone


def _erase(scope: MemoryScope, portion: Sequence[Row]) -> Operation[list[str]]:
    """Removes rows of the archive, unless they have changed; returns the ids of those removed."""
    rows = yield from scope.engine.get([(row.namespace, row.key) for row in portion])
    same = [row for row, old in zip(rows, portion, strict=True) if row and row.version == old.version]
    if same:
        gone = [Remove(namespace=row.namespace, key=row.key, expected=row.version) for row in same]
        yield from scope.write(gone, "erase")
    return [row.key for row in same]


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A memory, how often it was recalled, and when last."""

    document: MemoryStoreDocument
    count: int
    last: datetime | None


def usage(scope: MemoryScope, user_id: UserId) -> Operation[list[MemoryUsage]]:
    """How often each memory that this agent reads was recalled.

    The most used come first, then the most recently used, then the oldest. Recalls by other processes are included
    within 30 seconds, once those have written them. Raises InvalidInput, StoreError.
    """
    scopes = scope.namespaces.read_scopes(user_id)
    rows = yield from scope.engine.scan(scopes)
    found = by_use(records_of(rows), (yield from usages_beside(scope.engine, scopes)))
    return [MemoryUsage(MemoryStoreDocument.of(record), figure.count, figure.last) for record, figure in found]


def by_use(records: Sequence[MemoryRecord], figures: Mapping[Key, Usage]) -> list[tuple[MemoryRecord, Usage]]:
    """``records`` with their usage: the most used first, then the most recently used, then the oldest."""
    found = [(record, figures.get((record.namespace, record.id), Usage())) for record in records]
    found.sort(key=lambda one: (-one[1].count, -(one[1].last.timestamp() if one[1].last else 0), one[0].created_at))
    return found


def usages_beside(
    engine: StoreEngine, scopes: Sequence[Namespace], only: Sequence[Row] | None = None
) -> Operation[dict[Key, Usage]]:
    """The usage of the memories in exactly ``scopes``, or of ``only`` these rows, without those never recalled."""
    yield from engine.pool.call(engine.accesses.flush)
    if only is None:
        rows = yield from engine.scan([sidecar_namespace(scope, USAGE) for scope in scopes])
    else:
        found = yield from engine.get([(sidecar_namespace(one.namespace, USAGE), one.key) for one in only])
        rows = [row for row in found if row]
    return {(memory_namespace(row.namespace), row.key): Usage.of(row) for row in rows}


class Rounds(Generic[T]):
    """Runs ``apply`` for each of ``users`` at the first `run_if_due`, then once every ``hours``; None: never.

    Several processes may run rounds at the same time.
    """

    def __init__(
        self,
        users: Callable[[], Operation[Sequence[T]]],
        apply: Callable[[T], Operation[int]],
        hours: float | None,
    ) -> None:
        self._users = users
        self._apply = apply
        self._every_s = (hours or 0.0) * _HOUR_S
        self._due = 0.0 if hours else float("inf")

    def run_if_due(self) -> int:
        """Runs a round if one is due; returns the sum of what ``apply`` returned, else 0.

        A failure is logged, and its user waits for the next round.
        """
        if time.monotonic() < self._due:
            return 0
        self._due = time.monotonic() + self._every_s
        done = 0
        try:
            users = run(self._users())
        except InferenceCoreError as error:
            _LOG.warning("Nothing is forgotten or removed this time: %s", error)
            return 0
        for user_id in users:
            try:
                done += run(self._apply(user_id))
            except InferenceCoreError as error:
                _LOG.warning("Nothing of a user is forgotten or removed this time: %s", error)
        return done


class ForgettingRounds(Rounds[str]):
    """Applies ``policy`` to each user of the store of ``scope``, at once and then every ``hours``; None: never."""

    def __init__(self, scope: MemoryScope, policy: ForgettingPolicy, hours: float | None) -> None:
        def apply(user_id: str) -> Operation[int]:
            return len((yield from forget(scope, user_id, policy)).forgotten)

        super().__init__(lambda: users_of(scope), apply, hours)


def users_of(scope: MemoryScope) -> Operation[list[str]]:
    """The users who have memories in the store, or forgotten ones."""
    names = yield from scope.engine.namespaces()
    users: list[str] = []
    for label in dict.fromkeys(name[0] for name in names if holds_memories(name) or holds_forgotten(name)):
        with suppress(InvalidId):  # an application's own namespace may look like one of ours
            users.append(decode_label(label))
    return users


class SyncMemoryLifecycle(ServiceBase):
    """`MemoryLifecycle` for callers without an event loop."""

    forget = synchronous(forget)
    restore = synchronous(restore)
    forgotten = synchronous(forgotten)
    usage = synchronous(usage)


class MemoryLifecycle(ServiceBase):
    """Forgets and restores a user's memories in the store of ``service``, and reports how they are used.

    ``forget``, ``restore`` and ``forgotten`` apply to all of a user's memories, whichever agent wrote them; ``usage``
    to those that the agent of ``service`` reads. ``timeout`` limits each call, in seconds; None: no limit. Methods
    raise InvalidInput for bad arguments and StoreUnavailable if the database does not answer. ``sync`` has the same
    methods for sync code.
    """

    forget = asynchronous(forget)
    restore = asynchronous(restore)
    forgotten = asynchronous(forgotten)
    usage = asynchronous(usage)

    def __init__(self, service: AgentMemoryStoreService, *, timeout: float | None = None) -> None:
        super().__init__(service.scope, timeout)
        self.sync = SyncMemoryLifecycle(service.scope, timeout)
