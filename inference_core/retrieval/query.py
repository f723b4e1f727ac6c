"""What a search looks for, derived from the text of a query: its words, the names in it, and the time it refers to.

Names are compared folded, without accents and possessives: "José's" is "jose". If a query names nobody that way, stems
are compared: "Anny" is "Anna" in Polish. Entities that share a name are not told apart; nothing is merged, and a link
states the name that it is based on.

A time ("last week", "in May 2023", "on 8 May") is read as an interval of whole days. Own rules instead of a library:
dateparser's search takes milliseconds to seconds, finds instants rather than intervals, and reads "may" as a month.
Precision comes first: a doubtful expression is not read as a time. Understands English, and dates with month names in
German, Spanish, French and Chinese. Weeks begin on Monday; seasons are those of the northern hemisphere, by month. A
date without a year is the latest one that has begun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import cache, cached_property, lru_cache
from itertools import count
from typing import Final

from inference_core.memory.record import MAX_NAME_CHARACTERS, entities_of
from inference_core.retrieval.analysis import (
    UNSPACED,
    WORDS,
    folded,
    is_content_token,
    language_of,
    query_alternatives,
    stem_of,
    without_accents,
)
from inference_core.retrieval.documents import QueryVectors, Term

MAX_QUERY_CHARACTERS: Final = 8_192
_QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")
_OPENS_A_QUESTION: Final = re.compile(
    r"(?:who|whom|whose|what|when|where|which|why|how|did|do|does|is|are|was|were|am|has|have|had|can|could|would|"
    r"should|will|may)\b",
    re.IGNORECASE,
)
_AUTHOR: Final = re.compile(rf"\s*([^\W\d_][^\n:\uff1a]{{0,{MAX_NAME_CHARACTERS - 1}}})[:\uff1a]\s*\S")
_AUTHORS_PLACE: Final = MAX_NAME_CHARACTERS + 32
_MAX_WORDS: Final = 3
_MARKS: Final = "'-.:@/+#_"
_SUFFIX: Final = re.compile(r"(?:'s|(?<=\w{3})'\w{1,4})$")
"""A possessive, or a case that follows an apostrophe: "Ida's", Turkish "Ayşe'nin"; but not "O'Brien"."""
_UNSPACED: Final = re.compile(rf"[{UNSPACED}]{{2}}")
_SHORT: Final = 120
_END: Final = 60
"""A text with a question mark among its last so many characters is a question."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query's analysed terms, its vectors by space if there is a model, and what it asks for.

    ``interval`` is the time that the text refers to, in seconds since 1970. ``wants_action``: it tells the agent to do
    something instead of asking a question. ``ignore_session``: rank texts without regard to their speaker and session.
    """

    terms: Sequence[Term] = ()
    vectors: Mapping[int, QueryVectors] = field(default_factory=dict[int, QueryVectors])
    interval: tuple[float, float] | None = None
    wants_action: bool = False
    ignore_session: bool = False

    @classmethod
    def of(
        cls,
        text: str,
        now: datetime,
        vectors: Mapping[int, QueryVectors] | None = None,
        *,
        ignore_session: bool = False,
    ) -> Query:
        """The query ``text``, asked at ``now`` in the user's time zone."""
        text = text[:MAX_QUERY_CHARACTERS]
        interval = interval_of(text, now)
        clean = text.strip()
        asks = clean.endswith(_QUESTION_MARKS) or _OPENS_A_QUESTION.match(clean) is not None
        return cls(
            terms=query_alternatives(text),
            vectors=vectors or {},
            interval=None if interval is None else (interval[0].timestamp(), interval[1].timestamp()),
            wants_action=bool(clean) and not asks,
            ignore_session=ignore_session,
        )


@lru_cache(maxsize=4_096)
def canonical_name(name: str) -> str:
    """The form in which names are compared; "" if nothing remains."""
    words = (without_accents(_SUFFIX.sub("", word.strip(_MARKS))) for word in folded(name).split())
    return " ".join(filter(None, words))


def author_of(text: str) -> str | None:
    """The speaker's name, of at most three words, in a text like "Ida: I moved"; else None."""
    head = text[:_AUTHORS_PLACE]
    match = _AUTHOR.match(head) if ":" in head or "\uff1a" in head else None
    words = match[1].split() if match else []
    is_name = 0 < len(words) <= _MAX_WORDS and words[-1][0].isalpha() and not words[-1][0].islower()
    return " ".join(words) if is_name else None


