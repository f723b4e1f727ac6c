"""One line a memory: what every form of the memory block writes of one thing that is told."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo
from typing import Final

from inference_core.clock import in_zone
from inference_core.context.items import ContextItem
from inference_core.context.neutral import CUT_MARK, neutral_line
from inference_core.memory.trust import Trust

MAX_LABEL: Final = 120
_UNDATED: Final = "undated"
_MAX_TAG: Final = 60
_NOT_IN_TAGS: Final = re.compile("[^a-z0-9_]+")
_BRACKETS: Final = str.maketrans({mark: f"&#{ord(mark)};" for mark in "[]()"})


def line_of(item: ContextItem, zone: tzinfo) -> str:
    """``item`` with its date in ``zone``, type, topic and, if it is not the user's or the application's, source."""
    topic = f" [topic: {topic}]" if (topic := topic_of(item)) else ""
    source = f" [source: {source}]" if (source := origin_of(item)) else ""
    return f"  - [{date_of(item, zone)}] {neutral_line(item.text)} (type: {kind_of(item)}){topic}{source}"


def date_of(item: ContextItem, zone: tzinfo) -> str:
    """When it happened, to the second, in ``zone``."""
    return _UNDATED if item.happened_at is None else stamp(in_zone(item.happened_at, zone))


def kind_of(item: ContextItem) -> str:
    """The type of the item, else the name of its source."""
    return _label(item.kind or item.source)


def topic_of(item: ContextItem) -> str:
    """The topic of the item's memory; "" without one."""
    return _label(item.record.topic or "") if item.record else ""


def origin_of(item: ContextItem) -> str:
    """Who said it, if that is not the user or the application; else ""."""
    if item.trust >= Trust.STATED:
        return ""
    if item.record is not None:
        return item.record.source.origin.value
    return "agent" if item.trust is Trust.INFERRED else "external"


def header(now: datetime, zone: tzinfo) -> str:
    """The line that says what time it is in ``zone``."""
    moment = in_zone(now, zone)
    return f"Current datetime ({moment.tzname() or 'UTC'}): {stamp(moment)}{'Z' if moment.tzname() == 'UTC' else ''}"


def stamp(moment: datetime) -> str:
    """``moment`` to the second, without its zone."""
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")


def tag_of(name: str) -> str:
    """The name of an element for ``name``."""
    return _NOT_IN_TAGS.sub("_", name.lower())[:_MAX_TAG] or "block"


def _label(text: str) -> str:
    """Short text in which no mark of the line's form is left."""
    line = neutral_line(text, MAX_LABEL)
    label = line.removesuffix(CUT_MARK)
    return label.translate(_BRACKETS) + line[len(label) :]
