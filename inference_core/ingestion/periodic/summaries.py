"""Summaries of sessions: one memory that summarizes a session, written when the session has been quiet for a while.

The sources of a summary are the earlier summary, which it supersedes, and what is new in the session since then.
`ModelSummarizer` asks a language model, `ExtractiveSummarizer` picks sentences.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, ConfigDict, Field

from inference_core.asking import MODEL_TIMEOUT_S, chat_models
from inference_core.context.render import neutral_line
from inference_core.effects import Operation
from inference_core.errors import ConfigurationError, InvalidMemory
from inference_core.ingestion.consolidation import MemoryChanges
from inference_core.ingestion.extraction.extractor import PROMPTS, Asking, answer_of, short, structured
from inference_core.ingestion.extraction.schema import MAX_LABEL, end_of, first_of, folded, start_of, texts_of
from inference_core.ingestion.periodic.insights import (
    Citable,
    Shown,
    derived_record,
    lowest_origin,
    request_for,
    short_text,
    shown_source,
    text_and_cited,
    write_derived,
)
from inference_core.memory.record import CITES, JOB, SUMMARY, MemoryRecord, why_invalid
from inference_core.memory.text import canonical_text, moment_field, optional_text, text_field, text_tokens
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import Candidate, Entity, Extraction, Role, mended, session_name, split_text
from inference_core.outbox.outbox import Claim, Outbox, Partition, Waiting
from inference_core.retrieval.analysis import analyze
from inference_core.services.operations.list import all_of
from inference_core.services.operations.scope import MemoryScope, UserId, records_of
from inference_core.stores.backend import Remove, Row, Write

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

    async def extracted(self, scope: MemoryScope, claim: Claim) -> Extraction:
        """The summary; nothing if nothing is new since the last one. Raises ModelError, StoreError."""
        said = await self._said(claim)
        records = await session_records(scope, claim.partition.user_id, _session(claim))
        now = scope.clock.now()
        content = content_of(records, said, now)
        if not content.new_count:
            return Extraction(())
        extraction = await self._summarizer.summarize(content, now, scope.zone)
        return replace(extraction, notes={READ_TO: content.read_to.isoformat() if content.read_to else None})

    async def changes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> MemoryChanges:
        """The new summary; the earlier one ends unless it is pinned. Raises StoreError."""
        changes = MemoryChanges(claim.job_id)
        records = await session_records(scope, claim.partition.user_id, _session(claim))
        earlier = sorted(
            (record for record in records if is_summary(record) and record.extra_metadata.get(JOB) != claim.job_id),
            key=generation_of,
        )
        for candidate in extraction.candidates:
            try:
                record = _record(scope, claim, candidate, extraction, earlier[-1] if earlier else None)
                await write_derived(scope, changes, record, [record for record in earlier if not record.pinned])
            except InvalidMemory as error:
                changes.problems.append(mended(str(error)))
        return changes

    async def completion_writes(self, scope: MemoryScope, claim: Claim, extraction: Extraction) -> list[Write]:
        """The writes that complete the work and remove the messages that were kept for it. Raises StoreError."""
        del scope, extraction
        said = await self._said(claim)
        gone = [Remove(namespace=claim.partition.said, key=message.key, expected=message.version) for message in said]
        return [*self._outbox.completion_writes(claim), *gone]

    async def _said(self, claim: Claim) -> list[Waiting]:
        waiting = await all_said(self._outbox, claim.partition)
        return [message for message in waiting if message.message.session_id == session_name(_session(claim))]


def _session(claim: Claim) -> str:
    return claim.batch[0].message.session_id or ""


def _record(
    scope: MemoryScope, claim: Claim, candidate: Candidate, extraction: Extraction, earlier: MemoryRecord | None
) -> MemoryRecord:
    """The summary as a memory, one generation after ``earlier``. Raises InvalidMemory."""
    session = optional_text(session_name(_session(claim)), what="session_id")
    told = _first([*candidate.message_ids, *(earlier.source.message_ids if earlier else ())])
    source = MemorySource(origin=candidate.origin, thread_id=session, message_ids=told, tool=SUMMARY)
    cited = [*candidate.cites, *(earlier.cites if earlier else ())]
    metadata: dict[str, Any] = {
        GENERATION: 1 + (generation_of(earlier) if earlier else 0),
        READ_TO: extraction.notes.get(READ_TO),
        CITES: list(dict.fromkeys(cited))[:MAX_CITED],
        "participants": [mended(entity.name) for entity in candidate.entities],
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


async def all_said(outbox: Outbox, partition: Partition) -> list[Waiting]:
    """The messages that became memories and that no summary covers yet, oldest first. Raises StoreError."""
    rows = await outbox.engine.scan([partition.said])
    return [Waiting.of(row) for row in reversed(rows)]


async def unsummarized_sessions(scope: MemoryScope, outbox: Outbox, user_id: str) -> list[UnsummarizedSession]:
    """The user's sessions with something new since their last summary, the oldest first. Raises StoreError."""
    now = scope.clock.now()
    by_session: dict[str, tuple[list[MemoryRecord], list[Waiting]]] = {}
    for record in await all_of(scope.engine, scope.namespaces.read_scopes(user_id)):
        if record.session_id and why_invalid(record.to_value(), now) is None:
            by_session.setdefault(record.session_id, ([], []))[0].append(record)
    for message in await all_said(outbox, Partition.of(user_id, scope.namespaces)):
        by_session.setdefault(message.message.session_id or "", ([], []))[1].append(message)
    sessions = [
        UnsummarizedSession(name, content.new_count, max(cited.at for cited in content.sources))
        for name, (records, said) in by_session.items()
        if (content := content_of(records, said, now)).new_count
    ]
    return sorted(sessions, key=lambda session: (session.last, session.session_id))


