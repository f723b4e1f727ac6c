"""A user's profile as one text that people edit: what every prompt about the user is told, one memory a line.

Lines carry no ids. What an edit means is found by comparing the text with the one that was edited, in `changes`: a line
that stays belongs to its memory wherever it stands, a line that is reworded keeps its memory, and where it is not clear
which line became which, the old memory is deleted and a new one saved. Whatever an edit takes for what, nothing is
lost: an earlier text is among the versions of its memory, and a deleted memory can be restored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

from inference_core.context.items import STANDING
from inference_core.context.render import standing_first
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import canonical_text, plain_words
from inference_core.memory.trust import MemorySource
from inference_core.memory.types import MemoryType
from inference_core.services.operations.delete import delete
from inference_core.services.operations.operation import operation
from inference_core.services.operations.save import save, update
from inference_core.services.operations.scope import MemoryScope, UserId, records_of
from inference_core.stores.indexing.search import RowFilter

if TYPE_CHECKING:  # numpy, which it needs, is slow to import
    from inference_core.stores.indexing.indexes import Snapshot

_MOST: Final = 1_000
"""The newest rules and the newest preferences that are read."""
_COMPARED: Final = 200
"""Characters of a line that are compared with others to find the one that it was."""
_MOST_PAIRS: Final = 40_000
_ALIKE: Final = 0.6
_COMMENT: Final = "<!--"
_COMMENT_END: Final = "-->"
_BULLETS: Final = ("- ", "* ")


class Section(str, Enum):
    """The parts of the text. A pinned memory of any type is in the last one."""

    RULES = "Rules"
    PREFERENCES = "Preferences"
    PINNED = "Pinned"

    @property
    def memory_type(self) -> MemoryType:
        """The type of a memory that is written into this section."""
        return _TYPES[self]


_TYPES: Final = {
    Section.RULES: MemoryType.INSTRUCTION,
    Section.PREFERENCES: MemoryType.PREFERENCES,
    Section.PINNED: MemoryType.FACTS,
}
_HEADINGS: Final = {f"## {section.value}".lower(): section for section in Section}
_NAMED: Final = ", ".join(f"## {section.value}" for section in Section)


@dataclass(frozen=True, slots=True)
class Line:
    """A memory in the text; ``number`` is that of its first line."""

    section: Section
    text: str
    number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class LineChange:
    """What became of a line; ``before`` None: it is new, ``after`` None: it was removed."""

    before: Line | None
    after: Line | None


@dataclass(frozen=True, slots=True)
class ProfileText:
    """A profile as text. ``more`` is how many memories it leaves out, of those that were read; an edit spares them."""

    text: str
    more: int = 0


@dataclass(frozen=True, slots=True)
class ProfileChange:
    """What an edit has done with a memory: its text before (None: it is new) and after (None: deleted).

    Where both are the same, it was moved to ``section``.
    """

    memory_id: str
    before: str | None
    after: str | None
    section: Section

    def __str__(self) -> str:
        """It in words."""
        if self.before is None:
            return f"Saved “{self.after}”"
        if self.after is None:
            return f"Deleted “{self.before}”"
        if self.before == self.after:
            return f"Moved to {self.section.value}: “{self.after}”"
        return f"Changed “{self.before}” to “{self.after}”"


def text_of(lines: Iterable[Line]) -> str:
    """The text with ``lines``; further lines of a memory are indented. `lines_in` reads it again."""
    told = {section: [f"## {section.value}", ""] for section in Section}
    for line in lines:
        first, *rest = line.text.split("\n")
        told[line.section] += [f"- {first}", *(f"  {one}" if one else "" for one in rest)]
    return "\n\n".join("\n".join(own).rstrip() for own in told.values()) + "\n"


def lines_in(text: str) -> list[Line]:
    """The lines in a text of `text_of` that somebody may have edited.

    Marks of lists may be missing, and comments (``<!-- … -->``, at the start of a line) are left out. Raises
    InvalidInput unless all headings are there: a text that was cut must delete nothing.
    """
    found, section, seen = list[Line](), None, set[Section]()
    number, parts = 0, list[str]()
    for at, line in [*_without_comments(_tidy(text)), (0, "#")]:
        if parts and (not line or line[0] in " \t"):
            parts.append(line[1 if line[:1] == "\t" else min(2, len(line) - len(line.lstrip())) :])
        elif line:
            if section and (told := _tidy("\n".join(parts))):
                found.append(Line(section, told, number))
            parts = []
            if line.startswith("#"):
                section = _section(line, at) if at else None
                seen |= {section} if section else set()
            elif section is None:
                raise InvalidInput(f"Line {at} stands above the headings; move it below one of {_NAMED}")
            else:
                number, told = at, line.lstrip()
                parts = ["" if told in ("-", "*") else told[2:] if told.startswith(_BULLETS) else told]
    if missing := [section.value for section in Section if section not in seen]:
        raise InvalidInput(
            f"The heading ## {missing[0]} is missing. Leave all headings ({_NAMED}) where they are, also above no lines"
        )
    return found


def _section(heading: str, number: int) -> Section:
    if (section := _HEADINGS.get(heading.lower())) is None:
        raise InvalidInput(f"Line {number} is no heading of a profile ({_NAMED}); begin a memory with '- '")
    return section


def _without_comments(text: str) -> Iterator[tuple[int, str]]:
    """The lines of ``text`` that are in no comment, with their numbers."""
    is_comment = False
    for at, line in enumerate(text.split("\n"), 1):
        if is_comment or line.startswith(_COMMENT):
            is_comment = _COMMENT_END not in line
        else:
            yield at, line


def _tidy(text: str) -> str:
    """``text`` without what editors change unasked: forms of line ends and letters, blanks at the ends of lines."""
    lines = normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def changes(before: Sequence[Line], after: Sequence[Line]) -> list[LineChange]:
    """How ``before`` became ``after``: what was changed or added in the order of ``after``, then what was removed.

    The order of lines says nothing. A line counts as changed if it is now in another section, if a line much like it is
    there instead, or if it was replaced in its place.
    """
    lines = _Lines(before, after)
    lines.pair_same(lambda line: line)
    lines.pair_same(lambda line: line.text)
    lines.pair_alike()
    lines.pair_in_place()
    told = [
        LineChange(before[lines.pairs[at]] if at in lines.pairs else None, line)
        for at, line in enumerate(after)
        if at not in lines.pairs or before[lines.pairs[at]] != line
    ]
    return [*told, *(LineChange(line, None) for line in lines.old.values())]


class _Lines:
    """Which line ``before`` became which one ``after``: ``pairs``, by the place of the latter.

    ``old`` and ``new`` are the lines without a partner, by their places; each step looks for some among them.
    """

    def __init__(self, before: Sequence[Line], after: Sequence[Line]) -> None:
        self.before, self.after = before, after
        self.old, self.new = dict(enumerate(before)), dict(enumerate(after))
        self.pairs = dict[int, int]()

    def _pair(self, here: int, there: int) -> None:
        self.pairs[there] = here
        del self.old[here], self.new[there]

    def pair_same(self, key: Callable[[Line], object]) -> None:
        """Pairs lines with the same ``key``."""
        places = defaultdict[object, list[int]](list)
        for here, line in self.old.items():
            places[key(line)].append(here)
        for there, line in list(self.new.items()):
            if own := places[key(line)]:
                self._pair(own.pop(0), there)

    def pair_alike(self) -> None:
        """Pairs lines that say nearly the same, the most alike first; not among thousands."""
        if len(self.old) * len(self.new) > _MOST_PAIRS:
            return
        old = [(here, line.section, _pieces(line.text)) for here, line in self.old.items()]
        new = [(there, line.section, _pieces(line.text)) for there, line in self.new.items()]
        alike = [
            (-share, kind is not section, here, there)
            for here, kind, one in old
            for there, section, other in new
            if (share := 2 * len(one & other) / (len(one) + len(other))) >= _ALIKE
        ]
        for _, _, here, there in sorted(alike):
            if here in self.old and there in self.new:
                self._pair(here, there)

    def pair_in_place(self) -> None:
        """Pairs lines in their order where as many came as went, between the same lines that stayed."""
        stayed = {
            there: here for there, here in self.pairs.items() if self.before[here].section is self.after[there].section
        }
        gaps = defaultdict[object, tuple[list[int], list[int]]](lambda: ([], []))
        for here in self.old:
            gaps[_gap(self.before, here, frozenset(stayed.values()))][0].append(here)
        for there in self.new:
            section, place = _gap(self.after, there, stayed)
            gaps[section, stayed.get(place, place)][1].append(there)
        for gone, come in gaps.values():
            if len(gone) == len(come):
                for here, there in zip(gone, come, strict=True):
                    self._pair(here, there)


def _gap(lines: Sequence[Line], at: int, stayed: Container[int]) -> tuple[Section, int]:
    """Where a line stands: its section, and the place of the last line above it that stayed, -1 if there is none."""
    section = lines[at].section
    above = (one for one in range(at - 1, -1, -1) if one in stayed and lines[one].section is section)
    return section, next(above, -1)


def _pieces(text: str) -> frozenset[str]:
    words = plain_words(text[:_COMPARED])
    return frozenset(words[at : at + 2] for at in range(max(len(words) - 1, 1)))


@operation("get_profile", needs=None)
async def read_profile(scope: MemoryScope, user_id: UserId, max_characters: int | None = None) -> ProfileText:
    """The rules, preferences and pinned memories of the user that this agent reads, as one text, the newest last.

    Those from tools, documents and the web are not among them, as they are in no profile. With ``max_characters``, the
    first to be left out are the oldest preferences. Raises InvalidInput, StoreError.
    """
    records = await _standing(scope, user_id)
    shown, room = list[MemoryRecord](), max_characters
    for record in standing_first(records):
        if room is not None:
            room -= len(record.content)
        if room is None or room >= 0 or not shown:
            shown.append(record)
    shown.sort(key=lambda record: (record.created_at, record.id))
    return ProfileText(text_of(map(_line_of, shown)), len(records) - len(shown))


@operation("edit_profile", needs=None)
async def edit_profile(
    scope: MemoryScope, user_id: UserId, text: str, before: str, *, source: MemorySource | None = None
) -> list[ProfileChange]:
    """Makes the changes that lead from the profile ``before``, as `read_profile` gave it, to ``text``.

    A changed line updates its memory, a removed line deletes it, and a new line is saved with the type of its section.
    What is the same in both texts is not written, nor are changes that have been made already: if a call fails in the
    middle, repeat it. ``source`` is who says so, by default the application. Returns the memories that were changed.

    Raises:
        InvalidInput: ``text`` is no profile, or a line is too long; nothing was changed.
        SecretFound: A line holds a secret, and the store rejects those.
        VersionConflict: Others have changed one of the memories since, and nothing was changed; or are doing so.
        StoreUnavailable: The database did not answer; some of the changes may be made.
        UntrustedWrite, ConfirmationNeeded, QuotaExceeded, Held: As `save_memory`, `update_memory` and `delete_memory`.
    """
    there = defaultdict[Line, list[MemoryRecord]](list)
    for record in await _standing(scope, user_id):
        there[_line_of(record)].append(record)
    todo = await scope.engine.pool.call(lambda: changes(lines_in(before), lines_in(text)))
    await scope.engine.redacting(partial(_check, scope, [change.after for change in todo if change.after]))
    planned = list[tuple[LineChange, MemoryRecord | None]]()
    for change in todo:
        record = there[change.before].pop() if change.before and there[change.before] else None
        if change.before is not None and record is None:
            if change.after is None or there[change.after]:
                continue  # it is so already
            raise VersionConflict(
                f"Nothing was changed: somebody else has changed or deleted the memory of line {change.after.number} "
                "meanwhile. Read the profile again, and make your changes there"
            )
        planned.append((change, record))
    planned.sort(key=lambda one: one[0].after is None)  # what is written may be refused; then nothing is deleted yet
    return [done for change, record in planned if (done := await _made(scope, user_id, change, record, source))]


def _check(scope: MemoryScope, lines: Iterable[Line]) -> None:
    """Raises InvalidInput or SecretFound unless memories may have the texts of ``lines``."""
    for line in lines:
        try:
            canonical_text(line.text, max_bytes=scope.max_content_bytes)
        except InvalidInput as error:
            raise InvalidInput(f"Line {line.number}: {error}") from error
        scope.engine.guard.refuse({"content": line.text})


async def _made(
    scope: MemoryScope, user_id: UserId, change: LineChange, record: MemoryRecord | None, source: MemorySource | None
) -> ProfileChange | None:
    """Makes a change of ``record``, or saves a memory (None); None if there was one of these words."""
    before, after = change.before, change.after
    if record is None or before is None:
        assert after is not None  # noqa: S101 - a change has one of both
        pinned = after.section is Section.PINNED
        saved = await save(scope, user_id, after.text, after.section.memory_type, source=source, pinned=pinned)
        return None if saved.was_stored else ProfileChange(saved, None, after.text, after.section)
    told = ProfileChange(record.id, before.text, after and after.text, (after or before).section)
    if after is None:
        await delete(scope, user_id, record.id, expected_version=record.version)
        return told
    is_moved, to_pins = after.section is not before.section, after.section is Section.PINNED
    is_there = await update(
        scope,
        user_id,
        record.id,
        None if after.text == before.text else after.text,
        after.section.memory_type if is_moved and not to_pins else None,
        pinned=to_pins if is_moved else None,
        source=source,
        expected_version=record.version,
    )
    if not is_there:
        raise VersionConflict("Somebody else has deleted a memory of the profile meanwhile; read the profile again")
    return told


async def _standing(scope: MemoryScope, user_id: UserId) -> list[MemoryRecord]:
    """The user's own memories that may stand in a profile and hold now; of rules and preferences the newest."""
    namespaces = scope.namespaces.read_scopes(user_id)
    holds = RowFilter(now=scope.clock.now(), kinds=None)

    def standing(snapshot: Snapshot) -> list[MemoryRecord]:
        pinned = [row for row in snapshot.pinned(namespaces) if holds(row) is None]
        kinds = (frozenset([kind.value]) for kind in STANDING)
        newest = [snapshot.newest(namespaces, kinds=kind, limit=_MOST, reject=holds) for kind in kinds]
        rows = {(row.namespace, row.key): row for row in chain(pinned, *newest)}
        return standing_first(records_of(rows.values()))

    return await scope.engine.read(namespaces, standing, cold_seconds=scope.cold_seconds)


def _line_of(record: MemoryRecord) -> Line:
    by_type = Section.RULES if record.memory_type is MemoryType.INSTRUCTION else Section.PREFERENCES
    return Line(Section.PINNED if record.pinned else by_type, _tidy(record.content))
