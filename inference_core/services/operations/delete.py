"""Delete a memory, or all of a user's memories that the agent reads; and the archive of what was deleted or forgotten.

The archive is a namespace beside the memories' own. Its rows are the memories' rows, each with a note of when and why
it went. What somebody deleted has an expiry, at which the store removes it. Earlier states are in rows of their own
(`inference_core.stores.rules.versions`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Self

from inference_core.errors import VersionConflict
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import (
    FORGOTTEN,
    PENDING,
    USAGE,
    VERSIONS,
    Namespace,
    encode_label,
    holds_forgotten,
    holds_memories,
    holds_pending,
    is_sidecar,
    memory_namespace,
    sidecar_namespace,
)
from inference_core.memory.record import BLOCK, INSIGHT, SUMMARY, MemoryRecord, MemoryStoreDocument, is_of_known_schema
from inference_core.memory.spaces import SpaceRole
from inference_core.memory.text import (
    canonical_id,
    encode_json,
    mapping_field,
    moment_field,
    plain_words,
    text_field,
)
from inference_core.memory.types import MemoryType, validate_memory_type
from inference_core.outbox.outbox import holds_told, told_in
from inference_core.outbox.said import same_subject
from inference_core.retrieval.documents import Document
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import (
    MemoryScope,
    UserId,
    archive_keys,
    check_version,
    find_row,
    is_known,
    put_of,
    record_at,
    record_of,
    records_of,
    retried,
)
from inference_core.stores.backend import Check, Cursor, Expiry, Put, Remove, Row, Write
from inference_core.stores.engine import StoreEngine
from inference_core.stores.maintenance import Usage, usage_put
from inference_core.stores.rules.versions import last_end, states_in, versions_key

PORTION: Final = 500
DELETED: Final = "deleted"
"""The reason of what somebody deleted."""
_NOTE: Final = "_forgotten"
_MADE: Final = frozenset({SUMMARY, INSIGHT})
"""The source tools of memories that periodic work made from others."""


class Erased(int):
    """True, as 1: the memory was erased. ``derived`` are the ids of memories made from it, which went with it."""

    derived: tuple[str, ...]

    def __new__(cls, derived: Iterable[str] = ()) -> Self:
        """That a memory was erased with those ``derived`` from it."""
        made = super().__new__(cls, 1)
        made.derived = tuple(derived)
        return made

    def __repr__(self) -> str:
        return f"Erased(derived={list(self.derived)})"


@operation("delete_memory", needs=SpaceRole.WRITE)
async def delete(
    scope: MemoryScope,
    user_id: UserId,
    memory_id: str,
    category: str | None = None,
    *,
    expected_version: int | None = None,
    erase: bool = False,
) -> bool | Erased:
    """Deletes a memory; it can be restored for the service's ``deleted_days``. Returns False if there is none.

    ``erase`` deletes it permanently, with its earlier texts, even if it was deleted before. What was made from it or
    from its messages goes with it, of any agent (see `derived_rows`), and the result, an `Erased`, names these
    memories. A forgotten memory is always deleted permanently.
    The memory is looked up in the scopes that the agent reads, or in those of ``category``.
    With ``expected_version``, it is deleted only at that version, and not if it was forgotten. Raises InvalidInput,
    StoreUnavailable, WriteUnknown, VersionConflict if it is at another version, and Held under a legal hold.
    """
    now, until = scope.clock.now(), None if erase else scope.kept_until
    while (row := await find_row(scope, user_id, memory_id, category)) is not None:
        check_version(row.key, row.version, expected_version)
        removal: list[Write] = [Remove(namespace=row.namespace, key=row.key, expected=expected_version)]
        if until is not None:
            (usage,) = await scope.engine.get([(sidecar_namespace(row.namespace, USAGE), row.key)])
            removal = archive_writes(row, usage, now, DELETED, until=until)
        with suppress(VersionConflict):  # the next look tells which version is there now
            done = await _erase(scope, user_id, [row], removal) if erase else bool(await scope.write(removal, "delete"))
            if not scope.engine.backend.capabilities.change_feed:  # such a store does not remove what has ended
                places = [sidecar_namespace(row.namespace, place) for place in (FORGOTTEN, VERSIONS)]
                over = await scope.engine.scan(places, accepts=lambda row: is_over(row, now))
                await scope.engine.remove_later(over)
            return done
    if expected_version is not None:
        return False
    key, homes = canonical_id(memory_id), scope.namespaces.read_scopes(user_id, category)
    archives = archive_keys(homes, key)
    archived = [row for row in await scope.engine.get(archives) if row]
    forgotten = [row for row in archived if erase or forgotten_of(row).until is None]
    if forgotten:
        gone = [Remove(namespace=row.namespace, key=row.key) for row in forgotten]
        if erase:
            return await retried(partial(_erase, scope, user_id, forgotten, gone))
        earlier = [Remove(namespace=place, key=key) for place in _beside(homes, VERSIONS)]
        await replace(scope, deleted_days=0.0).write([*gone, *earlier], "erase")
        return True
    places = {*((home, key) for home in homes), *archives} - {(row.namespace, row.key) for row in archived}
    try:  # a row that cannot be read is found by reading all of the user's, so first ask whether anything is there
        await scope.engine.write([Check(namespace=place, key=key, expected=0) for place, _ in places])
    except VersionConflict:
        cause = Cause(at=now, operation="delete", actor=scope.actor)
        label = encode_label(user_id)
        return await scope.engine.discard(label, lambda damaged: (damaged.namespace, damaged.key) in places, cause) > 0
    return False


@operation("delete_memory")
async def delete_all(
    scope: MemoryScope, user_id: UserId, memory_type: str | None = None, category: str | None = None
) -> int:
    """Deletes all memories of the user that this agent reads, of one type or category if given; returns how many.

    They cannot be restored. Forgotten and deleted memories are deleted permanently too, and not counted; nor is what
    was made from the deleted ones and goes with them, as `delete_memory` describes it. Other agents' own memories stay;
    `purge_user_memories` deletes those too. Raises InvalidInput, StoreUnavailable, WriteUnknown, and Held if the user
    has a legal hold.
    """
    kinds = None if memory_type is None else frozenset({validate_memory_type(memory_type)})
    namespaces = scope.namespaces.read_scopes(user_id, category)
    archives = [*_beside(namespaces, FORGOTTEN), *_beside(namespaces, PENDING)]
    await scope.engine.check_holds(encode_label(user_id))
    cause = Cause(at=scope.clock.now(), operation="delete all", actor=scope.actor)
    await erase_derived(scope.engine, encode_label(user_id), [*namespaces, *archives], kinds, cause)
    removed = await empty(scope.engine, namespaces, kinds, cause)
    await empty(scope.engine, archives, kinds, cause)
    if kinds is None:
        await empty(scope.engine, _beside(namespaces, VERSIONS))
        wanted = {*namespaces, *archives}
        label = encode_label(user_id)
        removed += await scope.engine.discard(label, lambda damaged: damaged.namespace in wanted, cause)
    return removed


async def _erase(scope: MemoryScope, user_id: UserId, rows: Sequence[Row], removal: Sequence[Write]) -> Erased:
    """Writes ``removal``, which erases the memory in ``rows``, and removes its earlier texts and what was made from it.

    All goes in one batch: what was made comes first, so that on a store that applies a batch in parts an interrupted
    erasure can be repeated. Raises VersionConflict if something changed meanwhile.
    """
    places = _beside(scope.namespaces.read_scopes(user_id), VERSIONS)  # it may have been moved from another category
    earlier = [row for row in await scope.engine.get([(place, rows[0].key) for place in places]) if row]
    states = [(memory_namespace(row.namespace), one) for row in earlier for one in states_in(row, scope.clock.now())]
    gone = records_of(rows)
    gone += [record_at(one, home, rows[0].key) for home, one in states if is_of_known_schema(one.value)]
    derived = await derived_rows(scope.engine, encode_label(user_id), gone)
    writes = [*removals_of(derived), *removal, *(Remove(namespace=place, key=rows[0].key) for place in places)]
    await replace(scope, deleted_days=0.0).write(writes, "erase")
    return Erased(dict.fromkeys(row.key for row in derived if not holds_told(row.namespace)))


async def derived_rows(engine: StoreEngine, label: str, gone: Sequence[MemoryRecord]) -> list[Row]:
    """The rows of the user with this ``label`` that were made from the memories ``gone`` or from their messages.

    These are, of all agents, also those that wait for the user or are in the archive: (1) summaries and insights that
    cite one of them, or one of its messages; (2) summaries of its session that share a word with it: a model need not
    cite all that it used; (3) the next summaries and insights made from these; (4) passages that repeat it from one of
    its messages; (5) its messages, as far as they wait for a summary or are kept for the next extraction.
    """
    names = [
        name
        for name in await engine.namespaces((label,))
        if holds_memories(name) or holds_forgotten(name) or holds_pending(name) or holds_told(name)
    ]
    rows = await engine.scan(names, accepts=_may_be_derived)
    return await engine.pool.call(_derived, rows, gone)


def _may_be_derived(row: Row) -> bool:
    if holds_told(row.namespace):
        return True
    is_made = mapping_field(row.value, "source").get("tool") in _MADE
    is_passage = row.value.get("memory_type") == MemoryType.INTERACTION.value
    return is_known(row) and (is_made or is_passage or BLOCK in mapping_field(row.value, "extra_metadata"))


def _derived(rows: Sequence[Row], gone: Sequence[MemoryRecord]) -> list[Row]:
    ids = {record.id for record in gone}
    by_message: dict[str, set[str]] = {}
    by_session: dict[str, set[str]] = {}
    for record in gone:
        for message_id in record.source.message_ids:
            by_message.setdefault(message_id, set()).add(record.content)
        for session in filter(None, (record.session_id, record.source.thread_id)):
            by_session.setdefault(session, set()).add(record.content)

    def is_derived(row: Row) -> bool:
        if holds_told(row.namespace):
            return any(
                same_subject(message.text, text)
                for message in told_in(row)
                for text in by_message.get(message.id or "", ())
            )
        record = record_of(row)
        texts = {text for message_id in record.source.message_ids for text in by_message.get(message_id, ())}
        if record.source.tool not in _MADE:
            words = plain_words(record.content) if texts else ""
            return any(plain_words(text) in words for text in texts)
        if texts or not ids.isdisjoint([*record.cites, *record.supersedes]):
            return True
        said = by_session.get(record.session_id or "", ()) if record.source.tool == SUMMARY else ()
        return any(same_subject(record.content, text) for text in said)

    found: list[Row] = []
    left = [row for row in rows if row.key not in ids]
    while more := [row for row in left if is_derived(row)]:
        found += more
        ids |= {row.key for row in more}
        left = [row for row in left if row.key not in ids]
    return found


async def erase_derived(
    engine: StoreEngine, label: str, places: Sequence[Namespace], kinds: frozenset[str] | None, cause: Cause
) -> None:
    """Removes what was made from the memories (of ``kinds``) in ``places``, before these are emptied."""
    gone = records_of(await engine.scan(places, kinds=kinds))
    derived = await derived_rows(engine, label, gone) if gone else []
    left = [
        row for row in derived if row.namespace not in places or (kinds and row.value.get("memory_type") not in kinds)
    ]
    for at in range(0, len(left), PORTION):
        await engine.write(removals_of(left[at : at + PORTION], any_version=True), cause)


def removals_of(derived: Collection[Row], *, any_version: bool = False) -> list[Write]:
    """The writes that remove ``derived`` rows with their earlier texts, by default only if they have not changed."""
    homes = [
        (memory_namespace(row.namespace) if is_sidecar(row.namespace) else row.namespace, row.key)
        for row in derived
        if not holds_told(row.namespace)
    ]
    gone = [
        Remove(namespace=row.namespace, key=row.key, expected=None if any_version else row.version) for row in derived
    ]
    versions = [Remove(namespace=sidecar_namespace(home, VERSIONS), key=key) for home, key in dict.fromkeys(homes)]
    return [*gone, *versions]


def _beside(homes: Sequence[Namespace], place: str) -> list[Namespace]:
    return [sidecar_namespace(home, place) for home in homes]


async def empty(
    engine: StoreEngine,
    namespaces: Sequence[Namespace],
    kinds: frozenset[str] | None = None,
    cause: Cause | None = None,
) -> int:
    """Removes all rows of exactly ``namespaces`` (of ``kinds``) that are there now, in portions; returns how many.

    It does not come back for what others write meanwhile: beside callers who save all the time, it would never end.
    """
    removed, after = 0, None
    while rows := await engine.scan(namespaces, kinds=kinds, limit=PORTION, after=after):
        await engine.write([Remove(namespace=row.namespace, key=row.key) for row in rows], cause)
        removed, after = removed + len(rows), Cursor.of(rows[-1])
    return removed


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
    """Whether a row of the archive or of earlier versions has expired, for stores that do not remove it themselves."""
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
        Remove(namespace=row.namespace, key=row.key, expected=row.version),
        # Any version if none was found: an unreadable row seems absent, and must not stop the move.
        Remove(namespace=usage_place, key=row.key, expected=usage.version if usage else None),
    ]


def restore_writes(row: Row, document: Document | None, now: datetime) -> list[Write]:
    """The writes that put the memory in ``row`` of the archive back, as used now; they fail if its id is taken."""
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
    return [put, usage, Remove(namespace=row.namespace, key=row.key, expected=row.version)]


async def earlier_texts(
    scope: MemoryScope, homes: Iterable[Namespace], memory_id: str, latest: MemoryRecord | None = None
) -> list[MemoryStoreDocument]:
    """The earlier texts of a memory that was kept in ``homes``, the oldest first; ``latest`` is what it says now.

    Successive states with the same text count once.
    """
    places = [(home, memory_id) for home in homes]
    rows = await scope.engine.get(list(map(versions_key, places)))
    now, records = scope.clock.now(), list[MemoryRecord]()
    for place, row in zip(places, rows, strict=True):
        states = [state for state in states_in(row, now) if not state.place]
        records += [record_at(state, place[0], memory_id) for state in states if is_of_known_schema(state.value)]
    texts: list[MemoryRecord] = []
    for record in sorted(records, key=lambda record: record.version):
        if texts and texts[-1].content == record.content:
            texts.pop()
        texts.append(record)
    if latest and texts and texts[-1].content == latest.content:
        texts.pop()
    return [MemoryStoreDocument.of(record) for record in texts]
