"""The items of a context and what became of them: the values that builder, engineer and renderer share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Final

from inference_core.memory.record import MemoryRecord, MemoryStoreDocument
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory, MemoryType

_DAWN: Final = datetime.min.replace(tzinfo=UTC)
STANDING: Final = (MemoryType.INSTRUCTION, MemoryType.PREFERENCES)
"""The types that hold in every turn, the more important first; pinned memories of any type go before them."""


class Doubt(str, Enum):
    """A reason to doubt that a memory belongs in a prompt (`inference_core.context.comparing` finds them)."""

    FROM_WEB = "from the web"
    HYPOTHETICAL = "hypothetical"
    OUTDATED = "perhaps outdated"
    OF_OTHERS = "somebody else"


DOUBTS: Final[Mapping[Doubt, float]] = {
    Doubt.FROM_WEB: 1.0,
    Doubt.HYPOTHETICAL: 0.5,
    Doubt.OUTDATED: 1.0,
    Doubt.OF_OTHERS: 0.5,
}
"""How much each doubt lowers the score of a memory; `docs/context-quality.md` says how these were chosen."""
MARKED: Final = (Doubt.HYPOTHETICAL, Doubt.OUTDATED, Doubt.OF_OTHERS)
"""Doubts that a line names, after its text and type. A line of a memory from outside names its source instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextItem:
    """One line that the prompt may show: a memory (``record``), or text from another source.

    ``section`` is its heading, ``source`` names the `ContextSource` that returned it, and ``id`` is unique within that
    source. ``relevance`` is from 0 to 1, or None if the source does not rate its items; such an item is not pruned.
    ``score`` orders the items of a source, higher is better; ``signals`` are the parts of the score. ``cut`` is how
    many characters of ``text`` are shown, None for all that fit on a line. ``replaces`` is the profile's line that this
    item corrects. ``doubts`` is None until `doubted` in `context.comparing` has looked for them.
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
    doubts: frozenset[Doubt] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Source and id, unique among all items: an id alone is unique only within its source."""
        return self.source, self.id

    @property
    def when(self) -> datetime:
        """When it happened; without a time, before everything else."""
        return self.happened_at or _DAWN

    @property
    def doubt(self) -> float:
        """How much its doubts lower its score."""
        return sum(DOUBTS[doubt] for doubt in self.doubts) if self.doubts else 0

    @property
    def marks(self) -> list[Doubt]:
        """The doubts that its line names."""
        return [one for one in MARKED if one in (self.doubts or ())]

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

    @classmethod
    def of_document(cls, document: MemoryStoreDocument) -> ContextItem:
        """The item of a recalled memory, as relevant as recall found it."""
        record = MemoryRecord.from_value(
            document.value,
            memory_id=document.id,
            namespace=("", document.memory_category or "", document.value.get("agent_name") or ""),
            stored_at=document.created_at or _DAWN,
            updated_at=document.updated_at or document.created_at or _DAWN,
            version=document.version,
        )
        score, signals = document.score or 0.0, document.explanation
        return cls.of(record, source="recall", relevance=document.relevance, score=score, signals=signals)


@cache
def section_of(category: MemoryCategory) -> str:
    """The section of memories of ``category``."""
    return f"{category.value}_memory"


class DropReason(str, Enum):
    """Why an item is left out."""

    IRRELEVANT = "irrelevant"
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"
    UNCONFIRMED = "unconfirmed"
    DOUBTED = "doubted"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Dropped:
    """An item that is left out, why, and the id of the one that stands for it, if there is one."""

    item: ContextItem
    reason: DropReason
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledContext:
    """A prompt's memory block: ``text``, its size in ``tokens`` by the engineer's counter, and the items in it.

    ``sections`` are in the order of the text. ``conflicts`` are groups of contradicting items of which none wins, and
    ``untrusted`` are items from a tool, a document or the web; the text marks both. ``dropped`` items are left out.
    ``left_out`` names the sources that failed or were late, and why.
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
        """All that is shown, in its order."""
        plain = [item for section in self.sections.values() for item in section]
        return [*plain, *(item for group in self.conflicts for item in group), *self.untrusted]
