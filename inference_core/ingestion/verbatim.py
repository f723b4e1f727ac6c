"""Stores messages word for word as memories, or hands them to a worker; each only once, however often a run stops.

A batch of memories is written atomically with a mark for each message. The marks stay when memories are edited, moved
or deleted, so that another run neither reverts nor restores them; purging the user removes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from time import perf_counter
from typing import Any, Final

from inference_core.effects import run
from inference_core.errors import EmbeddingError, InferenceCoreError, InvalidMemory
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import canonical_text, digest_of, optional_text
from inference_core.memory.trust import Decision, MemorySource
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.outbox.messages import (
    EMPTY,
    NO_DATE,
    OTHER_PARTS,
    ConversationMessage,
    Transcript,
    mark,
    marks_of,
    mended,
    session_label,
    split_text,
    unmarked,
)
from inference_core.outbox.outbox import Outbox, Partition, check_outbox
from inference_core.services.operations.admission import admitted
from inference_core.services.operations.scope import MemoryScope, UserId, put_of, retried
from inference_core.stores.backend import Put, Write
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing.embedding import embed_texts_now

NOT_OFFERED: Final = "rejected by the user, or too much waits"
_MESSAGES_AT_ONCE: Final = 32
_HANDED_OVER_AT_ONCE: Final = 100
_CHARACTERS_AT_ONCE: Final = 4_000
_MAX_FAILURES: Final = 3
_NO_LIMIT: Final = 1 << 40
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be written: the key of its mark, and its memories."""

    key: str
    session: str
    records: Sequence[MemoryRecord]


class Drafts:
    """Makes drafts of one user's messages; ``metadata`` is added to each memory.

    Creation times increase, since they order the memories of a session.
    """

    def __init__(self, scope: MemoryScope, user_id: UserId, metadata: Mapping[str, Any] | None = None) -> None:
        self._scope = scope
        self._metadata = dict(metadata or {})
        self._namespace = scope.namespaces.namespace_for(user_id, MemoryCategory.EPISODIC)
        self._marks = marks_of(user_id)
        self._last: datetime | None = None
        self.offered: dict[str, Decision] = {}
        """What became of the memories that may not be stored at once, by id."""

    def of(self, message: ConversationMessage) -> Draft | None:
        """The draft of ``message``; None if it has no text.

        The author's name precedes the text unless it takes half of the content limit; a text that is too long is split.
        """
        try:
            text = self._scope.engine.guard.text(canonical_text(mended(message.text), max_bytes=_NO_LIMIT))
        except InvalidMemory:
            return None
        name = message.position if message.id is None else mended(message.id)
        key = digest_of([*self._namespace, message.session_id and mended(message.session_id), name, text])
        limit = self._scope.max_content_bytes
        author = optional_text(self._scope.engine.guard.text(mended(message.author or "")), what="author")
        head = f"{author}: " if author and 2 * len(author.encode()) < limit else ""
        contents = [head + part for part in split_text(text, limit - len(head.encode()))]
        if len(contents) == 1:
            records = [self._record(message, key, contents[0])]
        else:
            records = [
                self._record(message, f"{key}-{part}", content, part=part, parts=len(contents))
                for part, content in enumerate(contents, 1)
            ]
        return Draft(key, message.session_id or "", records)

    async def write(
        self, drafts: Sequence[Draft], embed: Callable[[list[Put]], list[Put]] | None = None
    ) -> tuple[int, list[Put]]:
        """Writes those of ``drafts`` without a mark, each once, with marks; returns how many, and their memories.

        ``embed`` adds vectors; without it they are added in the background. Raises VersionConflict if another writer
        was faster, StoreError.
        """
        known = {draft.key: draft for draft in drafts}
        fresh = await unmarked(self._scope.engine, self._marks, known)
        keys, records, waiting = await self.stored_or_offered([known[key] for key in fresh])
        puts = await self._scope.engine.pool.call(lambda: list(map(put_of, records)))
        if keys:
            puts = embed(puts) if embed else puts
            marks = [mark(self._marks, key, self._scope.clock) for key in keys]
            await self._scope.write([*puts, *waiting, *marks], "ingest", embeds=False)
        return len(fresh), puts

    async def stored_or_offered(self, drafts: Sequence[Draft]) -> tuple[list[str], list[MemoryRecord], list[Write]]:
        """The keys of ``drafts`` that can be marked, the memories to store, and the writes that let others wait.

        If the user has rejected one, or too much waits, its message gets no mark, so that it can be offered again.
        Raises StoreError.
        """
        found = await admitted(self._scope, [record for draft in drafts for record in draft.records])
        self.offered |= found.decisions
        refused = {key for key, decision in self.offered.items() if decision is Decision.NO}
        keys = [draft.key for draft in drafts if refused.isdisjoint(record.id for record in draft.records)]
        return keys, found.stored, list(chain.from_iterable(found.waiting.values()))

    def _record(self, message: ConversationMessage, memory_id: str, content: str, **extra: int) -> MemoryRecord:
        now = self._scope.clock.now()
        self._last = now = now if self._last is None else max(now, self._last + _TICK)
        source = MemorySource(origin=message.origin, message_ids=() if message.id is None else (mended(message.id),))
        return MemoryRecord(
            id=memory_id,
            content=canonical_text(content, max_bytes=self._scope.max_content_bytes),
            memory_type=MemoryType.INTERACTION,
            category=MemoryCategory.EPISODIC,
            namespace=self._namespace,
            created_at=now,
            updated_at=now,
            session_id=session_label(message.session_id),
            agent_name=self._scope.namespaces.agent_name,
            extra_metadata={**self._metadata, **extra},
            source=source,
            trust=source.trust,
            valid_from=message.at,
        )


