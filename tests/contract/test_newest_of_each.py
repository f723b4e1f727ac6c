"""The newest memories of some kinds are the same from the index as from the database, whatever was written."""

from __future__ import annotations

from datetime import timedelta

from langgraph.store.base import BaseStore

from inference_core import AgentMemoryStoreService
from inference_core.drivers import run
from inference_core.stores.backend import Row
from inference_core.testing import FrozenClock

USER = "ada"
KINDS = ("preferences", "instructions")


def both(service: AgentMemoryStoreService, limit: int) -> tuple[list[Row], list[Row]]:
    engine, scopes = service.scope.engine, service.scope.namespaces.read_scopes(USER)
    stored = [row for kind in KINDS for row in run(engine.page(scopes, kinds=frozenset([kind]), limit=limit))]
    in_order = sorted(stored, key=lambda row: (-row.created_at.timestamp(), row.key))
    return run(engine.newest_of_each(scopes, kinds=KINDS, limit=limit)), in_order


def test_the_index_gives_what_the_database_gives(own_store: BaseStore, clock: FrozenClock) -> None:
    service = AgentMemoryStoreService(own_store, clock=clock)
    sync = service.sync
    ids: list[str] = []
    for at in range(12):
        ids.append(sync.save_memory(USER, f"Line {at}", ("preferences", "facts", "instructions")[at % 3]))
        clock.advance(timedelta(seconds=at % 2))
    sync.save_memory("eve", "Eve's line", "preferences")
    without_index = both(service, 20)
    assert without_index[0] == without_index[1]
    assert [row.namespace[0] for row in without_index[0]] == [USER] * 8
    sync.recall_memories(USER, "line")
    for change in (
        lambda: sync.delete_memory(USER, ids[0]),
        lambda: sync.update_memory(USER, ids[3], memory_type="facts"),
        lambda: sync.save_memory(USER, "Another line", "preferences"),
    ):
        change()
        for limit in (1, 3, 20):
            indexed, stored = both(service, limit)
            assert [row.key for row in indexed] == [row.key for row in stored]
    assert len(both(service, 20)[0]) == 7
