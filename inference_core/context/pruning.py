"""What does not answer the question is not told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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

    ``min_chance`` holds for every item (`chances`), and so does ``min_relevance``, of the calibrated relevance that
    recall gives: by chance alone the second best would be told even where it has nothing in common with the question.
    ``min_best``: if the best one is less relevant, nothing answers the question, and nothing that was judged is told.
    ``max_external``: so many of what tools, documents and the web said are told, the likeliest, as poison comes in
    numbers. Raises ConfigurationError for numbers that are no shares, or negative.
    """

    min_chance: float = 0.016
    min_relevance: float = 0.04
    min_best: float = 0.06
    max_external: int = 1

    def __post_init__(self) -> None:
        for name in ("min_chance", "min_relevance", "min_best"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ConfigurationError(f"{name} must be from 0 to 1, not {value}")
        if self.max_external < 0:
            raise ConfigurationError(f"max_external must not be negative, not {self.max_external}")

    def least(self, items: Sequence[ContextItem]) -> float:
        """The chance from which on an item is told beside ``items``."""
        best = max((item.relevance or 0.0 for item in items), default=0.0)
        return _OUT_OF_REACH if best < self.min_best else self.min_chance


def chances(items: Sequence[ContextItem], min_relevance: float = 0.0) -> dict[Name, float]:
    """How likely each item that a source has judged is needed, from 0 to 1; 0 if it is less relevant than that.

    By its relevance, its place among the items of its source, and how far its score is below the best one's: logistic
    regression on one half of labelled questions, rounded. What comes from outside takes few places: a flood of texts
    that repeat the question would push out all others.
    """
    found: dict[Name, float] = {}
    for source in dict.fromkeys(item.source for item in items):
        judged = [item for item in items if item.source == source and item.relevance is not None]
        found |= _by_place(sorted(judged, key=lambda item: item.score, reverse=True))
        found |= {_name(item): 0.0 for item in judged if (item.relevance or 0.0) < min_relevance}
    return found


def _by_place(best_first: Sequence[ContextItem]) -> dict[Name, float]:
    found: dict[Name, float] = {}
    vouched = external = 0
    for item in best_first:
        place = vouched + min(external, _MAX_EXTERNAL)
        found[_name(item)] = _chance(item, place, best_first[0].score)
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


def few_external(
    items: Sequence[ContextItem], chance: dict[Name, float], most: int
) -> tuple[list[ContextItem], list[Dropped]]:
    """``items`` with the ``most`` likely ones of those that come from outside and were judged, and what is left out."""
    judged = [item for item in items if item.trust <= Trust.EXTERNAL and _name(item) in chance]
    over = {_name(item) for item in sorted(judged, key=lambda item: chance[_name(item)], reverse=True)[most:]}
    kept = [item for item in items if _name(item) not in over]
    return kept, [Dropped(item, DropReason.UNCONFIRMED) for item in items if _name(item) in over]


def _name(item: ContextItem) -> Name:
    return item.source, item.id


def is_told(item: ContextItem, chance: dict[Name, float], least: float) -> bool:
    """Whether ``item`` is likely enough to be needed, or told whatever the question."""
    is_pinned = item.record is not None and item.record.pinned
    return is_pinned or _name(item) not in chance or chance[_name(item)] >= least
