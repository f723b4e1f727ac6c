"""Labelled sentences, half of them held out, and how well the rules tell what to remember of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from inference_core.ingestion.extraction.rules import extract_by_rules
from inference_core.outbox.messages import ConversationMessage, Role

MIN_PRECISION: Final = 0.97
MIN_RECALL: Final = 0.75
_NOW: Final = datetime(2026, 1, 15, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """What a user writes. ``remember``: it states something about them, or for all answers, that lasts."""

    text: str
    language: str
    remember: bool
    kind: str

    @property
    def held_out(self) -> bool:
        """Whether it is in the half that no rule was tuned on. The same author wrote sentences and rules."""
        return hashlib.sha256(self.text.encode()).digest()[0] % 2 == 1

    @property
    def is_found(self) -> bool:
        """Whether the rules make a memory of it."""
        message = ConversationMessage(session_id="s", role=Role.USER, text=self.text, id="m")
        return bool(extract_by_rules([message], [], _NOW).candidates)


@dataclass(frozen=True, slots=True)
class Score:
    """Of ``wanted`` sentences ``right`` were found, and ``found`` in all."""

    right: int
    found: int
    wanted: int

    @property
    def precision(self) -> float:
        """1 if nothing was found."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """1 if nothing was wanted."""
        return self.right / self.wanted if self.wanted else 1.0

    @property
    def holds(self) -> bool:
        """Whether the bars are reached."""
        return self.precision >= MIN_PRECISION and self.recall >= MIN_RECALL


def sentences() -> list[Sentence]:
    """All labelled sentences."""
    data = json.loads((Path(__file__).parent / "data" / "plain_statements.json").read_text("utf-8"))
    return [Sentence(**one) for one in data]


def scored(chosen: Iterable[Sentence]) -> Score:
    """The score of the rules."""
    pairs = [(one.remember, one.is_found) for one in chosen]
    return Score(sum(a and b for a, b in pairs), sum(b for _, b in pairs), sum(a for a, _ in pairs))
