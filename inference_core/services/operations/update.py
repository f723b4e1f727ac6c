"""Change a memory that is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from inference_core.drivers import Plan
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import canonical_metadata, canonical_text, optional_text
from inference_core.memory.trust import MemorySource, check_write
from inference_core.memory.types import MemoryType, get_category_for_type, validate_memory_type
from inference_core.services.operations.save import category_of
from inference_core.services.operations.scope import MemoryScope, UserId, check_version, find, put_of
from inference_core.stores.backend import Delete, Write

T = TypeVar("T")
ATTEMPTS: Final = 100


def update(
    scope: MemoryScope,
    user_id: UserId,
    memory_id: str,
    content: str | None = None,
    memory_type: str | None = None,
    topic: str | None = None,
    category: str | None = None,
    extra_metadata: Mapping[str, Any] | None = None,
    *,
    pinned: bool | None = None,
    source: MemorySource | None = None,
    expected_version: int | None = None,
) -> Plan[bool]:
    """Changes what is given and keeps the rest; False if the agent reads no memory with this id.

    A new type moves the memory to that type's category; topic "" removes the topic; ``extra_metadata`` is merged;
    ``pinned`` memories are never forgotten. No concurrent change is lost: a write onto a newer version is tried again,
    unless ``expected_version`` says which version is to be changed. Raises InvalidInput (also if a memory with this id
    is already where it would move to), UntrustedWrite, StoreUnavailable, WriteUnknown, VersionConflict if the memory is
    not at the expected version, or others keep changing it.
    """
    if all(given is None for given in (content, memory_type, topic, category, extra_metadata, pinned)):
        raise InvalidInput("Nothing to update: give content, memory_type, topic, category, extra_metadata or pinned")
    attempt = 1
    while (old := (yield from find(scope, user_id, memory_id))) is not None:
        check_version(old.id, old.version, expected_version)
        new = _changed(scope, old, content, memory_type, topic, extra_metadata, pinned)
        new = _relocated(scope, user_id, new, old, memory_type, category)
        new = _attributed(new, old, source, has_new_text=content is not None or memory_type is not None)
        yield from _check_free(scope, new, old)
        try:
            yield from scope.engine.write(_moved(new, old))
        except VersionConflict:
            if attempt == ATTEMPTS:
                raise
            attempt += 1
        else:
            return True
    return False


def retried(attempt: Callable[[], Plan[T]]) -> Plan[T]:
    """Plan: what ``attempt`` gives, made anew whenever somebody else was faster.

    Raises VersionConflict if others keep changing what it writes.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return (yield from attempt())
        except VersionConflict:
            continue
    return (yield from attempt())


def _moved(record: MemoryRecord, old: MemoryRecord) -> list[Write]:
    """The writes that put ``record`` in the place of ``old``, which may lie in another scope, if nobody changed it."""
    if record.namespace == old.namespace:
        return [put_of(record, expected=old.version)]
    put = replace(put_of(record, expected=0), above=old.version)  # else its versions would come twice
    return [Delete(namespace=old.namespace, key=old.id, expected=old.version), put]


def _check_free(scope: MemoryScope, record: MemoryRecord, old: MemoryRecord) -> Plan[None]:
    """Raises InvalidInput if ``record`` would move onto another memory."""
    if record.namespace == old.namespace:
        return
    rows = yield from scope.engine.get([(record.namespace, record.id)])
    if rows[0] is not None:
        raise InvalidInput(
            f"Another memory with id {record.id!r} is {record.category.value} already; delete one of them first"
        )


def _changed(
    scope: MemoryScope,
    old: MemoryRecord,
    content: str | None,
    memory_type: str | None,
    topic: str | None,
    extra_metadata: Mapping[str, Any] | None,
    pinned: bool | None,
) -> MemoryRecord:
    return replace(
        old,
        content=old.content if content is None else canonical_text(content, max_bytes=scope.max_content_bytes),
        memory_type=old.memory_type if memory_type is None else MemoryType(validate_memory_type(memory_type)),
        topic=old.topic if topic is None else optional_text(topic, what="topic"),
        extra_metadata=canonical_metadata({**old.extra_metadata, **canonical_metadata(extra_metadata)}),
        pinned=old.pinned if pinned is None else bool(pinned),
        updated_at=scope.clock.now(),
    )


def _relocated(
    scope: MemoryScope,
    user_id: UserId,
    new: MemoryRecord,
    old: MemoryRecord,
    memory_type: str | None,
    category: str | None,
) -> MemoryRecord:
    """``new`` where its category belongs; a memory whose category stays also stays in its scope."""
    if category is not None:
        wanted = category_of(new.memory_type, category)
    elif memory_type is not None and new.memory_type is not old.memory_type:
        wanted = get_category_for_type(new.memory_type.value)
    else:
        wanted = old.category
    if wanted is old.category:
        return new
    return replace(new, category=wanted, namespace=scope.namespaces.namespace_for(user_id, wanted))


def _attributed(
    new: MemoryRecord, old: MemoryRecord, source: MemorySource | None, *, has_new_text: bool
) -> MemoryRecord:
    """``new`` with the provenance of its text: whoever rewrites a memory answers for it from then on."""
    if source is None or not has_new_text:
        check_write(old.source, new.category)
        return new
    check_write(source, new.category)
    return replace(new, source=source, trust=source.trust)