async def session_records(scope: MemoryScope, user_id: UserId, session_id: str) -> list[MemoryRecord]:
    """The memories of the session that currently hold, newest first. Raises StoreError."""
    name = optional_text(session_name(session_id), what="session_id")
    now = scope.clock.now()

    def accepts(row: Row) -> bool:
        return text_field(row.value, "session_id") == name and why_invalid(row.value, now) is None

    return records_of(await scope.engine.scan(scope.namespaces.read_scopes(user_id), accepts=accepts))


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
    message_ids = {message.message.id for message in said if message.message.id}
    texts = {message.message.text for message in said}
    fresh = [
        record
        for record in others
        if (last is None or record.created_at > last)
        and record.content not in texts
        and not (record.source.message_ids and message_ids.issuperset(record.source.message_ids))
    ]
    sources = [
        # An event is dated when it happened, another memory when it was stored.
        Citable.of_memory(record, None if record.memory_type is MemoryType.INTERACTION else record.created_at)
        for record in fresh
    ]
    sources += [Citable.of_message(message.message, message.message.at or now) for message in said]
    sources.sort(key=lambda cited: cited.at)
    if earlier is not None:
        sources.insert(0, replace(Citable.of_memory(earlier), memory_id=None))
    return SessionContent(sources, earlier, max((record.created_at for record in others), default=last))


def candidate_of(content: SessionContent, summary: SummaryDraft) -> Candidate:
    """``summary`` as a candidate: ``valid_from`` and ``valid_to`` say when it happened."""
    first, last = min(cited.at for cited in content.sources), max(one.at for one in content.sources)

    def within(moment: datetime | None, otherwise: datetime) -> datetime:
        return moment if moment and first <= moment <= last else otherwise

    return Candidate(
        content=summary.text,
        memory_type=MemoryType.SESSION_SUMMARY,
        topic=summary.title,
        entities=tuple(Entity(name, "person") for name in summary.participants),
        message_ids=_first(cited.message_id for cited in summary.cited),
        cites=_first(cited.memory_id for cited in summary.cited),
        origin=lowest_origin(content.sources),
        valid_from=within(summary.start, first),
        valid_to=within(summary.end, last),
    )


def _first(ids: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id_ for id_ in ids if id_))[:MAX_CITED]


