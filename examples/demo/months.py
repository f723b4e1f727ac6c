"""A conversation of several months: each turn is saved as a memory, then its questions are asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inference_core import AgentMemoryStoreService
from inference_core.evaluation.conversations import Conversation

EXAMPLE: Final = Path(__file__).with_name("conversation.json")
QUESTIONS: Final = 10
TOP: Final = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """What recall found for a question: the best hit, and how many of the turns that answer it are in the top ten."""

    question: str
    best: str
    found: int
    evidence: int
    ms: float


def remember(
    service: AgentMemoryStoreService, conversation: Conversation, progress: Callable[[int, int], None]
) -> float:
    """Saves each turn as a memory of a user named after the conversation, and returns the seconds that this took."""
    started = time.perf_counter()
    for number, turn in enumerate(conversation.turns, 1):
        service.sync.save_memory(
            conversation.id,
            turn.content,
            "interaction",
            session_id=turn.session,
            memory_id=turn.id,
            valid_from=turn.at,
        )
        progress(number, len(conversation.turns))
    return time.perf_counter() - started


def quiz(service: AgentMemoryStoreService, conversation: Conversation) -> list[Answer]:
    """Asks the first ten questions that have an answer."""
    answers: list[Answer] = []
    for question in [question for question in conversation.questions if question.evidence][:QUESTIONS]:
        started = time.perf_counter()
        hits = service.sync.recall_memories(conversation.id, question.text, TOP)
        took = (time.perf_counter() - started) * 1000
        ids = [hit.id for hit in hits]
        found = sum(evidence in ids for evidence in question.evidence)
        best = hits[0].content if hits else ""
        answers.append(Answer(question.text, best, found, len(question.evidence), took))
    return answers
