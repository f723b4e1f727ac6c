"""Periodic work on demand: what there is to do for a user, and doing it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from inference_core.effects import Operation
from inference_core.ingestion.periodic.insights import Beliefs, beliefs, changed_groups, groups_answered
from inference_core.ingestion.periodic.sessions import all_said, content_of
from inference_core.ingestion.periodic.tasks import insight_work, session_work
from inference_core.ingestion.pipeline import BatchOutcome, Pipeline
from inference_core.memory.record import MemoryRecord, why_invalid
from inference_core.outbox.messages import Message, session_name
from inference_core.outbox.outbox import Outbox
from inference_core.outbox.partitions import Partition, Waiting
from inference_core.services.operations.list import all_of
from inference_core.services.operations.scope import MemoryScope


@dataclass(frozen=True, slots=True)
class UnsummarizedSession:
    """A session with ``sources`` messages and memories since its last summary, the latest of them at ``last``."""

    session_id: str
    sources: int
    last: datetime


@dataclass(frozen=True, slots=True)
class Done:
    """Counts the pieces of work that were done, and those that failed: they are retried later, or died."""

    done: int = 0
    failed: int = 0


def partition_of(scope: MemoryScope, user_id: str) -> Partition:
    """The partition of the agent whose view ``scope`` is."""
    return Partition(user_id, scope.namespaces.agent_name, scope.namespaces.is_agent_scoped)


def unsummarized_sessions(scope: MemoryScope, outbox: Outbox, user_id: str) -> Operation[list[UnsummarizedSession]]:
    """The user's sessions with something new since their last summary, the oldest first."""
    now = scope.clock.now()
    by_session: dict[str, tuple[list[MemoryRecord], list[Waiting]]] = {}
    for record in (yield from all_of(scope.engine, scope.namespaces.read_scopes(user_id))):
        if record.session_id and why_invalid(record.to_value(), now) is None:
            by_session.setdefault(record.session_id, ([], []))[0].append(record)
    for one in (yield from all_said(outbox, partition_of(scope, user_id))):
        by_session.setdefault(one.message.session_id or "", ([], []))[1].append(one)
    found = [
        UnsummarizedSession(name, content.new_count, max(one.at for one in content.sources))
        for name, (records, said) in by_session.items()
        if (content := content_of(records, said, now)).new_count
    ]
    return sorted(found, key=lambda one: (one.last, one.session_id))


def insights_to_do(pipeline: Pipeline, user_id: str) -> Operation[tuple[Beliefs, list[str]]]:
    """What is known of the user, and the names of the groups that a model would be asked about."""
    found = yield from beliefs(pipeline.scope, user_id)
    answered = yield from groups_answered(pipeline.outbox, insight_work(user_id)[0])
    return found, [group.name for group in changed_groups(found, answered)]


def summarize_now(pipeline: Pipeline, user_id: str, sessions: Sequence[str]) -> Operation[Done]:
    """Summarizes these sessions of the user, which are over. Raises StoreError; a session that fails waits."""
    partition = partition_of(pipeline.scope, user_id)
    works = [session_work(partition, session_name(session) or "") for session in sessions]
    return (yield from _done_now(pipeline, works))


def look_after_insights_now(pipeline: Pipeline, user_id: str) -> Operation[Done]:
    """Makes and ends higher-level memories of the user. Raises StoreError; what fails waits."""
    return (yield from _done_now(pipeline, [insight_work(user_id)]))


def _done_now(pipeline: Pipeline, works: Sequence[tuple[Partition, Message]]) -> Operation[Done]:
    outbox, scope = pipeline.outbox, pipeline.scope
    for partition, work in works:
        writes = yield from outbox.schedule_writes(partition, work, scope.clock.now(), str(scope.zone), puts_off=True)
        yield from outbox.engine.write(writes)
    done = failed = 0
    for partition, _ in works:  # one attempt each: a failed piece is not due again before its backoff ends
        report = yield from pipeline.process(partition, 0)
        done += report.periodic - report.dead
        failed += report.dead or report.outcome not in (BatchOutcome.DONE, BatchOutcome.NOTHING)
    return Done(done, failed)
