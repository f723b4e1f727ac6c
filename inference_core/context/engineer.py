"""ContextEngineer: what a model is told of all that could be told, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Final, TypeVar

from inference_core.context.answers import answering
from inference_core.context.comparing import DEFAULT_OVERLAP, Resolved, asks_for_history, collapsed, resolved
from inference_core.context.items import AssembledContext, ContextItem, Dropped, DropReason, section_of
from inference_core.context.pruning import Pruning, chances, few_external, is_told, pruned
from inference_core.context.render import FORMATS, MAX_LINE_CHARACTERS, MIN_CUT, Format, line_of, section_tag
from inference_core.errors import ConfigurationError
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory

T = TypeVar("T")
Counter = Callable[[str], int]
"""How many tokens a text takes."""
DEFAULT_MAX_TOKENS: Final = 2_000
UNJUDGED: Final = 0.5
"""What an item is worth that no source has judged."""
_SHORTER: Final = 0.8
_LEAST: Final = 0.01
_LATER: Final = 8
"""So many of what does not fit are tried one by one."""
_UNVOUCHED_SHARE: Final = 0.5
_MAX_TEXT: Final = 2 * MAX_LINE_CHARACTERS
_DAWN: Final = datetime.min.replace(tzinfo=UTC)
_IN_ORDER: Final = [section_of(category) for category in MemoryCategory]


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


class ContextEngineer:
    """Chooses, orders and renders; holds nothing of a user, and is safe to share.

    Repeats are collapsed, contradictions resolved or told apart, what is not relevant is pruned (`Pruning`), the rest
    is ordered and fitted into the budget, counted by ``counter``. ``min_overlap`` is from which share of common stems
    on, from 0 to 1, one text may stand for another. ``answers_only`` also leaves out short statements that answer
    another question than the one that was asked, which costs some evidence. With ``selects`` off, all is told, as far
    as the budget goes. ``form`` is "xml", "markdown", "json" or a function. ``preamble``: the block begins with the
    time and what it is. Raises ConfigurationError for a form or a share that is none.
    """

    def __init__(
        self,
        *,
        pruning: Pruning | None = None,
        min_overlap: float = DEFAULT_OVERLAP,
        counter: Counter = text_tokens,
        form: str | Format = "xml",
        preamble: bool = True,
        answers_only: bool = False,
        selects: bool = True,
    ) -> None:
        if isinstance(form, str) and form not in FORMATS:
            raise ConfigurationError(f"form must be one of {', '.join(FORMATS)}, or a function, not {form!r}")
        if not 0 <= min_overlap <= 1:
            raise ConfigurationError(f"min_overlap must be from 0 to 1, not {min_overlap}")
        self.pruning = pruning or Pruning()
        self.min_overlap = min_overlap
        self.counter = counter
        self.preamble = preamble
        self.answers_only = answers_only
        self.selects = selects
        self.form = form if isinstance(form, str) else "own"
        self._render = FORMATS[form] if isinstance(form, str) else form

    def assemble(
        self,
        items: Iterable[ContextItem],
        *,
        query: str | None = None,
        now: datetime,
        zone: tzinfo = UTC,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        preamble: bool | None = None,
    ) -> AssembledContext:
        """What is told of ``items`` to answer ``query``, in at most ``max_tokens``; its text is "" if that is nothing.

        The same items give the same text, whatever their order. ``preamble`` goes before the engineer's own. Pure;
        never raises for what stands in items.
        """
        is_introduced = self.preamble if preamble is None else preamble
        given = by_value(list(map(_bounded, items)))
        units, dropped = self._selected(given, query) if self.selects else ([Unit((item,)) for item in given], [])

        def tell(kept: Sequence[Unit]) -> AssembledContext:
            return self._told(kept, now, zone, preamble=is_introduced)

        context, over = self._fitted(units, tell, zone, max_tokens)
        return replace(context, dropped=[*dropped, *over])

    def _selected(self, given: Sequence[ContextItem], query: str | None) -> tuple[list[Unit], list[Dropped]]:
        """What is told if there is room, the most valuable first, and what is not."""
        once, dropped = collapsed(given, self.min_overlap)
        history = asks_for_history(query)
        if self.answers_only and not history:
            once, others = answering(by_value(once), query)
            dropped += others
        sorted_out = resolved(by_value(once), keeps_history=history)
        units, irrelevant = self._relevant(sorted_out)
        return units, [*dropped, *sorted_out.dropped, *irrelevant]

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

    def _fitted(
        self, units: Sequence[Unit], tell: Callable[[Sequence[Unit]], AssembledContext], zone: tzinfo, max_tokens: int
    ) -> tuple[AssembledContext, list[Dropped]]:
        """The context of as many of the best ``units`` as fit, and what does not.

        Nearly always all of them do, and one rendering is enough. Else each line is counted once; what the block takes
        besides its lines is taken for the same with fewer of them. A counter may count a whole as more than its parts,
        so that what was fitted is counted again, and the last units go until it is right.
        """
        context = tell(units)
        if context.tokens <= max_tokens:
            return context, []

        def cost(unit: Unit) -> int:
            return sum(self.counter(line_of(item, zone)) + 1 for item in unit.items)

        room = max_tokens - max(context.tokens - sum(map(cost, units)), 0)
        kept = fitted(units, cost, _cut, room)
        while (context := tell(kept)).tokens > max_tokens:
            kept = kept[:-1]
        there = {unit.items[0].id for unit in kept}
        for unit in [unit for unit in units if unit.items[0].id not in there][:_LATER]:
            if (wider := tell([*kept, unit])).tokens <= max_tokens:  # sections that are left out make room
                kept, context = [*kept, unit], wider
        told = {(item.source, item.id) for unit in kept for item in unit.items}
        over = [item for unit in units for item in unit.items if (item.source, item.id) not in told]
        return context, [Dropped(item, DropReason.BUDGET) for item in over]

    def _told(self, units: Sequence[Unit], now: datetime, zone: tzinfo, *, preamble: bool) -> AssembledContext:
        """The context of ``units``, rendered and counted."""
        single = [unit.items[0] for unit in units if not unit.is_conflict]
        context = AssembledContext(
            sections=in_sections([item for item in single if item.trust > Trust.EXTERNAL]),
            conflicts=[unit.items for unit in units if unit.is_conflict],
            untrusted=at_both_ends([item for item in single if item.trust <= Trust.EXTERNAL]),
        )
        text = self._render(context, now, zone, preamble) if units else ""
        return replace(context, text=text, tokens=self.counter(text) if text else 0)


EVERYTHING: Final = ContextEngineer(selects=False)
"""Tells all that it is given, as far as the budget goes."""


def fitted(
    best_first: Sequence[T], cost: Callable[[T], int], cut: Callable[[T, float], T | None], room: int
) -> list[T]:
    """As many of the first as cost no more than ``room`` together.

    Before anything is left out, what is long is cut: all to the same cost, so that one long text displaces no other.
    ``cut`` shortens to a share of the cost; None: not this one.
    """
    costs = list(map(cost, best_first))
    level = _level(costs, room)
    kept: list[T] = []
    for one, whole in zip(best_first, costs, strict=True):
        told, size, share = one, whole, level / max(whole, 1)
        while size > level and share > _LEAST and (shorter := cut(one, share)) is not None:
            told, size, share = shorter, cost(shorter), _SHORTER * share  # escaping makes parts of a text longer
        if size <= room:
            kept.append(told)
            room -= size
    return kept


def _level(costs: Sequence[int], room: int) -> float:
    """To what the highest of ``costs`` have to come down for all to fit into ``room``."""
    left = room
    for at, size in enumerate(ordered := sorted(costs)):
        if size * (len(ordered) - at) > left:
            return left / (len(ordered) - at)
        left -= size
    return max(costs, default=0)


def cut_item(item: ContextItem, share: float) -> ContextItem | None:
    """``item`` with about ``share`` of its text; None if that is too little to say anything."""
    length = max(int(share * len(item.text)), MIN_CUT)
    return replace(item, cut=length) if length < len(item.text) else None


def _cut(unit: Unit, share: float) -> Unit | None:
    (item, *others) = unit.items
    shorter = None if others else cut_item(item, share)
    return shorter and Unit((shorter,))


def value_of(item: ContextItem) -> float:
    """How much an item is worth, from 0 to 1."""
    return UNJUDGED if item.relevance is None else item.relevance


def by_value(items: Sequence[ContextItem]) -> list[ContextItem]:
    """``items``, the most valuable first; of equal ones the newer, then by id, in whatever order they came."""
    in_order = sorted(items, key=lambda item: (item.source, item.id, item.text))
    newest_first = sorted(in_order, key=_when, reverse=True)
    return sorted(newest_first, key=lambda item: (value_of(item), item.score), reverse=True)


def at_both_ends(best_first: Sequence[T]) -> list[T]:
    """The best one first, the second best last, the third best second, and so on.

    Models use what stands at the beginning and the end of a long input best (Liu et al. 2023, Lost in the Middle: How
    Language Models Use Long Contexts, arXiv 2307.03172).
    """
    return [*best_first[::2], *reversed(best_first[1::2])]


def in_sections(items: Sequence[ContextItem]) -> dict[str, list[ContextItem]]:
    """``items`` by section: those of the categories in the documents' order, then the others by their most valuable.

    Items stand at both ends of their section. What no source has judged is in the order of time: memories with the
    newest first, a conversation as it went.
    """
    sections: dict[str, list[ContextItem]] = {}
    for item in by_value(items):
        sections.setdefault(item.section, []).append(item)
    others = at_both_ends([name for name in sections if name not in _IN_ORDER])
    return {name: _placed(sections[name]) for name in (*_IN_ORDER, *others) if name in sections}


def _placed(best_first: Sequence[ContextItem]) -> list[ContextItem]:
    if any(item.relevance is not None for item in best_first):
        return at_both_ends(best_first)
    newest_first = sorted(best_first, key=_when, reverse=True)
    return newest_first if all(item.record for item in best_first) else newest_first[::-1]


def _when(item: ContextItem) -> datetime:
    return item.happened_at or _DAWN


def _bounded(item: ContextItem) -> ContextItem:
    """``item`` in a section whose name is an element's, with no more text than a line can show."""
    text, name = item.text[:_MAX_TEXT], section_tag(item.section)
    return item if (text, name) == (item.text, item.section) else replace(item, section=name, text=text)
