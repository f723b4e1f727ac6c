"""Summaries of sessions: one memory that summarizes a session, written when the session has been quiet for a while.

The sources of a summary are the earlier summary, which it supersedes, and what is new in the session since then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Any, Final, Protocol

from inference_core.effects import Operation
from inference_core.errors import InvalidMemory
from inference_core.ingestion.consolidation import MemoryChanges
from inference_core.ingestion.periodic.derived import Citable, derived_record, lowest_origin, write_derived
from inference_core.memory.record import CITES, JOB, MemoryRecord, why_invalid
from inference_core.memory.text import canonical_text, moment_field, optional_text, text_field
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryType
from inference_core.outbox.candidates import Candidate, Entity, Extraction
from inference_core.outbox.messages import mended, session_name, split_text
from inference_core.outbox.outbox import Claim, Outbox
from inference_core.outbox.partitions import Partition, Waiting
from inference_core.services.operations.list import all_of
from inference_core.services.operations.scope import MemoryScope, UserId, records_of
from inference_core.stores.backend import Remove, Row, Write

SUMMARY: Final = "summary"
"""The source tool of summaries that periodic work made."""
GENERATION: Final = "generation"
READ_TO: Final = "read_to"
"""Metadata name: the storage time of the newest memory that the summary covers."""
MAX_CITED: Final = 200
MAX_SUMMARY_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class SessionContent:
    """``sources`` are the ``earlier`` summary, if there is one, then the new messages and memories, oldest first."""

    sources: Sequence[Citable]
    earlier: MemoryRecord | None = None
    read_to: datetime | None = None

    @property
    def new_count(self) -> int:
        """How many sources are new."""
        return len(self.sources) - (self.earlier is not None)


@dataclass(frozen=True, slots=True)
class UnsummarizedSession:
    """A session with ``sources`` messages and memories since its last summary, the latest of them at ``last``."""

    session_id: str
    sources: int
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryDraft:
    """A summary and the sources that it cites; ``start`` and ``end`` if the text says when it happened."""

    text: str
    cited: Sequence[Citable]
    title: str | None = None
    participants: Sequence[str] = ()
    start: datetime | None = None
    end: datetime | None = None


class Summarizer(Protocol):
    """Summarizes what is new in a session, with a language model or without one."""

    def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Operation[Extraction]:
        """One candidate, or none if there is nothing to say. Raises ModelError."""
        ...


class SessionWork:
    """Writes a session's summary, which supersedes the earlier one; the other sources stay as they are."""

    def __init__(self, outbox: Outbox, summarizer: Summarizer) -> None:
        self._outbox = outbox
        self._summarizer = summarizer

    def extracted(self, scope: MemoryScope, claim: Claim) -> Operation[Extraction]:
        """The summary; nothing if nothing is new since the last one. Raises ModelError, StoreError."""
        said = yield from self._said(claim)
        records = yield from session_records(scope, claim.partition.user_id, _session(claim))
        now = scope.clock.now()
        content = content_of(records, said, now)
        if not content.new_count:
            return Extraction(())
        found = yield from self._summarizer.summarize(content, now, scope.zone)
        return replace(found, notes={READ_TO: content.read_to.isoformat() if content.read_to else None})

    def changes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[MemoryChanges]:
        """The new summary; the earlier one ends unless it is pinned. Raises StoreError."""
        changes = MemoryChanges(claim.job_id)
        records = yield from session_records(scope, claim.partition.user_id, _session(claim))
        earlier = sorted(
            (one for one in records if is_summary(one) and one.extra_metadata.get(JOB) != claim.job_id),
            key=generation_of,
        )
        for candidate in extraction.candidates:
            try:
                record = _record(scope, claim, candidate, extraction, earlier[-1] if earlier else None)
                yield from write_derived(scope, changes, record, [one for one in earlier if not one.pinned])
            except InvalidMemory as error:
                changes.problems.append(mended(str(error)))
        return changes

    def completion_writes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> Operation[list[Write]]:
        """The writes that complete the work and remove the messages that were kept for it. Raises StoreError."""
        del scope, extraction
        said = yield from self._said(claim)
        gone = [Remove(namespace=claim.partition.said, key=one.key, expected=one.version) for one in said]
        return [*self._outbox.completion_writes(claim), *gone]

    def _said(self, claim: Claim) -> Operation[list[Waiting]]:
        found = yield from all_said(self._outbox, claim.partition)
        return [one for one in found if one.message.session_id == session_name(_session(claim))]


def _session(claim: Claim) -> str:
    return claim.batch[0].message.session_id or ""


