"""Which sessions have told a memory, and removing what one of them alone has told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from inference_core.blocks.conversation import Conversation
from inference_core.drivers import Plan
from inference_core.memory.record import MemoryRecord
from inference_core.memory.types import MemoryCategory
from inference_core.services.operations.delete import PORTION
from inference_core.services.operations.list import all_of
from inference_core.services.operations.scope import MemoryScope, put_of
from inference_core.services.operations.update import retried
from inference_core.stores.backend import Delete, Write

_BLOCK: Final = "block"
_SESSIONS: Final = "sessions"


def told_in(block: str, sessions: Sequence[str]) -> dict[str, Any]:
    """The metadata of a memory that ``block`` took in from ``sessions``."""
    return {_BLOCK: block, _SESSIONS: list(sessions)}


def sessions_of(record: MemoryRecord, block: str) -> list[str] | None:
    """The sessions that have told ``record``; None if it is not one of ``block``."""
    metadata: Mapping[str, Any] = record.extra_metadata
    sessions: Any = metadata.get(_SESSIONS)
    is_ours = metadata.get(_BLOCK) == block and isinstance(sessions, list)
    return list(map(str, sessions)) if is_ours else None  # pyright: ignore[reportUnknownArgumentType]


def with_sessions(record: MemoryRecord, block: str, sessions: Sequence[str]) -> MemoryRecord:
    """``record`` as told in ``sessions``."""
    return replace(record, extra_metadata={**record.extra_metadata, **told_in(block, sessions)})


def forget_session(scope: MemoryScope, conversation: Conversation, block: str, category: MemoryCategory) -> Plan[None]:
    """Plan: removes the memories of ``block`` that this session alone has told; others only lose the session.

    Raises StoreError; what was removed before stays removed.
    """
    scopes = scope.namespaces.read_scopes(conversation.user_id, category)

    def attempt() -> Plan[None]:
        records = yield from all_of(scope.engine, scopes)
        writes = [write for record in records if (write := _without(record, block, conversation.session_id))]
        for at in range(0, len(writes), PORTION):
            yield from scope.engine.write(writes[at : at + PORTION])

    yield from retried(attempt)


def _without(record: MemoryRecord, block: str, session_id: str) -> Write | None:
    sessions = sessions_of(record, block)
    if sessions is None or session_id not in sessions:
        return None
    others = [one for one in sessions if one != session_id]
    if others:
        return put_of(with_sessions(record, block, others), expected=record.version)
    return Delete(namespace=record.namespace, key=record.id, expected=record.version)
