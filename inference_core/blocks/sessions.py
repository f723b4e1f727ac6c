"""Which sessions have told a memory, and removing what one of them alone has told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

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
    sessions: Any = record.extra_metadata.get(_SESSIONS)
    is_ours = record.extra_metadata.get(_BLOCK) == block and isinstance(sessions, list)
    return [str(one) for one in cast("list[Any]", sessions)] if is_ours else None


def with_sessions(record: MemoryRecord, block: str, sessions: Sequence[str]) -> MemoryRecord:
    """``record`` as told in ``sessions``."""
    return replace(record, extra_metadata={**record.extra_metadata, **told_in(block, sessions)})


def forget_session(scope: MemoryScope, conversation: Conversation, block: str, category: MemoryCategory) -> Plan[None]:
    """Plan: removes the memories of ``block`` that this session alone has told; others only lose the session.

    Raises StoreError; what was removed before stays removed.
    """
    scopes = scope.namespaces.read_scopes(conversation.user_id, category)

    def attempt() -> Plan[None]:
        writes: list[Write] = []
        for record in (yield from all_of(scope.engine, scopes)):
            sessions = sessions_of(record, block) or []
            if conversation.session_id not in sessions:
                continue
            others = [one for one in sessions if one != conversation.session_id]
            if others:
                writes.append(put_of(with_sessions(record, block, others), expected=record.version))
            else:
                writes.append(Delete(namespace=record.namespace, key=record.id, expected=record.version))
        for at in range(0, len(writes), PORTION):
            yield from scope.engine.write(writes[at : at + PORTION])

    yield from retried(attempt)
