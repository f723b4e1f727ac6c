"""Remove a memory, or all of a user's memories that the agent reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from inference_core.drivers import Plan
from inference_core.errors import VersionConflict
from inference_core.memory.namespaces import FORGOTTEN, Namespace, beside
from inference_core.memory.types import validate_memory_type
from inference_core.services.operations.scope import MemoryScope, UserId, check_version, find
from inference_core.stores.backend import Delete
from inference_core.stores.engine import StoreEngine

PORTION: Final = 500


def delete(
    scope: MemoryScope,
    user_id: UserId,
    memory_id: str,
    category: str | None = None,
    *,
    expected_version: int | None = None,
) -> Plan[bool]:
    """Removes the memory with this id from whichever scope that the agent reads; False if it is in none of them.

    Text, vector and index entry go with it, and so does one that was forgotten. With ``expected_version`` only a memory
    goes that is at this version, and not one that was forgotten. Raises InvalidInput, StoreUnavailable, WriteUnknown,
    VersionConflict if the memory is not at the expected version.
    """
    while (record := (yield from find(scope, user_id, memory_id, category))) is not None:
        check_version(record, expected_version)
        gone = Delete(namespace=record.namespace, key=record.id, expected=expected_version)
        with suppress(VersionConflict):  # the next look tells which version is there now
            yield from scope.engine.write([gone, Delete(namespace=beside(record.namespace, FORGOTTEN), key=record.id)])
            return True
    return expected_version is None and (yield from _delete_forgotten(scope, user_id, memory_id, category))


def _delete_forgotten(scope: MemoryScope, user_id: UserId, memory_id: str, category: str | None) -> Plan[bool]:
    places = [beside(place, FORGOTTEN) for place in scope.namespaces.read_scopes(user_id, category)]
    rows = yield from scope.engine.get([(place, memory_id) for place in places])
    there = [row for row in rows if row]
    if there:
        yield from scope.engine.write([Delete(namespace=row.namespace, key=row.key) for row in there])
    return bool(there)


def delete_all(
    scope: MemoryScope, user_id: UserId, memory_type: str | None = None, category: str | None = None
) -> Plan[int]:
    """Removes every memory of the user that this agent reads (of one type or category, if given); how many.

    Those that were forgotten go too and are not counted. Other agents' own memories stay; `purge_user_memories`
    removes those too.
    """
    kinds = None if memory_type is None else frozenset({validate_memory_type(memory_type)})
    scopes = scope.namespaces.read_scopes(user_id, category)
    removed = yield from empty(scope.engine, scopes, kinds)
    yield from empty(scope.engine, [beside(place, FORGOTTEN) for place in scopes], kinds)
    return removed


def empty(engine: StoreEngine, scopes: Sequence[Namespace], kinds: frozenset[str] | None = None) -> Plan[int]:
    """Removes all rows of exactly ``scopes`` (of ``kinds``), portion by portion until none is left; how many."""
    removed = 0
    while rows := (yield from engine.page(scopes, kinds=kinds, limit=PORTION)):
        yield from engine.write([Delete(namespace=row.namespace, key=row.key) for row in rows])
        removed += len(rows)
    return removed
