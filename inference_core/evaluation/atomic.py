"""Reads short saved memories of users, and requests to an agent with the ids of the memories that they need.

A file is an object with ``users``; a user has ``user_id``, ``memories`` (``id``, ``content``, ``memory_type``,
``created_at``) and ``queries`` (``query``, ``relevant``: ids, none if nothing is relevant, ``kind``).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from inference_core.clock import aware
from inference_core.evaluation.conversations import (
    Conversation,
    ConversationTurn,
    Question,
    conversation_of,
    parse_json,
)
from inference_core.memory.trust import Origin
from inference_core.memory.types import validate_memory_type

_FORMAT: Final = "a file of saved memories, an object with 'users', each with 'user_id', 'memories' and 'queries'"


def load_atomic(path: Path) -> list[Conversation]:
    """Each user's memories as a conversation without sessions. Raises InvalidInput if the file has another format."""
    return parse_json(path, _FORMAT, lambda data: [_saved(user) for user in data["users"]])


def _saved(user: Mapping[str, Any]) -> Conversation:
    turns: list[ConversationTurn] = []
    for memory in user["memories"]:
        created_at, kind = memory.get("created_at"), validate_memory_type(memory["memory_type"])
        at = None if created_at is None else aware(datetime.fromisoformat(created_at))
        name, text = str(memory["id"]), str(memory["content"])
        turns.append(ConversationTurn(name, None, at, None, text, Origin.APPLICATION, kind))
    questions: list[Question] = []
    for query in user["queries"]:
        relevant = tuple(map(str, query["relevant"]))
        kind = str(query.get("kind", "unclassified"))
        questions.append(Question(str(query["query"]), None, kind, relevant, names_evidence=bool(relevant)))
    return conversation_of(str(user["user_id"]), turns, questions)
