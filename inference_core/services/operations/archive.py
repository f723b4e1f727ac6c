"""What is kept of memories that were forgotten or deleted, and of earlier texts: rows beside the memories' namespace.

A row of the archive is the memory's own, with a note of when and why it went. What a user deleted has an end, at which
the store removes it. Under the id of a memory that is there, the archive keeps the texts that updates have replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.namespaces import FORGOTTEN, USAGE, Namespace, memory_namespace, sidecar_namespace
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import encode_json, mapping_field, moment_field, text_field
from inference_core.retrieval.documents import Document
from inference_core.services.operations.scope import is_known, put_of, record_of
from inference_core.stores.backend import Delete, Expiry, Put, Row, Write
from inference_core.stores.maintenance import Usage, usage_put

DELETED: Final = "deleted"
"""The reason of what somebody deleted."""
_NOTE: Final = "_forgotten"
_EARLIER: Final = "earlier"
_MOST_EARLIER: Final = 20
_MOST_EARLIER_CHARACTERS: Final = 200_000


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
    """Whether the row's own end has come, on a store that does not remove it by itself."""
    until = moment_field(mapping_field(row.value, _NOTE), "until")
    return until is not None and until <= now


def archive_writes(
    row: Row,
    usage: Row | None,
    now: datetime,
    reason: str,
    *,
    document: Document | None = None,
    until: datetime | None = None,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> list[Write]:
    """The writes that move the memory of ``row`` to the archive, unless it or its ``usage`` has changed meanwhile."""
    figures = Usage.of(usage)
    note: dict[str, Any] = {
        "at": now.isoformat(),
        "reason": reason,
        "updated_at": row.updated_at.isoformat(),
        "count": figures.count,
        **({"until": until.isoformat()} if until else {}),
        **({_EARLIER: list(earlier)} if earlier else {}),
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
    return [put, usage, keep_write(home, row.key, _entries(note, now), now, expected=row.version)]


def earlier_of(row: Row | None, now: datetime, until: datetime) -> list[dict[str, Any]]:
    """The earlier texts in a row of the archive, the oldest first, to be carried into another one.

    A memory that lies there is one of them, kept till ``until``.
    """
    if row is None:
        return []
    note = mapping_field(row.value, _NOTE)
    found = _entries(note, now)
    if is_archived(row, now):
        value = {name: part for name, part in row.value.items() if name != _NOTE}
        changed = moment_field(note, "updated_at") or row.updated_at
        found.append(_entry(value, 0, changed, moment_field(note, "until") or until))
    return found


def replaced(old: MemoryRecord, until: datetime) -> dict[str, Any]:
    """What is kept of ``old``, whose text an update replaces, till ``until``."""
    return _entry(old.to_value(), old.version, old.updated_at, until)


def keep_write(
    home: Namespace, key: str, earlier: Sequence[Mapping[str, Any]], now: datetime, expected: int | None = None
) -> Write:
    """The write that keeps ``earlier`` texts of a memory in ``home``, the newest of them that have room."""
    kept: list[Mapping[str, Any]] = []
    left = _MOST_EARLIER_CHARACTERS
    for entry in reversed(earlier[-_MOST_EARLIER:]):
        left -= len(encode_json(dict(entry), what="memory"))
        if left < 0:
            break
        kept.insert(0, entry)
    place = sidecar_namespace(home, FORGOTTEN)
    ends = [end for entry in kept if (end := moment_field(entry, "until"))]
    if not ends:
        return Delete(namespace=place, key=key, expected=expected)
    until = max(ends)
    note = {"at": now.isoformat(), "until": until.isoformat(), _EARLIER: kept}
    return Put(
        namespace=place,
        key=key,
        value=encode_json({_NOTE: note}, what="memory"),
        updated_at=now,
        expected=expected,
        expiry=Expiry(until, max(until - now, timedelta.resolution)),
    )


def earlier_documents(row: Row | None, now: datetime) -> list[MemoryStoreDocument]:
    """The earlier texts of a memory, the oldest first, as they were before an update replaced them."""
    found: list[MemoryStoreDocument] = []
    for entry in _entries(mapping_field(row.value, _NOTE), now) if row else ():
        changed = moment_field(entry, "updated_at") or now
        record = MemoryRecord.from_value(
            mapping_field(entry, "value"),
            memory_id=row.key if row else "",
            namespace=memory_namespace(row.namespace) if row else (),
            stored_at=changed,
            updated_at=changed,
            version=cast("int", entry.get("version") or 0),
        )
        found.append(MemoryStoreDocument.of(record))
    return found


def archive_keys(homes: Iterable[Namespace], key: str) -> list[tuple[Namespace, str]]:
    """Where the archives of ``homes`` keep what there is under the id ``key``."""
    return [(sidecar_namespace(home, FORGOTTEN), key) for home in homes]


def _entry(value: Mapping[str, Any], version: int, changed: datetime, until: datetime) -> dict[str, Any]:
    return {"value": value, "version": version, "updated_at": changed.isoformat(), "until": until.isoformat()}


def _entries(note: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """The earlier texts of a note whose time has not come."""
    stored = cast("Sequence[dict[str, Any]]", note.get(_EARLIER) or ())
    return [entry for entry in stored if (until := moment_field(entry, "until")) and until > now]
