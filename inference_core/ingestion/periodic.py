"""PeriodicWork: what a worker does from time to time besides making memories of messages, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from inference_core.drivers import Plan
from inference_core.ingestion.insights import InsightWork, InsightWriter
from inference_core.ingestion.messages import NO_THREAD, Message, Role
from inference_core.ingestion.outbox import Claim, Outbox
from inference_core.ingestion.partitions import INSIGHTS, SESSIONS, Partition
from inference_core.ingestion.sessions import SessionWork, Summarizer
from inference_core.ingestion.waiting import Waiting
from inference_core.ingestion.work import Work
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.backend import Write

QUIET_S: Final = 1_800.0
EVERY_S: Final = 86_400.0
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PeriodicWork:
    """Summaries of sessions by ``summarizer``, higher-level memories by ``insights``; what is None is not done.

    A session is summed up when none of its messages has become memory for ``quiet_s`` seconds. Higher-level memories
    are made and looked after at most every ``every_s`` seconds a user.
    """

    summarizer: Summarizer | None = None
    insights: InsightWriter | None = None
    quiet_s: float = QUIET_S
    every_s: float = EVERY_S

    def works(self, outbox: Outbox) -> Mapping[str, Work]:
        """The kinds of work, by task."""
        found: dict[str, Work] = {}
        if self.summarizer:
            found[SESSIONS] = SessionWork(outbox, self.summarizer)
        if self.insights:
            found[INSIGHTS] = InsightWork(outbox, self.insights, self.every_s)
        return found

    def following(self, scope: MemoryScope, outbox: Outbox, claim: Claim) -> Plan[list[Write]]:
        """Plan: the writes in the outbox by which this work follows from messages that become memories now.

        Raises StoreError.
        """
        writes: list[Write] = []
        session = claim.batch[0].message.session_id
        now = scope.clock.now()
        if self.summarizer and session and session != NO_THREAD:
            said = [_dated(one, now).put(claim.partition.said, now + at * _TICK) for at, one in enumerate(claim.batch)]
            due = now + timedelta(seconds=self.quiet_s)
            partition, work = session_work(claim.partition, session)
            writes += [*said, *(yield from outbox.planned(partition, work, due, claim.batch[0].zone, puts_off=True))]
        if self.insights:
            partition, work = insight_work(claim.partition.user_id)
            due = now + timedelta(seconds=self.every_s)
            writes += yield from outbox.planned(partition, work, due, claim.batch[0].zone)
        return writes


def session_work(partition: Partition, session_id: str) -> tuple[Partition, Message]:
    """The summary of a session of ``partition`` as work."""
    work = Message(session_id=session_id, role=Role.USER, text=f"Summary of session {session_id}")
    return replace(partition, task=SESSIONS), work


def insight_work(user_id: str) -> tuple[Partition, Message]:
    """The higher-level memories of a user as work: of all agents, since they share semantic memory."""
    work = Message(session_id=None, role=Role.USER, text="Higher-level memories")
    return Partition(user_id, task=INSIGHTS), work


def _dated(one: Waiting, now: datetime) -> Waiting:
    """``one`` with the time at which it was said, as far as that is known."""
    return replace(one, message=replace(one.message, at=one.message.at or now))
