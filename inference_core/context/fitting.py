"""What is told is never more than the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inference_core.context.items import ContextItem
from inference_core.context.neutral import CUT_MARK
from inference_core.context.ordering import value_of
from inference_core.memory.trust import Trust

MIN_CUT: Final = 160
"""A text is not cut to fewer characters than these."""
_UNVOUCHED_SHARE: Final = 0.5
_LATER: Final = 8
"""So many of what comes after the first unit that does not fit are tried."""
_HALVINGS: Final = 8


@dataclass(frozen=True, slots=True)
class Unit:
    """What is told together or not at all: an item, or a conflict's items."""

    items: tuple[ContextItem, ...]

    @property
    def is_conflict(self) -> bool:
        """Whether its items contradict each other."""
        return len(self.items) > 1

    @property
    def value(self) -> float:
        """What it is worth: as much as its best item; what nobody vouches for is worth less."""
        share = _UNVOUCHED_SHARE if self.items[0].trust <= Trust.EXTERNAL else 1.0
        return share * max(map(value_of, self.items))


Cost = Callable[[Sequence[Unit]], int]
"""How many tokens a block of units takes."""


def fitted(best_first: Sequence[Unit], cost: Cost, max_tokens: int) -> tuple[list[Unit], list[Unit]]:
    """As many of the best units as cost no more than ``max_tokens``, and those that are left out.

    Of the first unit that does not fit a long text is cut, to half of what is left; then the next ones that fit follow.
    """
    count = _prefix(best_first, cost, max_tokens)
    kept, rest = list(best_first[:count]), list(best_first[count:])
    if rest and (shorter := _cut(kept, rest[0], cost, (cost(kept) + max_tokens) // 2)):
        kept.append(shorter)
        rest = rest[1:]
    left_out: list[Unit] = []
    for at, unit in enumerate(rest):
        if at < _LATER and cost([*kept, unit]) <= max_tokens:
            kept.append(unit)
        else:
            left_out.append(unit)
    return kept, left_out


def _prefix(units: Sequence[Unit], cost: Cost, max_tokens: int) -> int:
    """How many of the first ``units`` fit."""
    if cost(units) <= max_tokens:
        return len(units)
    fits, too_many = 0, len(units)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if cost(units[:middle]) <= max_tokens:
            fits = middle
        else:
            too_many = middle
    return fits


def _cut(kept: Sequence[Unit], unit: Unit, cost: Cost, max_tokens: int) -> Unit | None:
    """``unit`` with as much of its long text as fits behind ``kept``; None if that is not worth it."""
    (item, *others) = unit.items
    if others or len(item.text) < 2 * MIN_CUT:
        return None
    found, least, most = None, MIN_CUT, len(item.text)
    for _ in range(_HALVINGS):
        middle = (least + most) // 2
        shorter = Unit((replace(item, text=item.text[:middle].rstrip() + CUT_MARK),))
        if cost([*kept, shorter]) <= max_tokens:
            found, least = shorter, middle
        else:
            most = middle
    return found
