"""Reads conversations in LoCoMo's format (Maharana et al., arXiv 2402.17753).

A file is a list of samples; a sample has sessions of turns with a ``dia_id``, and questions with the ids of the turns
that answer them. Malformed evidence is read leniently; what cannot be resolved is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from inference_core.evaluation.conversations import Conversation, ConversationTurn, Question, parse_json, resolved
from inference_core.memory.trust import Origin

ADVERSARIAL: Final = "5"
"""The category of questions that attribute something to the wrong speaker; reported beside the headline."""
UNCATEGORIZED: Final = "uncategorized"
_FORMAT: Final = "in LoCoMo's format, a list of samples with 'sample_id', 'conversation' and 'qa'"
_SESSION: Final = re.compile(r"session_(\d+)\Z")
_DIALOGUE_ID: Final = re.compile(r"D(\d+):(\d+)")
_TIME: Final = "%I:%M %p on %d %B, %Y"
_AGENTS: Final = frozenset({"assistant", "agent", "ai", "bot"})


def load_locomo(path: Path) -> list[Conversation]:
    """The conversations of a file. Raises InvalidInput if it cannot be read or is not in LoCoMo's format."""
    return parse_json(path, _FORMAT, lambda samples: [_conversation(sample) for sample in _listed(samples)])


def _listed(samples: Any) -> Sequence[Mapping[str, Any]]:
    """The samples of a file, which may also be a single one."""
    return [cast("Mapping[str, Any]", samples)] if isinstance(samples, dict) else samples


def _conversation(sample: Mapping[str, Any]) -> Conversation:
    turns = tuple(_turns(sample["conversation"]))
    read = [_question(entry, turns) for entry in sample.get("qa", [])]
    dropped = sum(lost for _, lost in read)
    return Conversation(str(sample["sample_id"]), turns, tuple(question for question, _ in read), dropped)


def _question(entry: Mapping[str, Any], turns: Sequence[ConversationTurn]) -> tuple[Question, int]:
    """The question, and how many of its evidence ids could not be resolved."""
    given: list[Any] = entry.get("evidence") or []
    items = [str(item) for item in given]
    usable, unknown = resolved([name for item in items for name in _ids(item)], turns)
    answer, category = entry.get("answer"), entry.get("category")
    question = Question(
        text=str(entry["question"]),
        answer=None if answer is None else str(answer),
        category=UNCATEGORIZED if category is None else str(category),
        evidence=usable,
        names_evidence=bool(items),
        in_overall=str(category) != ADVERSARIAL,
    )
    return question, unknown + sum(not _ids(item) for item in items)


def _turns(conversation: Mapping[str, Any]) -> Iterator[ConversationTurn]:
    sessions = sorted((int(found[1]), name) for name in conversation if (found := _SESSION.match(name)))
    for number, name in sessions:
        at = datetime.strptime(conversation[f"session_{number}_date_time"].strip(), _TIME).replace(tzinfo=UTC)
        for turn in conversation[name]:
            caption = f" [shares a photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            origin = Origin.AGENT if turn["speaker"].casefold() in _AGENTS else Origin.USER
            yield ConversationTurn(str(turn["dia_id"]), name, at, turn["speaker"], turn["text"] + caption, origin)


def _ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _DIALOGUE_ID.findall(text)]


__all__ = ["ADVERSARIAL", "UNCATEGORIZED", "Conversation", "ConversationTurn", "Question", "load_locomo"]
