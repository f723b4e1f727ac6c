"""Change an existing memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from inference_core.effects import Operation
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.memory.record import MemoryRecord
from inference_core.memory.secrets import quoted
from inference_core.memory.text import canonical_metadata, canonical_text, optional_text
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryType, validate_memory_type
from inference_core.services.operations.admission import changed
from inference_core.services.operations.delete import archive_keys, is_archived
from inference_core.services.operations.rejected import check_rejected
from inference_core.services.operations.review import propose
from inference_core.services.operations.scope import (
    ATTEMPTS,
    MemoryScope,
    UserId,
    category_of,
    check_version,
    checked_importance,
    checked_moment,
    checked_tags,
    find,
    put_of,
)
from inference_core.stores.backend import Remove, Write


def update(  # noqa: D417 - callers of the service pass no scope
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
    tags: Sequence[str] | None = None,
    importance: float | None = None,
    expires_at: datetime | Literal["never"] | None = None,
) -> Operation[bool]:
    """Changes the given fields of a memory; returns False if the agent reads no memory with this id.

    No concurrent change is lost: if another caller writes first, the change is applied to the new version.

    Args:
        user_id: The user.
        memory_id: The memory's id.
        content: The new text. `why` and `get_memory_history` show the old one for the service's ``deleted_days``.
        memory_type: The name of a `MemoryType`; the memory moves to the category of that type.
        topic: A short label; "" removes it.
        category: A `MemoryCategory` by name.
        extra_metadata: Merged into the existing metadata.
        pinned: Whether it is always in the prompt's profile and never forgotten.
        source: Who says so. It replaces the memory's source if you give content or type, except that only the user and
            the application can replace a less trusted one.
        expected_version: Changes the memory only at this version, and then does not retry.
        tags: Replaces all tags; an empty list removes them.
        importance: From 0 to 1.
        expires_at: From this time on, it is not found; "never" removes the expiry.

    Raises:
        InvalidInput: An argument is invalid, there is nothing to change, or the id is taken in the new category.
        SecretFound: What you give holds a secret, and the store rejects those.
        QuotaExceeded: The memory would become larger than allowed, or there were too many writes.
        UntrustedWrite: The source may not write rules; ConfirmationNeeded if the change waits for the user instead.
        VersionConflict: The memory is not at ``expected_version``, or other callers keep changing it.
        StoreUnavailable: The database did not answer. After its subclass WriteUnknown, the change may be made or not.
    """
    labels = None if tags is None else checked_tags(tags)
    worth = None if importance is None else checked_importance(importance)
    end = expires_at if expires_at == "never" else checked_moment(expires_at, "expires_at")
    changes = (content, memory_type, topic, category, extra_metadata, pinned, labels, worth, end)
    if all(given is None for given in changes):
        raise InvalidInput(
            "Nothing to update: give content, memory_type, topic, category, extra_metadata, pinned, tags, importance "
            "or expires_at"
        )
    change = _Change(*changes, source)
    guard = scope.engine.guard
    yield from scope.engine.redacting(
        partial(guard.refuse, {"content": content, "topic": topic}, labels, extra_metadata)
    )
    scope.spend(user_id)
    attempt = 1
    while (old := (yield from find(scope, user_id, memory_id))) is not None:
        check_version(old.id, old.version, expected_version)
        applied, waits = change.applied(scope, user_id, old)
        new = yield from scope.engine.redacting(partial(guard.record, applied))
        if waits:
            known = yield from propose(scope, new, [old])
            raise InvalidInput(
                f"Not changed: the user has approved the memory {quoted(known)}, which says this already"
            )
        if source is not None and content is not None:
            yield from check_rejected(scope, replace(new, source=source))
        try:
            yield from scope.write((yield from _writes(scope, old, new)), "update", source=source)
        except VersionConflict:
            if attempt == ATTEMPTS:
                raise
            attempt += 1
        else:
            return True
    return False


def _writes(scope: MemoryScope, old: MemoryRecord, new: MemoryRecord) -> Operation[list[Write]]:
    """The writes that put ``new`` in the place of ``old``. Raises InvalidInput if the id is taken."""
    writes: list[Write] = [put_of(new, expected=old.version)]
    if new.namespace != old.namespace:
        rows = yield from scope.engine.get([(new.namespace, new.id)])
        if rows[0] is not None:
            raise InvalidInput(
                f"Another memory with id {quoted(new.id)} is {new.category.value} already; delete one of them first"
            )
        put = replace(put_of(new, expected=0), above=old.version)  # else version numbers would repeat
        writes = [Remove(namespace=old.namespace, key=old.id, expected=old.version), put]
    elif new.content != old.content:
        (archived,) = yield from scope.engine.get(archive_keys([old.namespace], old.id))
        if archived and is_archived(
            archived, scope.clock.now()
        ):  # a deleted one, which becomes an earlier text of this
            writes.append(Remove(namespace=archived.namespace, key=archived.key, expected=archived.version))
    return writes


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes to make to a memory; None leaves a field as it is."""

    content: str | None
    memory_type: str | None
    topic: str | None
    category: str | None
    extra_metadata: Mapping[str, Any] | None
    pinned: bool | None
    tags: tuple[str, ...] | None
    importance: float | None
    expires_at: datetime | Literal["never"] | None
    source: MemorySource | None

    def applied(self, scope: MemoryScope, user_id: UserId, old: MemoryRecord) -> tuple[MemoryRecord, bool]:
        """``old`` with the changes, and whether they have to wait. Raises InvalidInput, UntrustedWrite."""
        kind = old.memory_type if self.memory_type is None else MemoryType(validate_memory_type(self.memory_type))
        content, topic, pinned = self.content, self.topic, self.pinned
        new = replace(
            old,
            content=old.content if content is None else canonical_text(content, max_bytes=scope.max_content_bytes),
            memory_type=kind,
            topic=old.topic if topic is None else optional_text(topic, what="topic"),
            extra_metadata=canonical_metadata({**old.extra_metadata, **canonical_metadata(self.extra_metadata)}),
            pinned=old.pinned if pinned is None else bool(pinned),
            tags=old.tags if self.tags is None else self.tags,
            importance=old.importance if self.importance is None else self.importance,
            expires_at=None if self.expires_at == "never" else self.expires_at or old.expires_at,
            updated_at=scope.clock.now(),
        )
        if self.category is not None or kind is not old.memory_type:
            wanted = category_of(kind, self.category)
            if wanted is not old.category:  # else it stays where it is, shared or an agent's own
                new = replace(new, category=wanted, namespace=scope.namespaces.namespace_for(user_id, wanted))
        told = [content, self.memory_type]
        if getattr(self.source, "author", None):  # in a space, labels are a member's words too
            told += [topic, self.tags, self.extra_metadata]
        source = None if all(one is None for one in told) else self.source
        return changed(old, new, source, scope.confirm)
