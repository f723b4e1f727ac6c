"""Which user owns a conversation of an application: by its thread id, or because the user's data names that id.

A checkpointer knows threads, but no users. So an erasure notes in its ledger which threads the user's data named, each
by an HMAC: later erasures, and replays after a restore, find them there although that data is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import ROOTS
from inference_core.outbox.messages import session_label, session_name
from inference_core.stores.backend import Backend, Row


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
        for row in (row for store in stores if named for row in store.inspect()):
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
    for field in ("source", "actor"):
        of = row.value.get(field)
        named.append(cast("dict[str, Any]", of).get("thread_id") if isinstance(of, dict) else None)
    return {name for name in named if isinstance(name, str)}
