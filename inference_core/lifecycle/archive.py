"""The archive keeps forgotten and deleted memories until they are restored or erased; no recall reads it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from inference_core.effects import Operation
from inference_core.memory.namespaces import (
    Namespace,
    encode_label,
    holds_forgotten,
    memory_namespace,
)
from inference_core.memory.record import MemoryPage
from inference_core.memory.text import canonical_id
from inference_core.retrieval.documents import Document
from inference_core.services.operations.delete import (
    DELETED,
    ForgottenMemory,
    forgotten_of,
    is_archived,
    restore_writes,
)
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import MemoryScope, UserId, retried
from inference_core.stores.backend import Cursor, Key, Row, Write
from inference_core.stores.engine import StoreEngine

T = TypeVar("T")
_PORTION: Final = 100


@dataclass(slots=True)
class RestoreReport:
    """Ids of memories: ``restored``, ``taken`` by another memory meanwhile, or ``missing`` from the archive."""

    restored: list[str] = field(default_factory=list[str])
    taken: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])


@operation("forgotten")
async def forgotten(scope: MemoryScope, user_id: UserId) -> list[ForgottenMemory]:
    """The user's memories that can be restored, of all agents, the latest forgotten first. Raises StoreError."""
    now = scope.clock.now()
    places = await archives(scope.engine, user_id)
    rows = await scope.engine.scan(places, accepts=lambda row: is_archived(row, now))
    return sorted(map(forgotten_of, rows), key=lambda memory: memory.forgotten_at, reverse=True)


async def forgotten_page(
    scope: MemoryScope, user_id: UserId, *, limit: int = 50, after: str | None = None
) -> MemoryPage[ForgottenMemory]:
    """A page of the memories that `forgotten` gives, sorted by when they were first stored, the newest first.

    Raises InvalidInput, StoreError.
    """
    now, cursor = scope.clock.now(), None if after is None else Cursor.decode(after)
    places = await archives(scope.engine, user_id)
    rows = await scope.engine.scan(places, accepts=lambda row: is_archived(row, now), limit=limit + 1, after=cursor)
    return MemoryPage(map(forgotten_of, rows[:limit]), Cursor.of(rows[limit - 1]).encode() if rows[limit:] else None)


@operation("restore")
async def restore(scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None = None) -> RestoreReport:
    """Restores these forgotten and deleted memories (None: all), with their ids, times, metadata and history.

    They count as used now. If another memory has been saved with the same id, that memory stays. Raises InvalidInput,
    StoreError.
    """
    return await restore_archived(scope, user_id, memory_ids)


async def restore_archived(
    scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None, *, deleted: bool = True
) -> RestoreReport:
    """Like `restore`; with ``deleted`` False, restores forgotten memories only, none that somebody deleted."""
    engine, now = scope.engine, scope.clock.now()

    def is_wanted(row: Row) -> bool:
        return is_archived(row, now) and (deleted or forgotten_of(row).reason != DELETED)

    async def put_back(portion: Sequence[Row], known: dict[Key, Document]) -> list[Key]:
        """Restores those rows that are still archived and whose ids are free; returns their keys in the archive."""
        keys = [(row.namespace, row.key) for row in portion]
        found = await engine.get(keys)
        places = await engine.get([(memory_namespace(namespace), key) for namespace, key in keys])
        at = scope.clock.now()
        back: list[Key] = []
        writes: list[Write] = []
        for key, row, place in zip(keys, found, places, strict=True):
            if row and place is None:
                back.append(key)
                writes += restore_writes(row, known.get(key), at)
        if writes:
            await scope.write(writes, "restore", embeds=False)
        return back

    namespaces = await archives(engine, user_id)
    if memory_ids is None:
        rows = await engine.scan(namespaces, accepts=is_wanted)
    else:
        keys = [(scope, key) for key in dict.fromkeys(map(canonical_id, memory_ids)) for scope in namespaces]
        rows = [row for row in await engine.get(keys) if row and is_wanted(row)]
    report = RestoreReport()
    try:
        for portion in portions(rows, _PORTION):
            known = await documents(engine, [(row.namespace, row.key) for row in portion])
            back = await retried(partial(put_back, portion, known))
            report.restored += [key for _, key in back]
            report.taken += [row.key for row in portion if (row.namespace, row.key) not in back]
    finally:  # portions before one that failed were restored, and may need vectors
        engine.embed_later()
    there = {*report.restored, *report.taken}
    report.missing = [memory_id for memory_id in dict.fromkeys(memory_ids or ()) if memory_id not in there]
    return report


async def archives(engine: StoreEngine, user_id: UserId) -> list[Namespace]:
    """The namespaces of the user's archives, every agent's."""
    names = await engine.namespaces((encode_label(user_id),))
    return [name for name in names if holds_forgotten(name)]


def documents(engine: StoreEngine, keys: Collection[Key]) -> Operation[dict[Key, Document]]:
    """The indexed texts of the rows at ``keys``, with their vectors; rows without an indexed text are left out."""

    def read() -> dict[Key, Document]:
        backend, wanted = engine.backend, set(keys)
        found: dict[Key, Document] = {}
        for scope in dict.fromkeys(namespace for namespace, _ in keys):
            backend.heads([scope])  # refreshes the mirror of another library's store, from which changes() reads
            for change in backend.changes(scope, 0):
                if change.document and (scope, change.key) in wanted:
                    found[scope, change.key] = change.document
        tokens = backend.tokens(list(found))
        return {key: document._replace(tokens=own) for (key, document), own in zip(found.items(), tokens, strict=True)}

    return engine.pool.call(read)


def portions(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """``items`` in portions of at most ``size``."""
    return [items[at : at + size] for at in range(0, len(items), size)]
