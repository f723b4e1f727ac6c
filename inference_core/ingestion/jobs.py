"""What work on messages did to a user's memories, and undoing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from inference_core.drivers import Plan
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.ingestion.candidates import Extraction
from inference_core.ingestion.consolidation import LAST_SEEN, REINFORCED, Effects
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import encode_json
from inference_core.services.operations.scope import MemoryScope, UserId, put_of, record_of
from inference_core.services.operations.update import ATTEMPTS
from inference_core.stores.backend import Delete, Put, Row, Write

JOBS: Final = "jobs"
"""Second label of the namespace, below the user, that holds what jobs did."""
_PAGE: Final = 200


def job_put(
    scope: MemoryScope, user_id: UserId, session_id: str | None, effects: Effects, extraction: Extraction
) -> Put:
    """The write that notes what a job did."""
    places = {record.id: list(record.namespace) for record in effects.changed.values()}
    value: dict[str, Any] = {
        "session": session_id,
        "places": places,
        "added": effects.added,
        "reinforced": effects.reinforced,
        "superseded": effects.superseded,
        "problems": [*extraction.problems, *effects.problems][:_PAGE],
        "model_calls": extraction.model_calls,
        "input_tokens": extraction.input_tokens,
        "output_tokens": extraction.output_tokens,
    }
    now = scope.clock.now()
    return Put(namespace=_jobs(user_id), key=effects.job_id, value=encode_json(value, what="job"), updated_at=now)


def jobs(scope: MemoryScope, user_id: UserId, session_id: str | None = None) -> Plan[list[Row]]:
    """Plan: the jobs on the user's messages (of one session, if given), the newest first."""
    found: list[Row] = []
    offset = 0
    while page := (yield from scope.engine.newest([_jobs(user_id)], limit=_PAGE, offset=offset)):
        found += [row for row in page if session_id is None or row.value["session"] == session_id]
        offset += len(page)
    return found


def undo(scope: MemoryScope, user_id: UserId, *, job_id: str | None = None, session_id: str | None = None) -> Plan[int]:
    """Plan: takes back all that one job or the jobs of one session did; how many memories were removed.

    What they added goes, also if it was changed since; what they ended holds again, unless something newer ended it.
    Each job is undone as a whole. Raises InvalidInput if neither or both are given, StoreError.
    """
    if (job_id is None) == (session_id is None):
        raise InvalidInput("Give a job or a session to undo")
    rows = yield from jobs(scope, user_id, session_id)
    removed = 0
    for row in rows:
        if job_id in (None, row.key):
            removed += yield from _undone(scope, row)
    return removed


def _undone(scope: MemoryScope, job: Row) -> Plan[int]:
    places: Mapping[str, Sequence[str]] = job.value["places"]
    writes: Sequence[Write] = []
    for attempt in range(1, ATTEMPTS + 1):
        found = yield from scope.engine.get([(tuple(namespace), key) for key, namespace in places.items()])
        records = {row.key: record_of(row) for row in found if row}
        writes = _undoing(job, records)
        try:
            yield from scope.engine.write([*writes, Delete(namespace=job.namespace, key=job.key)])
        except VersionConflict:
            if attempt == ATTEMPTS:
                raise
        else:
            break
    return sum(isinstance(write, Delete) for write in writes)


def _undoing(job: Row, records: Mapping[str, MemoryRecord]) -> Sequence[Write]:
    added = {key: records[key] for key in job.value["added"] if key in records}
    writes: list[Write] = [
        Delete(namespace=record.namespace, key=key, expected=record.version) for key, record in added.items()
    ]
    for key, record in records.items():
        if key in added:
            continue
        new = record
        if record.superseded_by in job.value["added"]:
            heir = added[record.superseded_by].superseded_by if record.superseded_by in added else None
            new = replace(new, superseded_by=heir, valid_to=record.valid_to if heir else None)
        if key in job.value["reinforced"]:
            new = _less_reinforced(new, job.value["reinforced"].count(key))
        if new is not record:
            writes.append(put_of(new, expected=record.version))
    return writes


def _less_reinforced(record: MemoryRecord, times: int) -> MemoryRecord:
    count = record.extra_metadata.get(REINFORCED)
    left = (count if isinstance(count, int) else 0) - times
    others = {name: value for name, value in record.extra_metadata.items() if name not in (REINFORCED, LAST_SEEN)}
    seen = {REINFORCED: left, LAST_SEEN: record.extra_metadata.get(LAST_SEEN)} if left > 0 else {}
    return replace(record, extra_metadata={**others, **seen})


def _jobs(user_id: UserId) -> Namespace:
    return (encode_label(user_id), JOBS)
