"""AgentService: from settings to an agent that remembers, against a chat model on loopback or a scripted one."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agent_support import FACES, blocks, memory_lines, remember, replies, set_environment, system_text, the_block
from chat_server import Refusal, Request, Turn, chat_server
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRequest,
    ModelRetryMiddleware,
    SummarizationMiddleware,
)
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel

import inference_core
from inference_core import AgentSettings, MemoryContext, MemoryMiddleware, MemorySettings, MemoryStore, open_store
from inference_core.agents.checkpoints import SqliteCheckpointer
from inference_core.agents.identity import thread_label
from inference_core.agents.streams import AgentResponse
from inference_core.errors import ConfigurationError, IdentityError, InvalidId, ModelError, StoreUnavailable
from inference_core.services.agents_service import AgentService
from inference_core.stores.factory import open_configured_store
from inference_core.testing import ScriptedChatModel, call_tool

Chat = Callable[..., list[Request]]
SAVE = call_tool("save_memory_store", content="Keeps falcons", memory_type="facts")
DEFAULT_TOOLS = ["save_memory_store", "recall_memories_store", "update_memory_store", "delete_memory_store"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_environment(
        monkeypatch,
        tmp_path,
        AGENT_CHECKPOINT_URL=f"sqlite:///{tmp_path}/checkpoints.db",
        AGENT_MODEL="openai:gpt-5-mini",
        OPENAI_API_KEY="none",
        LANGSMITH_TRACING="false",
    )


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    """Starts the model that AGENT_MODEL names, with a script; gives the requests that it gets."""
    with ExitStack() as running:

        def start(*turns: Turn) -> list[Request]:
            url, requests = running.enter_context(chat_server(*turns))
            monkeypatch.setenv("OPENAI_BASE_URL", url)
            return requests

        yield start


def scripted(*turns: Any) -> ScriptedChatModel:
    return ScriptedChatModel(turns=turns or ["Hello!"])


def made(model: ScriptedChatModel, system_prompt: str | None = None, **options: Any) -> AgentService:
    """A service with its agent."""
    service = AgentService(model=model, **options)
    service.create_agent_sync(system_prompt)
    return service


async def tell(service: AgentService, face: str, text: Any, **options: Any) -> AgentResponse:
    return service.run(text, **options) if face == "sync" else await service.arun(text, **options)


async def streamed(service: AgentService, face: str, text: str, **options: Any) -> list[Any]:
    if face == "sync":
        return list(service.stream(text, **options))
    return [one async for one in service.astream(text, **options)]


def prompt(request: Request) -> str:
    return str(request["messages"][0]["content"])


def heard(model: ScriptedChatModel) -> list[str]:
    """The conversation that the model was last given."""
    return [message.text for message in model.requests[-1] if message.type != "system"]


def test_a_file_beside_the_program_configures_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Regression: the documents configure memory in ``.env``, and the service did not read it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    (tmp_path / ".env").write_text("AGENT_MEMORY_ENABLED=false\n", encoding="utf-8")
    with AgentService(use_memory=True, user_id="ada", model=ScriptedChatModel(turns=["x"])) as service:
        assert service.memory is None


async def test_the_documented_usage_runs_as_it_stands(chat: Chat) -> None:
    requests = chat(SAVE, "Noted.")
    user_uuid = uuid4()
    agent_service = AgentService(
        agent_name="my_agent",
        use_memory=True,
        user_id=user_uuid,
    )
    await agent_service.create_agent(system_prompt="You are a helpful assistant.")
    response = await agent_service.arun_agent_steps("I keep falcons")
    assert response.text == "Noted."
    assert "You are a helpful assistant." in prompt(requests[0])
    assert [tool["function"]["name"] for tool in requests[0]["tools"]] == DEFAULT_TOOLS
    assert agent_service.memory is not None
    (kept,) = (await agent_service.memory.list_memories(user_uuid))[0]
    assert (kept.content, kept.value["agent_name"]) == ("Keeps falcons", "my_agent")
    await agent_service.aclose()


@pytest.mark.parametrize("face", FACES)
async def test_what_a_tool_saved_another_service_recalls(face: str, chat: Chat) -> None:
    requests = chat(SAVE, "Noted.", call_tool("recall_memories_store", query="falcons"), "You keep falcons.")
    with AgentService(use_memory=True, user_id="ada") as first:
        first.create_agent_sync()
        saved = await tell(first, face, "I keep falcons")
    with AgentService(use_memory=True, user_id="ada") as second:
        second.create_agent_sync()
        recalled = await tell(second, face, "What do I keep?")
    assert "✓ Memory saved" in replies(saved.state)[0]
    assert "Keeps falcons" in replies(recalled.state)[0]
    assert "Keeps falcons (type: facts)" in prompt(requests[2])
    assert [message.type for message in recalled.steps] == ["ai", "tool", "ai"]
    assert recalled.messages[1:] == recalled.steps
    assert recalled.memory_status == "lexical"
    assert "SystemMessage" not in repr(recalled)


@pytest.mark.parametrize("face", FACES)
async def test_a_stream_gives_words_as_they_come_and_calls_tools(face: str, chat: Chat) -> None:
    requests = chat(SAVE, "Noted with care.")
    async with AgentService(use_memory=True, user_id="ada") as service:
        await service.create_agent()
        chunks = [chunk for chunk, _ in await streamed(service, face, "I keep falcons")]
        assert [chunk.text for chunk in chunks if isinstance(chunk, AIMessageChunk) and chunk.text] == [
            "Noted ",
            "with ",
            "care. ",
        ]
        assert service.memory is not None
        assert service.memory.sync.count_memories("ada")["total"] == 1
    assert all(request["stream"] for request in requests)


async def test_a_stream_can_be_of_another_mode() -> None:
    with made(scripted()) as service:
        (update,) = await streamed(service, "sync", "Hi", stream_mode="updates")
        assert update["model"]["messages"][0].text == "Hello!"


FAILURES = {
    "wrong key": (Refusal(401, b'{"error": {"message": "sk-secret"}}'), "check OPENAI_API_KEY"),
    "too many": (Refusal(429), "wait, or set AGENT_MODEL_FALLBACKS"),
    "server fault": (Refusal(503), "try again, or set AGENT_MODEL_FALLBACKS"),
    "no such model": (Refusal(404), "check AGENT_MODEL"),
    "bad request": (Refusal(400), "refused by the server"),
    "a web page": (Refusal(200, b"<html>\nlogin"), "is that the right server?"),
    "no choices": (Refusal(200, b"{}"), "is that the right server?"),
}


@pytest.mark.parametrize("refusal", FAILURES)
async def test_a_failing_model_says_in_one_line_what_to_do(refusal: str, chat: Chat) -> None:
    turn, advice = FAILURES[refusal]
    chat(turn)
    service = AgentService()
    await service.create_agent()
    for face in FACES:
        with pytest.raises(ModelError) as caught:
            await tell(service, face, "Hi")
        with pytest.raises(ModelError):
            await streamed(service, face, "Hi")
        said = str(caught.value)
        assert advice in said
        assert caught.value.__cause__ is not None
        assert "\n" not in said
        assert "secret" not in said


async def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_openai import ChatOpenAI

    with chat_server() as (url, _):
        pass
    service = AgentService(model=ChatOpenAI(model="gpt-5-mini", base_url=url, max_retries=0))
    service.create_agent_sync()
    for face in FACES:
        with pytest.raises(ModelError, match="cannot be reached: is its server running, and OPENAI_BASE_URL right"):
            await tell(service, face, "Hi")


async def test_a_stream_that_breaks_off_is_an_error(chat: Chat) -> None:
    chat(Refusal(500, said="Hel"))
    service = AgentService()
    service.create_agent_sync()
    with pytest.raises(ModelError, match="overloaded"):
        await streamed(service, "async", "Hi")


async def test_what_was_saved_before_a_failure_stays(chat: Chat) -> None:
    chat(SAVE, Refusal(429))
    with AgentService(use_memory=True, user_id="ada") as service:
        service.create_agent_sync()
        with pytest.raises(ModelError):
            service.run("I keep falcons")
        assert service.memory is not None
        assert service.memory.sync.count_memories("ada")["total"] == 1


def by_model(request: Request) -> Any:
    """Only openai:third is up."""
    if request["model"] != "third":
        return Refusal(503, said="Broken" if request["model"] == "gpt-5-mini" and request.get("stream") else "")
    return "Noted." if request["messages"][-1]["role"] == "tool" else SAVE


@pytest.mark.parametrize("face", FACES)
async def test_fallbacks_are_asked_in_order_with_memory_and_tools(
    face: str, chat: Chat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGENT_MODEL_FALLBACKS", "openai:second,openai:third")
    requests = chat(by_model)
    with AgentService(use_memory=True, user_id="ada") as service, caplog.at_level(logging.WARNING):
        await service.create_agent("Be brief.")
        response = await tell(service, face, "I keep falcons")
    assert response.text == "Noted."
    assert [request["model"] for request in requests[:3]] == ["gpt-5-mini", "second", "third"]
    assert requests[0]["messages"] == requests[2]["messages"]
    assert requests[0]["tools"] == requests[2]["tools"]
    assert "gpt-5-mini failed at its server" in caplog.text


@pytest.mark.parametrize("face", FACES)
async def test_in_a_stream_a_fallback_answers_in_a_message_of_its_own(
    face: str, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_FALLBACKS", "openai:third")
    chat(by_model)
    service = AgentService(use_memory=True, user_id="ada")
    service.create_agent_sync()
    chunks = [chunk for chunk, _ in await streamed(service, face, "Hi") if isinstance(chunk, AIMessageChunk)]
    service.close()
    said: dict[str, str] = {}
    for chunk in chunks:
        said[str(chunk.id)] = said.get(str(chunk.id), "") + chunk.text
    assert [text for text in said.values() if text] == ["Broken ", "Broken ", "Noted. "]


def test_when_all_fail_the_last_one_is_raised(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MODEL_FALLBACKS", "openai:second")
    chat(Refusal(503))
    service = AgentService()
    service.create_agent_sync()
    with pytest.raises(ModelError, match="model second failed"):
        service.run("Hi")


@pytest.mark.parametrize("face", FACES)
async def test_regression_retries_see_the_providers_own_errors(face: str) -> None:
    retries = ModelRetryMiddleware(max_retries=1, retry_on=(BlockingIOError,), on_failure="error", initial_delay=0)
    model = ScriptedChatModel(turns=[BlockingIOError("busy"), "Here.", BlockingIOError("busy")])
    with AgentService(model=model, middleware=[retries]) as service:
        service.create_agent_sync()
        assert (await tell(service, face, "Hi")).text == "Here."
        with pytest.raises(ModelError, match="cannot be reached"):
            await tell(service, face, "Hi")
    assert len(model.requests) == 4


def test_a_failing_tool_is_not_the_models_fault() -> None:
    def explode() -> str:
        """Explodes."""
        raise ZeroDivisionError

    with made(scripted(call_tool("explode")), tools=[explode]) as service, pytest.raises(ZeroDivisionError):
        service.run("Go")


@pytest.mark.parametrize("face", FACES)
async def test_a_conversation_goes_on_in_the_next_process(face: str) -> None:
    for text in ("One", "Two"):
        model = scripted()
        async with AgentService(model=model, use_checkpoints=True, user_id="ada") as service:
            await service.create_agent()
            response = await tell(service, face, text, thread_id="main")
    assert heard(model) == ["One", "Hello!", "Two"]
    assert [message.text for message in response.steps] == ["Hello!"]


async def test_sync_and_async_runs_share_a_conversation() -> None:
    model = scripted()
    with AgentService(model=model, use_checkpoints=True) as service:
        await service.create_agent()
        service.run_agent_steps("One")
        await service.arun("Two")
        list(service.stream("Three"))
    assert heard(model) == ["One", "Hello!", "Two", "Hello!", "Three"]


@pytest.mark.parametrize(
    "options", [{"session_id": "s"}, {"checkpoint_config": {"configurable": {"thread_id": "s"}}}], ids=str
)
def test_the_services_thread_is_what_it_was_told(options: dict[str, Any]) -> None:
    checkpointer = InMemorySaver()
    with made(scripted(), checkpointer=checkpointer, **options) as service:
        service.run("One")
        assert len(service.run("Two").messages) == 4
        assert len(service.run("Three", thread_id="s").messages) == 6
        assert len(service.run("Four", config={"configurable": {"thread_id": "other"}}).messages) == 2
        assert len(service.run("Five", thread_id=uuid4()).messages) == 2


def test_services_without_a_thread_have_one_each() -> None:
    checkpointer = InMemorySaver()
    with made(scripted(), checkpointer=checkpointer) as one, made(scripted(), checkpointer=checkpointer) as other:
        one.run("One")
        assert len(other.run("Two").messages) == 2


@pytest.mark.parametrize("face", FACES)
async def test_users_with_the_same_thread_id_share_nothing(face: str) -> None:
    model = scripted()
    with made(model, use_checkpoints=True, use_memory=True) as service:
        for user in ("ada", "bob", "ada:main", None):
            response = await tell(service, face, f"I am {user}", thread_id="main", user_id=user)
            assert [message.text for message in response.messages] == [f"I am {user}", "Hello!"]
        assert response.memory_status == "closed"


async def test_many_users_at_once_keep_their_own_conversations_and_memories() -> None:
    def echo(messages: list[BaseMessage]) -> str:
        return the_block(messages) + " / ".join(message.text for message in messages if message.type == "human")

    users = [f"user{number}." for number in range(20)]
    with made(scripted(echo), use_checkpoints=True, use_memory=True) as service:
        remember(service.get_memory_store(), {user: [f"Knows secret {user}"] for user in users})
        responses: list[AgentResponse] = []
        for _ in range(2):
            runs = (service.arun(f"I am {user}", user_id=user, thread_id="main") for user in users)
            responses = await asyncio.gather(*runs)
    for user, response in zip(users, responses, strict=True):
        assert set(re.findall(r"user\d+\.", response.text)) == {user}
        assert len(response.messages) == 4


def test_thread_labels_never_meet() -> None:
    users = [None, "ada", "ada:x", "ada~", "~ada", ":", "x"]
    threads = ["x", ":x", "ada:x", "x:", "~3a", ":"]
    labels = {thread_label(user, thread) for user in users for thread in threads}
    assert len(labels) == len(users) * len(threads)


@dataclass
class Own:
    user_id: str | None = None


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (None, {"user_id": "ada"}),
        (None, {"context": MemoryContext(user_id="ada", timezone="Europe/Oslo")}),
        (None, {"context": {"user_id": "ada"}}),
        (None, {"config": {"configurable": {"user_id": "ada"}}}),
        (Own, {"user_id": "ada"}),
        (Own, {"user_id": "ada", "context": Own()}),
        (Own, {"context": Own("ada")}),
    ],
    ids=str,
)
def test_each_run_may_name_its_user(schema: type[Any] | None, options: dict[str, Any]) -> None:
    model = scripted()
    with made(model, use_memory=True, context_schema=schema) as service:
        remember(service.get_memory_store(), {"ada": ["Keeps falcons"], "bob": ["Keeps bees"]})
        service.run("Hi", **options)
    (line,) = memory_lines(the_block(model.requests[0]))
    assert "Keeps falcons" in line


@pytest.mark.parametrize(
    "options",
    [{"user_id": "bob"}, {"context": MemoryContext("bob")}, {"config": {"configurable": {"user_id": "bob"}}}],
    ids=str,
)
def test_users_that_differ_are_refused(options: dict[str, Any]) -> None:
    with made(scripted(), user_id="ada") as service, pytest.raises(IdentityError, match="several users"):
        service.run("Hi", **options)


def test_ids_that_cannot_be_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    for options in ({"user_id": ""}, {"session_id": ""}, {"agent_name": "a\x00", "use_memory": True}):
        with pytest.raises(InvalidId):
            AgentService(model=scripted(), **options)  # pyright: ignore[reportArgumentType]
    with made(scripted()) as service, pytest.raises(InvalidId):
        service.run("Hi", thread_id="x" * 600)


def test_unknown_arguments_are_refused() -> None:
    anything: Any = AgentService
    with pytest.raises(TypeError, match="enable_memory"):
        anything(enable_memory=True)
    service: Any = made(scripted())
    with pytest.raises(TypeError, match="thread"):
        service.run("Hi", thread="main")
    with pytest.raises(TypeError, match="multiple values"):
        service.create_agent_sync(store=None)


def prompted(store: MemoryStore, **options: Any) -> str:
    """The system text with which an agent of that name answers Ada."""
    model = scripted()
    with made(model, use_memory=True, user_id="ada", store=store, **options) as service:
        service.run("What do I keep and plan, and how do you work?")
    return system_text(model.requests[0])


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("AUTO_RECALL", "false", []),
        ("CATEGORIES", "procedural", ["Work slowly"]),
        ("MAX_RESULTS", "1", ["Keeps", "Work slowly"]),
        ("AGENT_SCOPE_ENABLED", "false", ["Keeps", "Keeps"]),
        ("ENABLED", "true", ["Keeps", "Keeps", "Work slowly"]),
    ],
)
def test_the_settings_of_recall_have_their_effect(
    name: str, value: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store("memory://", embeddings=None) as store:
        remember(store, {"ada": ["Keeps falcons", "Keeps bees"]})
        planner = remember(store, {}, agent_name="planner")
        planner.sync.save_memory("ada", "Work slowly", "instructions")
        monkeypatch.setenv(f"AGENT_MEMORY_{name}", value)
        lines = memory_lines(prompted(store, agent_name="planner"))
    assert sorted(part for line in lines for part in ("Keeps", "Work slowly") if part in line) == seen


def test_the_agents_name_scopes_what_it_reads() -> None:
    with open_store("memory://", embeddings=None) as store:
        remember(store, {}, agent_name="planner").sync.save_memory("ada", "Work slowly", "instructions")
        assert "Work slowly" in prompted(store, agent_name="planner")
        assert "Work slowly" not in prompted(store, agent_name="writer")


def test_settings_that_are_passed_go_before_the_environment(chat: Chat, tmp_path: Path) -> None:
    requests = chat("Hello!")
    url = f"sqlite:///{tmp_path}/other.db"
    agent = AgentSettings(model="openai:other", checkpoint_url=url)
    memory = MemorySettings(store_url="memory://", embeddings="none")
    with AgentService(use_memory=True, use_checkpoints=True, settings=memory, agent_settings=agent) as service:
        service.create_agent_sync()
        service.run("Hi")
    assert requests[0]["model"] == "other"
    assert {path.name for path in tmp_path.glob("*.db")} == {"other.db"}


def test_memory_can_be_switched_off_for_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AGENT_MEMORY_ENABLED", "false")
    model = scripted()
    with made(model, "Be brief.", agent_name="my\nagent", use_memory=True, user_id="ada") as service:
        assert service.run("Hi").memory_status is None
        assert service.run("Hi").text == "Hello!"
        assert service.memory is None
        with pytest.raises(ValueError, match=r"^Memory store is not initialized\.$"):
            service.get_memory_store()
    assert [record.getMessage() for record in caplog.records] == [
        "AGENT_MEMORY_ENABLED is false: agent 'my\\nagent' has no memory"
    ]
    assert system_text(model.requests[0]) == "Be brief."


def test_the_arguments_about_memory_have_their_effect(monkeypatch: pytest.MonkeyPatch, chat: Chat) -> None:
    requests = chat("Hello!")
    with AgentService(
        use_memory=True,
        user_id="ada",
        memory_tools=["list_memories_store", "save_memory_store"],
        memory_session_context_enabled=False,
        memory_tool_instructions_enabled=False,
    ) as service:
        remember(service.get_memory_store(), {"ada": ["Keeps falcons"]})
        service.create_agent_sync("Be brief.")
        assert service.run("What do I keep?").memory_status == "off"
    assert requests[0]["messages"][0]["content"] == "Be brief."
    assert [tool["function"]["name"] for tool in requests[0]["tools"]] == ["list_memories_store", "save_memory_store"]


def test_an_unknown_memory_tool_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Unknown memory_tools: 'forget'"):
        AgentService(use_memory=True, memory_tools=["save_memory_store", "forget"])


def test_a_middleware_that_is_passed_is_not_added_twice() -> None:
    model = scripted()
    own = MemoryMiddleware(recall_timeout=60, include_tools=[])
    with made(model, use_memory=True, user_id="ada", middleware=[own]) as service:
        remember(service.get_memory_store(), {"ada": ["Keeps falcons"]})
        service.run("Hi")
    assert len(blocks(model.requests[0])) == 1
    assert "Memory Tools Usage" not in system_text(model.requests[0])
    with pytest.raises(ConfigurationError, match="set them there"):
        AgentService(use_memory=True, middleware=[own], memory_tools=[])


class Watching(AgentMiddleware[Any, Any, Any]):
    """Notes the system text that passes, then fails."""

    seen = ""

    def wrap_model_call(self, request: ModelRequest[Any], handler: Any) -> Any:
        self.seen = system_text([request.system_message] if request.system_message else [])
        raise ZeroDivisionError


def test_other_middleware_stands_between_memory_and_the_model() -> None:
    watching = Watching()
    with made(scripted(), use_memory=True, user_id="ada", middleware=[watching]) as service:
        remember(service.get_memory_store(), {"ada": ["Keeps falcons"]})
        with pytest.raises(ZeroDivisionError):
            service.run("Hi")
    assert "Keeps falcons" in watching.seen


def test_the_session_marks_what_is_saved() -> None:
    with made(scripted(SAVE, "Noted."), use_memory=True, user_id="ada", session_id="monday") as service:
        service.run("I keep falcons")
        assert service.memory is not None
        (kept,) = service.memory.sync.list_memories("ada")[0]
    assert kept.value["session_id"] == "monday"


async def test_a_store_of_langgraph_serves_and_stays_open() -> None:
    store = InMemoryStore()
    model = scripted(SAVE, "Noted.")
    for text in ("I keep falcons", "What do I keep?"):
        async with AgentService(model=model, use_memory=True, user_id="ada", store=store) as service:
            await service.create_agent()
            assert (await service.arun(text)).memory_status == "lexical"
    assert len(store.search(("ada", "semantic"))) == 1
    assert "Keeps falcons" in the_block(model.requests[-1])


def test_closing_closes_only_what_was_opened(tmp_path: Path) -> None:
    saver = SqliteCheckpointer(tmp_path / "own.db")
    with open_store("memory://", embeddings=None) as store:
        service = made(
            scripted(), use_memory=True, user_id="ada", store=store, checkpointer=saver, use_checkpoints=True
        )
        service.run("One")
        service.close()
        service.close()
        store.put(("x",), "y", {})
        assert saver.get_tuple(service.config_for()) is not None
        with pytest.raises(ConfigurationError, match="closed"):
            service.run("Two")
    saver.close()


def test_what_was_opened_is_closed_when_the_rest_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_URL", "redis://ada:secret@host/db")
    opened: list[MemoryStore] = []

    def opening(settings: MemorySettings) -> MemoryStore:
        opened.append(open_configured_store(settings))
        return opened[0]

    monkeypatch.setattr("inference_core.agents.service.open_configured_store", opening)
    with pytest.raises(ConfigurationError, match="looks like"):
        AgentService(use_memory=True, use_checkpoints=True)
    with pytest.raises(StoreUnavailable, match="closed"):
        opened[0].put(("x",), "y", {})


def test_checkpoints_may_stay_in_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_URL", "memory://")
    with made(scripted(), use_checkpoints=True) as service:
        service.run("One")
        assert len(service.run("Two").messages) == 4
    assert not list(tmp_path.glob("checkpoints*"))


def test_an_agent_has_to_be_made_first() -> None:
    service = AgentService(model=scripted())
    with pytest.raises(ConfigurationError, match=r"create_agent\(\)"):
        service.run("Hi")
    made_agent = service.create_agent_sync()
    assert service.get_agent() is made_agent


class Answer(BaseModel):
    """An answer in parts."""

    value: int


async def test_create_agent_takes_more_of_langchains_arguments() -> None:
    service = AgentService(model=scripted(call_tool("Answer", value=42)))
    from langchain.agents.structured_output import ToolStrategy

    await service.create_agent(response_format=ToolStrategy(Answer), name="oracle")
    response = await service.arun({"messages": [("user", "What is it?")]})
    assert response.state["structured_response"] == Answer(value=42)
    assert service.get_agent().name == "oracle"


def test_an_interrupted_run_is_resumed_by_a_command() -> None:
    asking = HumanInTheLoopMiddleware(interrupt_on={"save_memory_store": True})
    model = scripted(SAVE, "Noted.")
    with made(model, use_checkpoints=True, use_memory=True, user_id="ada", middleware=[asking]) as service:
        assert service.run("I keep falcons").state["__interrupt__"]
        assert service.get_agent().get_state(service.config_for()).next
        response = service.run(Command(resume={"decisions": [{"type": "approve"}]}))
        assert service.memory is not None
        assert service.memory.sync.count_memories("ada")["total"] == 1
    assert response.text == "Noted."


def test_a_response_without_messages_is_empty() -> None:
    response = AgentResponse.of({})
    assert (response.text, response.messages, response.steps, response.memory_status) == ("", [], [], None)


def test_it_is_exported_from_the_package() -> None:
    assert inference_core.AgentService is AgentService


def usage(given: int, said: int) -> UsageMetadata:
    return UsageMetadata(input_tokens=given, output_tokens=said, total_tokens=given + said)


@pytest.mark.parametrize("face", FACES)
async def test_steps_and_tokens_come_while_the_agent_runs(face: str) -> None:
    call = call_tool("save_memory_store", content="Keeps falcons")
    model = ScriptedChatModel(turns=[call, "Noted, falcons."])
    steps, tokens = list[Any](), list[str]()
    with AgentService(use_memory=True, user_id="ada", model=model) as service:
        service.create_agent_sync()
        watched: dict[str, Any] = {"on_step": steps.append, "on_token": tokens.append}
        response = await tell(service, face, "I keep falcons", **watched)
        assert [step.id for step in steps] == [step.id for step in response.steps]
        assert [step.type for step in steps] == ["ai", "tool", "ai"]
        assert "".join(tokens) == response.text == "Noted, falcons."
        assert response.memory_status == "lexical"
        unwatched = await tell(service, face, "I keep falcons")
        assert unwatched.state.keys() == response.state.keys()


@pytest.mark.parametrize("face", FACES)
async def test_regression_what_tools_and_middleware_ask_models_is_not_said_to_the_user(face: str) -> None:
    def classify() -> str:
        """Classifies."""
        return ScriptedChatModel(turns=["CLASS"]).invoke("Which?").text

    summarizes = SummarizationMiddleware(
        ScriptedChatModel(turns=["SUMMARY"]), trigger=("messages", 3), keep=("messages", 1)
    )
    model = ScriptedChatModel(turns=[call_tool("classify"), "It is a bird."])
    tokens = list[str]()
    with AgentService(model=model, tools=[classify], middleware=[summarizes]) as service:
        service.create_agent_sync()
        await tell(service, face, "What is a falcon?", on_token=tokens.append)
    assert "".join(tokens) == "It is a bird."


def test_a_watched_run_that_waits_for_the_user_says_so() -> None:
    model = ScriptedChatModel(turns=[call_tool("save_memory_store", content="Keeps falcons")])
    review = HumanInTheLoopMiddleware(interrupt_on={"save_memory_store": True})
    service = AgentService(
        use_memory=True, user_id="ada", model=model, middleware=[review], checkpointer=InMemorySaver()
    )
    with service:
        service.create_agent_sync()
        assert "__interrupt__" in service.run("I keep falcons", on_token=lambda _: None).state


def test_tokens_are_counted_and_the_form_of_the_answer_is_kept() -> None:
    turns = [
        AIMessage(
            "", tool_calls=call_tool("save_memory_store", content="x y z").tool_calls, usage_metadata=usage(9, 2)
        ),
        AIMessage("Done.", usage_metadata=usage(20, 3)),
    ]
    with AgentService(use_memory=True, user_id="ada", model=ScriptedChatModel(turns=turns)) as service:
        service.create_agent_sync()
        response = service.run("x y z")
    assert (response.usage, response.structured_response) == (usage(29, 5), None)
    assert AgentResponse.of({"messages": [], "structured_response": 7}).structured_response == 7


def test_the_documented_arguments_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each of them raised TypeError."""
    seen: list[Any] = []

    class Watching(AgentMiddleware[Any, Any, Any]):
        def before_agent(self, state: Any, runtime: Any) -> None:
            seen.append(get_config())

    model = ScriptedChatModel(turns=['{"value": 42}'])
    service = AgentService(
        "helper", None, False, True, None, None, [Watching()], False, "ada", "s", "request-7", {"tags": ["t"]},
        model=model,
        instance_context={"instance_id": "i-1", "instance_name": "Robin"},
        memory_postrun_analysis=True,
        memory_postrun_model="openai:gpt-5-nano",
        system_prompt_override="Only this.",
        system_prompt_append="And that.",
        response_format_override=ProviderStrategy(Answer),
    )  # fmt: skip
    with service:
        service.create_agent_sync("Not this.")
        assert service.run("hello").structured_response == Answer(value=42)
        assert system_text(model.requests[0]).startswith("Only this.\n\nAnd that.")
        assert (service.agent_name, service.display_name) == ("helper", "Robin")
        assert service.memory is not None
        assert service.memory.ns_builder.agent_name == "Robin"
        assert service._settings.capture
        assert service._settings.model == ("openai:gpt-5-nano",)
    (config,) = seen
    assert config["tags"] == ["t"]
    assert {"request_id": "request-7", "instance_id": "i-1"}.items() <= config["metadata"].items()
    assert {"request_id": "request-7", "instance_id": "i-1"}.items() <= config["configurable"].items()


@pytest.mark.parametrize(
    ("given", "append", "expected"),
    [
        (None, None, ""),
        (None, "Be brief.", "Be brief."),
        ("Hi.", "Be brief.", "Hi.\n\nBe brief."),
        (SystemMessage("Hi."), "Be brief.", "Hi.\n\nBe brief."),
    ],
)
def test_a_prompt_is_appended_to(given: Any, append: str | None, expected: str) -> None:
    model = ScriptedChatModel(turns=["ok"])
    with AgentService(model=model, system_prompt_append=append) as service:
        service.create_agent_sync(given)
        service.run("hello")
    assert system_text(model.requests[0]) == expected
