"""Receipts: which memories one model call was given, and why, as ids, versions and figures without any content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from inference_core.memory.record import Bar, table

_MOMENTS: Final = ("at", "until", "recalled_at")
_DIGITS: Final = 3
_ID: Final = 2
"""The index of the id in a packed line."""


class ReceiptPlace(str, Enum):
    """Where a memory was in the prompt: in the profile, newer than the profile, or recalled for the turn."""

    PROFILE = "profile"
    NEWS = "news"
    RECALLED = "recalled"


_PLACES: Final = tuple(ReceiptPlace)
"""Stored as positions, so new places only ever go at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptLine:
    """A memory that the model was given, at this version. ``rank`` counts from 1 within the profile or the block.

    ``score``, ``relevance`` and ``signals`` (the shares of the score) are those of the search that found it. ``old`` is
    the version of the profile line that it replaces. ``cut`` is how many characters of the text were given, None for
    all. Lines with the same ``group`` contradict each other and were given together. ``doubts`` are the doubts
    about the memory ("from the web", "hypothetical", "perhaps outdated", "somebody else").
    """

    id: str
    version: int
    place: ReceiptPlace
    rank: int
    score: float | None = None
    relevance: float | None = None
    signals: Mapping[str, float] = field(default_factory=dict[str, float])
    old: int | None = None
    cut: int | None = None
    group: int | None = None
    doubts: tuple[str, ...] = ()

    def packed(self, signals: Sequence[str]) -> list[Any]:
        """The line as a list, as it is stored: figures rounded, the shares in the order of the names ``signals``."""
        shares = [_rounded(self.signals.get(name, 0.0)) for name in signals] if self.signals else None
        figures: list[Any] = [_rounded(self.score), _rounded(self.relevance), shares, self.old, self.cut, self.group]
        figures.append(list(self.doubts) or None)
        while figures and figures[-1] is None:
            figures.pop()
        return [_PLACES.index(self.place), self.rank, self.id, self.version, *figures]

    @classmethod
    def unpacked(cls, signals: Sequence[str], fields: Sequence[Any]) -> ReceiptLine:
        """The line of a `packed` result. Raises TypeError, ValueError or IndexError for anything else."""
        place, rank, memory_id, version, *figures = fields
        score, relevance, shares, old, cut, group, doubts = [*figures, *[None] * 7][:7]
        return cls(
            id=memory_id,
            version=version,
            place=_PLACES[int(place)],
            rank=rank,
            score=score,
            relevance=relevance,
            signals={name: share for name, share in zip(signals, shares or (), strict=bool(shares)) if share},
            old=old,
            cut=cut,
            group=group,
            doubts=tuple(doubts or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDrop:
    """A memory that was found but left out of the prompt, why, and the id of the one that stands for it, if any."""

    id: str
    version: int
    reason: str
    by: str | None = None

    def packed(self) -> dict[str, Any]:
        """The drop as JSON data."""
        by = {} if self.by is None else {"by": self.by}
        return {"id": self.id, "version": self.version, "reason": self.reason, **by}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one model call was given of a user's memory; kept until ``until``.

    The hashes are SHA-256 of the texts of the profile and of the turn's block, "" without one; ``tokens`` is their size
    together. ``recalled_at`` is the time that the block shows, in ``zone``. ``form`` is that of both texts ("xml",
    "compact", "markdown", "json", or "own" for a function). ``status`` is the run's memory status.
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

    def _repr_html_(self) -> str:
        """A table for notebooks: what the model was given."""
        best = max((line.score for line in self.lines if line.score), default=1.0)
        rows = [
            [
                line.place.value,
                line.rank,
                line.id,
                line.version,
                None if line.relevance is None else Bar(f"{line.relevance:.0%}", line.relevance),
                None if line.score is None else Bar(f"{line.score:.3g}", line.score / best),
            ]
            for line in self.lines
        ]
        rows += [["left out", None, drop.id, drop.version, drop.reason, None] for drop in self.dropped]
        caption = f"{self.at:%Y-%m-%d %H:%M}, {self.status}, {self.tokens} tokens"
        return table(caption, ["place", "rank", "memory", "version", "relevance", "score"], rows)

    def of(self, place: ReceiptPlace) -> list[ReceiptLine]:
        """The lines at ``place``, in their order."""
        return [line for line in self.lines if line.place is place]

    def line_of(self, memory_id: str) -> ReceiptLine | None:
        """The line of this memory; None if the model was not given it."""
        return next((line for line in self.lines if line.id == memory_id), None)

    def to_value(self) -> dict[str, Any]:
        """The receipt as JSON data, kept small: there is one for every model call."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("lines", "dropped")}
        fields |= {name: getattr(self, name).isoformat() for name in _MOMENTS} | evidence(self.lines, self.dropped)
        return {name: value for name, value in fields.items() if value not in (None, "", [])}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Receipt:
        """The receipt of a `to_value` result. Raises TypeError, ValueError or LookupError for anything else."""
        if "lines" in value:  # written before lines were packed
            older: list[dict[str, Any]] = [{**line, "place": ReceiptPlace(line["place"])} for line in value["lines"]]
            lines = tuple(ReceiptLine(**line) for line in older)
        else:
            names = value.get("signals", ())
            lines = tuple(ReceiptLine.unpacked(names, fields) for fields in value.get("told", ()))
        fields: dict[str, Any] = {"profile_hash": "", "block_hash": ""}
        fields |= {name: value[name] for name in cls.__slots__ if name in value}  # some stores add fields of their own
        fields |= {name: datetime.fromisoformat(value[name]) for name in _MOMENTS}
        fields |= {"lines": lines, "dropped": tuple(ReceiptDrop(**drop) for drop in value.get("dropped", ()))}
        return cls(**fields)


def evidence(lines: Sequence[ReceiptLine], dropped: Sequence[ReceiptDrop]) -> dict[str, Any]:
    """The part of a receipt's value that says which memories were given and which were left out."""
    names = list(dict.fromkeys(name for line in lines for name in line.signals))
    return {
        "signals": names,
        "told": [line.packed(names) for line in lines],
        "dropped": [drop.packed() for drop in dropped],
    }


def tells(value: Mapping[str, Any], memory_id: str) -> bool:
    """Whether the model was given ``memory_id``, by the stored receipt ``value``; much faster than parsing it."""
    with suppress(TypeError, LookupError):  # a row that is no receipt names nothing
        older = [line["id"] for line in value.get("lines", ())]
        return memory_id in older or any(line[_ID] == memory_id for line in value.get("told", ()))
    return False


def text_hash(text: str) -> str:
    """SHA-256 of ``text`` in hexadecimal; "" for ""."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else ""


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, _DIGITS)
