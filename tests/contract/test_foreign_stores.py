"""LangGraph's own stores under the service: what works, and which are refused and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from langchain.agents import create_agent
from langgraph.store.base import BaseStore, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryMiddleware
from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.services.user_memories import delete_user_memory_entry, list_user_memories
from inference_core.stores import factory as unsafe
from inference_core.stores.backends import foreign
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

POOL: Any = {"min_size": 1, "max_size": 4}
KINDS = ("memory", "sqlite", "postgres", "postgres-pool")
ASYNC_KINDS = ("async-sqlite", "async-postgres", "async-postgres-pool")
USERS = (
    ("ada@example.com", "ada.example.com"),
    ("a_b", "axb"),
    ("a%", "a"),
    ("ada", "ada.semantic"),
    ("\u00e9", "e\u0301"),
)
Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def langgraphs_own(kind: str, folder: Path) -> AsyncGenerator[BaseStore]:
    """An empty store of LangGraph, without vectors; one of the async kinds is served by the running event loop."""
    pool = POOL if kind.endswith("pool") else None
    async with AsyncExitStack() as stack:
        if kind == "memory":
            yield InMemoryStore()
        elif kind == "sqlite":
            store = stack.enter_context(SqliteStore.from_conn_string(str(folder / "store.db")))
            store.setup()
            yield store
        elif kind == "async-sqlite":
            opened = AsyncSqliteStore.from_conn_string(str(folder / "store.db"))
            yield await ready(await stack.enter_async_context(opened))
        else:
            url = stack.enter_context(postgres_server.fresh_database(is_new=True))
            if kind.startswith("async"):
                connected = AsyncPostgresStore.from_conn_string(url, pool_config=pool)
                yield await ready(await stack.enter_async_context(connected))
            else:
                store = stack.enter_context(PostgresStore.from_conn_string(url, pool_config=pool))
                store.setup()
                yield store


async def ready(store: AsyncSqliteStore | AsyncPostgresStore) -> BaseStore:
    await store.setup()
    return store


@pytest.fixture(params=[*KINDS, *ASYNC_KINDS])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseStore]:
    async with langgraphs_own(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=ASYNC_KINDS)
async def async_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseStore]:
    async with langgraphs_own(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, store: BaseStore) -> Ask:
    """Calls an operation of the service: on the event loop that serves the store, or in another thread."""
    service = AgentMemoryStoreService(store, embeddings=HashingEmbeddings(), clock=FrozenClock())

    async def call(name: str, *args: Any, **options: Any) -> Any:
        if request.param == "async":
            return await getattr(service, name)(*args, **options)
        return await asyncio.to_thread(getattr(service.sync, name), *args, **options)

    return call


async def test_the_service_on_langgraphs_own_stores(ask: Ask) -> None:
    for pair in USERS:
        for user in pair:
            tea, bicycle = texts_of(user)
            assert await ask("save_memory", user, tea, "preferences", memory_id="m-1") == "m-1"
            await ask("save_memory", user, bicycle, "context")
        for user in pair:
            await check_memories(ask, user)
        changed, other = pair
        assert await ask("update_memory", changed, "m-1", "Likes black coffee", topic="drinks") is True
        assert [hit.content for hit in await ask("recall_memories", changed, "coffee", 1)] == ["Likes black coffee"]
        await check_memories(ask, other)
        assert await ask("delete_memory", changed, "m-1") is True
        assert await ask("delete_memory", changed, "m-1") is False
        assert (await ask("count_memories", changed))["total"] == 1
        await check_memories(ask, other)


def texts_of(user: str) -> tuple[str, str]:
    return f"{user!a} likes green tea", f"{user!a} rides a bicycle"


async def check_memories(ask: Ask, user: str) -> None:
    """``user`` has exactly the two memories that were saved."""
    wanted = set(texts_of(user))
    listed, total = await ask("list_memories", user)
    assert ({one.content for one in listed}, total) == (wanted, 2)
    assert {one.created_at for one in listed} == {FrozenClock().now()}
    assert await ask("count_memories", user) == {"semantic": 1, "episodic": 1, "procedural": 0, "total": 2}
    found = await ask("recall_memories", user, "does somebody like green tea?")
    assert (found[0].id, found[0].content) == ("m-1", texts_of(user)[0])
    assert {one.content for one in found} <= wanted
    assert (await ask("get_memory", user, "m-1")).memory_type == "preferences"


async def test_a_key_that_postgresql_cannot_hold_is_not_there(store: BaseStore) -> None:
    await AgentMemoryStoreService(store).save_memory("ada", "Likes green tea")
    namespace = await asyncio.to_thread(lambda: list_user_memories(store, "ada")[0][0]["namespace"])
    assert await asyncio.to_thread(delete_user_memory_entry, store, "ada", namespace, "a\x00b") is False
    assert (await AgentMemoryStoreService(store).count_memories("ada"))["total"] == 1


@pytest.mark.parametrize("wait_seconds", [None, 10.0], ids=["forever", "bounded"])
async def test_the_loop_that_serves_a_store_does_not_wait_for_it(
    async_store: BaseStore, wait_seconds: float | None
) -> None:
    service = AgentMemoryStoreService(async_store, timeout=wait_seconds)
    for _ in range(9):  # more often than a breaker bears
        with pytest.raises(ConfigurationError, match=r"served by the event loop of this thread.* Await"):
            service.sync.save_memory("ada", "Likes green tea")
        with pytest.raises(ConfigurationError, match="served by the event loop"):
            service.sync.recall_memories("ada", "tea")
    assert (await service.count_memories("ada"))["total"] == 0


def test_a_store_whose_loop_has_ended_is_unavailable(tmp_path: Path) -> None:
    async def opened() -> AgentMemoryStoreService:
        async with langgraphs_own("async-sqlite", tmp_path) as store:
            return AgentMemoryStoreService(store)

    service = asyncio.run(opened())
    with pytest.raises(StoreUnavailable, match="AsyncSqliteStore: its event loop is closed"):
        service.sync.save_memory("ada", "Likes green tea")


async def test_an_async_store_serves_an_agent(async_store: BaseStore) -> None:
    turns: Any = [call_tool("save_memory_store", content="likes tea", memory_type="preferences"), "noted", "tea"]
    model = ScriptedChatModel(turns=turns)
    agent: Any = create_agent(model, store=async_store, middleware=[MemoryMiddleware(recall_timeout=5)])
    for text in ("I like tea", "what do I like?"):
        result = await agent.ainvoke({"messages": [("user", text)]}, context={"user_id": "ada"})
    assert "likes tea" in str(model.requests[-1][0].content)
    assert result["memory_status"] == "lexical"


async def test_an_agent_that_blocks_the_loop_of_its_store_answers_without_memory(
    async_store: BaseStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(foreign, "_LOOP_S", 0.2)
    turns: Any = [call_tool("save_memory_store", content="likes tea", memory_type="preferences"), "hello"]
    agent: Any = create_agent(ScriptedChatModel(turns=turns), store=async_store, middleware=[MemoryMiddleware()])
    result = agent.invoke({"messages": [("user", "hello")]}, context={"user_id": "ada"})
    assert (result["memory_status"], result["messages"][-1].content) == ("degraded", "hello")
    assert "Await the asynchronous method" in result["memory_status_reason"]
    (answer,) = (message.content for message in result["messages"] if message.type == "tool")
    assert answer == "✗ Failed to save memory: the memory store does not answer"
    assert "await agent.ainvoke" in caplog.text
    assert (await AgentMemoryStoreService(async_store).count_memories("ada"))["total"] == 0


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


class Leaking(InMemoryStore):
    """Somebody removes a row after each page that is listed."""

    gone = 0

    def batch(self, ops: Any) -> Any:
        ops = list(ops)
        found: Any = super().batch(ops)
        if isinstance(ops[0], SearchOp) and len(found[0]) == foreign._PAGE and self.gone < 2:
            self.delete(found[0][0].namespace, found[0][3].key)
            self.gone += 1
        return found


def test_regression_a_listing_misses_no_row_when_another_one_goes():
    """The rows behind it moved up by one place, and the first of the next page was left out."""
    store = Leaking()
    for number in range(2 * foreign._PAGE + 10):
        store.put(("ada", "semantic"), f"k{number}", {"content": "tea"})
    left = {row.key for row in foreign.ForeignBackend(store)._scan(("ada", "semantic"))}
    assert store.gone == 2
    assert left >= {item.key for item in store.search(("ada", "semantic"), limit=9_999)}
