"""Statements that cannot both hold: who wins, and what is told apart because nobody does or nobody vouches for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, starmap
from typing import Final

from inference_core.context.items import ContextItem, Dropped, DropReason
from inference_core.memory.trust import Trust
from inference_core.slots import Relation
from inference_core.slots.comparing import Said, relation_of

_ASKS_FOR_HISTORY: Final = re.compile(
    r"\b(?:before|previous(?:ly)?|used to|former(?:ly)?|earlier|original(?:ly)?|at first|history|over time|any ?more|"
    r"no longer|chang(?:e|ed|es)|switch(?:ed)?|moved? from|fr\u00fcher|vorher|ehemals|zuvor)\b",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Resolved:
    """What is told as it is, what contradicts each other, what nobody vouches for, and what no longer holds."""

    kept: list[ContextItem] = field(default_factory=list[ContextItem])
    conflicts: list[list[ContextItem]] = field(default_factory=list[list[ContextItem]])
    untrusted: list[ContextItem] = field(default_factory=list[ContextItem])
    dropped: list[Dropped] = field(default_factory=list[Dropped])


@dataclass(frozen=True, slots=True, eq=False)
class _Statement:
    """An item, what it says, and its place among the items."""

    at: int
    item: ContextItem
    said: Said


def asks_for_history(query: str | None) -> bool:
    """Whether ``query`` asks for what held before."""
    return query is not None and _ASKS_FOR_HISTORY.search(query) is not None


def resolved(items: Sequence[ContextItem], *, keeps_history: bool = False) -> Resolved:
    """``items`` sorted into what is told as it is and what is not.

    Of two statements of which only one can hold, the newer one wins if it is trusted as much; where their times are the
    same or not known, the more trusted one. It becomes as relevant as what it takes the place of. If neither wins, both
    are told, as a conflict. What comes from tools, documents and the web is told apart and never wins against what was
    stated. ``keeps_history``: what held before is told too.
    """
    if keeps_history:
        return _sorted_out(items, {}, [])
    heirs = _noted(items)
    disputes: list[tuple[int, int]] = []
    statements = [_Statement(at, item, Said.of(item.text, item.happened_at)) for at, item in enumerate(items)]
    for old, new in starmap(_by_age, combinations(filter(_is_compared, statements), 2)):
        if not _exclude(old, new):
            continue
        loser = _loser(old, new)
        if loser is not None:
            heirs.setdefault(loser.at, (new if loser is old else old).item)
        elif Trust.EXTERNAL not in (old.item.trust, new.item.trust):
            disputes.append((old.at, new.at))
    return _sorted_out(items, heirs, _groups([pair for pair in disputes if heirs.keys().isdisjoint(pair)]))


def _sorted_out(
    items: Sequence[ContextItem], heirs: Mapping[int, ContextItem | str], groups: Sequence[Sequence[int]]
) -> Resolved:
    relevant = _inherited(items, heirs)
    result = Resolved(conflicts=[[relevant[at] for at in group] for group in groups])
    disputed = {at for group in groups for at in group}
    for at, item in enumerate(relevant):
        if at in heirs:
            heir = heirs[at]
            result.dropped.append(Dropped(item, DropReason.SUPERSEDED, heir if isinstance(heir, str) else heir.id))
        elif item.trust <= Trust.EXTERNAL:
            result.untrusted.append(item)
        elif at not in disputed:
            result.kept.append(item)
    return result


def _inherited(items: Sequence[ContextItem], heirs: Mapping[int, ContextItem | str]) -> list[ContextItem]:
    """``items``, each at least as relevant as those whose place it takes; heirs have heirs."""
    places = {id(item): at for at, item in enumerate(items)}
    relevance = [item.relevance for item in items]
    for at in heirs:
        heir, worth = heirs.get(at), items[at].relevance
        for _ in heirs:
            if heir is None or isinstance(heir, str):
                break
            place = places[id(heir)]
            own = relevance[place]
            relevance[place] = own if own is None or worth is None else max(own, worth)
            heir = heirs.get(place)
    return [replace(item, relevance=worth) for item, worth in zip(items, relevance, strict=True)]


def _noted(items: Sequence[ContextItem]) -> dict[int, ContextItem | str]:
    """By place, the heirs that are stored with memories; the id of those that are not among ``items``."""
    heirs = {old: item for item in items if item.record for old in item.record.supersedes}
    known: dict[int, ContextItem | str] = {}
    for at, item in enumerate(items):
        if item.record is not None and (heir := heirs.get(item.id, item.record.superseded_by)):
            known[at] = heir
    return known


def _is_compared(statement: _Statement) -> bool:
    """Whether it is a plain statement; what an agent merely said of itself is none."""
    is_memory_or_user = statement.item.record is not None or statement.item.trust is not Trust.INFERRED
    return bool(statement.said.slots) and is_memory_or_user


def _by_age(first: _Statement, second: _Statement) -> tuple[_Statement, _Statement]:
    """The older one, then the newer one; in their order, if that is not known."""
    one, other = first.item.happened_at, second.item.happened_at
    return (second, first) if one is not None and other is not None and other < one else (first, second)


def _exclude(old: _Statement, new: _Statement) -> bool:
    if relation_of(old.said, new.said) is Relation.SUPERSEDES:
        return True
    return not _is_newer(old, new) and relation_of(new.said, old.said) is Relation.SUPERSEDES


def _is_newer(old: _Statement, new: _Statement) -> bool:
    one, other = old.item.happened_at, new.item.happened_at
    return one is not None and other is not None and one < other


def _loser(old: _Statement, new: _Statement) -> _Statement | None:
    trusts = old.item.trust, new.item.trust
    if _is_newer(old, new):
        return old if trusts[1] >= trusts[0] else None
    if trusts[0] == trusts[1] or Trust.EXTERNAL in trusts:
        return None
    return old if trusts[0] < trusts[1] else new


def _groups(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Places that are connected by ``pairs``, each group in order."""
    groups: list[set[int]] = []
    for pair in pairs:
        joined = set(pair).union(*(group for group in groups if not group.isdisjoint(pair)))
        groups = [group for group in groups if group.isdisjoint(pair)] + [joined]
    return sorted(map(sorted, groups))
