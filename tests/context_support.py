"""What tests of the context share: items, and the forms of the block read back."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from inference_core.context.items import AssembledContext, ContextItem
from inference_core.context.render import CONFLICTS, UNTRUSTED, fields_of

NOW: Final = datetime(2026, 1, 15, 12, tzinfo=UTC)
_LINE: Final = re.compile(
    r"  - \[(?P<date>[^\]]*)\] (?P<text>.*) \(type: (?P<type>[^()]*)\)"
    r"(?: \[topic: (?P<topic>.*?)\])?(?: \[source: (?P<source>\w+)\])?(?: \[(?P<note>[a-z ,]+)\])?"
)
_COMPACT_LINE: Final = re.compile(
    r"- (?P<date>\S+) (?P<text>.*?)(?: \(type: (?P<type>[^()]*)\))?(?: \[topic: (?P<topic>[^\]]*)\])?"
    r"(?: \[source: (?P<source>\w+)\])?(?: \[(?P<note>(?:hypothetical|perhaps outdated|, )+)\])?"
)


class Told(NamedTuple):
    """A memory as a reader of the block sees it."""

    date: str
    text: str
    type: str
    topic: str
    source: str
    note: str


Block = dict[str, list[Told]]


def item(text: str, *, days: float = 0, relevance: float | None = 0.5, **changes: Any) -> ContextItem:
    """A fact of ``days`` ago; its id is its text."""
    fields: dict[str, Any] = {
        "id": text,
        "section": "semantic_memory",
        "source": "memories",
        "kind": "facts",
        "happened_at": NOW - timedelta(days=days),
        "relevance": relevance,
    }
    return ContextItem(text=text, **(fields | changes))


def expected(context: AssembledContext, form: str = "xml") -> Block:
    """What a reader of a block of this form should see."""
    groups = {CONFLICTS: [one for group in context.conflicts for one in group], UNTRUSTED: list(context.untrusted)}
    block = {name: [_told(one, form) for one in items] for name, items in (*context.sections.items(), *groups.items())}
    return {name: sorted(items) for name, items in block.items() if items}


def _told(one: ContextItem, form: str) -> Told:
    date = one.happened_at.replace(tzinfo=None).isoformat(timespec="seconds") if one.happened_at else "undated"
    fields = fields_of(one, UTC)
    if form == "compact" and one.happened_at:
        is_recent = (NOW.date() - one.happened_at.date()).days <= 1
        date = date[: len("2026-01-15T12:00" if is_recent else "2026-01-15")]
    return Told(date, *(html.unescape(fields[name]) for name in Told._fields[1:]))


def parsed_xml(text: str) -> Block:
    """The block read back; what is neither an element, a heading nor a memory is an error."""
    return _parsed_lines(text, re.compile(r"<(\w+)>"), re.compile(r"</\w+>|## .*|  [A-Z][\w ()]*:"))


def parsed_markdown(text: str) -> Block:
    """Like `parsed_xml`; sections have the names of their headings."""
    return _parsed_lines(text, re.compile(r"## (.*)"), re.compile(r"\Z.\A"))


def parsed_compact(text: str) -> Block:
    """Like `parsed_markdown`."""
    return _parsed_lines(text, re.compile(r"([A-Z][^:]*):"), re.compile(r"\Z.\A"), _COMPACT_LINE)


def parsed_json(text: str) -> Block:
    """Like `parsed_xml`."""
    block: dict[str, Any] = json.loads(text) if text else {}
    block.pop("notice", None)
    return {name: sorted(_of_objects(value)) for name, value in block.items()}


PARSERS: Final[dict[str, Callable[[str], Block]]] = {
    "xml": parsed_xml,
    "json": parsed_json,
    "markdown": parsed_markdown,
    "compact": parsed_compact,
}
BY_TITLE: Final = ("markdown", "compact")
"""The forms in which a section has its title only."""


def _of_objects(value: Any) -> list[Told]:
    if isinstance(value, list):
        return [told for one in value for told in _of_objects(one)]  # pyright: ignore[reportUnknownVariableType]
    return [Told(*(html.unescape(value.get(name, "")) for name in Told._fields))]


def _parsed_lines(
    text: str, opening: re.Pattern[str], other: re.Pattern[str], one_line: re.Pattern[str] = _LINE
) -> Block:
    block: Block = {}
    name = ""
    for line in text.split("\n"):
        if found := opening.fullmatch(line):
            name = found[1]
            assert name not in block, "a section is told once"
            block[name] = []
        elif found := one_line.fullmatch(line):
            parts = found.groupdict(default="")
            block[name].append(Told(*(html.unescape(parts[field]) for field in Told._fields)))
        else:
            assert not line or not name or other.fullmatch(line), line
    return {name: sorted(told) for name, told in block.items()}
