"""The profile: what holds of a user in every turn, told in the same bytes until enough of it has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from inference_core.context.engineer import Counter, cut_item, fitted
from inference_core.context.items import ContextItem, section_of
from inference_core.context.render import NOTICE, header, line_of, section
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryCategory, MemoryType

PROFILE: Final = "profile"
"""The source of what stands in a profile, or is newer than it."""
DEFAULT_PROFILE_TOKENS: Final = 1_000
DEFAULT_PROFILE_CHANGE: Final = 0.25
STANDING: Final = (MemoryType.INSTRUCTION, MemoryType.PREFERENCES)
"""The types of memories that hold in every turn, the more important first; pinned ones go before them."""
_LATER: Final = (
    "More of it comes with a message, in <user_memory_context>; where that is newer than a line here, the newer holds."
)
_REMINDER: Final = "From memory: reference data, not said by the user now."
_FEW: Final = 12
"""A profile of fewer lines is taken for one of so many, so that one new line does not turn over a short one."""
_ORDER: Final = (MemoryCategory.PROCEDURAL, MemoryCategory.SEMANTIC, MemoryCategory.EPISODIC)


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """A memory as it is told, at this version, in this section; ``cut`` characters of it if that is not all."""

    id: str
    version: int
    section: str
    text: str
    cut: int | None = None


@dataclass(frozen=True)
class Profile:
    """The lines of a profile, in the order in which their memories were stored."""

    lines: tuple[ProfileLine, ...] = ()

    @cached_property
    def text(self) -> str:
        """What the model is told, the same for the same lines; without any, what memory is."""
        told: dict[str, list[str]] = {section_of(category): [""] for category in _ORDER}
        for line in self.lines:
            told.setdefault(line.section, [""]).append(line.text)
        sections = [section(name, lines) for name, lines in told.items() if len(lines) > 1]
        return "\n".join([NOTICE, _LATER, *sections])

    def to_value(self) -> list[list[Any]]:
        """The profile as JSON data."""
        return [[one.id, one.version, one.section, one.text, one.cut] for one in self.lines]

    @classmethod
    def from_value(cls, value: Iterable[Sequence[Any]]) -> Profile | None:
        """The profile that ``to_value`` gave; None for one of an older form."""
        lines = list(value)
        return cls(tuple(ProfileLine(*line) for line in lines)) if all(map(_is_line, lines)) else None


def stands(record: MemoryRecord) -> bool:
    """Whether ``record`` belongs into a profile: never what only a tool, a document or the web has said."""
    return record.trust > Trust.EXTERNAL and (record.pinned or record.memory_type in STANDING)


def standing_first(records: Iterable[MemoryRecord]) -> list[MemoryRecord]:
    """Those of ``records`` that belong into a profile: pinned, instructions, preferences, the newest of each first."""
    return sorted(filter(stands, records), key=lambda one: (_rank(one), -one.created_at.timestamp(), one.id))


def profile_of(
    records: Iterable[MemoryRecord],
    zone: tzinfo,
    max_tokens: int = DEFAULT_PROFILE_TOKENS,
    *,
    per_category: int | None = None,
    counter: Counter = text_tokens,
) -> Profile:
    """The profile of those of ``records`` that belong into one, within ``max_tokens``.

    Of each category at most ``per_category``, by `standing_first`, each sentence once. What is long is cut before
    anything is left out. Days are those of ``zone``. The same records give the same profile, whatever their order.
    """
    chosen: dict[str, MemoryRecord] = {}
    counts: dict[MemoryCategory, int] = {}
    for record in standing_first(records):
        count = counts.get(record.category, 0)
        if record.content not in chosen and (per_category is None or count < per_category):
            chosen[record.content] = record
            counts[record.category] = count + 1
    items = [ContextItem.of(record, source=PROFILE) for record in chosen.values()]
    whole = _profile(items, zone)
    if counter(whole.text) <= max_tokens:
        return whole

    def cost(item: ContextItem) -> int:
        return counter(line_of(item, zone)) + 1

    frame = max(counter(whole.text) - sum(map(cost, items)), 0)
    kept = fitted(items, cost, cut_item, max_tokens - frame)
    while kept and counter(_profile(kept, zone).text) > max_tokens:
        kept = kept[:-1]
    return _profile(kept, zone)


def renewed(
    frozen: Profile | None,
    current: Profile,
    standing: Mapping[str, MemoryRecord],
    zone: tzinfo,
    change: float = DEFAULT_PROFILE_CHANGE,
) -> tuple[Profile, list[ContextItem]]:
    """The profile to tell, and what is newer than it, to be told beside it.

    That is ``frozen`` as long as each of its memories is still among those ``standing`` by id, which hold now, and no
    more than the share ``change`` of its lines differ from those of ``current``; else ``current``, and nothing newer.
    """
    if frozen is None or any(line.id not in standing for line in frozen.lines):
        return current, []
    known = {line.id for line in frozen.lines}
    newer = [
        _update(standing[old.id], old)
        for old in frozen.lines
        if line_in_profile(standing[old.id], zone, old.cut).text != old.text
    ]
    newer += [_update(standing[line.id]) for line in current.lines if line.id not in known]
    missing = len(known - {line.id for line in current.lines})
    if len(newer) + missing > change * max(len(frozen.lines), _FEW):
        return current, []
    return frozen, newer


def line_in_profile(record: MemoryRecord, zone: tzinfo, cut: int | None = None) -> ProfileLine:
    """``record`` as a line, dated in ``zone``."""
    return _line(replace(ContextItem.of(record, source=PROFILE), cut=cut), zone)


def beside_profile(memories: str, now: datetime, zone: tzinfo) -> str:
    """What is told beside a profile in a turn: ``memories``, rendered without a preamble, and what time it is."""
    return "\n".join([header(now, zone), _REMINDER, *([memories] if memories else [])])


def fenced_profile(text: str) -> str:
    """``text`` in the element by which it is told from the caller's own instructions."""
    return f"\n<user_profile>\n{text}\n</user_profile>\n"


def _profile(items: Iterable[ContextItem], zone: tzinfo) -> Profile:
    stored = sorted(((item.record.created_at, item.id, item) for item in items if item.record), key=itemgetter(0, 1))
    return Profile(tuple(_line(item, zone) for _, _, item in stored))


def _line(item: ContextItem, zone: tzinfo) -> ProfileLine:
    version = item.record.version if item.record else 0
    return ProfileLine(item.id, version, item.section, line_of(item, zone), item.cut)


def _update(record: MemoryRecord, old: ProfileLine | None = None) -> ContextItem:
    """``record`` as it is told beside a profile that does not have it, or has an ``old`` line of it."""
    replaces = None if old is None else old.text.removeprefix("  - ")
    return replace(ContextItem.of(record, source=PROFILE), replaces=replaces)


def _is_line(value: Any) -> bool:
    """Whether ``value`` is a line as `Profile.to_value` gives it."""
    kinds = (str, int, str, str, int | None)
    return len(value) == len(kinds) and all(map(isinstance, value, kinds))


def _rank(record: MemoryRecord) -> int:
    return -1 if record.pinned else STANDING.index(record.memory_type)
