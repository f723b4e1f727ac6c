"""What does not answer the question is not told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from inference_core.context.items import ContextItem, Dropped, DropReason
from inference_core.errors import ConfigurationError
from inference_core.memory.trust import Trust

Name = tuple[str, str]
"""An item's source and id."""
_OUT_OF_REACH: Final = 2.0
_MAX_EXTERNAL: Final = 5
_SURE: Final = 0.995
_RELEVANCE: Final = 0.42
_PLACE: Final = -0.83
_DISTANCE: Final = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How likely an item has to be needed, from 0 to 1.

    ``min_chance`` holds for every item (`chances`). ``min_best``: if even the best one is less relevant by the
    calibrated relevance that recall gives, nothing answers the question, and nothing that was judged is told. Raises
    ConfigurationError for numbers that are no shares.
    """

    min_chance: float = 0.016
    min_best: float = 0.06

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 0 <= (value := getattr(self, one.name)) <= 1:
                raise ConfigurationError(f"{one.name} must be from 0 to 1, not {value}")

    def least(self, items: Sequence[ContextItem]) -> float:
        """The chance from which on an item is told beside ``items``."""
        best = max((item.relevance or 0.0 for item in items), default=0.0)
        return _OUT_OF_REACH if best < self.min_best else self.min_chance


def chances(items: Sequence[ContextItem]) -> dict[Name, float]:
    """How likely each item that a source has judged is needed, from 0 to 1.

    By its relevance, its place among the items of its source, and how far its score is below the best one's: logistic
    regression on one half of labelled questions, rounded. What comes from outside takes few places: a flood of texts
    that repeat the question would push out all others.
    """
    found: dict[Name, float] = {}
    for source in dict.fromkeys(item.source for item in items):
        judged = [item for item in items if item.source == source and item.relevance is not None]
        found |= _by_place(sorted(judged, key=lambda item: item.score, reverse=True))
    return found


def _by_place(best_first: Sequence[ContextItem]) -> dict[Name, float]:
    found: dict[Name, float] = {}
    vouched = external = 0
    for item in best_first:
        place = vouched + min(external, _MAX_EXTERNAL)
        found[item.source, item.id] = _chance(item, place, best_first[0].score)
        vouched, external = vouched + (item.trust > Trust.EXTERNAL), external + (item.trust <= Trust.EXTERNAL)
    return found


def _chance(item: ContextItem, place: int, best_score: float) -> float:
    relevance = min(max(item.relevance or 0.0, 1 - _SURE), _SURE)
    evidence = _RELEVANCE * math.log(relevance / (1 - relevance))
    evidence += _PLACE * math.log1p(place) + _DISTANCE * (item.score - best_score)
    return 1 / (1 + math.exp(-evidence))


def pruned(
    items: Sequence[ContextItem], chance: dict[Name, float], least: float
) -> tuple[list[ContextItem], list[Dropped]]:
    """The items whose chance is at least ``least``, those that no source has judged, and pinned memories; the rest.

    Both in their order.
    """
    kept = [item for item in items if is_told(item, chance, least)]
    return kept, [Dropped(item, DropReason.IRRELEVANT) for item in items if not is_told(item, chance, least)]


def is_told(item: ContextItem, chance: dict[Name, float], least: float) -> bool:
    """Whether ``item`` is likely enough to be needed, or told whatever the question."""
    is_pinned = item.record is not None and item.record.pinned
    return is_pinned or chance.get((item.source, item.id), 1.0) >= least
