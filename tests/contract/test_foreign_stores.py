"""LangGraph's own stores under the service: what works, and which are refused and why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryMiddleware
from inference_core.errors import ConfigurationError
from inference_core.stores.backends import unsafe
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BaseStore]:
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        await store.setup()
        yield store


async def test_an_async_store_serves_the_service(store: BaseStore) -> None:
    service = AgentMemoryStoreService(store, embeddings=HashingEmbeddings(), clock=FrozenClock())
    first = await service.save_memory("ada@example.com", "Likes green tea", "preferences")
    await service.save_memory("ada@example.org", "Likes black coffee", "preferences")
    assert [hit.id for hit in await service.recall_memories("ada@example.com", "tea or coffee?")] == [first]
    assert await service.update_memory("ada@example.com", first, "Likes white tea")
    found, total = await service.list_memories("ada@example.com")
    assert ([one.content for one in found], total) == (["Likes white tea"], 1)
    assert found[0].created_at == FrozenClock().now()
    assert await service.delete_memory("ada@example.com", first)
    assert await service.recall_memories("ada@example.com", "tea") == []
    assert (await service.count_memories("ada@example.org"))["total"] == 1


async def test_an_async_store_serves_an_agent(store: BaseStore) -> None:
    turns: Any = [call_tool("save_memory_store", content="likes tea", memory_type="preferences"), "noted", "tea"]
    model = ScriptedChatModel(turns=turns)
    agent: Any = create_agent(model, store=store, middleware=[MemoryMiddleware(recall_timeout=5)])
    for text in ("I like tea", "what do I like?"):
        result = await agent.ainvoke({"messages": [("user", text)]}, context={"user_id": "ada"})
    assert "likes tea" in str(model.requests[-1][0].content)
    assert result["memory_status"] == "lexical"


DISTRIBUTIONS = ("langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite")


class OfRedis(InMemoryStore):
    __module__ = "langgraph.store.redis.base"


class OfPostgres(InMemoryStore):
    __module__ = "langgraph.store.postgres.base"


class Unrelated(InMemoryStore):
    __module__ = "langgraph.store.redistribution"


@pytest.mark.parametrize(
    ("store_class", "installed", "match"),
    [
        (OfRedis, "9.9.9", "RedisStore looks namespaces up as words"),
        (OfPostgres, "3.1.0", r"langgraph-checkpoint-postgres 3\.1\.0 .*CVE-2026-71433.*>=3\.1\.1"),
        (OfPostgres, "2.0.23rc1", "CVE-2026-71433"),
    ],
    ids=["redis", "postgres", "older"],
)
def test_stores_that_mix_users_up_are_refused(
    monkeypatch: pytest.MonkeyPatch, store_class: type[BaseStore], installed: str, match: str
) -> None:
    monkeypatch.setattr(unsafe, "version", dict.fromkeys(DISTRIBUTIONS, installed).__getitem__)
    with pytest.raises(ConfigurationError, match=match):
        AgentMemoryStoreService(store_class())


@pytest.mark.parametrize("installed", ["3.1.1", "3.2.0", "10.0", None])
def test_safe_versions_are_taken(monkeypatch: pytest.MonkeyPatch, installed: str | None) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise unsafe.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(unsafe, "version", version)
    for store_class in (OfPostgres, Unrelated):
        unsafe.check_safe(store_class())
