"""Jobs: notes of how work on messages changed a user's memories, and how to undo that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.ingestion.consolidation import MemoryChanges
from inference_core.ingestion.undo import UndoReport, relinked, undo_events
from inference_core.memory.audit import AuditEvent
from inference_core.memory.namespaces import Namespace, encode_label, holds_memories
from inference_core.memory.record import JOB, MemoryRecord
from inference_core.memory.text import encode_json
from inference_core.outbox.messages import Extraction, mended, session_label, session_name
from inference_core.outbox.outbox import RESULT
from inference_core.outbox.partitions import DEAD, DEAD_LIST, KEPT, OUTBOX, STATE, marks_of
from inference_core.services.operations.review import pending_rows
from inference_core.services.operations.scope import MemoryScope, UserId, checked_moment, records_of
from inference_core.stores.backend import Put, Remove, Row, Write
from inference_core.stores.engine import StoreEngine

JOBS: Final = "jobs"
"""Second label of the namespace, below the user, that holds the notes."""
_MAX_PROBLEMS: Final = 200
_OF_MESSAGES: Final = 3
"""How many labels the namespace of a partition's messages has; tasks, leases and sources of summaries have more."""


def job_put(
    scope: MemoryScope, user_id: UserId, session_id: str | None, changes: MemoryChanges, extraction: Extraction
) -> Put:
    """The write that notes what a job did; it fails if the job has a note already."""
    places = {record.id: list(record.namespace) for record in changes.changed.values()}
    value: dict[str, Any] = {
        "session": session_name(session_id),
        "places": places,
        "added": changes.added,
        "reinforced": changes.reinforced,
        "superseded": changes.superseded,
        "before": changes.before,
        "problems": [mended(problem) for problem in (*extraction.problems, *changes.problems)][:_MAX_PROBLEMS],
        "model_calls": extraction.model_calls,
        "input_tokens": extraction.input_tokens,
        "output_tokens": extraction.output_tokens,
    }
    now = scope.clock.now()
    text = encode_json(value, what="job")
    return Put(namespace=_jobs(user_id), key=changes.job_id, value=text, updated_at=now, expected=0)


async def is_done(scope: MemoryScope, user_id: UserId, job_id: str) -> bool:
    """Whether the job has a note, so its changes are written. Raises StoreError."""
    (row,) = await scope.engine.get([(_jobs(user_id), job_id)])
    return row is not None


def jobs(
    scope: MemoryScope, user_id: UserId, session_id: str | None = None, limit: int | None = None
) -> Operation[list[Row]]:
    """The jobs on the user's messages (of one session, if given), the newest first; at most ``limit``, if given."""
    name = session_name(session_id)
    return scope.engine.scan(
        [_jobs(user_id)], accepts=lambda row: name is None or row.value["session"] == name, limit=limit
    )


def count_jobs(scope: MemoryScope, user_id: UserId) -> Operation[int]:
    """How many jobs there are on the user's messages."""
    return scope.engine.count([_jobs(user_id)])


async def undo(scope: MemoryScope, user_id: UserId, *, job_id: str | None = None, session_id: str | None = None) -> int:
    """Undoes one job, or all that happened in one session; returns how many memories were removed.

    Like `undo_changes`. Raises InvalidInput unless exactly one of the two is given, StoreError.
    """
    if (job_id is None) == (session_id is None):
        raise InvalidInput("Give a job or a session to undo")
    report = await undo_changes(scope, user_id, job_id=job_id, session_id=session_id)
    return len(report.removed)


