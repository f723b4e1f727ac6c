"""Save a memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from inference_core.drivers import Plan
from inference_core.errors import InvalidMemory
from inference_core.memory.ids import new_id
from inference_core.memory.record import DEFAULT_IMPORTANCE, MemoryRecord
from inference_core.memory.text import canonical_id, canonical_metadata, canonical_text, optional_text
from inference_core.memory.trust import MemorySource, check_write
from inference_core.memory.types import (
    MemoryCategory,
    MemoryType,
    get_category_for_type,
    validate_memory_category,
    validate_memory_type,
)
from inference_core.services.operations.scope import MemoryScope, UserId, checked_moment, find, put_of
from inference_core.stores.backend import Delete, Write

MAX_TAGS = 32


def save(
    scope: MemoryScope,
    user_id: UserId,
    content: str,
    memory_type: str = MemoryType.GENERAL.value,
    session_id: str | None = None,
    topic: str | None = None,
    extra_metadata: Mapping[str, Any] | None = None,
    memory_id: str | None = None,
    category: str | None = None,
    *,
    source: MemorySource | None = None,
    importance: float = DEFAULT_IMPORTANCE,
    pinned: bool = False,
    tags: Sequence[str] = (),
    valid_from: datetime | None = None,
    expires_at: datetime | None = None,
) -> Plan[str]:
    """Stores a memory and returns its id; it is durable then.

    The category follows from the type unless it is given. A given ``memory_id`` makes retries idempotent:
    what stands under it is replaced and its creation time kept. Raises InvalidInput (an unknown type is also an
    AssertionError), UntrustedWrite, StoreUnavailable, WriteUnknown; VersionConflict if the database came back in the
    midst and holds another memory under a given id.
    """
    kind = MemoryType(validate_memory_type(memory_type))
    chosen = category_of(kind, category)
    origin = source or MemorySource()
    check_write(origin, chosen)
    now = scope.clock.now()
    record = MemoryRecord(
        id=new_id() if memory_id is None else canonical_id(memory_id),
        content=canonical_text(content, max_bytes=scope.max_content_bytes),
        memory_type=kind,
        category=chosen,
        namespace=scope.namespaces.namespace_for(user_id, chosen),
        created_at=now,
        updated_at=now,
        topic=optional_text(topic, what="topic"),
        session_id=optional_text(session_id, what="session_id"),
        agent_name=scope.namespaces.agent_name,
        extra_metadata=canonical_metadata(extra_metadata),
        source=origin,
        trust=origin.trust,
        importance=_importance(importance),
        pinned=bool(pinned),
        tags=_tags(tags),
        valid_from=checked_moment(valid_from, "valid_from"),
        expires_at=checked_moment(expires_at, "expires_at"),
    )
    writes: list[Write] = [put_of(record, expected=0)]
    if memory_id is not None:
        writes = yield from _replacing(scope, user_id, record)
    yield from scope.engine.write(writes)
    return record.id


def category_of(kind: MemoryType, category: str | None) -> MemoryCategory:
    """The given category, else the one that the type is routed to."""
    if category is None:
        return get_category_for_type(kind.value)
    return MemoryCategory(validate_memory_category(category))


def _replacing(scope: MemoryScope, user_id: UserId, record: MemoryRecord) -> Plan[list[Write]]:
    """The writes after which ``record`` alone stands under its id, whatever others write there at the same time."""
    old = yield from find(scope, user_id, record.id)
    kept = record if old is None else replace(record, created_at=old.created_at)
    others = [namespace for namespace in scope.namespaces.read_scopes(user_id) if namespace != kept.namespace]
    return [*(Delete(namespace=namespace, key=kept.id) for namespace in others), put_of(kept)]


def _importance(importance: float) -> float:
    if isinstance(importance, bool) or not isinstance(importance, int | float) or not 0 <= importance <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidMemory(f"importance must be a number from 0 to 1, not {importance!r}")
    return float(importance)


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(tags, list | tuple) or len(tags) > MAX_TAGS:
        raise InvalidMemory(f"tags must be a list of at most {MAX_TAGS} short texts")
    return tuple(dict.fromkeys(canonical_text(tag, what="tag", max_bytes=128) for tag in tags))
