"""The most frequent plain statements in German."""

from __future__ import annotations

import re
from typing import Final

from inference_core.slots.forms import Reading
from inference_core.slots.predicates import noun
from inference_core.slots.slot import USER, Holds
from inference_core.slots.values import holds_of
from inference_core.slots.words import DIETS

_WHO: Final = r"(?P<who>ich|(?:mein|meine) \w+|[A-Z\u00c4\u00d6\u00dc]\w+)"
_NOT: Final = r"(?P<not>nicht mehr |keine? |nicht )?"
_FORMS: Final = [
    (re.compile(pattern, re.IGNORECASE), attribute, holds)
    for pattern, attribute, holds in [
        (
            rf"{_WHO} (?:wohne|wohnt|lebe|lebt) {_NOT}in (?P<value>[A-Z\u00c4\u00d6\u00dc][\w-]+)",
            "residence",
            Holds.ONE,
        ),
        (
            rf"{_WHO} (?:bin|ist) {_NOT}nach (?P<value>[A-Z\u00c4\u00d6\u00dc][\w-]+) (?:um)?gezogen",
            "residence",
            Holds.ONE,
        ),
        (rf"{_WHO} (?:arbeite|arbeitet) {_NOT}(?:bei|f\u00fcr) (?P<value>.+)", "employer", Holds.ONE),
        (rf"{_WHO} (?:bin|ist) {_NOT}(?P<value>{'|'.join(DIETS)})", "diet", Holds.ONE),
        (rf"{_WHO} (?:bin|ist) {_NOT}allergisch gegen (?P<value>.+)", "allergy", Holds.SEVERAL),
        (rf"{_WHO} (?:spreche|spricht) {_NOT}(?P<value>.+)", "speak", Holds.SEVERAL),
        (rf"{_WHO} (?:mag|liebe|liebt) {_NOT}(?P<value>.+)", "like", Holds.SEVERAL),
        (rf"{_WHO} (?:hei\u00dfe|hei\u00dft) {_NOT}(?P<value>.+)", "name", Holds.ONE),
    ]
]
_IS: Final = re.compile(
    r"(?:mein|meine) (?P<new>neuer? |neues )?(?P<what>[\w-]+) (?:ist|hei\u00dft) (?P<value>.+)", re.IGNORECASE
)
_WANTED: Final = re.compile(r"(?:meine|mein|ich|[A-Z\u00c4\u00d6\u00dc]\w+)\b", re.IGNORECASE)


def german_reading(text: str) -> Reading | None:
    """What a clause in German says; None if that is not certain."""
    if not _WANTED.match(text):
        return None
    for pattern, attribute, holds in _FORMS:
        if found := pattern.fullmatch(text):
            ends = bool(found["not"])
            return Reading(_owner(found["who"]), attribute, found["value"], holds, ends, "gezogen" in text)
    if found := _IS.fullmatch(text):
        what = found["what"].casefold()
        attribute = f"favourite {what.removeprefix('lieblings')}" if what.startswith("lieblings") else noun(what)
        return Reading(
            (USER,), attribute, found["value"], holds_of(attribute, found["value"]), is_change=bool(found["new"])
        )
    return None


def _owner(who: str) -> tuple[str, ...]:
    who = who.casefold()
    if who == "ich":
        return (USER,)
    return (USER, who.split()[1]) if who.startswith(("mein ", "meine ")) else (who,)
