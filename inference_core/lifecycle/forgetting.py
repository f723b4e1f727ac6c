"""Forgetting: what a policy lets go moves to the archive, from where it can be restored until it is erased.

A memory is in its place or in the archive at any time, whatever fails; the next run goes on. What somebody changes,
pins or recalls between choosing and moving stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from inference_core.stores.backend import Delete, Key, Row
from inference_core.stores.engine import StoreEngine

_PORTION: Final = 100
_READ_AT_ONCE: Final = 2_000
Progress = Callable[[int, int], None]
"""Hears how many memories are done, and of how many."""


@dataclass(slots=True)
class ForgettingReport:
    """What was forgotten, or would be: the memories with the reasons.

    ``kept`` are ids of memories that were chosen and then changed, pinned or recalled; ``erased`` those of memories
    that cannot be restored any more; ``remaining`` counts the memories that the user has left.
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
    """Forgets what ``policy`` (default: what has expired) lets go of the user's memories, every agent's.

    ``dry_run`` only says what would be forgotten and erased. A run that ends early has forgotten a part; run it again.
    Raises InvalidInput, StoreError.
    """
    chosen = policy or ForgettingPolicy()
    engine, now = scope.engine, scope.clock.now()
    rows, usages, archived = yield from _seen(engine, user_id)
    memories = [row for row in rows.values() if row.value.get("content")]
    choice = Choice([record_of(row) for row in memories], usages, chosen, now)
    leaving = list(choice.leaving.values())
    overdue = [row for row in archived if _is_overdue(row, rows, now - timedelta(days=chosen.keep_days))]
    if dry_run:
        return ForgettingReport(leaving, [], [row.key for row in overdue], len(memories) - len(leaving))
    forgotten = yield from _moved(engine, leaving, now, progress)
    erased = yield from _erased(engine, overdue)
    yield from _tidied(engine, [key for key in usages if key not in rows])
    kept = [one.record.id for one in leaving if one.key not in forgotten]
    return ForgettingReport(list(forgotten.values()), kept, erased, len(memories) - len(forgotten))


def _seen(engine: StoreEngine, user_id: UserId) -> Plan[tuple[dict[Key, Row], dict[Key, Usage], list[Row]]]:
    """All rows where the user's memories are, how often each was recalled, and what was forgotten before."""
    scopes = yield from homes(engine, user_id)
    rows = yield from engine.scan(scopes, accepts=is_known)
    usages = yield from usages_beside(engine, scopes)
    archived = yield from engine.scan((yield from archives(engine, user_id)), accepts=is_known)
    return {(row.namespace, row.key): row for row in rows}, usages, archived


def _is_overdue(row: Row, there: Collection[Key], since: datetime) -> bool:
    """Whether an archive's row was forgotten before ``since``, or its memory is ``there``: a move was interrupted."""
    return forgotten_of(row).forgotten_at <= since or (home_of(row.namespace), row.key) in there


def _moved(
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
    figures = yield from engine.get([(beside(namespace, USAGE), key) for namespace, key in _keys(portion)])
    going: dict[Key, tuple[Leaving, Row, Row | None]] = {}
    for one, row, figure in zip(portion, rows, figures, strict=True):
        if row and _is_unchanged(one, row, figure) and (one.heir is None or one.heir in gone or one.heir in going):
            going[one.key] = one, row, figure
    writes = [
        write for key, (one, row, figure) in going.items() for write in archiving(one, row, figure, known.get(key), now)
    ]
    if writes:
        yield from engine.write(writes, embeds=False)
    return [one for one, _, _ in going.values()]


def _is_unchanged(one: Leaving, row: Row, figure: Row | None) -> bool:
    """Whether a memory is as it was when it was chosen; what has expired goes even if it was recalled since."""
    is_used = one.reason is not ForgettingReason.EXPIRED and Usage.of(figure) != one.usage
    return row.version == one.record.version and not is_used


def _keys(portion: Iterable[Leaving]) -> list[Key]:
    return [one.key for one in portion]


def _erased(engine: StoreEngine, overdue: Sequence[Row]) -> Plan[list[str]]:
    """Removes rows of the archive for good, unless they change meanwhile; the ids of those that went."""
    erased: list[str] = []
    for portion in portions(overdue, _PORTION):
        erased += yield from retried(partial(_erase, engine, portion))
    return erased


def _erase(engine: StoreEngine, portion: Sequence[Row]) -> Plan[list[str]]:
    rows = yield from engine.get([(row.namespace, row.key) for row in portion])
    same = [row for row, old in zip(rows, portion, strict=True) if row and row.version == old.version]
    if same:
        yield from engine.write([Delete(namespace=row.namespace, key=row.key, expected=row.version) for row in same])
    return [row.key for row in same]


def _tidied(engine: StoreEngine, orphans: Sequence[Key]) -> Plan[None]:
    """Removes the figures of memories that are not there."""
    for portion in portions(orphans, _PORTION):
        yield from engine.write([Delete(namespace=beside(namespace, USAGE), key=key) for namespace, key in portion])