@dataclass(slots=True)
class IngestReport:
    """What became of the messages so far. ``written`` counts memories; a long message makes several.

    ``already_there`` are messages of an earlier run, even if their memories were deleted since; ``waiting`` are
    memories, of categories to confirm, that wait for the user. ``without_vector`` are memories for which the embedding
    model failed; they get their vectors in the background once it works.
    """

    messages: int = 0
    written: int = 0
    already_there: int = 0
    waiting: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])
    sessions: set[str] = field(default_factory=set[str])
    without_vector: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """How many messages were read, including the skipped ones."""
        no_messages = sum(self.skipped[reason] for reason in (OTHER_PARTS, NO_DATE, NOT_OFFERED))
        return self.messages + self.skipped.total() - no_messages


def ingest(scope: MemoryScope, user_id: UserId, transcript: Transcript) -> Iterator[IngestReport]:
    """Writes the messages of ``transcript``; yields the same report after each batch, which is then durable.

    A memory is an episodic interaction of the message's session, dated when it was said; a message beyond the content
    limit becomes several. A caller that stops early keeps what was written, and the next run continues from there. If a
    message cannot be read, what came before it is written first. Raises InvalidInput, StoreError; UserErased if the
    user is erased meanwhile.
    """
    started = perf_counter()
    report = IngestReport(skipped=transcript.skipped)
    drafts = Drafts(replace(scope, since=run(scope.engine.all_fences())), user_id)
    embedder = _Embedder(scope.engine)
    for batch in _batches(transcript, drafts, report):
        fresh, puts = run(retried(partial(drafts.write, batch, embedder.embedded)))
        report.messages += len(batch)
        report.already_there += len(batch) - fresh
        report.written += len(puts)
        report.waiting = sum(decision is Decision.PENDING for decision in drafts.offered.values())
        if refused := sum(decision is Decision.NO for decision in drafts.offered.values()):
            report.skipped[NOT_OFFERED] = refused
        if scope.engine.embedder:
            report.without_vector += sum(put.document is not None and put.document.vector is None for put in puts)
        report.sessions.update(draft.session for draft in batch)
        report.seconds = perf_counter() - started
        yield report
    report.seconds = perf_counter() - started
    yield report


def hand_over(scope: MemoryScope, user_id: UserId, transcript: Transcript) -> Iterator[IngestReport]:
    """Puts the messages of ``transcript`` into the outbox, each once; a worker makes memories of them.

    Yields the same report after each batch, whose ``written`` counts messages. Raises InvalidInput, StoreError.
    """
    check_outbox(scope.engine, "Use a store that open_store made")
    started = perf_counter()
    report = IngestReport(skipped=transcript.skipped)
    partition = Partition.of(user_id, scope.namespaces)
    outbox, messages = Outbox(scope.engine, scope.clock), iter(transcript.messages)
    since = run(scope.engine.all_fences())
    while batch := list(islice(messages, _HANDED_OVER_AT_ONCE)):
        fresh = run(outbox.put(partition, batch, str(scope.zone), since=since))
        report.messages += len(batch)
        report.written += fresh
        report.already_there += len(batch) - fresh
        report.sessions.update(message.session_id or "" for message in batch)
        report.seconds = perf_counter() - started
        yield report
    yield report


class _Embedder:
    """Embeds memories before they are written, in the caller's thread.

    The engine gives up on the vectors of a write after a second: right for a reply, wrong for thousands of texts in a
    row.
    """

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine
        self._failures = 0

    def embedded(self, puts: list[Put]) -> list[Put]:
        """``puts`` with their vectors; without, if the model fails. After three failures in a row it stops asking."""
        embedder = self._engine.embedder
        if embedder is None or self._failures >= _MAX_FAILURES:
            return puts
        documents = [put.document for put in puts if put.document]
        try:
            texts = [(put.namespace, put.document.text) for put in puts if put.document]
            made = embed_texts_now(self._engine.backend, embedder, texts, with_tokens=self._engine.late_interaction)
        except EmbeddingError:
            self._failures += 1
            return puts
        self._failures = 0
        return [
            replace(put, document=document._replace(model=embedder.fingerprint, vector=vector, tokens=tokens))
            for put, document, (vector, tokens) in zip(puts, documents, made, strict=True)
        ]


def _batches(transcript: Transcript, drafts: Drafts, report: IngestReport) -> Iterator[list[Draft]]:
    """The messages' drafts in batches. If a message cannot be read, yields those before it, then raises the error."""
    batch: list[Draft] = []
    size = 0
    try:
        for message in transcript.messages:
            draft = drafts.of(message)
            if draft is None:
                report.skipped[EMPTY] += 1
                continue
            batch.append(draft)
            size += len(message.text)
            if len(batch) == _MESSAGES_AT_ONCE or size >= _CHARACTERS_AT_ONCE:
                yield batch
                batch, size = [], 0
    except InferenceCoreError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
