"""Each setting of the environment changes what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from support import HangingEmbeddings

from inference_core import (
    AgentMemoryStoreService,
    ContextBuilder,
    MemoryLifecycle,
    MemoryMiddleware,
    MemorySource,
    MemoryStore,
    Origin,
    get_memory_tools,
    open_configured_store,
)
from inference_core.embeddings.local import FINGERPRINT
from inference_core.errors import (
    ConfigurationError,
    ConfirmationNeeded,
    DeadlineExceeded,
    InvalidInput,
    QuotaExceeded,
    StoreUnavailable,
)
from inference_core.services.context_builder import Memories
from inference_core.settings import MemorySettings
from inference_core.testing import ScriptedChatModel, call_tool

U = "ada"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", "memory://")
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Opens the store of the environment with one more variable."""
    stores: list[MemoryStore] = []

    def open_with(name: str, value: str, **options: Any) -> MemoryStore:
        monkeypatch.setenv(f"AGENT_MEMORY_{name}", value)
        stores.append(open_configured_store(MemorySettings(), **options))
        return stores[-1]

    yield open_with
    for store in stores:
        store.close()


def test_the_store(opened: Any, tmp_path: Path):
    opened("STORE_URL", f"sqlite:///{tmp_path}/mine.db")
    assert (tmp_path / "mine.db").is_file()


