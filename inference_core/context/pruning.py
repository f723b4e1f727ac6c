"""What does not answer the question is not told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inference_core.context.items import ContextItem, Dropped, DropReason
from inference_core.errors import ConfigurationError
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust

Name = tuple[str, str]
"""An item's source and id."""
_OUT_OF_REACH: Final = 2.0
_MAX_EXTERNAL: Final = 5
_SURE: Final = 0.995
# Logistic regression on one half of conversations and saved memories, rounded; see `docs/context-quality.md`.
_BASE: Final = 0.18
_RELEVANCE: Final = 0.37
_AMONG: Final = 0.34
_PLACE: Final = -0.84
_DISTANCE: Final = 0.14
_USUAL_TOKENS: Final = 25
"""An item of so many tokens is told for its chance alone; a longer one has to be likelier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How likely an item has to be needed, from 0 to 1.

    ``min_chance`` holds for every item (`chances`); by default the first that recall found is always told, and 97 % of
    what is needed. The others are off, as they cost evidence, most of all where a user has few memories:
    ``min_relevance`` is of the calibrated relevance that recall gives; if the best one is less relevant than
    ``min_best``, nothing that was judged is told. ``max_external``: so many of what tools, documents and the web said
    are told, the likeliest, as poison comes in numbers. Raises ConfigurationError for numbers that are no shares, or
    negative.
    """

    min_chance: float = 0.01
    min_relevance: float = 0.0
    min_best: float = 0.0
    max_external: int = 2

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

    By its relevance, also beside the most relevant item, its place, and how far its score is below the best one's of
    its source; less if it is long. What other sources gave that is more relevant goes before it. What comes from
    outside takes few places: a flood of texts that repeat the question would push out all others.
    """
    judged = [item for item in items if item.relevance is not None]
    best = max((item.relevance or 0.0 for item in judged), default=0.0)
    found: dict[Name, float] = {}
    for source in dict.fromkeys(item.source for item in judged):
        own = sorted((item for item in judged if item.source == source), key=lambda item: item.score, reverse=True)
        others = [item.relevance or 0.0 for item in judged if item.source != source and item.trust > Trust.EXTERNAL]
        vouched = external = 0
        for item in own:
            before = vouched + min(external, _MAX_EXTERNAL) + sum(other > (item.relevance or 0.0) for other in others)
            is_relevant = (item.relevance or 0.0) >= min_relevance
            found[_name(item)] = _chance(item, before, own[0].score, best) if is_relevant else 0.0
            vouched, external = vouched + (item.trust > Trust.EXTERNAL), external + (item.trust <= Trust.EXTERNAL)
    return found


def _chance(item: ContextItem, place: int, best_score: float, best_relevance: float) -> float:
    own = _logit(item.relevance or 0.0)
    evidence = _BASE + _RELEVANCE * own + _AMONG * (own - _logit(best_relevance))
    evidence += _PLACE * math.log1p(place) + _DISTANCE * (item.score - best_score)
    return min(1.0, math.sqrt(_USUAL_TOKENS / max(text_tokens(item.text), 1))) / (1 + math.exp(-evidence))


def _logit(share: float) -> float:
    bounded = min(max(share, 1 - _SURE), _SURE)
    return math.log(bounded / (1 - bounded))


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


def is_told(item: ContextItem, chance: dict[Name, float], least: float) -> bool:
    """Whether ``item`` is likely enough to be needed, or told whatever the question."""
    is_pinned = item.record is not None and item.record.pinned
    return is_pinned or _name(item) not in chance or chance[_name(item)] >= least


def _name(item: ContextItem) -> Name:
    return item.source, item.id