def subjects_of(value: Mapping[str, object], text: str) -> dict[str, str]:
    """Whom or what a memory is about: its speaker and its entities, from canonical name to the name as written."""
    author, entities = author_of(text), entities_of(value)
    return by_canonical([*([author] if author else []), *entities]) if author or entities else {}


def by_canonical(names: Iterable[str]) -> dict[str, str]:
    """``names`` by canonical name."""
    found = {canonical_name(name): name for name in names}
    found.pop("", None)
    return found


def asks_something(text: str) -> bool:
    """Whether ``text`` ends in a question, so that it says little about anybody."""
    end = text[-_END:]
    return "?" in end or "\uff1f" in end


def only_asks(text: str) -> bool:
    """Whether ``text`` is a short question. A long one also says what it is about."""
    return len(text) < _SHORT and asks_something(text)


class Named:
    """The text of a query, searched for names: whole words, or in scripts without spaces any part of it."""

    def __init__(self, text: str) -> None:
        self._text = text[:MAX_QUERY_CHARACTERS]
        self._words = f" {canonical_name.__wrapped__(self._text)} "

    def __contains__(self, name: str) -> bool:
        """Whether the query contains the canonical ``name``. Function words do not count as names."""
        if _UNSPACED.match(name):
            return name in self._words
        return f" {name} " in self._words and is_content_token(name)

    def is_any(self, names: Iterable[str]) -> bool:
        """Whether the query contains one of the canonical ``names`` in any grammatical case."""
        return any(name in self or self.resembles(name) for name in names)

    def resembles(self, name: str) -> bool:
        """Whether the query contains the canonical ``name`` in another grammatical case. False for English queries."""
        stems, language = self._stems
        return bool(stems) and is_content_token(name) and f" {_stemmed(name, language)} " in stems

    @cached_property
    def _stems(self) -> tuple[str, str]:
        language = language_of(self._text)
        return ("", "") if language in ("", "en") else (f" {_stemmed(self._words, language)} ", language)


def _stemmed(words: str, language: str) -> str:
    return " ".join(stem_of(word, language) for word in words.split())


# The time that a text refers to.

MAX_CHARACTERS: Final = 1_000
"""Text beyond this many characters is ignored."""
Span = tuple[date, date]
_MONTHS: Final = {
    name: number for number, names in enumerate(WORDS["months"].values(), start=1) for name in names.split()
}
_SHORT_MONTHS: Final = {name[:3]: number for number, name in enumerate(WORDS["months"], start=1)} | {"sept": 9}
_COUNTS: Final = {word: int(number) for number, words in WORDS["counts"].items() for word in words.split()}
_WEEKDAYS: Final[list[str]] = WORDS["weekdays"]
_SEASONS: Final[dict[str, int]] = WORDS["seasons"]
_ORDINALS: Final[dict[str, int]] = WORDS["ordinals"]
_DAYS: Final[dict[str, int]] = WORDS["days"]


