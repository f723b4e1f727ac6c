"""Slot: what a plain statement says of whom, for how long, and how many such things may hold at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

ANY: Final = "*"
"""As attribute: whatever the value is of. As value: whatever it is."""
USER: Final = "user"
"""The subject of statements about the user."""


class Relation(str, Enum):
    """What a newer statement does to an older one: it closes it, says it again, or leaves it as it is."""

    SUPERSEDES = "supersede"
    SAME = "same"
    BOTH = "both"


class Holds(Enum):
    """How many values of an attribute hold at a time: one; one, but only a change said as such tells; several."""

    ONE = "one"
    USUALLY_ONE = "usually one"
    SEVERAL = "several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """``subject`` is "user" or a name, with what belongs to it behind slashes: "user/brother".

    ``valid_from`` and ``valid_to`` bound when it holds as far as it was said; ``is_past`` says that it is over.
    ``replaced`` is the value that it says holds no longer ("from X to Y", "not X"). ``is_change`` and
    ``is_correction`` say that something else held, or was said, before; ``is_addition`` that something else holds too.
    """

    subject: str
    attribute: str
    value: str
    holds: Holds = Holds.SEVERAL
    is_negated: bool = False
    is_past: bool = False
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    replaced: str | None = None
    is_change: bool = False
    is_correction: bool = False
    is_addition: bool = False
