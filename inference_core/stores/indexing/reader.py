"""StoreReader: rows, pages, snapshots and searches of a store, read on workers and behind a breaker.

Its methods are operations (see `inference_core.effects`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from langchain_core.documents import BaseDocumentCompressor

from inference_core.effects import Operation, WorkerPool
from inference_core.embeddings.embedder import Embedder
from inference_core.memory.namespaces import Namespace
from inference_core.memory.redaction import Guard
from inference_core.stores.backend import CONTENT_KEY_META, Backend, Cursor, Key, PageRequest, Row, Tally
from inference_core.stores.indexing.embedding import EMBED_TIMEOUT_S, Backfill, LateQuestion, Texts, Visit
from inference_core.stores.indexing.search import QuestionVectors, Reranker, Search, SearchResult, as_reranker
from inference_core.stores.maintenance import Maintenance
from inference_core.stores.writer import Breaker

if TYPE_CHECKING:
    from inference_core.stores.indexing.indexes import Snapshot

P = ParamSpec("P")
T = TypeVar("T")
INDEXES: Final = "indexes"
VECTORS: Final = "pending vectors"
"""The chores that bring indexes up to date, and embed what has no vector yet."""
_SMALLEST_PAGE: Final = 50
_FIRST_PAGE: Final = 500
_LARGEST_PAGE: Final = 2_000
_REDACTED_AT_ONCE: Final = 20_000
"""Characters. Searching more for secrets takes milliseconds, too long for an event loop's thread."""
_CONTENT_KEY_LOCK: Final = threading.Lock()
"""Two threads that each made a key would derive different names."""


def content_key_of(backend: Backend) -> bytes:
    """The store's own key for names that are derived from contents; made on first use."""
    with _CONTENT_KEY_LOCK:
        if not backend.get_meta(CONTENT_KEY_META):
            backend.set_meta(CONTENT_KEY_META, token_hex(32), is_first=True)
        return bytes.fromhex(backend.get_meta(CONTENT_KEY_META) or "")


