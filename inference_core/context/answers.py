"""What answers another question than the one that was asked: about somebody else, or about how it was before.

English statements in plain words; whatever is not recognised stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from inference_core.context.items import ContextItem, Dropped, DropReason
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.analysis import analyze
from inference_core.slots.words import PEOPLE, word_set

MAX_CHARACTERS: Final = 300
"""A longer text says more than one thing."""
_SHARED: Final = 0.5
_ALIKE: Final = 0.3
_KIN: Final = 2
_RELATIVES: Final = PEOPLE | word_set(
    "mother father mom mum dad parent parents grandmother grandfather grandma grandpa granny wife husband partner"
    " girlfriend boyfriend fiancé fiancée boss manager director intern landlord landlady parents-in-law mother-in-law"
    " father-in-law"
)
_FIRST_PERSON: Final = re.compile(r"\b(?:I|me|my|mine|we|us|our|ours|I'm|I've|we've|the user)\b", re.IGNORECASE)
_SOMEBODYS: Final = re.compile(r"(?:My|Our)\s+(?:[\w-]+\s+){0,2}?(?P<who>[\w-]+)(?:['\u2019]s)?\b")
_POSSESSOR: Final = re.compile(r"(?:(?:My|Our|The)\s+)?(?P<who>[\w-]+(?:\s[\w-]+){0,2})['\u2019]s\s")
_NAMED: Final = re.compile(r"(?P<who>[A-Z][a-z]+)(?:,[^,]+,)?\s(?:[a-z]+ly\s)?(?:[a-z]+s|has|had|was)\s")
_NOT_NOW: Final = re.compile(r"\b(?:did|was|were|had|ever|been|(?:have|has) (?:I|we|you|he|she|it|they|my|our))\b", re.I)
_CHANGE: Final = re.compile(
    r"\b(?:now|new|anymore|any more|no longer|instead|since|as of|from now on|stopped|started|starting|switched|moved|"
    r"changed|went (?:up|down)|raised|lowered|increased|decreased|reduced|dropped|replaced|became|got|"
    r"from (?:today|January|February|March|April|May|June|July|August|September|October|November|December)|"
    r"this (?:week|month|year)|last week)\b",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"\d[\d.,:]*")


@dataclass(frozen=True, slots=True)
class _Statement:
    """An item, its stems and numbers, and whether it is somebody else's."""

    item: ContextItem
    stems: frozenset[str]
    numbers: frozenset[str]
    is_other: bool

    @classmethod
    def of(cls, item: ContextItem, query: str) -> _Statement:
        return cls(item, stems_of(item.text), frozenset(_NUMBER.findall(item.text)), is_about_another(item.text, query))


def stems_of(text: str) -> frozenset[str]:
    """The stems of the words of ``text``, without stop words."""
    return frozenset(analyze(text))


def answering(items: Sequence[ContextItem], query: str | None) -> tuple[list[ContextItem], list[Dropped]]:
    """``items`` without those that answer another question, and these.

    If the user asks about what is theirs, what is somebody else's is left out; if they ask how it is, what a newer
    statement about the same has changed is.
    """
    if not query:
        return list(items), []
    statements = [_Statement.of(item, query) for item in items if _is_statement(item)]
    dropped = {one.item.id: one for one in [*_others(statements), *_outdated(statements, query)]}
    return [item for item in items if item.id not in dropped], list(dropped.values())


def is_about_another(text: str, query: str) -> bool:
    """Whether ``text`` begins with somebody, or something of somebody, whom the user, asking of theirs, has not named."""
    if not _FIRST_PERSON.search(query):
        return False
    named = stems_of(query)
    found = _SOMEBODYS.match(text)
    if found and found["who"].casefold() in _RELATIVES:
        return not stems_of(found["who"]) & named
    other = _POSSESSOR.match(text) or _NAMED.match(text)
    if other is None or _FIRST_PERSON.search(text[other.end() :]) or _FIRST_PERSON.match(other["who"]):
        return False
    return not stems_of(other["who"]) & named


def _is_statement(item: ContextItem) -> bool:
    """Whether it is a short note of what holds; what was said in a conversation speaks of more than one thing."""
    record = item.record
    return len(item.text) <= MAX_CHARACTERS and (record is None or record.category is not MemoryCategory.EPISODIC)


def _others(statements: Sequence[_Statement]) -> Iterator[Dropped]:
    for one in statements:
        if one.is_other:
            yield Dropped(one.item, DropReason.IRRELEVANT)


def _outdated(statements: Sequence[_Statement], query: str) -> Iterator[Dropped]:
    if _NOT_NOW.search(query):
        return
    asked = stems_of(query)
    for old, new in permutations(statements, 2):
        if _is_later(old, new) and not (old.is_other or new.is_other) and _replaces(old, new, asked):
            yield Dropped(old.item, DropReason.SUPERSEDED, new.item.id)


def _is_later(old: _Statement, new: _Statement) -> bool:
    one, other = old.item.happened_at, new.item.happened_at
    return one is not None and other is not None and one < other and new.item.trust >= old.item.trust


def _replaces(old: _Statement, new: _Statement, asked: frozenset[str]) -> bool:
    """Whether both answer what is asked, each in its own way, and ``new`` says or shows that something has changed."""
    if not (old.stems - new.stems - asked and new.stems - old.stems - asked):
        return False
    said, changes = old.stems & asked, _CHANGE.search(new.item.text) is not None
    counts = bool(old.numbers and new.numbers) and old.numbers != new.numbers
    if not said or len(said & new.stems) < _SHARED * len(said):
        return bool(said) and changes and counts and len(old.stems & new.stems) >= _KIN
    return changes or (counts and _are_alike(old, new))


def _are_alike(old: _Statement, new: _Statement) -> bool:
    numbers = stems_of(" ".join(old.numbers | new.numbers))
    one, other = old.stems - numbers, new.stems - numbers
    return len(one & other) >= _ALIKE * len(one | other)