def test_the_encryption_key(opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", f"file:///{tmp_path}/mine")
    key = "5ca1ab1e" * 8
    AgentMemoryStoreService(opened("ENCRYPTION_KEY", key)).sync.save_memory(U, "canary")
    assert not any(b"canary" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert key not in repr(MemorySettings())
    for other in ("ab" * 32, ""):
        with pytest.raises(ConfigurationError, match="encrypted"):
            opened("ENCRYPTION_KEY", other)
    assert AgentMemoryStoreService(opened("ENCRYPTION_KEY", key)).sync.list_memories(U)[1] == 1


def test_the_embeddings(opened: Any):
    assert opened("EMBEDDINGS", "none").engine.embedder is None
    assert opened("EMBEDDINGS", "local").engine.embedder.fingerprint == FINGERPRINT


def test_late_interaction(opened: Any):
    assert opened("LATE_INTERACTION", "true").engine.late_interaction
    assert not opened("LATE_INTERACTION", "false").engine.late_interaction


def test_access_counts(opened: Any):
    store = opened("ACCESS_COUNTS", "false")
    service = AgentMemoryStoreService.from_settings(MemorySettings(), store).sync
    service.save_memory(U, "tea")
    service.recall_memories(U, "tea")
    middleware = MemoryMiddleware.from_settings(MemorySettings(), user_id=U)
    agent: Any = create_agent(ScriptedChatModel(turns=["ok"]), store=store, middleware=[middleware])
    assert agent.invoke({"messages": [("user", "tea")]})["memories_recalled"] == 1
    assert MemoryLifecycle(AgentMemoryStoreService(store)).sync.usage(U)[0].count == 0


def test_the_size_of_the_indexes(opened: Any):
    store = opened("INDEX_MB", "1")
    indexes = store.engine._indexes
    assert indexes._max_bytes + indexes.rows._max_bytes == 1024 * 1024
    assert indexes._max_bytes > 4 * indexes.rows._max_bytes > 0


def test_the_largest_content(opened: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MEMORY_MAX_CONTENT_BYTES", "10")
    store = opened("MAX_RESULTS", "2")
    service = AgentMemoryStoreService.from_settings(MemorySettings(), store).sync
    with pytest.raises(InvalidInput):
        service.save_memory(U, "eleven char")
    for number in range(3):
        service.save_memory(U, f"tea {number}")
    assert len(service.recall_memories(U, "tea")) == 2


MAPS = "Has a shop in Lisbon for old maps and books"
ASKED = "Where in Lisbon does she live?"


def by_recall(service: AgentMemoryStoreService) -> str:
    found = service.sync.recall_memories(U, ASKED, explain=True, backfill=True)
    assert {one.content for one, why in found.left_out if why == "below min_relevance"} == {MAPS, "Keeps bees"}
    return str([one.content for one in found])


def by_middleware(service: AgentMemoryStoreService) -> str:
    model = ScriptedChatModel(turns=["ok"])
    agent: Any = create_agent(model, middleware=[MemoryMiddleware(service, user_id=U, engineer=None)])
    agent.invoke({"messages": [("user", ASKED)]})
    return str(model.requests)


def by_tool(service: AgentMemoryStoreService) -> str:
    (tool,) = get_memory_tools(service, user_id=U, include_tools=["recall_memories_store"])
    return tool.invoke({"query": ASKED})


def by_builder(service: AgentMemoryStoreService) -> str:
    return ContextBuilder(service, [Memories()], deadline=20).sync.build(U, ASKED).text


def by_context(service: AgentMemoryStoreService) -> str:
    return service.sync.format_context_for_prompt(U, ASKED)


@pytest.mark.parametrize("told", [by_recall, by_middleware, by_tool, by_builder, by_context])
def test_the_least_relevance(opened: Any, told: Callable[[AgentMemoryStoreService], str]):
    """Guards that one threshold holds wherever a question is answered; pinned memories and blank queries pass."""
    store = opened("MIN_RELEVANCE", "0.6")
    service = AgentMemoryStoreService.from_settings(MemorySettings(), store)
    for text in ("Lives in Lisbon", MAPS, "Keeps bees"):
        service.sync.save_memory(U, text, "facts")
    shown = told(service)
    assert ["Lives in Lisbon" in shown, MAPS in shown, "Keeps bees" in shown] == [True, False, False]
    assert len(service.sync.recall_memories(U, "")) == 3
    assert len(service.sync.recall_memories(U, ASKED, min_relevance=0.0)) == 2


@pytest.mark.parametrize("least", [-0.1, 1.5, float("nan"), "0.3", True])
def test_a_least_relevance_that_makes_no_sense(opened: Any, least: Any):
    with pytest.raises(ConfigurationError, match="min_relevance must be a number from 0 to 1"):
        MemoryMiddleware(min_relevance=least)
    service = AgentMemoryStoreService(opened("MAX_RESULTS", "5")).sync
    with pytest.raises(InvalidInput, match="min_relevance must be a number from 0 to 1"):
        service.recall_memories(U, "tea", min_relevance=least)


def test_the_model_for_media(opened: Any):
    store = opened("MEDIA_MODEL", "openai:gpt-5-mini")
    service = AgentMemoryStoreService.from_settings(MemorySettings(), store)
    assert service.scope.media_model == "openai:gpt-5-mini"
    picture = {"type": "image", "url": "https://x.example/cat.png"}
    assert service.sync.add_messages(U, [HumanMessage([picture])]) == 1


def test_categories_to_confirm(opened: Any):
    store = opened("CONFIRM", "procedural, semantic")
    service = AgentMemoryStoreService.from_settings(MemorySettings(), store).sync
    middleware = MemoryMiddleware.from_settings(MemorySettings(), user_id=U)
    turns = [call_tool("save_memory_store", content="Be brief", memory_type=kind) for kind in ("skill", "context")]
    agent: Any = create_agent(ScriptedChatModel(turns=[*turns, "ok"]), store=store, middleware=[middleware])
    agent.invoke({"messages": [("user", "Be brief")]})
    with pytest.raises(ConfirmationNeeded):
        service.save_memory(U, "Lives in Rome", "facts", source=MemorySource(origin=Origin.AGENT))
    assert {one.document.content for one in service.list_pending(U)} == {"Be brief", "Lives in Rome"}
    assert [one.memory_type for one in service.list_memories(U)[0]] == ["context"]


def test_the_time_for_an_operation(opened: Any, monkeypatch: pytest.MonkeyPatch):
    store = opened("TIMEOUT", "0.05")
    service = AgentMemoryStoreService.from_settings(MemorySettings(), store).sync

    def hangs(*_: object) -> list[object]:
        time.sleep(0.4)
        return []

    monkeypatch.setattr(store.engine.backend, "get", hangs)
    with pytest.raises((DeadlineExceeded, StoreUnavailable)):
        service.get_memory(U, "m-1")


def test_the_time_that_a_reply_waits(opened: Any, monkeypatch: pytest.MonkeyPatch):
    model = HangingEmbeddings(120.0)
    store = opened("RECALL_TIMEOUT", "2", embeddings=model)
    AgentMemoryStoreService(store).sync.list_memories(U)
    middleware = MemoryMiddleware.from_settings(MemorySettings(), user_id=U)
    agent: Any = create_agent(ScriptedChatModel(turns=["ok"]), store=store, middleware=[middleware])
    result = agent.invoke({"messages": [("user", "tea")]})
    assert result["memory_status"] == "lexical"
    assert result["memory_recall_latency_ms"] < 30_000
    model.over.set()


@pytest.mark.parametrize(("name", "value"), [("AUTO_RECALL", "false"), ("ENABLED", "false")])
def test_recall_can_be_switched_off(opened: Any, name: str, value: str):
    store = opened(name, value)
    middleware = MemoryMiddleware.from_settings(MemorySettings(), user_id=U)
    agent: Any = create_agent(ScriptedChatModel(turns=["ok"]), store=store, middleware=[middleware])
    assert agent.invoke({"messages": [("user", "tea")]})["memory_status"] == "off"
    assert bool(middleware.tools) is (name == "AUTO_RECALL")


@pytest.mark.parametrize(("name", "limit"), [("MAX_MEMORIES", "1"), ("MAX_BYTES", "400"), ("WRITES_PER_MINUTE", "1")])
def test_the_quota(opened: Any, name: str, limit: str):
    service = AgentMemoryStoreService(opened(name, limit)).sync
    service.save_memory(U, "First")
    with pytest.raises(QuotaExceeded):
        service.save_memory(U, "Second")
