"""How blocks file messages: as passages word for word, each memory with the sessions that it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, AnyMessage, FunctionMessage, ToolMessage

from inference_core.effects import Operation
from inference_core.memory.namespaces import FORGOTTEN, PENDING, holds_memories, sidecar_namespace
from inference_core.memory.record import MemoryRecord
from inference_core.memory.text import mapping_field
from inference_core.memory.types import MemoryCategory
from inference_core.outbox.messages import ConversationMessage, Role, any_outside, author_of, label, traced
from inference_core.outbox.outside import OWN_ARTIFACT, is_of_another, is_plain
from inference_core.outbox.partitions import noted_outside
from inference_core.services.operations.delete import PORTION
from inference_core.services.operations.scope import MemoryScope, is_known, put_of, record_of, retried
from inference_core.short_term.blocks.memory import UserSession
from inference_core.stores.backend import Remove, Row, Write

_MAX_REFERENCE: Final = 300
_CALLS: Final = ("tool_use", "tool_call", "function_call", "invalid_tool_call")
_THOUGHTS: Final = ("reasoning", "thinking")
_BLOCK: Final = "block"
_SESSIONS: Final = "sessions"


def passage(
    message: AnyMessage, conversation: UserSession, position: int = 0, agent: str | None = None
) -> ConversationMessage:
    """``message`` in a conversation with ``agent`` as a message to ingest; tool calls and media become text."""
    is_result = isinstance(message, ToolMessage | FunctionMessage)
    is_answer = isinstance(message, AIMessage)
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    told = (f"{call['name']}({json.dumps(call['args'], ensure_ascii=False, default=str)})" for call in calls)
    name = message.name if is_result else author_of(message.name, conversation.user_id)
    return ConversationMessage(
        session_id=conversation.session_id,
        role=Role.TOOL if is_result else Role.ASSISTANT if is_answer else Role.USER,
        text="\n".join(part for part in (text_in(message), *told) if part),
        id=message.id,
        position=position,
        author=None if is_answer else label(name),
        is_proven=is_result or (is_plain(message) and not is_of_another(message, agent)),
    )


def passages(
    scope: MemoryScope, conversation: UserSession, messages: Sequence[AnyMessage]
) -> Operation[list[ConversationMessage]]:
    """``messages`` as messages to ingest, in order, marked if text from outside is or was in the session.

    The answers of memory tools are left out: what they tell is in memory.
    """
    told = (one for one in enumerate(messages) if getattr(one[1], "artifact", None) != OWN_ARTIFACT)
    agent = scope.namespaces.agent_name
    said = list(traced(passage(message, conversation, at, agent) for at, message in told))
    note = scope.engine, scope.clock, conversation.user_id, conversation.session_id
    was_there = yield from noted_outside(*note, is_outside=any_outside(said))
    return [replace(one, is_marked=True) for one in said] if was_there else said


def text_in(message: AnyMessage) -> str:
    """The content of ``message``, with a name in place of each picture or file."""
    content: Any = message.content
    parts: list[str] = []
    for one in cast("list[Any]", [content] if isinstance(content, str) else content):
        block: Mapping[str, Any] = {"text": one} if isinstance(one, str) else one
        text, kind = block.get("text"), str(block.get("type", "data"))
        if isinstance(text, str):
            parts.append(text)
        elif kind not in (*_CALLS, *_THOUGHTS):
            # Shown by its kind and its URL or else its media type, never by its data.
            inner: Any = block.get(kind)
            fields: dict[str, Any] = {"url": block.get("url") or inner}
            fields = {**block, **(inner if isinstance(inner, Mapping) else fields)}
            url = fields.get("url")
            name = url if isinstance(url, str) and not url.startswith("data:") else fields.get("mime_type")
            reference = f" {name or ''}".rstrip()[:_MAX_REFERENCE]
            parts.append(f"[{kind}{reference}]")
    return "\n".join(part for part in parts if part)


def is_call(block: str | Mapping[str, Any]) -> bool:
    """Whether ``block`` of a message's content is a tool call, in any provider's form."""
    return not isinstance(block, str) and block.get("type") in _CALLS


def block_metadata(block: str, sessions: Sequence[str]) -> dict[str, Any]:
    """The metadata of a memory that ``block`` made of messages in ``sessions``."""
    return {_BLOCK: block, _SESSIONS: list(sessions)}


def sessions_of(record: MemoryRecord, block: str) -> list[str] | None:
    """The sessions that ``record`` comes from; None if ``block`` did not make it."""
    return _sessions_in(record.extra_metadata, block)


def _sessions_in(metadata: Mapping[str, Any], block: str) -> list[str] | None:
    sessions: Any = metadata.get(_SESSIONS)
    is_ours = metadata.get(_BLOCK) == block and isinstance(sessions, list)
    return [str(one) for one in cast("list[Any]", sessions)] if is_ours else None


def with_sessions(record: MemoryRecord, block: str, sessions: Sequence[str]) -> MemoryRecord:
    """``record`` as coming from ``sessions``."""
    return replace(record, extra_metadata={**record.extra_metadata, **block_metadata(block, sessions)})


def forget_session(
    scope: MemoryScope, conversation: UserSession, block: str, category: MemoryCategory
) -> Operation[None]:
    """Removes the memories of ``block`` that come from this session alone; others only lose the session.

    Those that wait for the user, or were deleted and can be restored, also go if they come from this session alone.
    Raises StoreError; what was removed before stays removed.
    """
    homes = scope.namespaces.read_scopes(conversation.user_id, category)
    # All in one scan: between two, a memory could be approved or deleted, and be found in neither.
    scopes = [*homes, *(sidecar_namespace(home, place) for home in homes for place in (PENDING, FORGOTTEN))]

    def other_sessions(rows: Sequence[Row]) -> list[tuple[Row, list[str]]]:
        found: list[tuple[Row, list[str]]] = []
        for row in filter(is_known, rows):
            sessions = _sessions_in(mapping_field(row.value, "extra_metadata"), block) or []
            if conversation.session_id in sessions:
                found.append((row, [one for one in sessions if one != conversation.session_id]))
        return found

    def attempt() -> Operation[None]:
        writes: list[Write] = []
        rows = yield from scope.engine.scan(scopes)
        for row, others in (yield from scope.engine.pool.call(other_sessions, rows)):
            if not others:
                writes.append(Remove(namespace=row.namespace, key=row.key, expected=row.version))
            elif holds_memories(row.namespace):
                writes.append(put_of(with_sessions(record_of(row), block, others), expected=row.version))
        for at in range(0, len(writes), PORTION):
            yield from scope.write(writes[at : at + PORTION], "block")

    yield from retried(attempt)
