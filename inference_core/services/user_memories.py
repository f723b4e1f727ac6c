"""All memories of a user in a store, whichever agent wrote them: count, list, delete, purge. For applications.

The ``…_long_term_memory`` functions do the same on the store that the environment names. All of them block, and raise
InvalidInput and StoreUnavailable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Concatenate, ParamSpec, TypedDict, TypeVar

from langgraph.store.base import BaseStore
from pydantic.json_schema import SkipJsonSchema

from inference_core.effects import blocking, present_as
from inference_core.errors import InvalidId, InvalidInput
from inference_core.memory.audit import Cause
from inference_core.memory.namespaces import (
    AUDIT,
    PENDING,
    QUOTA,
    USAGE,
    VERSIONS,
    Namespace,
    decode_label,
    encode_label,
    holds_memories,
    is_sidecar,
    memory_namespace,
)
from inference_core.memory.record import MemoryPage
from inference_core.memory.text import is_text
from inference_core.memory.types import MemoryCategory, validate_memory_category
from inference_core.services.operations.delete import derived_rows, empty, erase_derived, removals_of
from inference_core.services.operations.list import MemoryPageRequest, by_category, page_of
from inference_core.services.operations.scope import UserId, record_of, records_of
from inference_core.stores.backend import Remove, Row
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import any_engine_of, open_configured_store

P = ParamSpec("P")
T = TypeVar("T")
StoreArgument = SkipJsonSchema[BaseStore]
"""Left out of JSON schemas, such as that of a tool made from one of these functions: none can describe a store."""


class UserMemoryEntry(TypedDict):
    """A memory as `list_user_memories` shows it; times in ISO 8601."""

    namespace: list[str]
    key: str
    version: int
    content: str
    memory_type: str
    memory_category: str
    topic: str | None
    agent_name: str | None
    session_id: str | None
    created_at: str
    updated_at: str


class UserEntry(TypedDict):
    """A user as `list_users` shows them, with how many memories they have."""

    user_id: str
    memories: int


@contextmanager
def open_memory_store() -> Generator[BaseStore]:
    """The store that the environment names (`MemorySettings.store_url`), without embeddings; closed on exit."""
    from inference_core.settings import MemorySettings, read_settings  # noqa: PLC0415 - it is slow to import

    with open_configured_store(read_settings(MemorySettings), embeddings=None) as store:
        yield store


def _on_configured_store(helper: Callable[Concatenate[BaseStore, P], T]) -> Callable[P, T]:
    def configured(*args: P.args, **kwargs: P.kwargs) -> T:
        with open_memory_store() as store:
            return helper(store, *args, **kwargs)

    present_as(configured, helper)
    configured.__name__ = re.sub("user_memor(ies|y)", "user_long_term_memory", helper.__name__)
    return configured


@blocking
async def purge_user_memories(store: StoreArgument, user_id: UserId, category: str | None = None) -> int:
    """Permanently deletes the user's memories of all agents, forgotten ones included, or only those of ``category``.

    Without a ``category``, everything else that is stored under the user goes too: messages, receipts, jobs and the
    audit trail. With one, what was made from these memories goes too, as with ``delete_memory(erase=True)``; it is not
    counted. Returns the number of removed rows; counts, earlier versions, proposals and audit events are not
    included. Raises Held if the user has a legal hold. The command ``inference-core erase`` also verifies that nothing
    is left.
    """
    engine = any_engine_of(store)
    label = encode_label(user_id)
    await engine.check_holds(label)
    await engine.remove_expired()  # no other read finds expired rows
    cause = Cause(at=datetime.now(UTC), operation="purge")
    if category is None:  # unreadable rows go first, as they may get in the way of the rest
        removed = await engine.discard(label, lambda _: True, cause)
        namespaces = await _scopes(engine, user_id, everything=True)
    else:
        namespaces = await _scopes(engine, user_id, category, everything=True)
        removed = await engine.discard(label, lambda damaged: damaged.namespace in namespaces, cause)
        homes = [name for name in namespaces if name[1:2] not in ((USAGE,), (VERSIONS,))]
        await erase_derived(engine, label, homes, None, cause)
    figures = [name for name in namespaces if name[1:2] in ((USAGE,), (VERSIONS,), (PENDING,), (QUOTA,))]
    told = [name for name in namespaces if name not in figures and name[1:] != (AUDIT,)]
    removed += await empty(engine, told, cause=cause)
    await empty(engine, [name for name in figures if name[1:2] == (PENDING,)], cause=cause)
    await empty(engine, figures)
    if category is None:  # also the events of this purge
        await engine.end_trail(label)
    return removed


@blocking
async def count_user_memories(store: StoreArgument, user_id: UserId) -> dict[str, int]:
    """How many memories the user has with all agents, by category and as ``total``."""
    engine = any_engine_of(store)
    counted = await engine.tally(await _scopes(engine, user_id))
    return by_category((tally.namespace, tally.rows) for tally in counted)


@blocking
async def list_user_memories(
    store: StoreArgument,
    user_id: UserId,
    *,
    category: str | None = None,
    memory_type: str | None = None,
    search: str | None = None,
    limit: int | None = 50,
    offset: int = 0,
    after: str | None = None,
) -> tuple[MemoryPage[UserMemoryEntry], int]:
    """Returns a page of the user's memories, of all agents, the newest first, and the total number that match.

    ``category`` and ``memory_type`` filter them; ``search`` keeps contents and topics with this text, ignoring case.
    ``after`` is the ``next_cursor`` of the previous page; ``offset`` skips that many of the newest instead. ``limit``
    None returns all.
    """
    engine = any_engine_of(store)
    namespaces = await _scopes(engine, user_id, category)
    request = MemoryPageRequest(memory_type=memory_type, search=search, limit=limit, offset=offset, after=after)
    return await page_of(engine, namespaces, _entry, request)


@blocking
async def list_users(store: StoreArgument, *, limit: int = 50, after: str | None = None) -> MemoryPage[UserEntry]:
    """Returns a page of users by id, with how many memories each has. ``after`` is the previous ``next_cursor``."""
    engine = any_engine_of(store)
    if limit < 1:
        raise InvalidInput(f"limit must be at least 1, not {limit}")
    names = [name for name in await engine.namespaces() if holds_memories(name)]
    users: dict[str, str] = {}
    for label in {name[0] for name in names}:
        with suppress(InvalidId):  # no user's: a space, or what holds for all users
            users[label] = decode_label(label)
    labels = sorted(label for label in users if after is None or label > after)
    page = labels[:limit]
    counts = dict.fromkeys(page, 0)
    for tally in await engine.tally([name for name in names if name[0] in counts]):
        counts[tally.namespace[0]] += tally.rows
    entries = [UserEntry(user_id=users[label], memories=counts[label]) for label in page]
    return MemoryPage(entries, page[-1] if len(labels) > limit else None)


@blocking
async def delete_user_memory_entries(
    store: StoreArgument, user_id: UserId, entries: Sequence[tuple[Sequence[str], str]]
) -> int:
    """Permanently deletes the user's memories with these namespaces and keys; returns how many existed.

    What was made from them goes too, as with ``delete_memory(erase=True)``. Ignores other users'.
    """
    engine = any_engine_of(store)
    label = encode_label(user_id)
    named = dict.fromkeys((tuple(namespace), key) for namespace, key in entries)
    own = [(namespace, key) for namespace, key in named if namespace[:1] == (label,) and is_text(key)]
    rows = await engine.get(own)
    there = [row for row in rows if row]
    if there:
        cause = Cause(at=datetime.now(UTC), operation="erase")
        derived = await derived_rows(engine, label, records_of(there))
        gone = [Remove(namespace=row.namespace, key=row.key) for row in there]
        await engine.write([*removals_of(derived, any_version=True), *gone], cause)
    return len(there)


def delete_user_memory_entry(store: StoreArgument, user_id: UserId, namespace: Sequence[str], key: str) -> bool:
    """Deletes one memory by namespace and key; False if it does not exist or is another user's."""
    return delete_user_memory_entries(store, user_id, [(namespace, key)]) == 1


