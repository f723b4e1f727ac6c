"""Jobs: notes of what work on messages did to a user's memories, and undoing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.ingestion.consolidation import LAST_JOB, LAST_SEEN, REINFORCED, MemoryChanges
from inference_core.lifecycle.archive import restore_archived
from inference_core.memory.namespaces import Namespace, encode_label, holds_memories
from inference_core.memory.record import WOULD_END, MemoryRecord
from inference_core.memory.text import encode_json, moment_field
from inference_core.outbox.candidates import Extraction
from inference_core.outbox.messages import mended, session_label, session_name
from inference_core.outbox.outbox import RESULT
from inference_core.outbox.partitions import DEAD, DEAD_LIST, KEPT, OUTBOX, STATE
from inference_core.services.operations.review import pending_rows
from inference_core.services.operations.scope import MemoryScope, UserId, put_of, records_of, retried
from inference_core.stores.backend import Delete, Put, Row, Write

JOBS: Final = "jobs"
"""Second label of the namespace, below the user, that holds the notes."""
_MAX_PROBLEMS: Final = 200


def job_put(
    scope: MemoryScope, user_id: UserId, session_id: str | None, changes: MemoryChanges, extraction: Extraction
) -> Put:
    """The write that notes what a job did; it fails if the job has a note."""
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


def is_done(scope: MemoryScope, user_id: UserId, job_id: str) -> Operation[bool]:
    """Whether the job has changed memories. Raises StoreError."""
    (row,) = yield from scope.engine.get([(_jobs(user_id), job_id)])
    return row is not None


def jobs(scope: MemoryScope, user_id: UserId, session_id: str | None = None) -> Operation[list[Row]]:
    """The jobs on the user's messages (of one session, if given), the newest first."""
    name = session_name(session_id)
    return scope.engine.scan([_jobs(user_id)], accepts=lambda row: name is None or row.value["session"] == name)


def undo(
    scope: MemoryScope, user_id: UserId, *, job_id: str | None = None, session_id: str | None = None
) -> Operation[int]:
    """Undoes one job, or all jobs of one session; how many memories were removed.

    What a job added is removed, even if it was changed or forgotten since. What it superseded is reinstated, unless
    something newer superseded it too. Each job is undone as a whole. With a session its waiting and dead messages, the
    memories of its messages word for word and what tools saved in it are removed as well. What waits for the user's
    confirmation is removed too, and not counted. Raises InvalidInput unless
    exactly one of both is given, StoreError.
    """
    if (job_id is None) == (session_id is None):
        raise InvalidInput("Give a job or a session to undo")
    if session_id is not None:
        yield from _drop_waiting(scope, user_id, session_id)
    removed = 0
    for row in (yield from jobs(scope, user_id, session_id)):
        if job_id in (None, row.key):
            removed += yield from retried(partial(_undo_job, scope, user_id, row))
    for row in (yield from pending_rows(scope, user_id, session_id=session_id, job_id=job_id)):
        with suppress(VersionConflict):  # somebody has just decided
            yield from scope.engine.write([Delete(namespace=row.namespace, key=row.key, expected=row.version)])
    if session_id is not None:
        names = yield from scope.engine.namespaces((encode_label(user_id),))
        rows = yield from scope.engine.scan([name for name in names if holds_memories(name)])
        sessions = {session_name(session_id), session_label(session_id)}
        left: list[Write] = [
            Delete(namespace=one.namespace, key=one.id)
            for one in records_of(rows)
            if (one.source.message_ids or one.source.thread_id) and sessions & {one.session_id, one.source.thread_id}
        ]
        if left:
            yield from scope.write(left, "undo")
        removed += len(left)
    return removed


def _drop_waiting(scope: MemoryScope, user_id: UserId, session_id: str) -> Operation[None]:
    """Removes the session's messages, and its summary that is due, from the outbox, the dead letters and the kept ones.

    A worker that has claimed them finds them gone, and writes nothing. Raises StoreError.
    """
    session = session_name(session_id)
    names = yield from scope.engine.namespaces((encode_label(user_id),))
    for name in [name for name in names if len(name) > 1 and name[1] in (OUTBOX, DEAD, KEPT)]:
        rows = yield from scope.engine.scan([name])
        gone = [row for row in rows if row.value.get("session") == session]
        writes: list[Write] = [Delete(namespace=name, key=row.key) for row in gone]
        if name[1] == DEAD:
            writes += [Delete(namespace=DEAD_LIST, key=row.key) for row in gone]
        elif name[1] == OUTBOX and gone:
            writes.append(Delete(namespace=(*name, STATE), key=RESULT))
        if writes:
            yield from scope.write(writes, "undo")


