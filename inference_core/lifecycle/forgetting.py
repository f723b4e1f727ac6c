"""Forgetting: what a policy chooses moves to the archive, from where it can be restored until it is erased.

Whatever fails, a memory is in its namespace or in the archive, and the next run goes on. What is changed, pinned or
recalled between choosing and moving stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from inference_core.drivers import Plan
from inference_core.lifecycle.archive import archives, archiving, documents, forgotten_of, homes, portions
from inference_core.lifecycle.choosing import Choice, ForgettingReason, Leaving
from inference_core.lifecycle.policy import ForgettingPolicy
from inference_core.lifecycle.usage import usages_beside
from inference_core.memory.namespaces import USAGE, beside, home_of
from inference_core.retrieval.documents import Document
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_of
from inference_core.services.operations.update import retried
from inference_core.stores.accesses import Usage
from inference_core.stores.backend import Delete, Key, Row, Write
from inference_core.stores.engine import StoreEngine

_PORTION: Final = 100
_READ_AT_ONCE: Final = 2_000
Progress = Callable[[int, int], None]
"""Is called with how many memories are done, and of how many."""


@dataclass(slots=True)
class ForgettingReport:
    """What was forgotten, or would be, and why.

    ``kept`` are the ids of memories that were changed, pinned or recalled after they were chosen, ``erased`` of those
    that can no longer be restored; ``remaining`` counts the memories that the user has left.
    """

    forgotten: list[Leaving] = field(default_factory=list[Leaving])
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
) -> Plan[ForgettingReport]:
    """Forgets what ``policy`` (default: what has expired) chooses among the user's memories, every agent's.

    ``dry_run`` only says what would be forgotten and erased. A run that ends early has forgotten a part; run it again.
    Raises InvalidInput, StoreError.
    """
    chosen = policy or ForgettingPolicy()
    engine, now = scope.engine, scope.clock.now()
    scopes = yield from homes(engine, user_id)
    found = yield from engine.scan(scopes, accepts=is_known)
    rows = {(row.namespace, row.key): row for row in found}
    usages = yield from usages_beside(engine, scopes)
    archived = yield from engine.scan((yield from archives(engine, user_id)), accepts=is_known)
    memories = [row for row in found if row.value.get("content")]
    leaving = list(Choice(list(map(record_of, memories)), usages, chosen, now).leaving.values())
    since = now - timedelta(days=chosen.keep_days)
    # An archived memory that is also in its namespace is left from a move or a restoration that was interrupted.
    overdue = [
        row for row in archived if forgotten_of(row).forgotten_at <= since or (home_of(row.namespace), row.key) in rows
    ]
    if dry_run:
        return ForgettingReport(leaving, [], [row.key for row in overdue], len(memories) - len(leaving))
    forgotten = yield from _archive(engine, leaving, now, progress)
    erased: list[str] = []
    for portion in portions(overdue, _PORTION):
        erased += yield from retried(partial(_erase, engine, portion))
    for orphans in portions([key for key in usages if key not in rows], _PORTION):
        yield from engine.write([Delete(namespace=beside(namespace, USAGE), key=key) for namespace, key in orphans])
    kept = [one.record.id for one in leaving if one.key not in forgotten]
    return ForgettingReport(list(forgotten.values()), kept, erased, len(memories) - len(forgotten))


def _archive(
    engine: StoreEngine, leaving: Sequence[Leaving], now: datetime, progress: Progress | None
) -> Plan[dict[Key, Leaving]]:
    """Moves ``leaving`` to the archive, portion by portion; those that went."""
    gone: dict[Key, Leaving] = {}
    done = 0
    for stretch in portions(leaving, _READ_AT_ONCE):
        known = yield from documents(engine, [one.key for one in stretch])
        for portion in portions(stretch, _PORTION):
            went = yield from retried(partial(_move, engine, portion, known, now, gone.keys()))
            gone |= {one.key: one for one in went}
            done += len(portion)
            if progress:
                progress(done, len(leaving))
    return gone


def _move(
    engine: StoreEngine,
    portion: Sequence[Leaving],
    known: Mapping[Key, Document],
    now: datetime,
    gone: Collection[Key],
) -> Plan[list[Leaving]]:
    """Moves those of ``portion`` that are as they were. Raises VersionConflict if one of them changes meanwhile."""
    yield from engine.pool.call(engine.accesses.flush)
    rows = yield from engine.get([one.key for one in portion])
    figures = yield from engine.get([(beside(one.record.namespace, USAGE), one.record.id) for one in portion])
    going: dict[Key, Leaving] = {}
    writes: list[Write] = []
    for one, row, figure in zip(portion, rows, figures, strict=True):
        if row is None or row.version != one.record.version:
            continue
        if one.reason is not ForgettingReason.EXPIRED and Usage.of(figure) != one.usage:
            continue  # recalled since it was chosen; what has expired goes even so
        if one.heir is None or one.heir in gone or one.heir in going:
            going[one.key] = one
            writes += archiving(one, row, figure, known.get(one.key), now)
    if writes:
        yield from engine.write(writes, embeds=False)
    return list(going.values())


def _erase(engine: StoreEngine, portion: Sequence[Row]) -> Plan[list[str]]:
    """Removes rows of the archive for good, unless they have changed; the ids of those that went."""
    rows = yield from engine.get([(row.namespace, row.key) for row in portion])
    same = [row for row, old in zip(rows, portion, strict=True) if row and row.version == old.version]
    if same:
        yield from engine.write([Delete(namespace=row.namespace, key=row.key, expected=row.version) for row in same])
    return [row.key for row in same]
