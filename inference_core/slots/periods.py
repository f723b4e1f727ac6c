"""When a clause holds: "since May", "until last year", "from 2019 to 2021"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from inference_core.retrieval.time_expressions import interval_of

_MONTH: Final = (
    "(?:january|february|march|april|may|june|july|august|september|october|november|december|januar|februar"
    "|m\u00e4rz|mai|"
    "juni|juli|oktober|dezember)"
)
_POINT: Final = (
    rf"(?:(?:early |late |mid )?(?:(?:\d{{1,2}}(?:st|nd|rd|th)? (?:of )?)?{_MONTH}(?: \d{{1,2}}(?:st|nd|rd"
    rf"|th)?\b)?(?:,? \d{{4}})?"
    r"|(?:19|20)\d\d|(?:last|this|that|the last|the) (?:week|month|year|spring|summer|autumn|fall|winter|weekend)"
    r"(?: of (?:19|20)\d\d)?|(?:\w+|a few|a couple of) (?:days|weeks|months|years|week|month|year) ago|yesterday))\b"
)
_DAY: Final = r"(?:(?:on|last) (?:mon|tues|wednes|thurs|fri|satur|sun)day\b)"
_CHILDHOOD: Final = (
    r"(?:as a (?:child|kid|boy|girl|teenager|student)|when I was (?:a |an )?[\w-]+(?: (?:years old|child|kid|boy"
    r"|girl))?"
    r"|in my (?:youth|childhood|twenties|thirties|teens)|back then|before that|years ago|in the past|previously"
    r"|formerly"
    r"|fr\u00fcher|before [A-Z]\w+)\b"
)
_PHRASES: Final = [
    (name, re.compile(rf"(?:^|,?\s+)(?P<phrase>{pattern}),?", re.IGNORECASE))
    for name, pattern in [
        ("past", _CHILDHOOD),
        ("range", rf"(?:from|between) {_POINT} (?:to|and|until|till|through) {_POINT}"),
        ("since", rf"(?:since|seit|as of|from|ever since) {_POINT}(?: on)?"),
        ("until", rf"(?:until|till|up to|bis) {_POINT}"),
        ("at", rf"(?:(?:in|during|im|over) )?(?:the )?{_POINT}|{_DAY}|today"),
    ]
]
_BARE_DATE: Final = re.compile(rf"\b(?:is|on|to|for|are|by) (?:the )?{_POINT}", re.IGNORECASE)
_YEAR: Final = re.compile(r"(?:19|20)\d\d\b")
_ANY_DAY: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""From which to count what needs no counting."""
_LEADING: Final = re.compile(r"\A(?:since|seit|until|till|up to|bis|as of|from|ever since) ", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Period:
    """``kind`` is how it was said: past, range, since, until, at; empty if nothing was said."""

    kind: str = ""
    start: datetime | None = None
    end: datetime | None = None


NO_PERIOD: Final = Period()


def without_period(text: str, said_at: datetime | None) -> tuple[str, Period]:
    """``text`` without the first phrase that says when, and that time; a date that is the value itself stays."""
    for kind, pattern in _PHRASES:
        found = pattern.search(text)
        if found and not (kind == "at" and _is_value(text, found)):
            rest = f"{text[: found.start()]} {text[found.end() :]}".strip()
            return (rest, _period(kind, found["phrase"], said_at)) if rest else (text, NO_PERIOD)
    return text, NO_PERIOD


def _is_value(text: str, found: re.Match[str]) -> bool:
    return any(date.start() < found.end() and found.start() < date.end() for date in _BARE_DATE.finditer(text))


def _period(kind: str, phrase: str, said_at: datetime | None) -> Period:
    counted_from = _ANY_DAY if said_at is None and _YEAR.search(phrase) else said_at
    interval = None if counted_from is None else interval_of(_dated(kind, phrase), counted_from)
    if interval is None:
        return Period(kind)
    start, end = interval
    return Period(kind, None if kind == "until" else start, None if kind in ("since", "at") else end)


def _dated(kind: str, phrase: str) -> str:
    """The phrase as one that names an interval, not only a bound of it."""
    if kind in ("since", "until"):
        point = _LEADING.sub("", phrase)
        return point if point.lower().startswith(("last", "this", "yesterday")) else f"in {point}"
    return phrase
