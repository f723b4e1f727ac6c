"""Slot: what a plain statement says of whom, for how long, and how many such things may hold at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from inference_core.slots.words import SPELLINGS, entries, words

ANY: Final = "*"
"""As attribute: whatever the value is of. As value: whatever it is."""
USER: Final = "user"
"""The subject of statements about the user."""
_MONTHS: Final = {name: f"#{month}" for month, names in entries("months").items() for name in names.split()}
_PUNCTUATION: Final = re.compile(r"[^\w@.+'-]+")
_DAY: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)\Z")
_THOUSANDS: Final = re.compile(r"(?<=\d)[,'](?=\d{3}\b)")
_PHONE: Final = re.compile(r"\+?[\d()/ .-]{5,}\Z")
_METRES: Final = re.compile(r"(\d)[.,](\d\d) ?m\b")
_SHORT: Final = 3


class Comparison(str, Enum):
    """What a newer statement does to an older one: it closes it, says it again, or leaves it as it is."""

    SUPERSEDES = "supersede"
    SAME = "same"
    BOTH = "both"


class Holds(Enum):
    """How many values of an attribute hold at a time: one; one, but only a change said as such tells; several."""

    ONE = "one"
    USUALLY_ONE = "usually one"
    SEVERAL = "several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """``subject`` is "user" or a name, with what belongs to it behind slashes: "user/brother".

    ``valid_from`` and ``valid_to`` bound when it holds as far as it was said; ``is_past`` says that it is over.
    ``replaced`` is the value that it says holds no longer ("from X to Y", "not X"). ``is_change`` and
    ``is_correction`` say that something else held, or was said, before; ``is_addition`` that something else holds too.
    """

    subject: str
    attribute: str
    value: str
    holds: Holds = Holds.SEVERAL
    is_negated: bool = False
    is_past: bool = False
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    replaced: str | None = None
    is_change: bool = False
    is_correction: bool = False
    is_addition: bool = False


def key_of(value: str) -> tuple[str, ...]:
    """The words of a value that count, in one spelling: equal for values that are the same."""
    value = value.strip()
    if _PHONE.match(value):
        return ("".join(mark for mark in value if mark.isdigit()).removeprefix("00"),)
    value = _METRES.sub(r"\1\2 cm", _THOUSANDS.sub("", value))
    parts = [word.strip(".'-") for word in _PUNCTUATION.sub(" ", value).split()]
    key = [_one_form(word) for word in parts if word and word.casefold() not in words("small")]
    return tuple(sorted(key) if any(word.startswith("#") for word in key) else key)


def _one_form(word: str) -> str:
    """One form of a word; a common noun is the same in the plural."""
    if word.islower() and len(word) > _SHORT and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = word.casefold()
    word = _MONTHS.get(word, SPELLINGS.get(word, word))
    return found[1] if (found := _DAY.match(word)) else word


def kind_of(value: str) -> str:
    """Number, name, place ("in room 12") or other: values of different kinds do not exclude each other."""
    parts = [word for word in value.split() if word.casefold() not in ("a", "an", "the")]
    if not parts:
        return "other"
    if parts[0].casefold() in words("place_prepositions"):
        return "place"
    if parts[0][0].isdigit() or parts[0][0] in "+#(":
        return "number"
    return "name" if all(word[0].isupper() or word[0].isdigit() for word in parts) else "other"


def holds_of(attribute: str, value: str) -> Holds:
    """How many values the attribute that a noun names holds at a time."""
    last = attribute.rsplit(" ", maxsplit=1)[-1]
    if attribute.startswith("favourite ") or last in words("one"):
        return Holds.ONE
    if any(last in words(kind) for kind in ("people", "pets", "many")) or (
        last.endswith("s") and not last.endswith("ss")
    ):
        return Holds.SEVERAL
    return Holds.ONE if kind_of(value) in ("number", "name") else Holds.USUALLY_ONE
