"""Remove a memory, or all of a user's memories that the agent reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from inference_core.effects import Operation
from inference_core.errors import VersionConflict
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import (
    FORGOTTEN,
    PENDING,
    USAGE,
    VERSIONS,
    Namespace,
    encode_label,
    sidecar_namespace,
)
from inference_core.memory.text import canonical_id
from inference_core.memory.types import validate_memory_type
from inference_core.services.operations.archive import (
    DELETED,
    archive_keys,
    archive_writes,
    forgotten_of,
    is_over,
)
from inference_core.services.operations.scope import MemoryScope, UserId, check_version, find_row
from inference_core.stores.backend import Check, Delete, Write
from inference_core.stores.engine import StoreEngine

PORTION: Final = 500


def delete(
    scope: MemoryScope,
    user_id: UserId,
    memory_id: str,
    category: str | None = None,
    *,
    expected_version: int | None = None,
    erase: bool = False,
) -> Operation[bool]:
    """Deletes a memory; it can be restored for the service's ``deleted_days``. Returns False if there is none.

    ``erase`` deletes it permanently, with its earlier texts, also if it was deleted before. A forgotten memory is
    always deleted permanently. The memory is searched for in the scopes that the agent reads, or those of ``category``.
    With ``expected_version``, it is deleted only at that version, and not if it was forgotten. Raises InvalidInput,
    StoreUnavailable, WriteUnknown, and VersionConflict if it is at another version.
    """
    now, until = scope.clock.now(), None if erase else scope.kept_until
    while (row := (yield from find_row(scope, user_id, memory_id, category))) is not None:
        check_version(row.key, row.version, expected_version)
        removal: list[Write] = [Delete(namespace=row.namespace, key=row.key, expected=expected_version)]
        if erase:  # it may have been moved from another category
            homes = scope.namespaces.read_scopes(user_id)
            removal += [Delete(namespace=place, key=row.key) for place in _beside(homes, VERSIONS)]
        if until is not None:
            (usage,) = yield from scope.engine.get([(sidecar_namespace(row.namespace, USAGE), row.key)])
            removal = archive_writes(row, usage, now, DELETED, until=until)
        with suppress(VersionConflict):  # the next look tells which version is there now
            yield from _write(scope, removal, "erase" if erase else "delete", erase=erase)
            if not scope.engine.backend.capabilities.change_feed:  # such a store does not remove what has ended
                places = [sidecar_namespace(row.namespace, place) for place in (FORGOTTEN, VERSIONS)]
                over = yield from scope.engine.scan(places, accepts=lambda one: is_over(one, now))
                scope.engine.later.put(*(Delete(namespace=one.namespace, key=one.key) for one in over))
            return True
    if expected_version is not None:
        return False
    key, homes = canonical_id(memory_id), scope.namespaces.read_scopes(user_id, category)
    archives = archive_keys(homes, key)
    archived = [row for row in (yield from scope.engine.get(archives)) if row]
    forgotten = [row for row in archived if erase or forgotten_of(row).until is None]
    if forgotten:
        earlier = [Delete(namespace=place, key=key) for place in _beside(homes, VERSIONS)]
        gone = [Delete(namespace=row.namespace, key=row.key) for row in forgotten]
        yield from _write(scope, [*gone, *earlier], "erase", erase=True)
        return True
    places = {*((home, key) for home in homes), *archives} - {(row.namespace, row.key) for row in archived}
    try:  # a row that cannot be read is found by reading all of the user's, so first ask whether anything is there
        yield from scope.engine.write([Check(namespace=place, key=key, expected=0) for place, _ in places])
    except VersionConflict:
        gone = yield from scope.engine.discard(encode_label(user_id), lambda one: (one.namespace, one.key) in places)
        return gone > 0
    return False


def delete_all(
    scope: MemoryScope, user_id: UserId, memory_type: str | None = None, category: str | None = None
) -> Operation[int]:
    """Deletes all memories of the user that this agent reads, of one type or category if given; returns how many.

    They cannot be restored. Forgotten and deleted memories are deleted permanently too, and not counted. Other agents'
    own memories stay; `purge_user_memories` deletes those too. Raises InvalidInput, StoreUnavailable, WriteUnknown.
    """
    kinds = None if memory_type is None else frozenset({validate_memory_type(memory_type)})
    scopes = scope.namespaces.read_scopes(user_id, category)
    cause = Cause(at=scope.clock.now(), operation="delete all", actor=scope.actor)
    removed = yield from empty(scope.engine, scopes, kinds, cause)
    archives = [*_beside(scopes, FORGOTTEN), *_beside(scopes, PENDING)]
    yield from empty(scope.engine, archives, kinds, cause)
    if kinds is None:
        yield from empty(scope.engine, _beside(scopes, VERSIONS))
        wanted = {*scopes, *archives}
        removed += yield from scope.engine.discard(encode_label(user_id), lambda one: one.namespace in wanted)
    return removed


def _write(scope: MemoryScope, batch: Sequence[Write], operation: str, *, erase: bool) -> Operation[list[int]]:
    """Removes for good, or so that it can be restored."""
    shown = replace(scope, deleted_days=0.0) if erase else scope
    return shown.write(batch, operation)


def _beside(homes: Sequence[Namespace], place: str) -> list[Namespace]:
    return [sidecar_namespace(home, place) for home in homes]


def empty(
    engine: StoreEngine,
    scopes: Sequence[Namespace],
    kinds: frozenset[str] | None = None,
    cause: Cause | None = None,
) -> Operation[int]:
    """Removes all rows of exactly ``scopes`` (of ``kinds``), portion by portion until none is left; how many."""
    removed = 0
    while rows := (yield from engine.page(scopes, kinds=kinds, limit=PORTION)):
        yield from engine.write([Delete(namespace=row.namespace, key=row.key) for row in rows], cause)
        removed += len(rows)
    return removed
