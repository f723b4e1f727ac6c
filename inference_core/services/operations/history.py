"""What held before a memory, and what came after it."""

from __future__ import annotations

from inference_core.drivers import Plan
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.record import MemoryRecord
from inference_core.services.operations.scope import MemoryScope, UserId, find


def history(scope: MemoryScope, user_id: UserId, memory_id: str) -> Plan[list[MemoryStoreDocument]]:
    """The memory with all that it superseded and all that superseded it, the oldest first; empty if there is none.

    Only memories in the scopes that the agent reads. Raises InvalidInput, StoreUnavailable.
    """
    found: dict[str, MemoryRecord] = {}
    waiting = [memory_id]
    while waiting:
        one = waiting.pop()
        record = None if one in found else (yield from find(scope, user_id, one))
        if record is not None:
            found[one] = record
            waiting += [*record.supersedes, *([record.superseded_by] if record.superseded_by else [])]
    ordered = sorted(found.values(), key=lambda record: (record.happened_at, record.created_at))
    return [MemoryStoreDocument.of(record) for record in ordered]
