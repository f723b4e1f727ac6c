"""SessionWork: one memory that summarizes a session, written when the session has been quiet for a while."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Any, Final, Protocol

from inference_core.drivers import Plan
from inference_core.errors import InvalidMemory
from inference_core.ingestion.candidates import Candidate, Extraction
from inference_core.ingestion.consolidation import JOB, Effects
from inference_core.ingestion.derived import write_derived
from inference_core.ingestion.messages import mended, session_name
from inference_core.ingestion.outbox import Claim, Outbox
from inference_core.ingestion.partitions import Partition
from inference_core.ingestion.session_content import (
    GENERATION,
    MAX_CITED,
    READ_TO,
    SUMMARY,
    SessionContent,
    content_of,
    generation_of,
    is_summary,
    session_records,
)
from inference_core.ingestion.splitting import split_text
from inference_core.ingestion.waiting import Waiting
from inference_core.memory.record import CITES, MemoryRecord
from inference_core.memory.text import canonical_text, digest_of, optional_text
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.services.operations.scope import MemoryScope, put_of
from inference_core.stores.backend import Delete, Write

MAX_SUMMARY_BYTES: Final = 64 * 1024


class Summarizer(Protocol):
    """Summarizes what is new in a session, with a language model or without one."""

    def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Plan[Extraction]:
        """Plan: one candidate, or none if there is nothing to say. Raises ModelError."""
        ...


class SessionWork:
    """Writes the summary of a session, which supersedes the one before; its sources stay as they are."""

    def __init__(self, outbox: Outbox, summarizer: Summarizer) -> None:
        self._outbox = outbox
        self._summarizer = summarizer

    def extracted(self, scope: MemoryScope, claim: Claim) -> Plan[Extraction]:
        """Plan: the summary; nothing if nothing is new since the last one. Raises ModelError, StoreError."""
        said = yield from self._said(claim)
        records = yield from session_records(scope, claim.partition.user_id, _session(claim))
        now = scope.clock.now()
        content = content_of(records, said, now)
        if not content.news:
            return Extraction(())
        found = yield from self._summarizer.summarize(content, now, scope.zone)
        return replace(found, notes={READ_TO: content.read_to.isoformat() if content.read_to else None})

    def effects(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Plan[Effects]:
        """Plan: the new summary; the earlier one ends unless it is pinned. Raises StoreError."""
        effects = Effects(claim.job_id)
        records = yield from session_records(scope, claim.partition.user_id, _session(claim))
        earlier = sorted(
            (one for one in records if is_summary(one) and one.extra_metadata.get(JOB) != claim.job_id),
            key=generation_of,
        )
        for candidate in extraction.candidates:
            try:
                record = _record(scope, claim, candidate, extraction, earlier[-1] if earlier else None)
            except InvalidMemory as error:
                effects.problems.append(mended(str(error)))
            else:
                yield from write_derived(scope, effects, record, [one for one in earlier if not one.pinned])
        return effects

    def settled(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Plan[list[Write]]:
        """Plan: the work is done, and the messages need no longer be kept for it. Raises StoreError."""
        del scope, extraction
        said = yield from self._said(claim)
        gone = [Delete(namespace=claim.partition.said, key=one.key, expected=one.version) for one in said]
        return [*self._outbox.settled(claim), *gone]

    def _said(self, claim: Claim) -> Plan[list[Waiting]]:
        found = yield from all_said(self._outbox, claim.partition)
        return [one for one in found if one.message.session_id == session_name(_session(claim))]


def all_said(outbox: Outbox, partition: Partition) -> Plan[list[Waiting]]:
    """Plan: the messages that became memories and are in no summary, the oldest first. Raises StoreError."""
    rows = yield from outbox.engine.scan([partition.said])
    return [Waiting.of(row) for row in reversed(rows)]


def _session(claim: Claim) -> str:
    return claim.batch[0].message.session_id or ""


def _record(
    scope: MemoryScope, claim: Claim, candidate: Candidate, extraction: Extraction, earlier: MemoryRecord | None
) -> MemoryRecord:
    """The memory that the summary would be, of the generation after ``earlier``. Raises InvalidMemory."""
    session = optional_text(session_name(_session(claim)), what="session_id")
    namespace = scope.namespaces.namespace_for(claim.partition.user_id, MemoryCategory.EPISODIC)
    source = MemorySource(
        origin=candidate.origin, thread_id=session, message_ids=candidate.message_ids[:MAX_CITED], tool=SUMMARY
    )
    cited = [*candidate.cites, *(earlier.cites if earlier else ())]
    metadata: dict[str, Any] = {
        JOB: claim.job_id,
        GENERATION: 1 + (generation_of(earlier) if earlier else 0),
        READ_TO: extraction.notes.get(READ_TO),
        CITES: list(dict.fromkeys(cited))[:MAX_CITED],
        "participants": [mended(one.name) for one in candidate.entities],
        "until": candidate.valid_to and candidate.valid_to.isoformat(),
    }
    text = canonical_text(mended(candidate.content), max_bytes=MAX_SUMMARY_BYTES)
    now = scope.clock.now()
    record = MemoryRecord(
        id=digest_of([*namespace, SUMMARY, claim.job_id]),
        content=split_text(text, scope.max_content_bytes)[0],
        memory_type=MemoryType.SESSION_SUMMARY,
        category=MemoryCategory.EPISODIC,
        namespace=namespace,
        created_at=now,
        updated_at=now,
        topic=optional_text(candidate.topic, what="topic"),
        session_id=session,
        agent_name=scope.namespaces.agent_name,
        extra_metadata={name: value for name, value in metadata.items() if value},
        source=source,
        trust=source.trust,
        valid_from=candidate.valid_from,
    )
    put_of(record)  # raises for what cannot be written, here where it can be noted
    return record
