"""One user's memory in four words, sync and async, on every kind of store."""

from __future__ import annotations

import inspect
from typing import Any, cast, get_type_hints
from uuid import UUID, uuid4

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemory, AgentMemoryStoreService, MemoryStore, UserMemory, open_store
from inference_core.errors import InvalidId
from inference_core.memory.record import RecalledMemories

WORDS = ("add", "search", "all", "update", "delete")


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


@pytest.mark.parametrize("user", ["", None, 5.0, True])
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


@pytest.mark.parametrize("user", [UUID("550e8400-e29b-41d4-a716-446655440000"), 42])
def test_ids_may_be_uuids_and_integers(user: Any):
    """Applications have such keys in their tables of users and sessions."""
    with open_store("memory://", embeddings=None) as store:
        memory = store.memory(user)
        one = memory.add("Has a kiln", "facts", session_id=user)
        assert [found.id for found in store.memory(str(user)).search("kiln", session_id=user)] == [one]
        assert memory.update(one, "Has two kilns")
        assert [found.content for found in memory.all()] == ["Has two kilns"]
        service = AgentMemoryStoreService(store).sync
        assert service.add_messages(user, [("user", "hello")], session_id=user) == 1
        assert service.list_memories(user, session_id=str(user))[1] == 1
        conversation = AgentMemory(store, user_id=user)
        conversation.update(user, ("user", "hello"))
        assert [message.text for message in conversation.get(str(user)).messages] == ["hello"]
        key = uuid4()
        assert service.save_memory(user, "Has a wheel", memory_id=cast("str", key)) == str(key)


async def test_a_memory_can_be_updated():
    with open_store("memory://", embeddings=None) as store:
        memory = store.memory("ada")
        one = await memory.aadd("Has a kiln")
        assert await memory.aupdate(one, topic="clay", expected_version=1)
        assert not memory.update("none", "x")
        (found,) = memory.all()
        assert found.topic == "clay"
        assert repr(found) == f"MemoryStoreDocument('{one}', general, 'Has a kiln')"
        assert repr(store) == "MemoryStore(InMemoryBackend)"
        assert repr(memory) == "UserMemory(MemoryStore(InMemoryBackend), user_id='ada')"
        service = AgentMemoryStoreService(store, agent_name="planner")
        assert repr(service) == "AgentMemoryStoreService(MemoryStore(InMemoryBackend), agent_name='planner')"
        memory.update(one, "x" * 1_000)
        assert len(repr(memory.all())) < 250
