"""The same words are stored once: a save finds what was saved before by the id that follows from it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from langgraph.store.base import BaseStore

from inference_core import AgentMemoryStoreService, MemorySource, get_memory_tools
from inference_core.memory.trust import Origin

U = "ada"
TEA = "Prefers tea"


@pytest.fixture
def service(any_store: BaseStore) -> AgentMemoryStoreService:
    return AgentMemoryStoreService(any_store)


def test_a_repetition_gives_the_id_that_was_there(service: AgentMemoryStoreService) -> None:
    """Three saves of one sentence were three memories, and the profile told all of them."""
    first = service.sync.save_memory(U, TEA, "preferences", session_id="monday")
    again = [service.sync.save_memory(U, f" {TEA}\n", "preferences", session_id=day) for day in ("monday", "tuesday")]
    assert [first, *again] == [first] * 3
    assert [one.was_stored for one in (first, *again)] == [False, True, True]
    assert service.sync.count_memories(U)["total"] == 1


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("facts", {"memory_type": "preferences"}),
        ("facts", {"content": "Prefers green tea"}),
        ("facts", {"valid_from": datetime(2026, 1, 1, tzinfo=UTC)}),
        ("facts", {"expires_at": datetime(2100, 1, 1, tzinfo=UTC)}),
        ("interaction", {"session_id": "tuesday"}),
    ],
    ids=["type", "words", "beginning", "end", "event"],
)
def test_what_is_another_memory_is_stored(service: AgentMemoryStoreService, kind: str, other: dict[str, Any]) -> None:
    given: dict[str, Any] = {"content": TEA, "memory_type": kind, "session_id": "monday"}
    ids = [service.sync.save_memory(U, **given), service.sync.save_memory(U, **(given | other))]
    assert len(set(ids)) == service.sync.count_memories(U)["total"] == 2
    assert service.sync.save_memory("bob", **given) not in ids


def test_what_is_new_of_it_is_added(service: AgentMemoryStoreService) -> None:
    web = MemorySource(origin=Origin.WEB)
    key = service.sync.save_memory(U, TEA, tags=["drinks"], extra_metadata={"a": 1}, source=web)
    assert service.sync.save_memory(U, TEA, tags=["hot"], extra_metadata={"b": 2}, topic="tea", pinned=True) == key
    memory = service.sync.get_memory(U, key)
    assert memory is not None
    assert memory.value["tags"] == ["drinks", "hot"]
    assert memory.metadata == {"a": 1, "b": 2}
    assert (memory.topic, memory.value["pinned"], memory.value["trust"]) == ("tea", True, 2)


def test_a_repetition_overwrites_no_change_made_meanwhile(
    service: AgentMemoryStoreService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a repetition added was written over whatever stood there by then: an update in between was lost."""
    key = service.sync.save_memory(U, TEA)
    ask = service.scope.engine.ask

    async def ask_early(body: Any) -> Any:
        found = await ask(body)
        monkeypatch.setattr(service.scope.engine, "ask", ask)
        service.sync.update_memory(U, key, topic="drinks")
        return found

    monkeypatch.setattr(service.scope.engine, "ask", ask_early)
    assert service.sync.save_memory(U, TEA, tags=["hot"]) == key
    memory = service.sync.get_memory(U, key)
    assert memory is not None
    assert (memory.topic, memory.value["tags"]) == ("drinks", ["hot"])


def test_what_holds_no_more_is_no_repetition(service: AgentMemoryStoreService) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    assert len({service.sync.save_memory(U, TEA, expires_at=past) for _ in range(2)}) == 2


def test_an_agents_repetition_does_not_vouch_for_a_page(service: AgentMemoryStoreService) -> None:
    key = service.sync.save_memory(U, TEA, source=MemorySource(origin=Origin.WEB))
    assert service.sync.save_memory(U, TEA, source=MemorySource(origin=Origin.AGENT)) != key
    memory = service.sync.get_memory(U, key)
    assert memory is not None
    assert memory.value["source"]["origin"] == "web"


def test_what_was_changed_or_deleted_is_no_repetition(service: AgentMemoryStoreService) -> None:
    changed = service.sync.save_memory(U, TEA)
    service.sync.update_memory(U, changed, "Prefers cocoa")
    second = service.sync.save_memory(U, TEA)
    assert second != changed
    assert service.sync.save_memory(U, TEA) == second
    service.sync.delete_memory(U, second)
    assert not service.sync.save_memory(U, TEA).was_stored
    assert service.sync.count_memories(U)["total"] == 2


async def test_two_at_once_do_not_fail(service: AgentMemoryStoreService) -> None:
    ids = await asyncio.gather(*(service.save_memory(U, TEA) for _ in range(10)))
    assert service.sync.count_memories(U)["total"] == len(set(ids)) <= 10


def test_the_tool_says_so(service: AgentMemoryStoreService) -> None:
    (save,) = get_memory_tools(service, U, include_tools=["save_memory_store"])
    first, second = (save.invoke({"content": TEA}) for _ in range(2))
    assert second == first.replace("saved", "already stored")


def test_a_memory_that_was_moved_stays_alone_under_its_id(service: AgentMemoryStoreService) -> None:
    """The id that follows from the words was free in the old scope, so that a second memory was stored under it."""
    moved = service.sync.save_memory(U, TEA)
    service.sync.update_memory(U, moved, category="procedural")
    again = service.sync.save_memory(U, TEA)
    assert again != moved
    assert service.sync.save_memory(U, TEA) == again
    assert sorted(one.id for one in service.sync.list_memories(U)[0]) == sorted([moved, again])
    assert service.sync.delete_memory(U, moved)
    assert service.sync.get_memory(U, moved) is None


def test_what_took_the_place_of_another_is_found_once_that_is_gone(service: AgentMemoryStoreService) -> None:
    """The first id of the words was free again, so a save stored them a second time beside the memory at the next."""
    changed = service.sync.save_memory(U, TEA)
    service.sync.update_memory(U, changed, "Prefers cocoa")
    second = service.sync.save_memory(U, TEA)
    service.sync.delete_memory(U, changed)
    assert service.sync.save_memory(U, TEA) == second
    assert service.sync.count_memories(U)["total"] == 1
