"""Conversations, or sets of saved memories, with questions and the ids of the messages that answer them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from inference_core.errors import InvalidInput, cannot_read
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import ConversationMessage, Role
from inference_core.retrieval.analysis import language_of

T = TypeVar("T")
UNKNOWN: Final = "unknown"
"""The language of a text that gives no sign of its language."""


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One message, which becomes one memory. ``at`` (aware) is when it was said; None if the data do not tell."""

    id: str
    session: str | None
    at: datetime | None
    speaker: str | None
    text: str
    origin: Origin = Origin.USER
    memory_type: str = MemoryType.CONTEXT.value

    @property
    def content(self) -> str:
        """The turn as a memory: the speaker's name, if there is one, and the text."""
        return self.text if self.speaker is None else f"{self.speaker}: {self.text}"

    def message(self, conversation_id: str) -> ConversationMessage:
        """The turn as a message to ingest. Session names include the conversation's id, so that sessions do not mix."""
        return ConversationMessage(
            session_id=conversation_id if self.session is None else f"{conversation_id}/{self.session}",
            role=Role.ASSISTANT if self.origin is Origin.AGENT else Role.USER,
            text=self.text,
            id=self.id,
            author=self.speaker,
            at=self.at,
        )


@dataclass(frozen=True, slots=True)
class ConversationQuestion:
    """A question, its answer if one is given, its category, and the ids of the turns that answer it.

    ``names_evidence``: whether the data name any turn for it, known or not; a question with an answer may name none.
    ``in_overall``: whether its category belongs to the data set's headline figure. ``superseded``: those turns of the
    evidence that a later one has updated. ``harmful`` turns mislead the answer, ``useless`` ones only take up space.
    ``language`` is that of the question, followed by that of its evidence if they differ: "en → pl". ``rubric``: what
    an answer should say or do, point by point. ``unanswerable``: the right answer is that nobody said so.
    """

    text: str
    answer: str | None
    category: str
    evidence: tuple[str, ...]
    names_evidence: bool = True
    in_overall: bool = True
    superseded: tuple[str, ...] = ()
    harmful: tuple[str, ...] = ()
    useless: tuple[str, ...] = ()
    language: str = UNKNOWN
    rubric: tuple[str, ...] = ()
    unanswerable: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of all sessions in their order, the questions, and how many evidence ids could not be resolved."""

    id: str
    turns: tuple[ConversationTurn, ...]
    questions: tuple[ConversationQuestion, ...]
    dropped_evidence: int


def parse_json(path: Path, form: str, build: Callable[[Any], T]) -> T:
    """What ``build`` makes of the JSON in ``path``; ``form`` describes the expected format in errors.

    Raises InvalidInput if the file cannot be read, is not JSON, or lacks what ``build`` needs.
    """
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, error) from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{path} is not {form}: {error!r:.300}") from error


def conversation_of(
    name: str, turns: Iterable[ConversationTurn], questions: Iterable[ConversationQuestion], unreadable: int = 0
) -> Conversation:
    """The conversation, with the evidence of its questions resolved to turns, and their languages detected.

    Evidence ids without a turn are dropped and counted, in addition to those that were ``unreadable``.
    """
    kept = tuple(turns)
    known = {turn.id: turn.text for turn in kept}
    resolved: list[ConversationQuestion] = []
    dropped = unreadable
    for question in questions:
        distinct = dict.fromkeys(question.evidence)
        evidence = tuple(name for name in distinct if name in known)
        superseded = tuple(name for name in dict.fromkeys(question.superseded) if name in known)
        dropped += len(distinct) - len(evidence)
        asked, told = language_of(question.text), language_of(" ".join(known[name] for name in evidence))
        language = f"{asked} → {told}" if asked and told and asked != told else asked or told or UNKNOWN
        resolved.append(replace(question, evidence=evidence, superseded=superseded, language=language))
    return Conversation(name, kept, tuple(resolved), dropped)
