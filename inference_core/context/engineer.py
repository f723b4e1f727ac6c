"""ContextEngineer: what a model is told of all that could be told, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import Final

from inference_core.context.answers import answering
from inference_core.context.conflicts import Resolved, asks_for_history, resolved
from inference_core.context.duplicates import DEFAULT_OVERLAP, collapsed
from inference_core.context.fitting import Unit, fitted
from inference_core.context.formats import FORMATS, Format, section_tag
from inference_core.context.items import AssembledContext, ContextItem, Dropped, DropReason
from inference_core.context.neutral import MAX_LINE_CHARACTERS
from inference_core.context.ordering import at_both_ends, by_value, in_sections
from inference_core.context.pruning import Pruning, chances, few_external, is_told, pruned
from inference_core.errors import ConfigurationError
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust

DEFAULT_MAX_TOKENS: Final = 2_000
_MAX_TEXT: Final = 2 * MAX_LINE_CHARACTERS


class ContextEngineer:
    """Chooses, orders and renders; holds nothing of a user, and is safe to share.

    Repeats are collapsed, contradictions resolved or told apart, what is not relevant is pruned (`Pruning`), the rest
    is ordered and fitted into the budget, counted by ``counter``. ``form`` is "xml", "markdown", "json" or a function.
    ``preamble``: the block begins with the time and what it is. ``min_overlap`` is from which share of common stems on,
    from 0 to 1, one text may stand for another. Raises ConfigurationError for a form or a share that is none.
    """

    def __init__(
        self,
        *,
        pruning: Pruning | None = None,
        min_overlap: float = DEFAULT_OVERLAP,
        counter: Callable[[str], int] = text_tokens,
        form: str | Format = "xml",
        preamble: bool = True,
    ) -> None:
        if isinstance(form, str) and form not in FORMATS:
            raise ConfigurationError(f"form must be one of {', '.join(FORMATS)}, or a function, not {form!r}")
        if not 0 <= min_overlap <= 1:
            raise ConfigurationError(f"min_overlap must be from 0 to 1, not {min_overlap}")
        self.pruning = pruning or Pruning()
        self.min_overlap = min_overlap
        self.counter = counter
        self.preamble = preamble
        self._render = FORMATS[form] if isinstance(form, str) else form

    def assemble(
        self,
        items: Iterable[ContextItem],
        *,
        query: str | None = None,
        now: datetime,
        zone: tzinfo = UTC,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> AssembledContext:
        """What is told of ``items`` to answer ``query``, in at most ``max_tokens``; its text is "" if that is nothing.

        The same items give the same text, whatever their order. Pure; never raises for what stands in items.
        """
        given = by_value(list(map(_bounded, items)))
        once, repeated = collapsed(given, self.min_overlap)
        history = asks_for_history(query)
        answers, others = answering(by_value(once), None if history else query)
        sorted_out = resolved(answers, keeps_history=history)
        units, irrelevant = self._relevant(sorted_out)
        kept, left_out = fitted(units, lambda chosen: self._told(chosen, now, zone).tokens, max_tokens)
        over = [Dropped(item, DropReason.BUDGET) for unit in left_out for item in unit.items]
        dropped = [*repeated, *others, *sorted_out.dropped, *irrelevant, *over]
        return replace(self._told(kept, now, zone), dropped=dropped)

    def _relevant(self, found: Resolved) -> tuple[list[Unit], list[Dropped]]:
        """What is relevant, the most valuable first, and what is not."""
        conflicts = [item for group in found.conflicts for item in group]
        everything = [*found.kept, *found.untrusted, *conflicts]
        chance = chances(everything, self.pruning.min_relevance)
        least = self.pruning.least(everything)
        likely, dropped = pruned(by_value([*found.kept, *found.untrusted]), chance, least)
        kept, external = few_external(likely, chance, self.pruning.max_external)
        dropped += external
        units = [Unit((item,)) for item in kept]
        for group in found.conflicts:
            if any(is_told(item, chance, least) for item in group):
                units.append(Unit(tuple(group)))
            else:
                dropped += [Dropped(item, DropReason.IRRELEVANT) for item in group]
        return sorted(units, key=lambda unit: unit.value, reverse=True), dropped

    def _told(self, units: Sequence[Unit], now: datetime, zone: tzinfo) -> AssembledContext:
        """The context of ``units``, rendered and counted."""
        single = [unit.items[0] for unit in units if not unit.is_conflict]
        context = AssembledContext(
            sections=in_sections([item for item in single if item.trust > Trust.EXTERNAL]),
            conflicts=[unit.items for unit in units if unit.is_conflict],
            untrusted=at_both_ends([item for item in single if item.trust <= Trust.EXTERNAL]),
        )
        text = self._render(context, now, zone, self.preamble) if units else ""
        return replace(context, text=text, tokens=self.counter(text) if text else 0)


def _bounded(item: ContextItem) -> ContextItem:
    """``item`` in a section whose name is an element's, with no more text than a line can show."""
    return replace(item, section=section_tag(item.section), text=item.text[:_MAX_TEXT])
