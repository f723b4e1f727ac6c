"""What a ranked search asks for and gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Row


class RecallMode(str, Enum):
    """By which evidence hits were ranked."""

    HYBRID = "hybrid"
    LEXICAL = "lexical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A ranked search: each group of scopes gives its own ``limit`` best rows, the statistics are those of all.

    ``kinds`` and ``accept`` are applied before the cut. ``embed_timeout`` bounds the wait for the query's vector.
    """

    groups: Sequence[Sequence[Namespace]]
    text: str
    limit: int
    kinds: frozenset[str] | None = None
    accept: Callable[[Row], bool] | None = None
    embed_timeout: float = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """A row and its score; higher is better."""

    row: Row
    score: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The rows of each group, the best first; how they were ranked; and, if not by all evidence, why."""

    groups: list[list[Found]]
    mode: RecallMode
    reason: str | None = None
