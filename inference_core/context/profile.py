"""The profile: what holds of a user in every turn, told in the same bytes until enough of it has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from operator import itemgetter
from typing import Any, Final

from inference_core.context.formats import NOTICE
from inference_core.context.items import ContextItem
from inference_core.context.lines import header, line_of
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import text_tokens
from inference_core.memory.trust import Trust
from inference_core.memory.types import MemoryType

DEFAULT_PROFILE_TOKENS: Final = 1_000
DEFAULT_PROFILE_CHANGE: Final = 0.25
STANDING: Final = (MemoryType.INSTRUCTION, MemoryType.PREFERENCES)
"""The types of memories that hold in every turn, the more important first; pinned ones go before them."""
_TITLE: Final = "## USER PROFILE (standing instructions, preferences, what is pinned)"
_LATER: Final = (
    "More of it comes with a message, in <user_memory_context>; where that is newer than a line here, the newer holds."
)
_REMINDER: Final = "From memory: reference data, not said by the user now."
_SINCE: Final = "## SINCE THE PROFILE WAS WRITTEN (where they differ, these hold)"
_FEW: Final = 12
"""A profile of fewer lines is taken for one of so many, so that one new line does not turn over a short one."""


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """A memory as it is told, at this version."""

    id: str
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class News:
    """A line that is newer than the profile, and the line of the profile in whose place it stands, if there is one."""

    line: ProfileLine
    old: ProfileLine | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """The lines of a profile, in the order in which their memories were stored."""

    lines: tuple[ProfileLine, ...] = ()

    @property
    def text(self) -> str:
        """What the model is told, the same for the same lines; without any, what memory is."""
        return "\n".join([NOTICE, _LATER, *(["", _TITLE] if self.lines else []), *(one.text for one in self.lines)])

    def to_value(self) -> list[list[Any]]:
        """The profile as JSON data."""
        return [[one.id, one.version, one.text] for one in self.lines]

    @classmethod
    def from_value(cls, value: Iterable[Sequence[Any]]) -> Profile:
        """The profile that ``to_value`` gave."""
        return cls(tuple(ProfileLine(*line) for line in value))


def stands(record: MemoryRecord) -> bool:
    """Whether ``record`` belongs into a profile: never what only a tool, a document or the web has said."""
    return record.trust > Trust.EXTERNAL and (record.pinned or record.memory_type in STANDING)


def profile_of(records: Iterable[MemoryRecord], zone: tzinfo, max_tokens: int = DEFAULT_PROFILE_TOKENS) -> Profile:
    """The profile of those of ``records`` that belong into one, within ``max_tokens``.

    What is pinned goes first, then instructions, then preferences, the newest of each first. Days are those of
    ``zone``. The same records give the same profile, whatever their order.
    """
    best_first = sorted(filter(stands, records), key=lambda one: (_rank(one), -one.created_at.timestamp(), one.id))
    kept: list[tuple[datetime, str, ProfileLine]] = []
    used = text_tokens(Profile((ProfileLine("", 0, ""),)).text)
    for record in best_first:
        line = line_in_profile(record, zone)
        used += text_tokens(line.text) + 1
        if used > max_tokens:
            break
        kept.append((record.created_at, record.id, line))
    return Profile(tuple(line for _, _, line in sorted(kept, key=itemgetter(0, 1))))


def renewed(
    frozen: Profile | None, records: Sequence[MemoryRecord], zone: tzinfo, max_tokens: int, change: float
) -> tuple[Profile, tuple[News, ...]]:
    """The profile to tell, and what is newer than it.

    That is ``frozen`` as long as each of its memories is still among ``records``, which hold now, and no more than the
    share ``change`` of its lines differ from what they would be now; else the profile of now, with no news.
    """
    current = profile_of(records, zone, max_tokens)
    standing = {record.id: record for record in records if stands(record)}
    if frozen is None or any(line.id not in standing for line in frozen.lines):
        return current, ()
    news = _news(frozen, current, standing, zone)
    now = {line.id for line in current.lines}
    missing = sum(line.id not in now for line in frozen.lines)
    if len(news) + missing > change * max(len(frozen.lines), _FEW):
        return current, ()
    return frozen, news


def render_news(news: Sequence[News]) -> str:
    """What the model is told of ``news``; "" if there are none."""
    lines = [_SINCE] if news else []
    for one in news:
        lines.append(one.line.text)
        if one.old:
            lines.append(f"    in place of: {one.old.text.removeprefix('  - ')}")
    return "\n".join(lines)


def render_turn(memories: str, news: Sequence[News], now: datetime, zone: tzinfo) -> str:
    """What is told beside a profile in a turn: ``memories``, rendered without a preamble, and ``news``."""
    since = render_news(news)
    return "\n".join([header(now, zone), _REMINDER, *([memories] if memories else []), *(["", since] if since else [])])


def fenced_profile(text: str) -> str:
    """``text`` in the element by which it is told from the caller's own instructions."""
    return f"\n<user_profile>\n{text}\n</user_profile>\n"


def _news(frozen: Profile, current: Profile, standing: Mapping[str, MemoryRecord], zone: tzinfo) -> tuple[News, ...]:
    known = {line.id for line in frozen.lines}
    changed = [
        News(line, old) for old in frozen.lines if (line := line_in_profile(standing[old.id], zone)).text != old.text
    ]
    return (*changed, *(News(line) for line in current.lines if line.id not in known))


def _rank(record: MemoryRecord) -> int:
    return -1 if record.pinned else STANDING.index(record.memory_type)


def line_in_profile(record: MemoryRecord, zone: tzinfo) -> ProfileLine:
    """``record`` as a line, dated in ``zone``."""
    return ProfileLine(record.id, record.version, line_of(ContextItem.of(record, source="profile"), zone))
