"""What texts are to each other: the same, told once, or such that only one can hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, starmap
from typing import Any, Final

from inference_core.context.items import ContextItem, Dropped, DropReason, section_of
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.analysis import analyze
from inference_core.retrieval.similarity import gist, overlap, words_of
from inference_core.slots import Comparison
from inference_core.slots.reading import Said, compare_said
from inference_core.slots.words import word_set

DEFAULT_OVERLAP: Final = 0.6
_SPARE: Final = 0.1
_TURNING: Final = word_set(
    "not no never nor none neither without nicht kein keine nie former formerly previously ex used stopped quit anymore"
    " longer instead unless except only until was were had if maybe perhaps might cannot"
)
"""Words by which a text says something else than the same text without them."""
_NAME: Final = re.compile(r"(?<![.!?:] )(?<!\A)\b[A-Z][\w'-]*")


@dataclass(frozen=True, slots=True)
class _Said:
    """An item as it is compared: its stems, and the names, numbers and turning words among its words."""

    item: ContextItem
    stems: frozenset[str]
    meant: frozenset[str]
    turning: frozenset[str]
    exact: frozenset[str]

    @classmethod
    def of(cls, item: ContextItem) -> _Said:
        return cls(item, *_features(item.text))


@lru_cache(maxsize=4_096)
def _features(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str]]:
    """Stems, gist, turning words, names and numbers; cached, as the same memories are compared in turn after turn."""
    words = words_of(text)
    turning = frozenset(word for word in words if word in _TURNING or word.endswith(("n't", "n\u2019t")))
    numbers = (word for word in words if any(map(str.isdigit, word)))
    exact = frozenset([*map(str.casefold, _NAME.findall(text)), *numbers])
    meant = gist(text)
    stems = frozenset(stem for word in meant for stem in analyze(word) or (word,))
    return stems, meant, turning, exact


def collapsed(
    items: Sequence[ContextItem], min_overlap: float = DEFAULT_OVERLAP
) -> tuple[list[ContextItem], list[Dropped]]:
    """``items`` without those that say only what another one says that is trusted as much, and the others.

    Of a memory that several sources gave, and of equal texts, one is kept; of two texts whose stems overlap by
    ``min_overlap`` the one that tells more, if the other has no name, number or negation of its own; what comes from
    outside may not add to it. Who is kept is as relevant as the best of them. What was said twice in the same
    conversation was said twice.
    """
    kept: list[_Said] = []
    dropped: list[Dropped] = []
    for said in sorted(map(_Said.of, items), key=_by_merit, reverse=True):
        at = next((at for at, other in enumerate(kept) if _tells(other, said, min_overlap)), None)
        if at is None:
            kept.append(said)
        else:
            dropped.append(Dropped(said.item, DropReason.DUPLICATE, kept[at].item.id))
            kept[at] = replace(kept[at], item=_merged(kept[at].item, said.item))
    return [said.item for said in kept], dropped


def _by_merit(said: _Said) -> tuple[Any, ...]:
    """Trusted before not, rules before what is none, more before less; a section of its own before a category's."""
    item = said.item
    category = item.record.category if item.record else None
    is_special = category is not None and item.section != section_of(category)
    when = item.happened_at.timestamp() if item.happened_at else 0.0
    is_rule = category is MemoryCategory.PROCEDURAL
    return item.relevance is None, item.trust, is_rule, len(said.stems), is_special, item.relevance or 0.0, when


def _tells(kept: _Said, said: _Said, min_overlap: float) -> bool:
    """Whether ``kept`` says all that ``said`` does."""
    if kept.item.trust < said.item.trust or _are_utterances(kept.item, said.item):
        return False
    if _is_same_memory(kept.item, said.item) or kept.item.text == said.item.text:
        return True
    if kept.meant == said.meant:
        return bool(said.meant)
    if kept.turning != said.turning or not said.exact <= kept.exact or overlap(kept.stems, said.stems) < min_overlap:
        return False
    adds = len(kept.stems - said.stems) > _SPARE * len(kept.stems)
    if adds and Trust.EXTERNAL in (kept.item.trust, said.item.trust):
        return False
    return len(said.stems - kept.stems) <= _SPARE * len(said.stems)


def _is_same_memory(first: ContextItem, second: ContextItem) -> bool:
    one, other = first.record, second.record
    return one is not None and other is not None and (one.namespace, one.id) == (other.namespace, other.id)


def _are_utterances(first: ContextItem, second: ContextItem) -> bool:
    return first.source == second.source and all(one.record is None is one.relevance for one in (first, second))


def _merged(kept: ContextItem, other: ContextItem) -> ContextItem:
    if kept.relevance is None or other.relevance is None or kept.relevance >= other.relevance:
        return kept
    return replace(kept, relevance=other.relevance, score=max(kept.score, other.score))


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
class _Claim:
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
    statements = [_Claim(at, item, Said.of(item.text, item.happened_at)) for at, item in enumerate(items)]
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


def _is_compared(statement: _Claim) -> bool:
    """Whether it is a plain statement; what an agent merely said of itself is none."""
    is_memory_or_user = statement.item.record is not None or statement.item.trust is not Trust.INFERRED
    return bool(statement.said.slots) and is_memory_or_user


def _by_age(first: _Claim, second: _Claim) -> tuple[_Claim, _Claim]:
    """The older one, then the newer one; in their order, if that is not known."""
    one, other = first.item.happened_at, second.item.happened_at
    return (second, first) if one is not None and other is not None and other < one else (first, second)


def _exclude(old: _Claim, new: _Claim) -> bool:
    if compare_said(old.said, new.said) is Comparison.SUPERSEDES:
        return True
    return not _is_newer(old, new) and compare_said(new.said, old.said) is Comparison.SUPERSEDES


def _is_newer(old: _Claim, new: _Claim) -> bool:
    one, other = old.item.happened_at, new.item.happened_at
    return one is not None and other is not None and one < other


def _loser(old: _Claim, new: _Claim) -> _Claim | None:
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
