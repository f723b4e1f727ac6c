"""The terms and vectors that a store makes of texts before it writes them, and of questions before it searches."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

from inference_core.effects import WorkerPool
from inference_core.embeddings.embedder import (
    DocumentVectors,
    Embedder,
    Passage,
    embed_documents,
    embed_documents_now,
    embed_query,
    embed_query_now,
)
from inference_core.errors import EmbeddingError, EmbeddingMismatch, StoreError, StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.memory.redaction import Guard
from inference_core.retrieval.analysis import language_of
from inference_core.stores.backend import (
    EMBEDDING_META,
    Backend,
    Key,
    PageRequest,
    Put,
    SetVector,
    UnembeddedRow,
    Write,
    apart,
)
from inference_core.stores.indexing.search import QuestionVectors
from inference_core.stores.writer import GroupWriter
from inference_core.telemetry import OPERATION, step

# Vectors, made in the background, for texts that were stored without those of the store's embedding model.

_LOG = logging.getLogger(__name__)
PORTION: Final = 32
_FEW: Final = 3
_MOST_AT_ONCE: Final = 16
_MOST_CHARACTERS: Final = 8_000
"""Before it ranks, a search embeds at most so many texts, with so many characters together: about 0.1 s of work."""
_FEW_WRITTEN_S: Final = 0.1
_FEW_PAUSE_S: Final = 5.0
"""How many seconds a search waits until these vectors are stored; for how many none tries again after a failure."""
_PAUSE_S: Final = 0.5


class Backfill:
    """Embeds pending texts, portion by portion. ``wake`` takes the seconds until the next call of `fill_portion`."""

    def __init__(
        self,
        backend: Backend,
        writer: GroupWriter,
        embedder: Embedder,
        *,
        with_tokens: bool,
        wake: Callable[[float], None],
    ) -> None:
        self._backend = backend
        self._writer = writer
        self._embedder = embedder
        self._with_tokens = with_tokens
        self._wake = wake
        self._running: Future[bool] | None = None
        self._asked_meanwhile = False
        self._refused: set[tuple[Namespace, str, int]] = set()
        self._few_again_at = 0.0
        self._is_owed = False
        """Whether this process has stored texts without vectors, and may not have embedded all of them since."""

    def owe(self) -> None:
        """Notes that a text was stored without its vector, and has it embedded soon."""
        self._is_owed = True
        self._wake(0.0)

    def fill_few(self, count: int, keys_of: Callable[[], Sequence[Key]]) -> bool:
        """Embeds the ``count`` texts of ``keys_of`` in the caller's thread, if they are few. Returns whether all are.

        A model on a server is not asked, as its answer may take long. After a failure, searches do not try again for
        `_FEW_PAUSE_S` seconds. The chore goes on trying, and finds out which text the model refuses.
        """
        if not 0 < count <= _MOST_AT_ONCE or not (self._embedder.runs_in_process and self._embedder.is_ready):
            return False
        if time.monotonic() < self._few_again_at:
            return False
        self._few_again_at = time.monotonic() + _FEW_PAUSE_S
        with suppress(EmbeddingError, StoreError, TimeoutError):
            rows = self._backend.pending(self._embedder.fingerprint, count, keys_of())
            if sum(len(row.text) for row in rows) <= _MOST_CHARACTERS:
                if rows:  # else the chore has embedded them since
                    self._fill(rows, _FEW_WRITTEN_S)
                self._few_again_at = 0.0
                return True
        return False

    def fill_portion(self) -> bool | None:
        """Chore: has the model's own thread embed a portion of what is pending; `_filled` then wakes it again.

        Returns whether to go on at once, None while the outcome is open. Raises what the portion before raised:
        EmbeddingError if the model fails or refuses what is left, StoreError.
        """
        # Never in the thread of the chores: a model that hangs would hold up all of them.
        running = self._running
        self._asked_meanwhile = True  # before `done()` is called: a portion that still runs reads this at its end
        if running is not None and not running.done():
            return None
        self._running = None
        if running is not None:
            filled = running.result()
            if not filled and self._refused:
                count = len(self._refused)
                self._refused.clear()
                raise EmbeddingError(f"The embedding model refuses {count} texts; they are tried again later")
            if filled:
                return True
            # That portion found nothing, so it did not wake the chore: somebody who has stored a text since did.
        if not self._embedder.is_loaded:
            return None  # the chore is woken once it is loaded
        if not self._embedder.is_ready:
            self._wake(_PAUSE_S)
            return None
        self._asked_meanwhile = False
        self._running = self._embedder.in_background(self._fill_some)
        self._running.add_done_callback(self._filled)
        return None

    def close(self, timeout: float) -> None:
        """Embeds texts that this process stored without vectors, and ends the current portion, in ``timeout`` seconds.

        Call it when nothing calls `fill_portion` any more. Other texts get vectors when the store is opened again.
        """
        deadline = time.monotonic() + timeout
        if self._is_owed and self._embedder.wait_ready(timeout):
            with suppress(EmbeddingError, StoreError):
                while self._is_owed and (left := deadline - time.monotonic()) > 0:
                    self._running = self._running or self._embedder.in_background(self._fill_some)
                    wait([self._running], left)
                    if not self._running.done():
                        break
                    self._is_owed, self._running = self._running.result(), None
        if self._is_owed:
            _LOG.info("Some texts have no vectors yet; they get them when the store is opened again")
        if self._running is not None and not self._running.cancel():
            wait([self._running], max(0.0, deadline - time.monotonic()))

    def _filled(self, done: Future[bool]) -> None:
        """Wakes the chore if a portion leaves something to do, or if a text was stored while it looked for some."""
        if done.cancelled():  # the store is being closed
            return
        if done.exception() or done.result() or self._refused or self._asked_meanwhile:
            self._wake(0.0)

    def _fill_some(self) -> bool:
        """Embeds a portion of what is pending; texts that the model refuses wait until all others are done.

        Returns whether there was anything. A store that was given another model meanwhile is left to that model.
        """
        if self._backend.get_meta(EMBEDDING_META) not in (None, self._embedder.fingerprint):
            return False
        rows = self._backend.pending(self._embedder.fingerprint, PORTION + len(self._refused))
        portion = [row for row in rows if (row.namespace, row.key, row.version) not in self._refused]
        try:
            if portion:
                self._fill(portion)
        except EmbeddingError:
            # One at a time, so that a text that cannot be embedded holds up no others. In random order, as the model
            # counts as away when it refuses the first few: they must not always be the same.
            refused: list[UnembeddedRow] = []
            is_answering = False
            for row in random.sample(portion, len(portion)):
                try:
                    self._fill([row])
                    is_answering = True
                except EmbeddingError:
                    refused.append(row)
                    if not is_answering and len(refused) == _FEW:
                        break
            if not is_answering:
                raise
            self._refused.update((row.namespace, row.key, row.version) for row in refused)
        return bool(portion)

    def _fill(self, portion: Sequence[UnembeddedRow], timeout: float | None = None) -> None:
        def write(batch: Sequence[Write]) -> None:
            self._writer.submit(batch).result(timeout)

        fill(self._backend, write, self._embedder, portion, with_tokens=self._with_tokens)


def fill(
    backend: Backend,
    write: Callable[[Sequence[Write]], None],
    embedder: Embedder,
    portion: Sequence[UnembeddedRow],
    *,
    with_tokens: bool,
) -> None:
    """Embeds ``portion`` and stores the vectors by ``write``. Raises EmbeddingError, StoreError."""
    texts = [(row.namespace, row.text) for row in portion]
    made = embed_texts_now(backend, embedder, texts, with_tokens=with_tokens)
    writes = [
        SetVector(
            namespace=row.namespace,
            key=row.key,
            version=row.version,
            model=embedder.fingerprint,
            vector=vectors.vector,
            tokens=vectors.tokens,
        )
        for row, vectors in zip(portion, made, strict=True)
    ]
    for batch in apart(backend, writes):
        write(batch)


_NEWEST: Final = 20
ScopedText = tuple[Namespace, str]
"""A text, and where it is stored."""


def embed_texts_now(
    backend: Backend, embedder: Embedder, texts: Sequence[ScopedText], *, with_tokens: bool
) -> list[DocumentVectors]:
    """The vectors of ``texts``, made in the caller's thread. Raises EmbeddingError, StoreError."""
    passages = _spoken(embedder, texts)
    if embedder.has_languages:
        passages = _with_language_of_scope(backend, texts, passages)
    return embed_documents_now(embedder, passages, with_tokens=with_tokens)


