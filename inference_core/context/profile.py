"""The profile: what holds of a user in every turn, the same bytes in each prompt until enough of it has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple

from inference_core.context.engineer import Counter, cut_item, fitted
from inference_core.context.items import STANDING, ContextItem, section_of
from inference_core.context.render import (
    COMPACT,
    COMPACT_NOTICE,
    NOTICE,
    XML,
    compact_header,
    compact_section,
    header,
    line_in,
    section,
)
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory, MemoryType

PROFILE: Final = "profile"
"""The source of items that stand in a profile, or are newer than it."""
DEFAULT_PROFILE_TOKENS: Final = 1_000
DEFAULT_PROFILE_CHANGE: Final = 0.25
_LATER: Final = (
    "More of it comes with a message, in <user_memory_context>; where that is newer than a line here, the newer holds."
)
_COMPACT_LATER: Final = "More comes with a message, in <user_memory_context>; the newer holds."
_REMINDER: Final = "From memory: reference data, not said by the user now."
_COMPACT_REMINDER: Final = "From memory: data, not said by the user now."
_NOTHING: Final = "Nothing else was found in memory for this message."
_FEW: Final = 12
"""Shorter profiles count as this many lines, so that one new line does not rewrite them."""
_ORDER: Final = (MemoryCategory.PROCEDURAL, MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC)


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """The rendered line of a memory at this version; ``cut``: how many characters of its text are shown."""

    id: str
    version: int
    section: str
    text: str
    cut: int | None = None

    @property
    def told(self) -> str:
        """The line without what makes it an item of a list."""
        return self.text.partition("- ")[2]


class ProfileMark(NamedTuple):
    """What a line of a profile shows, without its text: a memory, its version, and how many characters of it."""

    id: str
    version: int
    cut: int | None = None


@dataclass(frozen=True)
class Profile:
    """The lines of a profile, in the order in which their memories were stored, and its form.

    Profiles have two forms: `COMPACT`, and for blocks of all other forms that of the CoALA document.
    """

    lines: tuple[ProfileLine, ...] = ()
    form: str = XML

    @cached_property
    def text(self) -> str:
        """The profile as the model reads it, the same for the same lines; without lines, only the notice."""
        sections: dict[str, list[str]] = {section_of(category): [] for category in _ORDER}
        for line in self.lines:
            sections.setdefault(line.section, []).append(line.text)
        told = [(name, lines) for name, lines in sections.items() if lines]
        if self.form == COMPACT:
            return "\n".join([COMPACT_NOTICE, _COMPACT_LATER, *(compact_section(*one) for one in told)])
        return "\n".join([NOTICE, _LATER, *(section(name, ["", *lines]) for name, lines in told)])

    @property
    def marks(self) -> list[ProfileMark]:
        """What its lines show; from these and the memories, `profile_again` makes the same profile."""
        return [ProfileMark(line.id, line.version, line.cut) for line in self.lines]


def standing_first(records: Iterable[MemoryRecord]) -> list[MemoryRecord]:
    """Those of ``records`` that belong in a profile: pinned, instructions, preferences, the newest of each first.

    What only a tool, a document or the web has said never does.
    """
    standing = [one for one in records if one.trust > Trust.EXTERNAL and (one.pinned or one.memory_type in STANDING)]
    return sorted(standing, key=_rank)


def _rank(record: MemoryRecord) -> tuple[int, float, str]:
    kind = -1 if record.pinned else STANDING.index(record.memory_type)
    return kind, -record.created_at.timestamp(), record.id


def profile_of(
    records: Iterable[MemoryRecord],
    zone: tzinfo,
    max_tokens: int = DEFAULT_PROFILE_TOKENS,
    *,
    per_category: int | None = None,
    counter: Counter = text_tokens,
    form: str = XML,
) -> Profile:
    """The profile of those of ``records`` that belong in one, in at most ``max_tokens``, beside a block of this form.

    It shows at most ``per_category`` of each category, chosen in the order of `standing_first`, and no text twice. Of
    preferences that do not all fit into those places only the newest stands, as the others depend on the question. Long
    texts are cut before any is left out. Dates are in ``zone``. The same records give the same profile, whatever their
    order.
    """
    once: dict[str, MemoryRecord] = {}
    for record in standing_first(records):
        once.setdefault(record.content, record)
    by_category: dict[MemoryCategory, list[MemoryRecord]] = {}
    for record in once.values():
        by_category.setdefault(record.category, []).append(record)
    chosen: list[MemoryRecord] = []
    for own in by_category.values():
        ahead = sum(not _is_preference(record) for record in own)
        most = len(own) if per_category is None else per_category
        chosen += own[: most if len(own) <= most else min(most, ahead + 1)]
    in_order = [record.id for record in sorted(chosen, key=attrgetter("created_at", "id"))]
    items = [ContextItem.of(record, source=PROFILE) for record in chosen]
    whole = _of_items(items, in_order, zone, form)
    if counter(whole.text) <= max_tokens:
        return whole

    def cost(item: ContextItem) -> int:
        return counter(line_in(form, item, zone)) + 1

    frame = max(counter(whole.text) - sum(map(cost, items)), 0)
    kept = fitted(items, cost, cut_item, max_tokens - frame)
    while kept and counter(_of_items(kept, in_order, zone, form).text) > max_tokens:
        kept = kept[:-1]
    return _of_items(kept, in_order, zone, form)


def _of_items(items: Iterable[ContextItem], in_order: Iterable[str], zone: tzinfo, form: str) -> Profile:
    """The profile of ``items``; ``in_order`` are their ids, and those of others, in the order of the lines."""
    lines = {item.id: _line(item, zone, form) for item in items}
    return Profile(tuple(lines[memory_id] for memory_id in in_order if memory_id in lines), form)


def marks_in(value: Iterable[Sequence[Any]]) -> list[ProfileMark] | None:
    """The `Profile.marks` in JSON data, also of earlier versions, which kept texts; None for anything else."""
    kinds = (str, int, int | None)
    marks = [(*line[:2], *line[-1:]) for line in value]
    if not all(len(one) == len(kinds) and all(map(isinstance, one, kinds)) for one in marks):
        return None
    return [ProfileMark(*one) for one in marks]


def profile_again(
    marks: Sequence[ProfileMark], records: Mapping[tuple[str, int], MemoryRecord], zone: tzinfo, form: str = XML
) -> Profile | None:
    """The profile with these ``marks``, in its old bytes; None if one of the memories has no state at that version.

    ``records`` has the states of memories by id and version.
    """
    told = [records.get((mark.id, mark.version)) for mark in marks]
    lines = [line_in_profile(record, zone, mark.cut, form) for record, mark in zip(told, marks, strict=True) if record]
    return Profile(tuple(lines), form) if len(lines) == len(marks) else None


def renewed(
    frozen: Profile | None,
    current: Profile,
    standing: Mapping[str, MemoryRecord],
    zone: tzinfo,
    change: float = DEFAULT_PROFILE_CHANGE,
) -> tuple[Profile, list[ContextItem]]:
    """The profile to show, and the items that are newer than it, to be shown beside it.

    The ``frozen`` profile stays while each of its memories is in ``standing`` (by id, those that hold now) and what is
    newer, changed or only in ``current``, is at most the share ``change`` of its lines. Otherwise it is ``current``,
    with nothing newer.
    """
    if frozen is None or any(line.id not in standing for line in frozen.lines):
        return current, []
    newer: list[ContextItem] = []
    for line in frozen.lines:
        if line_in_profile(standing[line.id], zone, line.cut, frozen.form).text != line.text:
            item = ContextItem.of(standing[line.id], source=PROFILE)
            newer.append(replace(item, replaces=line.told))
    known = {line.id for line in frozen.lines}
    newer += [ContextItem.of(standing[line.id], source=PROFILE) for line in current.lines if line.id not in known]
    if len(newer) > change * max(len(frozen.lines), _FEW):
        return current, []
    return frozen, newer


def line_in_profile(record: MemoryRecord, zone: tzinfo, cut: int | None = None, form: str = XML) -> ProfileLine:
    """``record`` as a line, dated in ``zone``."""
    return _line(replace(ContextItem.of(record, source=PROFILE), cut=cut), zone, form)


def beside_profile(memories: str, now: datetime, zone: tzinfo, form: str = XML) -> str:
    """The block of a turn beside a profile: the time, and ``memories``, rendered in ``form`` without a preamble."""
    is_compact = form == COMPACT
    head = [compact_header(now, zone), _COMPACT_REMINDER] if is_compact else [header(now, zone), _REMINDER]
    return "\n".join([*head, memories or _NOTHING])


def fenced_profile(text: str) -> str:
    """``text`` in the element that sets it apart from the caller's own instructions."""
    return f"\n<user_profile>\n{text}\n</user_profile>\n"


def _is_preference(record: MemoryRecord) -> bool:
    return not record.pinned and record.memory_type is MemoryType.PREFERENCES


def _line(item: ContextItem, zone: tzinfo, form: str) -> ProfileLine:
    version = item.record.version if item.record else 0
    return ProfileLine(item.id, version, item.section, line_in(form, item, zone), item.cut)
