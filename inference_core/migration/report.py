"""What a migration did."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from inference_core.memory.namespaces import decode_label
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MEMORY_CATEGORIES

SHOWN: Final = 10
"""So many of the memories that were left out are named."""
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A memory that was not migrated, and why. Its original is where it was."""

    user_id: str
    id: str
    reason: str

    def __str__(self) -> str:
        return f"  {self.user_id!a} {self.id!a}: {self.reason!a}"


@dataclass(slots=True)
class MigrationReport:
    """Counts of memories. In a dry run ``written`` are those that would be.

    ``found`` are all that the flat namespaces hold, of ``users`` users. ``already_there``: migrated before, or another
    memory stands under the id. ``skipped`` counts by reason those that hold nothing to store, ``failed`` those that
    the store refused. ``left_out`` names the first of these two.
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
        """How many memories were written to a category."""
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
