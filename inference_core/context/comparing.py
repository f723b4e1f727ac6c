"""How memories relate: which repeat or contradict each other, and which doubts there are about a memory.

Only the words of saved memories raise doubts: a message of a conversation says more than one thing, and all of it may
hold. A doubt alone leaves no item out: it lowers the item's rank, and the item's line in the prompt shows it.

This decides what a prompt shows. Which memory is stored again in the same words is decided by `memory.text.same_text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations, permutations, zip_longest
from operator import attrgetter
from typing import Any, Final, NamedTuple

from inference_core.context.items import ContextItem, Doubt, Dropped, DropReason, section_of
from inference_core.memory.trust import Origin, Trust
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.similarity import (
    asks_for_past,
    closeness,
    compared,
    gist,
    is_hypothetical,
    is_replaced,
    overlap,
    terms_of_word,
    words_of,
)
from inference_core.slots import Comparison
from inference_core.slots.conflicts import Note, contradict, note_of
from inference_core.slots.reading import Said, compare_said, said_of
from inference_core.slots.slot import word_set

_MAX_CHARACTERS: Final = 300
"""A longer text says more than one thing."""
DEFAULT_OVERLAP: Final = 0.6
_ALIKE: Final = 0.4
"""Texts with this share of common stems are taken to be about the same."""
_SPARE: Final = 0.1
"""A text says no more than another if the other lacks at most this share of its stems."""
_EXCHANGED: Final = 2
_TURNING: Final = word_set(
    "not no never nor none neither without nicht kein keine nie former formerly previously ex used stopped quit anymore"
    " longer instead unless except only until was were had if maybe perhaps might cannot"
)
"""Words that change what the rest of a text says."""
_NAME: Final = re.compile(r"(?<![.!?:] )(?<!\A)\b[A-Z][\w'-]*")
_ASKS_FOR_HISTORY: Final = re.compile(
    r"\b(?:before|previous(?:ly)?|used to|former(?:ly)?|earlier|original(?:ly)?|at first|history|over time|any ?more|"
    r"no longer|chang(?:e|ed|es)|switch(?:ed)?|moved? from|fr\u00fcher|vorher|ehemals|zuvor)\b",
    re.IGNORECASE,
)
_ON_THE_SAME: Final = 0.35
"""Notes that are closer are on the same subject."""


class _Features(NamedTuple):
    """What a text is compared by. ``exact`` are its names and numbers."""

    stems: frozenset[str]
    gist: tuple[str, ...]
    turning: frozenset[str]
    exact: frozenset[str]


_Said = tuple[ContextItem, _Features]


@lru_cache(maxsize=4_096)  # the same memories are compared in turn after turn
def _features(text: str) -> _Features:
    words = words_of(text)
    numbers = (word for word in words if any(map(str.isdigit, word)))
    meant = gist(text)
    return _Features(
        stems=frozenset(chain.from_iterable(map(_stems_of_word, meant))),
        gist=meant,
        turning=frozenset(word for word in words if word in _TURNING or word.endswith(("n't", "n\u2019t"))),
        exact=frozenset([*map(str.casefold, _NAME.findall(text)), *numbers]),
    )


def _stems_of_word(word: str) -> tuple[str, ...]:
    return terms_of_word(word) or (word,)


def collapsed(
    items: Sequence[ContextItem], min_overlap: float = DEFAULT_OVERLAP
) -> tuple[list[ContextItem], list[Dropped]]:
    """Splits ``items`` into those to keep and those that only repeat another one; returns both.

    If several sources returned a memory, or texts are equal, one item is kept. If the stems of two texts overlap by
    ``min_overlap``, the text that says more is kept. Both are kept if the other text has a name or number of its own,
    if they differ in a negation, or if either is from outside (`Trust.EXTERNAL`) and the first adds something. An item
    never stands for one that is trusted more. The kept item is as relevant as the most relevant of those for which it
    stands. Messages of a conversation may repeat each other.
    """
    kept: list[_Said] = []
    dropped: list[Dropped] = []
    for item, features in sorted(((item, _features(item.text)) for item in items), key=_merit, reverse=True):
        at = next((at for at, said in enumerate(kept) if _says_all_of(said, (item, features), min_overlap)), None)
        if at is None:
            kept.append((item, features))
            continue
        best, own = kept[at]
        dropped.append(Dropped(item, DropReason.DUPLICATE, best.id))
        if best.relevance is not None and item.relevance is not None and item.relevance > best.relevance:
            kept[at] = replace(best, relevance=item.relevance, score=max(best.score, item.score)), own
    return [item for item, _ in kept], dropped


def _merit(said: _Said) -> tuple[Any, ...]:
    """The sort key that decides which of two items is kept.

    In this order: an item that no source has rated, the more trusted one, a rule, the text that says more, an item in a
    section of its own, the more relevant one, the newer one.
    """
    item, features = said
    category = item.record.category if item.record else None
    is_special = category is not None and item.section != section_of(category)
    when = item.happened_at.timestamp() if item.happened_at else 0.0
    is_rule = category is MemoryCategory.PROCEDURAL
    return item.relevance is None, item.trust, is_rule, len(features.stems), is_special, item.relevance or 0.0, when


def _says_all_of(kept: _Said, other: _Said, min_overlap: float) -> bool:
    """Whether ``kept`` says all that ``other`` does."""
    (item, says), (repeat, repeated) = kept, other
    record, same = item.record, repeat.record
    are_utterances = record is None is same and item.relevance is None is repeat.relevance
    if item.trust < repeat.trust or (are_utterances and item.source == repeat.source):
        return False
    if record is not None and same is not None and (record.namespace, record.id) == (same.namespace, same.id):
        return True
    if item.text == repeat.text:
        return True
    if says.gist == repeated.gist:
        return bool(repeated.gist)
    if says.turning != repeated.turning or not repeated.exact <= says.exact:
        return False
    if overlap(says.stems, repeated.stems) < min_overlap or _exchanges(says.gist, repeated.gist):
        return False
    adds = len(says.stems - repeated.stems) > _SPARE * len(says.stems)
    if adds and Trust.EXTERNAL in (item.trust, repeat.trust):
        return False
    return len(repeated.stems - says.stems) <= _SPARE * len(repeated.stems)


def _exchanges(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two texts differ only in one or two words, or in the order of two: in who, how many, or from where.

    Needed because `_NAME` does not recognise a name at the start of a text, and a number in letters has no digit.
    """
    if len(one) != len(other):
        return False
    changed = sum(_stems_of_word(old) != _stems_of_word(new) for old, new in zip(one, other, strict=True))
    return 0 < changed <= _EXCHANGED


