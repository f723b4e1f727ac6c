"""What is evaluated: conversations (or sets of saved memories) and questions with the messages that answer them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from inference_core.errors import InvalidInput
from inference_core.ingestion.messages import Message, Role
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One message: it becomes one memory. ``at`` is when it was said, aware; None where the data do not say."""

    id: str
    session: str | None
    at: datetime | None
    speaker: str | None
    text: str
    origin: Origin = Origin.USER
    memory_type: str = MemoryType.CONTEXT.value

    @property
    def content(self) -> str:
        """The turn as a memory: speaker, if there is a named one, and text."""
        return self.text if self.speaker is None else f"{self.speaker}: {self.text}"

    def message(self, conversation_id: str) -> Message:
        """The turn as a message to ingest; its session is named with the conversation, so that several do not mix."""
        return Message(
            session_id=conversation_id if self.session is None else f"{conversation_id}/{self.session}",
            role=Role.ASSISTANT if self.origin is Origin.AGENT else Role.USER,
            text=self.text,
            id=self.id,
            author=self.speaker,
            at=self.at,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answer if one is given, its category, and the ids of the turns that answer it.

    ``names_evidence``: whether the data name any turn for it, known or not; without one it is taken for unanswerable.
    ``in_overall``: whether its category belongs to the data set's headline figure. ``superseded``: the turns among the
    evidence that state what another one has updated.
    """

    text: str
    answer: str | None
    category: str
    evidence: tuple[str, ...]
    names_evidence: bool = True
    in_overall: bool = True
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of all sessions in their order, the questions, and how many evidence ids could not be resolved."""

    id: str
    turns: tuple[ConversationTurn, ...]
    questions: tuple[Question, ...]
    dropped_evidence: int


def parse_json(path: Path, form: str, build: Callable[[Any], T]) -> T:
    """What ``build`` makes of the JSON in ``path``; ``form`` says in an error what the file has to be.

    Raises InvalidInput if the file cannot be read, is not JSON, or ``build`` does not find in it what it needs.
    """
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Cannot read {path}: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not {form}: {error!r:.300}") from error


def resolved(named: Iterable[str], turns: Iterable[ConversationTurn]) -> tuple[tuple[str, ...], int]:
    """Those of the ``named`` ids that ``turns`` have, each once and in their order, and how many have no turn."""
    known = {turn.id for turn in turns}
    distinct = dict.fromkeys(named)
    usable = tuple(name for name in distinct if name in known)
    return usable, len(distinct) - len(usable)
