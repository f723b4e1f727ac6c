"""One user's memory in four words, sync and async, on every kind of store."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, MemoryStore, UserMemory
from inference_core.errors import InvalidId
from inference_core.memory.record import RecalledMemories

WORDS = ("add", "search", "all", "delete")


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return request.param


async def say(face: str, memory: UserMemory, word: str, *args: Any, **options: Any) -> Any:
    if face == "sync":
        return getattr(memory, word)(*args, **options)
    return await getattr(memory, f"a{word}")(*args, **options)


async def test_four_words(any_store: BaseStore, face: str):
    """Guards the shortest way in: a memory is added, found, listed and deleted, and is nobody else's."""
    is_ours = isinstance(any_store, MemoryStore)
    ada = any_store.memory("ada@example.com") if is_ours else UserMemory(AgentMemoryStoreService(any_store), "ada")
    bob = UserMemory(AgentMemoryStoreService(any_store), "bob")
    lives = await say(face, ada, "add", "Ada lives in Lisbon", "facts", topic="home")
    await say(face, ada, "add", "Ada likes short answers", "preferences")
    (found,) = await say(face, ada, "search", "Where does Ada live?", k=1)
    assert (found.id, found.content, found.topic) == (lives, "Ada lives in Lisbon", "home")
    assert [one.content for one in await say(face, ada, "all")] == ["Ada likes short answers", "Ada lives in Lisbon"]
    assert [one.id for one in await say(face, ada, "all", memory_type="facts")] == [lives]
    assert await say(face, bob, "all") == []
    assert await say(face, bob, "delete", lives) is False
    assert await say(face, ada, "delete", lives) is True
    assert [one.content for one in await say(face, ada, "all")] == ["Ada likes short answers"]


def test_it_is_the_services_memory(own_store: MemoryStore):
    """Guards that the words are the service's operations in the agent's scopes, not a second kind of memory."""
    own_store.memory("ada", "planner").add("Never book night flights", "instructions")
    assert own_store.memory("ada").all() == []
    service = AgentMemoryStoreService(own_store, agent_name="planner")
    assert service.sync.count_memories("ada")["procedural"] == 1


@pytest.mark.parametrize("user", ["", None, 5])
def test_who_cannot_be_a_user_is_told_at_once(own_store: MemoryStore, user: Any):
    with pytest.raises(InvalidId):
        own_store.memory(user)


@pytest.mark.parametrize("word", WORDS)
def test_help_shows_no_user(word: str):
    """Guards help() and schemas: a word takes what the service's method takes, less the user."""
    memory = UserMemory(AgentMemoryStoreService(InMemoryStore()), "ada")
    for method in (getattr(memory, word), getattr(memory, f"a{word}")):
        assert "user_id" not in {*inspect.signature(method).parameters, *get_type_hints(method)}
        assert "user_id" not in (method.__doc__ or "")
    assert get_type_hints(memory.search)["return"] is RecalledMemories
