"""StoreEngine: a Backend with what every caller needs around it: workers, group commit, indexes and embeddings.

Its methods are operations (see `inference_core.effects`). Texts are embedded before a write is handed over, never
inside a lock or a transaction. A text that could not be embedded is stored all the same and gets its vector later.
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
from functools import cache, partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from langchain_core.documents import BaseDocumentCompressor

from inference_core.effects import Effect, Operation, WorkerPool, any_thread, run
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import DeadlineExceeded, StoreError, VersionConflict, WriteUnknown
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.quota import Quota, Quotas, counted, counts_of, counts_place
from inference_core.memory.record import MemoryRecord
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.text import encode_json
from inference_core.stores.backend import (
    CONTENT_KEY_META,
    Backend,
    Check,
    Key,
    Put,
    Row,
    Tally,
    Unreadable,
    Write,
)
from inference_core.stores.breaker import Breaker
from inference_core.stores.codec import Cursor, PageRequest
from inference_core.stores.embedding import EMBED_TIMEOUT_S, Backfill, Texts
from inference_core.stores.fence import fences_of, roots_of
from inference_core.stores.journal import DEFAULT_AUDIT_DAYS, Journal
from inference_core.stores.maintenance import (
    ACCESS_INTERVAL_S,
    DEFERRED_INTERVAL_S,
    AccessCounts,
    DeferredWriter,
    Maintenance,
    remove_expired,
    with_sidecars,
)
from inference_core.stores.quotas import limited
from inference_core.stores.redacting import without_secrets
from inference_core.stores.sealer import Sealer
from inference_core.stores.search import AskModel, QuestionVectors, Reranker, Search, SearchResult, as_reranker
from inference_core.stores.time_to_live import MemoryLifetimes
from inference_core.stores.writer import MAX_BATCHES, GroupWriter

if TYPE_CHECKING:
    from inference_core.stores.snapshot import Snapshot

P = ParamSpec("P")
T = TypeVar("T")
_LOG = logging.getLogger(__name__)
WORKERS: Final = 8
_TRIES: Final = 100
_SMALLEST_PAGE: Final = 50
_REDACTED_AT_ONCE: Final = 20_000
"""Characters. Searching more for secrets takes milliseconds, too long for an event loop's thread."""
_FIRST_PAGE: Final = 500
_LARGEST_PAGE: Final = 2_000
DEFAULT_INDEX_BYTES: Final = 512 * 1024 * 1024
SWEEP_INTERVAL_S: Final = 60.0
SEAL_INTERVAL_S: Final = 60.0
_INDEXES, _DEFERRED, _ACCESSES = "indexes", "deferred writes", "access counts"
_EXPIRED, _VECTORS, _SEALS = "expired rows", "pending vectors", "seals of the audit trail"
"""The chores of a store."""


@dataclass(slots=True)
class EngineParts:
    """What an engine has open, without the engine: it can still be closed when nobody has that any more."""

    maintenance: Maintenance
    writer: GroupWriter
    pool: WorkerPool
    embedder: Embedder | None
    backend: Backend
    is_closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Closes them once, in the order in which each hands over to the next what it has accepted."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        self.maintenance.close()
        self.writer.close()
        self.pool.close()
        if self.embedder:
            self.embedder.close()
        self.backend.close()


