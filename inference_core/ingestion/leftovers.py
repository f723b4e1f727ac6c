"""What a session left besides the work of jobs: messages that wait or died, and memories of its very words."""

from __future__ import annotations

from inference_core.drivers import Plan
from inference_core.ingestion.messages import session_label, session_name
from inference_core.ingestion.outbox import DEAD_LIST, RESULT
from inference_core.ingestion.partitions import DEAD, OUTBOX, STATE
from inference_core.memory.namespaces import encode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.services.operations.scope import MemoryScope, UserId, records_of
from inference_core.stores.backend import Delete, Write


def dropped(scope: MemoryScope, user_id: UserId, session_id: str) -> Plan[None]:
    """Plan: removes the session's messages, and its summary that is due, from the outbox and the dead letters.

    A worker that has claimed them finds them gone, and writes nothing. Raises StoreError.
    """
    session = session_name(session_id)
    names = yield from scope.engine.namespaces((encode_label(user_id),))
    for name in [name for name in names if len(name) > 1 and name[1] in (OUTBOX, DEAD)]:
        rows = yield from scope.engine.scan([name])
        gone = [row for row in rows if row.value.get("session") == session]
        writes: list[Write] = [Delete(namespace=name, key=row.key) for row in gone]
        if name[1] == DEAD:
            writes += [Delete(namespace=DEAD_LIST, key=row.key) for row in gone]
        elif gone:
            writes.append(Delete(namespace=(*name, STATE), key=RESULT))
        if writes:
            yield from scope.engine.write(writes)


def told(scope: MemoryScope, user_id: UserId, session_id: str) -> Plan[list[MemoryRecord]]:
    """Plan: the memories that come from the session's messages, word for word or saved by an agent's tool."""
    names = yield from scope.engine.namespaces((encode_label(user_id),))
    rows = yield from scope.engine.scan([name for name in names if len(name) > 1 and name[1] in MEMORY_CATEGORIES])
    sessions = {session_name(session_id), session_label(session_id)}
    return [
        one
        for one in records_of(rows)
        if (one.source.message_ids or one.source.thread_id) and sessions & {one.session_id, one.source.thread_id}
    ]
