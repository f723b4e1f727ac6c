"""Remove a memory, or all of a user's memories that the agent reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from inference_core.effects import Operation
from inference_core.errors import VersionConflict
from inference_core.memory.namespaces import FORGOTTEN, Namespace, encode_label, sidecar_namespace
from inference_core.memory.text import canonical_id
from inference_core.memory.types import validate_memory_type
from inference_core.services.operations.scope import MemoryScope, UserId, check_version, find_row
from inference_core.stores.backend import Check, Delete
from inference_core.stores.engine import StoreEngine

PORTION: Final = 500


def delete(
    scope: MemoryScope,
    user_id: UserId,
    memory_id: str,
    category: str | None = None,
    *,
    expected_version: int | None = None,
) -> Operation[bool]:
    """Removes a memory with its text, vector and index entry, also one that was forgotten; False if there is none.

    It is looked for in the scopes that the agent reads, or those of ``category``. With ``expected_version`` only a
    memory at that version goes, and none that was forgotten. Raises InvalidInput, StoreUnavailable, WriteUnknown, and
    VersionConflict if it is at another version.
    """
    while (row := (yield from find_row(scope, user_id, memory_id, category))) is not None:
        check_version(row.key, row.version, expected_version)
        removal = Delete(namespace=row.namespace, key=row.key, expected=expected_version)
        with suppress(VersionConflict):  # the next look tells which version is there now
            yield from scope.engine.write(
                [removal, Delete(namespace=sidecar_namespace(row.namespace, FORGOTTEN), key=row.key)]
            )
            return True
    if expected_version is not None:
        return False
    key, homes = canonical_id(memory_id), scope.namespaces.read_scopes(user_id, category)
    archives = [sidecar_namespace(home, FORGOTTEN) for home in homes]
    forgotten = [row for row in (yield from scope.engine.get([(place, key) for place in archives])) if row]
    if forgotten:
        yield from scope.engine.write([Delete(namespace=row.namespace, key=row.key) for row in forgotten])
        return True
    places = {(place, key) for place in (*homes, *archives)}
    try:  # a row that cannot be read is found by reading all of the user's, so first ask whether anything is there
        yield from scope.engine.write([Check(namespace=place, key=key, expected=0) for place, _ in places])
    except VersionConflict:
        gone = yield from scope.engine.discard(encode_label(user_id), lambda one: (one.namespace, one.key) in places)
        return gone > 0
    return False


def delete_all(
    scope: MemoryScope, user_id: UserId, memory_type: str | None = None, category: str | None = None
) -> Operation[int]:
    """Removes all memories of the user that this agent reads, of one type or category if given; returns how many.

    Forgotten ones go too and are not counted. Other agents' own memories stay; `purge_user_memories` removes those too.
    Raises InvalidInput, StoreUnavailable, WriteUnknown.
    """
    kinds = None if memory_type is None else frozenset({validate_memory_type(memory_type)})
    scopes = scope.namespaces.read_scopes(user_id, category)
    removed = yield from empty(scope.engine, scopes, kinds)
    archives = [sidecar_namespace(place, FORGOTTEN) for place in scopes]
    yield from empty(scope.engine, archives, kinds)
    if kinds is None:
        wanted = {*scopes, *archives}
        removed += yield from scope.engine.discard(encode_label(user_id), lambda one: one.namespace in wanted)
    return removed


def empty(engine: StoreEngine, scopes: Sequence[Namespace], kinds: frozenset[str] | None = None) -> Operation[int]:
    """Removes all rows of exactly ``scopes`` (of ``kinds``), portion by portion until none is left; how many."""
    removed = 0
    while rows := (yield from engine.page(scopes, kinds=kinds, limit=PORTION)):
        yield from engine.write([Delete(namespace=row.namespace, key=row.key) for row in rows])
        removed += len(rows)
    return removed
