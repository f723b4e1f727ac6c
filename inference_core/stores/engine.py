"""StoreEngine: a Backend with what every caller needs around it: reads, group commit, chores, and embeddings.

The methods are operations (see `inference_core.effects`). Rows, pages, snapshots and searches are read on workers and
behind a breaker. Texts are embedded before a write is handed over, never inside a lock or a transaction. A text that
could not be embedded is stored all the same and gets its vector later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from inference_core.effects import Effect, Operation, WorkerPool, any_thread
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import DeadlineExceeded, StoreError, StoreUnavailable, WriteUnknown
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.quota import Quota, Quotas, counted, counts_of, counts_place
from inference_core.memory.record import MemoryRecord
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.text import encode_json
from inference_core.stores.backend import (
    CONTENT_KEY_META,
    Backend,
    Batch,
    Check,
    Cursor,
    Key,
    PageRequest,
    Put,
    Remove,
    Row,
    Tally,
    Unreadable,
    Write,
    WriteRule,
)
from inference_core.stores.indexing.embedding import EMBED_TIMEOUT_S, Backfill, LateQuestion, Texts, Visit
from inference_core.stores.indexing.search import QuestionVectors, Reranker, Search, SearchResult, as_reranker
from inference_core.stores.maintenance import (
    ACCESS_INTERVAL_S,
    DEFERRED_INTERVAL_S,
    AccessCounts,
    DeferredWriter,
    Maintenance,
    remove_expired,
    with_sidecars,
)
from inference_core.stores.rules.audit_log import DEFAULT_AUDIT_DAYS, AuditLog, Sealer, end_trail
from inference_core.stores.rules.erasure_epoch import AllFences, FenceRule, fences_of, roots_of
from inference_core.stores.rules.lifetimes import MemoryLifetimes
from inference_core.stores.rules.redacting import without_secrets
from inference_core.stores.rules.write_rules import rules_of
from inference_core.stores.writer import MAX_BATCHES, Breaker, GroupWriter
from inference_core.telemetry import step

if TYPE_CHECKING:
    from langchain_core.documents import BaseDocumentCompressor

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


_LOG = logging.getLogger(__name__)
WORKERS: Final = 8
DEFAULT_INDEX_BYTES: Final = 512 * 1024 * 1024
SWEEP_INTERVAL_S: Final = 60.0
SEAL_INTERVAL_S: Final = 60.0
_PARTING_S: Final = 10.0
"""How long `close` waits for reads that have begun, in seconds: SQLite waits five seconds for a lock."""
_LAST_VECTORS_S: Final = 5.0
"""How long `close` makes vectors for what was stored without any, in seconds."""
_DEFERRED, _ACCESSES = "deferred writes", "access counts"
_EXPIRED, _SEALS = "expired rows", "seals of the audit trail"
"""The other chores of a store."""


@dataclass(slots=True)
class EngineParts:
    """What an engine has open, in an object of its own, so that it can be closed once the engine has been collected."""

    maintenance: Maintenance
    writer: GroupWriter
    pool: WorkerPool
    embedder: Embedder | None
    backfill: Backfill | None
    backend: Backend
    is_closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Closes the parts once, each before the one to which it hands what it has accepted."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        self.maintenance.close()
        if self.backfill:
            self.backfill.close(_LAST_VECTORS_S)
        self.writer.close()
        self.pool.close(_PARTING_S)  # whoever owns another library's store may close its connection after this
        if self.embedder:
            self.embedder.close()
        self.backend.close()


def _nothing() -> None: ...


class StoreEngine:
    """The one way from operations to a database. Raises EmbeddingMismatch if ``embedder`` is not the store's.

    ``index_bytes`` bounds the indexes of all users together, ``max_batches`` the batches in a transaction.
    ``late_interaction``: keep and compare token vectors, if the model gives them. ``reranker`` decides the final order
    of the best hits; if it fails, their order stays. Expired rows are removed every ``sweep_interval_s`` seconds, and
    the counts of recalls written every ``access_interval_s`` seconds. ``may_block`` raises in a thread that must not
    wait for the database. Memories live as long as ``lifetimes`` says; None: forever. ``secrets`` are taken out of what
    is stored, and out of questions before a model sees them. ``quota`` limits each user.
    ``audit``: write an event for each change of a memory, and keep it for ``audit_days`` days, under ``audit_key`` or
    a key that the store keeps.
    """

    def __init__(
        self,
        backend: Backend,
        embedder: Embedder | None = None,
        *,
        index_bytes: int = DEFAULT_INDEX_BYTES,
        max_batches: int | None = None,
        owns_embedder: bool = True,
        late_interaction: bool = True,
        reranker: Reranker | BaseDocumentCompressor | None = None,
        sweep_interval_s: float = SWEEP_INTERVAL_S,
        access_interval_s: float = ACCESS_INTERVAL_S,
        may_block: Callable[[], None] = any_thread,
        lifetimes: MemoryLifetimes | None = None,
        secrets: Policy | Guard | None = None,
        quota: Quota | None = None,
        audit: bool = True,
        audit_days: float = DEFAULT_AUDIT_DAYS,
        audit_key: bytes | None = None,
    ) -> None:
        self.backend, self.embedder = backend, embedder
        self.pool = WorkerPool(WORKERS, "memory-store", may_block)
        self.maintenance = chores = Maintenance()
        self.guard = Guard.of(secrets)
        self.quotas = Quotas(quota)
        self.rules = rules_of(backend, self.quotas)
        self.holds = self.rules.holds
        self.fences = fences_of(backend)
        self.audit_log = AuditLog(backend, audit=audit, days=audit_days, secret=audit_key)
        self.late_interaction = late_interaction
        self._lifetimes = lifetimes
        self._content_key: bytes | None = None
        self._first_recall: float | None = None
        self._reading, self._writing = Breaker(f"Reading {backend.name}"), Breaker(f"Writing {backend.name}")
        self._texts = Texts(backend, embedder, self.pool, with_tokens=late_interaction)
        # This imports numpy, which is slow, so the package is imported without it. It is imported here, before the
        # model loads in a thread of its own: the first recall has only 0.3 s.
        from inference_core.stores.indexing.indexes import IndexCache, Snapshots  # noqa: PLC0415

        model = embedder.fingerprint if embedder else ""
        self._indexes = IndexCache(backend, model, index_bytes, partial(chores.wake, INDEXES))
        judge = None if reranker is None else as_reranker(reranker)
        self._snapshots = Snapshots(backend, self._indexes, embedder, judge, self._reading)
        chores.add(INDEXES, self._indexes.follow)
        chores.wake(INDEXES)
        self._writer = GroupWriter(backend, max_batches or MAX_BATCHES, breaker=self._writing)
        self.later = DeferredWriter(self._writer, partial(chores.wake, _DEFERRED, DEFERRED_INTERVAL_S), self.fences)
        self.accesses = AccessCounts(backend, self._writer, partial(chores.wake, _ACCESSES))
        chores.add(_DEFERRED, self.later.write_portion, is_flushed=True)
        chores.add(_ACCESSES, self.accesses.write_portion, access_interval_s, is_flushed=True)
        self.backfill: Backfill | None = None
        """Embeds what was stored without vectors; None for a store that is not writable or has no model."""
        if backend.capabilities.writable:
            chores.add(_EXPIRED, partial(remove_expired, self._writer, self.audit_log), sweep_interval_s)
            chores.add(_SEALS, Sealer(self.audit_log).seal_portion, is_flushed=True)
            self.audit_log.wake = partial(chores.wake, _SEALS, SEAL_INTERVAL_S)
        if embedder and backend.capabilities.writable:
            wake = partial(chores.wake, VECTORS)
            self.backfill = Backfill(backend, self._writer, embedder, with_tokens=late_interaction, wake=wake)
            chores.add(VECTORS, self.backfill.fill_portion)
            embedder.when_loaded(wake)
        own = embedder if owns_embedder else None
        self.parts = EngineParts(chores, self._writer, self.pool, own, self.backfill, backend)
        if embedder is None:
            _LOG.info("%s has no embedding model: recall is lexical", backend.name)
        else:
            embedder.warm()

    @property
    def kind(self) -> str:
        """The kind of its database, such as sqlite."""
        return self.backend.name.partition(":")[0]

    @property
    def refuses(self) -> dict[str, bool]:
        """Whether the circuit breaker refuses calls at the moment, by ``read`` and ``write``."""
        return {"read": self._reading.is_open, "write": self._writing.is_open}

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
        results = await self.pool.effect(self._snapshots.searched, searches, visit)
        self._embed_what_was_read()
        return results

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

    async def check_writer(self) -> None:
        """If the last write failed or one takes long, waits for an empty write. Raises StoreUnavailable if that fails.

        If writes have failed and nobody writes any more, the empty write also lets the circuit breaker close.
        """
        if self._writing.has_failed or self._writer.is_slow:
            await self._written(_nothing, [])

    async def write(
        self,
        batch: Sequence[Write],
        cause: Cause | None = None,
        *,
        embeds: bool = True,
        ages: bool = True,
        is_clean: bool = False,
        since: AllFences | None = None,
        rules: Sequence[WriteRule] = (),
    ) -> list[int]:
        """Applies ``batch`` as a whole, durably, and returns the version after each of its writes.

        The same transaction stores the earlier states of the memories that change, as ``cause`` says, and an event that
        says who changed them. Secrets are redacted as the store's ``guard`` says, unless ``is_clean``: the caller has
        redacted them.

        ``embeds``: the texts get their vectors first, if the model answers in time. Pass False to embed them yourself;
        a text without a vector then gets it after `embed_later`, or when the store is opened again. ``ages``: the
        memories get the store's time to live. ``since``: if the work that this write is part of began before this call,
        the fences at that time. ``rules``: what the batch has to meet besides what every write has to.

        Raises VersionConflict, UserErased, Held, QuotaExceeded, StoreUnavailable; DeadlineExceeded if the database did
        not get the batch in time; WriteUnknown if it did, and did not confirm.
        """
        began, roots = time.monotonic(), roots_of(batch)
        fence = await self._fence_at(began, roots, since) if roots else []
        lasting = self._lifetimes.stamped(batch) if self._lifetimes and ages else batch
        if not is_clean:
            size = sum(len(put.value) for put in lasting if isinstance(put, Put))
            lasting = await self.redacting(partial(without_secrets, self.guard, lasting), size)
        embedded = await self._texts.prepared(lasting, embeds=embeds)
        writes, why = with_sidecars(embedded), cause or Cause(at=datetime.now(UTC))
        texts = [(write.namespace, write.document) for write in embedded if isinstance(write, Put) and write.document]

        def landed() -> None:
            self._indexes.note_written(namespace for namespace, _ in texts)
            if embeds and any(document.vector is None for _, document in texts):
                self.embed_later()

        fenced = [FenceRule(self.fences, roots, fence, began)] if fence else []
        if self.audit_log.audit and not self.audit_log.has_key:
            await self._read(self.audit_log.chain_key)
        written = await self._written(landed, [*self.audit_log.recorded(writes, why), *rules, *fenced])
        return written[: len(batch)]

    def held(self, rows: Iterable[Row]) -> Operation[set[Key]]:
        """The keys of the ``rows`` that a legal hold keeps: leave these out of a removal. Raises StoreError."""
        return self._read(self.holds.held, list(rows))

    def check_holds(self, root: str) -> Operation[None]:
        """Raises Held if the user with the label ``root`` has legal holds, StoreError."""
        return self._read(self.holds.check, root)

    async def remove_later(self, rows: Sequence[Row]) -> None:
        """Has ``rows`` removed in the background, except those that a legal hold keeps."""
        kept = await self.held(rows) if rows else ()
        gone = [key for row in rows if (key := (row.namespace, row.key)) not in kept]
        self.later.put(*(Remove(namespace=namespace, key=key) for namespace, key in gone))

    def fence_checks(self, roots: Sequence[str]) -> Operation[list[Check]]:
        """The checks that make a batch fail if one of the users with these labels is erased after this call."""
        return self._read(self.fences.read, roots)

    def all_fences(self) -> Operation[AllFences]:
        """The fences now, for work of which later writes are part: see `write`."""
        return self._read(self.fences.all)

    def submit(self, batch: Batch) -> Future[list[int]]:
        """Queues ``batch`` as it is, without vectors, for callers that write many at once. Raises StoreUnavailable."""
        return self._writer.submit([*batch, self.fences.rule(roots_of(batch))])

    async def check_room(self, user_id: str, agent: str | None) -> None:
        """Raises QuotaExceeded if the user or the agent may not have one more memory, as far as that is counted."""
        if self.quotas.quota.has_sizes:
            (row,) = await self.get([counts_place(encode_label(user_id))])
            counts = counts_of(row.value) if row else {}
            self.quotas.quota.check(counts, counted(counts, [(None, encode_json({"agent_name": agent}, what="agent"))]))

    def extend_later(self, records: Iterable[MemoryRecord]) -> None:
        """Has the life of memories that were read extended, if the store's lifetimes say so; never waits."""
        if self._lifetimes:
            self.later.put(*self._lifetimes.touches(records))

    def remove_expired(self) -> Operation[None]:
        """Removes all expired rows now, rather than with the next sweep."""

        def remove() -> None:
            while remove_expired(self._writer, self.audit_log):
                pass

        return self._read(remove)

    def flush_later(self) -> Operation[None]:
        """Writes what waits in ``later`` now."""
        return self.pool.call(self.later.flush)

    def discard(self, root: str, is_chosen: Callable[[Unreadable], bool], cause: Cause) -> Operation[int]:
        """Removes the unreadable rows of the user with the label ``root`` that are chosen. Returns how many."""

        def discarded() -> int:
            unreadable = (damaged for damaged in self.backend.inspect(root) if isinstance(damaged, Unreadable))
            found = [damaged for damaged in unreadable if not damaged.only_index and is_chosen(damaged)]
            return self.audit_log.discard(found, cause) if found else 0

        return self._read(discarded)

    def end_trail(self, root: str) -> Operation[None]:
        """Removes the audit events of the user with the label ``root``, with their key. Raises Held, StoreError."""
        return self._read(end_trail, self.audit_log, root)

    def flush(self) -> None:
        """Writes deferred writes and access counts now, as `close` does.

        Deferred writes that fail are dropped and logged; access counts that fail stay noted.
        """
        self.later.flush()
        with suppress(StoreError):
            self.accesses.flush()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self.parts.is_closed

    def close(self) -> None:
        """Finishes the writes that were accepted, then closes the database; a second call does nothing."""
        self.parts.close()

    async def _fence_at(self, began: float, roots: Sequence[str], since: AllFences | None) -> list[Check]:
        """The checks of a write that began at ``began`` (`time.monotonic`), or, if given, at the time of ``since``."""
        if since is not None:
            return self.fences.checks_since(since, roots)
        known = self.fences.checks(roots)
        if self.fences.is_fresh(roots):
            return known
        try:
            return await self._read(self.fences.begun, known, roots, began)
        except StoreUnavailable:
            return known  # which may refuse the write needlessly, and lets nothing back in

    async def _written(self, landed: Callable[[], None], batch: Batch) -> list[int]:
        """Writes ``batch``, returns its versions. Calls ``landed`` once it is stored, even if the caller has gone."""
        self._writing.check()

        def apply_alone() -> list[int]:
            with self._writing:
                (outcome,) = self.rules.apply([batch])
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        alone = None if self.backend.capabilities.single_writer else apply_alone
        handed_over: list[Future[list[int]]] = []

        def settled(error: BaseException | None) -> None:
            if error is None or isinstance(error, WriteUnknown):  # then it may be there
                landed()

        def hand_over() -> Future[list[int]]:
            handed_over.append(self.pool.submit(alone) if alone else self._writer.submit(batch))
            return handed_over[0]

        try:
            with step("db_write", {"db.system.name": self.kind, "db.operation.batch.size": len(batch)}):
                versions: list[int] = await Effect(hand_over, inline=alone, may_block=self.pool.may_block)
        except BaseException as error:  # also if the caller is cancelled: a write handed over may still land
            if not handed_over:
                settled(error)
            elif not handed_over[0].cancelled():  # else it was still queued, so it is known not to be there
                handed_over[0].add_done_callback(lambda done: settled(done.exception()))
                if isinstance(error, DeadlineExceeded):
                    message = "The store did not confirm the write in time; retry it under the same id"
                    raise WriteUnknown(message) from error
            raise
        settled(None)
        return versions
