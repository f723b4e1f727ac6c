"""Bringing back what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from inference_core.drivers import Plan
from inference_core.lifecycle.archive import ForgottenMemory, archives, documents, forgotten_of, portions, restoring
from inference_core.memory.namespaces import home_of
from inference_core.memory.text import canonical_id
from inference_core.retrieval.documents import Document
from inference_core.services.operations.scope import MemoryScope, UserId, is_known
from inference_core.services.operations.update import retried
from inference_core.stores.backend import Key, Row, Write

_PORTION: Final = 100


@dataclass(slots=True)
class RestoreReport:
    """Ids of memories that are back, whose id another memory has by now, and that are not in the archive."""

    restored: list[str] = field(default_factory=list[str])
    taken: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])


def forgotten(scope: MemoryScope, user_id: UserId) -> Plan[list[ForgottenMemory]]:
    """What can be restored of the user's memories, every agent's, the last forgotten first. Raises StoreError."""
    rows = yield from scope.engine.scan((yield from archives(scope.engine, user_id)), accepts=is_known)
    return sorted(map(forgotten_of, rows), key=lambda one: one.forgotten_at, reverse=True)


def restore(scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None = None) -> Plan[RestoreReport]:
    """Restores forgotten memories, None: all, as they were, with ids, instants, history and vectors.

    They count as used now. A memory that was saved under the same id since stays. Raises InvalidInput, StoreError.
    """
    engine = scope.engine
    scopes = yield from archives(engine, user_id)
    if memory_ids is None:
        rows = yield from engine.scan(scopes, accepts=is_known)
    else:
        keys = [(scope, key) for key in dict.fromkeys(map(canonical_id, memory_ids)) for scope in scopes]
        rows = [row for row in (yield from engine.get(keys)) if row and is_known(row)]
    report = RestoreReport()
    for portion in portions(rows, _PORTION):
        known = yield from documents(engine, [(row.namespace, row.key) for row in portion])
        back = yield from retried(partial(_restored, scope, portion, known))
        report.restored += [key for _, key in back]
        report.taken += [row.key for row in portion if (row.namespace, row.key) not in back]
    there = {*report.restored, *report.taken}
    report.missing = [one for one in dict.fromkeys(memory_ids or ()) if one not in there]
    engine.embed_later()
    return report


def _restored(scope: MemoryScope, portion: Sequence[Row], known: dict[Key, Document]) -> Plan[list[Key]]:
    """Puts back those of ``portion`` that are still archived and whose places are free; the archive's keys of those."""
    keys = [(row.namespace, row.key) for row in portion]
    rows = yield from scope.engine.get(keys)
    places = yield from scope.engine.get([(home_of(namespace), key) for namespace, key in keys])
    now = scope.clock.now()
    back: list[Key] = []
    writes: list[Write] = []
    for key, row, place in zip(keys, rows, places, strict=True):
        if row and place is None:
            back.append(key)
            writes += restoring(row, known.get(key), now)
    if writes:
        yield from scope.engine.write(writes, embeds=False)
    return back
