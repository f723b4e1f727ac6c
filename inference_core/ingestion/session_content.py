"""What a session has told since its last summary, as the sources of the next one; and a summary as a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from inference_core.drivers import Plan
from inference_core.ingestion.candidates import Candidate, Entity
from inference_core.ingestion.messages import Role, session_name
from inference_core.ingestion.waiting import Waiting
from inference_core.memory.fields import moment_field
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import optional_text
from inference_core.memory.trust import MemorySource, Origin, Trust
from inference_core.memory.types import MemoryType
from inference_core.memory.validity import why_invalid
from inference_core.services.operations.list import page_of
from inference_core.services.operations.scope import MemoryScope, UserId, record_of

SUMMARY: Final = "summary"
"""What made a summary, as its source names it."""
GENERATION: Final = "generation"
READ_TO: Final = "read_to"
"""The name in a summary's metadata of when the newest memory was stored that it has seen."""
MAX_CITED: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A message of the session, a memory of it, or its earlier summary (which has neither id)."""

    text: str
    at: datetime
    origin: Origin
    trust: Trust
    role: Role | None = None
    author: str | None = None
    memory_id: str | None = None
    message_id: str | None = None

    @property
    def kind(self) -> str:
        """What a model is told that it is."""
        if self.role is not None:
            return "message"
        return "memory" if self.memory_id else "earlier_summary"


@dataclass(frozen=True, slots=True)
class SessionContent:
    """``sources`` are what is new, the oldest first, behind the ``earlier`` summary, if there is one."""

    sources: Sequence[Source]
    earlier: MemoryRecord | None = None
    read_to: datetime | None = None

    @property
    def news(self) -> int:
        """How many sources are new."""
        return len(self.sources) - (self.earlier is not None)

    @property
    def origin(self) -> Origin:
        """On whose word a summary of all this rests: on the least trusted one's."""
        return lowest_origin([(one.origin, one.trust) for one in self.sources])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was said in a session, and the sources that say so; when it began and ended, if that is known better."""

    text: str
    cited: Sequence[Source]
    title: str | None = None
    participants: Sequence[str] = ()
    start: datetime | None = None
    end: datetime | None = None


def lowest_origin(sources: Sequence[tuple[Origin, Trust]]) -> Origin:
    """The origin of what follows from ``sources``: an external one if any of them is, else the agent, who wrote it."""
    external = [origin for origin, trust in sources if trust is Trust.EXTERNAL]
    if not external:
        return Origin.AGENT
    return next((one for one in external if MemorySource(origin=one).trust is Trust.EXTERNAL), Origin.TOOL)


def session_records(scope: MemoryScope, user_id: UserId, session_id: str) -> Plan[list[MemoryRecord]]:
    """Plan: the memories of the session that hold, the newest first. Raises StoreError."""
    name = optional_text(session_name(session_id), what="session_id") or ""
    scopes = scope.namespaces.read_scopes(user_id)
    records, _ = yield from page_of(scope.engine, scopes, record_of, None, None, None, 0, name)
    now = scope.clock.now()
    return [record for record in records if why_invalid(record.to_value(), now) is None]


def is_summary(record: MemoryRecord) -> bool:
    """Whether periodic work made it of a session; agents may save summaries of their own."""
    return record.memory_type is MemoryType.SESSION_SUMMARY and record.source.tool == SUMMARY


def generation_of(record: MemoryRecord) -> int:
    """The how manieth summary of its session it is."""
    number = record.extra_metadata.get(GENERATION)
    return number if isinstance(number, int) else 0


def content_of(records: Sequence[MemoryRecord], said: Sequence[Waiting], now: datetime) -> SessionContent:
    """What ``records`` of a session and messages of it that no summary has seen tell that is new."""
    earlier = max(filter(is_summary, records), key=generation_of, default=None)
    others = [record for record in records if not is_summary(record)]
    last = None if earlier is None else moment_field(earlier.extra_metadata, READ_TO)
    told = {one.message.id for one in said if one.message.id}
    texts = {one.message.text for one in said}
    fresh = [
        record
        for record in others
        if (last is None or record.created_at > last)
        and record.content not in texts
        and not (record.source.message_ids and told.issuperset(record.source.message_ids))
    ]
    sources = [*(_of_memory(record) for record in fresh), *(_of_message(one, now) for one in said)]
    sources.sort(key=lambda one: one.at)
    before = [] if earlier is None else [_of_earlier(earlier)]
    read_to = max((record.created_at for record in others), default=last)
    return SessionContent([*before, *sources], earlier, read_to)


def candidate_of(content: SessionContent, summary: Summary) -> Candidate:
    """``summary`` as a candidate: ``valid_from`` and ``valid_to`` say when it happened."""
    moments = [one.at for one in content.sources]
    return Candidate(
        content=summary.text,
        memory_type=MemoryType.SESSION_SUMMARY,
        topic=summary.title,
        entities=tuple(Entity(name, "person") for name in summary.participants),
        message_ids=_first([one.message_id for one in summary.cited]),
        cites=_first([one.memory_id for one in summary.cited]),
        origin=content.origin,
        valid_from=_within(summary.start, moments) or min(moments),
        valid_to=_within(summary.end, moments) or max(moments),
    )


def _within(moment: datetime | None, moments: Sequence[datetime]) -> datetime | None:
    return moment if moment and min(moments) <= moment <= max(moments) else None


def _first(ids: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for one in ids if one))[:MAX_CITED]


def _of_memory(record: MemoryRecord) -> Source:
    is_event = record.memory_type is MemoryType.INTERACTION
    return Source(
        text=record.content,
        at=record.happened_at if is_event else record.created_at,
        origin=record.source.origin,
        trust=record.trust,
        memory_id=record.id,
    )


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


def _of_earlier(record: MemoryRecord) -> Source:
    return Source(text=record.content, at=record.happened_at, origin=record.source.origin, trust=record.trust)
