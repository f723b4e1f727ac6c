"""Look at what is stored: one memory, a page of them, or how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inference_core.drivers import Plan
from inference_core.errors import InvalidInput
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory, validate_memory_type
from inference_core.services.operations.scope import MemoryScope, UserId, find, record_of
from inference_core.stores.engine import StoreEngine

PAGE: Final = 500


def get(scope: MemoryScope, user_id: UserId, memory_id: str) -> Plan[MemoryStoreDocument | None]:
    """The memory with this id in the scopes that the agent reads; None if it is in none of them."""
    record = yield from find(scope, user_id, memory_id)
    return record and MemoryStoreDocument.of(record)


def list_memories(
    scope: MemoryScope,
    user_id: UserId,
    *,
    category: str | None = None,
    memory_type: str | None = None,
    search: str | None = None,
    limit: int | None = 50,
    offset: int = 0,
    session_id: str | None = None,
) -> Plan[tuple[list[MemoryStoreDocument], int]]:
    """A page of the memories that the agent reads, the newest first, and how many there are in all.

    ``search`` keeps those whose content or topic holds it, in any case; ``session_id`` those of this
    session, which together are an episode. ``limit`` None gives all of them.
    """
    scopes = scope.namespaces.read_scopes(user_id, category)
    records, total = yield from page_of(scope.engine, scopes, memory_type, search, limit, offset, session_id)
    return [MemoryStoreDocument.of(record) for record in records], total


def count(scope: MemoryScope, user_id: UserId) -> Plan[dict[str, int]]:
    """How many memories the agent reads, by category and in ``total``."""
    counts: dict[str, int] = {}
    for category in MemoryCategory:
        counts[category.value] = yield from scope.engine.count(scope.namespaces.read_scopes(user_id, category))
    return counts | {"total": sum(counts.values())}


def page_of(
    engine: StoreEngine,
    scopes: Sequence[Namespace],
    memory_type: str | None,
    search: str | None,
    limit: int | None,
    offset: int,
    session_id: str | None = None,
) -> Plan[tuple[list[MemoryRecord], int]]:
    """A page of the memories in exactly ``scopes``, the newest first, and how many match in all."""
    if offset < 0 or (limit is not None and limit < 0):
        raise InvalidInput(f"limit and offset must not be negative; got {limit} and {offset}")
    kinds = None if memory_type is None else frozenset({validate_memory_type(memory_type)})
    needle = (search or "").casefold()
    matching: list[MemoryRecord] = []
    start = 0
    while True:
        rows = yield from engine.newest(scopes, kinds=kinds, limit=PAGE, offset=start)
        matching += [
            record
            for record in map(record_of, rows)
            if needle in _searched(record) and session_id in (None, record.session_id)
        ]
        start += PAGE
        if len(rows) < PAGE:
            break
    end = None if limit is None else offset + limit
    return matching[offset:end], len(matching)


def _searched(record: MemoryRecord) -> str:
    return f"{record.content}\n{record.topic or ''}".casefold()
