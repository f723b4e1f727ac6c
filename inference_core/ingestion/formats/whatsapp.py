"""WhatsApp's exports of chats, as phones of many languages and ages write them.

A message begins with a date, a time and its author; the lines without are its other ones. Without an author, or in
place of the text, WhatsApp tells what happened: such notices are nobody's words, in the phone's language.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta, tzinfo
from importlib.resources import files
from itertools import islice
from typing import Any, Final, NamedTuple

from inference_core.ingestion.formats.chat_exports import was_utf8
from inference_core.ingestion.formats.entries import DAMAGED, Entry, Odd

NOTICE: Final = "notices"
MEDIA: Final = "media and the like"
DELETED: Final = "deleted messages"
"""The roles given to what is not a message, by which it is skipped and counted."""
_DATA: Final[dict[str, str]] = tomllib.loads((files(str(__package__)) / "whatsapp.toml").read_text("utf-8"))
_MORNING, _AFTERNOON, _PARTICLES = (frozenset(_DATA[name].split()) for name in ("morning", "afternoon", "particles"))
_OMITTED, _DELETED, _EDITED = (frozenset(_DATA[name].split("\n")) - {""} for name in ("omitted", "deleted", "edited"))
_DELETED_BY: Final = tuple(f"{line} " for line in _DATA["deleted_by"].split("\n") if line)
_SIGNS: Final = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Marks of the direction of text, which WhatsApp writes beside dates and names."""
_BLANKS: Final = f"{_SIGNS} \u00a0\u202f\n"
_MARKS: Final = f"[{_SIGNS}]{{0,4}}"
_BETWEEN: Final = rf"{_MARKS}[./\-年月년월]\s?{_MARKS}"
_WORD: Final = r"[^\s\d:,\[\]<>/\-\u2010-\u2015]{1,12}"
_WORDS: Final = rf"{_WORD}(?:\s{_WORD})?"
"""What stands beside a time: "下午", "klo", "a las", "p. m."."""
_HEAD: Final = re.compile(
    rf"""
    {_MARKS} (?P<bracket>\[)? {_MARKS}
    (\d{{1,4}}) {_BETWEEN} (\d{{1,2}}) {_BETWEEN} (\d{{1,4}}) [.日일]? {_MARKS} (?:\s?[^\W\d_]{{1,2}}\.)? [,\u060c]?
    {_MARKS} \s+ {_MARKS} (?:(?P<before>{_WORDS}),?\s?)? {_MARKS}
    (\d{{1,2}}) \s?[:.h]\s? (\d\d) (?P<seconds>\s?[:.]\s?(\d\d))? (?:\s?(?P<after>{_WORDS}))? {_MARKS}
    (?(bracket)\] | (?:\s+[-\u2010-\u2015] | (?(seconds): | :(?=\s+[^:\n]{{1,60}}:\s))))
    \s+ (?P<text>.*)
    """,
    re.DOTALL | re.VERBOSE,
)
"""How a message begins, in a line each: "[", the date, what is between, the time, "]" or "-", or ":" on old phones."""
_DOTS: Final = re.compile(rf"[.\s{_SIGNS}]")
_AUTHOR: Final = re.compile(r"([^:\n]{1,100}): ?(.*)", re.DOTALL)
_MEDIA: Final = re.compile(
    r"\A(?:\u200e?<(?:[^<>\n]{1,60}>\Z|(?=[^<>\n]*(?: |[^\x00-\x7f]))[^<>\n]{1,60}>\n)"
    r"|(?:\u200e[^\n]*(?:\n|\Z))+"
    r"|[^\n/\\]{1,120}\.\w{2,5} (?:\([^()\n]{3,40}\)|<[^<>\n]{3,40}>)(?:\n|\Z))"
)
"""A placeholder for a picture or other media, or a notice of WhatsApp itself. The picture's caption may follow."""
_EDIT: Final = re.compile(r"(\u200e)?<([^<>\n]{3,60})>\Z")
_SENTENCE: Final = re.compile(r"\w{5}[.!?] ")
"""No name has the end of a sentence in it; "Dr. Ada" is none."""
_QUOTES: Final = ('""', "\u201c\u201d", "\u201e\u201c", "\u00ab\u00bb", "\u300c\u300d")
_HEADS: Final = 20
_MONTHS: Final = 12
_CENTURY: Final = 100
_FIRST_YEAR, _LAST_YEAR = 2009, 2199
_JALALI: Final = range(1388, 1500)
_BUDDHIST: Final = 543


class Order(NamedTuple):
    """The positions, from 1, of the day, the month and the year in a date."""

    day: int
    month: int
    year: int


class Chat(NamedTuple):
    """What has to be known of a whole chat before its messages can be read: the order of its dates, its authors."""

    order: Order
    authors: Counter[str]


def is_whatsapp(lines: Iterable[str]) -> bool:
    """Whether one of the first lines begins like a WhatsApp message."""
    return any(_HEAD.match(line) for line in islice(lines, _HEADS))


