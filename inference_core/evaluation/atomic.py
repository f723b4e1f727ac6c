"""Reads short saved memories of users, and requests to an agent with the ids of the memories that they need.

A file is an object with ``users``; a user has ``user_id``, ``memories`` (``id``, ``content``, ``memory_type``,
``created_at``) and ``queries`` (``query``, ``relevant``: ids, none if nothing is relevant, ``kind``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from inference_core.clock import aware
from inference_core.evaluation.conversations import Conversation, ConversationTurn, Question, parse_json, resolved
from inference_core.memory.trust import Origin
from inference_core.memory.types import validate_memory_type

_FORMAT: Final = "a file of saved memories, an object with 'users', each with 'user_id', 'memories' and 'queries'"


def load_atomic(path: Path) -> list[Conversation]:
    """Each user's memories as a conversation without sessions. Raises InvalidInput if the file has another format."""
    return parse_json(path, _FORMAT, lambda data: [_conversation(user) for user in data["users"]])


def _conversation(user: Mapping[str, Any]) -> Conversation:
    turns = tuple(_turn(memory) for memory in user["memories"])
    read = [_question(query, turns) for query in user["queries"]]
    dropped = sum(lost for _, lost in read)
    return Conversation(str(user["user_id"]), turns, tuple(question for question, _ in read), dropped)


def _turn(memory: Mapping[str, Any]) -> ConversationTurn:
    created_at = memory.get("created_at")
    return ConversationTurn(
        id=str(memory["id"]),
        session=None,
        at=None if created_at is None else aware(datetime.fromisoformat(created_at)),
        speaker=None,
        text=str(memory["content"]),
        origin=Origin.APPLICATION,
        memory_type=validate_memory_type(memory["memory_type"]),
    )


def _question(query: Mapping[str, Any], turns: Sequence[ConversationTurn]) -> tuple[Question, int]:
    """The request, and how many of its ids could not be resolved."""
    named = [str(name) for name in query["relevant"]]
    usable, unknown = resolved(named, turns)
    kind = str(query.get("kind", "unclassified"))
    return Question(str(query["query"]), None, kind, usable, names_evidence=bool(named)), unknown
