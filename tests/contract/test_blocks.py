"""Blocks and agent memory do the same on every database, sync and async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agent_support import FACES
from langchain_core.messages import AnyMessage
from langgraph.store.base import BaseStore
from short_term_support import USER, check_valid, dialogue, extracting, marker, markers, model_of, texts

from inference_core import (
    AgentMemory,
    AgentMemoryStoreService,
    ExtractiveMemory,
    FlushToLongTerm,
    StaticMemory,
    Summarize,
    VectorMemory,
)
from inference_core.errors import ReadOnlyMemory

Call = Callable[..., Awaitable[Any]]
TALK = dialogue(5)


@pytest.fixture(params=FACES)
def call(request: pytest.FixtureRequest) -> Call:
    """Calls a method of a block or an agent memory, sync or async."""

    async def called(memory: Any, name: str, *args: Any, **options: Any) -> Any:
        if request.param == "sync":
            return getattr(memory, name)(*args, **options)
        return await getattr(memory, f"a{name}")(*args, **options)

    return called


def contents(documents: list[Any]) -> list[str]:
    return [document.content for document in documents]


async def test_blocks_alone(any_store: BaseStore, call: Call):
    service = AgentMemoryStoreService(any_store)
    static = StaticMemory(["Water is wet", "Fire is hot"], service)
    await call(static, "load")
    assert contents(await call(static, "get", "s1")) == ["Water is wet", "Fire is hot"]
    with pytest.raises(ReadOnlyMemory):
        await call(static, "update", "s1", "hi")
    extractive = ExtractiveMemory(model_of(extracting), service, user_id=USER)
    vector = VectorMemory(service, user_id=USER)
    for message in TALK[:2]:
        for session in ("s1", "s2"):
            await call(extractive, "update", session, message)
            await call(vector, "update", session, message)
            await call(vector, "update", session, message)
    assert contents(await call(extractive, "get", "s1", marker(1)))[0] == f"Knows {marker(1)}"
    assert contents(await call(vector, "get", "s1", marker(0))) == [TALK[0].text]
    assert service.sync.count_memories(USER) == {"semantic": 2, "episodic": 4, "procedural": 0, "total": 6}
    for block in (extractive, vector):
        await call(block, "delete", "s1")
    assert service.sync.count_memories(USER) == {"semantic": 2, "episodic": 2, "procedural": 0, "total": 4}
    for block in (extractive, vector):
        await call(block, "delete", "s2")
    assert service.sync.count_memories(USER)["total"] == 0


async def test_agent_memory_with_all_of_them(any_store: BaseStore, call: Call):
    service = AgentMemoryStoreService(any_store)
    blocks = [StaticMemory(["Water is wet"]), ExtractiveMemory(model_of(extracting)), VectorMemory()]
    strategies = [FlushToLongTerm(blocks), Summarize(model_of("They talked."), max_summary_tokens=10)]
    memory = AgentMemory(service, overflow=strategies, max_tokens=240, user_id=USER)
    await call(memory, "update", "s1", ("system", "be brief"))
    for message in TALK:
        assert await call(memory, "update", "s1", message) is None
    content = await call(memory, "get", "s1", f"what was {marker(0)}?")
    check_valid(content.messages)
    shown: list[AnyMessage] = content.messages
    assert texts(shown)[:2] == ["be brief", "CONVERSATION SUMMARY: They talked."]
    assert markers(shown) == {marker(8), marker(9)}
    assert contents(content.static_facts) == ["Water is wet"]
    assert contents(content.extracted_facts)[0] == f"Knows {marker(0)}"
    assert contents(content.vector_matches)[0] == TALK[0].text
    assert service.sync.count_memories(USER)["total"] == 16
    await call(memory, "delete", "s1")
    assert (await call(memory, "get", "s1")).messages == []
    assert service.sync.count_memories(USER)["total"] == 0
