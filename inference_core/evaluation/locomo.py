"""Reads conversations in LoCoMo's format (Maharana et al., arXiv 2402.17753).

A file is a list of samples; a sample has sessions of turns with a ``dia_id``, and questions with the ids of the turns
that answer them. Malformed evidence is read leniently; what cannot be resolved is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from inference_core.evaluation.conversations import (
    Conversation,
    ConversationTurn,
    Question,
    conversation_of,
    parse_json,
)
from inference_core.memory.trust import Origin

ADVERSARIAL: Final = "5"
"""The category of questions that attribute something to the wrong speaker; reported beside the headline."""
_FORMAT: Final = "in LoCoMo's format, a list of samples with 'sample_id', 'conversation' and 'qa'"
_SESSION: Final = re.compile(r"session_(\d+)\Z")
_DIALOGUE_ID: Final = re.compile(r"D(\d+):(\d+)")
_SPOKEN_AT: Final = "%I:%M %p on %d %B, %Y"
_AGENTS: Final = frozenset({"assistant", "agent", "ai", "bot"})


def load_locomo(path: Path) -> list[Conversation]:
    """The samples of a file, or a single one. Raises InvalidInput if it cannot be read or has another format."""

    def read(data: Any) -> list[Conversation]:
        samples: list[Mapping[str, Any]] = [data] if isinstance(data, dict) else data
        return [_sample(sample) for sample in samples]

    return parse_json(path, _FORMAT, read)


def _sample(sample: Mapping[str, Any]) -> Conversation:
    questions: list[Question] = []
    unreadable = 0
    for entry in sample.get("qa", []):
        items: list[Any] = entry.get("evidence") or []
        named: list[list[tuple[str, str]]] = [_DIALOGUE_ID.findall(str(item)) for item in items]
        unreadable += sum(not ids for ids in named)
        answer, category = entry.get("answer"), entry.get("category")
        questions.append(
            Question(
                text=str(entry["question"]),
                answer=None if answer is None else str(answer),
                category="uncategorized" if category is None else str(category),
                evidence=tuple(f"D{int(session)}:{int(turn)}" for ids in named for session, turn in ids),
                names_evidence=bool(named),
                in_overall=str(category) != ADVERSARIAL,
            )
        )
    return conversation_of(str(sample["sample_id"]), _spoken(sample["conversation"]), questions, unreadable)


def _spoken(conversation: Mapping[str, Any]) -> Iterator[ConversationTurn]:
    """The turns of all sessions in their order."""
    sessions = sorted((int(found[1]), name) for name in conversation if (found := _SESSION.match(name)))
    for number, name in sessions:
        at = datetime.strptime(conversation[f"session_{number}_date_time"].strip(), _SPOKEN_AT).replace(tzinfo=UTC)
        for turn in conversation[name]:
            caption = f" [shares a photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            origin = Origin.AGENT if turn["speaker"].casefold() in _AGENTS else Origin.USER
            yield ConversationTurn(str(turn["dia_id"]), name, at, turn["speaker"], turn["text"] + caption, origin)
