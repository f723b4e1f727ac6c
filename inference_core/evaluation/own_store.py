"""The user's own store, measured with a file of questions. Nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from inference_core.errors import InvalidInput
from inference_core.evaluation.conversations import Conversation, ConversationTurn, Question, conversation_of
from inference_core.evaluation.systems import Advance, Hit, Recall, System
from inference_core.memory.document import MemoryStoreDocument
from inference_core.memory.trust import MemorySource, Origin

if TYPE_CHECKING:
    from inference_core.services.agent_memory_service import AgentMemoryStoreService

_FORM: Final = '{"query": "…", "relevant": ["an id, or a distinct part of the content"], "kind": "…"}'
_SHOWN: Final = 60


class OwnStore(System):
    """Recalls from a store as it is; the service should count no recalls."""

    def __init__(self, service: AgentMemoryStoreService) -> None:
        self._service = service

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        """Everything is stored already."""
        for _ in conversation.turns:
            advance()

        async def recall(query: str, k: int) -> list[Hit]:
            found = await self._service.recall_memories(conversation.id, query, k)
            return [Hit(memory.id, memory.relevance) for memory in found]

        return recall


def questions_about(service: AgentMemoryStoreService, user: str, path: Path) -> Conversation:
    """The user's memories, and the questions in ``path``, one JSON object a line.

    Raises InvalidInput, with the line, for what is no such object, and for evidence that is in no memory or several.
    """
    memories, _ = service.sync.list_memories(user, limit=None)
    if not memories:
        raise InvalidInput(f"{user!r} has no memories in this store; name another --user or --url")
    questions = list(_questions(path, memories))
    if not questions:
        raise InvalidInput(f"{path} holds no questions; write one a line: {_FORM}")
    return conversation_of(user, map(_turn, reversed(memories)), questions)


def _questions(path: Path, memories: Sequence[MemoryStoreDocument]) -> Iterator[Question]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path}, line {number} is not JSON ({error}); write {_FORM}") from error
        where = f"{path}, line {number}"
        fields: dict[str, Any] = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        query, relevant, kind = fields.get("query"), fields.get("relevant"), fields.get("kind", "unclassified")
        parts = cast("list[Any]", relevant) if isinstance(relevant, list) else [None]
        texts = [one for one in (query, kind, *parts) if isinstance(one, str) and one.strip()]
        if len(texts) < len(parts) + 2:
            raise InvalidInput(f"{where} is no question; write {_FORM}, with an empty list if no memory answers it")
        evidence = tuple(_id_of(where, part, memories) for part in map(str, parts))
        yield Question(str(query), None, str(kind), evidence, names_evidence=bool(evidence))


def _id_of(where: str, part: str, memories: Sequence[MemoryStoreDocument]) -> str:
    """The id of the memory that ``part`` means: its id, or text that is in its content alone."""
    if any(memory.id == part for memory in memories):
        return part
    wanted = _plain(part)
    found = [memory for memory in memories if wanted in _plain(memory.content)]
    if len(found) == 1:
        return found[0].id
    if not found:
        raise InvalidInput(f"{where}: no memory has the id or contains the text {part!r:.{_SHOWN}}")
    ids = ", ".join(memory.id for memory in found[:3])
    raise InvalidInput(
        f"{where}: {len(found)} memories contain {part!r:.{_SHOWN}}; write more of the text, or an id ({ids})"
    )


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _turn(memory: MemoryStoreDocument) -> ConversationTurn:
    value = memory.value
    happened = value.get("valid_from")
    origin = MemorySource.from_value(value.get("source") or {}).origin
    return ConversationTurn(
        id=memory.id,
        session=value.get("session_id"),
        at=datetime.fromisoformat(happened) if happened else memory.created_at,
        speaker=None,
        text=memory.content,
        origin=Origin.AGENT if origin is Origin.AGENT else Origin.APPLICATION,  # what was allowed once, is so again
        memory_type=str(memory.value["memory_type"]),
    )
