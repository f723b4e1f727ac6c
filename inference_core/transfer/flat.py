"""A memory of the flat namespace as a record of its category."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

from inference_core.clock import aware
from inference_core.errors import InvalidInput, InvalidMemory
from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import canonical_id, canonical_metadata, canonical_text, optional_text
from inference_core.memory.types import (
    MEMORY_CATEGORIES,
    MEMORY_TYPES,
    SINGULAR_TYPES,
    MemoryCategory,
    MemoryType,
    get_category_for_type,
)

LEFTOVERS: Final = "legacy"
"""The key of ``extra_metadata`` under which all is kept that has no other place in a record."""
NO_CONTENT: Final = "no content"
NOT_AN_OBJECT: Final = "the value is not a JSON object"
NOT_STORABLE: Final = "cannot be stored"
_MILLISECONDS_FROM: Final = 1e11
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyItem:
    """A row of the flat namespace, as it lies there. ``fault`` says why it cannot be migrated, if that is known."""

    user_id: str
    key: str
    value: Any = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None
    fault: str | None = None


class Unusable(InvalidMemory):
    """The item holds no memory that can be stored. ``reason`` is one of a few, the message says more."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(detail or reason)
        self.reason = reason


def record_of_legacy(item: LegacyItem, namespaces: MemoryNamespaceBuilder, max_content_bytes: int) -> MemoryRecord:
    """``item`` as a record in the namespace of its category, under the same id and with the same times.

    The category is the value's own if it names one, else that of its type; an unknown type becomes ``general``. An id
    that no tool could name is replaced by its hash. What does not fit stays under ``extra_metadata["legacy"]``.
    Raises Unusable.
    """
    if item.fault is not None:
        raise Unusable(item.fault)
    if not isinstance(item.value, Mapping):
        raise Unusable(NOT_AN_OBJECT)
    value: dict[str, Any] = dict(item.value)  # pyright: ignore[reportUnknownArgumentType] - a mapping of JSON
    content = value.pop("content", None)
    if content is None or (isinstance(content, str) and not content.strip()):
        raise Unusable(NO_CONTENT)
    category, metadata = value.get("memory_category"), value.get("extra_metadata")
    fields: dict[str, Any] = {
        "memory_type": _kind(value.get("memory_type")),
        "memory_category": MemoryCategory(category) if category in MEMORY_CATEGORIES else None,
        "topic": _label(value.get("topic")),
        "session_id": _label(value.get("session_id")),
        "extra_metadata": dict(metadata) if isinstance(metadata, Mapping) else None,  # pyright: ignore[reportUnknownArgumentType] - JSON
        "created_at": moment(value.get("created_at")),
    }
    left = {name: found for name, found in value.items() if found not in (None, "") and fields.get(name) is None}
    try:
        memory_id = canonical_id(item.key)
    except InvalidMemory:
        memory_id = blake2b(item.key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        left["id"] = item.key
    extra: dict[str, Any] = fields["extra_metadata"] or {}
    if left:
        earlier = {LEFTOVERS: extra[LEFTOVERS]} if LEFTOVERS in extra else {}
        extra = extra | {LEFTOVERS: left | earlier}
    kind = fields["memory_type"] or MemoryType.GENERAL
    category = fields["memory_category"] or get_category_for_type(kind)
    created = fields["created_at"] or item.created_at or item.updated_at or _EPOCH
    try:
        return MemoryRecord(
            id=memory_id,
            content=canonical_text(content, max_bytes=max_content_bytes),
            memory_type=kind,
            category=category,
            namespace=namespaces.namespace_for(item.user_id, category),
            created_at=created,
            updated_at=item.updated_at or created,
            topic=fields["topic"],
            session_id=fields["session_id"],
            agent_name=namespaces.agent_name,
            extra_metadata=canonical_metadata(extra) if extra else {},
            expires_at=item.expires_at,
        )
    except InvalidInput as error:
        raise Unusable(NOT_STORABLE, str(error)) from error


def moment(found: Any) -> datetime | None:
    """A datetime, a text in ISO 8601, or a number of seconds or milliseconds since 1970 as a UTC instant, else None."""
    try:
        if isinstance(found, datetime):
            return aware(found)
        if isinstance(found, str):
            return aware(datetime.fromisoformat(found.strip()))
        if isinstance(found, int | float) and not isinstance(found, bool):
            return datetime.fromtimestamp(found / 1000 if abs(found) >= _MILLISECONDS_FROM else found, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _kind(found: Any) -> MemoryType | None:
    """The type that a name means; names may be singular, or those of the enum, as in ``MemoryType.GENERAL``."""
    if not isinstance(found, str):
        return None
    name = found.rpartition(".")[2].strip().lower()
    name = SINGULAR_TYPES.get(name, name)
    return MemoryType(name) if name in MEMORY_TYPES else None


def _label(found: Any) -> str | None:
    try:
        return optional_text(found, what="a label")
    except InvalidMemory:
        return None