def _record(
    scope: MemoryScope, claim: Claim, candidate: Candidate, extraction: Extraction, earlier: MemoryRecord | None
) -> MemoryRecord:
    """The summary as a memory, one generation after ``earlier``. Raises InvalidMemory."""
    session = optional_text(session_name(_session(claim)), what="session_id")
    source = MemorySource(
        origin=candidate.origin, thread_id=session, message_ids=candidate.message_ids[:MAX_CITED], tool=SUMMARY
    )
    cited = [*candidate.cites, *(earlier.cites if earlier else ())]
    metadata: dict[str, Any] = {
        GENERATION: 1 + (generation_of(earlier) if earlier else 0),
        READ_TO: extraction.notes.get(READ_TO),
        CITES: list(dict.fromkeys(cited))[:MAX_CITED],
        "participants": [mended(one.name) for one in candidate.entities],
        "until": candidate.valid_to and candidate.valid_to.isoformat(),
    }
    metadata = {name: value for name, value in metadata.items() if value}
    text = canonical_text(mended(candidate.content), max_bytes=MAX_SUMMARY_BYTES)
    content = split_text(text, scope.max_content_bytes)[0]
    return replace(
        derived_record(scope, claim, MemoryType.SESSION_SUMMARY, content, source, metadata),
        topic=optional_text(candidate.topic, what="topic"),
        session_id=session,
        agent_name=scope.namespaces.agent_name,
        valid_from=candidate.valid_from,
    )


def all_said(outbox: Outbox, partition: Partition) -> Operation[list[Waiting]]:
    """The messages that became memories and that no summary covers yet, oldest first. Raises StoreError."""
    rows = yield from outbox.engine.scan([partition.said])
    return [Waiting.of(row) for row in reversed(rows)]


def unsummarized_sessions(scope: MemoryScope, outbox: Outbox, user_id: str) -> Operation[list[UnsummarizedSession]]:
    """The user's sessions with something new since their last summary, the oldest first. Raises StoreError."""
    now = scope.clock.now()
    by_session: dict[str, tuple[list[MemoryRecord], list[Waiting]]] = {}
    for record in (yield from all_of(scope.engine, scope.namespaces.read_scopes(user_id))):
        if record.session_id and why_invalid(record.to_value(), now) is None:
            by_session.setdefault(record.session_id, ([], []))[0].append(record)
    for one in (yield from all_said(outbox, Partition.of(user_id, scope.namespaces))):
        by_session.setdefault(one.message.session_id or "", ([], []))[1].append(one)
    found = [
        UnsummarizedSession(name, content.new_count, max(one.at for one in content.sources))
        for name, (records, said) in by_session.items()
        if (content := content_of(records, said, now)).new_count
    ]
    return sorted(found, key=lambda one: (one.last, one.session_id))


def session_records(scope: MemoryScope, user_id: UserId, session_id: str) -> Operation[list[MemoryRecord]]:
    """The memories of the session that currently hold, newest first. Raises StoreError."""
    name = optional_text(session_name(session_id), what="session_id")
    now = scope.clock.now()

    def accepts(row: Row) -> bool:
        return text_field(row.value, "session_id") == name and why_invalid(row.value, now) is None

    return records_of((yield from scope.engine.scan(scope.namespaces.read_scopes(user_id), accepts=accepts)))


def is_summary(record: MemoryRecord) -> bool:
    """Whether ``record`` is a summary made by periodic work; agents may save summaries of their own."""
    return record.memory_type is MemoryType.SESSION_SUMMARY and record.source.tool == SUMMARY


def generation_of(record: MemoryRecord) -> int:
    """The number of a summary within its session, from 1; 0 if it has none."""
    number = record.extra_metadata.get(GENERATION)
    return number if isinstance(number, int) else 0


def content_of(records: Sequence[MemoryRecord], said: Sequence[Waiting], now: datetime) -> SessionContent:
    """What is new in a session's ``records`` and in ``said``, its uncovered messages; what both hold counts once."""
    earlier = max(filter(is_summary, records), key=generation_of, default=None)
    others = [record for record in records if not is_summary(record)]
    last = None if earlier is None else moment_field(earlier.extra_metadata, READ_TO)
    message_ids = {one.message.id for one in said if one.message.id}
    texts = {one.message.text for one in said}
    fresh = [
        record
        for record in others
        if (last is None or record.created_at > last)
        and record.content not in texts
        and not (record.source.message_ids and message_ids.issuperset(record.source.message_ids))
    ]
    sources = [
        # An event is dated when it happened, another memory when it was stored.
        Citable.of_memory(one, None if one.memory_type is MemoryType.INTERACTION else one.created_at)
        for one in fresh
    ]
    sources += [Citable.of_message(one.message, one.message.at or now) for one in said]
    sources.sort(key=lambda one: one.at)
    if earlier is not None:
        sources.insert(0, replace(Citable.of_memory(earlier), memory_id=None))
    return SessionContent(sources, earlier, max((record.created_at for record in others), default=last))


def candidate_of(content: SessionContent, summary: SummaryDraft) -> Candidate:
    """``summary`` as a candidate: ``valid_from`` and ``valid_to`` say when it happened."""
    first, last = min(one.at for one in content.sources), max(one.at for one in content.sources)

    def within(moment: datetime | None, otherwise: datetime) -> datetime:
        return moment if moment and first <= moment <= last else otherwise

    return Candidate(
        content=summary.text,
        memory_type=MemoryType.SESSION_SUMMARY,
        topic=summary.title,
        entities=tuple(Entity(name, "person") for name in summary.participants),
        message_ids=_first(one.message_id for one in summary.cited),
        cites=_first(one.memory_id for one in summary.cited),
        origin=lowest_origin(content.sources),
        valid_from=within(summary.start, first),
        valid_to=within(summary.end, last),
    )


def _first(ids: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for one in ids if one))[:MAX_CITED]
