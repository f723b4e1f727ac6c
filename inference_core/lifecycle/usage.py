"""Meta-memory: which memories are used, and which never are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from inference_core.drivers import Plan
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.namespaces import USAGE, Namespace, beside, home_of
from inference_core.memory.record import MemoryRecord
from inference_core.services.operations.scope import MemoryScope, UserId, records_of
from inference_core.stores.accesses import Usage
from inference_core.stores.backend import Key
from inference_core.stores.engine import StoreEngine


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A memory, how often it was recalled, and when last."""

    document: MemoryStoreDocument
    count: int
    last: datetime | None


def usage(scope: MemoryScope, user_id: UserId) -> Plan[list[MemoryUsage]]:
    """How each memory that this agent reads of the user is used: the most used first, at the end the oldest unused.

    Recalls of other processes count when those have written them, half a minute later. Raises InvalidInput, StoreError.
    """
    scopes = scope.namespaces.read_scopes(user_id)
    rows = yield from scope.engine.scan(scopes)
    found = by_use(records_of(rows), (yield from usages_beside(scope.engine, scopes)))
    return [MemoryUsage(MemoryStoreDocument.of(record), figure.count, figure.last) for record, figure in found]


def by_use(records: Sequence[MemoryRecord], figures: Mapping[Key, Usage]) -> list[tuple[MemoryRecord, Usage]]:
    """``records`` with their figures, the most used first, then those used last, then the oldest."""
    found = [(record, figures.get((record.namespace, record.id), Usage())) for record in records]
    found.sort(key=lambda one: (-one[1].count, -(one[1].last.timestamp() if one[1].last else 0), one[0].created_at))
    return found


def usages_beside(engine: StoreEngine, scopes: Sequence[Namespace]) -> Plan[dict[Key, Usage]]:
    """Plan: how often the memories of exactly ``scopes`` were recalled; those that never were are left out."""
    yield from engine.pool.call(engine.accesses.flush)
    rows = yield from engine.scan([beside(scope, USAGE) for scope in scopes])
    return {(home_of(row.namespace), row.key): Usage.of(row) for row in rows}
