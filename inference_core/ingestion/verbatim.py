"""Messages become memories word for word, each once, however often their ingestion is interrupted.

A batch of memories is written atomically with a mark for each message. The marks stay when memories are edited, moved
or deleted, so that another run neither reverts nor restores them; purging the user removes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Final

from inference_core.drivers import Plan, run
from inference_core.embeddings.documents import embed_documents_now
from inference_core.errors import EmbeddingError, InferenceCoreError
from inference_core.ingestion.drafts import Draft, Drafts
from inference_core.ingestion.messages import EMPTY, OTHER_PARTS, Transcript
from inference_core.services.operations.scope import MemoryScope, UserId
from inference_core.services.operations.update import retried
from inference_core.stores.backend import Put
from inference_core.stores.engine import StoreEngine

_MESSAGES_AT_ONCE: Final = 32
_CHARACTERS_AT_ONCE: Final = 4_000
_PATIENCE: Final = 3


@dataclass(slots=True)
class IngestReport:
    """What became of the messages so far. ``written`` counts memories; a long message makes several.

    ``already_there`` are messages of an earlier run, even if their memories were deleted since. ``without_vector`` are
    memories for which the embedding model failed; they get their vectors in the background once it works.
    """

    messages: int = 0
    written: int = 0
    already_there: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])
    sessions: set[str] = field(default_factory=set[str])
    without_vector: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """How many messages were read, including the skipped ones."""
        return self.messages + self.skipped.total() - self.skipped[OTHER_PARTS]


def ingest(scope: MemoryScope, user_id: UserId, transcript: Transcript) -> Iterator[IngestReport]:
    """Writes the messages of ``transcript``; yields the same report after each batch, which is durable then.

    A memory is an episodic interaction of the message's session, dated when it was said; text beyond the content limit
    goes into several. Whoever stops early keeps what was written, and the next run goes on behind it. If a message
    cannot be read, what came before it is written first. Raises InvalidInput, StoreError.
    """
    started = perf_counter()
    report = IngestReport(skipped=transcript.skipped)
    drafts = Drafts(scope, user_id)
    embedding = _Embedding(scope.engine)

    def write(batch: Sequence[Draft]) -> Plan[tuple[int, list[Put]]]:
        fresh = yield from drafts.fresh(batch)
        if not fresh:
            return 0, []
        puts = embedding.embedded([put for draft in fresh for put in draft.puts])
        yield from scope.engine.write([*puts, *drafts.marks_of(fresh)], embeds=False)
        return len(fresh), puts

    for batch in _batches(transcript, drafts, report):
        fresh, puts = run(retried(partial(write, batch)))
        report.messages += len(batch)
        report.already_there += len(batch) - fresh
        report.written += len(puts)
        if scope.engine.embedder:
            report.without_vector += sum(put.document is not None and put.document.vector is None for put in puts)
        report.sessions.update(draft.session for draft in batch)
        report.seconds = perf_counter() - started
        yield report
    report.seconds = perf_counter() - started
    yield report


class _Embedding:
    """Embeds memories before they are written, in the caller's thread.

    The engine gives up on the vectors of a write after a second, which is right for a reply and wrong for thousands of
    texts in a row.
    """

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine
        self._failures = 0

    def embedded(self, puts: list[Put]) -> list[Put]:
        """``puts`` with their vectors; without, if the model fails. After three failures in a row it is not asked."""
        embedder = self._engine.embedder
        if embedder is None or self._failures >= _PATIENCE:
            return puts
        documents = [put.document for put in puts if put.document]
        try:
            made = embed_documents_now(
                embedder, [document.text for document in documents], with_tokens=self._engine.late_interaction
            )
        except EmbeddingError:
            self._failures += 1
            return puts
        self._failures = 0
        return [
            replace(put, document=document._replace(model=embedder.fingerprint, vector=vector, tokens=tokens))
            for put, document, (vector, tokens) in zip(puts, documents, made, strict=True)
        ]


def _batches(transcript: Transcript, drafts: Drafts, report: IngestReport) -> Iterator[list[Draft]]:
    """The messages' drafts in batches. If a message cannot be read, those before it come first, then the error."""
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
