"""Copies memories of the flat namespace to the namespaces of their categories; safe to repeat and to interrupt.

Each memory is written with a mark that it was migrated, in one transaction. The mark outlives changes and deletions of
the memory, and a purge of its user, so that a later run neither reverts a change nor brings back what was deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from inference_core.errors import InvalidInput, VersionConflict
from inference_core.memory.namespaces import (
    MEMORIES_STORE_NAME,
    MemoryNamespaceBuilder,
    Namespace,
    decode_label,
    encode_label,
)
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import MAX_CONTENT_BYTES
from inference_core.memory.types import MEMORY_CATEGORIES
from inference_core.services.operations.scope import put_of
from inference_core.stores.backend import Backend, Delete, Key, Put, Write
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.codec import pack_namespace
from inference_core.stores.factory import has_store, open_backend
from inference_core.stores.urls import parse_url, shown_url
from inference_core.transfer.flat import Unusable, record_of_legacy
from inference_core.transfer.sources import LangGraphTable, LegacySource, OwnScopes, PostgresTable, read_only

Progress = Callable[[int, int], None]
"""Called with the number of memories done and the number of all."""
BATCH: Final = 500
MARKS: Final[Namespace] = ("#migrated-flat-memories",)
"""Where the marks are: under no user's label, so that a purge of the user does not remove them."""
SHOWN: Final = 10
"""A report names so many of the memories that were left out."""
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A memory that was not migrated, and why. Its original is untouched."""

    user_id: str
    id: str
    reason: str

    def __str__(self) -> str:
        return f"  {self.user_id!a} {self.id!a}: {self.reason!a}"


@dataclass(slots=True)
class MigrationReport:
    """What a migration did, or would do in a dry run, in numbers of memories.

    Of the ``found`` memories of ``users`` users, ``written`` were migrated, ``already_there`` were migrated before or
    have an id that another memory uses, ``skipped`` (by reason) have nothing that can be stored, and ``failed`` were
    refused by the store. ``left_out`` and ``failures`` name the first of the last two.
    """

    store: str
    is_dry_run: bool = False
    is_missing: bool = False
    legacy_namespace: str = ""
    users: int = 0
    found: int = 0
    by_category: Counter[str] = field(default_factory=Counter[str])
    already_there: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])
    failed: int = 0
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    failures: list[LeftOut] = field(default_factory=list[LeftOut])

    @property
    def written(self) -> int:
        """The number of memories written to a category."""
        return self.by_category.total()

    def count_skipped(self, user_id: str, memory_id: str, reason: str, detail: str) -> None:
        """Notes a memory that cannot be migrated."""
        self.skipped[reason] += 1
        _name(self.left_out, user_id, memory_id, detail)

    def count_failed(self, record: MemoryRecord, error: Exception) -> None:
        """Notes a memory that the store refused."""
        self.failed += 1
        _name(self.failures, decode_label(record.namespace[0]), record.id, str(error))

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "store": self.store,
            "dry_run": self.is_dry_run,
            "users": self.users,
            "found": self.found,
            "written": self.written,
            "by_category": {name: self.by_category[name] for name in MEMORY_CATEGORIES},
            "already_there": self.already_there,
            "skipped": self.skipped.total(),
            "skipped_by_reason": dict(self.skipped),
            "failed": self.failed,
            "left_out": [asdict(one) for one in self.left_out],
            "failures": [asdict(one) for one in self.failures],
        }

    def to_text(self) -> str:
        """The report for people, in a few lines."""
        if not self.found:
            missing = " There is no such file yet." if self.is_missing else ""
            return f"Nothing to migrate in {self.store}.{missing}"
        did = "Would migrate" if self.is_dry_run else "Migrated"
        namespace = f"the flat namespace {self.legacy_namespace!r}"
        shares = ", ".join(f"{self.by_category[name]} {name}" for name in MEMORY_CATEGORIES)
        lines = [
            f"{self.store}: {self.found} memories of {self.users} users in {namespace}; they stay as they are.",
            f"{did} {self.written}: {shares}.",
            *([f"Left alone, because there already: {self.already_there}."] if self.already_there else []),
            *(f"Skipped {count}: {reason}." for reason, count in self.skipped.most_common()),
            *map(str, self.left_out),
            *([f"FAILED: {self.failed}. Run it again once the cause is gone."] if self.failed else []),
            *map(str, self.failures),
        ]
        if self.written and not self.is_dry_run:
            lines.append("Vectors are added when the store is opened with an embedding model.")
        return "\n".join(lines)


def _name(named: list[LeftOut], user_id: str, memory_id: str, reason: str) -> None:
    if len(named) < SHOWN:
        named.append(LeftOut(user_id[:_LONGEST], memory_id[:_LONGEST], reason[:_LONGEST]))


def migrate_flat(
    url: str,
    *,
    user_ids: Sequence[str] | None = None,
    legacy_namespace: str = MEMORIES_STORE_NAME,
    agent_name: str | None = None,
    dry_run: bool = False,
    max_content_bytes: int = MAX_CONTENT_BYTES,
    progress: Progress | None = None,
    encryption_key: str | bytes | None = None,
) -> MigrationReport:
    """Copies the flat memories in the store at ``url`` to the namespaces of their categories.

    Reads the store itself and, in the same database, the tables of LangGraph's SqliteStore or PostgresStore; where both
    have an id, the store's own memory counts. Originals never change. Vectors are added when the store is opened with
    an embedding model. Safe to repeat, to interrupt, and beside writers and other migrations.

    Args:
        url: As for `open_store`.
        user_ids: Migrate these users only. None: all users.
        legacy_namespace: The last label of the flat namespaces.
        agent_name: Episodic and procedural memories go to this agent's own scopes. None: to the shared ones.
        dry_run: Only count; nothing is written.
        max_content_bytes: Memories with longer content are skipped.
        progress: Called with the number of memories done and the number of all.
        encryption_key: As for `open_store`.

    Raises:
        InvalidInput: The arguments make no sense.
        ConfigurationError: The URL makes no sense.
        StoreError: The database failed; what was written before stays.
    """
    if isinstance(user_ids, str):
        raise InvalidInput("user_ids must be a list of ids, not one text")
    for user_id in user_ids or ():
        encode_label(user_id)
    if not legacy_namespace or legacy_namespace in MEMORY_CATEGORIES:
        raise InvalidInput(f"The flat namespace cannot be called {legacy_namespace!r}; its usual name is 'memories'")
    scheme, path, *_ = parse_url(url)
    place, is_missing = None, False
    sources: list[LegacySource] = []
    with ExitStack() as opened:
        if scheme in ("postgresql", "postgres"):
            place = shown_url(url)
            sources.append(opened.enter_context(closing(PostgresTable(url, legacy_namespace))))
        elif path is not None and path.is_file():
            place = f"sqlite:///{path}"
            sources.append(LangGraphTable(opened.enter_context(closing(read_only(path))), legacy_namespace))
        elif path is not None:
            place, is_missing = f"{scheme}:///{path}", not path.exists()
        # Nothing is created where there was no file, or in a dry run.
        has_none = is_missing or (dry_run and not has_store(url))
        made = InMemoryBackend() if has_none else open_backend(url, encryption_key=encryption_key)
        backend = opened.enter_context(closing(made))
        report = MigrationReport(place or backend.name, dry_run, is_missing, legacy_namespace)
        migration = Migration(backend, MemoryNamespaceBuilder(agent_name=agent_name), report, max_content_bytes)
        migration.migrate([OwnScopes(backend, legacy_namespace), *sources], user_ids, progress)
    return report


@dataclass(frozen=True, slots=True)
class Migration:
    """One run onto ``backend``, counted in ``report``; if that is of a dry run, nothing is written."""

    backend: Backend
    namespaces: MemoryNamespaceBuilder
    report: MigrationReport
    max_content_bytes: int

    def migrate(
        self, sources: Sequence[LegacySource], user_ids: Sequence[str] | None = None, progress: Progress | None = None
    ) -> None:
        """Copies what ``sources`` hold of these users, or of all. Raises StoreError."""
        total = sum(source.count(user_ids) for source in sources)
        with closing(self._records(sources, user_ids)) as records:
            while batch := list(islice(records, BATCH)):
                self._migrate(batch)
                if progress:
                    progress(self.report.found, max(total, self.report.found))

    def _records(self, sources: Sequence[LegacySource], user_ids: Sequence[str] | None) -> Generator[MemoryRecord]:
        for at, source in enumerate(sources):
            last = ""
            for item in source.items(user_ids):
                self.report.found += 1
                try:
                    record = record_of_legacy(item, self.namespaces, self.max_content_bytes)
                except Unusable as error:
                    self.report.count_skipped(item.user_id, item.key, error.reason, str(error))
                    continue
                if record.namespace[0] != last:
                    last = record.namespace[0]
                    user = [decode_label(last)]
                    self.report.users += not any(next(earlier.items(user), None) for earlier in sources[:at])
                yield record

    def _migrate(self, records: Sequence[MemoryRecord]) -> None:
        marks = self.backend.get([_mark_of(record) for record in records])
        new = [record for record, mark in zip(records, marks, strict=True) if mark is None]
        self.report.already_there += len(records) - len(new)
        scopes: dict[str, list[Namespace]] = {}  # everywhere a memory of a user may have been moved to
        for label in {record.namespace[0] for record in new}:
            known = [name for name in self.backend.namespaces((label,)) if name[1:2] and name[1] in MEMORY_CATEGORIES]
            scopes[label] = list(dict.fromkeys([*((label, category) for category in MEMORY_CATEGORIES), *known]))
        if not self.report.is_dry_run:
            self._write(new, scopes)
            return
        for record in new:
            places = {*scopes[record.namespace[0]], record.namespace}
            if any(self.backend.get([(place, record.id) for place in places])):
                self.report.already_there += 1
            else:
                self.report.by_category[record.category.value] += 1

    def _write(self, records: Sequence[MemoryRecord], scopes: dict[str, list[Namespace]]) -> None:
        """All in one transaction, each with its mark, unless it was migrated before or its id stands anywhere."""
        groups: list[list[Write]] = []
        for record in records:
            others = [scope for scope in scopes[record.namespace[0]] if scope != record.namespace]
            absent = [Delete(namespace=scope, key=record.id, expected=0) for scope in others]
            groups.append([_mark(record), *absent, put_of(record, expected=0)])
        outcomes = self.backend.apply(groups) if groups else []
        taken: list[MemoryRecord] = []
        for record, outcome in zip(records, outcomes, strict=True):
            if isinstance(outcome, VersionConflict):
                taken.append(record)
            elif isinstance(outcome, Exception):
                self.report.count_failed(record, outcome)
            else:
                self.report.by_category[record.category.value] += 1
        if taken:
            self.backend.apply([[_mark(record)] for record in taken])
            self.report.already_there += len(taken)


def _mark(record: MemoryRecord) -> Put:
    namespace, key = _mark_of(record)
    return Put(namespace=namespace, key=key, value="{}", updated_at=record.updated_at, expected=0)


def _mark_of(record: MemoryRecord) -> Key:
    """A mark's key is a hash, so that nothing of a purged user can be read from it."""
    owned = pack_namespace((record.namespace[0], record.id))
    return MARKS, blake2b(owned.encode(), digest_size=16).hexdigest()
