"""Recall for users with memories in English and in another language, of each model, and of the two together.

Each user is made of two: so many memories of an English one, so many of another's, drawn with a fixed seed. Questions
of both are asked: English ones, ones in the other language, and English ones about memories in the other language.
``--data DIR`` is a folder with `own_dev`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

from report import Row, publish
from timing import watched

from inference_core.evaluation.conversations import (
    Conversation,
    ConversationQuestion,
    ConversationTurn,
    conversation_of,
)
from inference_core.evaluation.experiment import QuestionOutcome, run_experiment
from inference_core.evaluation.formats import load_atomic
from inference_core.evaluation.systems import MemoryService

SIZES = ((10, 50), (25, 50), (50, 50), (80, 50), (80, 25))
"""The numbers of memories in English and in the other language."""
MODELS = {
    "both models": "local-by-language",
    "the multilingual model alone": "local-multilingual",
    "the English model alone": "local",
}
KINDS = ("English", "other", "cross-lingual")


def mixed(english: Conversation, other: Conversation, sizes: tuple[int, int]) -> Conversation:
    """A user with some memories of both, and those questions of both that these answer."""
    turns: list[ConversationTurn] = []
    questions: list[ConversationQuestion] = []
    for user, size, prefix in ((english, sizes[0], "e"), (other, sizes[1], "o")):
        drawn = random.Random(f"{english.id} {other.id} {sizes}").sample(user.turns, min(size, len(user.turns)))
        turns += [replace(turn, id=f"{prefix}{turn.id}") for turn in drawn]
        known = {turn.id for turn in drawn}
        for question in user.questions:
            evidence = tuple(f"{prefix}{name}" for name in question.evidence if name in known)
            kind = KINDS[2] if question.category == "cross_lingual" else KINDS[prefix == "o"]
            if evidence:
                questions.append(replace(question, evidence=evidence, category=kind))
    turns.sort(key=lambda turn: turn.at.timestamp() if turn.at else 0.0)
    return conversation_of(f"{english.id}/{other.id}", turns, questions)


def users(folder: Path, sizes: tuple[int, int]) -> Iterator[Conversation]:
    """Every other pair of users."""
    english = load_atomic(folder / "own_dev/atomic_more.json")
    others = load_atomic(folder / "own_dev/atomic_languages.json")
    for (first, one), (second, other) in product(enumerate(english), enumerate(others)):
        if (first + second) % 2 == 0:
            yield mixed(one, other, sizes)


def mean(outcomes: Sequence[QuestionOutcome], measure: str, kind: str | None = None) -> str:
    """The mean of a measure over the questions of a kind, in percent."""
    return f"{100 * fmean(one.scores[measure] for one in outcomes if kind in (None, one.question.category)):.1f}"


def main() -> int:
    """Measures, and publishes the table."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--data", type=Path, required=True)
    folder = command.parse_args().data
    rows: list[Row] = []
    for name, embeddings in MODELS.items():
        outcomes: list[QuestionOutcome] = []
        for sizes in watched(SIZES, name):
            found = asyncio.run(run_experiment(list(users(folder, sizes)), MemoryService(embeddings), lambda: None))
            rows.append((f"R@10, {name}, {sizes[0]} English + {sizes[1]} others", mean(found, "R@10"), "", None))
            outcomes += found
        for kind in KINDS:
            text = f"{mean(outcomes, 'R@10', kind)} (MRR {mean(outcomes, 'MRR', kind)})"
            rows.append((f"R@10, {name}, {kind} questions", text, "", None))
        text = f"{mean(outcomes, 'R@10')} (MRR {mean(outcomes, 'MRR')})"
        rows.append((f"R@10, {name}, all questions", text, "", None))
    publish("mixed_languages", rows, {})
    return 0


if __name__ == "__main__":
    sys.exit(main())