class StoreEngine:
    """The one way from operations to a database. Raises EmbeddingMismatch if ``embedder`` is not the store's.

    ``index_bytes`` bounds the indexes of all users together, ``max_batches`` the writes in a transaction.
    ``late_interaction`` keeps and compares token vectors, if the model gives them. ``reranker`` has the last word on
    the order of the best; if it fails, the order stays. Expired rows are removed every ``sweep_interval_s`` seconds,
    recalls that were noted are written every ``access_interval_s``. ``may_block`` raises in a thread that must not
    wait for the database. Memories live as long as ``lifetimes`` says; None: for ever. ``quota`` limits each user.
    ``audit`` writes an event of each change of memories, which is kept for ``audit_days`` days, under ``audit_key`` or
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
        self.quotas = Quotas(quota)
        self.backend = backend = limited(backend, self.quotas)
        self.journal = Journal(backend, audit=audit, days=audit_days, secret=audit_key)
        self.guard = Guard.of(secrets)
        self.embedder = embedder
        self.late_interaction = late_interaction
        self._lifetimes = lifetimes
        self._reranker = None if reranker is None else as_reranker(reranker)
        self.pool = WorkerPool(WORKERS, "memory-store", may_block)
        self._texts = Texts(backend, embedder, self.pool, with_tokens=late_interaction)
        self._reading, self._writing = Breaker(f"Reading {backend.name}"), Breaker(f"Writing {backend.name}")
        self._writer = GroupWriter(backend, max_batches or MAX_BATCHES, breaker=self._writing)
        self._content_key: bytes | None = None
        self._content_key_lock = threading.Lock()
        self.maintenance = Maintenance()
        model = embedder.fingerprint if embedder else ""
        # These import numpy, which is slow, so the package is imported without them. They are imported here, before the
        # model loads in a thread of its own: the first recall has only 0.3 s.
        from inference_core.stores.indexes import IndexCache  # noqa: PLC0415
        from inference_core.stores.snapshot import Snapshot, search_each_user  # noqa: PLC0415

        self._snapshot_type, self._search_each_user = Snapshot, search_each_user
        self.fences = fences_of(backend)
        self._indexes = IndexCache(backend, model, index_bytes, partial(self.maintenance.wake, _INDEXES))
        wake = partial(self.maintenance.wake, _DEFERRED, DEFERRED_INTERVAL_S)
        self.later = DeferredWriter(self._writer, wake, self.fences)
        self.accesses = AccessCounts(backend, self._writer, partial(self.maintenance.wake, _ACCESSES))
        chores = self.maintenance
        chores.add(_INDEXES, self._indexes.follow)
        chores.wake(_INDEXES)
        chores.add(_DEFERRED, self.later.write_portion, is_flushed=True)
        chores.add(_ACCESSES, self.accesses.write_portion, access_interval_s, is_flushed=True)
        if backend.capabilities.writable:
            chores.add(_EXPIRED, partial(remove_expired, backend, self._writer), sweep_interval_s)
            chores.add(_SEALS, Sealer(self.journal).seal_portion, is_flushed=True)
            self.journal.wake = partial(chores.wake, _SEALS, SEAL_INTERVAL_S)
        if embedder and backend.capabilities.writable:
            wake = partial(chores.wake, _VECTORS)
            backfill = Backfill(backend, self._writer, embedder, with_tokens=late_interaction, wake=wake)
            chores.add(_VECTORS, backfill.fill_portion)
            embedder.when_loaded(wake)
        own = embedder if owns_embedder else None
        self.parts = EngineParts(self.maintenance, self._writer, self.pool, own, backend)
        if embedder is None:
            _LOG.info("%s has no embedding model: recall is lexical", backend.name)
        else:
            embedder.warm()

    def write(
        self,
        batch: Sequence[Write],
        cause: Cause | None = None,
        *,
        embeds: bool = True,
        ages: bool = True,
        is_clean: bool = False,
    ) -> Operation[list[int]]:
        """Applies ``batch`` as a whole, durable when it returns; the versions after it.

        Earlier states of the memories that it changes are kept in the same transaction, as ``cause`` says, and an event
        of who changed them. Secrets are
        redacted, as the store's ``guard`` says, unless the caller has seen to it: ``is_clean``.

        ``embeds``: its texts get their vectors before, if the model answers in time. Whoever embeds by itself leaves
        that out; what has no vector then gets it after `embed_later`, or when the store is opened again. ``ages``: the
        memories in it live as long as the store says.
        Raises VersionConflict, UserErased, QuotaExceeded, StoreUnavailable; DeadlineExceeded if the database did not
        see it in time; WriteUnknown if it did, and did not confirm.
        """
        began, roots = time.time(), roots_of(batch)
        fence = self.fences.checks(roots) if roots else []
        lasting = self._lifetimes.stamped(batch) if self._lifetimes and ages else batch
        if not is_clean:
            size = sum(len(one.value) for one in lasting if isinstance(one, Put))
            lasting = yield from self.redacting(partial(without_secrets, self.guard, lasting), size)
        embedded = yield from self._texts.prepared(lasting, embeds=embeds)
        writes, why = with_sidecars(embedded), cause or Cause(at=datetime.now(UTC))
        # Who expects no version is in nobody's way: others that were faster are a reason to try again.
        tries = 1 if any(getattr(one, "expected", None) is not None for one in writes) else _TRIES
        while True:
            try:
                written = yield from self.journal.recorded([*writes, *fence], why, self._read, self._written)
            except VersionConflict:
                renewed = (yield from self._read(self.fences.renewed, fence, roots, began)) if fence else None
                tries -= renewed is None
                if not tries:
                    raise
                fence = fence if renewed is None else renewed
            else:
                break
        texts = [(write.namespace, write.document) for write in embedded if isinstance(write, Put) and write.document]
        self._indexes.note_written(namespace for namespace, _ in texts)
        if embeds and any(document.vector is None for _, document in texts):
            self.embed_later()
        return written[: len(batch)]

    def fenced(self, roots: Sequence[str]) -> Operation[list[Check]]:
        """The writes that refuse a batch if one of the users with these labels was erased from now on."""
        return self._read(self.fences.read, roots)

    def redacting(self, redact: Callable[[], T], size: int = 0) -> Operation[T]:
        """What ``redact`` returns; from a worker for many characters, and with an application's own redactor."""
        if size > _REDACTED_AT_ONCE or self.guard.redactor:
            return (yield from self.pool.call(redact))
        return redact()

    def submit(self, batch: Sequence[Write]) -> Future[list[int]]:
        """Queues ``batch`` as it is, without vectors, for who hands over many at once. Raises StoreUnavailable."""
        return self._writer.submit([*batch, *self.fences.checks(roots_of(batch))])

    def content_key(self) -> Operation[bytes]:
        """The store's own key for names that follow from contents; made when it is first asked for."""
        if self._content_key is None:

            def known() -> bytes:
                with self._content_key_lock:  # two that made one each would know different names
                    if not self.backend.get_meta(CONTENT_KEY_META):
                        self.backend.set_meta(CONTENT_KEY_META, token_hex(32))
                    return bytes.fromhex(self.backend.get_meta(CONTENT_KEY_META) or "")

            self._content_key = yield from self._read(known)
        return self._content_key

    def check_room(self, user_id: str, agent: str | None) -> Operation[None]:
        """Raises QuotaExceeded if the user or the agent may not have one more memory, as far as that is counted."""
        if self.quotas.quota.has_sizes:
            (row,) = yield from self.get([counts_place(encode_label(user_id))])
            counts = counts_of(row.value) if row else {}
            self.quotas.quota.check(counts, counted(counts, [(None, encode_json({"agent_name": agent}, what="agent"))]))

    def embed_later(self) -> None:
        """Has texts that have no vector yet get theirs in the background, soon."""
        if self.embedder and self.backend.capabilities.writable:
            self.maintenance.wake(_VECTORS)

    def extend_later(self, records: Iterable[MemoryRecord]) -> None:
        """Has memories that were read live on, if the store says so; never waits."""
        if self._lifetimes:
            self.later.put(*self._lifetimes.touches(records))

    def remove_expired(self) -> Operation[None]:
        """Removes all rows whose time has come now, rather than with the next sweep."""

        def remove() -> None:
            while remove_expired(self.backend, self._writer):
                pass

        return self._read(remove)

    def flush_later(self) -> Operation[None]:
        """Writes what was left for ``later``."""
        return self.pool.call(self.later.flush)

    def get(self, keys: Sequence[Key]) -> Operation[list[Row | None]]:
        """The row of each key."""
        return self._read(self.backend.get, keys)

    def page(
        self,
        scopes: Sequence[Namespace],
        *,
        kinds: frozenset[str] | None = None,
        limit: int,
        offset: int = 0,
    ) -> Operation[list[Row]]:
        """Rows of exactly ``scopes``, the newest first; `scan` goes on behind a cursor."""
        return self._read(self.backend.page, PageRequest(scopes, kinds=kinds, limit=limit, offset=offset))

    def scan(
        self,
        scopes: Sequence[Namespace],
        *,
        kinds: frozenset[str] | None = None,
        accepts: Callable[[Row], bool] = lambda _: True,
        limit: int | None = None,
        after: Cursor | None = None,
    ) -> Operation[list[Row]]:
        """The first ``limit`` rows, or all, that ``accepts`` is true of, behind ``after``, the newest first.

        Read by pages, each behind the last row of the one before: what nobody touches meanwhile is found exactly once.
        ``accepts`` is called on the workers, as judging many rows would hold up a caller's event loop.
        """

        def accepted(size: int, after: Cursor | None) -> tuple[dict[Key, Row], Cursor | None]:
            """The rows of the next page that are accepted, and where the one behind it begins, if there is one."""
            rows = self.backend.page(PageRequest(scopes, kinds=kinds, limit=size, after=after))
            of_page = {(row.namespace, row.key): row for row in rows if accepts(row)}
            return of_page, Cursor.of(rows[-1]) if len(rows) == size else None

        found: dict[Key, Row] = {}
        # Small at first, as many a scan ends early, then larger, as stores that have to sort do so for each page.
        size = _FIRST_PAGE if limit is None else min(max(limit, _SMALLEST_PAGE), _FIRST_PAGE)
        while limit is None or len(found) < limit:
            of_page, after = yield from self._read(accepted, size, after)
            found.update(of_page)
            if after is None:
                break
            size = min(2 * size, _LARGEST_PAGE)
        return list(found.values())[:limit]

    def count(self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> Operation[int]:
        """How many rows exactly ``scopes`` hold (of ``kinds``)."""
        return self._read(self.backend.count, scopes, kinds=kinds)

    def tally(self, scopes: Sequence[Namespace]) -> Operation[list[Tally]]:
        """How many rows exactly ``scopes`` hold, by namespace and kind."""
        return self._read(self.backend.tally, scopes)

    def namespaces(self, prefix: Namespace = ()) -> Operation[list[Namespace]]:
        """The namespaces that hold rows and start with the labels of ``prefix``."""
        return self._read(self.backend.namespaces, prefix)

    def discard(self, root: str, is_chosen: Callable[[Unreadable], bool]) -> Operation[int]:
        """Removes those rows of the user with the label ``root`` that cannot be read and are chosen; how many."""

        def discarded() -> int:
            unreadable = (one for one in self.backend.inspect(root) if isinstance(one, Unreadable))
            found = [one for one in unreadable if not one.only_index and is_chosen(one)]
            return self.backend.discard(found) if found else 0

        return self._read(discarded)

    def search(self, search: Search) -> Operation[SearchResult]:
        """The best rows for a text, by words and, if the model answers in time, by meaning."""
        return (yield from self.search_together([search]))[0]

    def search_together(self, searches: Sequence[Search]) -> Operation[list[SearchResult]]:
        """Like `search` for each of ``searches``, which ask the same, so that it is embedded and ranked once."""
        text, wait_seconds = searches[0].text, searches[0].wait_seconds

        def searched(ask_model: AskModel) -> list[SearchResult]:
            return self._search_each_user(searches, lambda scopes: self._snapshot(scopes, ask_model, wait_seconds))

        found = yield from self._asked(searched, text, wait_seconds)
        self._embed_what_was_read()
        return found

    def read(
        self,
        scopes: Sequence[Namespace],
        body: Callable[[Snapshot], T],
        *,
        text: str = "",
        wait_seconds: float = EMBED_TIMEOUT_S,
    ) -> Operation[T]:
        """What ``body`` makes of a snapshot of ``scopes``, all of one user, on one worker.

        ``text`` is the question of the body's searches; it is embedded before, within ``wait_seconds`` seconds. As long
        is waited for an index that is not there yet.
        """
        result = yield from self._asked(
            lambda ask_model: body(self._snapshot(scopes, ask_model, wait_seconds)), text, wait_seconds
        )
        self._embed_what_was_read()
        return result

    def _embed_what_was_read(self) -> None:
        """A backend without a change feed knows what waits for its vector only of what was read."""
        if not self.backend.capabilities.change_feed:
            self.embed_later()

    def flush(self) -> None:
        """Writes what was left for later, as `close` does; what cannot be written stays or is logged."""
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

    def _read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        self._reading.check()
        return (yield from self.pool.call(self._reading.call, partial(function, *args, **kwargs)))

    def _written(self, batch: Sequence[Write]) -> Operation[list[int]]:
        self._writing.check()

        def apply_alone() -> list[int]:
            (outcome,) = self._writing.call(self.backend.apply, [batch])
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        alone = None if self.backend.capabilities.single_writer else apply_alone
        handed_over: list[Future[list[int]]] = []

        def hand_over() -> Future[list[int]]:
            handed_over.append(self.pool.submit(alone) if alone else self._writer.submit(batch))
            return handed_over[0]

        try:
            versions: list[int] = yield Effect(hand_over, inline=alone, may_block=self.pool.may_block)
        except DeadlineExceeded as error:
            # A write that was still queued has been taken back, so it is known not to be there.
            if not handed_over or handed_over[0].cancelled():
                raise
            raise WriteUnknown("The store did not confirm the write in time; retry it under the same id") from error
        return versions

    def _asked(self, body: Callable[[AskModel], T], text: str, wait_seconds: float) -> Operation[T]:
        """What ``body`` makes of the vectors of ``text``, on a worker.

        A model of this process embeds on that very worker, once it is known which vectors the texts have; for any other
        one the caller waits ``wait_seconds`` seconds.
        """
        if self.embedder is None or self.embedder.runs_in_process or not text.strip():

            @cache
            def ask_model(spaces: frozenset[int]) -> QuestionVectors:
                return run(self._texts.question(self.guard.text(text), None, spaces))

            return (yield from self._read(body, ask_model))
        clean = yield from self.redacting(partial(self.guard.text, text), len(text))
        question = yield from self._texts.question(clean, wait_seconds, frozenset())
        return (yield from self._read(body, lambda _: question))

    def _snapshot(self, scopes: Sequence[Namespace], ask_model: AskModel, wait_seconds: float) -> Snapshot:
        return self._snapshot_type(self.backend, self._indexes, scopes, ask_model, wait_seconds, self._reranker)
