"""Looks at what is stored: one memory and its history, a page of memories, or how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar
from unicodedata import normalize

from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import Namespace, encode_label, holds_memories
from inference_core.memory.record import MemoryPage, MemoryRecord, MemoryStoreDocument
from inference_core.memory.spaces import SpaceRole
from inference_core.memory.text import text_field
from inference_core.memory.types import MEMORY_TYPES, MemoryCategory, validate_memory_type
from inference_core.services.operations.delete import earlier_texts
from inference_core.services.operations.operation import operation
from inference_core.services.operations.scope import (
    MemoryScope,
    UserId,
    find,
    is_known,
    record_of,
    records_of,
    row_filter,
)
from inference_core.services.operations.spaces import readable
from inference_core.stores.backend import Cursor, Row, place_of
from inference_core.stores.engine import StoreEngine

T = TypeVar("T")
MOST_BROWSED: Final = 2_000
_BROWSED: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPageRequest:
    """Which memories a page shows, as `list_memories` says; ``limit`` None: all of them."""

    memory_type: str | None = None
    search: str | None = None
    matches: Callable[[Row], bool] | None = None
    limit: int | None = None
    offset: int = 0
    after: str | None = None


@operation("get_memory", needs=SpaceRole.READ)
async def get(scope: MemoryScope, user_id: UserId, memory_id: str) -> MemoryStoreDocument | None:
    """The memory with this id in the scopes that the agent reads, else None. Raises InvalidInput, StoreUnavailable."""
    record = await find(scope, user_id, memory_id, await readable(scope, user_id))
    scope.engine.extend_later([record] if record else [])
    return record and MemoryStoreDocument.of(record)


@operation("get_of_any_agent")
async def get_of_any_agent(scope: MemoryScope, user_id: UserId, memory_id: str) -> MemoryStoreDocument | None:
    """Like `get`, but finds the user's own memories only, whichever agent wrote them.

    Raises InvalidInput, StoreUnavailable.
    """
    names = await scope.engine.namespaces((encode_label(user_id),))
    homes = [name for name in names if holds_memories(name)]
    record = await find(scope, user_id, memory_id, homes) if homes else None
    return record and MemoryStoreDocument.of(record)


@operation("get_memory_history", needs=SpaceRole.READ)
async def history(scope: MemoryScope, user_id: UserId, memory_id: str) -> list[MemoryStoreDocument]:
    """The memory, all that it superseded and all that superseded it, the oldest first; empty if it does not exist.

    The earlier texts of a memory come before it, under its id, for the service's ``deleted_days``. Covers only memories
    in the scopes that the agent reads. Raises InvalidInput, StoreUnavailable.
    """
    found: dict[str, MemoryRecord] = {}
    namespaces = await readable(scope, user_id)
    waiting = [memory_id]
    while waiting:
        one = waiting.pop()
        record = None if one in found else await find(scope, user_id, one, namespaces)
        if record is not None:
            found[one] = record
            waiting += [*record.supersedes, *([record.superseded_by] if record.superseded_by else [])]
    ordered = sorted(found.values(), key=lambda record: (record.happened_at, record.created_at))
    homes, versions = scope.namespaces.read_scopes(user_id), list[MemoryStoreDocument]()
    for record in ordered:
        versions += await earlier_texts(scope, homes, record.id, record)
        versions.append(MemoryStoreDocument.of(record))
    return versions


@operation("list_memories", needs=SpaceRole.READ)
async def list_memories(  # noqa: D417 - callers of the service pass no scope
    scope: MemoryScope,
    user_id: UserId,
    *,
    category: str | None = None,
    memory_type: str | None = None,
    search: str | None = None,
    limit: int | None = 50,
    offset: int = 0,
    session_id: str | None = None,
    after: str | None = None,
    tags: Sequence[str] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
) -> tuple[MemoryPage[MemoryStoreDocument], int]:
    """Returns a page of the memories that the agent reads, the newest first, and the total number that match.

    Memories of spaces are not among a user's: pass the `Space` as ``user_id`` to list them.

    Args:
        user_id: The user.
        category: Only memories of this `MemoryCategory`.
        memory_type: Only memories of this `MemoryType`.
        search: Only those whose content or topic contains this text, ignoring case. Reads all memories.
        limit: The size of the page; None for all.
        offset: How many of the newest to skip, in place of ``after``. Pages shift when memories are added or removed.
        session_id: Only those of this session. Reads all memories.
        after: The ``next_cursor`` of the previous page. Every memory that does not change meanwhile is listed exactly
            once, and every page costs the same.
        tags: Only those that have all of these. Reads all memories, as do the following.
        created_after: Only those stored at this time or later.
        created_before: Only those stored before it.

    Raises:
        InvalidInput: An argument is invalid.
        StoreUnavailable: The database did not answer in time.
    """
    request = MemoryPageRequest(
        memory_type=memory_type,
        search=search,
        matches=row_filter(tags, session_id, created_after, created_before),
        limit=limit,
        offset=offset,
        after=after,
    )

    def document(row: Row) -> MemoryStoreDocument:
        return MemoryStoreDocument.of(record_of(row))

    return await page_of(scope.engine, scope.namespaces.read_scopes(user_id, category), document, request)


@operation("list_all")
async def list_all(
    scope: MemoryScope, user_id: UserId, *, category: str | None = None, memory_type: str | None = None
) -> MemoryPage[MemoryStoreDocument]:
    """All memories that the agent reads, the newest first, of one category or type if given.

    `list_memories` returns them in pages. Raises InvalidInput, StoreUnavailable.
    """
    page, _ = await list_memories(scope, user_id, category=category, memory_type=memory_type, limit=None)
    return page


async def get_many(scope: MemoryScope, user_id: UserId, ids: Iterable[str]) -> dict[str, MemoryStoreDocument]:
    """The existing memories among ``ids``, by id. Unlike `get`, it does not renew their time to live.

    Raises StoreUnavailable.
    """
    namespaces = await readable(scope, user_id)
    rows = await scope.engine.get([(namespace, key) for key in dict.fromkeys(ids) for namespace in namespaces])
    return {record.id: MemoryStoreDocument.of(record) for record in records_of(rows)}


async def browse(
    scope: MemoryScope,
    user_id: UserId,
    *,
    memory_type: str | None = None,
    origin: str | None = None,
    limit: int = 50,
    after: str | None = None,
) -> MemoryPage[MemoryStoreDocument]:
    """A page of memories of a type and an `Origin`, the newest first, at a bounded cost however rare these are.

    It looks through about `MOST_BROWSED` memories at most, so a page may hold fewer than ``limit`` though more follow.
    Raises InvalidInput, StoreUnavailable.
    """
    kinds = None if memory_type is None else frozenset({validate_memory_type(memory_type)})
    namespaces, cursor = await readable(scope, user_id), None if after is None else Cursor.decode(after)
    found, looked, is_last = list[Row](), 0, False
    while len(found) <= limit and looked < MOST_BROWSED and not is_last:
        size = limit + 1 if origin is None else _BROWSED
        rows = await scope.engine.scan(namespaces, kinds=kinds, accepts=is_known, limit=size, after=cursor)
        found += [row for row in rows if origin in (None, record_of(row).source.origin.value)]
        looked, is_last = looked + len(rows), len(rows) < size
        cursor = Cursor.of(rows[-1]) if rows else cursor
    if len(found) > limit:
        cursor, is_last = Cursor.of(found[limit - 1]), False
    page = (MemoryStoreDocument.of(record_of(row)) for row in found[:limit])
    return MemoryPage(page, None if is_last or cursor is None else cursor.encode())


async def count_types(scope: MemoryScope, user_id: UserId) -> dict[str, int]:
    """How many memories there are of each type that has any. Raises InvalidId, StoreUnavailable."""
    namespaces, counts = await readable(scope, user_id), dict[str, int]()
    for kind in MEMORY_TYPES:
        counts[kind] = await scope.engine.count(namespaces, kinds=frozenset({kind}))
    return {kind: number for kind, number in counts.items() if number}


@operation("count_memories", needs=SpaceRole.READ)
async def count(scope: MemoryScope, user_id: UserId) -> dict[str, int]:
    """How many memories the agent reads, by category and as ``total``. Raises InvalidId, StoreUnavailable."""
    namespaces = scope.namespaces.read_scopes(user_id)
    return by_category((tally.namespace, tally.rows) for tally in await scope.engine.tally(namespaces))


def by_category(counted: Iterable[tuple[Namespace, int]]) -> dict[str, int]:
    """The sums of ``counted``, numbers of memories by namespace, for each category and as ``total``."""
    counts = {category.value: 0 for category in MemoryCategory}
    for namespace, rows in counted:
        counts[namespace[1]] += rows
    return counts | {"total": sum(counts.values())}


async def all_of(engine: StoreEngine, namespaces: Sequence[Namespace]) -> list[MemoryRecord]:
    """All memories in exactly ``namespaces``, the newest first."""
    rows = await engine.scan(namespaces)
    return await engine.pool.call(records_of, rows)


async def page_of(
    engine: StoreEngine, namespaces: Sequence[Namespace], make: Callable[[Row], T], request: MemoryPageRequest
) -> tuple[MemoryPage[T], int]:
    """A page of ``make(row)`` for the rows of exactly ``namespaces``, newest first, and how many rows match in all."""
    limit, offset, wanted = request.limit, request.offset, request.matches
    if offset < 0 or (limit is not None and limit < 0):
        raise InvalidInput(f"limit and offset must not be negative; got {limit} and {offset}")
    if offset and request.after is not None:
        raise InvalidInput("A page begins after a cursor or at an offset, not at both: leave out one of them")
    cursor = None if request.after is None else Cursor.decode(request.after)
    kinds = None if request.memory_type is None else frozenset({validate_memory_type(request.memory_type)})
    if not request.search and wanted is None:
        total = await engine.count(namespaces, kinds=kinds)
        if offset:  # the database passes over them, which is quicker than to read them
            passed = await engine.page(namespaces, kinds=kinds, limit=1, offset=offset - 1)
            if not passed:
                return MemoryPage(), total
            cursor = Cursor.of(passed[0])
        end = None if limit is None else limit + 1  # one more tells whether there is another page
        rows = await engine.scan(namespaces, kinds=kinds, accepts=is_known, limit=end, after=cursor)
    else:
        needle = normalize("NFC", request.search or "").casefold()  # as stored texts are

        def matches(row: Row) -> bool:
            if wanted is not None and not wanted(row):
                return False
            searched = f"{text_field(row.value, 'content') or ''}\n{text_field(row.value, 'topic') or ''}".casefold()
            return needle in searched and is_known(row)

        found = await engine.scan(namespaces, kinds=kinds, accepts=matches)
        total = len(found)
        rows = [row for row in found if cursor is None or place_of(row) > cursor.place][offset:]
    page = rows[:limit]
    following = Cursor.of(page[-1]).encode() if page and len(rows) > len(page) else None
    # On a worker, as all memories of a user with many would keep an event loop busy for half a second.
    return MemoryPage(await engine.pool.call(lambda: list(map(make, page))), following), total
