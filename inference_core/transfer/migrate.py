"""Copies memories that other applications keep in LangGraph's stores to this package's; safe to repeat and interrupt.

Each memory is written with a mark that it was migrated, in one transaction. The mark outlives changes and deletions of
the memory, and a purge of its user, so that a later run neither reverts a change nor brings back what was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Final

from langgraph.store.base import BaseStore

from inference_core.effects import Progress
from inference_core.errors import ConfigurationError, StoreError, UserErased, VersionConflict
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import (
    MEMORIES_STORE_NAME,
    MIGRATED,
    MemoryNamespaceBuilder,
    Namespace,
    decode_label,
)
from inference_core.memory.quota import Quota
from inference_core.memory.record import MemoryRecord
from inference_core.memory.redaction import Guard, Policy
from inference_core.memory.text import MAX_CONTENT_BYTES, encode_json, mapping_field
from inference_core.memory.trust import LEFTOVERS, Decision
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.services.operations.admission import has_to_wait, proposed_on
from inference_core.services.operations.scope import put_of
from inference_core.stores.backend import EXTRA, Backend, Batch, Check, Key, Outcome, Put, Remove, Write, pack_namespace
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine, content_key_of
from inference_core.stores.factory import KeySource, has_store, open_backend
from inference_core.stores.rules.audit_log import AuditLog
from inference_core.stores.rules.erasure_epoch import fences_of
from inference_core.stores.rules.write_rules import rules_of
from inference_core.stores.store import MemoryStore
from inference_core.stores.urls import parse_url, shown_url
from inference_core.transfer.legacy import (
    NOT_OFFERED,
    Layouts,
    LegacyItem,
    Unusable,
    is_undated,
    records_of,
)
from inference_core.transfer.migration_report import MigrationReport
from inference_core.transfer.sources import (
    GraphStore,
    LangGraphTable,
    MigrationSource,
    OwnScopes,
    PostgresTable,
    digest,
    located,
    read_only,
)

_Sourced = tuple[MemoryRecord, str]
"""A record and the origin of its item."""
_Waiting = tuple[_Sourced, list[Write]]
"""A record to write, and the writes that store it."""
BATCH: Final = 500
_TRIES: Final = 5


def migrate_memories(
    store: str | MemoryStore,
    *,
    source: str | BaseStore | None = None,
    layouts: Sequence[str] | None = None,
    user_ids: Sequence[str] | None = None,
    legacy_namespace: str = MEMORIES_STORE_NAME,
    agent_name: str | None = None,
    dry_run: bool = False,
    max_content_bytes: int = MAX_CONTENT_BYTES,
    progress: Progress | None = None,
    encryption_key: str | bytes | None = None,
    keys: KeySource = None,
    secrets: Policy | Guard | None = None,
    quota: Quota | None = None,
    confirm: Collection[str] = (),
) -> MigrationReport:
    """Copies the memories that other applications keep in ``source`` to ``store``.

    The originals do not change. Ids and times are kept; fields that a memory does not have go into
    ``extra_metadata["legacy"]``. Vectors are added when the store is opened with an embedding model. You can safely
    interrupt or repeat a migration, and run it during writes and other migrations.

    Args:
        store: The target: a URL as for `open_store`, or an open store.
        source: A URL, or a LangGraph store such as an InMemoryStore. A URL means this package's store and, in the same
            database, the table of LangGraph's SqliteStore or PostgresStore; if both have an id, this package's counts.
            None: ``store`` itself.
        layouts: The namespaces that hold memories in ``source``. Names: ``coala`` is ``(user, category[, agent])``,
            ``flat`` is ``(user, "memories")``, ``langmem`` is ``("memories", user)``, ``files`` (deepagents) is
            ``(user, "filesystem")``. Or labels joined by dots, such as ``notes.{user}``, where ``{user}``,
            ``{category}``, ``{agent}`` and ``*`` each stand for one label; without ``{user}``, ``user_ids`` must name
            exactly one user. None: the first three.
        user_ids: Migrate these users only. None: all users.
        legacy_namespace: The last label of ``flat`` namespaces.
        agent_name: Episodic and procedural memories whose namespace names no category go to this agent's own scopes.
            None: to the shared ones.
        dry_run: Only count; nothing is written.
        max_content_bytes: Memories with longer content are skipped.
        progress: Called with the number of memories done and the number of all.
        encryption_key: As for `open_store`.
        keys: As for `open_store`.
        quota: As for `open_store`, unless that is the target. What has no room is counted as failed.
        secrets: As for `open_store`, unless that is the target. With "reject", memories with secrets are skipped.
        confirm: Names of categories. What other applications' agents wrote into them waits for the user, as do, always,
            rules, preferences and procedures from tools, documents and the web; see `list_pending`.

    Raises:
        InvalidInput: An argument is invalid.
        ConfigurationError: A URL is invalid.
        StoreError: A database failed; memories written before the failure stay.
    """
    wanted = Layouts(layouts, user_ids, legacy_namespace)
    with ExitStack() as opened:
        read = store if source is None else source
        tables: list[MigrationSource] = []  # of another library; opened before anything is made beside them
        if isinstance(read, BaseStore):
            tables += [] if isinstance(read, MemoryStore) else [GraphStore(read)]
        else:
            scheme, path, *_ = parse_url(read)
            if scheme in ("postgresql", "postgres"):
                tables.append(opened.enter_context(closing(PostgresTable(read))))
            elif scheme == "sqlite" and path is not None and path.is_file():
                tables.append(LangGraphTable(opened.enter_context(closing(read_only(path)))))
            elif source is not None and path is not None and not path.exists():
                raise ConfigurationError(f"There is no store at {shown_url(read)}")
        open_url = partial(open_backend, encryption_key=encryption_key, keys=keys)
        backend, report = _opened(opened, store, open_url, dry_run=dry_run, creates=source is not None)
        if isinstance(source, str) and source != store:
            report.read_from = shown_url(source)
        rules_of(backend, quota)
        own = backend if read == store else None  # one of our own stores at ``source``, if there is one
        if isinstance(read, MemoryStore):
            own = read.engine.backend
        elif own is None and isinstance(read, str) and has_store(read):
            own = opened.enter_context(closing(open_url(read, as_it_is=True)))
        sources: list[MigrationSource] = [*([] if own is None else [OwnScopes(own)]), *tables]
        namespaces = MemoryNamespaceBuilder(agent_name=agent_name)
        migration = Migration(store, backend, namespaces, report, max_content_bytes, secrets, confirm)
        total = sum(space.rows for one in sources for space in one.spaces() if wanted.place_of(space.labels, one))
        with closing(located(sources, wanted, report)) as items:
            migration.migrate(items, total, progress)
    return report


def import_items(
    store: str | MemoryStore,
    items: Callable[[], Iterable[LegacyItem]],
    *,
    agent_name: str | None = None,
    max_content_bytes: int = MAX_CONTENT_BYTES,
    progress: Progress | None = None,
    encryption_key: str | bytes | None = None,
    keys: KeySource = None,
    secrets: Policy | Guard | None = None,
    quota: Quota | None = None,
    confirm: Collection[str] = (),
) -> MigrationReport:
    """Stores the memories in ``items()``, which is called twice, first to count. Otherwise like `migrate_memories`."""
    total = sum(1 for _ in items())
    with ExitStack() as opened:
        open_url = partial(open_backend, encryption_key=encryption_key, keys=keys)
        backend, report = _opened(opened, store, open_url, dry_run=False, creates=True)
        rules_of(backend, quota)
        namespaces = MemoryNamespaceBuilder(agent_name=agent_name)
        migration = Migration(store, backend, namespaces, report, max_content_bytes, secrets, confirm)
        migration.migrate(items(), total, progress)
    return report


def _opened(
    opened: ExitStack, store: str | MemoryStore, open_url: Callable[[str], Backend], *, dry_run: bool, creates: bool
) -> tuple[Backend, MigrationReport]:
    """The database to write to, and a new report. A dry run creates nothing; a missing file is made if ``creates``."""
    if isinstance(store, MemoryStore):
        opened.callback(store.engine.embed_later)  # also for what was written before a failure
        return store.engine.backend, MigrationReport(store.engine.backend.name, dry_run)
    scheme, path, *_ = parse_url(store)
    is_missing = path is not None and not path.exists() and not creates
    has_none = is_missing or (dry_run and not has_store(store))
    backend = InMemoryBackend() if has_none else open_url(store)
    opened.enter_context(closing(backend))
    place = f"{scheme}:///{path}" if path else shown_url(store) if scheme.startswith("postgres") else backend.name
    return backend, MigrationReport(place, dry_run, is_missing)


def _apply(engine: StoreEngine, batches: Sequence[Batch]) -> list[Outcome]:
    """Like `Backend.apply`, but through the queue of an open store, which its other writers use."""
    outcomes: list[Outcome] = []
    for future in [engine.submit(batch) for batch in batches]:
        try:
            outcomes.append(future.result())
        except StoreError as error:
            outcomes.append(error)
    return outcomes


class Migration:
    """One run that writes to ``backend`` and counts in ``report``; if that is of a dry run, it writes nothing."""

    def __init__(
        self,
        store: str | MemoryStore,
        backend: Backend,
        namespaces: MemoryNamespaceBuilder,
        report: MigrationReport,
        max_content_bytes: int,
        secrets: Policy | Guard | None,
        confirm: Collection[str],
    ) -> None:
        engine = store.engine if isinstance(store, MemoryStore) else None
        self._backend = backend
        self._confirm = frozenset(confirm)
        self._guard = engine.guard if engine else Guard.of(secrets)
        self._apply = partial(_apply, engine) if engine else rules_of(backend).apply
        self._fences = engine.fences if engine else fences_of(backend)
        self._began = self._fences.all()
        self._audit_log = AuditLog(backend)
        self._namespaces = namespaces
        self._report = report
        self._max_content_bytes = max_content_bytes
        self._users: set[int] = set()
        self._foreseen: dict[str, str] = {}
        """In a dry run, the marks that a real one would have made."""
        self._own: set[Key] = set()
        """The keys of memories that this package wrote: ``confirm`` does not apply to them."""

    def migrate(self, items: Iterable[LegacyItem], total: int, progress: Progress | None = None) -> None:
        """Copies ``items``, about ``total`` of them. Raises StoreError."""
        records = self._records(items)
        while batch := list(islice(records, BATCH)):
            new = self._unmarked(batch)
            namespaces: dict[str, list[Namespace]] = {}  # everywhere a memory of a user may have been moved to
            for label in {record.namespace[0] for record, _ in new}:
                names = self._backend.namespaces((label,))
                known = [name for name in names if name[1:2] and name[1] in MEMORY_CATEGORIES]
                namespaces[label] = list(
                    dict.fromkeys([*((label, category) for category in MEMORY_CATEGORIES), *known])
                )
            if not self._report.is_dry_run:
                self._write([sourced for sourced in new if not self._has_to_wait(sourced[0])], namespaces)
                for sourced in new:
                    if self._has_to_wait(sourced[0]):  # alone, as each proposal counts those that wait already
                        self._write([sourced], namespaces)
                new = []
            for record, origin in new:
                self._foreseen[_mark_of(record)[1]] = origin
                places = {*namespaces[record.namespace[0]], record.namespace}
                if any(self._backend.get([(place, record.id) for place in places])):
                    self._report.already_there += 1
                else:
                    self._count(record)
            if progress:
                progress(self._report.found, max(total, self._report.found))

    def _records(self, items: Iterable[LegacyItem]) -> Generator[_Sourced]:
        for item in items:
            self._report.found += 1
            self._report.by_layout[item.layout] += 1
            try:
                records = records_of(item, self._namespaces, self._max_content_bytes, self._guard)
            except Unusable as error:
                self._report.count_skipped(item.user_id, item.key, error.reason, str(error))
                continue
            self._report.undated += is_undated(item)
            self._users.add(hash(records[0].namespace[0]))
            self._report.users = len(self._users)
            if item.category and EXTRA in item.value:
                self._own |= {(record.namespace, record.id) for record in records}
            for record in records:
                yield record, item.origin

    def _has_to_wait(self, record: MemoryRecord) -> bool:
        return has_to_wait(record, () if (record.namespace, record.id) in self._own else self._confirm)

    def _count(self, record: MemoryRecord) -> None:
        if self._has_to_wait(record):
            self._report.waiting += 1
        else:
            self._report.by_category[record.category.value] += 1

    def _unmarked(self, batch: Sequence[_Sourced]) -> list[_Sourced]:
        """Those not migrated before. Of two with the same id from different namespaces, the later gets another id."""
        marks = [_mark_of(record) for record, _ in batch]
        origins = {
            key: str(row.value.get("from", "")) if row else self._foreseen[key]
            for (_, key), row in zip(marks, self._backend.get(marks), strict=True)
            if row or key in self._foreseen
        }
        new: list[_Sourced] = []
        renamed: list[_Sourced] = []
        for (record, origin), (_, key) in zip(batch, marks, strict=True):
            known = origins.get(key)
            if known is None:
                origins[key] = origin
                new.append((record, origin))
            elif not known or not origin or known == origin:
                self._report.already_there += 1
            else:
                extra = {
                    **record.extra_metadata,
                    LEFTOVERS: {"id": record.id, **mapping_field(record.extra_metadata, LEFTOVERS)},
                }
                renamed.append((replace(record, id=digest(f"{origin}.{record.id}"), extra_metadata=extra), origin))
        return [*new, *self._unmarked(renamed)] if renamed else new

    def _write(self, records: Sequence[_Sourced], namespaces: dict[str, list[Namespace]]) -> None:
        """Writes each record with its mark in a transaction, unless it was migrated before or its id is in use."""
        waiting: list[_Waiting] = []
        for record, origin in records:
            others = [namespace for namespace in namespaces[record.namespace[0]] if namespace != record.namespace]
            absent: list[Write] = [Remove(namespace=namespace, key=record.id, expected=0) for namespace in others]
            stored: list[Write] = [put_of(record, expected=0)]
            if self._has_to_wait(record):
                now, homes = datetime.now(UTC), namespaces[record.namespace[0]]
                key = content_key_of(self._backend)
                decision, _, stored = proposed_on(record, homes, now, (), key, self._backend)
                if decision is Decision.NO:  # without a mark: the next run offers it again if there is room then
                    self._report.count_skipped(decode_label(record.namespace[0]), record.id, NOT_OFFERED, NOT_OFFERED)
                    continue
                absent = []
            waiting.append(((record, origin), [_mark(record, origin), *absent, *stored]))
        for _ in range(_TRIES):
            waiting = self._tried(waiting) if waiting else []
        for (record, _), _ in waiting:
            self._report.count_failed(record, VersionConflict("Others keep changing it; run the migration again"))

    def _tried(self, waiting: Sequence[_Waiting]) -> list[_Waiting]:
        """Applies the writes of each record; those to try again, since something else than their ids was in the way.

        That is a fence which this process did not know, or an audit key that ended meanwhile. Whoever is erased during
        this run, as of which the originals were read, does not come back.
        """
        checks = self._checks(list({record.namespace[0]: None for (record, _), _ in waiting}))
        tried: list[_Waiting] = []
        batches: list[list[Write]] = []
        for one in waiting:
            (record, _), writes = one
            if (check := checks[record.namespace[0]]) is None:
                self._report.count_failed(record, UserErased())
            else:
                tried.append(one)
                batches.append([*writes, *check])
        cause = Cause(at=datetime.now(UTC), operation="migrate")
        if is_split := self._backend.capabilities.split:  # the marks follow, as for what was written before
            batches = [[write for write in batch if write.namespace != MIGRATED] for batch in batches]
        outcomes = self._apply([self._audit_log.recorded(batch, cause) for batch in batches])
        taken: list[_Sourced] = []
        written: list[_Sourced] = []
        again: list[_Waiting] = []
        for one, outcome in zip(tried, outcomes, strict=True):
            sourced, writes = one
            if isinstance(outcome, VersionConflict):
                guarded = [write for write in writes if isinstance(write, Put | Remove) and write.expected is not None]
                rows = self._backend.get([(write.namespace, write.key) for write in guarded])
                found = [row.version if row else 0 for row in rows]
                if found == [write.expected for write in guarded]:
                    again.append(one)
                else:
                    taken.append(sourced)
            elif isinstance(outcome, Exception):
                self._report.count_failed(sourced[0], outcome)
            else:
                self._count(sourced[0])
                written.append(sourced)
        if marked := [*taken, *(written if is_split else ())]:
            self._apply([[_mark(record, origin)] for record, origin in marked])
        self._report.already_there += len(taken)
        return again

    def _checks(self, roots: Sequence[str]) -> dict[str, list[Check] | None]:
        """By user, the checks that fail once the user is erased; None: that has happened since this migration began."""
        erased = self._fences.erased_since(self._began, roots)
        return {root: None if root in erased else self._fences.checks_since(self._began, [root]) for root in roots}


def _mark(record: MemoryRecord, origin: str) -> Put:
    namespace, key = _mark_of(record)
    value = encode_json({"from": origin} if origin else {}, what="mark")
    return Put(namespace=namespace, key=key, value=value, updated_at=record.updated_at, expected=0)


def _mark_of(record: MemoryRecord) -> Key:
    """The place of a record's mark. The key is a hash, so that it shows nothing of a purged user."""
    return MIGRATED, digest(pack_namespace((record.namespace[0], record.id)))
