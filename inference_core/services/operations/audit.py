"""Who has changed a user's memories: the events that writes have left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from inference_core.errors import InvalidInput
from inference_core.memory.audit import AuditEvent
from inference_core.memory.namespaces import AUDIT, SALT, encode_label
from inference_core.memory.record import MemoryPage
from inference_core.memory.text import canonical_id
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import MemoryScope, UserId, checked_moment
from inference_core.stores.backend import Cursor, Row
from inference_core.stores.engine import StoreEngine
from inference_core.stores.rules.audit_log import TrailCheck, check_trail


@operation("audit")
async def audit(  # noqa: D417 - callers of the service pass no scope
    scope: MemoryScope,
    user_id: UserId,
    *,
    thread_id: str | None = None,
    actor: str | None = None,
    memory_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = 100,
) -> list[AuditEvent]:
    """Returns the events of who changed the user's memories, of all agents, the newest first and without any content.

    Args:
        user_id: The user.
        thread_id: Only changes made in this thread.
        actor: Only those of this actor: a kind ("agent", "admin"), an id, an agent or a tool.
        memory_id: Only those of this memory.
        since: Only those at this time or later.
        until: Only those before it.
        limit: How many at most; None for all.

    Raises:
        InvalidInput: An argument is invalid.
        StoreUnavailable: The database did not answer in time.
    """
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit must not be negative, not {limit}")
    start, end = checked_moment(since, "since"), checked_moment(until, "until")
    key = None if memory_id is None else canonical_id(memory_id)

    def is_wanted(event: AuditEvent) -> bool:
        who = event.actor
        return (
            thread_id in (None, who.thread_id)
            and actor in (None, who.kind, who.id, who.agent, who.tool)
            and (start is None or event.at >= start)
            and (end is None or event.at < end)
            and (key is None or any(change.key == key for change in event.changes))
        )

    events = await events_of(scope.engine, user_id, is_wanted)
    return events[::-1][:limit]


async def audit_page(
    scope: MemoryScope, user_id: UserId, *, memory_id: str | None = None, limit: int = 50, after: str | None = None
) -> MemoryPage[AuditEvent]:
    """A page of the events that `audit` gives, of one memory if given. ``after`` is the previous ``next_cursor``.

    Raises InvalidInput, StoreUnavailable.
    """
    key = None if memory_id is None else canonical_id(memory_id)
    cursor = None if after is None else Cursor.decode(after)

    def is_wanted(row: Row) -> bool:
        event = None if row.key == SALT else event_of(row)
        return event is not None and (key is None or any(change.key == key for change in event.changes))

    place = (encode_label(user_id), AUDIT)
    rows = await scope.engine.scan([place], accepts=is_wanted, limit=limit + 1, after=cursor)
    following = Cursor.of(rows[limit - 1]).encode() if rows[limit:] else None
    return MemoryPage(filter(None, map(event_of, rows[:limit])), following)


@operation("verify_audit")
async def verify_audit(scope: MemoryScope, user_id: UserId, head: str | None = None) -> TrailCheck:
    """Checks that no event of the user's audit trail was changed, removed or added, as far as the trail is sealed.

    Whoever has the database and its key can forge the whole trail. To detect that, keep the returned ``head`` elsewhere
    and pass it to a later call. Raises InvalidInput, StoreUnavailable.
    """
    return await scope.engine.pool.call(check_trail, scope.engine.audit_log, encode_label(user_id), head)


async def events_of(
    engine: StoreEngine, user_id: UserId, is_wanted: Callable[[AuditEvent], bool] = lambda _: True
) -> list[AuditEvent]:
    """The user's events that are wanted, in the order in which they were written, without damaged ones."""
    rows = await engine.scan([(encode_label(user_id), AUDIT)], accepts=lambda row: row.key != SALT)

    def parsed() -> list[AuditEvent]:
        found = (event_of(row) for row in sorted(rows, key=lambda row: (row.seq, row.key)))
        return [event for event in found if event and is_wanted(event)]

    return await engine.pool.call(parsed)


def event_of(row: Row) -> AuditEvent | None:
    """The event in ``row``; None if it was damaged."""
    try:
        return AuditEvent.from_value(row.key, row.value)
    except ValueError:
        return None