def _undo_job(scope: MemoryScope, user_id: UserId, job: Row) -> Operation[int]:
    places: Mapping[str, Sequence[str]] = job.value["places"]
    yield from restore_archived(scope, user_id, list(places), deleted=False)
    found = yield from scope.engine.get([(tuple(namespace), key) for key, namespace in places.items()])
    records = {record.id: record for record in records_of(found)}
    added = [records[key] for key in job.value["added"] if key in records]
    linked = {key for one in added for key in (*one.supersedes, one.superseded_by) if key and key not in records}
    if linked:  # by other jobs, or by tools
        yield from restore_archived(scope, user_id, sorted(linked), deleted=False)
        names = yield from scope.engine.namespaces((encode_label(user_id),))
        rows = yield from scope.engine.get([(name, key) for name in names if holds_memories(name) for key in linked])
        records |= {record.id: record for record in records_of(rows)}
    yield from scope.write([*_undo_writes(job, records), Delete(namespace=job.namespace, key=job.key)], "undo")
    return len(added)


def _undo_writes(job: Row, records: Mapping[str, MemoryRecord]) -> list[Write]:
    """The writes that undo ``job``; they fail if one of ``records`` has changed meanwhile.

    ``records`` are the memories that it changed, and those before and after what it added. What it added is removed;
    what that superseded holds again, or is superseded by what came later.
    """
    added = {key: records[key] for key in job.value["added"] if key in records}
    reinforced: Sequence[str] = job.value["reinforced"]
    now = {key: record for key, record in records.items() if key not in added}
    for gone in added.values():
        last = gone
        while last.superseded_by in added:
            last = added[last.superseded_by]
        successor = now.get(last.superseded_by or "")
        freed = [key for key in gone.supersedes if key in now and now[key].superseded_by == gone.id]
        for key in freed:
            if successor is None:
                now[key] = _restored(now[key])
            else:
                now[key] = replace(now[key], superseded_by=successor.id, valid_to=last.valid_to)
        if successor is not None:
            others = [key for key in successor.supersedes if key != last.id]
            now[successor.id] = replace(successor, supersedes=tuple(dict.fromkeys([*others, *freed])))
    for key in job.value["superseded"]:
        old = now.get(key)
        if old and old.superseded_by in reinforced and old.superseded_by in now:
            # It was superseded by a memory that was there before the job.
            successor = now[old.superseded_by]
            now[successor.id] = replace(successor, supersedes=tuple(one for one in successor.supersedes if one != key))
            now[key] = _restored(old)
    for key in set(reinforced) & set(now):
        now[key] = _less_reinforced(now[key], job)
    return [
        *(Delete(namespace=one.namespace, key=one.id, expected=one.version) for one in added.values()),
        *(put_of(one, expected=one.version) for key, one in now.items() if one is not records[key]),
    ]


def _less_reinforced(record: MemoryRecord, job: Row) -> MemoryRecord:
    """``record`` with one repetition less, and what was noted of it before ``job``."""
    known = record.extra_metadata
    count = known.get(REINFORCED)
    left = count - 1 if isinstance(count, int) else 0
    others = {name: value for name, value in known.items() if name not in (REINFORCED, LAST_SEEN, LAST_JOB)}
    is_last = known.get(LAST_JOB) == job.key
    seen: Mapping[str, Any] = job.value["before"].get(record.id, {}) if is_last else known
    noted = {name: seen[name] for name in (LAST_SEEN, LAST_JOB) if name in seen}
    return replace(record, extra_metadata={**others, **({REINFORCED: left, **noted} if left > 0 else {})})


def _restored(record: MemoryRecord) -> MemoryRecord:
    """``record`` as it was before it was superseded."""
    metadata = {name: value for name, value in record.extra_metadata.items() if name != WOULD_END}
    end = moment_field(record.extra_metadata, WOULD_END)
    return replace(record, superseded_by=None, valid_to=end, extra_metadata=metadata)


def _jobs(user_id: UserId) -> Namespace:
    return (encode_label(user_id), JOBS)
