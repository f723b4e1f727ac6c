"""What a context is measured on: a user's memories, questions, and what each memory does to the answer.

A memory that is told can be needed, do no harm, or bring a failure: poisoning, distraction, confusion, clash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from inference_core.clock import aware
from inference_core.evaluation.conversations import ConversationTurn, parse_json
from inference_core.evaluation.datasets import ALL
from inference_core.memory.trust import Origin
from inference_core.memory.types import validate_memory_type

TUNE: Final = "tune"
TEST: Final = "test"
SPLITS: Final = (TUNE, TEST, ALL)
OWN: Final = "own"
_NEEDED: Final = "needed"
_REPEAT: Final = "repeat"
_FORMAT: Final = "a file of context cases, an object with 'now' and 'users', each with 'chatter' and 'cases'"


class Mode(str, Enum):
    """How a line spoils an answer: it is false, off the topic, beside the point, or contradicts what holds."""

    POISONING = "poisoning"
    DISTRACTION = "distraction"
    CONFUSION = "confusion"
    CLASH = "clash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, and what the memories are to it.

    Each entry of ``needed`` holds ids that say the same: one is enough, each further one told is confusion. ``bad``
    gives the mode of single ids, ``rest`` that of all that are not named elsewhere; None: they do no harm.
    ``answerable``: whether the data say that the memories hold the answer.
    """

    id: str
    question: str
    needed: tuple[frozenset[str], ...] = ()
    bad: Mapping[str, Mode] = field(default_factory=dict[str, Mode])
    neutral: frozenset[str] = frozenset()
    rest: Mode | None = Mode.DISTRACTION
    answerable: bool = True

    @property
    def half(self) -> str:
        """``tune`` or ``test``: by a checksum of the id, so that it never changes."""
        return TUNE if sha256(self.id.encode()).digest()[0] % 2 else TEST

    def mode_of(self, name: str) -> Mode | None:
        """The failure that the memory ``name`` brings by itself, None if none."""
        if name in self.bad:
            return self.bad[name]
        is_known = name in self.neutral or any(name in same for same in self.needed)
        return None if is_known else self.rest


@dataclass(frozen=True, slots=True)
class Memories:
    """One user's memories, when the questions are asked, and the questions."""

    id: str
    turns: tuple[ConversationTurn, ...]
    now: datetime
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class CaseSet:
    """Cases of one origin."""

    name: str
    users: tuple[Memories, ...]


def own_cases(path: Path | None = None) -> CaseSet:
    """The cases that come with this package, or those of a file of the same format. Raises InvalidInput."""
    given = path or Path(str(files("inference_core.evaluation") / "data" / "context_cases.json"))
    return parse_json(given, _FORMAT, _own)


def _own(data: Mapping[str, Any]) -> CaseSet:
    now = aware(datetime.fromisoformat(data["now"]))
    return CaseSet(OWN, tuple(_user(user, now) for user in data["users"]))


def _user(user: Mapping[str, Any], now: datetime) -> Memories:
    name = str(user["user_id"])
    turns = [_turn(f"{name}-{number}", memory) for number, memory in enumerate(user["chatter"])]
    turns += [_turn(line, memory) for case in user["cases"] for line, memory in _lines(case)]
    in_order = sorted(turns, key=lambda turn: turn.at or now)
    return Memories(name, tuple(in_order), now, tuple(_case(case) for case in user["cases"]))


def _lines(case: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The memories of a case with their ids."""
    for number, memory in enumerate(case["memories"]):
        yield f"{case['id']}-{number}", memory


def _turn(name: str, memory: Mapping[str, Any]) -> ConversationTurn:
    return ConversationTurn(
        id=name,
        session=None,
        at=aware(datetime.fromisoformat(memory["at"])),
        speaker=None,
        text=str(memory["content"]),
        origin=Origin(memory["origin"]),
        memory_type=validate_memory_type(memory["memory_type"]),
    )


def _case(case: Mapping[str, Any]) -> Case:
    needed: list[list[str]] = []
    bad: dict[str, Mode] = {}
    for name, memory in _lines(case):
        if memory["label"] == _NEEDED:
            needed.append([name])
        elif memory["label"] == _REPEAT:
            needed[-1].append(name)
        else:
            bad[name] = Mode(memory["label"])
    same = tuple(frozenset(names) for names in needed)
    return Case(id=str(case["id"]), question=str(case["question"]), needed=same, bad=bad, answerable=bool(same))
