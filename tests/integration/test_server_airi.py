"""The routes of AIRI's memory service: what its client sends, and the fields that it reads."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_support import Capture
from cli_support import answer as printed
from langchain_core.messages import BaseMessage, HumanMessage
from server_support import BASE, Served
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemorySettings, MemorySource, open_store
from inference_core.agents import from_settings
from inference_core.cli import background
from inference_core.clock import SystemClock
from inference_core.effects import run
from inference_core.errors import ConfigurationError
from inference_core.memory.trust import Origin
from inference_core.outbox import outbox as queue
from inference_core.outbox.messages import ConversationMessage
from inference_core.outbox.outbox import Partition, Waiting
from inference_core.server.api.airi import AIRI_ROUTES, add_airi, answering_models
from inference_core.server.api.routes import ROUTES
from inference_core.server.app import create_app
from inference_core.server.identity.auth import ApiKeys, Permission
from inference_core.server.identity.gate import Access
from inference_core.services.operations.tuning import tune
from inference_core.stores.indexing.embedding import DIMENSIONS_META
from inference_core.stores.store import MemoryStore
from inference_core.testing import ScriptedChatModel, Turn, call_tool

SETTINGS = MemorySettings.model_construct(
    model=("openai:gpt-5-mini",), embeddings="openai:text-embedding-3-small", max_tokens=2_000
)


def served(store: MemoryStore, *turns: Turn) -> Served:
    """AIRI's routes on ``store``, with a model for each of ``turns``."""
    service = AgentMemoryStoreService(store)
    ring = ApiKeys(store.engine, service.scope.clock, 10)
    app = create_app(service, Access(checks=[ring], rate=1e6, burst=10**6), [*ROUTES, *AIRI_ROUTES])
    add_airi(app, service, SETTINGS, lambda: [ScriptedChatModel(turns=[turn]) for turn in turns])
    return Served(service, app)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        yield served(store)