@dataclass(slots=True)
class Resolved:
    """Items by what becomes of them: kept as they are, contradicting each other, from outside, or superseded."""

    kept: list[ContextItem] = field(default_factory=list[ContextItem])
    conflicts: list[list[ContextItem]] = field(default_factory=list[list[ContextItem]])
    untrusted: list[ContextItem] = field(default_factory=list[ContextItem])
    dropped: list[Dropped] = field(default_factory=list[Dropped])


class _Claim(NamedTuple):
    """An item at its place among the items, the statements in it, and itself as a note.

    ``note`` is None if it is no saved memory, or an event: what was said in a conversation may all hold.
    """

    at: int
    item: ContextItem
    said: Said
    note: Note | None

    @classmethod
    def of(cls, at: int, item: ContextItem) -> _Claim:
        """The claim of ``item``."""
        is_note = item.record is not None and item.record.category is not MemoryCategory.EPISODIC
        return cls(at, item, said_of(item.text, item.happened_at), note_of(item.text) if is_note else None)

    def is_older_than(self, other: _Claim) -> bool:
        mine, theirs = self.item.happened_at, other.item.happened_at
        return mine is not None and theirs is not None and mine < theirs

    def contradicts(self, newer: _Claim) -> bool:
        """Whether both cannot hold. If it is unknown which was said later, both orders are tried."""
        return self.is_ended_by(newer) or (not self.is_older_than(newer) and newer.is_ended_by(self))

    def is_ended_by(self, newer: _Claim) -> bool:
        """Whether it cannot hold beside ``newer``, which was said later."""
        have_slots = bool(self.said.slots and newer.said.slots)
        is_superseded = have_slots and compare_said(self.said, newer.said) is Comparison.SUPERSEDES
        return is_superseded or contradict(self.note, newer.note)

    def loses_to(self, other: _Claim) -> bool:
        """Whether ``other`` is newer and trusted at least as much.

        If their order is unknown: whether neither is from outside and ``other`` is trusted more.
        """
        trust, others = self.item.trust, other.item.trust
        if self.is_older_than(other):
            return others >= trust
        return not other.is_older_than(self) and Trust.EXTERNAL not in (trust, others) and trust < others


