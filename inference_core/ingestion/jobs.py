"""Jobs: notes of what work on messages did to a user's memories, and undoing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from inference_core.drivers import Plan
from inference_core.errors import InvalidInput
from inference_core.ingestion.candidates import Extraction
from inference_core.ingestion.consolidation import Effects
from inference_core.ingestion.leftovers import dropped, told
from inference_core.ingestion.messages import mended, session_name
from inference_core.ingestion.undoing import Undoing
from inference_core.lifecycle.restoring import restore
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import encode_json
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.services.operations.scope import MemoryScope, UserId, records_of
from inference_core.services.operations.update import retried
from inference_core.stores.backend import Delete, Put, Row

JOBS: Final = "jobs"
"""Second label of the namespace, below the user, that holds the notes."""
_MAX_PROBLEMS: Final = 200


def job_put(
    scope: MemoryScope, user_id: UserId, session_id: str | None, effects: Effects, extraction: Extraction
) -> Put:
    """The write that notes what a job did; it fails if the job has a note."""
    places = {record.id: list(record.namespace) for record in effects.changed.values()}
    value: dict[str, Any] = {
        "session": session_name(session_id),
        "places": places,
        "added": effects.added,
        "reinforced": effects.reinforced,
        "superseded": effects.superseded,
        "before": effects.before,
        "problems": [mended(problem) for problem in (*extraction.problems, *effects.problems)][:_MAX_PROBLEMS],
        "model_calls": extraction.model_calls,
        "input_tokens": extraction.input_tokens,
        "output_tokens": extraction.output_tokens,
    }
    now = scope.clock.now()
    text = encode_json(value, what="job")
    return Put(namespace=_jobs(user_id), key=effects.job_id, value=text, updated_at=now, expected=0)


def is_done(scope: MemoryScope, user_id: UserId, job_id: str) -> Plan[bool]:
    """Plan: whether the job has changed memories. Raises StoreError."""
    (row,) = yield from scope.engine.get([(_jobs(user_id), job_id)])
    return row is not None


def jobs(scope: MemoryScope, user_id: UserId, session_id: str | None = None) -> Plan[list[Row]]:
    """Plan: the jobs on the user's messages (of one session, if given), the newest first."""
    name = session_name(session_id)
    return scope.engine.scan([_jobs(user_id)], accepts=lambda row: name is None or row.value["session"] == name)


def undo(scope: MemoryScope, user_id: UserId, *, job_id: str | None = None, session_id: str | None = None) -> Plan[int]:
    """Plan: undoes one job, or all jobs of one session; how many memories were removed.

    What a job added is removed, even if it was changed or forgotten since. What it superseded is reinstated, unless
    something newer superseded it too. Each job is undone as a whole. With a session its waiting and dead messages, the
    memories of its messages word for word and what tools saved in it are removed as well. Raises InvalidInput unless
    exactly one of both is given, StoreError.
    """
    if (job_id is None) == (session_id is None):
        raise InvalidInput("Give a job or a session to undo")
    if session_id is not None:
        yield from dropped(scope, user_id, session_id)
    removed = 0
    for row in (yield from jobs(scope, user_id, session_id)):
        if job_id in (None, row.key):
            removed += yield from retried(partial(_undone, scope, user_id, row))
    if session_id is not None:
        left = yield from told(scope, user_id, session_id)
        if left:
            yield from scope.engine.write([Delete(namespace=one.namespace, key=one.id) for one in left])
        removed += len(left)
    return removed


def _undone(scope: MemoryScope, user_id: UserId, job: Row) -> Plan[int]:
    undoing = Undoing(job, (yield from _concerned(scope, user_id, job)))
    yield from scope.engine.write([*undoing.writes, Delete(namespace=job.namespace, key=job.key)])
    return len(undoing.added)


def _concerned(scope: MemoryScope, user_id: UserId, job: Row) -> Plan[dict[str, MemoryRecord]]:
    """Plan: the memories that the job changed, and those before and after the ones that it added, by their ids.

    Those of them that were forgotten are restored.
    """
    places: Mapping[str, Sequence[str]] = job.value["places"]
    yield from restore(scope, user_id, list(places))
    found = yield from scope.engine.get([(tuple(namespace), key) for key, namespace in places.items()])
    records = {record.id: record for record in records_of(found)}
    added = [records[key] for key in job.value["added"] if key in records]
    linked = {key for one in added for key in (*one.supersedes, one.superseded_by) if key and key not in records}
    if linked:
        yield from restore(scope, user_id, sorted(linked))
        names = yield from scope.engine.namespaces((encode_label(user_id),))
        homes = [name for name in names if len(name) > 1 and name[1] in MEMORY_CATEGORIES]
        rows = yield from scope.engine.get([(home, key) for home in homes for key in linked])
        records |= {record.id: record for record in records_of(rows)}
    return records


def _jobs(user_id: UserId) -> Namespace:
    return (encode_label(user_id), JOBS)
