"""Plain statements as clauses; phrases about time and change are taken out of the words and kept as fields."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from inference_core.retrieval.time_expressions import interval_of
from inference_core.slots.words import pattern, rows, words

MAX_CLAUSES: Final = 6
_SPACES: Final = re.compile(r"\s+")
_BEFORE_VALUE: Final = re.compile(r"(?:from )?(?:in )?(?:at )?(?:for )?(?:on )?(?:the )?(?:an )?(?:a )?", re.IGNORECASE)
_YEAR: Final = re.compile(r"(?:19|20)\d\d\b")
_ANY_DAY: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""A reference day for dates that do not depend on one."""


@dataclass(frozen=True, slots=True)
class Period:
    """When a clause holds. ``kind`` is the form it was said in: past, range, since, until, at, or "" if unsaid."""

    kind: str = ""
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class Clause:
    """The words of a clause, without the phrases that the other fields stand for."""

    text: str
    period: Period = Period()
    replaced: str | None = None
    is_change: bool = False
    is_correction: bool = False
    is_addition: bool = False


def expanded(text: str) -> str:
    """``text`` with its contractions as whole words, and straight apostrophes."""
    for contracted, expansion in rows("contractions"):
        text = contracted.sub(expansion, text)
    return text


def is_plain(text: str) -> bool:
    """Whether the expanded ``text`` plainly states that something is, or has become, true.

    Questions, guesses, plans, quotations, hearsay, jokes and passing states are not plain, nor is any doubtful case.
    """
    if pattern("question").search(text) or pattern("not_plain").search(text):
        return False
    return not pattern("today").search(text) or pattern("today_event").search(text) is not None


def clauses_of(text: str, said_at: datetime | None) -> list[Clause]:
    """The clauses of an expanded, plain ``text``. Once one corrects something, so do all after it."""
    found: list[Clause] = []
    is_correction = False
    for part in pattern("cut").split(pattern("together").sub(r"\g<whom> & I", text), maxsplit=MAX_CLAUSES):
        clause = _clause(part, said_at)
        is_correction = is_correction or clause.is_correction
        if found and (denied := pattern("denied").match(clause.text)):
            found[-1] = replace(found[-1], replaced=bare(denied["former"]), is_correction=True)
        elif words_left := clause.text:
            continues = words_left.split(" ", maxsplit=1)[0] in words("continuing")
            if found and continues and found[-1].text.startswith(("I ", "We ", "we ")):
                words_left = f"I {words_left}"
            found.append(replace(clause, text=words_left, is_correction=is_correction))
    return found


def bare(value: str) -> str:
    """``value`` without the prepositions and the article before it."""
    return _BEFORE_VALUE.sub("", value, count=1).strip()


def _clause(text: str, said_at: datetime | None) -> Clause:
    text, is_correction = _SPACES.sub(" ", text).strip(" ,.!;:-()"), False
    for _ in range(MAX_CLAUSES):  # introductory words, of which some announce a correction
        correction = pattern("correction").match(text)
        lead = correction or pattern("lead").match(text)
        if lead is None:
            break
        text, is_correction = text[lead.end() :], is_correction or correction is not None
    replaced = None
    if former := pattern("former").search(text) or pattern("not_but").search(text):
        text, replaced = text[: former.start()] + text[former.end() :], bare(former["former"])
    text, changes = pattern("change").subn("", text)
    text, additions = pattern("addition").subn("", text)
    text, period = _without_period(pattern("filler").sub("", text).strip(), said_at)
    return Clause(
        _SPACES.sub(" ", text).strip(" ,.!;:-"),
        period,
        replaced,
        is_change=changes > 0,
        is_correction=is_correction,
        is_addition=additions > 0,
    )


def _without_period(text: str, said_at: datetime | None) -> tuple[str, Period]:
    """``text`` without its first time phrase, and that period. A date that is the value itself stays."""
    for kind in ("past", "range", "since", "until", "at"):
        found = pattern(kind).search(text)
        dates = pattern("bare_date").finditer(text) if found and kind == "at" else ()
        if found is None or any(date.start() < found.end() and found.start() < date.end() for date in dates):
            continue
        rest, phrase = f"{text[: found.start()]} {text[found.end() :]}".strip(), found["phrase"]
        counted_from = _ANY_DAY if said_at is None and _YEAR.search(phrase) else said_at
        if kind in ("since", "until"):  # the point itself, as its interval is only a bound
            phrase = pattern("before_point").sub("", phrase)
            phrase = phrase if phrase.lower().startswith(("last", "this", "yesterday")) else f"in {phrase}"
        start, end = (counted_from and interval_of(phrase, counted_from)) or (None, None)
        period = Period(kind, None if kind == "until" else start, None if kind in ("since", "at") else end)
        return (rest, period) if rest else (text, Period())
    return text, Period()
