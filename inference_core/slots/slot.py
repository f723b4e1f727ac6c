"""Slot: which value of which attribute a plain statement gives its subject, when, and whether others can hold too.

``words.toml`` has the words and patterns by which plain statements in English and German are read.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any, Final

from inference_core.memory.text import Uncased

_DATA: Final[dict[str, Any]] = tomllib.loads((files(str(__package__)) / "words.toml").read_text("utf-8"))
_NAMED: Final = re.compile(r"\{([a-z_]+)\}")


def word_set(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def entries(name: str) -> dict[str, Any]:
    """The table of that name."""
    return _DATA[name]


@cache
def words(name: str) -> frozenset[str]:
    """The words of that name."""
    return word_set(_DATA["words"][name])


@cache
def pattern(name: str) -> Uncased:
    """The pattern of that name."""
    return uncased(_DATA["patterns"][name])


@cache
def rows(name: str) -> list[tuple[re.Pattern[str], *tuple[Any, ...]]]:
    """The rows of that name, each a compiled pattern and its further columns; empty if there is no such name."""
    return [(re.compile(_filled(text), re.IGNORECASE), *columns) for text, *columns in _DATA["rows"].get(name, ())]


def uncased(text: str) -> Uncased:
    """The pattern ``text``, without regard to case, with the words and phrases that ``{name}`` stands for."""
    return Uncased(_filled(text))


def _filled(text: str) -> str:
    """``text`` in one line, with the words or phrases that ``{name}`` stands for."""

    def alternatives(found: re.Match[str]) -> str:
        phrase: str | None = _DATA["phrases"].get(found[1])
        return "|".join(_DATA["words"][found[1]].split()) if phrase is None else _filled(phrase)

    return _NAMED.sub(alternatives, text.replace("\n", ""))


PEOPLE: Final = words("people")
"""Words for people of whom one person may have several, such as brothers."""
EVENTS: Final = words("events")
"""Past forms of verbs for events after which something new holds, such as "moved"."""
SPELLINGS: Final[dict[str, str]] = _DATA["spellings"]
SYNONYMS: Final = SPELLINGS | {name: one for one, names in _DATA["synonyms"].items() for name in names.split()}
VERBS: Final[dict[str, list[str]]] = _DATA["verbs"]
"""For each verb its present forms and its past forms, each list separated by spaces, and its gerund."""
PRESENT_FORMS: Final = {form: verb for verb, (present, _, _) in VERBS.items() for form in present.split()}
PAST_FORMS: Final = {form: verb for verb, (_, past, _) in VERBS.items() for form in past.split()}
GERUNDS: Final = {gerund: verb for verb, (_, _, gerund) in VERBS.items()}


ANY: Final = "*"
"""Any attribute, or any value."""
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
    """How a newer statement relates to an older one: supersedes it, repeats it, or both hold."""

    SUPERSEDES = "supersede"
    SAME = "same"
    BOTH = "both"


class Holds(Enum):
    """How many values an attribute has at a time.

    USUALLY_ONE: one, but a new value replaces the old one only if the statement says that something changed.
    """

    ONE = "one"
    USUALLY_ONE = "usually one"
    SEVERAL = "several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The value that a statement gives an attribute of ``subject``, which is a path such as "user" or "user/brother".

    ``valid_from`` and ``valid_to`` bound when it holds, as far as the statement says; ``is_past`` means it is over.
    ``more`` is what it adds to the value, such as to whom somebody is married. ``replaced`` is the value that no longer
    holds ("from X to Y", "not X"). The statement says that something else was true before (``is_change``), was said
    before (``is_correction``), or is true as well (``is_addition``).
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
    more: str = ""


def key_of(value: str) -> tuple[str, ...]:
    """The significant words of a value in canonical spelling; equal keys mean equal values."""
    value = value.strip()
    if _PHONE.match(value):
        return ("".join(mark for mark in value if mark.isdigit()).removeprefix("00"),)
    value = _METRES.sub(r"\1\2 cm", _THOUSANDS.sub("", value))
    parts = [word.strip(".'-") for word in _PUNCTUATION.sub(" ", value).split()]
    key: list[str] = []
    for word in parts:
        if not word or word.casefold() in words("small"):
            continue
        is_plural = word.islower() and len(word) > _SHORT and word.endswith("s") and not word.endswith("ss")
        one = (word[:-1] if is_plural else word).casefold()
        one = _MONTHS.get(one, SPELLINGS.get(one, one))
        key.append(match[1] if (match := _DAY.match(one)) else one)
    return tuple(sorted(key) if any(word.startswith("#") for word in key) else key)


def kind_of(value: str) -> str:
    """One of "number", "name", "place" and "other". Values of different kinds do not exclude each other."""
    parts = [word for word in value.split() if word.casefold() not in ("a", "an", "the")]
    if not parts:
        return "other"
    if parts[0].casefold() in words("place_prepositions"):
        return "place"
    is_date = parts[0].casefold() in _MONTHS and parts[-1][0].isdigit()  # "May 3"
    if is_date or parts[0][0].isdigit() or parts[0][0] in "+#(":
        return "number"
    return "name" if all(word[0].isupper() or word[0].isdigit() for word in parts) else "other"


def holds_of(attribute: str, value: str) -> Holds:
    """How many values an attribute that is named by a noun has at a time."""
    last = attribute.rsplit(" ", maxsplit=1)[-1]
    if attribute.startswith("favourite ") or last in words("one"):
        return Holds.ONE
    if any(last in words(kind) for kind in ("people", "pets", "many")) or (
        last.endswith("s") and not last.endswith("ss")
    ):
        return Holds.SEVERAL
    return Holds.ONE if kind_of(value) in ("number", "name") else Holds.USUALLY_ONE
