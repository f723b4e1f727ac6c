"""What the values in a language model's answer mean, whatever their case, number, scale and form."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Final

from inference_core.ingestion.candidates import Action
from inference_core.memory.types import SINGULAR_TYPES, MemoryType
from inference_core.retrieval.time_expressions import interval_of

_NOT_WORD: Final = re.compile(r"[\W_]+")
_MAX_NAME: Final = 60
_MAX_INTEGER: Final = 1 << 63
_MAX_MOMENT: Final = 60
_NUMBER: Final = re.compile(r"\s*([+-]?\d{0,9}(?:[.,]\d{1,9})?)\s*(?:(%)|/\s*(\d{1,3}))?\s*")
_LEVELS: Final = {
    "critical": 1.0,
    "veryhigh": 0.9,
    "high": 0.8,
    "medium": 0.5,
    "moderate": 0.5,
    "normal": 0.5,
    "low": 0.2,
    "verylow": 0.1,
    "minor": 0.2,
}
_PARTIAL_DATE: Final = re.compile(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?")
_ONE_DAY: Final = timedelta(days=1)


def _table(meanings: Mapping[Any, str]) -> dict[str, Any]:
    return {word: meaning for meaning, words in meanings.items() for word in words.split()}


def plain_text(value: Any) -> str:
    """``value`` if it is a text, a number as text, and "" for anything else."""
    if isinstance(value, str):
        return value
    is_printable = isinstance(value, float) or (isinstance(value, int) and abs(value) < _MAX_INTEGER)
    return str(value) if is_printable else ""


def folded(name: Any) -> str:
    """``name`` without case, spaces, dashes and underscores; "" if it is no text."""
    return _NOT_WORD.sub("", plain_text(name)[:_MAX_NAME].casefold())


_SYNONYMS: Final = {
    MemoryType.PREFERENCES: "like likes dislike dislikes habit habits taste tastes style opinion",
    MemoryType.FACTS: "semantic profile personal biographical personalfact userfact relationship event factual",
    MemoryType.GOALS: "plan plans intention intentions task tasks todo idea ideas wish objective",
    MemoryType.GENERAL: "other misc miscellaneous unknown",
    MemoryType.CONTEXT: "situation circumstance circumstances status sessionsummary summary",
    MemoryType.INTERACTION: "episodic episode experience conversation feedback correction",
    MemoryType.INSTRUCTION: "rule rules procedural directive directives",
    MemoryType.WORKFLOW: "process procedure",
    MemoryType.SKILL: "ability lesson",
}
TYPES: Final[Mapping[str, MemoryType]] = {
    **_table(_SYNONYMS),
    **{f"{folded(kind.value)}s": kind for kind in _SYNONYMS},
    **{folded(kind.value): kind for kind in _SYNONYMS},
    **{name: MemoryType(plural) for name, plural in SINGULAR_TYPES.items()},
}
"""Types by what models call them, folded; a summary of a session is none of those that are extracted."""
ACTIONS: Final[Mapping[str, Action]] = _table(
    {
        Action.ADD: "add new create insert save store remember",
        Action.REINFORCE: "reinforce confirm repeat strengthen merge duplicate",
        Action.SUPERSEDE: "supersede update replace correct change overwrite edit contradict",
    }
)
REFUSED_ACTIONS: Final = frozenset(
    ["delete", "remove", "forget", "erase", "drop", "none", "noop", "nochange", "ignore", "skip"]
)
"""What other memories know and this one does not: nothing is deleted because a model says so."""
STATE_NAMES: Final[Mapping[str, str]] = _table(
    {
        "open": "open active inprogress ongoing planned pending new started todo",
        "done": "done completed complete finished achieved reached closed",
        "dropped": "dropped abandoned cancelled canceled rejected givenup obsolete",
    }
)
KIND_NAMES: Final[Mapping[str, str]] = _table(
    {
        "person": "person people human user individual per",
        "place": "place location city country region loc gpe address",
        "organization": "organization organisation org company team institution group employer",
        "thing": "thing object product item animal pet event date tool",
        "concept": "concept topic idea skill activity hobby language food",
    }
)


def share_of(value: Any) -> float | None:
    """A share from 0 to 1 from a number or its words: 0.8, "0.8", "80 %", "8/10", 8 of 10, 80 of 100, "high"."""
    if isinstance(value, str):
        return _LEVELS.get(folded(value), _number_in(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return None
    return _scaled(value, 1 if value <= 1 else 10 if value <= 10 else 100)  # noqa: PLR2004 - the usual scales


def _number_in(text: str) -> float | None:
    found = _NUMBER.fullmatch(text[:_MAX_NAME])
    if not found or not found[1].strip("+-"):
        return None
    number = float(found[1].replace(",", "."))
    if found[2] or found[3]:
        return _scaled(number, float(found[3] or 100) or 1)
    return share_of(number)


def _scaled(number: float, most: float) -> float:
    return float(min(most, max(0, number))) / most


def start_of(value: Any, said_at: datetime, zone: tzinfo) -> datetime | None:
    """The instant, in UTC, at which what ``value`` names begins; without an offset it is one of ``zone``.

    Words such as "yesterday" are worked out from ``said_at``. None if it names no time.
    """
    span = _span_of(value, said_at, zone)
    return span and span[0]


def end_of(value: Any, said_at: datetime, zone: tzinfo) -> datetime | None:
    """Like `start_of`, but where it ends: a day, a month or a year as a whole belongs to it."""
    span = _span_of(value, said_at, zone)
    return span and span[1]


def _span_of(value: Any, said_at: datetime, zone: tzinfo) -> tuple[datetime, datetime] | None:
    if not isinstance(value, str) or len(value) > _MAX_MOMENT:
        return None
    text = value.strip()
    try:
        span = _calendar_span(text, zone) or _instant(text, zone) or interval_of(text, said_at.astimezone(zone))
        return span and (span[0].astimezone(UTC), span[1].astimezone(UTC))
    except (ValueError, OverflowError):
        return None


def _calendar_span(text: str, zone: tzinfo) -> tuple[datetime, datetime] | None:
    """A whole year, month or day as ISO 8601 writes it. Raises ValueError, OverflowError."""
    found = _PARTIAL_DATE.fullmatch(text)
    if not found:
        return None
    first = date(int(found[1]), int(found[2] or 1), int(found[3] or 1))
    if found[3]:
        last = first + _ONE_DAY
    elif found[2]:
        last = (first.replace(day=28) + 4 * _ONE_DAY).replace(day=1)
    else:
        last = first.replace(year=first.year + 1)
    start, end = (datetime.combine(day, time.min, zone) for day in (first, last))
    return start, end


def _instant(text: str, zone: tzinfo) -> tuple[datetime, datetime] | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return moment, moment
