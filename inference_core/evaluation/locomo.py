"""Reads conversations in LoCoMo's format (Maharana et al., arXiv 2402.17753).

A file is a list of samples; a sample has sessions of turns with a ``dia_id``, and questions with the ids of the turns
that answer them. Malformed evidence is read leniently; what cannot be resolved is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from inference_core.errors import InvalidInput

_SESSION: Final = re.compile(r"session_(\d+)\Z")
_DIALOGUE_ID: Final = re.compile(r"D(\d+):(\d+)")
_TIME: Final = "%I:%M %p on %d %B, %Y"


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """What one speaker said; ``at`` is when the session began, aware, in UTC."""

    id: str
    session: str
    at: datetime
    speaker: str
    text: str

    @property
    def content(self) -> str:
        """The turn as a memory: speaker and text."""
        return f"{self.speaker}: {self.text}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answer if one is given, its category, and the ids of the turns that answer it."""

    text: str
    answer: str | None
    category: int
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of all sessions in their order, the questions, and how many evidence ids could not be resolved."""

    id: str
    turns: tuple[ConversationTurn, ...]
    questions: tuple[Question, ...]
    dropped_evidence: int


def load_locomo(path: Path) -> list[Conversation]:
    """The conversations of a file. Raises InvalidInput if it cannot be read or is not in LoCoMo's format."""
    try:
        samples = json.loads(path.read_text(encoding="utf-8"))
        return [_conversation(sample) for sample in samples]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Cannot read {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is not in LoCoMo's format: {error!r}") from error


def _conversation(sample: Mapping[str, Any]) -> Conversation:
    turns = tuple(_turns(sample["conversation"]))
    known = {turn.id for turn in turns}
    questions: list[Question] = []
    dropped = 0
    for entry in sample.get("qa", []):
        named = [text for item in entry.get("evidence", []) for text in _ids(str(item))]
        evidence = tuple(dict.fromkeys(name for name in named if name in known))
        dropped += len(set(named) - known) + sum(not _ids(str(item)) for item in entry.get("evidence", []))
        answer = entry.get("answer")
        questions.append(
            Question(str(entry["question"]), None if answer is None else str(answer), int(entry["category"]), evidence)
        )
    return Conversation(str(sample["sample_id"]), turns, tuple(questions), dropped)


def _turns(conversation: Mapping[str, Any]) -> Iterator[ConversationTurn]:
    sessions = sorted((int(found[1]), name) for name in conversation if (found := _SESSION.match(name)))
    for number, name in sessions:
        at = datetime.strptime(conversation[f"session_{number}_date_time"].strip(), _TIME).replace(tzinfo=UTC)
        for turn in conversation[name]:
            caption = f" [shares a photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            yield ConversationTurn(turn["dia_id"], name, at, turn["speaker"], turn["text"] + caption)


def _ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _DIALOGUE_ID.findall(text)]