def newest_first(items: Sequence[ContextItem]) -> list[ContextItem]:
    """``items`` by when they happened; those of unknown time last."""
    return sorted(items, key=attrgetter("when"), reverse=True)


def alike_newest_first(items: Sequence[ContextItem]) -> list[ContextItem]:
    """``items`` in their order, except that items on the same subject swap places so that the newest comes first.

    It is not known which of them holds, so the order shows the model which was said later.
    """
    stems = [_features(item.text).stems for item in items]
    order = list(items)
    left = list(range(len(items)))
    while left:
        first = left[0]
        group = [at for at in left if at == first or overlap(stems[first], stems[at]) >= _ALIKE]
        left = [at for at in left if at not in group]
        for at, item in zip(group, newest_first([items[at] for at in group]), strict=True):
            order[at] = item
    return order


_Successors = Mapping[int, int | str]
"""By place, what supersedes an item: the place of another, or the id of a memory that is not among the items."""


def asks_for_history(query: str | None) -> bool:
    """Whether ``query`` asks for what held before."""
    return query is not None and _ASKS_FOR_HISTORY.search(query) is not None


def resolved(items: Sequence[ContextItem], *, keeps_history: bool = False) -> Resolved:
    """``items`` with contradictions resolved.

    Of two statements of which only one can hold, the newer one wins if it is trusted at least as much; where their
    times are equal or unknown, the more trusted one. The winner is at least as relevant as what it supersedes. If
    neither wins, they are a conflict, the newest first. Items from outside stay apart and never win against what was
    stated. ``keeps_history`` keeps what held before.
    """
    successors: _Successors = {}
    groups: list[set[int]] = []
    if not keeps_history:
        successors, groups = _decided(items)
    # Each is at least as relevant as all that it supersedes; successors are followed transitively.
    relevance = [item.relevance for item in items]
    for at in successors:
        place, worth = successors.get(at), items[at].relevance
        for _ in successors:  # damaged rows may supersede each other in a circle
            if place is None or isinstance(place, str):
                break
            own = relevance[place]
            relevance[place] = own if own is None or worth is None else max(own, worth)
            place = successors.get(place)
    relevant = [
        item if item.relevance == worth else replace(item, relevance=worth)
        for item, worth in zip(items, relevance, strict=True)
    ]
    result = Resolved(conflicts=[newest_first([relevant[at] for at in sorted(group)]) for group in groups])
    for at, item in enumerate(relevant):
        if (successor := successors.get(at)) is not None:
            by = successor if isinstance(successor, str) else items[successor].id
            result.dropped.append(Dropped(item, DropReason.SUPERSEDED, by))
        elif item.trust <= Trust.EXTERNAL:
            result.untrusted.append(item)
        elif not any(at in group for group in groups):
            result.kept.append(item)
    return result