def _spoken(embedder: Embedder, texts: Sequence[ScopedText]) -> list[Passage]:
    """``texts``, each with its language, if the model asks for that."""
    return [Passage(text, language_of(text) if embedder.has_languages else "") for _, text in texts]


def _with_language_of_scope(backend: Backend, texts: Sequence[ScopedText], spoken: Sequence[Passage]) -> list[Passage]:
    """``spoken``; those without a sign of their language ("Rex: 3 km") get that of most texts in their scope.

    Raises StoreError.
    """
    found = list(spoken)
    for namespace in {namespace for (namespace, _), passage in zip(texts, spoken, strict=True) if not passage.language}:
        own = [at for at, (other, _) in enumerate(texts) if other == namespace]
        rows = backend.page(PageRequest([namespace], limit=_NEWEST))
        known = [language_of(str(row.value.get("content", ""))) for row in rows] + [spoken[at].language for at in own]
        most = Counter(filter(None, known)).most_common(1)
        for at in own:
            if not spoken[at].language:
                found[at] = spoken[at]._replace(language=most[0][0] if most else "")
    return found


# The vector space of a store: the model that made its vectors, and how many dimensions they have.

DIMENSIONS_META: Final = "embedding_dimensions"
"""The setting of a store that says how many dimensions its vectors have; missing until the first one was stored."""
_SCOPES_LOOKED_AT: Final = 20