class StoreReader:
    """Reads a store. ``index_bytes`` bounds the indexes of all users together.

    ``late_interaction`` compares token vectors, if the model gives them. ``reranker`` has the last word on the order of
    the best; if it fails, the order stays. ``guard`` takes secrets out of questions before a model sees them.
    """

    def __init__(
        self,
        backend: Backend,
        embedder: Embedder | None,
        pool: WorkerPool,
        maintenance: Maintenance,
        guard: Guard,
        *,
        index_bytes: int,
        late_interaction: bool,
        reranker: Reranker | BaseDocumentCompressor | None,
    ) -> None:
        self.backend, self.embedder = backend, embedder
        self.pool, self.maintenance = pool, maintenance
        self.guard = guard
        self._texts = Texts(backend, embedder, pool, with_tokens=late_interaction)
        self._reading = Breaker(f"Reading {backend.name}")
        self._content_key: bytes | None = None
        self.backfill: Backfill | None = None
        """Embeds what was stored without vectors; None for a store that is not writable or has no model."""
        self._first_recall: float | None = None
        # This imports numpy, which is slow, so the package is imported without it. It is imported here, before the
        # model loads in a thread of its own: the first recall has only 0.3 s.
        from inference_core.stores.indexing.indexes import IndexCache, Snapshots  # noqa: PLC0415

        model = embedder.fingerprint if embedder else ""
        self._indexes = IndexCache(backend, model, index_bytes, partial(maintenance.wake, INDEXES))
        own = None if reranker is None else as_reranker(reranker)
        self._snapshots = Snapshots(backend, self._indexes, embedder, own, self._reading)
        maintenance.add(INDEXES, self._indexes.follow)
        maintenance.wake(INDEXES)

    @property
    def index_bytes(self) -> int:
        """Bytes of the indexes and rows that it holds in memory, about."""
        return self._indexes.nbytes

    def get(self, keys: Sequence[Key]) -> Operation[list[Row | None]]:
        """The row of each key."""
        return self._read(self.backend.get, keys)

    def page(
        self,
        namespaces: Sequence[Namespace],
        *,
        kinds: frozenset[str] | None = None,
        limit: int,
        offset: int = 0,
    ) -> Operation[list[Row]]:
        """Rows of exactly ``namespaces``, the newest first; `scan` goes on behind a cursor."""
        return self._read(self.backend.page, PageRequest(namespaces, kinds=kinds, limit=limit, offset=offset))

    async def scan(
        self,
        namespaces: Sequence[Namespace],
        *,
        kinds: frozenset[str] | None = None,
        accepts: Callable[[Row], bool] = lambda _: True,
        limit: int | None = None,
        after: Cursor | None = None,
    ) -> list[Row]:
        """The first ``limit`` rows, or all, behind ``after`` for which ``accepts`` is true, the newest first.

        They are read by pages, each behind the last row of the one before: what is not written meanwhile is found once.
        ``accepts`` is called on the workers, as judging many rows would hold up a caller's event loop.
        """

        def accepted(size: int, after: Cursor | None) -> tuple[dict[Key, Row], Cursor | None]:
            """The rows of the next page that are accepted, and where the one behind it begins, if there is one."""
            rows = self.backend.page(PageRequest(namespaces, kinds=kinds, limit=size, after=after))
            of_page = {(row.namespace, row.key): row for row in rows if accepts(row)}
            return of_page, Cursor.of(rows[-1]) if len(rows) == size else None

        found: dict[Key, Row] = {}
        # Small at first, as many scans end early; then larger, as stores that have to sort do so for each page.
        size = _FIRST_PAGE if limit is None else min(max(limit, _SMALLEST_PAGE), _FIRST_PAGE)
        while limit is None or len(found) < limit:
            of_page, after = await self._read(accepted, size, after)
            found.update(of_page)
            if after is None:
                break
            size = min(2 * size, _LARGEST_PAGE)
        return list(found.values())[:limit]

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> Operation[int]:
        """How many rows exactly ``namespaces`` hold (of ``kinds``)."""
        return self._read(self.backend.count, namespaces, kinds=kinds)

    def tally(self, namespaces: Sequence[Namespace]) -> Operation[list[Tally]]:
        """How many rows exactly ``namespaces`` hold, by namespace and kind."""
        return self._read(self.backend.tally, namespaces)

    def namespaces(self, prefix: Namespace = ()) -> Operation[list[Namespace]]:
        """The namespaces that hold rows and start with the labels of ``prefix``."""
        return self._read(self.backend.namespaces, prefix)

    def ask(self, body: Callable[[Backend], T]) -> Operation[T]:
        """What ``body`` returns; it is called with the backend on a worker."""
        return self._read(body, self.backend)

    async def content_key(self) -> bytes:
        """The store's own key for names that are derived from contents; made on first use."""
        if self._content_key is None:
            self._content_key = await self.ask(content_key_of)
        return self._content_key

    async def redacting(self, redact: Callable[[], T], size: int = 0) -> T:
        """What ``redact`` returns; called on a worker for many characters, and with an application's own redactor."""
        if size > _REDACTED_AT_ONCE or self.guard.redactor:
            return await self.pool.call(redact)
        return redact()

    async def search(self, search: Search) -> SearchResult:
        """The best rows for a text, by words and, if the model answers in time, by meaning."""
        return (await self.search_together([search]))[0]

    async def search_together(self, searches: Sequence[Search]) -> list[SearchResult]:
        """Like `search` for each of ``searches``. All have the same text, which is embedded and ranked once."""
        first = searches[0]
        namespaces = dict.fromkeys(namespace for search in searches for group in search.groups for namespace in group)
        visit = await self._visit([*namespaces], first.text, first.wait_seconds, first.cold_seconds)
        self._reading.check()
        found = await self.pool.effect(self._snapshots.searched, searches, visit)
        self._embed_what_was_read()
        return found

    async def read(
        self,
        namespaces: Sequence[Namespace],
        body: Callable[[Snapshot], T],
        *,
        text: str = "",
        wait_seconds: float = EMBED_TIMEOUT_S,
        cold_seconds: float = 0.0,
    ) -> T:
        """What ``body`` makes of a snapshot of ``namespaces``, all of one user, on one worker.

        ``text`` is the question of the body's searches; it is embedded before, within ``wait_seconds`` seconds. A model
        that is still being loaded gets ``cold_seconds``, and so does an index that is not there yet.
        """
        visit = await self._visit(namespaces, text, wait_seconds, cold_seconds)
        self._reading.check()
        result = await self.pool.effect(self._snapshots.answered, body, namespaces, visit)
        self._embed_what_was_read()
        return result

    def patience(self, usual: float, cold: float) -> float:
        """How many seconds a recall may take: ``usual``, and while the store is cold what is left of ``cold``.

        It is cold until its model has been loaded and a first snapshot has been read; ``cold`` seconds count from the
        first recall.
        """
        if self._snapshots.are_warm:
            return usual
        now = time.monotonic()
        if self._first_recall is None:
            self._first_recall = now
        return max(usual, self._first_recall + cold - now)

    def embed_later(self) -> None:
        """Has texts that were stored without a vector get theirs in the background, soon, or when the store closes."""
        if self.backfill:
            self.backfill.owe()

    def _embed_what_was_read(self) -> None:
        """Without a change feed, a backend knows only of texts it has read that they wait for a vector."""
        if self.backfill and not self.backend.capabilities.change_feed:
            self.maintenance.wake(VECTORS)

    async def _read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._reading.check()
        return await self.pool.effect(self._guarded, partial(function, *args, **kwargs))

    def _guarded(self, call: Callable[[], T]) -> T:
        with self._reading:
            return call()

    async def _visit(
        self, namespaces: Sequence[Namespace], text: str, wait_seconds: float, cold_seconds: float
    ) -> Visit:
        """What a worker needs to know before it searches ``namespaces`` for ``text``.

        A model that is being loaded gets ``cold_seconds`` to be there, while the indexes of ``namespaces`` are built.
        One that is not in this process embeds the text now, within ``wait_seconds``.
        """
        patience = max(wait_seconds, cold_seconds)
        until = time.monotonic() + patience
        embedder = self.embedder if text.strip() else None
        if embedder and cold_seconds > 0 and embedder.is_loading:
            if self.backend.capabilities.change_feed:
                self._indexes.build(namespaces)
            await embedder.loaded(cold_seconds)
        question: QuestionVectors | LateQuestion = LateQuestion(text, self._texts, self.guard)
        if embedder and not embedder.runs_in_process:
            clean = await self.redacting(partial(self.guard.text, text), len(text))
            question = await self._texts.question(clean, wait_seconds)
        return Visit(question, patience, until, self.backfill)
