"""Receipts: which memories a model was told in a call, and why these; ids, versions, figures, never their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

_MOMENTS: Final = ("at", "until", "recalled_at")


class Place(str, Enum):
    """Where in the prompt a memory was told: in the profile, as newer than that, or as recalled for the turn."""

    PROFILE = "profile"
    NEWS = "news"
    RECALLED = "recalled"


_PLACES: Final = tuple(Place)
"""In the order in which they are stored as numbers: only ever added to at the end."""
_ID: Final = 2
"""Where it stands in a packed line."""
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptLine:
    """A memory that was told, at this version. ``rank`` counts from 1 in the profile, and in the block.

    ``score``, ``relevance`` and ``signals``, the shares of the score, are those of the search that found it; ``old`` is
    the version of the line of the profile in whose place it stands. Of its text ``cut`` characters were told, None: as
    much as a line holds. ``group`` numbers the contradictions; those of one group were told together.
    """

    id: str
    version: int
    place: Place
    rank: int
    score: float | None = None
    relevance: float | None = None
    signals: Mapping[str, float] = field(default_factory=dict[str, float])
    old: int | None = None
    cut: int | None = None
    group: int | None = None

    def to_value(self) -> dict[str, Any]:
        """The line as JSON data, without what is not known."""
        return _without_nothing(self) | {"place": self.place.value}

    def packed(self, names: Sequence[str]) -> list[Any]:
        """The line as it is stored: by position, its figures rounded, the named signals without their names."""
        signals = [_rounded(self.signals.get(name, 0.0)) for name in names] if self.signals else None
        figures = [_rounded(self.score), _rounded(self.relevance), signals, self.old, self.cut, self.group]
        while figures and figures[-1] is None:
            figures.pop()
        return [_PLACES.index(self.place), self.rank, self.id, self.version, *figures]

    @classmethod
    def unpacked(cls, names: Sequence[str], fields: Sequence[Any]) -> ReceiptLine:
        """The line of `packed`. Raises TypeError, ValueError or IndexError for anything else."""
        number, rank, memory_id, version, *figures = fields
        score, relevance, shares, old, cut, group = [*figures, *[None] * 6][:6]
        return cls(
            id=memory_id,
            version=version,
            place=_PLACES[int(number)],
            rank=rank,
            score=score,
            relevance=relevance,
            signals={name: share for name, share in zip(names, shares or (), strict=bool(shares)) if share},
            old=old,
            cut=cut,
            group=group,
        )

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> ReceiptLine:
        """The line that ``to_value`` gave. Raises TypeError, ValueError or KeyError for anything else."""
        fields: dict[str, Any] = {**value, "place": Place(value["place"])}
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDrop:
    """A memory that was found and not told, why, and the id of the one that stands for it, if there is one."""

    id: str
    version: int
    reason: str
    by: str | None = None

    def to_value(self) -> dict[str, Any]:
        """The drop as JSON data."""
        return _without_nothing(self)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> ReceiptDrop:
        """The drop that ``to_value`` gave. Raises TypeError for anything else."""
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one call of a model was told of a user's memory; it is kept until ``until``.

    The hashes are SHA-256 of the texts of the profile and of the turn's block, "" where nothing was told; ``tokens``
    are theirs together. ``recalled_at`` is the time that the block says, in ``zone``. ``form`` is the
    engineer's ("xml", "markdown", "json", or "own" for a function). ``status`` is the run's memory status.
    """

    id: str
    at: datetime
    until: datetime
    recalled_at: datetime
    zone: str
    status: str
    placement: str
    has_profile: bool
    form: str
    lines: tuple[ReceiptLine, ...]
    dropped: tuple[ReceiptDrop, ...]
    tokens: int
    profile_hash: str
    block_hash: str
    model: str | None = None
    thread_id: str | None = None
    run_id: str | None = None
    agent_name: str | None = None

    def of(self, place: Place) -> list[ReceiptLine]:
        """The lines that stood there, in their order."""
        return [line for line in self.lines if line.place is place]

    def line_of(self, memory_id: str) -> ReceiptLine | None:
        """The line of this memory; None if it was not told."""
        return next((line for line in self.lines if line.id == memory_id), None)

    def to_value(self) -> dict[str, Any]:
        """The receipt as JSON data: there is one for every call of a model, so it is kept small."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        moments = {name: getattr(self, name).isoformat() for name in _MOMENTS}
        names = list(dict.fromkeys(name for line in self.lines for name in line.signals))
        told = {"signals": names, "told": [line.packed(names) for line in self.lines]}
        dropped = {"dropped": [drop.to_value() for drop in self.dropped]}
        del fields["lines"]
        found = fields | moments | dropped | told
        return {name: value for name, value in found.items() if value not in (None, "", [])}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Receipt:
        """The receipt that ``to_value`` gave. Raises TypeError, ValueError or KeyError for anything else."""
        moments: dict[str, Any] = {name: datetime.fromisoformat(value[name]) for name in _MOMENTS}
        dropped = tuple(map(ReceiptDrop.from_value, value.get("dropped", ())))
        known = {name: value[name] for name in cls.__slots__ if name in value}  # some stores add what is their own
        texts = {"profile_hash": "", "block_hash": ""}
        fields: dict[str, Any] = {**texts, **known, **moments, "lines": tuple(_lines_of(value)), "dropped": dropped}
        return cls(**fields)


def tells(value: Mapping[str, Any], memory_id: str) -> bool:
    """Whether the receipt with this value may tell of a memory; quicker than to read the receipt."""
    with suppress(TypeError, LookupError):  # what is no receipt tells nothing
        older = [line["id"] for line in value.get("lines", ())]
        return memory_id in older or any(line[_ID] == memory_id for line in value.get("told", ()))
    return False


def _lines_of(value: Mapping[str, Any]) -> Iterator[ReceiptLine]:
    if "lines" in value:  # as receipts were stored first
        return map(ReceiptLine.from_value, value["lines"])
    return (ReceiptLine.unpacked(value.get("signals", ()), fields) for fields in value.get("told", ()))


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, _DIGITS)


def text_hash(text: str) -> str:
    """SHA-256 of ``text`` in hexadecimal; "" for ""."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else ""


def _without_nothing(one: ReceiptLine | ReceiptDrop) -> dict[str, Any]:
    fields = {name: getattr(one, name) for name in one.__slots__}
    return {name: value for name, value in fields.items() if value is not None and value != {}}
