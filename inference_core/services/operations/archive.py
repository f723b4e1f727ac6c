"""What is kept of memories that were forgotten or deleted, and of earlier texts: rows beside the memories' namespace.

A row of the archive is the memory's own, with a note of when and why it went. What a user deleted has an end, at which
the store removes it. Earlier states lie in rows of their own (`inference_core.stores.versions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from inference_core.effects import Operation
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.namespaces import FORGOTTEN, USAGE, Namespace, memory_namespace, sidecar_namespace
from inference_core.memory.record import MemoryRecord, is_of_known_schema
from inference_core.memory.text import encode_json, mapping_field, moment_field, text_field
from inference_core.retrieval.documents import Document
from inference_core.services.operations.scope import MemoryScope, is_known, put_of, record_of
from inference_core.stores.backend import Delete, Expiry, Put, Row, Write
from inference_core.stores.maintenance import Usage, usage_put
from inference_core.stores.versions import State, last_end, states_in, versions_key

DELETED: Final = "deleted"
"""The reason of what somebody deleted."""
_NOTE: Final = "_forgotten"
_EARLIER: Final = "earlier"


@dataclass(frozen=True, slots=True)
class ForgottenMemory:
    """A memory that can be restored, when it was forgotten or deleted, and why.

    ``until`` is when it is erased; None: as `ForgettingPolicy` says.
    """

    document: MemoryStoreDocument
    forgotten_at: datetime
    reason: str
    until: datetime | None = None


def forgotten_of(row: Row) -> ForgottenMemory:
    """The memory in a row of the archive."""
    note = mapping_field(row.value, _NOTE)
    at = moment_field(note, "at") or row.updated_at
    document = MemoryStoreDocument.of(record_of(row))
    return ForgottenMemory(document, at, text_field(note, "reason") or "", moment_field(note, "until"))


def is_archived(row: Row, now: datetime) -> bool:
    """Whether the row of an archive holds a memory that can be restored."""
    until = moment_field(mapping_field(row.value, _NOTE), "until")
    return is_known(row) and bool(row.value.get("content")) and (until is None or until > now)


def is_over(row: Row, now: datetime) -> bool:
    """Whether the end of an archive's or versions' row has come, on a store that does not remove it by itself."""
    until = last_end(row) or moment_field(mapping_field(row.value, _NOTE), "until")
    return until is not None and until <= now


def archive_writes(
    row: Row,
    usage: Row | None,
    now: datetime,
    reason: str,
    *,
    document: Document | None = None,
    until: datetime | None = None,
) -> list[Write]:
    """The writes that move the memory of ``row`` to the archive, unless it or its ``usage`` has changed meanwhile."""
    figures = Usage.of(usage)
    note: dict[str, Any] = {
        "at": now.isoformat(),
        "reason": reason,
        "updated_at": row.updated_at.isoformat(),
        "count": figures.count,
        **({"until": until.isoformat()} if until else {}),
    }
    put = Put(
        namespace=sidecar_namespace(row.namespace, FORGOTTEN),
        key=row.key,
        value=encode_json(row.value | {_NOTE: note}, what="memory"),
        document=document,
        kind=text_field(row.value, "memory_type") or "",
        created_at=row.created_at,
        updated_at=now,
        expiry=Expiry(until, until - now) if until else None,
    )
    usage_place = sidecar_namespace(row.namespace, USAGE)
    return [
        put,
        Delete(namespace=row.namespace, key=row.key, expected=row.version),
        Delete(namespace=usage_place, key=row.key, expected=usage.version if usage else 0),
    ]


def restore_writes(row: Row, document: Document | None, now: datetime) -> list[Write]:
    """The writes that put the memory of an archive's ``row`` back, as used now, unless one is there."""
    note = mapping_field(row.value, _NOTE)
    count = note.get("count")
    home, record = memory_namespace(row.namespace), record_of(row)
    put = Put(
        namespace=home,
        key=row.key,
        value=encode_json({name: part for name, part in row.value.items() if name != _NOTE}, what="memory"),
        document=document or put_of(record).document,
        kind=record.memory_type.value,
        created_at=row.created_at,
        updated_at=moment_field(note, "updated_at") or row.updated_at,
        expected=0,
    )
    usage = usage_put((home, row.key), Usage(count if isinstance(count, int) else 0, now))
    return [put, usage, Delete(namespace=row.namespace, key=row.key, expected=row.version)]


def earlier_texts(
    scope: MemoryScope, homes: Iterable[Namespace], memory_id: str, latest: MemoryRecord | None = None
) -> Operation[list[MemoryStoreDocument]]:
    """The earlier texts of a memory that was kept in ``homes``, the oldest first; ``latest`` is what it says now.

    A state that differs in something else is no other text.
    """
    places = [(home, memory_id) for home in homes]
    rows = yield from scope.engine.get(
        [*map(versions_key, places), *archive_keys((home for home, _ in places), memory_id)]
    )
    now, found = scope.clock.now(), list[MemoryRecord]()
    for place, row, archived in zip(places, rows, rows[len(places) :], strict=False):
        states = [state for state in states_in(row, now) if not state.place]
        states += _states_of_before(archived, now)
        found += [
            MemoryRecord.from_value(
                state.value,
                memory_id=memory_id,
                namespace=place[0],
                stored_at=state.created_at,
                updated_at=state.updated_at,
                version=state.version,
            )
            for state in states
            if is_of_known_schema(state.value)
        ]
    texts: list[MemoryRecord] = []
    for record in sorted(found, key=lambda one: one.version):
        if texts and texts[-1].content == record.content:
            texts.pop()
        texts.append(record)
    if latest and texts and texts[-1].content == latest.content:
        texts.pop()
    return [MemoryStoreDocument.of(record) for record in texts]


def _states_of_before(row: Row | None, now: datetime) -> list[State]:
    """What version 0.1 kept of replaced texts, in the row of the archive."""
    found: list[State] = []
    note = mapping_field(row.value, _NOTE) if row else {}
    for entry in cast("Sequence[Mapping[str, Any]]", note.get(_EARLIER) or ()):
        changed, until = moment_field(entry, "updated_at"), moment_field(entry, "until")
        if changed and until and until > now:
            version = cast("int", entry.get("version") or 0)
            value = mapping_field(entry, "value")
            found.append(State(place="", version=version, value=value, kind="", created_at=changed, updated_at=changed))
    return found


def archive_keys(homes: Iterable[Namespace], key: str) -> list[tuple[Namespace, str]]:
    """Where the archives of ``homes`` keep what there is under the id ``key``."""
    return [(sidecar_namespace(home, FORGOTTEN), key) for home in homes]