def interval_of(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    """The interval that ``text`` names, end exclusive, in the time zone of the aware ``now``.

    None if it names none, several, or only one end ("before May"). Never raises.
    """
    text, today = text[:MAX_CHARACTERS].casefold(), now.date()
    if not _HINT.search(text):
        return None
    text = _HALF_YEAR.sub("6 months", text)
    text = _YEAR_BEHIND.sub(lambda match: f"{match['when']} {today.year - (match['which'] == 'last')}", text)
    spans: set[Span] = set()
    try:
        for pattern, rule in _rules():  # specific ones come before general ones
            for match in pattern.finditer(text):
                if span := rule(match, today):
                    lead = text[max(0, match.start() - _MAX_LEAD) : match.start()]
                    if _SINCE.search(lead) or match[0].startswith(_SINCE_WORDS):
                        span = span[0], today + timedelta(days=1)
                    elif _ONE_END.search(lead):  # only an end of an interval
                        span = today, today
                    spans.add(span)
            if spans:
                break
    except (OverflowError, ValueError):  # outside of the calendar
        return None
    start, end = spans.pop() if len(spans) == 1 else (today, today)
    if start >= end:
        return None
    return datetime.combine(start, time.min, now.tzinfo), datetime.combine(end, time.min, now.tzinfo)


def _day(start: date) -> Span:
    return start, start + timedelta(days=1)


def _months(year: int, month: int, length: int = 1) -> Span:
    """``length`` months from a month on, which may lie outside 1 to 12."""
    first, end = year * 12 + month - 1, year * 12 + month - 1 + length
    return date(first // 12, first % 12 + 1, 1), date(end // 12, end % 12 + 1, 1)


def _begun(today: date, span_of: Callable[[int], Span]) -> Span:
    """The latest year's span that has begun, skipping years in which the day does not exist."""
    for year in range(today.year, today.year - 9, -1):
        try:
            span = span_of(year)
        except ValueError:
            continue
        if span[0] <= today:
            return span
    raise ValueError


def _calendar(match: re.Match[str], today: date) -> Span | None:
    """A day, month or year, by the groups ``year``, ``month`` or ``name``, and ``day``, as far as they are present."""
    groups = match.groupdict()
    year, day = groups.get("year"), groups.get("day")
    name = groups.get("month") or groups.get("name")
    if name is None:
        return _months(int(year or 0), 1, 12)
    month = _month(name)

    def span_of(year: int) -> Span:
        return _day(date(year, month, int(day))) if day else _months(year, month)

    return span_of(int(year)) if year else _begun(today, span_of)


def _month(name: str) -> int:
    return int(name) if name.isdecimal() else _MONTHS.get(name) or _SHORT_MONTHS[name]


def _slashed(match: re.Match[str], _: date) -> Span | None:
    """The day of a date like 28/05/2023; None for an ambiguous one like 08/05/2023."""
    first, second, year = (int(group) for group in match.groups())
    if first != second and max(first, second) <= 12:  # noqa: PLR2004 - months of a year
        return None
    return _day(date(year, min(first, second), max(first, second)))


def _range(match: re.Match[str], today: date) -> Span:
    """A range of months: its year is that of the last month, and the first month may lie in the year before."""
    first, last = _month(match["first"]), _month(match["last"])
    year = int(match["year"]) if match["year"] else _begun(today, lambda year: _months(year, last))[0].year
    start = int(match["start"]) if match["start"] else year - (first > last)
    return _months(start, first)[0], _months(year, last)[1]


def _named_day(match: re.Match[str], today: date) -> Span:
    return _day(today + timedelta(days=_DAYS[match[0]]))


def _rolling(match: re.Match[str], today: date) -> Span:
    """From so many days, weeks, months or years ago to the end of today."""
    number, unit = _count(match.groupdict().get("count", "1")), match["unit"]
    if unit in ("day", "week"):
        start = today - timedelta(days=number * (7 if unit == "week" else 1))
    else:
        month, _ = _months(today.year, today.month - number * (12 if unit == "year" else 1))
        start = month + timedelta(days=min(today.day, 28) - 1)
    return start, today + timedelta(days=1)


def _count(given: str) -> int:
    return int(given) if given.isdecimal() else _COUNTS[given]


def _this_or_last(match: re.Match[str], today: date) -> Span:
    is_this, unit = match["which"] in ("this", "current"), match["unit"]
    month = _SEASONS.get(unit)
    if month is None:
        return _unit(unit, today, 0 if is_this else -1)
    if is_this:  # until May "this winter" is the one that began in the year before
        return _months(today.year - (unit == "winter" and today.month < _SEASONS["summer"]), month, 3)
    return next(span for year in count(today.year, -1) if (span := _months(year, month, 3))[1] <= today)


def _unit(unit: str, today: date, offset: int) -> Span:
    if unit == "day":
        return _day(today + timedelta(days=offset))
    if unit in ("week", "weekend"):
        monday = today + timedelta(days=7 * offset - today.weekday())
        return monday + timedelta(days=5 if unit == "weekend" else 0), monday + timedelta(days=7)
    if unit == "quarter":
        return _months(today.year, (today.month - 1) // 3 * 3 + 1 + 3 * offset, 3)
    return _months(today.year, today.month + offset) if unit == "month" else _months(today.year + offset, 1, 12)


def _quarter(match: re.Match[str], today: date) -> Span:
    number = _ORDINALS.get(match["number"]) or int(match["number"])
    if match["year"]:
        return _months(int(match["year"]), number * 3 - 2, 3)
    return _begun(today, lambda year: _months(year, number * 3 - 2, 3))


def _weekday(match: re.Match[str], today: date) -> Span:
    """The latest such day before today; "on Friday" may be today."""
    back = (today.weekday() - _WEEKDAYS.index(match["day"])) % 7
    return _day(today - timedelta(days=back or (0 if match["which"] == "on" else 7)))


def _day_of_last_week(match: re.Match[str], today: date) -> Span:
    return _day(_unit("week", today, -1)[0] + timedelta(days=_WEEKDAYS.index(match["day"])))


def _month_alone(match: re.Match[str], today: date) -> Span:
    """The latest such month that has begun; "last May" is over, "this May" is this year's."""
    month = _MONTHS[match["name"]]
    if match["which"] == "this":
        return _months(today.year, month)
    before = today.replace(day=1) - timedelta(days=1) if match["which"] == "last" else today
    return _begun(before, lambda year: _months(year, month))


_YEAR: Final = r"(?P<year>(?:19|20)\d\d)\b"
_FULL: Final = "|".join(sorted(_MONTHS, key=len, reverse=True))
_NAME: Final = rf"(?P<name>{_FULL}|{'|'.join(sorted(_SHORT_MONTHS, key=len, reverse=True))})\b\.?"
_DAY: Final = r"\b(?P<day>\d{1,2})(?:st|nd|rd|th|er|\.)?\s+(?:of\s+|de\s+)?"
_OF: Final = r",?\s+(?:of\s+|del?\s+)?"
_SEASON: Final = "|".join(_SEASONS)
_UNITS: Final = "(?P<unit>day|week|month|year)s?"
_NUMBER: Final = rf"(?P<count>\d{{1,3}}|{'|'.join(_COUNTS)})(?:\s+of)?"
_SINCE_WORDS: Final = ("since", "seit", "desde", "depuis")
_SINCE_ANY: Final = "|".join(_SINCE_WORDS)
_SINCE: Final = re.compile(rf"\b(?:{_SINCE_ANY})\s+(?:the\s+)?\Z")
_ONE_END: Final = re.compile(r"(?:\b(?:before|after|until|till|by)\s+(?:the\s+)?|\d\s*(?:and|to|or|-|\u2013)\s*)\Z")
_MAX_LEAD: Final = 20
_HINT: Final = re.compile(
    rf"\d|\b(?:ago|last|past|previous|this|current|on|since|yesterday|today|tonight|tomorrow|{_FULL})\b"
)
_HALF_YEAR: Final = re.compile(r"(?<!\ba )\bhalf[ -](?:a )?year\b")
_YEAR_BEHIND: Final = re.compile(
    rf"\b(?:(?!may\b)|(?<=in )|(?<=on )|(?<=of ))(?P<when>(?:{_FULL}|{_SEASON})(?:\s+\d{{1,2}}(?:st|nd|rd|th)?)?),?\s+"
    r"(?:of\s+)?(?P<which>last|this)\s+year\b"
)
Rule = Callable[[re.Match[str], date], Span | None]
_PATTERNS: Final[list[tuple[str, Rule]]] = [
    (
        (
            rf"\b(?:between|from)\s+(?P<first>{_FULL})(?:\s+(?P<start>(?:19|20)\d\d))?\s+(?:and|to|until|through)\s+"
            rf"(?P<last>{_FULL})\b(?:\s+(?P<year>(?:19|20)\d\d)\b)?(?!\s+\d)"
        ),
        _range,
    ),
    (
        r"\b(?:between|from)\s+(?P<first>(?:19|20)\d\d)\s+(?:and|to|until|through)\s+(?P<last>(?:19|20)\d\d)\b",
        lambda match, _: (date(int(match["first"]), 1, 1), date(int(match["last"]) + 1, 1, 1)),
    ),
    (r"(?<![\w-])(?P<year>(?:19|20)\d\d)([-/.])(?P<month>\d{1,2})\2(?P<day>\d{1,2})(?!\d)", _calendar),
    (r"(?<!\d)(?P<year>(?:19|20)\d\d)\u5e74(?P<month>\d{1,2})\u6708(?P<day>\d{1,2})[\u65e5\u53f7]", _calendar),
    (r"(?<![\d.])(?P<day>\d{1,2})\.\s?(?P<month>\d{1,2})\.\s?(?P<year>(?:19|20)\d\d)(?!\d)", _calendar),
    (r"(?<![\d/])(\d{1,2})/(\d{1,2})/((?:19|20)\d\d)(?!\d)", _slashed),
    (_DAY + _NAME + _OF + _YEAR, _calendar),
    (r"\b" + _NAME + r"\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?\s+" + _YEAR, _calendar),
    (r"\b" + _NAME + _OF + _YEAR, _calendar),
    (r"(?<!\d)(?P<year>(?:19|20)\d\d)\u5e74(?P<month>\d{1,2})\u6708", _calendar),
    (r"(?<![\w-])(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)(?![-\w])", _calendar),
    (_DAY + rf"(?P<name>{_FULL})\b(?!\s+(?:be|have|not)\b)", _calendar),
    (rf"\b(?!may|march|mar)(?P<name>{_FULL})\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b", _calendar),
    (r"\b(?P<name>march|may)\s+(?P<day>\d{1,2})(?:st|nd|rd|th)\b", _calendar),
    (r"\b(?:on|since)\s+(?P<name>march|may)\s+(?P<day>\d{1,2})\b", _calendar),
    (r"(?<!\d)(?P<month>\d{1,2})\u6708(?P<day>\d{1,2})[\u65e5\u53f7]", _calendar),
    (r"(?<!\d)(?P<month>\d{1,2})\u6708(?!\d)", _calendar),
    (
        rf"\b(?<!half ){_NUMBER}\s+{_UNITS}\s+ago\b",
        lambda match, today: _unit(match["unit"], today, -_count(match["count"])),
    ),
    (rf"\blast\s+week,?\s+(?:on\s+)?(?P<day>{'|'.join(_WEEKDAYS)})\b", _day_of_last_week),
    (rf"\b(?P<day>{'|'.join(_WEEKDAYS)})\s+(?:of\s+)?last\s+week\b", _day_of_last_week),
    (r"\b(?:the day before yesterday|(?<!day before )yesterday|last night|today|tonight)\b", _named_day),
    (r"\b(?:this (?:morning|afternoon|evening)|(?<!day after )tomorrow)\b", _named_day),
    (rf"\b(?:last|past)\s+{_NUMBER}\s+{_UNITS}\b", _rolling),
    (r"\bpast\s+(?P<unit>day|week|month|year)\b", _rolling),
    (
        rf"\b(?P<season>{_SEASON})\s+(?:of\s+)?{_YEAR}",
        lambda match, _: _months(int(match["year"]), _SEASONS[match["season"]], 3),
    ),
    (r"\bq(?P<number>[1-4])(?:\s*(?:of\s+|/\s*)?(?P<year>(?:19|20)\d\d))?\b", _quarter),
    (rf"\b(?P<number>{'|'.join(_ORDINALS)})\s+quarter\s+(?:of\s+)?{_YEAR}", _quarter),
    (rf"\b(?P<which>on|last|past|since)\s+(?P<day>{'|'.join(_WEEKDAYS)})\b", _weekday),
    (
        rf"\b(?P<which>last|previous|this|current)\s+(?P<unit>weekend|week|month|year|quarter|{_SEASON})\b",
        _this_or_last,
    ),
    (rf"\b(?P<which>this)\s+(?!may\b|march\b)(?P<name>{_FULL})\b", _month_alone),
    (
        rf"\b(?P<which>in|during|last|of|throughout|im|en|{_SINCE_ANY})\s+(?P<name>{_FULL})\b(?!\s+(?:be|have|not|\d))",
        _month_alone,
    ),
    (rf"\b(?:in|during|throughout|en|{_SINCE_ANY}|year|jahr|jahre|a\u00f1o|ann\u00e9e)\s+{_YEAR}", _calendar),
    (r"(?<!\d)(?P<year>(?:19|20)\d\d)\u5e74", _calendar),
]


@cache
def _rules() -> list[tuple[re.Pattern[str], Rule]]:
    """Compiled when they are first needed, as that takes longer than importing the module."""
    return [(re.compile(pattern), rule) for pattern, rule in _PATTERNS]