class VectorSpace:
    """Holds ``embedder`` to the vectors of ``backend``. Raises EmbeddingMismatch if they are another model's.

    An application's own class is known by its name alone, so a second model behind that name shows only in its vectors:
    one with other dimensions than the store's is refused when it answers for the first time.
    """

    def __init__(self, backend: Backend, embedder: Embedder) -> None:
        self._backend = backend
        self._embedder = embedder
        is_new = backend.get_meta(EMBEDDING_META) is None
        if is_new and backend.capabilities.writable:  # read again: another process may open it in this moment
            backend.set_meta(EMBEDDING_META, embedder.fingerprint, is_first=True)
        known = backend.get_meta(EMBEDDING_META)
        if known is not None and known != embedder.fingerprint:
            raise EmbeddingMismatch(
                f"The vectors of {backend.name} were made by {known!r}, not by {embedder.fingerprint!r}. Open it with "
                f"the first, or embed all texts anew: python -m inference_core reembed {backend.name} --embeddings NAME"
            )
        dimensions = None if is_new else self._recorded() or self._of_a_stored_vector()
        if dimensions:
            self._expect(dimensions)
        self.is_recorded = dimensions is not None and self._recorded() is not None

    def record(self) -> None:
        """Records the dimensions of the model's first vectors, unless another process was first.

        Raises EmbeddingMismatch if that one's model gives others, StoreError.
        """
        if self._embedder.dimensions:
            self._backend.set_meta(DIMENSIONS_META, str(self._embedder.dimensions), is_first=True)
        known = self._recorded()
        if known:
            self._expect(known)
        self.is_recorded = True

    def _expect(self, dimensions: int) -> None:
        name = self._embedder.fingerprint
        self._embedder.expect(
            dimensions,
            f"The vectors of {self._backend.name} have {dimensions} dimensions, and {name!r} gives others now. Open it "
            "with the model that made them, or name the new one, Embedder(model, 'my-model-2'), and embed all texts "
            "anew with inference_core.transfer.copying.reembed(url, embedder)",
        )

    def _recorded(self) -> int | None:
        found = self._backend.get_meta(DIMENSIONS_META)
        return int(found) if found and found.isdecimal() else None

    def _of_a_stored_vector(self) -> int | None:
        """The dimensions of a stored vector, for a store that was made before dimensions were recorded."""
        from inference_core.retrieval.vectors import is_packed, unpack_vectors  # noqa: PLC0415 - numpy is slow to import

        if not self._backend.capabilities.change_feed:
            return None
        for namespace in islice(self._backend.namespaces(), _SCOPES_LOOKED_AT):
            for change in islice(self._backend.changes(namespace, 0), _SCOPES_LOOKED_AT):
                document = change.document
                if document is None or document.model != self._embedder.fingerprint:
                    continue
                if document.vector and is_packed(document.vector):
                    return unpack_vectors(document.vector).shape[1]
        return None


EMBED_TIMEOUT_S: Final = 1.0
"""Seconds to wait for vectors: half of what a save by a tool may take, so that a slow model leaves time to store the
text without them."""


_EMBEDDINGS: Final = "embeddings"
_NO_MODEL: Final = "no embedding model"


