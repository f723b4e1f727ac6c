"""Statements cut into clauses, each with what it says about time and change taken out of its words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from inference_core.slots.periods import NO_PERIOD, Period, without_period

MAX_CLAUSES: Final = 6
_CONTINUING: Final = ("joined", "moved", "started", "became", "switched", "bought", "got", "live", "work")
_I: Final = r"(?:I|we|my|our|the user|it is|ich|mein|meine)\b"
_CUT: Final = re.compile(
    r"(?<!\bDr)(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bSt)(?<!\bNo)[.!;]+\s+|\n+|:\s+|,?\s+(?:and|but|so)\s+(?:now\s+)?"
    rf"(?=(?:I|we|my|our)\s)|,\s*(?:and\s+|but\s+|so\s+|now\s+)*(?={_I})|,?\s+and\s+(?=(?:{'|'.join(_CONTINUING)})\b)"
    r"|,\s*(?:now\s+)?(?=not\s)",
    re.IGNORECASE,
)
_TOGETHER: Final = re.compile(r"(?:(?<=[,.;] )|\A)(?P<whom>(?:(?:my|our) )?[\w-]+) and I\b", re.IGNORECASE)
_LEAD: Final = re.compile(
    r"(?:well|ok|okay|oh|hey|hi|hello|by the way|btw|fyi|just so you know|update|news|as planned|and|but|so|then|now|"
    r"from now on|these days|finally|also|yes|please note|note|remember)\b\s*[,:.!-]?\s*",
    re.IGNORECASE,
)
_CORRECTION: Final = re.compile(
    r"(?:(?:actually|sorry|correction|oops|wait|my mistake|my bad|I meant(?: that)?|that (?:was|is) wrong|"
    r"I (?:have )?made a mistake|I was wrong|it turn(?:s|ed) out(?: that)?|to correct myself)\b"
    r"|no(?=[,:.!]))\s*[,:.!-]?\s*",
    re.IGNORECASE,
)
_CHANGE: Final = re.compile(
    r"\s*\b(?:now|nowadays|these days|from now on|any ?more|any longer|again|currently|at present|instead(?! of)|jetzt|"
    r"inzwischen|mittlerweile|neuerdings|wieder)\b",
    re.IGNORECASE,
)
_ADDITION: Final = re.compile(r"\s*\b(?:also|too|as well|additionally|auch)\b", re.IGNORECASE)
_FILLER: Final = re.compile(
    r"\s*\b(?:still|just|finally|recently|already|really|actually|usually|normally|immer noch)\b", re.IGNORECASE
)
_FORMER: Final = re.compile(r",?\s+(?:instead of|rather than)\s+(?P<former>[^,]{1,60})\Z", re.IGNORECASE)
_BUT: Final = re.compile(r"\bnot\s+(?P<former>[^,]{1,60}?),?\s+but\s+(?:rather\s+)?", re.IGNORECASE)
_NOT: Final = re.compile(r"not\s+(?P<former>\S+(?:\s\S+){0,4})\Z", re.IGNORECASE)
_SPACES: Final = re.compile(r"\s+")
_PREPOSITIONS: Final = ("from ", "in ", "at ", "for ", "on ", "the ", "an ", "a ")


@dataclass(frozen=True, slots=True)
class Clause:
    """Words of a statement in their order, without those that the other fields stand for."""

    text: str
    period: Period = NO_PERIOD
    replaced: str | None = None
    is_change: bool = False
    is_correction: bool = False
    is_addition: bool = False


def clauses_of(text: str, said_at: datetime | None) -> list[Clause]:
    """The clauses of an expanded, plain ``text``; what is corrected in one is corrected in those after it."""
    found: list[Clause] = []
    is_correction = False
    for part in _CUT.split(_TOGETHER.sub(r"\g<whom> & I", text), maxsplit=MAX_CLAUSES):
        clause = _clause(part, said_at)
        is_correction = is_correction or clause.is_correction
        if found and (denied := _NOT.match(clause.text)):
            found[-1] = replace(found[-1], replaced=bare(denied["former"]), is_correction=True)
        elif clause.text:
            shared = found[-1].text if found else ""
            found.append(replace(clause, text=_with_subject(clause.text, shared), is_correction=is_correction))
    return found


def _with_subject(text: str, before: str) -> str:
    """A clause behind "and", with the subject of the one before it."""
    is_without = text.split(" ", maxsplit=1)[0] in _CONTINUING and before.startswith(("I ", "We ", "we "))
    return f"I {text}" if is_without else text


def bare(value: str) -> str:
    """``value`` without the preposition or article before it."""
    for word in _PREPOSITIONS:
        if value.lower().startswith(word):
            value = value[len(word) :]
    return value.strip()


def _clause(text: str, said_at: datetime | None) -> Clause:
    text, is_correction = _led(_SPACES.sub(" ", text).strip(" ,.!;:-()"))
    text, replaced = _former(text)
    text, changes = _CHANGE.subn("", text)
    text, additions = _ADDITION.subn("", text)
    text, period = without_period(_FILLER.sub("", text).strip(), said_at)
    return Clause(
        _SPACES.sub(" ", text).strip(" ,.!;:-"),
        period,
        replaced,
        is_change=changes > 0,
        is_correction=is_correction,
        is_addition=additions > 0,
    )


def _led(text: str) -> tuple[str, bool]:
    """``text`` behind the words that lead up to it, and whether they correct something."""
    is_correction = False
    for _ in range(MAX_CLAUSES):
        if found := _CORRECTION.match(text):
            is_correction = True
        elif not (found := _LEAD.match(text)):
            break
        text = text[found.end() :]
    return text, is_correction


def _former(text: str) -> tuple[str, str | None]:
    """``text`` without the value that it says holds no longer, and that value."""
    if found := _FORMER.search(text):
        return text[: found.start()], bare(found["former"])
    if found := _BUT.search(text):
        return text[: found.start()] + text[found.end() :], bare(found["former"])
    return text, None
