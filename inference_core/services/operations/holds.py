"""Places, lists and releases legal holds on a user, a memory or a session; `stores.rules.holds` enforces them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from secrets import token_hex
from typing import Any, Final

from inference_core.errors import Held, InvalidInput, MemoryNotFound
from inference_core.memory.namespaces import HELD, HOLDS, encode_label, holds_forgotten, holds_memories
from inference_core.memory.text import canonical_id, canonical_text, encode_json, optional_text
from inference_core.services.operations.delete import empty
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import MemoryScope, UserId, checked_moment, retried
from inference_core.stores.backend import Expiry, Put, Remove
from inference_core.stores.rules.holds import Hold, marker_of

_MAX_REASON: Final = 2_000


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A copy of the row in ``place`` under ``key``, with its ``value``, that was replaced or removed under a hold."""

    place: str
    key: str
    value: Mapping[str, Any]
    version: int
    replaced_at: datetime


@operation("hold")
async def hold(
    scope: MemoryScope,
    user_id: UserId,
    reason: str,
    *,
    memory_id: str | None = None,
    session_id: str | None = None,
    until: datetime | None = None,
) -> Hold:
    """Places a legal hold: until it ends, no operation, tool or command can remove what it covers.

    It covers everything of the user, or with ``memory_id`` or ``session_id`` that memory or session alone. Deletions
    raise Held; forgetting, retention and expiry skip what is held; an update keeps a copy of the old text, see
    `list_held_copies`. The hold ends at ``until`` or with `release_hold`. ``reason`` (at most 2,000 bytes) is for those
    who list holds; users and agents never see it. Raises InvalidInput, also if both ids are given or ``until`` is not
    in the future; MemoryNotFound if there is no such memory; StoreUnavailable.
    """
    label, now = encode_label(user_id), scope.clock.now()
    end = checked_moment(until, "until")
    if end is not None and end <= now:
        raise InvalidInput(f"until must lie in the future, not {end.isoformat()}")
    if memory_id is not None and session_id is not None:
        raise InvalidInput("Hold a memory or a session, not both; without either, all of the user is held")
    wanted = None if memory_id is None else canonical_id(memory_id)
    if wanted is not None:
        names = await scope.engine.namespaces((label,))
        homes = [name for name in names if holds_memories(name) or holds_forgotten(name)]
        if not any(await scope.engine.get([(name, wanted) for name in homes])):
            raise MemoryNotFound(wanted)
    made = Hold(
        id=token_hex(8),
        by=scope.actor.id or scope.actor.kind,
        reason=canonical_text(reason, what="reason", max_bytes=_MAX_REASON),
        since=now,
        until=end,
        memory_id=wanted,
        session_id=optional_text(session_id, what="session_id"),
    )
    put = Put(
        namespace=(label, HOLDS),
        key=made.id,
        value=encode_json(made.to_value(), what="hold"),
        updated_at=now,
        expiry=Expiry(end, end - now) if end else None,
        is_new=True,
    )
    await retried(partial(_changed, scope, label, put, "hold"))
    return made


@operation("list_holds")
async def list_holds(scope: MemoryScope, user_id: UserId) -> list[Hold]:
    """The user's legal holds that have not ended, the newest first. Raises InvalidInput, StoreUnavailable."""
    return await scope.engine.pool.call(scope.engine.holds.holds_of, encode_label(user_id))


@operation("list_held_copies")
async def list_held_copies(scope: MemoryScope, user_id: UserId) -> list[HeldCopy]:
    """The copies of what was replaced under the user's holds, or removed because agents could not go on otherwise.

    They come newest first. Raises StoreUnavailable.
    """
    rows = await scope.engine.scan([(encode_label(user_id), HELD)])
    told = [(row.value, row.updated_at) for row in rows]
    return [HeldCopy("/".join(one["place"]), one["key"], one["value"], one["version"], at) for one, at in told]


@operation("release_hold")
async def release_hold(scope: MemoryScope, user_id: UserId, hold_id: str) -> bool:
    """Ends a legal hold, and with the user's last one removes the copies. Returns False if no hold has this id.

    Raises InvalidInput, StoreUnavailable.
    """
    label = encode_label(user_id)
    if not any(hold.id == hold_id for hold in await list_holds(scope, user_id)):
        return False
    gone = Remove(namespace=(label, HOLDS), key=hold_id)
    await retried(partial(_changed, scope, label, gone, "release hold"))
    if not await list_holds(scope, user_id):
        with suppress(Held):  # another one has just begun
            await empty(scope.engine, [(label, HELD)])
    return True


async def _changed(scope: MemoryScope, label: str, write: Put | Remove, operation: str) -> list[int]:
    """Begins or ends a hold and rewrites the user's marker, so that whoever read it before notices the change."""
    namespace, key = marker_of(label)
    (row,) = await scope.engine.get([(namespace, key)])
    marker = Put(
        namespace=namespace,
        key=key,
        value="{}",
        updated_at=scope.clock.now(),
        expected=row.version if row else 0,
    )
    return await replace(scope, deleted_days=0.0).write([write, marker], operation)
