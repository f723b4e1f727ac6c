"""The archive: where forgotten memories lie until they are restored or erased; no recall reads it.

A row of the archive is the memory's own, with its text and vectors, and a note of when and why it was forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from inference_core.drivers import Plan
from inference_core.lifecycle.choosing import Leaving
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.fields import mapping_field, moment_field, text_field
from inference_core.memory.namespaces import (
    FORGOTTEN,
    USAGE,
    Namespace,
    beside,
    encode_label,
    holds_forgotten,
    holds_memories,
    home_of,
)
from inference_core.memory.text import encode_json
from inference_core.retrieval.documents import Document
from inference_core.services.operations.scope import UserId, record_of
from inference_core.stores.accesses import Usage, usage_put
from inference_core.stores.backend import Delete, Key, Put, Row, Write
from inference_core.stores.engine import StoreEngine

T = TypeVar("T")
_NOTE: Final = "_forgotten"
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class ForgottenMemory:
    """A memory that can be restored, when it was forgotten, and why."""

    document: MemoryStoreDocument
    forgotten_at: datetime
    reason: str


def forgotten_of(row: Row) -> ForgottenMemory:
    """The memory in a row of the archive."""
    note = mapping_field(row.value, _NOTE)
    at = moment_field(note, "at") or row.updated_at
    return ForgottenMemory(MemoryStoreDocument.of(record_of(row)), at, text_field(note, "reason") or "")


def archiving(leaving: Leaving, row: Row, usage: Row | None, document: Document | None, now: datetime) -> list[Write]:
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
        namespace=beside(namespace, FORGOTTEN),
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
        Delete(namespace=beside(namespace, USAGE), key=name, expected=usage.version if usage else 0),
    ]


def restoring(row: Row, document: Document | None, now: datetime) -> list[Write]:
    """The writes that put the memory of an archive's ``row`` back, as used now, unless one is there."""
    note = mapping_field(row.value, _NOTE)
    count = note.get("count")
    home = home_of(row.namespace)
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


def homes(engine: StoreEngine, user_id: UserId) -> Plan[list[Namespace]]:
    """Plan: the namespaces that hold memories of the user, every agent's."""
    names = yield from engine.namespaces((encode_label(user_id),))
    return [name for name in names if holds_memories(name)]


def archives(engine: StoreEngine, user_id: UserId) -> Plan[list[Namespace]]:
    """Plan: the namespaces of the user's archives, every agent's."""
    names = yield from engine.namespaces((encode_label(user_id),))
    return [name for name in names if holds_forgotten(name)]


def documents(engine: StoreEngine, keys: Collection[Key]) -> Plan[dict[Key, Document]]:
    """Plan: what indexes know of the rows of ``keys``, with their vectors."""

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
