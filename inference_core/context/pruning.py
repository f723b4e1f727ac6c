"""Leaves out what is unlikely to be needed for the question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inference_core.context.items import ContextItem, Dropped, DropReason
from inference_core.errors import ConfigurationError
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust

Chances = Mapping[tuple[str, str], float]
"""By source and id of an item, how likely it is needed, from 0 to 1."""
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
"""An item of up to this size is judged by its chance alone; a longer one has to be likelier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How likely an item has to be needed, from 0 to 1.

    ``min_chance`` holds for every item (`chances`); the default keeps the first that recall found, and 97 % of what is
    needed. The others are off, as they cost evidence, most of all where a user has few memories: ``min_relevance`` is
    a least calibrated relevance; if the best item is less relevant than ``min_best``, nothing judged is kept. Of what
    tools, documents and the web said, the ``max_external`` likeliest are kept, as poison comes in numbers. Raises
    ConfigurationError for shares outside 0 to 1, or a negative number.
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
        """The chance from which on an item is kept among ``items``."""
        best = max((item.relevance or 0.0 for item in items), default=0.0)
        return _OUT_OF_REACH if best < self.min_best else self.min_chance


def chances(items: Sequence[ContextItem], min_relevance: float = 0.0) -> Chances:
    """How likely each judged item is needed; 0 for one that is less relevant than ``min_relevance``.

    It depends on the item's relevance, also compared with the most relevant item, on its place, and on how far its
    score is below the best of its source; a long item is less likely. More relevant items of other sources go before
    it. Items from outside count for few places: a flood of texts that repeat the question would push out all others.
    """
    judged = [item for item in items if item.relevance is not None]
    best = max((item.relevance or 0.0 for item in judged), default=0.0)
    found: dict[tuple[str, str], float] = {}
    for source in dict.fromkeys(item.source for item in judged):
        own = sorted((item for item in judged if item.source == source), key=lambda item: item.score, reverse=True)
        others = [item.relevance or 0.0 for item in judged if item.source != source and item.trust > Trust.EXTERNAL]
        vouched = external = 0
        for item in own:
            relevance = item.relevance or 0.0
            before = vouched + min(external, _MAX_EXTERNAL) + sum(other > relevance for other in others)
            evidence = _BASE + _RELEVANCE * _logit(relevance) + _AMONG * (_logit(relevance) - _logit(best))
            evidence += _PLACE * math.log1p(before) + _DISTANCE * (item.score - own[0].score)
            brevity = min(1.0, math.sqrt(_USUAL_TOKENS / max(text_tokens(item.text), 1)))
            found[source, item.id] = brevity / (1 + math.exp(-evidence)) if relevance >= min_relevance else 0.0
            vouched, external = vouched + (item.trust > Trust.EXTERNAL), external + (item.trust <= Trust.EXTERNAL)
    return found


def _logit(share: float) -> float:
    bounded = min(max(share, 1 - _SURE), _SURE)
    return math.log(bounded / (1 - bounded))


def pruned(
    items: Sequence[ContextItem], chance: Chances, least: float, max_external: int
) -> tuple[list[ContextItem], list[Dropped]]:
    """The items that are likely enough, with at most ``max_external`` judged ones from outside, and the others."""
    likely = [item for item in items if is_likely(item, chance, least)]
    dropped = [Dropped(item, DropReason.IRRELEVANT) for item in items if not is_likely(item, chance, least)]
    external = [item for item in likely if item.trust <= Trust.EXTERNAL and (item.source, item.id) in chance]
    external.sort(key=lambda item: chance[item.source, item.id], reverse=True)
    over = {(item.source, item.id) for item in external[max_external:]}
    dropped += [Dropped(item, DropReason.UNCONFIRMED) for item in likely if (item.source, item.id) in over]
    return [item for item in likely if (item.source, item.id) not in over], dropped


def is_likely(item: ContextItem, chance: Chances, least: float) -> bool:
    """Whether ``item`` is likely enough to be needed; a pinned memory, and what no source has judged, always is."""
    is_pinned = item.record is not None and item.record.pinned
    return is_pinned or chance.get((item.source, item.id), math.inf) >= least
