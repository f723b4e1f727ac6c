"""What does not answer the question is not told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

from inference_core.context.items import ContextItem, Dropped, DropReason
from inference_core.errors import ConfigurationError
from inference_core.memory.trust import Trust

_OUT_OF_REACH: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How relevant an item has to be, by the calibrated relevance that recall gives, from 0 to 1.

    ``min_relevance`` holds for every item. ``share_of_best``: an item that is less than this share as relevant as the
    best one is noise beside it. ``min_best``: if even the best one is less relevant, nothing answers the question, and
    nothing that was judged is told. Raises ConfigurationError for numbers that are no shares.
    """

    min_relevance: float = 0.08
    share_of_best: float = 0.3
    min_best: float = 0.12

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 0 <= (value := getattr(self, one.name)) <= 1:
                raise ConfigurationError(f"{one.name} must be from 0 to 1, not {value}")

    def least(self, items: Sequence[ContextItem]) -> float:
        """The relevance from which on an item is told beside ``items``.

        What comes from outside does not decide what the best one is: a text that repeats the question would push out
        all others.
        """
        best = _best(item for item in items if item.trust > Trust.EXTERNAL) or _best(items)
        return _OUT_OF_REACH if best < self.min_best else max(self.min_relevance, self.share_of_best * best)


def pruned(items: Sequence[ContextItem], least: float) -> tuple[list[ContextItem], list[Dropped]]:
    """The items whose relevance is at least ``least``, those that no source has judged, and pinned memories; the rest.

    Both in their order.
    """
    kept = [item for item in items if is_told(item, least)]
    return kept, [Dropped(item, DropReason.IRRELEVANT) for item in items if not is_told(item, least)]


def is_told(item: ContextItem, least: float) -> bool:
    """Whether ``item`` is relevant enough, or told whatever the question."""
    is_pinned = item.record is not None and item.record.pinned
    return item.relevance is None or item.relevance >= least or is_pinned


def _best(items: Iterable[ContextItem]) -> float:
    return max((item.relevance or 0.0 for item in items), default=0.0)
