"""Pending memories: what may become a memory when the user has confirmed it, and what reviewers decide about it.

A pending memory is a row beside the memories' namespace, which no recall, list or count reads. It becomes a memory and
leaves its place in one transaction. What the user has rejected, no agent saves again, as whatever type of memory. The
rejection leaves a mark where the proposal waited that reveals nothing of it: the row's name is an HMAC of the user and
the text under a key of the store, by which the same text is recognized and not offered again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import cast

from inference_core.effects import Operation
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.memory.audit import Actor
from inference_core.memory.namespaces import (
    Namespace,
    Space,
    encode_label,
    holds_memories,
    holds_pending,
    memory_namespace,
    space_in,
)
from inference_core.memory.record import JOB, MemoryRecord, MemoryStoreDocument, PendingMemory, ended, holds_at
from inference_core.memory.text import (
    canonical_id,
    canonical_text,
    encode_json,
    mapping_field,
    moment_field,
    text_field,
)
from inference_core.memory.trust import Origin
from inference_core.outbox.messages import session_label, session_name
from inference_core.services.operations.admission import ENDS, NOTE, is_rejected, names_of, place_on, waits
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import (
    MemoryScope,
    UserId,
    is_known,
    put_of,
    record_of,
    records_of,
    retried,
)
from inference_core.stores.backend import Key, Put, Remove, Row, Write


async def withdraw(scope: MemoryScope, user_id: UserId, content: str) -> None:
    """Removes pending memories with the words of ``content``, since the user has stated them. Raises StoreError."""
    text = scope.engine.guard.text(canonical_text(content, max_bytes=scope.max_content_bytes))
    names = names_of(await scope.engine.content_key(), user_id, text)
    rows = [row for row in await pending_rows(scope, user_id) if row.key in names]
    if rows:
        with suppress(VersionConflict):  # somebody has just decided
            gone = [Remove(namespace=row.namespace, key=row.key, expected=row.version) for row in rows]
            await scope.write(gone, "withdraw")


@operation("list_pending")
async def list_pending(scope: MemoryScope, user_id: UserId, *, session_id: str | None = None) -> list[PendingMemory]:
    """The memories of all agents that wait for the user's confirmation, the newest first; of one session, if given.

    Nothing else shows them: no recall, list, count, prompt or export. Decide with `approve_pending` or
    `reject_pending`; undecided ones are gone after 30 days. Raises InvalidInput, StoreUnavailable.
    """
    rows = await pending_rows(scope, user_id, session_id=session_id)
    places = [_ends(row) for row in rows]
    found = await scope.engine.get([place for keys in places for place in keys])
    there = {(row.namespace, row.key): row for row in found if row and is_known(row)}
    waiting: list[PendingMemory] = []
    for row, keys in zip(rows, places, strict=True):
        note = mapping_field(row.value, NOTE)
        pending = PendingMemory(
            document=MemoryStoreDocument.of(_record(row)),
            proposed_at=moment_field(note, "at") or row.updated_at,
            expires_at=moment_field(note, "until") or row.updated_at,
            why=text_field(note, "why") or "",
            ends=tuple(MemoryStoreDocument.of(record_of(there[key])) for key in keys if key in there),
        )
        waiting.append(pending)
    return waiting


@operation("approve_pending", reviewer="by")
async def approve_pending(  # noqa: D417 - callers of the service pass no scope
    scope: MemoryScope,
    user_id: UserId,
    pending_id: str | None = None,
    edit: str | None = None,
    *,
    session_id: str | None = None,
    by: str | None = None,
) -> list[str]:
    """Turns a pending memory, or all of a session, into memories that the user has stated; returns the approved ids.

    The memory keeps its id. In the same transaction it supersedes what it replaces, and is pinned if that was. You can
    repeat the call. An id is missing from the result if the memory was rejected, has expired, or was approved with
    another text: a reviewer who gets the id back knows that what is stored is what they approved.

    Args:
        user_id: The user.
        pending_id: The id of one pending memory.
        edit: Its new text.
        session_id: Approves all that wait from this session instead.
        by: Who approves, for the memory's source. By default the user.

    Raises:
        InvalidInput: An argument is invalid, or both or neither of ``pending_id`` and ``session_id`` are given.
        SecretFound: The new text holds a secret, and the store rejects those.
        StoreUnavailable: The database did not answer. After its subclass WriteUnknown, it may be approved or not.
    """
    if edit is not None:
        if pending_id is None:
            raise InvalidInput("edit is the text of one memory: give its pending_id")
        edit = canonical_text(edit, max_bytes=scope.max_content_bytes)
        await scope.engine.redacting(partial(scope.engine.guard.refuse, {"content": edit}))
        edit = await scope.engine.redacting(partial(scope.engine.guard.text, edit))
    reviewing = _reviewing(scope, user_id, by)
    secret = await scope.engine.content_key()

    async def approve(key: str) -> bool:
        """Makes it a memory, or finds that it is one already. Raises VersionConflict if somebody else decides first."""
        now = scope.clock.now()
        rows = await _beside(reviewing, user_id, key, now)
        if any(map(is_rejected, rows)):
            return False
        writes, over = list[Write](), set[Key]()
        for row, waiting in zip(rows, map(_record, rows), strict=True):  # several if several agents have offered it
            targets = await scope.engine.get([key for key in _ends(row) if key not in over])
            said = waiting if edit is None else replace(waiting, content=edit)
            place = await scope.engine.ask(partial(place_on, said, secret, ()))
            found = {(record.namespace, record.id): record for record in [*records_of(targets), *place.same]}
            old = [record for place, record in found.items() if place not in over and holds_at(record, now)]
            # What is approved in a space does not become the words of each of its members.
            origin = Origin.USER if space_in(row.namespace) is None else Origin.AGENT
            source = replace(waiting.source, origin=origin, approved_by=reviewing.actor.id)
            record = replace(
                said,
                source=source,
                trust=source.trust,
                created_at=now,
                updated_at=now,
                pinned=waiting.pinned or any(record.pinned for record in old),
                supersedes=tuple(record.id for record in old),
            )
            over |= {(record.namespace, record.id) for record in old}
            writes += [put_of(record, expected=0), *(put_of(ended(one, record), expected=one.version) for one in old)]
            writes.append(Remove(namespace=row.namespace, key=row.key, expected=row.version))
        if rows:  # in one transaction, or somebody could reject one of them in between
            # The thread is the proposal's: undoing that session takes back what was made of it.
            acting = replace(reviewing, actor=replace(reviewing.actor, thread_id=_record(rows[0]).source.thread_id))
            await acting.write(writes, "approve")
            return True
        names = await scope.engine.namespaces((encode_label(user_id),))
        there = await scope.engine.get([(name, key) for name in names if holds_memories(name)])
        known = [record for record in map(record_of, filter(None, there)) if record.source.approved_by]
        if edit is not None:
            return any(record.content == edit for record in known)
        return any(key in names_of(secret, user_id, record.content) for record in known)

    return await _decided(scope, user_id, pending_id, session_id, approve)


@operation("reject_pending", reviewer="by")
async def reject_pending(  # noqa: D417 - callers of the service pass no scope
    scope: MemoryScope,
    user_id: UserId,
    pending_id: str | None = None,
    why: str | None = None,
    *,
    session_id: str | None = None,
    by: str | None = None,
) -> list[str]:
    """Removes a pending memory, or all of a session, and keeps a mark of each; returns the rejected ids.

    From then on, the same words are refused if they come from an agent. The mark does not contain the words, but an
    undo can bring them back for the service's ``deleted_days``. You can repeat the call. An id is missing from the
    result if the memory was approved or has expired.

    Args:
        user_id: The user.
        pending_id: The id of one pending memory.
        why: The reason, which is kept with the mark.
        session_id: Rejects all that wait from this session instead.
        by: Who rejects. By default the user.

    Raises:
        InvalidInput: An argument is invalid, or both or neither of ``pending_id`` and ``session_id`` are given.
        StoreUnavailable: The database did not answer. After its subclass WriteUnknown, it may be rejected or not.
    """
    now = scope.clock.now()
    reason = None if why is None else canonical_text(why, what="why", max_bytes=scope.max_content_bytes)
    reviewing = _reviewing(scope, user_id, by)
    note = {"rejected": now.isoformat(), "by": reviewing.actor.id, "why": reason}
    value = encode_json({NOTE: note}, what="memory")

    async def reject(key: str) -> bool:
        rows = await _beside(scope, user_id, key, now)
        waiting = [(row.namespace, row.version) for row in rows if not is_rejected(row)]
        if waiting:
            marks = [
                Put(namespace=namespace, key=key, value=value, updated_at=now, expected=at) for namespace, at in waiting
            ]
            await reviewing.write(marks, "reject")
        return bool(rows)

    return await _decided(scope, user_id, pending_id, session_id, reject)


async def pending_rows(
    scope: MemoryScope, user_id: UserId, *, session_id: str | None = None, job_id: str | None = None
) -> list[Row]:
    """The rows of what waits for the user, the newest first: of one session or one job, if given. Raises StoreError."""
    now = scope.clock.now()
    sessions = {session_name(session_id), session_label(session_id), session_id}

    def is_wanted(row: Row) -> bool:
        if not waits(row, now):
            return False
        source, metadata = mapping_field(row.value, "source"), mapping_field(row.value, "extra_metadata")
        named = {text_field(row.value, "session_id"), text_field(source, "thread_id")}
        return (session_id is None or bool(named & sessions)) and job_id in (None, text_field(metadata, JOB))

    return await scope.engine.scan(await _places(scope, user_id), accepts=is_wanted)


async def _decided(
    scope: MemoryScope,
    user_id: UserId,
    pending_id: str | None,
    session_id: str | None,
    decide: Callable[[str], Operation[bool]],
) -> list[str]:
    """Those of the chosen ids for which ``decide`` returns True; it is `retried` after a VersionConflict.

    Raises InvalidInput unless exactly one of ``pending_id`` and ``session_id`` is given.
    """
    if (pending_id is None) == (session_id is None):
        raise InvalidInput("Pass the ID of a pending memory, or a session")
    if pending_id is not None:
        keys = [canonical_id(pending_id)]
    else:
        keys = [row.key for row in await pending_rows(scope, user_id, session_id=session_id)]
    done: list[str] = []
    for key in keys:
        done += [key] if await retried(partial(decide, key)) else []
    return done


def _reviewing(scope: MemoryScope, user_id: UserId, by: str | None) -> MemoryScope:
    """``scope`` with the reviewer as its actor: ``by``, by default the user or, in a space, the application."""
    encode_label(user_id)
    if by is not None:
        name = scope.engine.guard.text(canonical_text(by, what="by", max_bytes=512))
    else:
        name = Origin.APPLICATION.value if isinstance(user_id, Space) else str(user_id)
    # Otherwise the kind is that of whoever acts here: an administrator at the command line, a program with a key.
    kind = Origin.USER.value if by in (None, str(user_id)) else scope.actor.kind
    return replace(scope, actor=Actor(kind=kind, id=name))


async def _beside(scope: MemoryScope, user_id: UserId, key: str, now: datetime) -> list[Row]:
    """The rows of what waits, or was rejected, under the id ``key``."""
    rows = await scope.engine.get([(place, key) for place in await _places(scope, user_id)])
    return [row for row in rows if row and (is_rejected(row) or waits(row, now))]


async def _places(scope: MemoryScope, user_id: UserId) -> list[Namespace]:
    names = await scope.engine.namespaces((encode_label(user_id),))
    return [name for name in names if holds_pending(name)]


def _record(row: Row) -> MemoryRecord:
    """The memory that waits in ``row``, as it will be in its own namespace. Raises UnsupportedSchema."""
    return MemoryRecord.from_value(
        row.value,
        memory_id=row.key,
        namespace=memory_namespace(row.namespace),
        stored_at=row.created_at,
        updated_at=row.updated_at,
    )


def _ends(row: Row) -> list[Key]:
    """The keys of the memories that end when the pending one in ``row`` is approved, of the same user only."""
    places = cast("list[list[str]]", mapping_field(row.value, NOTE).get(ENDS) or [])
    keys = [(tuple(labels), key) for *labels, key in places]
    return [(home, key) for home, key in keys if home[:1] == row.namespace[:1] and holds_memories(home)]
