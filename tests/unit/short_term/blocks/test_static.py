"""What an application knows from the start."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from short_term_support import in_threads

from inference_core import AgentMemoryStoreService, MemoryStore, StaticMemory
from inference_core.errors import ConfigurationError, InvalidId, InvalidMemory, ReadOnlyMemory, VersionConflict
from inference_core.memory.namespaces import encode_label, global_namespace
from inference_core.services.operations import save
from inference_core.short_term.blocks.memory import scope_of
from inference_core.stores.engine import StoreEngine

FACTS = [f"Rule {number} of the house" for number in range(40)]


def contents(block: StaticMemory, message: Any = None) -> list[str]:
    return [document.content for document in block.get("s1", message)]


def test_it_holds_its_facts_in_their_order(store: MemoryStore):
    facts: list[Any] = ["b", {"id": "france", "content": "Paris"}, {"key": "days", "value": 3}, {"any": ["thing"]}, 7]
    block = StaticMemory(facts, store)
    assert contents(block) == ["b", "Paris", "days: 3", '{"any": ["thing"]}', "7"]
    assert [one.id for one in block.get("anybody's")][1:3] == ["france", "days"]


def test_loading_twice_writes_once(store: MemoryStore):
    StaticMemory(FACTS, store).load()
    before = [(one.id, one.updated_at) for one in StaticMemory(None, store).get("s1")]
    again = StaticMemory(FACTS, store)
    again.load()
    again.load()
    assert [(one.id, one.updated_at) for one in again.get("s1")] == before


def test_a_newer_version_replaces_the_older_one(store: MemoryStore):
    StaticMemory([{"id": "a", "content": "old"}, "gone"], store).load()
    assert contents(StaticMemory(["first", {"id": "a", "content": "new"}], store)) == ["first", "new"]
    assert contents(StaticMemory(None, store)) == ["first", "new"]
    assert contents(StaticMemory(["else"], store, name="rules")) == ["else"]


async def test_it_can_be_loaded_asynchronously(store: MemoryStore):
    block = StaticMemory(["a"], store)
    await block.aload()
    assert [one.content for one in await StaticMemory(None, store).aget("s1")] == ["a"]


def test_if_they_are_too_many_those_that_fit_are_recalled(store: MemoryStore):
    block = StaticMemory([*FACTS, "Zebras are striped"], store, max_tokens=50)
    found = contents(block, "Which animals are striped?")
    assert found[0] == "Zebras are striped"
    assert sum(map(len, found)) <= 200


def test_nobody_changes_it(store: MemoryStore):
    block = StaticMemory(["a"], store)
    with pytest.raises(ReadOnlyMemory, match=r"^Static memory does not support update operation$"):
        block.update("s1", "b")
    with pytest.raises(ReadOnlyMemory, match=r"^Static memory does not support delete operation$"):
        block.delete("s1")
    assert contents(block) == ["a"]


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1, max_size=40) | st.sampled_from(["~global", "global", "~", "~~global", "langgraph"]))
def test_no_user_id_leads_to_it(user: str):
    first = global_namespace("semantic", "static_memory")[0]
    try:
        assert encode_label(user) != first
    except InvalidId:
        assert "\x00" in user or not user.isprintable()


def test_users_do_not_see_it_among_their_memories(store: MemoryStore):
    StaticMemory(["a"], store).load()
    service = AgentMemoryStoreService(store)
    for user in ("~global", "global", "anyone"):
        assert service.sync.count_memories(user)["total"] == 0


@pytest.mark.parametrize("fact", ["", {"content": None}, {"content": "a", "id": "b c"}, "a\x00"], ids=range(4))
def test_what_cannot_be_stored_is_refused(fact: Any):
    with pytest.raises(InvalidMemory):
        StaticMemory([fact])


def test_it_needs_a_store():
    with pytest.raises(ConfigurationError, match="StaticMemory has no store"):
        StaticMemory(["a"]).load()


def test_threads_may_load_it_at_once(store: MemoryStore):
    blocks = [StaticMemory(FACTS, store) for _ in range(8)]
    assert in_threads(*(lambda block=block: contents(block) for block in blocks)) == [FACTS] * 8


def test_a_writer_who_never_wins_gives_up(store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    async def losing(self: StoreEngine, batch: Any, **options: Any) -> Any:
        raise VersionConflict("changed")

    monkeypatch.setattr(save, "ATTEMPTS", 2)
    monkeypatch.setattr(type(scope_of(store).engine), "write", losing)
    with pytest.raises(VersionConflict):
        StaticMemory(["a"], store).load()
