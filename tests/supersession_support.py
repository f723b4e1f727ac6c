"""Pairs of statements with what the newer does to the older, and how well rules tell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inference_core.slots import Relation, relation

DATA = Path(__file__).parent / "data" / "supersession.json"
MIN_PRECISION, MIN_RECALL = 0.95, 0.6


@dataclass(frozen=True, slots=True)
class Pair:
    """Two statements, when each was said, and the label that a person gave."""

    phenomenon: str
    old: str
    new: str
    label: Relation
    held_out: bool = False
    old_at: str = "2026-01-15"
    new_at: str = "2026-06-15"

    @property
    def found(self) -> Relation:
        """What the rules say."""
        return relation(self.old, self.new, old_at=_at(self.old_at), new_at=_at(self.new_at))


@dataclass(frozen=True, slots=True)
class Score:
    """How many of the pairs that supersede were found, of those found; ``agreed`` counts all three labels."""

    pairs: int
    superseding: int
    found: int
    right: int
    agreed: int

    @property
    def precision(self) -> float:
        """1.0 if nothing was found."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """1.0 if there is nothing to find."""
        return self.right / self.superseding if self.superseding else 1.0

    @property
    def holds(self) -> bool:
        """Whether both bars are reached."""
        return self.precision >= MIN_PRECISION and self.recall >= MIN_RECALL


def pairs() -> list[Pair]:
    """All labelled pairs, in the order of the file."""
    rows: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
    return [Pair(label=Relation(row.pop("label")), **row) for row in rows]


def scored(pairs: Iterable[Pair]) -> Score:
    """What the rules say of ``pairs`` against their labels."""
    told = [(pair.label, pair.found) for pair in pairs]
    return Score(
        pairs=len(told),
        superseding=sum(label is Relation.SUPERSEDES for label, _ in told),
        found=sum(found is Relation.SUPERSEDES for _, found in told),
        right=sum(label is found is Relation.SUPERSEDES for label, found in told),
        agreed=sum(label is found for label, found in told),
    )


def _at(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)