async def undo_changes(
    scope: MemoryScope,
    user_id: UserId,
    *,
    job_id: str | None = None,
    session_id: str | None = None,
    agent: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    dry_run: bool = False,
    outboxes: Sequence[StoreEngine] = (),
) -> UndoReport:
    """Undoes the changes of the user's memories that match all given criteria: job, session, agent and time.

    The memories are then as they were: what was added is removed, even if it was changed or forgotten since; what was
    changed or deleted is restored, also where a tool did it; what was approved or rejected waits again. Later changes
    by others stay, and a pinned memory is never removed. ``since`` is inclusive, ``until`` is not.

    With a session and neither an agent nor a time, the session's waiting and dead messages are removed too, also from
    the ``outboxes`` in other databases, and so are memories that hold its messages word for word. With a session or a
    job, and neither an agent nor a time, its memories that wait for confirmation are removed as well. ``dry_run`` only
    reports. Earlier states are kept for the service's ``deleted_days``. Raises InvalidInput if no criterion is given,
    Held if the user has a legal hold, StoreError.
    """
    is_whole = all(given is None for given in (agent, since, until))
    if is_whole and job_id is None and session_id is None:
        raise InvalidInput("Say what to undo: a job, a session, an agent or a time")
    start, end = checked_moment(since, "since"), checked_moment(until, "until")
    sessions = {session_name(session_id), session_label(session_id), session_id}

    def is_chosen(event: AuditEvent) -> bool:
        return (
            job_id in (None, event.job)
            and (session_id is None or event.actor.thread_id in sessions)
            and agent in (None, event.actor.agent)
            and (start is None or event.at >= start)
            and (end is None or event.at < end)
        )

    if not dry_run:
        await scope.engine.check_holds(encode_label(user_id))
    notes = list[Row]()
    if job_id is not None or session_id is not None:
        notes = [row for row in await jobs(scope, user_id, session_id) if job_id in (None, row.key)]
    added = {key for row in notes for key in row.value["added"]}

    def is_left(memory: MemoryRecord) -> bool:
        # No event of the session added it: kept word for word outside a run, or by an earlier version of this package.
        source = memory.source
        is_said = session_id is not None and bool(source.message_ids or source.thread_id)
        is_added = memory.id in added and JOB in memory.extra_metadata  # else it was saved since
        return is_whole and (is_added or (is_said and bool(sessions & {memory.session_id, source.thread_id})))

    if session_id is not None and is_whole and not dry_run:
        # The outboxes first: a worker may still make memories of what waits there, and those are undone below.
        places = [replace(scope, engine=engine) for engine in (*outboxes, scope.engine)]
        await _drop_waiting(places, user_id, session_id)
    also = [Remove(namespace=row.namespace, key=row.key) for row in notes] if is_whole else []
    report = await undo_events(scope, user_id, is_chosen, drops=is_left, dry_run=dry_run, also=also)
    if not is_whole or (job_id is None and session_id is None):
        return report
    for row in await pending_rows(scope, user_id, session_id=session_id, job_id=job_id) if not dry_run else ():
        with suppress(VersionConflict):  # somebody has just decided
            await scope.write([Remove(namespace=row.namespace, key=row.key, expected=row.version)], "undo")
    names = await scope.engine.namespaces((encode_label(user_id),))
    rows = await scope.engine.scan([name for name in names if holds_memories(name)])
    done = {*report.removed, *report.restored, *report.kept, *report.lost}
    left = [one for one in records_of(rows) if one.id not in done and is_left(one)]
    gone = [one for one in left if not one.pinned]
    if gone and not dry_run:
        places = {(one.namespace, one.id) for one in gone}
        links = await relinked(scope, user_id, [row for row in rows if (row.namespace, row.key) in places])
        await scope.write([*(Remove(namespace=home, key=key) for home, key in places), *links], "undo")
        report.restored += [link.key for link in links]
    report.removed += [one.id for one in gone]
    report.kept += [one.id for one in left if one.pinned]
    return report


async def _drop_waiting(places: Sequence[MemoryScope], user_id: UserId, session_id: str) -> None:
    """Removes the session's messages and scheduled summary from the outbox, the dead letters and the kept messages.

    What waited leaves its mark, so that it is not taken in again. A worker that has claimed the messages finds them
    gone, and writes nothing; if the outbox is in another database, it may just have written memories. Raises
    StoreError.
    """
    session = session_name(session_id)
    for scope in places:
        names = await scope.engine.namespaces((encode_label(user_id),))
        for name in [name for name in names if len(name) > 1 and name[1] in (OUTBOX, DEAD, KEPT)]:
            rows = await scope.engine.scan([name])
            gone = [row for row in rows if row.value.get("session") == session]
            writes: list[Write] = [Remove(namespace=name, key=row.key) for row in gone]
            if len(name) == _OF_MESSAGES and name[1] == OUTBOX:  # else the thread's next run would put them in again
                now, marks = scope.clock.now(), marks_of(user_id)
                writes += [Put(namespace=marks, key=row.key, value="{}", updated_at=now) for row in gone]
            if name[1] == DEAD:
                writes += [Remove(namespace=DEAD_LIST, key=row.key) for row in gone]
            elif name[1] == OUTBOX and gone:
                writes.append(Remove(namespace=(*name, STATE), key=RESULT))
            if writes:
                await scope.write(writes, "undo")


def _jobs(user_id: UserId) -> Namespace:
    return (encode_label(user_id), JOBS)
