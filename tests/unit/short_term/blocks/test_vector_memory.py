"""What was said, word for word."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from short_term_support import USER, in_threads, lost_words, mark_count, marker, result, stored_texts

from inference_core import AgentMemoryStoreService, MemoryStore, VectorMemory, open_store
from inference_core.errors import ConfigurationError, InvalidId


@pytest.fixture
def block(store: MemoryStore) -> VectorMemory:
    return VectorMemory(store, user_id=USER)


def test_a_message_is_taken_in_once(store: MemoryStore, block: VectorMemory):
    message = HumanMessage("The zebra is striped", id="m1")
    for _ in range(2):
        block.update("s1", message)
    assert stored_texts(store) == ["The zebra is striped"]
    assert [found.content for found in block.get("s2", "zebra")] == ["The zebra is striped"]
    assert mark_count(store.engine) == 1


def test_what_was_deleted_does_not_come_back(store: MemoryStore, block: VectorMemory):
    message = HumanMessage("The zebra is striped", id="m1")
    block.update("s1", message)
    AgentMemoryStoreService(store).sync.delete_user_memories(USER)
    block.update("s1", message)
    assert stored_texts(store) == []


def test_a_session_can_be_forgotten(store: MemoryStore, block: VectorMemory):
    AgentMemoryStoreService(store).sync.save_memory(USER, "an agent's own", "interaction")
    block.update("s1", HumanMessage("one", id="m1"))
    block.update("s2", HumanMessage("two", id="m2"))
    block.delete("s1")
    block.delete("nobody's")
    assert stored_texts(store) == ["an agent's own", "two"]


def test_a_forgotten_session_may_be_larger_than_a_page(store: MemoryStore, block: VectorMemory):
    for at in range(12):
        block.update(
            "s1", AIMessage("\n\n".join(f"{marker(50 * at + part)} {'x' * 5_000}" for part in range(50)), id=f"m{at}")
        )
    assert len(stored_texts(store)) == 600
    block.delete("s1")
    assert stored_texts(store) == []


def test_an_empty_message_leaves_nothing(store: MemoryStore, block: VectorMemory):
    block.update("s1", HumanMessage(" \n"))
    assert (stored_texts(store), mark_count(store.engine)) == ([], 0)


@pytest.mark.parametrize("name", ["x" * 5_000, "\x01", "\ud800"], ids=["long", "controls", "surrogate"])
def test_names_that_cannot_be_stored_keep_nothing_from_leaving(store: MemoryStore, block: VectorMemory, name: str):
    block.update("\x01", result("a", "The zebra").model_copy(update={"name": name, "id": name}))
    (text,) = stored_texts(store)
    assert text.endswith("The zebra")
    block.delete("\x01")
    assert stored_texts(store) == []


def test_its_results_are_bounded(store: MemoryStore):
    block = VectorMemory(store, user_id=USER, max_results=3, max_tokens=20)
    for at in range(5):
        block.update("s1", HumanMessage(f"zebra number {at} {'word ' * 6}", id=f"m{at}"))
    assert 0 < sum(len(found.content) for found in block.get("s1", "zebra")) <= 80
    assert len(VectorMemory(store, user_id=USER, max_results=3).get("s1", "zebra")) == 3
    assert len(VectorMemory(store, user_id=USER, max_results=3).get("s1")) == 3


def test_messages_of_many_threads_are_all_there_once(store: MemoryStore, block: VectorMemory):
    def update(at: int) -> None:
        for number in range(10):
            block.update("s1", HumanMessage(marker(number), id=f"m{number}"))
            block.update("s1", HumanMessage(marker(100 + 10 * at + number), id=f"t{at}m{number}"))

    assert in_threads(*(lambda at=at: update(at) for at in range(8))) == [None] * 8
    assert len(stored_texts(store)) == 10 + 80
    assert lost_words(map(marker, [*range(10), *range(100, 180)]), block) == set()


def test_alone_it_has_to_know_where_and_whose():
    assert not VectorMemory().has_store
    with pytest.raises(ConfigurationError, match="VectorMemory has no store"):
        VectorMemory(user_id=USER).update("s1", "hi")
    with open_store("memory://", embeddings=None) as store, pytest.raises(ConfigurationError, match="No user"):
        VectorMemory(store).get("s1")
    with pytest.raises(InvalidId):
        VectorMemory(user_id="")
