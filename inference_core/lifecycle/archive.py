"""The archive: where forgotten memories lie until they are restored or erased; no recall reads it.

A row of the archive is the memory's own, with its text and vectors, and a note of when and why it was forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from inference_core.effects import Operation
from inference_core.lifecycle.policy import EvictionCandidate
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.namespaces import (
    FORGOTTEN,
    USAGE,
    Namespace,
    encode_label,
    holds_forgotten,
    memory_namespace,
    sidecar_namespace,
)
from inference_core.memory.text import canonical_id, encode_json, mapping_field, moment_field, text_field
from inference_core.retrieval.documents import Document
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, record_of
from inference_core.services.operations.update import retried
from inference_core.stores.access_counts import Usage, usage_put
from inference_core.stores.backend import Delete, Key, Put, Row, Write
from inference_core.stores.engine import StoreEngine

T = TypeVar("T")
_NOTE: Final = "_forgotten"
_PORTION: Final = 100


@dataclass(frozen=True, slots=True)
class ForgottenMemory:
    """A memory that can be restored, when it was forgotten, and why."""

    document: MemoryStoreDocument
    forgotten_at: datetime
    reason: str


@dataclass(slots=True)
class RestoreReport:
    """Ids of memories that are back, whose id another memory has by now, and that are not in the archive."""

    restored: list[str] = field(default_factory=list[str])
    taken: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])


def forgotten(scope: MemoryScope, user_id: UserId) -> Operation[list[ForgottenMemory]]:
    """What can be restored of the user's memories, every agent's, the last forgotten first. Raises StoreError."""
    rows = yield from scope.engine.scan((yield from archives(scope.engine, user_id)), accepts=is_known)
    return sorted(map(forgotten_of, rows), key=lambda one: one.forgotten_at, reverse=True)


def restore(scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None = None) -> Operation[RestoreReport]:
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


def _restored(scope: MemoryScope, portion: Sequence[Row], known: dict[Key, Document]) -> Operation[list[Key]]:
    """Puts back those of ``portion`` that are still archived and whose places are free; the archive's keys of those."""
    keys = [(row.namespace, row.key) for row in portion]
    rows = yield from scope.engine.get(keys)
    places = yield from scope.engine.get([(memory_namespace(namespace), key) for namespace, key in keys])
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


def forgotten_of(row: Row) -> ForgottenMemory:
    """The memory in a row of the archive."""
    note = mapping_field(row.value, _NOTE)
    at = moment_field(note, "at") or row.updated_at
    return ForgottenMemory(MemoryStoreDocument.of(record_of(row)), at, text_field(note, "reason") or "")


def archiving(
    leaving: EvictionCandidate, row: Row, usage: Row | None, document: Document | None, now: datetime
) -> list[Write]:
    """The writes that move the memory of ``row`` to the archive, unless it or its ``usage`` has changed meanwhile."""
    figures = Usage.of(usage)
    note: dict[str, Any] = {
        "at": now.isoformat(),
        "reason": leaving.reason.value,
        "updated_at": row.updated_at.isoformat(),
        "count": figures.count,
    }
    namespace, name = leaving.key
    put = Put(
        namespace=sidecar_namespace(namespace, FORGOTTEN),
        key=name,
        value=encode_json(row.value | {_NOTE: note}, what="memory"),
        document=document,
        kind=leaving.record.memory_type.value,
        created_at=row.created_at,
        updated_at=now,
    )
    return [
        put,
        Delete(namespace=namespace, key=name, expected=row.version),
        Delete(namespace=sidecar_namespace(namespace, USAGE), key=name, expected=usage.version if usage else 0),
    ]


def restoring(row: Row, document: Document | None, now: datetime) -> list[Write]:
    """The writes that put the memory of an archive's ``row`` back, as used now, unless one is there."""
    note = mapping_field(row.value, _NOTE)
    count = note.get("count")
    home = memory_namespace(row.namespace)
    put = Put(
        namespace=home,
        key=row.key,
        value=encode_json({name: part for name, part in row.value.items() if name != _NOTE}, what="memory"),
        document=document,
        kind=record_of(row).memory_type.value,
        created_at=row.created_at,
        updated_at=moment_field(note, "updated_at") or row.updated_at,
        expected=0,
    )
    usage = usage_put((home, row.key), Usage(count if isinstance(count, int) else 0, now))
    return [put, usage, Delete(namespace=row.namespace, key=row.key, expected=row.version)]


def archives(engine: StoreEngine, user_id: UserId) -> Operation[list[Namespace]]:
    """The namespaces of the user's archives, every agent's."""
    names = yield from engine.namespaces((encode_label(user_id),))
    return [name for name in names if holds_forgotten(name)]


def documents(engine: StoreEngine, keys: Collection[Key]) -> Operation[dict[Key, Document]]:
    """What indexes know of the rows of ``keys``, with their vectors."""

    def read() -> dict[Key, Document]:
        backend, wanted = engine.backend, set(keys)
        found: dict[Key, Document] = {}
        for scope in dict.fromkeys(namespace for namespace, _ in keys):
            backend.heads([scope])  # makes the mirror of a foreign store read it, which changes() answers from
            for change in backend.changes(scope, 0):
                if change.document and (scope, change.key) in wanted:
                    found[scope, change.key] = change.document
        tokens = backend.tokens(list(found))
        return {key: document._replace(tokens=own) for (key, document), own in zip(found.items(), tokens, strict=True)}

    return engine.pool.call(read)


def portions(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """``items`` in portions of at most ``size``."""
    return [items[at : at + size] for at in range(0, len(items), size)]
