"""What may be told to the model, and what became of it: the words that builder, engineer and renderer share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from inference_core.memory.record import MemoryRecord
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextItem:
    """One thing that may be told: a memory (``record``), or a line of another source.

    ``section`` is the heading under which it is told, ``source`` names the `ContextSource` that gave it, ``id`` tells
    it from that one's others. ``relevance`` is from 0 to 1, or None where the source does not judge: then it is not
    pruned. ``score`` orders the items of a source, the higher the better; ``signals`` are the shares of it. Of ``text``
    the first ``cut`` characters are told, None: all that a line holds. ``replaces`` is the line that the model was told
    before and that holds no more, if there is one.
    """

    id: str
    text: str
    section: str
    source: str
    kind: str | None = None
    happened_at: datetime | None = None
    trust: Trust = Trust.STATED
    relevance: float | None = None
    score: float = 0.0
    signals: Mapping[str, float] = field(default_factory=dict[str, float])
    record: MemoryRecord | None = None
    cut: int | None = None
    replaces: str | None = None

    @classmethod
    def of(
        cls,
        record: MemoryRecord,
        *,
        source: str,
        section: str | None = None,
        relevance: float | None = None,
        score: float = 0.0,
        signals: Mapping[str, float] | None = None,
    ) -> ContextItem:
        """The item of ``record``, by default in the section of its category."""
        return cls(
            id=record.id,
            text=record.content,
            section=section or section_of(record.category),
            source=source,
            kind=record.memory_type.value,
            happened_at=record.happened_at,
            trust=record.trust,
            relevance=relevance,
            score=score,
            signals=signals or {},
            record=record,
        )


def section_of(category: MemoryCategory) -> str:
    """The section in which memories of ``category`` are told."""
    return f"{category.value}_memory"


class DropReason(str, Enum):
    """Why an item is not told."""

    IRRELEVANT = "irrelevant"
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"
    UNCONFIRMED = "unconfirmed"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Dropped:
    """An item that is not told, why, and, if another one stands for it, that one's id."""

    item: ContextItem
    reason: DropReason
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledContext:
    """What the engineer made of the items.

    ``sections`` in the order in which they are told; ``conflicts`` are groups of items that contradict each other and
    of which none wins, ``untrusted`` items whose origin is not the user's, both told apart and marked. ``tokens`` is
    what ``text`` costs by the configured counter. ``left_out`` names the sources that failed or were late, and why.
    """

    sections: Mapping[str, Sequence[ContextItem]]
    conflicts: Sequence[Sequence[ContextItem]] = ()
    untrusted: Sequence[ContextItem] = ()
    dropped: Sequence[Dropped] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    text: str = ""
    tokens: int = 0

    @property
    def items(self) -> list[ContextItem]:
        """All that is told, in the order in which it is told."""
        plain = [item for section in self.sections.values() for item in section]
        return [*plain, *(item for group in self.conflicts for item in group), *self.untrusted]
