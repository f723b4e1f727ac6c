"""The most relevant first and last, where models read best, the least relevant in the middle.

Models use what stands at the beginning and the end of a long input best (Liu et al. 2023, Lost in the Middle: How
Language Models Use Long Contexts, arXiv 2307.03172).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from inference_core.context.items import ContextItem

T = TypeVar("T")
UNJUDGED: Final = 0.5
"""What an item is worth that no source has judged."""
_DAWN: Final = datetime.min.replace(tzinfo=UTC)


def value_of(item: ContextItem) -> float:
    """How much an item is worth, from 0 to 1."""
    return UNJUDGED if item.relevance is None else item.relevance


def by_value(items: Sequence[ContextItem]) -> list[ContextItem]:
    """``items``, the most valuable first; of equal ones the newer, then by id, in whatever order they came."""
    in_order = sorted(items, key=lambda item: (item.source, item.id, item.text))
    newest_first = sorted(in_order, key=_when, reverse=True)
    return sorted(newest_first, key=lambda item: (value_of(item), item.score), reverse=True)


def at_both_ends(best_first: Sequence[T]) -> list[T]:
    """The best one first, the second best last, the third best second, and so on."""
    return [*best_first[::2], *reversed(best_first[1::2])]


def in_sections(items: Sequence[ContextItem]) -> dict[str, list[ContextItem]]:
    """``items`` by section: the sections, by their most valuable item, and the items of each stand at both ends.

    A section that no source has judged, such as a conversation, is in the order of time.
    """
    sections: dict[str, list[ContextItem]] = {}
    for item in by_value(items):
        sections.setdefault(item.section, []).append(item)
    return {name: _placed(sections[name]) for name in at_both_ends(list(sections))}


def _placed(best_first: Sequence[ContextItem]) -> list[ContextItem]:
    if any(item.relevance is not None for item in best_first):
        return at_both_ends(best_first)
    oldest_first = best_first[::-1]
    return sorted(oldest_first, key=_when)


def _when(item: ContextItem) -> datetime:
    return item.happened_at or _DAWN