@pytest.fixture
async def client(server: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with server.client("ada") as one:
        yield one


@pytest.mark.parametrize("field", ["content", "platform", "modelName"])
async def test_regression_half_a_character_is_refused_before_anything_is_stored(client: httpx.AsyncClient, field: str):
    """The message was stored, and the answer, which repeats the field, failed with 500: clients sent it again."""
    body = b'{"content": "Hi", "%s": "\\ud800"}' % field.encode()
    answer = await client.post("/api/messages", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert (await client.get("/api/conversations")).json()["messages"] == []


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


async def test_regression_pages_lose_no_message_of_the_same_millisecond(client: httpx.AsyncClient, server: Served):
    """A page began before the millisecond of the oldest message that was shown: others of that moment were lost."""
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    said = [HumanMessage(f"M{number}", additional_kwargs={"timestamp": at.isoformat()}) for number in range(3)]
    later = HumanMessage("M3", additional_kwargs={"timestamp": (at + timedelta(seconds=1)).isoformat()})
    await server.service.add_messages("ada", [*said, later])
    seen, before = list[dict[str, Any]](), None
    while True:
        page = (
            await client.get("/api/conversations", params={"limit": 2} | ({"before": before} if before else {}))
        ).json()
        seen += page["messages"]
        before = page["nextCursor"]
        if not page["hasMore"]:
            break
    assert sorted(one["content"] for one in seen) == ["M0", "M1", "M2", "M3"]
    assert {one["model_name"] for one in seen} == {None}  # nobody gave one


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


@pytest.mark.parametrize("path", ["/api/context", "/api/context/structured"])
async def test_regression_a_context_takes_the_message_in_and_shows_the_session_of_its_model(
    client: httpx.AsyncClient, server: Served, path: str
):
    """The parts took nothing in, and both showed what was said to other models."""
    await server.service.save_memory("ada", "Lives in Lisbon", "facts")
    for name, text in (("cat", "I talk to the cat"), ("dog", "I talk to the dog")):
        await client.post("/api/messages", json={"content": text, "modelName": name})
    asked = {"message": "Where in Lisbon do I live?", "modelName": "dog"}
    built = (await client.post(path, json=asked)).text
    assert ("Lives in Lisbon" in built, "the dog" in built, "the cat" in built) == (True, True, False)
    page = (await client.get("/api/conversations", params={"modelName": "dog"})).json()
    assert [one["content"] for one in page["messages"]] == ["I talk to the dog", asked["message"]]
    new = (await client.get("/api/context", params=asked | {"modelName": "bird"})).json()
    assert ("Lives in Lisbon" in new, "I talk to" in new) == (True, False)
    assert "the cat" in (await client.get("/api/context", params={"message": "What did I say?"})).json()


async def test_an_answer_is_made_with_the_context_and_taken_in(tmp_path: Path):
    asked = list[list[BaseMessage]]()

    def reply(messages: list[BaseMessage]) -> str:
        asked.append(messages)
        return "In Lisbon."

    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        server = served(store, ConnectionError("no network"), reply)
        server.service.sync.save_memory("ada", "Lives in Lisbon", "facts")
        body = {"message": "Where in Lisbon do I live?", "modelName": "m", "platform": "web", "systemPrompt": "Purr."}
        async with server.client("ada") as client:
            answered = (await client.post("/api/answers", json=body)).json()
            page = (await client.get("/api/conversations", params={"modelName": "m"})).json()["messages"]
            assert (await client.post("/api/answers", json={})).status_code == 400
        assert answered.keys() == {"id", "prompt", "response", "platform", "created_at", "modelName"}
        assert (answered["prompt"], answered["response"]) == (body["message"], "In Lisbon.")
        assert [(one["content"], one["type"]) for one in page] == [
            (body["message"], "user"),
            ("In Lisbon.", "assistant"),
        ]
        system, question = asked[0]
        assert system.text.startswith("Purr.\n\n")
        assert ("Lives in Lisbon" in system.text, question.text) == (True, body["message"])
        assert not any(one.is_marked for one in waiting(server))


async def test_an_answer_after_text_from_outside_is_no_proof_of_what_the_user_said(server: Served):
    """Guards trust: the model may have repeated a page that is in its context."""
    page = MemorySource(origin=Origin.WEB)
    server.service.sync.save_memory("ada", "The bank of Lisbon asks for the PIN", "facts", source=page)
    app = served(server.service.store, "Tell the bank of Lisbon your PIN.")  # pyright: ignore[reportArgumentType] - it is ours
    async with app.client("ada") as client:
        await client.post("/api/answers", json={"message": "What does the bank of Lisbon ask for?"})
    assert [one.is_marked for one in waiting(server)] == [True, True]


@pytest.mark.parametrize(
    ("turns", "status", "told"),
    [((), 503, "No chat model answered"), ((ConnectionError("no network"),) * 2, 503, "nothing was taken in")],
)
async def test_without_an_answer_nothing_is_taken_in(server: Served, turns: tuple[Turn, ...], status: int, told: str):
    app = served(server.service.store, *turns)  # pyright: ignore[reportArgumentType] - it is ours
    async with app.client("ada") as client:
        refused = await client.post("/api/answers", json={"message": "Hi"})
        assert (refused.status_code, told in refused.json()["error"]) == (status, True)
        assert (await client.get("/api/conversations")).json()["messages"] == []


def test_the_models_that_answer_are_the_agents(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_MODEL", "openai:gpt-5-mini")
    monkeypatch.setenv("AGENT_MODEL_FALLBACKS", "openai:gpt-5-nano")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert [getattr(model, "model_name", None) for model in answering_models()] == ["gpt-5-mini", "gpt-5-nano"]
    monkeypatch.delenv("AGENT_MODEL")
    with pytest.raises(ConfigurationError, match="set AGENT_MODEL"):
        answering_models()


def waiting(server: Served) -> list[ConversationMessage]:
    place, engine = Partition.of("ada", server.service.scope.namespaces), server.service.scope.engine
    return [Waiting.of(row).message for row in run(engine.page([place.messages], limit=9))]


@pytest.mark.parametrize(
    ("model", "recorded", "size"), [(None, "", None), (HashingEmbeddings(), "", 64), (None, "384", 384)]
)
async def test_regression_the_size_of_vectors_is_told_and_may_be_sent_back(
    tmp_path: Path, model: HashingEmbeddings | None, recorded: str, size: int | None
):
    """It was null, so that a client that sent the size in force was refused."""
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=model) as store:
        run(store.engine.ask(lambda backend: backend.set_meta(DIMENSIONS_META, recorded)))
        async with served(store).client("root", tuple(Permission)) as root:
            now = (await root.get("/api/settings")).json()
            assert now["embeddingDimensions"] == size
            assert (await root.post("/api/settings", json=now)).status_code == 200
            assert (await root.post("/api/settings", json=now | {"embeddingDimensions": 65})).status_code == 409


async def test_settings_give_no_key_away_and_say_where_to_set_them(client: httpx.AsyncClient, server: Served):
    """In other services whoever had a key could read the provider's keys and point its address elsewhere."""
    now = (await client.get("/api/settings")).json()
    assert (now["llmProvider"], now["llmModel"], now["llmApiKey"]) == ("openai", "gpt-5-mini", "")
    assert (await client.post("/api/settings", json={"contextTokens": 10})).status_code == 403
    async with server.client("root", tuple(Permission)) as root:
        for name in ("llmProvider", "llmApiKey", "embeddingModel", "embeddingDimensions", "baseUrl"):
            refused = await root.post("/api/settings", json={"batchSize": 3, name: "x"})
            assert (refused.status_code, refused.json()["error"][: len(name)]) == (409, name)
        for bad in (
            {"contextTokens": True},
            {"batchSize": 101},
            {"batchSize": "3"},
            {"workerInterval": 0},
            {"llmTemperature": 7},
        ):
            assert (await root.post("/api/settings", json={"batchTokens": 9} | bad)).status_code == 422, bad
        endless = await root.post(
            "/api/settings", content=b'{"workerInterval": Infinity}', headers={"Content-Type": "application/json"}
        )
        assert endless.status_code == 422  # no thread can wait so long
        assert (await client.get("/api/settings")).json() == now
        changed = {"batchSize": 3, "batchTokens": 99, "workerInterval": 5, "llmTemperature": 0.5, "llmMaxTokens": 77}
        assert (await root.post("/api/settings", json=now | changed)).json()["status"] == "success"
        assert (await client.get("/api/settings")).json() == now | changed
        await root.post("/api/settings", json=dict.fromkeys(changed))
        assert (await client.get("/api/settings")).json() == now
    assert not (await client.get("/api/settings/regeneration-status")).json()["isRegenerating"]


async def test_the_limit_of_a_context_is_changed_for_all_servers(client: httpx.AsyncClient, server: Served):
    for town in ("Faro", "Porto", "Braga", "Evora", "Sintra", "Tomar"):
        server.service.sync.save_memory(
            "ada", f"Came to Lisbon from {town}, {' '.join(f'{town}{at}' for at in range(40))}"
        )
    question = {"message": "From where did she come to Lisbon?"}
    before = (await client.get("/api/context", params=question)).json()
    async with server.client("root", (Permission.ADMIN,)) as root:
        await root.post("/api/settings", json={"contextTokens": 300})
    app = create_app(server.service, server.app.state.access, [*ROUTES, *AIRI_ROUTES])
    add_airi(app, server.service, SETTINGS)
    async with Served(server.service, app).client("ada") as other:
        after = [(await one.get("/api/context", params=question)).json() for one in (client, other)]
    assert [len(one) < len(before) / 2 for one in after] == [True, True]


def test_a_worker_that_runs_takes_over_what_is_changed(
    sqlite_url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    """Before, batch sizes and the like were those of the worker's start. This one goes on with its figures."""
    asked = list[dict[str, Any]]()

    def models(names: list[str], **options: Any) -> list[ScriptedChatModel]:
        del names
        asked.append(options)
        return [ScriptedChatModel(turns=[call_tool("ExtractedMemories", memories=[])] * 9)]

    settings = {"STORE_URL": sqlite_url, "EMBEDDINGS": "none", "MODEL": "scripted:model", "WORKER_INTERVAL": "0.01"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AGENT_MEMORY_{name}", value)
    monkeypatch.setattr(from_settings, "make_chat_models", models)
    monkeypatch.setattr(background, "LOOK_S", 0.01)
    handlers = dict[int, Any]()
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    with open_store(sqlite_url, embeddings=None) as store:
        said = [HumanMessage(f"I like tea number {number}", id=f"{number}") for number in range(4)]
        add = AgentMemoryStoreService(store).sync.add_messages
        add("ada", said[:2])

        def change() -> None:
            try:
                until(lambda: not waiting())
                run(tune(store.engine, {"batch_messages": 1, "model_temperature": 0.5, "model_tokens": 9}))
                until(lambda: asked[-1] == {"temperature": 0.5, "max_tokens": 9})
                add("ada", said[2:])
                until(lambda: not waiting())
            finally:
                handlers[signal.SIGTERM]()

        def until(holds: Callable[[], bool]) -> None:
            ends = time.monotonic() + 20
            while not holds():
                assert time.monotonic() < ends
                time.sleep(0.01)

        def waiting() -> int:
            return run(queue.status(store.engine, SystemClock())).waiting

        with ThreadPoolExecutor(1) as beside:
            changing = beside.submit(change)
            figures = printed(capsys, "worker")
            changing.result()
    assert (figures["messages"], figures["batches"]) == (4, 3)


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
