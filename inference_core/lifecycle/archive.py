"""The archive keeps forgotten and deleted memories until they are restored or erased; no recall reads it.

Which user owns a conversation of an application: by its thread id, or because the user's data names that id.

A checkpointer knows threads, but no users. So an erasure notes in its ledger which threads the user's data named, each
by an HMAC: later erasures, and replays after a restore, find them there although that data is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from inference_core.effects import Operation
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import (
    ROOTS,
    Namespace,
    encode_label,
    holds_forgotten,
    memory_namespace,
)
from inference_core.memory.record import MemoryPage
from inference_core.memory.text import canonical_id
from inference_core.outbox.messages import session_label, session_name
from inference_core.retrieval.documents import Document
from inference_core.services.operations.delete import (
    DELETED,
    ForgottenMemory,
    forgotten_of,
    is_archived,
    restore_writes,
)
from inference_core.services.operations.scope import MemoryScope, UserId, retried
from inference_core.stores.backend import Backend, Cursor, Key, Row, Write
from inference_core.stores.engine import StoreEngine

T = TypeVar("T")
_PORTION: Final = 100


@dataclass(slots=True)
class RestoreReport:
    """Ids of memories: ``restored``, ``taken`` by another memory meanwhile, or ``missing`` from the archive."""

    restored: list[str] = field(default_factory=list[str])
    taken: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])


async def forgotten(scope: MemoryScope, user_id: UserId) -> list[ForgottenMemory]:
    """The user's memories that can be restored, of all agents, the latest forgotten first. Raises StoreError."""
    now = scope.clock.now()
    places = await archives(scope.engine, user_id)
    rows = await scope.engine.scan(places, accepts=lambda row: is_archived(row, now))
    return sorted(map(forgotten_of, rows), key=lambda one: one.forgotten_at, reverse=True)


async def forgotten_page(
    scope: MemoryScope, user_id: UserId, *, limit: int = 50, after: str | None = None
) -> MemoryPage[ForgottenMemory]:
    """A page of what `forgotten` gives, by when the memories were first stored, the newest first.

    Raises InvalidInput, StoreError.
    """
    now, cursor = scope.clock.now(), None if after is None else Cursor.decode(after)
    places = await archives(scope.engine, user_id)
    rows = await scope.engine.scan(places, accepts=lambda row: is_archived(row, now), limit=limit + 1, after=cursor)
    return MemoryPage(map(forgotten_of, rows[:limit]), Cursor.of(rows[limit - 1]).encode() if rows[limit:] else None)


def restore(scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None = None) -> Operation[RestoreReport]:
    """Restores these forgotten and deleted memories (None: all), with their ids, times, metadata and history.

    They count as used now. If another memory has been saved with the same id, that memory stays. Raises InvalidInput,
    StoreError.
    """
    return restore_archived(scope, user_id, memory_ids)


async def restore_archived(
    scope: MemoryScope, user_id: UserId, memory_ids: Sequence[str] | None, *, deleted: bool = True
) -> RestoreReport:
    """Like `restore`; with ``deleted`` False, restores forgotten memories only, none that somebody deleted."""
    engine, now = scope.engine, scope.clock.now()

    def is_wanted(row: Row) -> bool:
        return is_archived(row, now) and (deleted or forgotten_of(row).reason != DELETED)

    async def put_back(portion: Sequence[Row], known: dict[Key, Document]) -> list[Key]:
        """Puts back those that are still archived and whose ids are free; returns their keys in the archive."""
        keys = [(row.namespace, row.key) for row in portion]
        found = await engine.get(keys)
        places = await engine.get([(memory_namespace(namespace), key) for namespace, key in keys])
        at = scope.clock.now()
        back: list[Key] = []
        writes: list[Write] = []
        for key, row, place in zip(keys, found, places, strict=True):
            if row and place is None:
                back.append(key)
                writes += restore_writes(row, known.get(key), at)
        if writes:
            await scope.write(writes, "restore", embeds=False)
        return back

    scopes = await archives(engine, user_id)
    if memory_ids is None:
        rows = await engine.scan(scopes, accepts=is_wanted)
    else:
        keys = [(scope, key) for key in dict.fromkeys(map(canonical_id, memory_ids)) for scope in scopes]
        rows = [row for row in await engine.get(keys) if row and is_wanted(row)]
    report = RestoreReport()
    try:
        for portion in portions(rows, _PORTION):
            known = await documents(engine, [(row.namespace, row.key) for row in portion])
            back = await retried(partial(put_back, portion, known))
            report.restored += [key for _, key in back]
            report.taken += [row.key for row in portion if (row.namespace, row.key) not in back]
    finally:  # portions before one that failed were restored, and may need vectors
        engine.embed_later()
    there = {*report.restored, *report.taken}
    report.missing = [one for one in dict.fromkeys(memory_ids or ()) if one not in there]
    return report


