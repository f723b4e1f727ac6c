"""Labelled pairs of notes, of which the second is newer: which of them contradict each other, and which are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from inference_core.context.comparing import resolved
from inference_core.context.items import ContextItem
from inference_core.evaluation.conversations import parse_json
from inference_core.memory.record import MemoryRecord

_FILE: Final = Path(__file__).with_name("conflicts.json")
_THEN: Final = datetime(2026, 1, 15, tzinfo=UTC)
_NOW: Final = datetime(2026, 6, 15, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two notes about a user, and whether they contradict each other, as a person says."""

    kind: str
    old: str
    new: str
    conflict: bool

    @property
    def half(self) -> str:
        """``tune`` or ``test``, by a checksum of the notes. Rules and words were chosen on ``tune`` alone."""
        return "tune" if sha256(f"{self.old}|{self.new}".encode()).digest()[0] % 2 else "test"

    @property
    def is_found(self) -> bool:
        """Whether a context tells the newer note in place of the older one, or marks both as a conflict."""
        found = resolved([_item(self.old, _THEN), _item(self.new, _NOW)])
        return bool(found.dropped or found.conflicts)


def pairs(path: Path = _FILE) -> list[Pair]:
    """All pairs, in the order of the file. Raises InvalidInput."""
    return parse_json(path, "a list of labelled pairs", lambda data: [Pair(**row) for row in data])


def scored(chosen: Sequence[Pair]) -> dict[str, Any]:
    """How many of ``chosen`` are conflicts and are found, with recall and precision, None where nothing was counted."""
    conflicts = sum(pair.conflict for pair in chosen)
    found = [pair for pair in chosen if pair.is_found]
    right = sum(pair.conflict for pair in found)
    return {
        "pairs": len(chosen),
        "conflicts": conflicts,
        "found": len(found),
        "right": right,
        "recall": right / conflicts if conflicts else None,
        "precision": right / len(found) if found else None,
    }


def _item(text: str, at: datetime) -> ContextItem:
    value = {"content": text, "memory_type": "facts"}
    namespace = ("ada", "memories", "semantic")
    record = MemoryRecord.from_value(value, memory_id=text, namespace=namespace, stored_at=at, updated_at=at)
    return ContextItem.of(record, source="memories")