def chat_of(lines: Iterable[str]) -> Chat:
    """The order of day, month and year in this chat, which depends on the phone's settings, and who writes in it.

    Numbers above 12 reveal the order; else a date such as 1/5/25 with AM or PM is American: others write 01/05/25.
    """
    seen, authors = Counter[str](), Counter[str]()
    order: Order | None = None
    for found in filter(None, map(_HEAD.match, lines)):
        first, second = found[2], found[3]
        if int(first) > 31:  # noqa: PLR2004 - no day
            order = Order(4, 3, 2)
        seen["day first"] += int(first) > _MONTHS
        seen["month first"] += int(second) > _MONTHS
        seen["american"] += (found["after"] or "").strip() in ("AM", "PM") and "/" in found[0][: found.start(4)]
        seen["padded"] += "0" in (first[0], second[0])
        if said := _AUTHOR.fullmatch(found["text"]):
            authors[_name(said[1])] += 1
    is_american = seen["american"] and not seen["padded"] and not seen["day first"]
    return Chat(order or (Order(3, 2, 4) if seen["month first"] or is_american else Order(2, 3, 4)), authors)


def whatsapp_entries(lines: Iterable[tuple[int, str]], chat: Chat, name: str, zone: tzinfo) -> Iterator[Entry]:
    """The messages of a chat; those of one day form a session. ``zone`` is the phone's time zone."""
    held: tuple[int, re.Match[str], list[str]] | None = None
    for number, line in lines:
        if found := _HEAD.match(line):
            if held:
                yield _entry(*held, chat, name, zone)
            held = number, found, [found["text"]]
        elif held:
            held[2].append(line)
    if held:
        yield _entry(*held, chat, name, zone)


def _entry(number: int, head: re.Match[str], texts: list[str], chat: Chat, name: str, zone: tzinfo) -> Entry:
    where, text = f"line {number}", "\n".join(texts)
    at = _moment(head, chat.order, zone)
    day = f"{at:%Y-%m-%d}" if at else "without date"
    fields: dict[str, Any] = {
        "session_id": f"{name} {day}",
        "timestamp": at.isoformat() if at else head[0][: head.start("text")],
    }
    if not was_utf8(text):
        return where, Odd(DAMAGED, "it is not text in UTF-8", fields["session_id"])
    said = _AUTHOR.fullmatch(text)
    if said is None or _is_notice(_name(said[1]), chat.authors):
        return where, {**fields, "role": NOTICE}
    whole = _plain(said[2])
    if whole in _DELETED or whole.startswith(_DELETED_BY):
        return where, {**fields, "role": DELETED}
    content = _MEDIA.sub("", said[2]).rstrip()
    if (edit := _EDIT.search(content)) and (edit[1] or _plain(edit[2]) in _EDITED):
        content = content[: edit.start()].rstrip()
    if not (plain := _plain(content)) or plain in _OMITTED:
        return where, {**fields, "role": MEDIA}
    return where, {**fields, "role": "user", "name": _name(said[1]), "content": content}


def _name(author: str) -> str:
    """The name of an author; "~" stands before those that are not among the phone's contacts."""
    return author.strip(_BLANKS).removeprefix("~").strip(_BLANKS)


def _plain(text: str) -> str:
    return text.strip(_BLANKS).rstrip(".\u3002\u0964").casefold()


def _is_notice(name: str, authors: Counter[str]) -> bool:
    """Whether what stands before a colon is the begin of a notice: 'Ada changed the subject to "Trip: Rome"'."""
    if _SENTENCE.search(name) or any(
        name.count(start) > name.count(end) or (start == end and name.count(start) % 2) for start, end in _QUOTES
    ):
        return True
    words = name.split(" ")
    return any(
        word[:1].islower() and word not in _PARTICLES and " ".join(words[:at]) in authors
        for at, word in enumerate(words)
        if at
    )


def _moment(head: re.Match[str], order: Order, zone: tzinfo) -> datetime | None:
    """The time of a message; None if it is none, or long before or after WhatsApp's."""
    year, month, day, hour = int(head[order.year]), int(head[order.month]), int(head[order.day]), int(head[6])
    for half in filter(None, (head["before"], head["after"])):
        word = _DOTS.sub("", half).casefold()
        if word in _MORNING or word in _AFTERNOON:
            hour = hour % 12 + 12 * (word in _AFTERNOON)
    year += 2000 * (year < _CENTURY)
    try:
        if year in _JALALI:
            found = _gregorian(year, month, day)
            year, month, day = found.year, found.month, found.day
        elif year > _LAST_YEAR:
            year -= _BUDDHIST
        if not _FIRST_YEAR <= year <= _LAST_YEAR:
            return None
        return datetime(year, month, day, hour, int(head[7]), int(head[9] or 0), tzinfo=zone)
    except (ValueError, OverflowError):
        return None


def _gregorian(year: int, month: int, day: int) -> date:
    """A day of the Persian calendar. Raises ValueError.

    Its year 1388 began on 21 March 2009. The leap years are those with one of eight remainders modulo 33.
    """
    leap = frozenset({1, 5, 9, 13, 17, 22, 26, 30})
    days = [31] * 6 + [30] * 5 + [29 + (year % 33 in leap)]
    if not (1 <= month <= _MONTHS and 1 <= day <= days[month - 1]):
        raise ValueError
    years = sum(365 + (one % 33 in leap) for one in range(_JALALI.start, year))
    return date(2009, 3, 21) + timedelta(days=years + sum(days[: month - 1]) + day - 1)