MAX_SUMMARY: Final = 2_000
"""Characters of a summary; a longer one is refused. The model is asked for half of that."""
MAX_PARTICIPANTS: Final = 12
_DATE: Final = "ISO 8601, a day or an instant, if the conversation tells it better than the times of its messages"
_PEOPLE: Final = frozenset({"user", "assistant"})
WINDOW_TOKENS: Final = 8_000
MIN_WINDOW_TOKENS: Final = 1_000
MAX_PORTIONS: Final = 16
"""Of a session with more portions than these, the oldest are not summarized."""
MAX_CHARACTERS: Final = 800
MAX_SENTENCES: Final = 2_000
"""Of a longer session only the newest sentences are considered."""
MAX_SENTENCE: Final = 300
_END: Final = re.compile("(?<=[.!?])\\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_SAME: Final = 0.6
_ASSISTANTS_SHARE: Final = 0.5
_MIN_TERMS: Final = 2
SUMMARY_PROMPT: Final = PROMPTS["summary"]["prompt"]
"""What a good summary is; the rules of answering are appended."""


class SessionSummary(BaseModel):
    """The summary of a conversation."""

    model_config = ConfigDict(extra="forbid")
    title: str = Field(max_length=MAX_LABEL, description="A few words")
    summary: str = Field(max_length=MAX_SUMMARY // 2, description="A few sentences")
    participants: list[str] = Field(max_length=MAX_PARTICIPANTS, description="Names of the people who took part")
    happened_from: str | None = Field(default=None, description=_DATE)
    happened_to: str | None = Field(default=None, description=_DATE)
    sources: list[str] = Field(min_length=1, description="Ids of the sources that it follows from, such as s1")


def read_summary(lines: Sequence[Shown], now: datetime, zone: tzinfo, answer: Any) -> tuple[SummaryDraft, str]:
    """The summary in an answer, or why it is unusable. Only sources that were shown are cited. Never raises."""
    said = answer_of(answer)
    nothing = SummaryDraft(text="", cited=())
    if not said.entries:
        return nothing, "; ".join(said.problems) or "it holds no summary"
    entry = said.entries[0]
    try:
        text, cited = text_and_cited(entry, "summary", lines, MAX_SUMMARY)
    except InvalidMemory as error:
        return nothing, str(error)
    try:
        title = short_text(first_of(entry, ("title", "topic", "headline")), MAX_LABEL)
    except InvalidMemory:
        title = None
    given = (name[:MAX_LABEL] for name in islice(texts_of(entry.get("participants")), MAX_PARTICIPANTS))
    names = dict.fromkeys(" ".join(mended(name).split()) for name in given)
    evidence = "\n".join(shown.line for shown in lines).casefold()  # participants must be named in the sources
    draft = SummaryDraft(
        text=text,
        title=title,
        participants=[name for name in names if folded(name) in _PEOPLE or short(name).casefold() in evidence],
        cited=cited,
        start=start_of(first_of(entry, ("happenedfrom", "from", "start")), now, zone),
        end=end_of(first_of(entry, ("happenedto", "to", "end")), now, zone),
    )
    return draft, ""


class ModelSummarizer:
    """Summarizes with the first of ``models`` that gives a usable answer.

    A request shows about ``window_tokens`` of sources at most. A longer session is summarized in portions, and their
    summaries are then summarized together; a source is cut to ``window_tokens`` characters. ``prompt`` says what a good
    summary is, ``timeout`` (s) limits each call. Raises ConfigurationError without models, and if ``window_tokens`` is
    less than MIN_WINDOW_TOKENS.
    """

    def __init__(
        self,
        models: BaseChatModel | str | Sequence[BaseChatModel | str],
        *,
        prompt: str = SUMMARY_PROMPT,
        timeout: float | None = MODEL_TIMEOUT_S,
        window_tokens: int = WINDOW_TOKENS,
    ) -> None:
        if not (given := chat_models(models)):
            raise ConfigurationError("ModelSummarizer needs at least one chat model")
        if window_tokens < MIN_WINDOW_TOKENS:
            raise ConfigurationError(f"window_tokens must be at least {MIN_WINDOW_TOKENS}, not {window_tokens}")
        self._models = [structured(model, SessionSummary) for model in given]
        self.prompt = prompt
        self.timeout = timeout
        self.window_tokens = window_tokens

    async def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Extraction:
        """The summary of ``content``, which cites sources of it. Raises ModelError if no model gave one."""
        asking = Asking(self._models, self.timeout, PROMPTS["summary"]["repair"])
        named = enumerate(content.sources, 1)
        lines = [shown_source(f"s{at}", source, zone, self.window_tokens) for at, source in named]
        portions = _portions(lines, self.window_tokens)
        left_out = sum(map(len, portions[:-MAX_PORTIONS]))
        portions = portions[-MAX_PORTIONS:]
        while len(portions) > 1:
            parts: list[Shown] = []
            for number, portion in enumerate(portions, 1):
                part = await self._summary(asking, portion, now, zone)
                line = f'<part id="p{number}">{neutral_line(part.text)}</part>'
                parts.append(Shown(f"p{number}", line, part.cited))
            portions = _portions(parts, self.window_tokens)
        summary = await self._summary(asking, portions[0], now, zone)
        problems = [f"The oldest {left_out} sources were left out"] if left_out else []
        return asking.extraction([candidate_of(content, summary)], problems)

    async def _summary(self, asking: Asking, lines: Sequence[Shown], now: datetime, zone: tzinfo) -> SummaryDraft:
        instructions = f"{self.prompt}\n\n{PROMPTS['summary']['rules']}"
        request = request_for(lines, "sources", instructions, now, zone)
        return await asking.answered(request, partial(read_summary, lines, now, zone), "a summary")


def _portions(lines: Sequence[Shown], room: int) -> list[list[Shown]]:
    """``lines`` in order, in portions of at most ``room`` tokens, or of two lines, so that each round has fewer."""
    portions: list[list[Shown]] = []
    left = 0
    for line in lines:
        tokens = text_tokens(line.line)
        if not portions or (tokens > left and len(portions[-1]) > 1):
            portions.append([])
            left = room
        portions[-1].append(line)
        left -= tokens
    return portions


class ExtractiveSummarizer:
    """Picks the most central sentences of a session, word for word, at most ``max_characters`` in all.

    Needs no model, and can neither conclude nor rephrase. A sentence's score is the cosine of its tf-idf vector with
    the sum of all, the centroid of Radev et al. (Centroid-based summarization of multiple documents, 2004). Sentences
    that repeat a chosen one are left out.
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self.max_characters = max_characters

    async def summarize(self, content: SessionContent, now: datetime, zone: tzinfo) -> Extraction:
        """The summary; none if the session has no sentence."""
        del now, zone
        given = [(text.strip(), source) for source in content.sources for text in _END.split(mended(source.text))]
        short = [(text[:MAX_SENTENCE].rstrip(), source) for text, source in given[-MAX_SENTENCES:] if text]
        found = [(text, source, Counter(analyze(text))) for text, source in short]
        sentences = [one for one in found if len(one[2]) >= _MIN_TERMS] or found[:1]
        holding = Counter(term for *_, terms in sentences for term in terms)
        rarity = {term: math.log(1 + len(sentences) / count) for term, count in holding.items()}
        vectors = [{term: count * rarity[term] for term, count in terms.items()} for *_, terms in sentences]
        centroid: Counter[str] = Counter()
        for vector in vectors:
            centroid.update(vector)

        def score(at: int) -> float:
            # What the user says characterizes the session better than what the assistant answers.
            share = _ASSISTANTS_SHARE if sentences[at][1].role is Role.ASSISTANT else 1.0
            return share * _cosine(vectors[at], centroid)

        chosen: list[int] = []  # the best sentence is taken even if it is too long
        room = self.max_characters
        for at in sorted(range(len(sentences)), key=lambda at: (-score(at), at)):
            size = len(sentences[at][0])
            is_new = all(_cosine(vectors[at], vectors[other]) < _SAME for other in chosen)
            if not chosen or (is_new and size < room):
                chosen.append(at)
                room -= size + 1
        taken = [sentences[at][:2] for at in sorted(chosen)]
        if not taken:
            return Extraction(())
        draft = SummaryDraft(
            text=" ".join(text for text, _ in taken),
            cited=[source for _, source in taken],
            participants=tuple(dict.fromkeys(source.author for _, source in taken if source.author)),
        )
        return Extraction((candidate_of(content, draft),))


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    product = sum(weight * other[term] for term, weight in one.items() if term in other)
    size = math.hypot(*one.values()) * math.hypot(*other.values())
    return product / size if size else 0.0
