"""Values of slots: when two are the same, when one tells more than the other, and what kind one is of."""

from __future__ import annotations

import re
from typing import Final

from inference_core.slots.slot import Holds
from inference_core.slots.words import MANY, ONE, PEOPLE, PETS, word_set

_PUNCTUATION: Final = re.compile(r"[^\w@.+'-]+")
_SMALL: Final = word_set("a an the my our your his her their of in at on to for is ein eine der die das mein meine")
_MONTHS: Final = {
    name: f"#month{number}"
    for number, names in enumerate(
        [
            "january jan januar",
            "february feb februar",
            "march mar m\u00e4rz",
            "april apr",
            "may mai",
            "june jun juni",
            "july jul juli",
            "august aug",
            "september sep sept",
            "october oct oktober",
            "november nov",
            "december dec dezember",
        ],
        1,
    )
    for name in names.split()
}
_DAY: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)\Z")
_THOUSANDS: Final = re.compile(r"(?<=\d)[,'](?=\d{3}\b)")
_PHONE: Final = re.compile(r"\+?[\d()/ .-]{5,}\Z")
_METRES: Final = re.compile(r"(\d)[.,](\d\d) ?m\b")
_SHORT: Final = 3
_SPELLINGS: Final = {"color": "colour", "favorite": "favourite", "movie": "film"}
_PREPOSITIONS: Final = word_set("in at on near with by from under behind for to")


def key_of(value: str) -> tuple[str, ...]:
    """The words of a value that count, in one spelling: equal for values that are the same."""
    value = value.strip()
    if _PHONE.match(value):
        return ("".join(mark for mark in value if mark.isdigit()).removeprefix("00"),)
    value = _METRES.sub(r"\1\2 cm", _THOUSANDS.sub("", value))
    words = [word.strip(".'-") for word in _PUNCTUATION.sub(" ", value).split()]
    words = [_word(word) for word in words if word and word.casefold() not in _SMALL]
    return tuple(sorted(words)) if any(word.startswith("#") for word in words) else tuple(words)


def _word(word: str) -> str:
    """One form of a word; a common noun is the same in the plural."""
    if word.islower() and len(word) > _SHORT and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = word.casefold()
    word = _MONTHS.get(word, _SPELLINGS.get(word, word))
    return found[1] if (found := _DAY.match(word)) else word


def kind_of(value: str) -> str:
    """Number, name, place ("in room 12") or other: values of different kinds do not exclude each other."""
    words = [word for word in value.split() if word.casefold() not in ("a", "an", "the")]
    if not words:
        return "other"
    if words[0].casefold() in _PREPOSITIONS:
        return "place"
    if words[0][0].isdigit() or words[0][0] in "+#(":
        return "number"
    return "name" if all(word[0].isupper() or word[0].isdigit() for word in words) else "other"


def holds_of(attribute: str, value: str) -> Holds:
    """How many values the attribute that a noun names holds at a time."""
    last = attribute.rsplit(" ", maxsplit=1)[-1]
    if attribute.startswith("favourite ") or last in ONE:
        return Holds.ONE
    if last in PEOPLE or last in PETS or last in MANY or (last.endswith("s") and not last.endswith("ss")):
        return Holds.SEVERAL
    return Holds.ONE if kind_of(value) in ("number", "name") else Holds.USUALLY_ONE
