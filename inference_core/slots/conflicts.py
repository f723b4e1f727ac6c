"""Whether two short notes contradict each other: same subject and attribute, and values that exclude each other.

Slots are read from whole sentences, and may change what is stored. Conflicts are found from the words alone, in more
kinds of sentences, and change only what a prompt shows. Which values exclude each other is data: ``words.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final, NamedTuple

from inference_core.memory.text import Uncased
from inference_core.retrieval.similarity import terms_of_word
from inference_core.slots.reading import expanded, is_plain
from inference_core.slots.slot import PAST_FORMS, PEOPLE, PRESENT_FORMS, entries, pattern, uncased, words

MAX_NOTE: Final = 160
"""A longer text is taken to say more than one thing, and is not compared."""
_TOKEN: Final = re.compile(r"[^\W_]+(?:[-:][^\W_]+)*")
_POSSESSIVE: Final = re.compile(r"'s?\b")
_THOUSANDS: Final = re.compile(r"(?<=\d)[.,](?=\d{3}\b)")
_NUMBER: Final = re.compile(r"\d[\d:]*")
_HAPPENED: Final = frozenset(form for form, verb in PAST_FORMS.items() if verb not in ("be", "have")) - {"read"}


class Note(NamedTuple):
    """A note as sets of stems.

    ``said`` holds the stems of its words without its values; ``values`` has the values by kind. ``ends``: it says that
    something ended; ``changes``: it says that something ended or changed. ``people`` are those, besides the user, whom
    it is about; ``subject`` is its first word, "" for the user. ``is_of_many``: another note with a different value may
    hold as well, with a value of any kind if ``is_any`` (the note has an indefinite article), or else of the kinds in
    `several`.
    """

    text: str
    said: frozenset[str]
    values: dict[str, tuple[str, ...]]
    is_negated: bool
    ends: bool
    changes: bool
    people: frozenset[str]
    subject: str
    is_of_many: bool
    is_any: bool
    is_past: bool


def contradict(first: Note | None, second: Note | None) -> bool:
    """Whether ``second``, which was said later, and ``first`` cannot both hold; False in case of doubt."""
    if first is None or second is None or first.text == second.text:
        return False
    for left, right in ((first, second), (second, first)):  # a pair of `[excluding]`: "vegetarian" and "eats steak"
        if right.is_negated or left.subject != right.subject:
            continue
        excludes = _found(0, left.text)
        excluded = _found(1, right.text) if excludes else {}
        for at in excludes.keys() & excluded.keys():
            meant = frozenset(_people(_TOKEN.findall(f"{excludes[at]} {excluded[at]}")))
            if first.people == second.people or (first.people | second.people) <= meant:
                return True
    return _denied(first, second) or _differs(first, second)


@cache
def _kinds() -> dict[str, tuple[str, str]]:
    """For each word that is a value, its kind and its canonical spelling."""
    return {
        word: (kind, spellings.split()[0])
        for kind, values in entries("kinds").items()
        for spellings in values
        for word in spellings.split()
    }


@lru_cache(maxsize=4_096)
def note_of(text: str) -> Note | None:
    """``text`` prepared for comparison; None if it is longer than `MAX_NOTE` or not a plain statement. Never raises.

    It understands English and some German.
    """
    text = expanded(text).casefold().strip()
    if len(text) > MAX_NOTE or not is_plain(text):
        return None
    tokens: list[str] = _TOKEN.findall(_POSSESSIVE.sub("", _THOUSANDS.sub("", text)))
    if not tokens:
        return None
    kinds, light, values = _kinds(), words("light"), dict[str, list[str]]()
    said: list[str] = []
    for at, token in enumerate(tokens):
        kind, value = kinds.get(token, ("number", token) if _NUMBER.fullmatch(token) else ("", ""))
        before, after = tokens[max(0, at - 1)], tokens[at + 1 : at + 2]
        counts = (bool(after) and after[0] not in light) or before in light or before in kinds
        if kind == "number" and at and (before in words("numbered") or not counts):
            said.append(value)  # it names the thing before it: "room 3", "note number 7"
        elif kind:
            values.setdefault(kind, []).append(value)
        elif token not in light:
            said += terms_of_word(token)[:1]
    ends = pattern("ended").is_in(text)
    return Note(
        text=text,
        said=frozenset(said),
        values={kind: tuple(found) for kind, found in values.items()},
        is_negated=pattern("negated").is_in(text),
        ends=ends,
        changes=ends or pattern("changed").is_in(text),
        people=frozenset(_people(tokens)),
        subject="" if tokens[0] in words("self") or tokens[0] in PRESENT_FORMS else tokens[0],
        is_of_many=not words("of_many").isdisjoint(tokens),
        is_any=not {"a", "an", "ein", "eine", "einen"}.isdisjoint(tokens),
        is_past=not _HAPPENED.isdisjoint(tokens),
    )


def _people(tokens: list[str]) -> Iterator[str]:
    for token in tokens:
        bare = token.removesuffix("s") if token not in words("relatives") else token
        if bare in words("relatives") or bare in PEOPLE:
            yield bare


@lru_cache(maxsize=4_096)
def _found(side: int, text: str) -> dict[int, str]:
    """What the first or the second pattern of each pair in `[excluding]` matches in ``text``, by the pair's index."""
    return {at: found[0] for at, pair in enumerate(_pairs()) if (found := pair[side].search(text))}


@cache
def _pairs() -> list[tuple[Uncased, Uncased]]:
    return [(uncased(one), uncased(other)) for one, other in entries("excluding")["pairs"]]


def _denied(first: Note, second: Note) -> bool:
    """Whether one note says that the other does not hold, or ``second`` that what ``first`` says has ended."""
    if first.people != second.people:
        return False
    if second.ends and not first.ends and not first.is_negated:
        gives_other = any(first.values.get(kind, value) != value for kind, value in second.values.items())
        return bool(second.said) and second.said <= first.said and not gives_other
    if first.is_negated == second.is_negated:
        return False
    denial, claim = (first, second) if first.is_negated else (second, first)
    return (
        bool(denial.said or denial.values.keys() & words("alone"))
        and denial.said <= claim.said
        and all(value == claim.values.get(kind) for kind, value in denial.values.items())
    )


def _differs(first: Note, second: Note) -> bool:
    """Whether both say the same except for one value, of a kind of which only one can hold."""
    if first.people != second.people or first.is_negated or second.is_negated:
        return False
    if first.values.keys() != second.values.keys() and not second.changes:
        return False
    different = [kind for kind, value in first.values.items() if second.values.get(kind, value) != value]
    if len(different) != 1 or any((kind in first.values) != (kind in second.values) for kind in different):
        return False
    (kind,) = different
    one, other = first.values[kind], second.values[kind]
    if len(one) != len(other) or sum(left != right for left, right in zip(one, other, strict=True)) != 1:
        return False
    if first.said != second.said and not (second.changes and second.said and second.said <= first.said):
        return False
    if not first.said and kind not in words("alone"):
        return False
    may_be_several = first.is_of_many and (first.is_any or kind in words("several"))
    return second.changes or not (first.is_past or may_be_several)
