"""What a ranked search asks for and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING

from inference_core.memory.links import MemoryLink
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Row

if TYPE_CHECKING:
    from inference_core.embeddings.documents import QueryVectors


class RecallMode(str, Enum):
    """By which evidence hits were ranked."""

    HYBRID = "hybrid"
    LEXICAL = "lexical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A ranked search: each group of scopes gives its own ``limit`` best rows, the statistics are those of all.

    ``kinds`` and ``reject``, which says why a row is left out, are applied before the cut. ``collapses``: of rows whose
    contents say the same only the best is given. ``max_characters`` bounds the contents of a group together.
    ``fills``: when fewer match than are asked for, the newest others follow. ``diversity`` is what a content that
    repeats another one entirely loses of its score. ``explains``: rows come with the shares of their scores.
    ``by_itself``: what a text says counts, not who said it nor what was said around it. ``links``: rows that are linked
    with whom the text names, or with the best rows, gain by it, and some are added. ``patience`` is how long, in
    seconds, to wait for the query's vector, and how long for an index that is not there yet, rather than to do without.
    ``prefers_newer``: of the best rows that say something of the same, those of user or application, the newest is
    given first where the text asks for what holds now. ``now`` is what "last week" is counted from, in the user's time
    zone.
    """

    groups: Sequence[Sequence[Namespace]]
    text: str
    limit: int
    fills: bool = False
    kinds: frozenset[str] | None = None
    reject: Callable[[Row], str | None] | None = None
    collapses: bool = False
    max_characters: int | None = None
    diversity: float = 0.0
    explains: bool = False
    by_itself: bool = False
    prefers_newer: bool = False
    links: bool = False
    patience: float = 2.0
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Found:
    """A row, its score (higher is better), its relevance from 0 to 1, and, if explained, the shares of its score.

    ``links`` are those that add to the score.
    """

    row: Row
    score: float
    relevance: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    links: tuple[MemoryLink, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that would have been among the best but for ``reason``."""

    found: Found
    reason: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The rows of each group, the best first; how they were ranked; if not by all evidence, why; what was left out."""

    groups: list[list[Found]]
    mode: RecallMode
    reason: str | None = None
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])


@dataclass(frozen=True, slots=True)
class QuestionVectors:
    """The vectors of a question, or why there are none."""

    vectors: QueryVectors | None = None
    problem: str | None = None


def content_of(row: Row) -> str:
    """The text of the memory that ``row`` holds, "" if it holds none."""
    content = row.value.get("content")
    return content if isinstance(content, str) else ""