async def _scopes(
    engine: StoreEngine, user_id: UserId, category: str | None = None, *, everything: bool = False
) -> list[Namespace]:
    """The user's namespaces of memories, of one category or of all.

    ``everything`` adds their sidecars and, without a category, all other namespaces of the user.
    """
    wanted = set(MemoryCategory) if category is None else {MemoryCategory(validate_memory_category(category))}
    labels = {one.value for one in wanted}
    names = await engine.namespaces((encode_label(user_id),))
    if everything and category is None:
        return names
    homes = {name: memory_namespace(name) if everything and is_sidecar(name) else name for name in names}
    return [name for name, home in homes.items() if home[1:2] and home[1] in labels]


def _entry(row: Row) -> UserMemoryEntry:
    record = record_of(row)
    return UserMemoryEntry(
        namespace=list(record.namespace),
        key=record.id,
        version=record.version,
        content=record.content,
        memory_type=record.memory_type.value,
        memory_category=record.category.value,
        topic=record.topic,
        agent_name=record.agent_name,
        session_id=record.session_id,
        created_at=record.created_at.isoformat(),
        updated_at=record.updated_at.isoformat(),
    )


purge_user_long_term_memory = _on_configured_store(purge_user_memories)
count_user_long_term_memory = _on_configured_store(count_user_memories)
list_user_long_term_memory = _on_configured_store(list_user_memories)
delete_user_long_term_memory_entry = _on_configured_store(delete_user_memory_entry)
delete_user_long_term_memory_entries = _on_configured_store(delete_user_memory_entries)
