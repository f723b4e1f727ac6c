"""Deleted memories can be restored for a while, and replaced texts be read, on every kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from databases import KINDS, database
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from inference_core import (
    AgentMemoryStoreService,
    ForgettingPolicy,
    MemoryLifecycle,
    MemoryMiddleware,
    MemorySettings,
    open_store,
)
from inference_core.effects import run
from inference_core.errors import InvalidInput
from inference_core.ingestion.analytics import statistics
from inference_core.lifecycle.forgetting import restore_archived
from inference_core.memory.trust import MemorySource, Origin
from inference_core.services.user_memories import purge_user_memories
from inference_core.stores.store import MemoryStore
from inference_core.testing import FrozenClock
from inference_core.transfer.json_lines import export_store

DAY = timedelta(days=1)


@pytest.fixture(params=[*KINDS, "langgraph-memory"])
def timed_store(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[BaseStore]:
    """A store of every kind, with the clock of the tests."""
    if request.param == "langgraph-memory":
        yield InMemoryStore()
    else:
        with database(request.param, tmp_path) as url, open_store(url, embeddings=None, clock=clock) as store:
            yield store


@pytest.fixture
def service(timed_store: BaseStore, clock: FrozenClock) -> AgentMemoryStoreService:
    return AgentMemoryStoreService(timed_store, agent_name="planner", clock=clock)


@pytest.fixture
def filled(service: AgentMemoryStoreService, clock: FrozenClock) -> AgentMemoryStoreService:
    service.sync.save_memory(
        "ada", "green tea", "facts", memory_id="tea", tags=["hot"], extra_metadata={"n": 1}, session_id="s"
    )
    service.sync.save_memory("ada", "planner's rule", "instructions", memory_id="rule")
    clock.advance(DAY)
    return service


def stored(service: AgentMemoryStoreService, user: str = "ada") -> str:
    """All that the store holds of the user, as text."""
    return repr(list(service.scope.engine.backend.inspect(user)))


def test_a_deleted_memory_is_seen_by_nobody_and_comes_back(
    filled: AgentMemoryStoreService, clock: FrozenClock, tmp_path: Path
):
    """It was gone for good, and `why` said nothing of it."""
    memory, lifecycle = filled.sync, MemoryLifecycle(filled).sync
    before = {one.id: one for one in memory.list_memories("ada")[0]}
    deleted_at = clock.now()
    assert memory.delete_memory("ada", "tea")
    assert not memory.delete_memory("ada", "tea")
    clock.advance(6 * DAY)
    assert memory.recall_memories("ada", "green tea") == memory.recall_memories("ada", "green")[1:] == []
    assert [one.id for one in memory.list_memories("ada")[0]] == ["rule"]
    assert memory.get_memory("ada", "tea") is None
    assert "green" not in memory.format_context_for_prompt("ada", "green tea")
    if isinstance(filled.store, MemoryStore):
        assert {item.key for item in filled.store.search(("ada",), limit=9)} == {"rule"}
        assert [item.key for item in filled.store.search(("ada", "forgotten"), limit=9)] == ["tea"]
        assert filled.store.search(("ada",), query="green tea") == []
        export_store(filled.store.engine.backend, tmp_path / "all.jsonl")
        assert "green tea" not in (tmp_path / "all.jsonl").read_text()
    why = memory.why("ada", "tea")
    assert why.memory is None
    assert why.removed
    assert (why.removed.reason, why.removed.forgotten_at) == ("deleted", deleted_at)
    assert (why.removed.until, why.removed.document.content) == (deleted_at + 7 * DAY, "green tea")
    assert [one.document.id for one in lifecycle.forgotten("ada")] == ["tea"]
    assert lifecycle.forget("ada", ForgettingPolicy(keep_days=0)).erased == []
    assert run(statistics(filled.scope, "ada")).forgotten == 1
    assert lifecycle.restore("bob", ["tea"]).missing == ["tea"]
    assert lifecycle.restore("ada", ["tea"]).restored == ["tea"]
    after = memory.get_memory("ada", "tea")
    assert after
    known = before["tea"]
    if isinstance(filled.store, MemoryStore):
        assert (after.created_at, after.updated_at) == (known.created_at, known.updated_at)
    assert (after.value, after.metadata) == (known.value, known.metadata)
    assert [one.id for one in memory.recall_memories("ada", "green tea", 1)] == ["tea"]
    assert memory.why("ada", "tea").removed is None
    assert lifecycle.forgotten("ada") == []


def test_after_the_window_nothing_is_left(filled: AgentMemoryStoreService, clock: FrozenClock):
    memory, lifecycle = filled.sync, MemoryLifecycle(filled).sync
    memory.update_memory("ada", "tea", "black tea")
    memory.delete_memory("ada", "tea")
    clock.advance(7 * DAY)
    assert lifecycle.forgotten("ada") == []
    assert lifecycle.restore("ada").restored == []
    assert lifecycle.restore("ada", ["tea"]).missing == ["tea"]
    assert memory.why("ada", "tea").removed is None
    if isinstance(filled.store, MemoryStore):
        run(filled.store.engine.remove_expired())
    else:  # such a store removes nothing by itself: the next deletion does
        memory.delete_memory("ada", memory.save_memory("ada", "another", "facts"))
        filled.scope.engine.flush()
    assert " tea" not in stored(filled)


def test_on_other_stores_forgetting_erases_it_too(filled: AgentMemoryStoreService, clock: FrozenClock):
    memory = filled.sync
    memory.delete_memory("ada", "tea")
    clock.advance(7 * DAY)
    MemoryLifecycle(filled).sync.forget("ada")
    if isinstance(filled.store, MemoryStore):
        run(filled.store.engine.remove_expired())
    assert "green tea" not in stored(filled)


@pytest.mark.parametrize("deleted_first", [False, True])
def test_erasing_is_at_once_and_for_ever(filled: AgentMemoryStoreService, deleted_first: bool):
    memory = filled.sync
    memory.update_memory("ada", "tea", "black tea")
    if deleted_first:
        memory.delete_memory("ada", "tea")
    assert memory.delete_memory("ada", "tea", erase=True)
    assert not memory.delete_memory("ada", "tea", erase=True)
    assert " tea" not in stored(filled)
    assert MemoryLifecycle(filled).sync.restore("ada", ["tea"]).missing == ["tea"]


@pytest.mark.parametrize("how", ["purge", "category", "delete all", "delete type"])
def test_purging_takes_all_of_it(filled: AgentMemoryStoreService, how: str):
    memory = filled.sync
    memory.save_memory("ada", "white tea", "facts", memory_id="white")
    for key in ("tea", "white"):
        memory.update_memory("ada", key, f"{key} changed tea")
    memory.delete_memory("ada", "tea")
    match how:
        case "purge":
            purge_user_memories(filled.store, "ada")
        case "category":
            purge_user_memories(filled.store, "ada", "semantic")
        case "delete all":
            memory.delete_user_memories("ada")
        case _:
            memory.delete_user_memories("ada", "facts")
    assert " tea" not in stored(filled)


def test_the_user_sets_the_time(timed_store: BaseStore, clock: FrozenClock):
    memory = AgentMemoryStoreService(timed_store, clock=clock, deleted_days=0).sync
    memory.save_memory("ada", "green tea", memory_id="tea")
    memory.update_memory("ada", "tea", "black tea")
    memory.delete_memory("ada", "tea")
    assert " tea" not in repr(list(memory.scope.engine.backend.inspect("ada")))
    for wrong in (-1, 1e9):
        with pytest.raises(InvalidInput, match="deleted_days"):
            AgentMemoryStoreService(timed_store, deleted_days=wrong)


def test_replaced_texts_can_be_read(filled: AgentMemoryStoreService, clock: FrozenClock):
    """An update left nothing of the earlier text."""
    memory, lifecycle = filled.sync, MemoryLifecycle(filled).sync
    for text in ("black tea", "white tea"):
        memory.update_memory("ada", "tea", text)
        clock.advance(DAY)
    memory.update_memory("ada", "tea", topic="drinks", category="episodic")
    texts = ["green tea", "black tea"]
    assert [one.content for one in memory.why("ada", "tea").earlier] == texts
    history = memory.get_memory_history("ada", "tea")
    assert [one.content for one in history] == [*texts, "white tea"]
    assert history[0].value["tags"] == ["hot"]
    assert history[0].version < history[1].version < history[2].version
    assert lifecycle.forgotten("ada") == []
    assert lifecycle.restore("ada").restored == []
    memory.delete_memory("ada", "tea")
    assert [one.content for one in memory.why("ada", "tea").earlier] == texts
    lifecycle.restore("ada", ["tea"])
    assert [one.content for one in memory.get_memory_history("ada", "tea")] == [*texts, "white tea"]
    clock.advance(5 * DAY)
    assert [one.content for one in memory.why("ada", "tea").earlier] == ["black tea"]
    clock.advance(DAY)
    assert memory.why("ada", "tea").earlier == []


def test_of_many_texts_the_newest_are_kept(sqlite_url: str, clock: FrozenClock):
    with open_store(sqlite_url, embeddings=None, clock=clock) as store:
        memory = AgentMemoryStoreService(store, clock=clock, max_content_bytes=200_000).sync
        for key, size, end in (("short", 10, 55), ("long", 60_000, 10)):
            memory.save_memory("ada", "0", memory_id=key)
            for number in range(1, end):
                memory.update_memory("ada", key, f"{number}{' x' * (size // 2)}")
        kept = {key: [one.content.split()[0] for one in memory.why("ada", key).earlier] for key in ("short", "long")}
        assert kept == {"short": [str(n) for n in range(4, 54)], "long": ["6", "7", "8"]}


def test_an_id_that_is_used_again(filled: AgentMemoryStoreService):
    """The deleted memory waits until its id is free; an update of the other one keeps its text."""
    memory, lifecycle = filled.sync, MemoryLifecycle(filled).sync
    memory.delete_memory("ada", "tea")
    memory.save_memory("ada", "coffee", "facts", memory_id="tea")
    assert lifecycle.restore("ada", ["tea"]).taken == ["tea"]
    by_undo = run(restore_archived(filled.scope, "ada", ["tea"], deleted=False))
    assert by_undo.missing == ["tea"]  # undoing a session brings back what was forgotten, not what somebody deleted
    memory.update_memory("ada", "tea", "cocoa")
    assert [one.content for one in memory.why("ada", "tea").earlier] == ["green tea", "coffee"]
    assert lifecycle.forgotten("ada") == []


def test_agents_keep_what_they_delete_as_long_as_the_settings_say():
    """The setting did not reach the middleware of an agent without a service of its own."""
    with open_store("memory://", embeddings=None) as store:
        middleware = MemoryMiddleware.from_settings(MemorySettings(deleted_days=0))
        assert middleware._binding.scope(store).kept_until is None


def test_what_quotes_an_erased_memory_of_the_same_message_goes_with_it(sqlite_url: str) -> None:
    told = MemorySource(origin=Origin.USER, message_ids=("m1",))
    with open_store(sqlite_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        home = service.save_memory("ada", "I live in Rome", "facts", source=told)
        quoted = service.save_memory("ada", "Ada said: I live in Rome", "interaction", source=told)
        other = service.save_memory("ada", "I have a kiln", "facts", source=told)
        done: Any = service.delete_memory("ada", home, erase=True)
        assert (done, done.derived, repr(done)) == (True, (quoted,), f"Erased(derived=['{quoted}'])")
        assert [one.id for one in service.list_memories("ada")[0]] == [other]
