"""The routes of AIRI's memory service: what its client sends, and the fields that it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from server_support import BASE, Served

from inference_core import AgentMemoryStoreService, MemorySettings, open_store
from inference_core.server.airi import AIRI_ROUTES, add_airi
from inference_core.server.app import create_app
from inference_core.server.auth import KeyRing, Permission
from inference_core.server.gate import Access
from inference_core.server.user_routes import ALL_ROUTES

SETTINGS = MemorySettings.model_construct(
    model=("openai:gpt-5-mini",), embeddings="openai:text-embedding-3-small", max_tokens=2_000
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        ring = KeyRing(store.engine, service.scope.clock, 10)
        app = create_app(service, Access(checks=[ring], rate=1e6, burst=10**6), [*ALL_ROUTES, *AIRI_ROUTES])
        add_airi(app, service, SETTINGS)
        yield Served(service, app)


@pytest.fixture
async def client(server: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client("ada") as one:
        yield one


async def test_messages_and_answers_are_taken_in(client: httpx.AsyncClient):
    said = (await client.post("/api/messages", json={"content": "Hi", "platform": "web", "modelName": "m"})).json()
    assert said.keys() == {"id", "content", "platform", "created_at", "modelName"}
    assert (said["content"], said["platform"], said["modelName"], type(said["created_at"])) == ("Hi", "web", "m", int)
    body = {"prompt": "Hi", "response": "Hello", "task": "chat", "modelName": "m"}
    answered = (await client.post("/api/completions", json=body)).json()
    assert answered.keys() == {"id", "prompt", "response", "platform", "created_at", "modelName"}
    assert (await client.get("/api/queue/status")).json() == {"waiting": 2, "active": 0, "completed": 0, "failed": 0}
    page = (await client.get("/api/conversations", params={"limit": 1, "modelName": "m"})).json()
    assert page.keys() == {"messages", "hasMore", "nextCursor", "modelName"}
    assert [(one["content"], one["type"], one["model_name"]) for one in page["messages"]] == [
        ("Hello", "assistant", "m")
    ]
    assert (page["hasMore"], page["nextCursor"]) == (True, page["messages"][0]["created_at"])
    assert (await client.get("/api/conversations", params={"modelName": "other"})).json()["messages"] == []
    none = (await client.get("/api/conversations", params={"before": said["created_at"]})).json()
    assert (none["messages"], none["nextCursor"]) == ([], None)


async def test_a_context_is_text_or_its_parts(client: httpx.AsyncClient, server: Served):
    save = server.service.sync.save_memory
    save("ada", "Lives in Lisbon", "facts", extra_metadata={"entities": [{"name": "Lisbon", "kind": "city"}]})
    save("ada", "Is in Porto this week", "context")
    save("ada", "Learn Portuguese", "goals", importance=0.9)
    save("ada", "A trip to Faro", "goals", tags=["idea"])
    await client.post("/api/completions", json={"prompt": "Hi", "response": "Hello"})
    question = {"message": "Where in Lisbon does she live?"}
    for answer in (await client.post("/api/context", json=question), await client.get("/api/context", params=question)):
        assert "Lives in Lisbon" in answer.json()
    built = (await client.post("/api/context/structured", json={"message": "Where does she live?"})).json()
    assert built["workingMemory"]["recentMessages"][0]["content"] == question["message"]  # /api/context took it in
    assert [one["response"] for one in built["workingMemory"]["recentCompletions"]] == ["Hello"]
    fragment = built["semanticMemory"]["longTerm"][0]
    assert fragment.keys() >= {
        "id",
        "content",
        "memory_type",
        "category",
        "importance",
        "emotional_impact",
        "created_at",
    }
    assert [one["name"] for one in built["structuredKnowledge"]["entities"]]
    assert built["goalContext"]["longTermGoals"][0].items() >= {"title": "Learn Portuguese", "priority": 9}.items()
    assert [one["content"] for one in built["goalContext"]["shortTermIdeas"]] == ["A trip to Faro"]
    missing = [await client.post("/api/context", json={}), await client.get("/api/context")]
    assert [(one.status_code, one.json()) for one in missing] == [(400, {"error": "message is required"})] * 2


async def test_settings_give_no_key_away_and_say_where_to_set_them(client: httpx.AsyncClient, server: Served):
    """In other services whoever had a key could read the provider's keys and point its address elsewhere."""
    now = (await client.get("/api/settings")).json()
    assert (now["llmProvider"], now["llmModel"], now["llmApiKey"]) == ("openai", "gpt-5-mini", "")
    assert (await client.post("/api/settings", json={"contextTokens": 10})).status_code == 403
    async with server.client("root", tuple(Permission)) as root:
        assert (await root.post("/api/settings", json=now | {"contextTokens": 50})).json()["status"] == "success"
        assert (await client.get("/api/settings")).json()["contextTokens"] == 50
        for name in ("llmProvider", "llmApiKey", "embeddingModel", "llmTemperature", "baseUrl"):
            refused = await root.post("/api/settings", json={name: "x"})
            assert (refused.status_code, refused.json()["error"][: len(name)]) == (409, name)
        assert (await root.post("/api/settings", json={"contextTokens": True})).status_code == 422
    assert not (await client.get("/api/settings/regeneration-status")).json()["isRegenerating"]


async def test_errors_have_airis_form(client: httpx.AsyncClient, server: Served):
    async with server.client() as nobody:
        health = (await nobody.get("/api/health")).json()
        assert (health["status"], "timestamp" in health) == ("ok", True)
        required = await nobody.get("/api/test-conn")
        assert (required.status_code, required.json()) == (401, {"error": "API key required"})
        wrong = await nobody.get("/api/test-conn", headers={"Authorization": "Bearer wrong"})
        assert (wrong.status_code, wrong.json()) == (403, {"error": "Invalid API key"})
        assert (await nobody.get("/v1/memories")).json()["status"] == 401  # elsewhere they are problems
    assert (await client.get("/api/test-conn")).json()["status"] == "authenticated"
    bad = await client.post("/api/messages", json={})
    assert (bad.status_code, "content" in bad.json()["details"]) == (422, True)


async def test_the_routes_are_off_unless_asked_for(server: Served):
    plain = create_app(server.service, Access())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(plain), base_url=BASE) as client:
        assert (await client.get("/api/health")).status_code == 404
