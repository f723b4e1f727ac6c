"""What is new in a session since its last summary, as sources of the next one; and a summary as a candidate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from inference_core.drivers import Plan
from inference_core.ingestion.candidates import Candidate, Entity
from inference_core.ingestion.derived import Source, lowest_origin
from inference_core.ingestion.messages import session_name
from inference_core.ingestion.waiting import Waiting
from inference_core.memory.fields import moment_field, text_field
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import optional_text
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryType
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.scope import MemoryScope, UserId, records_of
from inference_core.stores.backend import Row

SUMMARY: Final = "summary"
"""The source tool of summaries that periodic work made."""
GENERATION: Final = "generation"
READ_TO: Final = "read_to"
"""Metadata name: when the newest memory was stored that the summary has seen."""
MAX_CITED: Final = 200


@dataclass(frozen=True, slots=True)
class SessionContent:
    """``sources`` are the ``earlier`` summary, if there is one, and then what is new, the oldest first."""

    sources: Sequence[Source]
    earlier: MemoryRecord | None = None
    read_to: datetime | None = None

    @property
    def news(self) -> int:
        """How many sources are new."""
        return len(self.sources) - (self.earlier is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A summary and the sources that it cites; ``start`` and ``end`` if the text says when it happened."""

    text: str
    cited: Sequence[Source]
    title: str | None = None
    participants: Sequence[str] = ()
    start: datetime | None = None
    end: datetime | None = None


def session_records(scope: MemoryScope, user_id: UserId, session_id: str) -> Plan[list[MemoryRecord]]:
    """Plan: the memories of the session that hold, the newest first. Raises StoreError."""
    name = optional_text(session_name(session_id), what="session_id")
    now = scope.clock.now()

    def accepts(row: Row) -> bool:
        return text_field(row.value, "session_id") == name and why_invalid(row.value, now) is None

    return records_of((yield from scope.engine.scan(scope.namespaces.read_scopes(user_id), accepts=accepts)))


def is_summary(record: MemoryRecord) -> bool:
    """Whether periodic work made it of a session; agents may save summaries of their own."""
    return record.memory_type is MemoryType.SESSION_SUMMARY and record.source.tool == SUMMARY


def generation_of(record: MemoryRecord) -> int:
    """The number of a summary within its session, from 1."""
    number = record.extra_metadata.get(GENERATION)
    return number if isinstance(number, int) else 0


def content_of(records: Sequence[MemoryRecord], said: Sequence[Waiting], now: datetime) -> SessionContent:
    """What is new in ``records`` of a session and in messages that no summary has seen; what both hold counts once."""
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
    sources = [*map(_of_memory, fresh), *(_of_message(one, now) for one in said)]
    sources.sort(key=lambda one: one.at)
    if earlier is not None:
        sources.insert(0, replace(Source.of(earlier), memory_id=None))
    return SessionContent(sources, earlier, max((record.created_at for record in others), default=last))


def candidate_of(content: SessionContent, summary: Summary) -> Candidate:
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


def _of_memory(record: MemoryRecord) -> Source:
    """Events stand where they happened, other memories where they were learned."""
    source = Source.of(record)
    return source if record.memory_type is MemoryType.INTERACTION else replace(source, at=record.created_at)


def _of_message(one: Waiting, now: datetime) -> Source:
    message = one.message
    return Source(
        text=message.text,
        at=message.at or now,
        origin=message.origin,
        trust=MemorySource(origin=message.origin).trust,
        role=message.role,
        author=message.author,
        message_id=message.id,
    )
