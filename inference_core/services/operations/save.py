"""Save a memory, and change one; `admission` decides whether either is stored at once or waits for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, Self

from inference_core.errors import InvalidInput, InvalidMemory, VersionConflict
from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import DEFAULT_IMPORTANCE, JOB, MemoryRecord, without_block
from inference_core.memory.redaction import Guard
from inference_core.memory.secrets import quoted
from inference_core.memory.spaces import SpaceRole
from inference_core.memory.text import canonical_id, canonical_metadata, canonical_text, optional_text
from inference_core.memory.trust import MemorySource, Trust, checked_source
from inference_core.memory.types import (
    MemoryType,
    validate_memory_type,
)
from inference_core.services.operations.admission import (
    Place,
    changed,
    check_rejected,
    check_rejected_on,
    has_to_wait,
    place_of,
    place_on,
    propose,
    says_already,
)
from inference_core.services.operations.delete import is_archived
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import (
    ATTEMPTS,
    MAX_TAGS,
    MemoryScope,
    UserId,
    archive_keys,
    category_of,
    check_same,
    check_version,
    checked_importance,
    checked_moment,
    checked_tags,
    find,
    put_of,
    record_of,
    request_of,
    retried,
)
from inference_core.stores.backend import Backend, Check, Remove, Write


class SavedId(str):
    """The id of a saved memory. ``was_stored``: the memory had been saved before in the same words.

    ``redacted`` are the kinds of secrets that were left out, such as ``github_token``.
    """

    __slots__ = ("redacted", "was_stored")

    def __new__(cls, memory_id: str, *, was_stored: bool = False, redacted: Sequence[str] = ()) -> Self:
        """The id ``memory_id``."""
        made = super().__new__(cls, memory_id)
        made.was_stored, made.redacted = was_stored, tuple(redacted)
        return made


@operation("create_memory", needs=SpaceRole.PROPOSE)
async def save(  # noqa: D417 - callers of the service pass no scope
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
    tags: Sequence[str] | None = None,
    valid_from: datetime | None = None,
    expires_at: datetime | None = None,
    expected_version: int | None = None,
) -> SavedId:
    """Stores a memory; it is durable when this returns.

    Without a ``memory_id``, no second memory is stored if a current one has the same words, type, agent and time. The
    returned id is then that memory's, with ``was_stored`` set, and new tags, topic, metadata, pin and importance are
    added to it. After WriteUnknown (the write was not confirmed) you can safely repeat the call with the same
    ``memory_id``. Secrets are left out; ``redacted`` of the returned id names their kinds.

    Args:
        user_id: The user.
        content: The text, at most the service's ``max_content_bytes``.
        memory_type: The name of a `MemoryType`.
        session_id: The conversation that the memory belongs to.
        topic: A short label.
        extra_metadata: Your own JSON data.
        memory_id: Creates the memory with this id, or replaces it and keeps its creation time. By default a new id.
        category: A `MemoryCategory` by name. By default that of the type.
        source: Who said it, which decides how far it is trusted. By default the application.
        importance: From 0 to 1. More important memories rank a little higher and are forgotten later.
        pinned: Whether it is always in the prompt's profile and never forgotten.
        tags: At most 32 short labels.
        valid_from: When it happened or became true. By default the time of storing.
        expires_at: From this time on, it is not found.
        expected_version: With ``memory_id``, replaces the memory only at this version; 0: only if there is none yet.

    Returns:
        The memory's id, a text with the attributes ``was_stored`` and ``redacted``.

    Raises:
        InvalidInput: An argument is invalid; for an unknown type, the error is also an AssertionError.
        SecretFound: The text holds a secret, and the store rejects those.
        ConfirmationNeeded: The source may not write this; it waits for the user, see `list_pending`.
        QuotaExceeded: The user, or the agent, has as many memories as allowed; or writes too often, and a retry helps
            after a minute.
        UntrustedWrite: The user has rejected it before, or has too much to confirm.
        SpaceNotFound: The user is a `Space` in which the member may not propose memories.
        UserErased: The user is being erased, or was erased during this call; nothing was written.
        VersionConflict: The memory is not at ``expected_version``.
        StoreUnavailable: The database did not answer. After its subclass WriteUnknown, the memory may be stored or not.
    """
    if expected_version is not None and memory_id is None:
        raise InvalidInput("expected_version is that of the memory with a memory_id; give that too")
    worth, labels = checked_importance(importance), checked_tags(tags)
    kind = MemoryType(validate_memory_type(memory_type))
    chosen = category_of(kind, category)
    origin = checked_source(MemorySource() if source is None else source)
    now = scope.clock.now()
    record = MemoryRecord(
        id="" if memory_id is None else canonical_id(memory_id),
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
        importance=worth,
        pinned=bool(pinned),
        tags=labels,
        valid_from=checked_moment(valid_from, "valid_from"),
        expires_at=checked_moment(expires_at, "expires_at"),
    )
    guard = scope.engine.guard
    if record.id and (kinds := guard.kinds(record.id)):
        raise InvalidMemory(f"memory_id contains a secret ({', '.join(kinds)}); choose another one")
    clean, kinds = await scope.engine.redacting(partial(_without_secrets, guard, record))
    scope.spend(user_id)
    if has_to_wait(clean, scope.confirm):
        old = await find(scope, user_id, record.id) if record.id else None
        _check_expected(record.id, old, expected_version)
        saved = SavedId(await propose(scope, clean, [old] if old else []), was_stored=True)
    else:
        await check_rejected(scope, clean)
        saved = await _saved(scope, user_id, clean, expected_version)
    return SavedId(saved, was_stored=saved.was_stored, redacted=kinds) if kinds else saved


@operation("create_memory")
async def save_once(scope: MemoryScope, user_id: UserId, request_key: str, **memory: Any) -> SavedId:
    """Saves a ``memory``, the arguments of `save` without an id, once for each ``request_key`` of the user.

    Repeat the call as often as you like, even after a failure: for a day, repetitions return the id with ``was_stored``
    set and store nothing, even if the memory was deleted meanwhile. Raises InvalidInput if the key was used for another
    memory, else what `save` raises.
    """
    request = await request_of(scope, user_id, request_key, memory)
    once = replace(scope, beside=(request.mark,))  # in one transaction: no memory without its mark
    try:
        return await save(once, user_id, memory_id=request.id, expected_version=0, **memory)
    except VersionConflict:
        await check_same(scope, request)
        return SavedId(request.id, was_stored=True)


def _without_secrets(guard: Guard, record: MemoryRecord) -> tuple[MemoryRecord, tuple[str, ...]]:
    """``record`` without secrets, and their kinds. Raises SecretFound."""
    told = {"content": record.content, "topic": record.topic}, record.tags, record.extra_metadata
    guard.refuse(*told)
    clean = guard.record(record)
    return clean, guard.kinds(*told) if clean is not record else ()


async def _saved(scope: MemoryScope, user_id: UserId, record: MemoryRecord, expected_version: int | None) -> SavedId:
    """Stores ``record`` under its id or, if it has none, under an id derived from what it says."""
    others = [namespace for namespace in scope.namespaces.read_scopes(user_id) if namespace != record.namespace]
    if not record.id:
        return await _stored_once(scope, record, others)
    old = await find(scope, user_id, record.id)
    kept = record if old is None else replace(record, created_at=old.created_at)
    operation = "replace" if old else "save"
    if expected_version is None:
        # Afterwards it is the only memory with this id, whatever others write under the id at the same time.
        removed = [Remove(namespace=namespace, key=kept.id) for namespace in others]
        put = replace(put_of(kept), above=old.version if old else 0)  # else version numbers would repeat
        await scope.write([*removed, put], operation, source=record.source, is_clean=True)
        return SavedId(record.id)
    _check_expected(record.id, old, expected_version)
    at = {old.namespace: old.version} if old else {}
    writes: list[Write] = [
        Check(namespace=namespace, key=kept.id, expected=0) for namespace in others if namespace not in at
    ]
    writes += [
        Remove(namespace=namespace, key=kept.id, expected=at[namespace]) for namespace in others if namespace in at
    ]
    writes.append(replace(put_of(kept, expected=at.get(kept.namespace, 0)), above=old.version if old else 0))
    await scope.write(writes, operation, source=record.source, is_clean=True)
    return SavedId(record.id)


def _check_expected(memory_id: str, old: MemoryRecord | None, expected: int | None) -> None:
    """Raises VersionConflict unless ``old``, the memory now, is at version ``expected``; 0 means that there is none."""
    if old is not None and expected == 0:
        raise VersionConflict(f"There is a memory {quoted(memory_id)} already, at version {old.version}")
    check_version(memory_id, old.version if old else 0, expected or None)


async def _stored_once(scope: MemoryScope, record: MemoryRecord, others: Sequence[Namespace]) -> SavedId:
    """Stores ``record`` under an id derived from its words, or merges it into the memory that has these words already.

    The write itself detects a repetition, without a read before it, even if two callers save at once: the write fails
    if one of the ids that these words can have is taken, or if the record's own id exists in one of the ``others``.
    """
    key = await scope.engine.content_key()

    async def read_first() -> SavedId:
        place = await scope.engine.ask(partial(place_on, record, key, others, is_saved=True))
        return await _stored_at(scope, record, place)

    leaves_traces = scope.engine.backend.capabilities.change_feed
    try:
        return await _stored_at(scope, record, place_of(record, key, others, leaves_traces=leaves_traces))
    except VersionConflict:
        return await retried(read_first)


async def _stored_at(scope: MemoryScope, record: MemoryRecord, place: Place) -> SavedId:
    """Stores ``record`` at its ``place``, or merges it into the memory that is there.

    Raises VersionConflict if somebody has written or changed a memory of these words since ``place`` was found.
    """
    known = next((one for one in place.same if _is_repeated(one, record)), None)
    if known is None:
        put = put_of(record, expected=0, memory_id=place.memory_id)
        await scope.write([put], "save", source=record.source, is_clean=True, rules=[place.rule])
        return SavedId(place.memory_id)
    merged = _merged(scope, known, record)
    if merged is not known:
        await scope.write([put_of(merged, expected=known.version)], "save", source=record.source)
    return SavedId(known.id, was_stored=True)


def _is_repeated(old: MemoryRecord, new: MemoryRecord) -> bool:
    """Whether saving ``new`` only repeats ``old``, a memory of the same words."""
    if old.trust <= Trust.EXTERNAL and new.trust is Trust.INFERRED:
        return False  # an agent's repetition does not vouch for what a web page said
    return new.valid_from in (None, old.valid_from) and says_already(old, new, new.created_at)


def _merged(scope: MemoryScope, old: MemoryRecord, new: MemoryRecord) -> MemoryRecord:
    """``old`` with what ``new`` adds; ``old`` itself if ``new`` adds nothing, or may not change its labels."""
    if new.trust <= Trust.EXTERNAL < old.trust or (new.source.author and new.trust < old.trust):
        return old  # what a web page or another member repeats does not label what the user or the application said
    if old.pinned and scope.spares_pins:
        return old  # whoever may not update a memory does not change its labels by a repetition either
    # A memory that a job extracted becomes the user's or the application's own: undoing that job then spares it.
    is_own = new.trust is Trust.STATED and JOB in old.extra_metadata
    by = new if is_own or new.trust > old.trust else old
    left = {name: part for name, part in without_block(old.extra_metadata).items() if not is_own or name != JOB}
    merged = replace(
        old,
        content=by.content,
        topic=old.topic or new.topic,
        extra_metadata={**left, **new.extra_metadata},
        importance=max(old.importance, new.importance),
        pinned=old.pinned or new.pinned,
        tags=tuple(dict.fromkeys((*old.tags, *new.tags)))[:MAX_TAGS],
        source=by.source,
        trust=by.trust,
        session_id=new.session_id if is_own else old.session_id,
    )
    return old if merged == old else replace(merged, updated_at=new.updated_at)


@operation("update_memory", needs=SpaceRole.WRITE)
async def update(  # noqa: D417 - callers of the service pass no scope
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
) -> bool:
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
    await scope.engine.redacting(partial(guard.refuse, {"content": content, "topic": topic}, labels, extra_metadata))
    scope.spend(user_id)
    memory_id = canonical_id(memory_id)
    key = b"" if source is None or checked_source(source).trust is Trust.STATED else await scope.engine.content_key()
    attempt = 1
    while True:
        step = await scope.engine.ask(partial(_step, scope, user_id, memory_id, change, expected_version, key))
        if step is None:
            return False
        old, new, writes = step
        if writes is None:
            known = await propose(scope, new, [old])
            raise InvalidInput(
                f"Not changed: the user has approved the memory {quoted(known)}, which says this already"
            )
        try:
            await scope.write(writes, "update", source=source)
        except VersionConflict:
            if attempt == ATTEMPTS:
                raise
            attempt += 1
        else:
            return True


def _step(
    scope: MemoryScope,
    user_id: UserId,
    memory_id: str,
    change: _Change,
    expected_version: int | None,
    key: bytes,
    backend: Backend,
) -> tuple[MemoryRecord, MemoryRecord, list[Write] | None] | None:
    """The memory now, the memory after ``change``, and the writes that store it; None for these if it has to wait.

    Returns None if the agent reads no memory with this id. Raises VersionConflict unless the memory is at
    ``expected_version``, InvalidInput if the id is taken in the new category, UntrustedWrite, StoreError.
    """
    homes = scope.namespaces.read_scopes(user_id)
    rows = backend.get([*((home, memory_id) for home in homes), *archive_keys(homes, memory_id)])
    there = {row.namespace: row for row in rows if row}
    row = next((there[home] for home in homes if home in there), None)
    if row is None:
        return None
    old = record_of(row)
    check_version(old.id, old.version, expected_version)
    applied, waits = change.applied(scope, user_id, old)
    new = scope.engine.guard.record(applied)
    if waits:
        return old, new, None
    if change.source is not None and change.content is not None:
        check_rejected_on(replace(new, source=change.source), key, backend)
    scope.engine.fences.refresh([old.namespace[0]])  # else the write would read them, on a visit of its own
    if new.namespace != old.namespace:
        if new.namespace in there:
            raise InvalidInput(
                f"Another memory with id {quoted(new.id)} is {new.category.value} already; delete one of them first"
            )
        put = replace(put_of(new, expected=0), above=old.version)  # else version numbers would repeat
        return old, new, [Remove(namespace=old.namespace, key=old.id, expected=old.version), put]
    writes: list[Write] = [put_of(new, expected=old.version)]
    archived = there.get(archive_keys([old.namespace], old.id)[0][0])
    if new.content != old.content and archived and is_archived(archived, scope.clock.now()):
        # A deleted one becomes an earlier text of this.
        writes.append(Remove(namespace=archived.namespace, key=archived.key, expected=archived.version))
    return old, new, writes


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
