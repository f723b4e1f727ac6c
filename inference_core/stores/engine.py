"""StoreEngine: a Backend with what every caller needs around it: reads, group commit, chores, and embeddings.

Reading is in `StoreReader`. The methods are operations (see `inference_core.effects`). Texts are embedded before
a write is handed over, never inside a lock or a transaction. A text that could not be embedded is stored all the same
and gets its vector later.
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
from typing import Final

from langchain_core.documents import BaseDocumentCompressor

from inference_core.effects import Effect, Operation, WorkerPool, any_thread
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import DeadlineExceeded, StoreError, StoreUnavailable, WriteUnknown
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import encode_label
from inference_core.memory.quota import Quota, Quotas, counted, counts_of, counts_place
from inference_core.memory.record import MemoryRecord
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.text import encode_json
from inference_core.stores.backend import (
    Backend,
    Batch,
    Check,
    Key,
    Put,
    Remove,
    Row,
    Unreadable,
    Write,
    WriteRule,
)
from inference_core.stores.indexing.embedding import Backfill
from inference_core.stores.indexing.reader import VECTORS, StoreReader
from inference_core.stores.indexing.search import Reranker
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
"""The chores of a store, besides those of its reader."""


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


class StoreEngine(StoreReader):
    """The one way from operations to a database. Raises EmbeddingMismatch if ``embedder`` is not the store's.

    ``index_bytes`` bounds the indexes of all users together, ``max_batches`` the batches in a transaction.
    ``late_interaction``: keep and compare token vectors, if the model gives them. ``reranker`` decides the final order
    of the best hits; if it fails, their order stays. Expired rows are removed every ``sweep_interval_s`` seconds, and
    the counts of recalls written every ``access_interval_s`` seconds. ``may_block`` raises in a thread that must not
    wait for the database. Memories live as long as ``lifetimes`` says; None: forever. ``quota`` limits each user.
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
        self.quotas = Quotas(quota)
        self.rules = rules_of(backend, self.quotas)
        self.audit_log = AuditLog(backend, audit=audit, days=audit_days, secret=audit_key)
        super().__init__(
            backend,
            embedder,
            WorkerPool(WORKERS, "memory-store", may_block),
            Maintenance(),
            Guard.of(secrets),
            index_bytes=index_bytes,
            late_interaction=late_interaction,
            reranker=reranker,
        )
        self.holds = self.rules.holds
        self.late_interaction = late_interaction
        self._lifetimes = lifetimes
        self._writing = Breaker(f"Writing {backend.name}")
        self._writer = GroupWriter(backend, max_batches or MAX_BATCHES, breaker=self._writing)
        self.fences = fences_of(backend)
        wake = partial(self.maintenance.wake, _DEFERRED, DEFERRED_INTERVAL_S)
        self.later = DeferredWriter(self._writer, wake, self.fences)
        self.accesses = AccessCounts(backend, self._writer, partial(self.maintenance.wake, _ACCESSES))
        chores = self.maintenance
        chores.add(_DEFERRED, self.later.write_portion, is_flushed=True)
        chores.add(_ACCESSES, self.accesses.write_portion, access_interval_s, is_flushed=True)
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
        self.parts = EngineParts(self.maintenance, self._writer, self.pool, own, self.backfill, backend)
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

    def fenced(self, roots: Sequence[str]) -> Operation[list[Check]]:
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
