"""The report of a migration, as text and as JSON data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from inference_core.memory.namespaces import Namespace, decode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MEMORY_CATEGORIES

SHOWN: Final = 10
"""The most memories that a report names in ``left_out``, and in ``failures``."""
_PLACES: Final = 3
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class UnmigratedMemory:
    """A memory that was not migrated, and why. Its original is untouched."""

    user_id: str
    id: str
    reason: str

    def __str__(self) -> str:
        return f"  {self.user_id!a} {self.id!a}: {self.reason!a}"


@dataclass(slots=True)
class MigrationReport:
    """What a migration did, or would do in a dry run, in numbers of memories.

    Of the ``found`` memories of ``users`` users (``by_layout``), ``written`` were migrated, ``waiting`` wait for the
    user's confirmation, ``already_there`` were migrated before or have an id that another memory uses, ``skipped`` (by
    reason) have nothing that can be stored, ``undated`` have no time that can be read, so that they get that of the
    migration, and ``failed`` were refused by the store. ``left_out`` names the first that were skipped, ``failures``
    the first that failed. ``read_from`` is the database that was read, if it is another one. ``others`` counts the
    items of another library's store that are in no layout; ``other_places`` names their first namespaces.
    """

    store: str
    is_dry_run: bool = False
    is_missing: bool = False
    users: int = 0
    found: int = 0
    by_layout: Counter[str] = field(default_factory=Counter[str])
    others: int = 0
    other_places: list[str] = field(default_factory=list[str])
    by_category: Counter[str] = field(default_factory=Counter[str])
    waiting: int = 0
    already_there: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])
    undated: int = 0
    failed: int = 0
    left_out: list[UnmigratedMemory] = field(default_factory=list[UnmigratedMemory])
    failures: list[UnmigratedMemory] = field(default_factory=list[UnmigratedMemory])
    read_from: str | None = None

    @property
    def written(self) -> int:
        """The number of memories written to a category."""
        return self.by_category.total()

    def count_other(self, labels: Namespace, rows: int) -> None:
        """Notes a namespace of another library's store that is in no layout."""
        self.others += rows
        if len(self.other_places) < _PLACES:
            self.other_places.append(".".join(labels)[:_LONGEST])

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
            "read_from": self.read_from,
            "dry_run": self.is_dry_run,
            "users": self.users,
            "found": self.found,
            "by_layout": dict(self.by_layout),
            "written": self.written,
            "by_category": {name: self.by_category[name] for name in MEMORY_CATEGORIES},
            "waiting": self.waiting,
            "already_there": self.already_there,
            "skipped": self.skipped.total(),
            "skipped_by_reason": dict(self.skipped),
            "undated": self.undated,
            "failed": self.failed,
            "others": self.others,
            "other_places": self.other_places,
            "left_out": [asdict(memory) for memory in self.left_out],
            "failures": [asdict(memory) for memory in self.failures],
        }

    def to_text(self) -> str:
        """The report for people, in a few lines."""
        others = ""
        if self.others:
            count, names = _counted(self.others, "other item is", "other items are"), map(ascii, self.other_places)
            others = f"{count} in no known layout (--layout names one): {', '.join(names)}."
        if not self.found:
            missing = "There is no such file yet." if self.is_missing else ""
            place = self.read_from or self.store
            return " ".join(filter(None, [f"Nothing to migrate in {place}.", missing, others]))
        did = "Would migrate" if self.is_dry_run else "Migrated"
        layouts = ", ".join(f"{count} {name}" for name, count in self.by_layout.items())
        shares = ", ".join(f"{self.by_category[name]} {name}" for name in MEMORY_CATEGORIES)
        found = f"{_counted(self.found, 'memory', 'memories')} of {_counted(self.users, 'user', 'users')}"
        lines = [
            f"{self.read_from or self.store}: {found} ({layouts}); the originals are not changed.",
            f"{did} {self.written}{f' into {self.store}' if self.read_from else ''}: {shares}.",
            *([f"Waiting for the user: {self.waiting}; see inference-core review."] if self.waiting else []),
            *([f"Skipped {self.already_there} that were already there."] if self.already_there else []),
            *(f"Skipped {count}: {reason}." for reason, count in self.skipped.most_common()),
            *map(str, self.left_out),
            *([f"Without a time that can be read: {self.undated}; they have that of now."] if self.undated else []),
            *([f"FAILED: {self.failed}. Fix the cause and run it again."] if self.failed else []),
            *map(str, self.failures),
            *([others] if others else []),
        ]
        if self.written and not self.is_dry_run:
            lines.append("Vectors are added when the store is opened with an embedding model.")
        return "\n".join(lines)


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _name(named: list[UnmigratedMemory], user_id: str, memory_id: str, reason: str) -> None:
    if len(named) < SHOWN:
        named.append(UnmigratedMemory(user_id[:_LONGEST], memory_id[:_LONGEST], reason[:_LONGEST]))
