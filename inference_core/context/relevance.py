"""Leaves out what is unlikely to be needed for the question, by what recall found."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inference_core.context.items import STANDING, ContextItem, Dropped, DropReason
from inference_core.errors import ConfigurationError
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust

Chances = Mapping[tuple[str, str], float]
"""By source and id of an item, how likely it is needed, from 0 to 1."""
_MAX_EXTERNAL: Final = 5
_SURE: Final = 0.995
_FEW: Final = 5
_NECESSITY: Final = 0.35
"""What a unit of necessity takes off the log-odds of the relevance that is asked for."""
# Logistic regression on one half of conversations and saved memories, rounded; see `docs/context-quality.md`.
_BASE: Final = 0.18
_RELEVANCE: Final = 0.37
_AMONG: Final = 0.34
_PLACE: Final = -0.84
_DISTANCE: Final = 0.14
_USUAL_TOKENS: Final = 25
"""An item of up to this size is judged by its chance alone; a longer one has to be likelier."""
_LONG_TOKENS: Final = 800
"""A longer item is cut anyway if there is no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """The thresholds, from 0 to 1, below which items are left out; none of them leaves out a pinned memory.

    Args:
        min_chance: The minimum estimated chance that an item is needed (`chances`).
        min_relevance: A minimum relevance for every item; off by default, because it loses more.
        min_best: How relevant the most relevant item must be for a message of which it is as likely as not that a
            reply needs memory; else only items without a relevance are kept. The less likely it is, the more relevant
            it must be (`relevance_asked`).
        min_any: What is asked of it if no model tells how likely that is.
        max_external: At most this many items from tools, documents and the web are kept, the likeliest ones, because
            poisoned texts come in numbers.
        keeps_standing: Whether rules and preferences stay where ``min_best`` or ``min_any`` leaves items out.

    Raises:
        ConfigurationError: A threshold is not from 0 to 1, or ``max_external`` is negative.
    """

    min_chance: float = 0.01
    min_relevance: float = 0.0
    min_best: float = 0.07
    min_any: float = 0.05
    max_external: int = 2
    keeps_standing: bool = True

    def __post_init__(self) -> None:
        for name in ("min_chance", "min_relevance", "min_best", "min_any"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ConfigurationError(f"{name} must be from 0 to 1, not {value}")
        if self.max_external < 0:
            raise ConfigurationError(f"max_external must not be negative, not {self.max_external}")


def relevance_asked(items: Sequence[ContextItem], necessity: float | None, pruning: Pruning) -> float:
    """How relevant the most relevant of ``items`` must be for any to have to do with the message.

    ``necessity`` is the log-odds that a reply needs memory, by the vector of the message. It and the relevance are
    evidence of the same thing, so what the one lacks the other makes up for: thanks or a sum that memory has to do with
    are told, and so is a question about the user whose words no memory shares. Unless a reply rather needs no memory, a
    few items are shown whatever their relevance: they take little room, and "Plan my day" may draw on anything.
    """
    are_few = sum(item.relevance is not None for item in items) <= _FEW
    if are_few and (necessity is None or necessity > 0):
        return 0.0
    if necessity is None:
        return pruning.min_any
    if not pruning.min_best:
        return 0.0
    # The logistic function; `exp` would overflow.
    return 0.5 + 0.5 * math.tanh((_logit(pruning.min_best) - _NECESSITY * necessity) / 2)


def chances(
    items: Sequence[ContextItem],
    min_relevance: float = 0.0,
    min_best: float = 0.0,
    spared: Collection[str | None] = STANDING,
) -> Chances:
    """How likely each judged item is needed; 0 for one that is less relevant than ``min_relevance``.

    If none is as relevant as ``min_best``, 0 for all but the kinds that are ``spared``: rules and preferences, which
    hold whatever is asked.

    It depends on the item's relevance, also compared with the most relevant item, on its place, and on how far its
    score is below the best of its source; a long item that is not the best is less likely. More relevant items of other
    sources go before it. Items from outside count for few places: a flood of texts that repeat the question would push
    out all others.
    """
    judged = [item for item in items if item.relevance is not None]
    best = max((item.relevance or 0.0 for item in judged), default=0.0)
    found: dict[tuple[str, str], float] = {}
    for source in dict.fromkeys(item.source for item in judged):
        own = [item for item in judged if item.source == source]
        own.sort(key=lambda item: item.score - item.doubt, reverse=True)
        first = own[0].score - own[0].doubt
        others = [item.relevance or 0.0 for item in judged if item.source != source and item.trust > Trust.EXTERNAL]
        vouched = external = 0
        for item in own:
            relevance = item.relevance or 0.0
            before = vouched + min(external, _MAX_EXTERNAL) + sum(other > relevance for other in others)
            evidence = _BASE + _RELEVANCE * _logit(relevance) + _AMONG * (_logit(relevance) - _logit(best))
            evidence += _PLACE * math.log1p(before) + _DISTANCE * (item.score - item.doubt - first)
            tokens = min(max(text_tokens(item.text), _USUAL_TOKENS), _LONG_TOKENS)
            brevity = math.sqrt(_USUAL_TOKENS / tokens) if before else 1.0
            is_silenced = best < min_best and item.kind not in spared
            is_out = relevance < min_relevance or is_silenced
            found[source, item.id] = 0.0 if is_out else brevity / (1 + math.exp(-evidence))
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
    external = [item for item in likely if item.trust <= Trust.EXTERNAL and item.key in chance]
    external.sort(key=lambda item: chance[item.key], reverse=True)
    over = {item.key for item in external[max_external:]}
    dropped += [Dropped(item, DropReason.UNCONFIRMED) for item in likely if item.key in over]
    return [item for item in likely if item.key not in over], dropped


def is_likely(item: ContextItem, chance: Chances, least: float) -> bool:
    """Whether ``item`` is likely enough to be needed; a pinned memory, and what no source has judged, always is."""
    is_pinned = item.record is not None and item.record.pinned
    return is_pinned or 0 < chance.get(item.key, math.inf) >= least