class Texts:
    """Analyses and embeds for the store of ``backend``, outside of every lock and transaction.

    If the model is slow, fails or is away, a text is stored without vectors and gets them later. ``with_tokens``: also
    token vectors, for late interaction. Raises EmbeddingMismatch if ``embedder`` is not the store's.
    """

    def __init__(self, backend: Backend, embedder: Embedder | None, pool: WorkerPool, *, with_tokens: bool) -> None:
        self._backend = backend
        self._embedder = embedder
        self._space = VectorSpace(backend, embedder) if embedder else None
        self._pool = pool
        self._with_tokens = with_tokens

    async def prepared(self, batch: Sequence[Write], *, embeds: bool) -> Sequence[Write]:
        """``batch`` with the terms of its texts and, if it ``embeds``, their vectors."""

        def analysed(writes: Sequence[Write]) -> list[Write]:
            return [
                replace(put, document=put.document.analysed()) if isinstance(put, Put) and put.document else put
                for put in writes
            ]

        if any(isinstance(write, Put) and write.document and not write.document.is_analysed for write in batch):
            batch = await self._pool.call(analysed, batch)
        texts = [(write.namespace, write.document.text) for write in batch if isinstance(write, Put) and write.document]
        if not texts or self._embedder is None or not embeds:
            return batch
        passages = _spoken(self._embedder, texts)
        if self._embedder.has_languages and not all(passage.language for passage in passages):
            passages = await self._pool.call(_with_language_of_scope, self._backend, texts, passages)
        try:
            with step(_EMBEDDINGS, {OPERATION: _EMBEDDINGS}):
                made = await embed_documents(self._embedder, passages, EMBED_TIMEOUT_S, with_tokens=self._with_tokens)
        except (EmbeddingError, StoreUnavailable):
            return batch
        if self._space and not self._space.is_recorded:
            with suppress(StoreError):  # if the database is away, the write will say so
                await self._pool.call(self._space.record)
        model, vectors = self._embedder.fingerprint, iter(made)
        embedded: list[Write] = []
        for write in batch:
            if isinstance(write, Put) and write.document:
                vector, tokens = next(vectors)
                document = write.document._replace(model=model, vector=vector, tokens=tokens)
                embedded.append(replace(write, document=document))
            else:
                embedded.append(write)
        return embedded

    async def question(self, text: str, wait_seconds: float) -> QuestionVectors:
        """The vectors of a question, which the model has ``wait_seconds`` seconds to make."""
        if self._embedder is None:
            return QuestionVectors(problem=_NO_MODEL)
        try:
            with step(_EMBEDDINGS, {OPERATION: _EMBEDDINGS}):
                return QuestionVectors(
                    await embed_query(self._embedder, text, wait_seconds, frozenset(), with_tokens=self._with_tokens)
                )
        except (EmbeddingError, StoreUnavailable) as error:
            return QuestionVectors(problem=str(error))

    def question_now(self, text: str, spaces: frozenset[int]) -> QuestionVectors:
        """The vectors of a question in ``spaces``, made in the caller's thread."""
        if self._embedder is None or not text.strip():
            return QuestionVectors(problem="no question" if self._embedder else _NO_MODEL)
        try:
            with step(_EMBEDDINGS, {OPERATION: _EMBEDDINGS}):
                return QuestionVectors(embed_query_now(self._embedder, text, spaces, with_tokens=self._with_tokens))
        except (EmbeddingError, StoreUnavailable) as error:
            return QuestionVectors(problem=str(error))


@dataclass(slots=True)
class LateQuestion:
    """A question whose vectors are made in the thread of its first search, where the texts' spaces are known.

    For a model in this process, which sees ``text`` without the secrets that ``guard`` finds in it.
    """

    text: str
    texts: Texts
    guard: Guard
    made: dict[frozenset[int], QuestionVectors] = field(default_factory=dict[frozenset[int], QuestionVectors])

    def vectors_in(self, spaces: frozenset[int]) -> QuestionVectors:
        """The vectors in those vector ``spaces`` that the searched texts have."""
        if spaces not in self.made:
            self.made[spaces] = self.texts.question_now(self.guard.text(self.text), spaces)
        return self.made[spaces]


class Visit(NamedTuple):
    """What a worker needs to take snapshots and search them for ``question``.

    It waits ``wait_seconds`` seconds for an index, and ends by ``until`` (`time.monotonic`). Before the search,
    ``backfill`` embeds a few texts that have no vectors.
    """

    question: QuestionVectors | LateQuestion
    wait_seconds: float
    until: float
    backfill: Backfill | None