async def archives(engine: StoreEngine, user_id: UserId) -> list[Namespace]:
    """The namespaces of the user's archives, every agent's."""
    names = await engine.namespaces((encode_label(user_id),))
    return [name for name in names if holds_forgotten(name)]


def documents(engine: StoreEngine, keys: Collection[Key]) -> Operation[dict[Key, Document]]:
    """The indexed texts of the rows at ``keys``, with their vectors; rows without an indexed text are left out."""

    def read() -> dict[Key, Document]:
        backend, wanted = engine.backend, set(keys)
        found: dict[Key, Document] = {}
        for scope in dict.fromkeys(namespace for namespace, _ in keys):
            backend.heads([scope])  # refreshes the mirror of another library's store, from which changes() reads
            for change in backend.changes(scope, 0):
                if change.document and (scope, change.key) in wanted:
                    found[scope, change.key] = change.document
        tokens = backend.tokens(list(found))
        return {key: document._replace(tokens=own) for (key, document), own in zip(found.items(), tokens, strict=True)}

    return engine.pool.call(read)


def portions(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """``items`` in portions of at most ``size``."""
    return [items[at : at + size] for at in range(0, len(items), size)]


class Threads(Protocol):
    """Conversations of an application, kept under thread ids."""

    name: str

    def there(self) -> Mapping[str, float]:
        """The ids of all threads, and when each began, in seconds since 1970."""
        ...

    def erase(self, threads: Sequence[str]) -> list[str]:
        """Removes these threads; returns sentences that say where their bytes may still be."""
        ...

    def files(self) -> list[Path]:
        """The files that hold the threads."""
        ...


class ThreadOwners:
    """Tells which threads belong to ``subjects``, users by their names in ``ledger``.

    `thread_label` made the ids of these threads, or the ledger lists them. ``marks`` are the ledger's names of further
    threads, of the only subject.
    """

    def __init__(self, ledger: Ledger, subjects: Iterable[str], marks: Iterable[str] = ()) -> None:
        self._ledger = ledger
        self._subjects = set(subjects)
        self.marks: dict[str, str] = {mark: subject for mark in marks for subject in self._subjects}
        """The subject of each thread that is known by its name in the ledger."""
        for entry in ledger.entries:
            if entry["subject"] in self._subjects:
                self.marks |= dict.fromkeys(entry.get("threads", ()), entry["subject"])

    def among(self, threads: Iterable[str]) -> dict[str, str]:
        """Those of ``threads`` that belong to the subjects, each with its subject."""
        owners = ((thread, self._by_name(thread) or self._by_mark(thread)) for thread in threads)
        return {thread: owner for thread, owner in owners if owner}

    def shared(self, stores: Iterable[Backend], found: Mapping[str, str]) -> set[str]:
        """Those of ``found`` that the rows of other users name as well, unless their ids say whose they are.

        Rows of spaces, and those that belong to no user, do not count: no conversation is theirs.
        """
        named = {thread for thread in found if not self._by_name(thread)}
        shared = set[str]()
        for row in (one for store in stores if named for one in store.inspect()):
            if isinstance(row, Row) and row.namespace[0] not in ROOTS and not row.namespace[0].startswith("#"):
                for thread in threads_named(row) & named:
                    if self._ledger.subject_of(row.namespace[0]) != found[thread]:
                        shared.add(thread)
        return shared

    def _by_name(self, thread: str) -> str | None:
        label, colon, _ = thread.partition(":")
        subject = self._ledger.subject_of(label) if colon else None
        return subject if subject in self._subjects else None

    def _by_mark(self, thread: str) -> str | None:
        for name in dict.fromkeys((thread, session_name(thread), session_label(thread))):
            if name and (owner := self.marks.get(self._ledger.thread(name))):
                return owner
        return None


def threads_named(row: Row) -> set[str]:
    """The thread ids that a row names: a receipt, a memory, an audit event, or a message, by its session."""
    named = [row.value.get(name) for name in ("thread_id", "session_id", "session")]
    for name in ("source", "actor"):
        of = row.value.get(name)
        named.append(cast("dict[str, Any]", of).get("thread_id") if isinstance(of, dict) else None)
    return {name for name in named if isinstance(name, str)}
