"""Periodic work: what a worker does besides making memories of messages, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

from inference_core.effects import Operation
from inference_core.ingestion.consolidation import MemoryChanges
from inference_core.ingestion.periodic.insights import InsightWork, ModelInsights
from inference_core.ingestion.periodic.summaries import SessionWork, Summarizer
from inference_core.outbox.messages import NO_THREAD, ConversationMessage, Extraction, Role
from inference_core.outbox.outbox import INSIGHTS, SESSIONS, Claim, Outbox, Partition
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.backend import Write

QUIET_S: Final = 1_800.0
EVERY_S: Final = 86_400.0
_TICK: Final = timedelta(microseconds=1)


class TaskHandler(Protocol):
    """How the worker does one kind of work. After a crash, the last two operations may run again."""

    def extracted(self, scope: MemoryScope, claim: Claim) -> Operation[Extraction]:
        """The candidates that the batch suggests; kept until they are applied. Raises ModelError, StoreError."""
        ...

    def changes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[MemoryChanges]:
        """How ``extraction`` changes memories; the same result if some of it is done already. Raises StoreError."""
        ...

    def completion_writes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[list[Write]]:
        """The writes in the outbox that complete the batch. Raises StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class PeriodicWork:
    """Summaries of sessions by ``summarizer``, higher-level memories by ``insights``; None disables either.

    A session is summarized when none of its messages has become memory for ``quiet_s`` seconds. Higher-level memories
    are made and checked at most every ``every_s`` seconds per user.
    """

    summarizer: Summarizer | None = None
    insights: ModelInsights | None = None
    quiet_s: float = QUIET_S
    every_s: float = EVERY_S

    def works(self, outbox: Outbox) -> Mapping[str, TaskHandler]:
        """The handlers of the enabled kinds of work, by task name."""
        handlers: dict[str, TaskHandler] = {}
        if self.summarizer:
            handlers[SESSIONS] = SessionWork(outbox, self.summarizer)
        if self.insights:
            handlers[INSIGHTS] = InsightWork(outbox, self.insights, self.every_s)
        return handlers

    async def following(self, scope: MemoryScope, outbox: Outbox, claim: Claim) -> list[Write]:
        """The outbox writes that schedule this work once the claimed messages are memories. Raises StoreError."""
        writes: list[Write] = []
        session, zone = claim.batch[0].message.session_id, claim.batch[0].zone
        now = scope.clock.now()
        if self.summarizer and session and session != NO_THREAD:
            for at, waiting in enumerate(claim.batch):
                message = replace(waiting.message, at=waiting.message.at or now)
                writes.append(replace(waiting, message=message).put(claim.partition.said, now + at * _TICK))
            due = now + timedelta(seconds=self.quiet_s)
            writes += await outbox.schedule_writes(*session_work(claim.partition, session), due, zone, puts_off=True)
        if self.insights:
            due = now + timedelta(seconds=self.every_s)
            writes += await outbox.schedule_writes(*insight_work(claim.partition.user_id), due, zone)
        return writes


def session_work(partition: Partition, session_id: str) -> tuple[Partition, ConversationMessage]:
    """The partition and the message that represent summarizing a session of ``partition`` in the outbox."""
    work = ConversationMessage(session_id=session_id, role=Role.USER, text=f"Summary of session {session_id}")
    return replace(partition, task=SESSIONS), work


def insight_work(user_id: str) -> tuple[Partition, ConversationMessage]:
    """The same for a user's higher-level memories, once for all agents, since they share semantic memory."""
    work = ConversationMessage(session_id=None, role=Role.USER, text="Higher-level memories")
    return Partition(user_id, task=INSIGHTS), work
