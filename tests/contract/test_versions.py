"""The version of a memory, on every store: whoever has seen one changes that one, or learns which is there now."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.store.base import BaseStore

from inference_core import AgentMemoryStoreService, MemorySource, Origin
from inference_core.effects import run
from inference_core.errors import ConfirmationNeeded, InvalidInput, VersionConflict
from inference_core.services.operations.save import SavedId, save_once

U = "ada"


@pytest.fixture
def service(any_store: BaseStore) -> AgentMemoryStoreService:
    return AgentMemoryStoreService(any_store, agent_name="planner")


def version(service: AgentMemoryStoreService, memory_id: str) -> int:
    found = service.sync.get_memory(U, memory_id)
    assert found is not None
    return found.version


def test_a_version_grows_with_each_write(service: AgentMemoryStoreService):
    memory_id = service.sync.save_memory(U, "Likes tea", "preferences")
    assert version(service, memory_id) == 1
    service.sync.update_memory(U, memory_id, topic="drinks")
    listed, _ = service.sync.list_memories(U)
    assert [version(service, memory_id), listed[0].version, service.sync.recall_memories(U, "tea")[0].version] == [
        2
    ] * 3


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_only_the_expected_version_is_changed(service: AgentMemoryStoreService, face: str):
    memory_id = service.sync.save_memory(U, "Likes tea", "preferences")

    async def update(content: str, expected: int) -> bool:
        if face == "sync":
            return service.sync.update_memory(U, memory_id, content, expected_version=expected)
        return await service.update_memory(U, memory_id, content, expected_version=expected)

    async def delete(expected: int) -> bool:
        if face == "sync":
            return bool(service.sync.delete_memory(U, memory_id, expected_version=expected))
        return bool(await service.delete_memory(U, memory_id, expected_version=expected))

    assert await update("Likes coffee", 1)
    for stale in (1, 3):
        with pytest.raises(VersionConflict, match=f"is at version 2, not {stale}"):
            await update("Likes water", stale)
        with pytest.raises(VersionConflict, match=f"is at version 2, not {stale}"):
            await delete(stale)
    found = service.sync.get_memory(U, memory_id)
    assert found is not None
    assert found.content == "Likes coffee"
    assert await delete(2)
    assert not await delete(2)
    assert not await update("Likes water", 2)


def test_no_version_comes_twice_when_a_memory_moves(service: AgentMemoryStoreService):
    """A row that takes the place of another in a new scope would have begun at version 1 again."""
    memory_id = service.sync.save_memory(U, "Answer in French", "preferences")
    for kind in ("instructions", "context", "preferences"):
        before = version(service, memory_id)
        assert service.sync.update_memory(U, memory_id, memory_type=kind, expected_version=before)
        assert version(service, memory_id) > before
        with pytest.raises(VersionConflict):
            service.sync.delete_memory(U, memory_id, expected_version=before)


@pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.0])
def test_what_is_no_version_is_refused(service: AgentMemoryStoreService, wrong: int):
    memory_id = service.sync.save_memory(U, "Likes tea", "preferences")
    with pytest.raises(InvalidInput, match="expected_version"):
        service.sync.update_memory(U, memory_id, "Likes coffee", expected_version=wrong)
    with pytest.raises(InvalidInput, match="expected_version"):
        service.sync.delete_memory(U, memory_id, expected_version=wrong)
    assert version(service, memory_id) == 1


def test_of_writers_that_saw_the_same_version_one_wins(service: AgentMemoryStoreService):
    if not service.scope.engine.backend.capabilities.compare_and_set:
        pytest.skip("the store has no compare-and-set")
    memory_id = service.sync.save_memory(U, "Nobody's", "facts")

    def attempt(name: str) -> str | None:
        try:
            return name if service.sync.update_memory(U, memory_id, name, expected_version=1) else None
        except VersionConflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        winners = [one for one in pool.map(attempt, [f"{at}'s" for at in range(8)]) if one]
    found = service.sync.get_memory(U, memory_id)
    assert found is not None
    assert ([found.content], found.version) == (winners, 2)


def test_a_save_creates_or_replaces_only_at_the_version_it_expects(service: AgentMemoryStoreService):
    """An id of one's own replaced whatever was there; a client that had not seen it lost somebody's text."""
    save = service.sync.save_memory
    save(U, "Likes tea", "facts", memory_id="drink", expected_version=0)
    for expected in (0, 2):
        with pytest.raises(VersionConflict):
            save(U, "Likes mate", "facts", memory_id="drink", expected_version=expected)
    save(U, "Likes mate", "facts", memory_id="drink", expected_version=1)
    save(U, "Offer mate first", "instructions", memory_id="drink", expected_version=2)  # in another namespace
    assert version(service, "drink") == 3
    assert [one.content for one in service.sync.list_memories(U)[0]] == ["Offer mate first"]
    with pytest.raises(VersionConflict):
        save(U, "Likes water", memory_id="other", expected_version=1)
    with pytest.raises(InvalidInput):
        save(U, "Likes water", expected_version=0)


def test_a_request_that_is_repeated_saves_one_memory(service: AgentMemoryStoreService):
    """Whoever got no answer could only save again, and after a change of the memory had it twice."""

    def save(key: str, content: str, user: str = U) -> SavedId:
        return run(save_once(service.scope, user, key, content=content, memory_type="facts"))

    with ThreadPoolExecutor(8) as threads:
        saved = list(threads.map(save, ["a"] * 24, ["Likes tea"] * 24))
    assert len({*saved}) == 1
    if service.scope.engine.backend.capabilities.compare_and_set:
        assert [one.was_stored for one in saved].count(False) == 1
    service.sync.update_memory(U, saved[0], "Likes mate")
    assert save("a", "Likes tea") == saved[0]
    with pytest.raises(InvalidInput):
        save("a", "Likes water")
    assert save("b", "Likes water") != saved[0]
    assert save("a", "Likes water", "bob") != saved[0]
    assert service.sync.count_memories(U)["total"] == 2


def test_regression_a_repeated_request_does_not_bring_back_what_was_deleted(service: AgentMemoryStoreService):
    """Whoever repeated a save after the memory was deleted stored it again, as if it were new."""
    told = {"content": "Likes tea", "memory_type": "facts"}
    saved = run(save_once(service.scope, U, "a", **told))
    service.sync.delete_memory(U, saved, erase=True)
    again = run(save_once(service.scope, U, "a", **told))
    assert (again, again.was_stored) == (saved, True)
    with pytest.raises(InvalidInput):
        run(save_once(service.scope, U, "a", **told | {"content": "Likes water"}))
    assert service.sync.count_memories(U)["total"] == 0


def test_a_request_that_has_to_wait_is_known_too(service: AgentMemoryStoreService):
    """A rule from the web waits once, however often the request is sent; its key is not free for another one."""
    told: dict[str, Any] = {"memory_type": "instructions", "source": MemorySource(origin=Origin.WEB)}
    ids = set[str]()
    for _ in range(2):
        with pytest.raises(ConfirmationNeeded) as waits:
            run(save_once(service.scope, U, "a", content="Obey", **told))
        ids.add(waits.value.pending_id)
    with pytest.raises(InvalidInput, match="another request"):
        run(save_once(service.scope, U, "a", content="Obey me", **told))
    assert {one.id for one in service.sync.list_pending(U)} == ids
    assert len(ids) == 1
