"""StoreEngine: a Backend with what every caller needs around it: workers, group commit, indexes and embeddings.

Its methods are plans (see `inference_core.drivers`). Texts are embedded before a write is handed over, never inside a
lock or a transaction. A text that could not be embedded is stored all the same and gets its vector later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final

from inference_core.drivers import Plan, Pool, Wait
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import DeadlineExceeded, EmbeddingError, EmbeddingMismatch, StoreUnavailable, WriteUnknown
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.index import ScopeIndex
from inference_core.retrieval.ranking import Hit, Query, query_of, rank
from inference_core.stores.backend import Backend, Key, Put, Row, Write
from inference_core.stores.backfill import Backfill
from inference_core.stores.indexes import DEFAULT_CACHE_BYTES, IndexCache, one_user_at_a_time
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
WORKERS: Final = 8
EMBEDDING_META: Final = "embedding"
_EMBED_TIMEOUT_S: Final = 2.0
_SPARE: Final = 4


class RecallMode(str, Enum):
    """By which evidence hits were ranked."""

    HYBRID = "hybrid"
    LEXICAL = "lexical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A ranked search: each group of scopes gives its own ``limit`` best rows, the statistics are those of all.

    ``kinds`` and ``accept`` are applied before the cut. ``embed_timeout`` bounds the wait for the query's vector.
    """

    groups: Sequence[Sequence[Namespace]]
    text: str
    limit: int
    kinds: frozenset[str] | None = None
    accept: Callable[[Row], bool] | None = None
    embed_timeout: float = _EMBED_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Found:
    """A row and its score; higher is better."""

    row: Row
    score: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The rows of each group, the best first; how they were ranked; and, if not by all evidence, why."""

    groups: list[list[Found]]
    mode: RecallMode
    reason: str | None = None


class StoreEngine:
    """The one way from operations to a database. Raises EmbeddingMismatch if ``embedder`` is not the store's."""

    def __init__(
        self,
        backend: Backend,
        embedder: Embedder | None = None,
        *,
        index_bytes: int = DEFAULT_CACHE_BYTES,
        max_batches: int | None = None,
    ) -> None:
        self.backend = backend
        self.embedder = embedder
        _check_vector_space(backend, embedder)
        self.pool = Pool(WORKERS, "memory-store")
        self._writer = GroupWriter(backend, max_batches) if max_batches else GroupWriter(backend)
        self._indexes = IndexCache(backend, embedder.fingerprint if embedder else "", index_bytes)
        self._backfill = Backfill(backend, self._writer, embedder) if embedder else None
        if embedder is None:
            _LOG.info("%s has no embedding model: recall is lexical", backend.name)
        else:
            embedder.warm()

    def write(self, batch: Sequence[Write]) -> Plan[list[int]]:
        """Plan: applies ``batch`` as a whole, durable when it returns; the versions after it.

        Raises VersionConflict, StoreUnavailable; WriteUnknown if the database did not confirm in time.
        """
        embedded = yield from self._embedded(batch)
        waiter = self._writer if self.backend.capabilities.single_writer else self.pool
        try:
            versions: list[int] = yield Wait(partial(self._submit, embedded), abandoned=waiter.abandon)
        except DeadlineExceeded as error:
            raise WriteUnknown("The store did not confirm the write in time; retry it under the same id") from error
        if self._backfill and any(map(_lacks_vector, embedded)):
            self._backfill.wake()
        return versions

    def get(self, keys: Sequence[Key]) -> Plan[list[Row | None]]:
        """Plan: the row of each key."""
        return self.pool.call(self.backend.get, keys)

    def newest(
        self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None, limit: int, offset: int = 0
    ) -> Plan[list[Row]]:
        """Plan: rows of exactly ``scopes``, the newest first."""
        return self.pool.call(self.backend.newest, scopes, kinds=kinds, limit=limit, offset=offset)

    def count(self, scopes: Sequence[Namespace]) -> Plan[int]:
        """Plan: how many rows exactly ``scopes`` hold."""
        return self.pool.call(self.backend.count, scopes)

    def namespaces(self, prefix: Namespace = ()) -> Plan[list[Namespace]]:
        """Plan: the namespaces that hold rows and start with the labels of ``prefix``."""
        return self.pool.call(self.backend.namespaces, prefix)

    def search(self, search: Search) -> Plan[SearchResult]:
        """Plan: the best rows for a text, by words and, if the model answers in time, by meaning."""
        vector, reason = yield from self._query_vector(search)
        query = query_of(search.text, vector)
        groups = yield from self.pool.call(self._ranked, search, query)
        return SearchResult(groups, RecallMode.LEXICAL if vector is None else RecallMode.HYBRID, reason)

    def close(self) -> None:
        """Finishes the writes that were accepted, then closes the database."""
        if self._backfill:
            self._backfill.close()
        self._writer.close()
        self.pool.close()
        if self.embedder:
            self.embedder.close()
        self.backend.close()

    def _submit(self, batch: Sequence[Write]) -> Future[list[int]]:
        if self.backend.capabilities.single_writer:
            return self._writer.submit(batch)
        return self.pool.submit(partial(_apply_alone, self.backend, batch))

    def _embedded(self, batch: Sequence[Write]) -> Plan[list[Write]]:
        texts = [write.document.text for write in batch if isinstance(write, Put) and write.document]
        if not texts or self.embedder is None:
            return list(batch)
        try:
            vectors = yield from self.embedder.documents(texts, _EMBED_TIMEOUT_S)
        except (EmbeddingError, StoreUnavailable):
            return list(batch)
        model = self.embedder.fingerprint
        made = iter(vectors)
        return [_with_vector(write, model, next(made)) if _lacks_vector(write) else write for write in batch]

    def _query_vector(self, search: Search) -> Plan[tuple[bytes | None, str | None]]:
        if self.embedder is None:
            return None, "no embedding model"
        try:
            vector = yield from self.embedder.query(search.text, search.embed_timeout)
        except (EmbeddingError, StoreUnavailable) as error:
            return None, str(error)
        return vector, None

    def _ranked(self, search: Search, query: Query) -> list[list[Found]]:
        results: list[list[Found]] = [[] for _ in search.groups]
        for scopes in one_user_at_a_time(dict.fromkeys(scope for group in search.groups for scope in group)):
            indexes, ranking = self._indexes.use(scopes, lambda found: (found, rank(found, query)))
            for at, group in enumerate(search.groups):
                owners = [owner for owner, scope in enumerate(scopes) if scope in group]
                results[at] += self._best(search, scopes, indexes, ranking.of(owners))
        return [sorted(found, key=_by_score)[: search.limit] for found in results]

    def _best(
        self, search: Search, scopes: Sequence[Namespace], indexes: Sequence[ScopeIndex], hits: Iterator[Hit]
    ) -> list[Found]:
        """The best rows that the search accepts, fetched in small portions until there are enough."""
        found: list[Found] = []
        wanted = (hit for hit in hits if search.kinds is None or indexes[hit.index].kinds[hit.slot] in search.kinds)
        while len(found) < search.limit and (portion := list(islice(wanted, search.limit - len(found) + _SPARE))):
            rows = self.backend.get([(scopes[hit.index], indexes[hit.index].keys[hit.slot]) for hit in portion])
            found += [
                Found(row, hit.score)
                for row, hit in zip(rows, portion, strict=True)
                if row is not None and (search.accept is None or search.accept(row))
            ]
        return found


def _by_score(found: Found) -> float:
    return -found.score


def _lacks_vector(write: Write) -> bool:
    return isinstance(write, Put) and write.document is not None and write.document.vector is None


def _with_vector(write: Write, model: str, vector: bytes) -> Write:
    if not isinstance(write, Put) or write.document is None:
        return write
    return replace(write, document=replace(write.document, model=model, vector=vector))


def _apply_alone(backend: Backend, batch: Sequence[Write]) -> list[int]:
    (outcome,) = backend.apply([batch])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _check_vector_space(backend: Backend, embedder: Embedder | None) -> None:
    if embedder is None:
        return
    known = backend.get_meta(EMBEDDING_META)
    if known is None:
        backend.set_meta(EMBEDDING_META, embedder.fingerprint)
    elif known != embedder.fingerprint:
        raise EmbeddingMismatch(
            f"The vectors of {backend.name} were made by {known!r}, not by {embedder.fingerprint!r}. Open it with the "
            f"first, or embed all texts anew: python -m inference_core reembed {backend.name} --embeddings NAME"
        )
