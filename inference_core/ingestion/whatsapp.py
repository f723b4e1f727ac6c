"""Chats as WhatsApp exports them: text, a message a line, or several for one that has line breaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from itertools import islice
from typing import Final, NamedTuple

from inference_core.ingestion.chat_exports import Entry

_HEAD: Final = re.compile(
    r"\u200e?\[?(\d{1,4})[./-](\d{1,2})[./-](\d{1,4}),?\s+(\d{1,2})[:.](\d\d)(?:[:.](\d\d))?(?:\s*([AaPp])\.?\s?[Mm]\.?)?"
    r"(?:\]|\s+-)\s+(.*)",
    re.DOTALL,
)
_AUTHOR: Final = re.compile(r"([^:\n]{1,100}): ?(.*)", re.DOTALL)
_MEDIA: Final = re.compile(r"<[^<>\n]{1,60}>|\u200e.*", re.DOTALL)
"""What stands for a picture, and what the program itself says."""
_HEADS: Final = 20
_MONTHS: Final = 12
_CENTURY: Final = 100


class Order(NamedTuple):
    """Where in a date the day, the month and the year stand."""

    day: int
    month: int
    year: int


def is_whatsapp(lines: Iterable[str]) -> bool:
    """Whether one of the first lines begins as a message does."""
    return any(_HEAD.match(line) for line in islice(lines, _HEADS))


def order_of(lines: Iterable[str]) -> Order:
    """How dates are written in this chat, which differs by the phone's settings and is told by the dates above 12."""
    seen = Counter[str]()
    for found in filter(None, map(_HEAD.match, lines)):
        first, second = int(found[1]), int(found[2])
        if first > 31:  # noqa: PLR2004 - no day
            return Order(3, 2, 1)
        seen["day first"] += first > _MONTHS
        seen["month first"] += second > _MONTHS
        seen["american"] += bool(found[7])
    is_month_first = seen["month first"] or (seen["american"] and not seen["day first"])
    return Order(2, 1, 3) if is_month_first else Order(1, 2, 3)


def whatsapp_entries(lines: Iterable[tuple[int, str]], order: Order, name: str, zone: tzinfo) -> Iterator[Entry]:
    """The messages of a chat; those of a day are a session. ``zone`` is where the phone was."""
    held: tuple[int, re.Match[str], list[str]] | None = None
    for number, line in lines:
        if found := _HEAD.match(line):
            if held:
                yield from _entry(*held, order, name, zone)
            held = number, found, [found[8]]
        elif held:
            held[2].append(line)
    if held:
        yield from _entry(*held, order, name, zone)


def _entry(
    number: int, head: re.Match[str], texts: list[str], order: Order, name: str, zone: tzinfo
) -> Iterator[Entry]:
    said = _AUTHOR.fullmatch("\n".join(texts))
    year, hour = int(head[order.year]), int(head[4])
    if head[7]:
        hour = hour % 12 + 12 * (head[7] in "Pp")
    try:
        at = datetime(
            year + 2000 * (year < _CENTURY),
            int(head[order.month]),
            int(head[order.day]),
            hour,
            int(head[5]),
            int(head[6] or 0),
            tzinfo=zone,
        )
    except ValueError:
        at = None
    day = f"{at:%Y-%m-%d}" if at else "without date"
    fields = {"session_id": f"{name} {day}", "timestamp": at and at.isoformat()}
    if said is None or _MEDIA.fullmatch(said[2]):
        yield f"line {number}", {"role": "system", **fields}
    else:
        yield (
            f"line {number}",
            {"role": "user", "name": said[1].strip("\u200e\u202a\u202c "), "content": said[2], **fields},
        )