def _decided(items: Sequence[ContextItem]) -> tuple[_Successors, list[set[int]]]:
    """The successor of each superseded item, by stored links or by the texts; and groups that contradict each other."""
    stored = {old: at for at, item in enumerate(items) if item.record for old in item.record.supersedes}
    successors: dict[int, int | str] = {}
    for at, item in enumerate(items):
        successor = item.record and stored.get(item.id, item.record.superseded_by or None)
        if successor is not None:
            successors[at] = successor
    claims = [_Claim.of(at, item) for at, item in enumerate(items)]
    # What an agent merely said in a conversation is no statement about the user.
    plain = [
        claim for claim in claims if claim.item.record or (claim.said.slots and claim.item.trust is not Trust.INFERRED)
    ]
    disputes: list[tuple[int, int]] = []
    for first, second in combinations(plain, 2):
        old, new = (second, first) if second.is_older_than(first) else (first, second)
        if not old.contradicts(new):
            continue
        if old.loses_to(new):
            successors.setdefault(old.at, new.at)
        elif new.loses_to(old):
            successors.setdefault(new.at, old.at)
        elif Trust.EXTERNAL not in (old.item.trust, new.item.trust):
            disputes.append((old.at, new.at))
    groups: list[set[int]] = []
    for pair in disputes:
        if successors.keys().isdisjoint(pair):
            joined = set(pair).union(*(group for group in groups if not group.isdisjoint(pair)))
            groups = [group for group in groups if group.isdisjoint(pair)] + [joined]
    return successors, sorted(groups, key=min)


def doubted(items: Sequence[ContextItem], query: str | None, outdated: Sequence[bool] = ()) -> list[ContextItem]:
    """``items`` in their order, each with its doubts; unchanged if all have theirs already.

    Items that no source has rated, such as rules and goals that are in every prompt, get no doubts. Of two saved
    memories on the same subject, one is about somebody else if it mentions people whom neither the other nor ``query``
    mentions; and the older one is perhaps outdated if the newer one is trusted at least as much. ``outdated`` says
    which items recall has found to be outdated, by their vectors.
    """
    if all(item.doubts is not None for item in items):
        return list(items)
    doubts = [_doubts_alone(item, bool(found)) for item, found in zip_longest(items, outdated)]
    notes = [at for at, item in enumerate(items) if query and _is_note(item)]
    texts = dict(zip(notes, compared(query or "", [items[at].text for at in notes]), strict=True))
    when = {at: items[at].when for at in notes}
    is_of_now = not asks_for_past(query or "")
    for one, other in permutations(notes, 2):
        mine, theirs = items[one], items[other]
        if mine.section != theirs.section or texts[one].terms.isdisjoint(texts[other].terms):
            continue  # nothing is on the same subject as what shares no term with it
        if texts[one].others < texts[other].others and closeness(texts[one], texts[other]) > _ON_THE_SAME:
            doubts[other].add(Doubt.OF_OTHERS)
        is_later = when[one] < when[other] and mine.trust <= theirs.trust
        if is_of_now and is_later and is_replaced(texts[one], texts[other]):
            doubts[one].add(Doubt.OUTDATED)
    return [replace(item, doubts=frozenset(found)) for item, found in zip(items, doubts, strict=True)]


def _doubts_alone(item: ContextItem, is_outdated: bool) -> set[Doubt]:
    """The doubts about an item that do not depend on other items."""
    if item.relevance is None:
        return set()
    is_from_web = item.record is not None and item.record.source.origin is Origin.WEB
    # A rule may well name what would be the case.
    is_fact = _is_note(item) and item.section == section_of(MemoryCategory.SEMANTIC)
    found = {
        Doubt.FROM_WEB: is_from_web,
        Doubt.HYPOTHETICAL: is_fact and is_hypothetical(item.text),
        Doubt.OUTDATED: is_outdated,
    }
    return {doubt for doubt, is_so in found.items() if is_so}


def _is_note(item: ContextItem) -> bool:
    """Whether it is a saved memory, of one statement."""
    record = item.record
    if record is None or item.relevance is None:
        return False
    return record.category is not MemoryCategory.EPISODIC and len(item.text) <= _MAX_CHARACTERS
