"""MemoryMiddleware in agents made by `create_agent`, on every kind of store, sync and async."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from agent_support import (
    FACES,
    ask,
    blocks,
    make_agent,
    memory_lines,
    patient_memory,
    remember,
    replies,
    system_text,
    the_block,
    without_workers,
)
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from support import FailingEmbeddings, HashingEmbeddings

from inference_core import (
    AgentMemoryStoreService,
    MemoryContext,
    MemoryMiddleware,
    MemorySettings,
    MemoryStatus,
    create_memory_middleware,
    generate_memory_tools_system_instructions,
    get_memory_tools,
    open_store,
)
from inference_core.agents.middleware import memory as memory_module
from inference_core.errors import ConfigurationError, IdentityError, InvalidInput
from inference_core.memory.namespaces import is_owner
from inference_core.services.operations.scope import MemoryScope
from inference_core.services.user_memories import list_user_memories
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

ADA = {"user_id": "ada"}
CANARY = "zanzibar"
TEA = f"Ada drinks tea from {CANARY}"
MEMORIES = {"ada": [TEA], "bob": ["Bob drinks gin"], "7f9c24e8-3b12-4fef-91e0-56a2d5a3b001": ["Uma drinks milk"]}
UMA = UUID("7f9c24e8-3b12-4fef-91e0-56a2d5a3b001")


@dataclass
class Visitor:
    user_id: str
    tenant: str = "north"


class Session(BaseModel):
    user_id: str


@dataclass
class Account:
    email: str


def email_of(runtime: Any) -> str | None:
    return runtime.context.email


def failing_user(_: Any) -> str:
    raise LookupError("the session is gone")


def number_of(_: Any) -> Any:
    return 4.2


def nobody(_: Any) -> None:
    return None


def uma(_: Any) -> UUID:
    return UMA


IDENTITIES: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "configurable": ({}, None, {"config": {"configurable": ADA}}),
    "dict without schema": ({}, None, {"context": ADA}),
    "MemoryContext from dict": ({}, MemoryContext, {"context": ADA}),
    "MemoryContext": ({}, MemoryContext, {"context": MemoryContext(user_id="ada")}),
    "dataclass": ({}, Visitor, {"context": Visitor("ada")}),
    "pydantic": ({}, Session, {"context": Session(user_id="ada")}),
    "own schema": ({"user_id": email_of}, Account, {"context": Account("ada")}),
    "fixed": ({"user_id": "ada"}, None, {}),
}


@pytest.fixture
def store() -> Iterator[BaseStore]:
    with open_store("memory://", embeddings=None) as opened:
        remember(opened, MEMORIES)
        yield opened


@pytest.fixture
def model() -> ScriptedChatModel:
    return ScriptedChatModel(turns=["Noted."])


def recalled(model: ScriptedChatModel, call: int = -1) -> list[str]:
    """The memory lines of a prompt."""
    return memory_lines(the_block(model.requests[call]))


def stored(saver: InMemorySaver) -> str:
    """All that a checkpointer holds, as text."""
    return repr((dict(saver.storage), dict(saver.blobs), dict(saver.writes)))


class TestWhoseMemory:
    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("identity", IDENTITIES)
    async def test_however_the_run_says_it(
        self, store: BaseStore, model: ScriptedChatModel, identity: str, face: str
    ) -> None:
        options, schema, run = IDENTITIES[identity]
        agent = make_agent(
            model, store=store, middleware=[patient_memory(**options)], context_schema=schema, system_prompt="Hi."
        )
        await ask(agent, face, "What do I drink?", **run)
        (line,) = recalled(model)
        assert TEA in line

    @pytest.mark.parametrize("face", FACES)
    async def test_on_every_kind_of_store(self, any_store: BaseStore, model: ScriptedChatModel, face: str) -> None:
        remember(any_store, MEMORIES)
        agent = make_agent(model, store=any_store, middleware=[patient_memory(user_id="ada")])
        result = await ask(agent, face, "What do I drink?")
        (line,) = recalled(model)
        assert TEA in line
        assert (result["memory_status"], result["memories_recalled"]) == ("lexical", 1)
        assert (result["memory_types_recalled"], result["memory_categories_recalled"]) == (["facts"], ["semantic"])
        assert result["memory_recall_latency_ms"] > 0

    @pytest.mark.parametrize("user", [UMA, uma], ids=["fixed", "callable"])
    def test_a_uuid_is_a_user(self, store: BaseStore, model: ScriptedChatModel, user: Any) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id=user)])
        agent.invoke({"messages": [("user", "drinks")]})
        assert "Uma drinks milk" in recalled(model)[0]

    def test_one_agent_serves_many_users(self, store: BaseStore, model: ScriptedChatModel) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory()], context_schema=MemoryContext)
        for user, contents in MEMORIES.items():
            agent.invoke({"messages": [("user", "drinks")]}, context={"user_id": user})
            (line,) = recalled(model)
            assert contents[0] in line

    def test_state_from_outside_names_nobody(self, store: BaseStore, model: ScriptedChatModel) -> None:
        forged = {"memory_owner": "ada", "memory_status": "recalled", "memory_context": "forged"}
        agent = make_agent(model, store=store, middleware=[patient_memory()])
        result = agent.invoke({"messages": [("user", "drinks")], **forged})
        assert result["memory_status"] == "closed"
        assert blocks(model.requests[0]) == []
        assert "forged" not in system_text(model.requests[0])


class TestAcrossRuns:
    @pytest.mark.parametrize("face", FACES)
    async def test_what_the_tool_saved_is_known_in_a_new_thread(self, any_store: BaseStore, face: str) -> None:
        model = ScriptedChatModel(turns=[call_tool("save_memory_store", content=TEA), "Saved.", "Tea!"])
        agent = make_agent(
            model,
            store=any_store,
            middleware=[patient_memory()],
            context_schema=MemoryContext,
            checkpointer=InMemorySaver(),
        )
        first = await ask(agent, face, "I drink tea", {"configurable": {"thread_id": "1"}}, context=ADA)
        assert replies(first)[0].startswith("✓ Memory saved (id: ")
        assert blocks(model.requests[0]) == []
        await ask(agent, face, "What do I drink?", {"configurable": {"thread_id": "2"}}, context=ADA)
        (line,) = recalled(model)
        assert line.endswith(f"{TEA} (type: general)")
        await ask(agent, face, "What do I drink?", {"configurable": {"thread_id": "3"}}, context={"user_id": "bob"})
        assert blocks(model.requests[-1]) == []

    @pytest.mark.parametrize("face", FACES)
    async def test_a_reopened_sqlite_store_still_knows(self, sqlite_url: str, face: str) -> None:
        model = ScriptedChatModel(turns=[call_tool("save_memory_store", content=TEA), "Saved.", "Tea!"])
        for _ in range(2):
            with open_store(sqlite_url, embeddings=None) as opened:
                agent = make_agent(model, store=opened, middleware=[patient_memory()])
                await ask(agent, face, "What do I drink?", {"configurable": ADA})
        assert len(model.requests) == 3
        assert TEA in recalled(model)[0]

    @pytest.mark.parametrize("face", FACES)
    async def test_a_reopened_langgraph_store_still_knows(self, tmp_path: Path, face: str) -> None:
        model = ScriptedChatModel(turns=[call_tool("save_memory_store", content=TEA), "Saved.", "Tea!"])
        for _ in range(2):
            with SqliteStore.from_conn_string(str(tmp_path / "langgraph.db")) as opened:
                opened.setup()
                agent = make_agent(model, store=opened, middleware=[patient_memory()])
                await ask(agent, face, "What do I drink?", {"configurable": ADA})
        assert TEA in recalled(model)[0]

    def test_a_run_sees_what_changed_since_the_last_one(self, store: BaseStore, model: ScriptedChatModel) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory()], checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1", **ADA}}
        agent.invoke({"messages": [("user", "drinks")]}, thread)
        remember(store, {"ada": ["Ada drinks cocoa at night"]})
        agent.invoke({"messages": [("user", "drinks")]}, thread)
        assert [len(recalled(model, call)) for call in (0, 1)] == [1, 2]

    @pytest.mark.parametrize("face", FACES)
    async def test_each_run_of_a_thread_has_its_own_user(
        self, store: BaseStore, model: ScriptedChatModel, face: str
    ) -> None:
        agent = make_agent(
            model,
            store=store,
            middleware=[patient_memory()],
            context_schema=MemoryContext,
            checkpointer=InMemorySaver(),
        )
        thread = {"configurable": {"thread_id": "1"}}
        statuses: list[str] = []
        for context in (ADA, {"user_id": "bob"}, None, ADA):
            result = await ask(agent, face, "drinks", thread, context=context)
            statuses.append(result["memory_status"])
        assert statuses == ["lexical", "lexical", "closed", "lexical"]
        told = ["".join(blocks(request)) for request in model.requests]
        assert [TEA in block for block in told] == [True, False, False, True]
        assert ["Bob drinks gin" in block for block in told] == [False, True, False, False]


SYSTEM_PROMPTS: dict[str, Any] = {
    "text": "You are a butler. <rules>Bow.</rules>",
    "message": SystemMessage("You are a butler."),
    "blocks": SystemMessage(
        content=[
            {"type": "text", "text": "You are a butler."},
            {"type": "text", "text": "Bow.", "cache_control": {"type": "ephemeral"}},
        ]
    ),
}


class TestSystemMessage:
    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("prompt", SYSTEM_PROMPTS)
    async def test_the_callers_own_text_comes_first_and_unchanged(
        self, store: BaseStore, model: ScriptedChatModel, prompt: str, face: str
    ) -> None:
        given = SYSTEM_PROMPTS[prompt]
        own = (SystemMessage(given) if isinstance(given, str) else given).content_blocks
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada")], system_prompt=given)
        await ask(agent, face, "drinks")
        first, *others = model.requests[0]
        assert first.content_blocks[: len(own)] == own
        assert [one.type for one in (first, *others)] == ["system", "human"]
        assert system_text(model.requests[0]).rstrip().endswith("</user_memory_context>")
        assert TEA in recalled(model)[0]

    @pytest.mark.parametrize("face", FACES)
    async def test_without_a_system_prompt_memory_is_there_too(
        self, store: BaseStore, model: ScriptedChatModel, face: str
    ) -> None:
        middleware = patient_memory(user_id="ada", tool_instructions_enabled=False)
        await ask(make_agent(model, store=store, middleware=[middleware]), face, "drinks")
        assert system_text(model.requests[0]).strip().startswith("<user_memory_context>")
        assert len(model.requests[0]) == 2

    def test_nothing_to_say_leaves_the_prompt_alone(self, model: ScriptedChatModel) -> None:
        middleware = patient_memory(user_id="nobody", tool_instructions_enabled=False)
        with open_store("memory://", embeddings=None) as empty:
            make_agent(model, store=empty, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert [message.type for message in model.requests[0]] == ["human"]

    def test_a_middleware_after_it_sees_the_block(self, store: BaseStore, model: ScriptedChatModel) -> None:
        seen: list[str] = []

        class Watching(AgentMiddleware[Any, Any, Any]):
            def wrap_model_call(self, request: Any, handler: Any) -> Any:
                seen.append(request.system_message.text)
                return handler(request)

        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada"), Watching()])
        agent.invoke({"messages": [("user", "drinks")]})
        assert TEA in seen[0]


class TestOncePerCall:
    @pytest.mark.parametrize("face", FACES)
    async def test_in_every_model_call_once_and_never_kept(self, any_store: BaseStore, face: str) -> None:
        remember(any_store, MEMORIES)
        turns = [
            call_tool("save_memory_store", content="Ada drinks cocoa"),
            call_tool("save_memory_store", content="Ada drinks juice"),
            "Done.",
        ]
        model, saver = ScriptedChatModel(turns=turns), InMemorySaver()
        agent = make_agent(model, store=any_store, middleware=[patient_memory(user_id="ada")], checkpointer=saver)
        thread = {"configurable": {"thread_id": "1"}}
        for run in range(2):
            result = await ask(agent, face, f"Ahoy {run}, what do I drink?", thread)
            assert CANARY not in repr(result["messages"])
            assert "memory_context" not in result
            assert "memory_owner" not in result
        assert [len(blocks(request)) for request in model.requests] == [1, 1, 1, 1]
        assert len({the_block(request) for request in model.requests[:3]}) == 1
        assert len(recalled(model)) == 3
        state = await agent.aget_state(thread)
        assert "memory_context" not in state.values
        assert "Ahoy 1" in stored(saver)
        assert CANARY not in stored(saver)

    def test_history_holds_no_memory_either(self, store: BaseStore, model: ScriptedChatModel) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada")], checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        agent.invoke({"messages": [("user", "drinks")]}, thread)
        history = list(agent.get_state_history(thread))
        assert len(history) > 2
        assert all("memory_context" not in state.values and CANARY not in repr(state) for state in history)

    @pytest.mark.parametrize("face", FACES)
    async def test_the_query_is_embedded_once_a_run(self, face: str) -> None:
        class Counting(HashingEmbeddings):
            queries = 0

            def embed_query(self, text: str) -> list[float]:
                self.queries += 1
                return super().embed_query(text)

        counting = Counting()
        model = ScriptedChatModel(turns=[call_tool("list_memories_store"), call_tool("list_memories_store"), "Done."])
        with open_store("memory://", embeddings=counting) as opened:
            remember(opened, MEMORIES)
            middleware = patient_memory(user_id="ada", include_tools=["list_memories_store"])
            counting.queries = 0
            await ask(make_agent(model, store=opened, middleware=[middleware]), face, "drinks")
        assert (len(model.requests), counting.queries) == (3, 1)

    @pytest.mark.parametrize("face", FACES)
    async def test_nothing_of_a_run_stays_on_the_middleware(
        self, store: BaseStore, model: ScriptedChatModel, face: str
    ) -> None:
        middleware = patient_memory(AgentMemoryStoreService(store))
        before = dict(vars(middleware)), dict(vars(middleware._binding))
        agent = make_agent(model, middleware=[middleware], context_schema=MemoryContext)
        await ask(agent, face, "drinks", context=ADA)
        assert (vars(middleware), vars(middleware._binding)) == before
        assert TEA in recalled(model)[0]
        assert not [text for text in held_texts(middleware) if CANARY in text or text == "ada"]


def held_texts(holder: Any, seen: set[int] | None = None) -> Iterator[str]:
    """The texts that an object holds, but not those of a store."""
    seen = set[int]() if seen is None else seen
    if isinstance(holder, str):
        yield holder
    elif id(holder) in seen or isinstance(holder, MemoryScope | BaseStore | type):
        return
    else:
        seen.add(id(holder))
        inner: list[Any] = list(getattr(holder, "__dict__", {}).values())
        if isinstance(holder, Mapping):
            inner += [*holder.keys(), *holder.values()]
        elif isinstance(holder, list | tuple | set | frozenset):
            inner += list(holder)
        for one in inner:
            yield from held_texts(one, seen)


@tool
def confirm(question: str) -> str:
    """Asks the user."""
    return str(interrupt(question))


PAUSES: dict[str, tuple[Callable[[], list[Any]], list[Any], AIMessage, Any]] = {
    "human in the loop": (
        lambda: [HumanInTheLoopMiddleware(interrupt_on={"save_memory_store": True})],
        [],
        call_tool("save_memory_store", content="Ada drinks cocoa"),
        {"decisions": [{"type": "approve"}]},
    ),
    "interrupt in a tool": (list, [confirm], call_tool("confirm", question="Sure?"), "yes"),
}


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("face", FACES)
class TestResume:
    def paused(self, pause: str, store: BaseStore) -> tuple[ScriptedChatModel, Any, Command[Any]]:
        others, tools, turn, answer = PAUSES[pause]
        model = ScriptedChatModel(turns=[turn, call_tool("list_memories_store"), "Done."])
        names = ["save_memory_store", "list_memories_store"]
        agent = make_agent(
            model,
            store=store,
            tools=tools,
            middleware=[patient_memory(include_tools=names), *others()],
            context_schema=MemoryContext,
            checkpointer=InMemorySaver(),
        )
        return model, agent, Command(resume=answer)

    async def test_the_block_is_there_again(self, any_store: BaseStore, pause: str, face: str) -> None:
        remember(any_store, MEMORIES)
        model, agent, resume = self.paused(pause, any_store)
        thread = {"configurable": {"thread_id": "1"}}
        assert "__interrupt__" in await ask(agent, face, "What do I drink?", thread, context=ADA)
        result = await ask(agent, face, resume, thread, context=ADA)
        self.check_resumed(model, result)

    def check_resumed(self, model: ScriptedChatModel, result: Any) -> None:
        assert [len(blocks(request)) for request in model.requests] == [1, 1, 1]
        assert all(TEA in the_block(request) for request in model.requests)
        assert result["memory_status"] == "lexical"
        assert "✗" not in "".join(replies(result))
        assert TEA in replies(result)[-1]

    async def test_another_users_resume_is_closed(self, any_store: BaseStore, pause: str, face: str) -> None:
        service = remember(any_store, MEMORIES)
        model, agent, resume = self.paused(pause, any_store)
        thread = {"configurable": {"thread_id": "1"}}
        await ask(agent, face, "What do I drink?", thread, context=ADA)
        result = await ask(agent, face, resume, thread, context={"user_id": "bob"})
        assert (result["memory_status"], result["memories_recalled"]) == ("closed", 0)
        assert result["memory_status_reason"] == "This run belongs to another user"
        assert [len(blocks(request)) for request in model.requests] == [1, 0, 0]
        assert replies(result)[-1].startswith("✗ Memory is off in this conversation")
        assert [service.sync.count_memories(user)["total"] for user in ("ada", "bob")] == [1, 1]

    async def test_the_owner_survives_a_stranger(self, store: BaseStore, pause: str, face: str) -> None:
        _, agent, resume = self.paused(pause, store)
        thread = {"configurable": {"thread_id": "1"}}
        await ask(agent, face, "What do I drink?", thread, context=ADA)
        await ask(agent, face, resume, thread, context={"user_id": "bob"})
        mark = (await agent.aget_state(thread)).values["memory_owner"]
        assert is_owner(mark, "ada")
        assert "ada" not in re.sub(r"[0-9a-f]{8,}", "", mark)  # a digest may hold these letters

    async def test_a_run_that_began_without_a_user_stays_closed(self, store: BaseStore, pause: str, face: str) -> None:
        model, agent, resume = self.paused(pause, store)
        thread = {"configurable": {"thread_id": "1"}}
        await ask(agent, face, "What do I drink?", thread)
        result = await ask(agent, face, resume, thread, context=ADA)
        assert result["memory_status"] == "closed"
        assert not any(map(blocks, model.requests))
        assert replies(result)[-1].startswith("✗")

    async def test_a_new_process_resumes(self, store: BaseStore, pause: str, face: str) -> None:
        _, first, resume = self.paused(pause, store)
        model, second, _ = self.paused(pause, store)
        second.checkpointer = first.checkpointer
        thread = {"configurable": {"thread_id": "1"}}
        await ask(first, face, "What do I drink?", thread, context=ADA)
        model.turns = ["Done."]
        await ask(second, face, resume, thread, context=ADA)
        assert TEA in the_block(model.requests[0])

    async def test_regression_nobody_resumes_as_its_owner(self, store: BaseStore, pause: str, face: str) -> None:
        """A run that was resumed without a user went on as the user whose thread it was."""
        _, first, resume = self.paused(pause, store)
        model, second, _ = self.paused(pause, store)
        second.checkpointer = first.checkpointer
        thread = {"configurable": {"thread_id": "1"}}
        await ask(first, face, "What do I drink?", thread, context=ADA)
        model.turns = [call_tool("list_memories_store"), "Done."]
        result = await ask(second, face, resume, thread)
        assert result["memory_status"] == "closed"
        assert result["memory_status_reason"].startswith("No user resumes this run, which belongs to one: pass context")
        assert not any(map(blocks, model.requests))
        assert replies(result)[-1].startswith("✗ Memory is off in this conversation")


def broken_sqlite(path: Path) -> BaseStore:
    with SqliteStore.from_conn_string(str(path)) as closed:
        closed.setup()
    return closed


class TestStatus:
    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("own", [True, False], ids=["own", "langgraph"])
    async def test_recalled_with_embeddings(self, model: ScriptedChatModel, own: bool, face: str) -> None:
        with open_store("memory://", embeddings=HashingEmbeddings()) as opened:
            store: BaseStore = opened if own else InMemoryStore()
            remember(store, MEMORIES, embeddings=None if own else HashingEmbeddings())
            middleware = patient_memory(user_id="ada", embeddings=HashingEmbeddings())
            result = await ask(make_agent(model, store=store, middleware=[middleware]), face, "drinks")
        assert (result["memory_status"], result["memory_status_reason"]) == ("recalled", None)
        assert TEA in recalled(model)[0]

    @pytest.mark.parametrize("face", FACES)
    async def test_lexical_without_embeddings(self, store: BaseStore, model: ScriptedChatModel, face: str) -> None:
        result = await ask(make_agent(model, store=store, middleware=[patient_memory(user_id="ada")]), face, "drinks")
        assert (result["memory_status"], result["memory_status_reason"]) == ("lexical", "no embedding model")

    @pytest.mark.parametrize("face", FACES)
    async def test_lexical_when_the_embeddings_fail(self, model: ScriptedChatModel, face: str) -> None:
        with open_store("memory://", embeddings=FailingEmbeddings()) as opened:
            remember(opened, {"ada": [TEA]})
            middleware = patient_memory(user_id="ada")
            result = await ask(make_agent(model, store=opened, middleware=[middleware]), face, "drinks")
        assert result["memory_status"] == "lexical"
        assert result["memory_status_reason"] == "The embedding model failed"  # nothing of what the provider says
        assert TEA in recalled(model)[0]

    @pytest.mark.parametrize("face", FACES)
    async def test_degraded_when_the_store_is_closed(
        self, model: ScriptedChatModel, sqlite_url: str, face: str
    ) -> None:
        with open_store(sqlite_url, embeddings=None) as opened:
            remember(opened, MEMORIES)
        agent = make_agent(model, store=opened, middleware=[patient_memory(user_id="ada")], system_prompt="Hi.")
        result = await ask(agent, face, "drinks")
        assert result["memory_status"] == "degraded"
        assert "closed" in result["memory_status_reason"]
        assert result["messages"][-1].text == "Noted."
        assert blocks(model.requests[0]) == []

    @pytest.mark.parametrize("face", FACES)
    async def test_degraded_when_another_library_fails(
        self, model: ScriptedChatModel, tmp_path: Path, face: str
    ) -> None:
        agent = make_agent(model, store=broken_sqlite(tmp_path / "x.db"), middleware=[patient_memory(user_id="ada")])
        result = await ask(agent, face, "drinks")
        assert (result["memory_status"], result["memories_recalled"]) == ("degraded", 0)
        assert result["messages"][-1].text == "Noted."

    def test_an_outage_is_logged_once_in_a_while(
        self, model: ScriptedChatModel, store: BaseStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        middleware = patient_memory(user_id="ada", recall_timeout=0.01, cold_timeout=0.01)
        agent = make_agent(model, store=store, middleware=[middleware])
        with without_workers(store):
            statuses = [agent.invoke({"messages": [("user", "drinks")]})["memory_status"] for _ in range(3)]
        assert statuses == ["degraded"] * 3
        assert len([record for record in caplog.records if "Recall failed" in record.message]) == 1

    @pytest.mark.parametrize("face", FACES)
    async def test_degraded_when_time_is_up(self, store: BaseStore, model: ScriptedChatModel, face: str) -> None:
        middleware = patient_memory(user_id="ada", recall_timeout=0.01, cold_timeout=0.01)
        with without_workers(store):
            result = await ask(make_agent(model, store=store, middleware=[middleware]), face, "drinks")
        assert result["memory_status"] == "degraded"
        assert "deadline" in result["memory_status_reason"]

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            (None, "No user"),
            ("", "user"),
            ("x" * 513, "user_id must have 1 to"),
            (failing_user, "the session is gone"),
            (number_of, "must be a string, a UUID or an integer, not float"),
            (nobody, "No user"),
        ],
        ids=["none", "empty", "too long", "failing", "number", "callable without user"],
    )
    async def test_closed_without_a_user(
        self, store: BaseStore, model: ScriptedChatModel, source: Any, reason: str, face: str
    ) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id=source)])
        result = await ask(agent, face, "drinks")
        assert result["memory_status"] == "closed"
        assert reason in result["memory_status_reason"]
        assert result["messages"][-1].text == "Noted."
        assert blocks(model.requests[0]) == []

    def test_a_forgotten_user_is_logged_once_a_process_or_an_error(
        self,
        store: BaseStore,
        model: ScriptedChatModel,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Regression: who forgot the user had an agent without memory, and no word about it."""
        monkeypatch.setattr(memory_module, "_said_nobody", threading.Event())
        for _ in range(2):
            make_agent(model, store=store, middleware=[patient_memory()]).invoke({"messages": ["drinks"]})
        (said,) = [one for one in caplog.messages if "no memory" in one]
        assert said == (
            "A run has no memory. No user: pass context={'user_id': …} or configurable={'user_id': …}, or give the "
            "middleware user_id. To make this an error: require_user=True"
        )
        strict = make_agent(model, store=store, middleware=[patient_memory(require_user=True)])
        with pytest.raises(IdentityError, match="No user: pass context"):
            strict.invoke({"messages": ["drinks"]})

    def test_a_number_is_a_user(self, store: BaseStore, model: ScriptedChatModel) -> None:
        """An integer key of a table of users turned memory off."""
        AgentMemoryStoreService(store).sync.save_memory("7", "Drinks only tea", "facts")
        agent = make_agent(model, store=store, middleware=[patient_memory()], context_schema=MemoryContext)
        for options in ({"context": {"user_id": 7}}, {"config": {"configurable": {"user_id": 7}}}):
            result = agent.invoke({"messages": [("user", "drinks")]}, **options)
            assert (result["memory_status"], result["memories_recalled"]) == ("lexical", 1)

    @pytest.mark.parametrize("context", [{"user_id": 7.5}, {"user_id": True}, {"user_id": ["ada"]}, {"user_id": ""}])
    def test_closed_for_what_is_no_user(
        self, store: BaseStore, model: ScriptedChatModel, context: dict[str, Any]
    ) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory()], context_schema=MemoryContext)
        result = agent.invoke({"messages": [("user", "drinks")]}, {"configurable": ADA}, context=context)
        assert result["memory_status"] == "closed"

    @pytest.mark.parametrize("face", FACES)
    async def test_off_recalls_nothing_and_keeps_the_tools(self, store: BaseStore, face: str) -> None:
        model = ScriptedChatModel(turns=[call_tool("recall_memories_store", query="drinks"), "Tea."])
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada", auto_recall=False)])
        result = await ask(agent, face, "drinks")
        assert (result["memory_status"], result["memory_status_reason"]) == ("off", "auto_recall is off")
        assert not any(map(blocks, model.requests))
        assert TEA in replies(result)[0]

    def test_without_a_question_the_newest_are_told(self, store: BaseStore, model: ScriptedChatModel) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada")])
        agent.invoke({"messages": [AIMessage("How can I help?")]})
        assert TEA in recalled(model)[0]

    def test_the_names_are_fixed(self) -> None:
        assert [status.value for status in MemoryStatus] == ["recalled", "lexical", "degraded", "closed", "off"]


class TestErrors:
    @pytest.mark.parametrize("face", FACES)
    async def test_a_models_error_propagates_once(self, store: BaseStore, face: str) -> None:
        model = ScriptedChatModel(turns=[RuntimeError("the model is down"), "late"])
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada")])
        with pytest.raises(RuntimeError, match="the model is down"):
            await ask(agent, face, "drinks")
        assert len(model.requests) == 1

    @pytest.mark.parametrize("face", FACES)
    async def test_also_after_a_resume(self, store: BaseStore, face: str) -> None:
        model = ScriptedChatModel(turns=[call_tool("confirm", question="?"), RuntimeError("the model is down"), "late"])
        agent = make_agent(
            model,
            store=store,
            tools=[confirm],
            middleware=[patient_memory(user_id="ada")],
            checkpointer=InMemorySaver(),
        )
        thread = {"configurable": {"thread_id": "1"}}
        await ask(agent, face, "drinks", thread)
        with pytest.raises(RuntimeError, match="the model is down"):
            await ask(agent, face, Command(resume="yes"), thread)
        assert len(model.requests) == 2

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("store", [None, "sqlite:///memory.db"], ids=["none", "url"])
    async def test_neither_store_nor_service_is_the_developers_mistake(
        self, model: ScriptedChatModel, store: str | None, face: str
    ) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada")])
        with pytest.raises(ConfigurationError, match="open_store"):
            await ask(agent, face, "drinks")
        assert model.requests == []

    @pytest.mark.parametrize(
        "options",
        [
            {"max_recall_results": 0},
            {"max_recall_results": -1},
            {"recall_timeout": 0},
            {"recall_timeout": -0.1},
            {"cold_timeout": 0},
            {"include_memory_types": ["facts", "recipes"]},
            {"include_categories": ["semantic", "culinary"]},
            {"timezone": "Mars/Phobos"},
            {"agent_name": "a\x00b"},
            {"agent_name": "\ud800"},
            {"memory_service": "sqlite:///memory.db"},
            {"memory_service": InMemoryStore()},
        ],
    )
    def test_bad_arguments_raise(self, options: dict[str, Any]) -> None:
        with pytest.raises((ConfigurationError, InvalidInput)):
            MemoryMiddleware(**options)

    @pytest.mark.parametrize("embeddings", ["nosuchprovider:model", 42], ids=str)
    def test_bad_embeddings_raise_on_the_first_run(self, model: ScriptedChatModel, embeddings: Any) -> None:
        agent = make_agent(
            model, store=InMemoryStore(), middleware=[patient_memory(user_id="ada", embeddings=embeddings)]
        )
        with pytest.raises(ConfigurationError):
            agent.invoke({"messages": [("user", "drinks")]})


class TestOptions:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (None, ["save_memory_store", "recall_memories_store", "update_memory_store", "delete_memory_store"]),
            ([], []),
            (["save_memory_store", "list_memories_store"], ["save_memory_store", "list_memories_store"]),
            (["list_memories_store", "nonsense", "save_memory_store"], ["list_memories_store", "save_memory_store"]),
        ],
    )
    def test_include_tools(
        self, store: BaseStore, model: ScriptedChatModel, names: list[str] | None, expected: list[str]
    ) -> None:
        middleware = patient_memory(user_id="ada", include_tools=names)
        make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert [one.name for one in middleware.tools] == expected
        text = system_text(model.requests[0])
        assert ("Save, without being asked" in text) == ("save_memory_store" in expected)
        assert ("## Memory Tools Usage (CoALA Architecture)" in text) == bool(expected)
        assert TEA in recalled(model)[0]

    def test_a_tool_that_is_not_included_does_nothing(self, store: BaseStore) -> None:
        model = ScriptedChatModel(
            turns=[call_tool("delete_memory_store", memory_id="x"), call_tool("list_memories_store"), "Done."]
        )
        middleware = patient_memory(user_id="ada", include_tools=["list_memories_store"])
        result = make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert "delete_memory_store is not a valid tool" in replies(result)[0]
        assert TEA in replies(result)[1]

    @pytest.mark.parametrize(
        ("enabled", "prompt", "switch", "times"),
        [
            (True, "Hi.", None, 1),
            (None, "Hi.", None, 1),
            (False, "Hi.", None, 0),
            (True, "Hi.", False, 0),
            (False, "Hi.", True, 1),
            # Regression: an application that adds them itself, as the documented one does, had them twice.
            (True, f"Hi.\n\n{generate_memory_tools_system_instructions()}", None, 1),
        ],
    )
    def test_tool_instructions(
        self,
        store: BaseStore,
        model: ScriptedChatModel,
        enabled: bool | None,
        prompt: str,
        switch: bool | None,
        times: int,
    ) -> None:
        middleware = patient_memory(user_id="ada", tool_instructions_enabled=enabled)
        config: Any = {"configurable": {"memory_tool_instructions_enabled": switch}}
        make_agent(model, store=store, middleware=[middleware], system_prompt=prompt).invoke(
            {"messages": ["drinks"]}, config
        )
        assert system_text(model.requests[0]).count("## Memory Tools Usage") == times

    def test_a_request_says_once_how_memory_is_used(self, store: BaseStore, model: ScriptedChatModel) -> None:
        """Regression: instructions and schemas said the same twice, in 5,900 characters."""
        middleware = patient_memory(user_id="new")
        make_agent(model, store=store, middleware=[middleware]).invoke({"messages": ["hello"]})
        said = [json.dumps(convert_to_openai_tool(tool)) for tool in middleware.tools]
        instructions = system_text(model.requests[0])
        assert "never announce" in instructions
        assert len(instructions) + sum(map(len, said)) <= 2_500

    def test_the_documented_arguments_and_attributes(self) -> None:
        """Regression: the documented attributes did not exist, and `postrun_analysis` named an internal class."""
        off: Any = {"postrun_analysis": False, "postrun_analysis_model": None, "request_id": None}
        middleware = create_memory_middleware(None, "ada", False, 3, ["facts"], ["semantic"], session_id="s", **off)
        assert (middleware.user_id, middleware.auto_recall, middleware.max_recall_results) == ("ada", False, 3)
        assert (middleware.include_memory_types, middleware.include_categories) == (["facts"], ["semantic"])
        assert (middleware.memory_service, middleware.session_id) == (None, "s")
        on: Any = {"postrun_analysis": True}
        with pytest.raises(ConfigurationError, match=r"no postrun_analysis: add CaptureMiddleware\(RuleExtractor"):
            MemoryMiddleware(**on)

    @pytest.mark.parametrize(("default", "switch", "is_told"), [(True, False, False), (False, True, True)])
    def test_a_run_switches_recall_on_or_off(
        self, store: BaseStore, model: ScriptedChatModel, default: bool, switch: bool, is_told: bool
    ) -> None:
        """Regression: the documented switches of a request were ignored."""
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada", auto_recall=default)])
        config: Any = {"configurable": {"memory_session_context_enabled": switch}}
        result = agent.invoke({"messages": ["drinks"]}, config)
        assert (TEA in system_text(model.requests[0])) == is_told
        assert (result["memory_status"] == MemoryStatus.OFF.value) != is_told

    @pytest.mark.parametrize(
        ("named", "options", "agent"),
        [("planner", {}, "planner"), ("planner", {"agent_name": None}, None), (None, {"agent_name": "p"}, "p")],
    )
    def test_an_agent_is_called_what_create_agent_calls_it(
        self, own_store: BaseStore, named: str | None, options: dict[str, Any], agent: str | None
    ) -> None:
        """Regression: `create_agent(name=…)` had no effect on whose episodic and procedural memories these are."""
        model = ScriptedChatModel(
            turns=[call_tool("save_memory_store", content="Met in Rome", memory_type="interaction"), "ok"]
        )
        made = make_agent(model, store=own_store, name=named, middleware=[patient_memory(user_id="zoe", **options)])
        made.invoke({"messages": ["Note that we met in Rome"]})
        ((found,), _) = list_user_memories(own_store, "zoe")
        assert found["agent_name"] == agent

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, {"preferences", "facts", "context", "skill"}),
            ({"include_categories": ["episodic"]}, {"context"}),
            ({"include_categories": ["procedural", "semantic"]}, {"preferences", "facts", "skill"}),
            ({"include_memory_types": ["facts", "skill"]}, {"facts", "skill"}),
            ({"include_memory_types": ["facts", "skill"], "include_categories": ["semantic"]}, {"facts"}),
            ({"include_memory_types": []}, set[str]()),
        ],
    )
    def test_include_categories_and_types(
        self, own_store: BaseStore, model: ScriptedChatModel, options: dict[str, Any], expected: set[str]
    ) -> None:
        service = AgentMemoryStoreService(own_store)
        for kind in ("preferences", "facts", "context", "skill"):
            service.sync.save_memory("ada", f"drinks, of type {kind}", kind)
        agent = make_agent(model, store=own_store, middleware=[patient_memory(user_id="ada", **options)])
        result = agent.invoke({"messages": [("user", "drinks")]})
        assert set(result["memory_types_recalled"]) == expected
        shown = "".join(blocks(model.requests[0]))
        assert {kind for kind in ("preferences", "facts", "context", "skill") if f"(type: {kind})" in shown} == expected

    @pytest.mark.parametrize("limit", [1, 3])
    @pytest.mark.parametrize("question", ["drinks", "something else entirely"])
    def test_max_recall_results_bounds_each_category(
        self, own_store: BaseStore, model: ScriptedChatModel, limit: int, question: str
    ) -> None:
        service = AgentMemoryStoreService(own_store)
        for kind in ("facts", "context", "skill"):
            for number in range(5):
                service.sync.save_memory("ada", f"drinks {number} of {kind}", kind)
        agent = make_agent(model, store=own_store, middleware=[patient_memory(user_id="ada", max_recall_results=limit)])
        result = agent.invoke({"messages": [("user", question)]})
        assert result["memories_recalled"] == 3 * limit
        assert [the_block(model.requests[0]).count(f"(type: {kind})") for kind in ("facts", "context", "skill")] == (
            [limit] * 3
        )

    def test_types_are_chosen_before_the_cut(self, any_store: BaseStore, model: ScriptedChatModel) -> None:
        service = AgentMemoryStoreService(any_store)
        service.sync.save_memory("ada", "drinks tea", "preferences")
        for number in range(12):
            service.sync.save_memory("ada", f"drinks drinks {number}", "general")
        middleware = patient_memory(user_id="ada", include_memory_types=["preferences"], max_recall_results=2)
        make_agent(model, store=any_store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        (line,) = recalled(model)
        assert "drinks tea" in line

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize(
        ("zone", "heading", "stamp", "now"),
        [
            (None, "Yesterday", "2026-01-15T12:00:00", "(UTC): 2026-01-16T00:30:00Z"),
            ("America/New_York", "Recent (today)", "2026-01-15T07:00:00", "(EST): 2026-01-15T19:30:00"),
            ("Pacific/Kiritimati", "Recent (today)", "2026-01-16T02:00:00", "(+14): 2026-01-16T14:30:00"),
            ("Mars/Phobos", "Yesterday", "2026-01-15T12:00:00", "(UTC): 2026-01-16T00:30:00Z"),
            ("", "Yesterday", "2026-01-15T12:00:00", "(UTC): 2026-01-16T00:30:00Z"),
            (5, "Yesterday", "2026-01-15T12:00:00", "(UTC): 2026-01-16T00:30:00Z"),
        ],
    )
    async def test_the_contexts_time_zone_decides_the_day(
        self,
        store: BaseStore,
        model: ScriptedChatModel,
        clock: FrozenClock,
        zone: Any,
        heading: str,
        stamp: str,
        now: str,
        face: str,
    ) -> None:
        remember(store, {"eve": ["Eve drinks ale"]}, clock=clock)
        clock.advance(timedelta(hours=12, minutes=30))
        agent = make_agent(model, store=store, middleware=[patient_memory(clock=clock)], context_schema=MemoryContext)
        await ask(agent, face, "drinks", context={"user_id": "eve", "timezone": zone})
        block = the_block(model.requests[0])
        assert f"\n  {heading}:\n  - [{stamp}] Eve drinks ale (type: facts)\n" in block
        assert f"Current datetime {now}\n" in block

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize(("zone", "found"), [("UTC", "skiing"), ("Asia/Tokyo", "running")])
    async def test_regression_the_tools_days_are_those_of_the_context(
        self, store: BaseStore, clock: FrozenClock, zone: str, found: str, face: str
    ) -> None:
        """The recall tool took the days of the default zone."""
        save = AgentMemoryStoreService(store, clock=clock).sync.save_memory
        for sport, day in (("running", 15), ("skiing", 14)):  # the clock shows the 15th: in Tokyo, it is the 16th then
            at = datetime(2026, 1, day, 10, tzinfo=UTC)
            save("eve", f"Went {sport}", "interaction", valid_from=at)
        clock.advance(datetime(2026, 1, 15, 23, 30, tzinfo=UTC) - clock.now())
        asks = call_tool("recall_memories_store", query="Where did I go yesterday? went", max_results=1)
        agent = make_agent(
            ScriptedChatModel(turns=[asks, "There."]),
            store=store,
            middleware=[patient_memory(clock=clock)],
            context_schema=MemoryContext,
        )
        result = await ask(agent, face, "Hello", context={"user_id": "eve", "timezone": zone})
        assert f"Went {found}" in result["messages"][-2].text

    @pytest.mark.parametrize("zone", ["Asia/Kathmandu", ZoneInfo("Asia/Kathmandu")], ids=["name", "tzinfo"])
    @pytest.mark.parametrize("where", ["middleware", "service"])
    def test_the_default_time_zone(
        self, store: BaseStore, model: ScriptedChatModel, clock: FrozenClock, zone: Any, where: str
    ) -> None:
        service = remember(store, {"eve": ["Eve drinks ale"]}, clock=clock, timezone=zone)
        middleware = (
            patient_memory(service, user_id="eve")
            if where == "service"
            else patient_memory(user_id="eve", clock=clock, timezone=zone)
        )
        make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert "[2026-01-15T17:45:00] Eve drinks ale" in recalled(model)[0]

    def test_saves_carry_thread_session_and_call(self, store: BaseStore) -> None:
        for session, expected in ((None, "t-1"), ("s-1", "s-1")):
            turn = call_tool("save_memory_store", content=f"Ada drinks cocoa in {expected}")
            model = ScriptedChatModel(turns=[turn, "Done."])
            agent = make_agent(
                model,
                store=store,
                middleware=[patient_memory(user_id="ada", session_id=session)],
                checkpointer=InMemorySaver(),
            )
            result = agent.invoke({"messages": [("user", "I drink cocoa")]}, {"configurable": {"thread_id": "t-1"}})
            key = replies(result)[0].split("id: ")[1].split(",")[0]
            memory = AgentMemoryStoreService(store).sync.get_memory("ada", key)
            assert memory is not None
            assert memory.value["session_id"] == expected
            assert memory.value["source"] == {
                "origin": "agent",
                "thread_id": "t-1",
                "message_ids": [turn.tool_calls[0]["id"]],
                "tool": "save_memory_store",
            }

    @pytest.mark.parametrize("scoped", [True, False])
    def test_agent_scope(self, store: BaseStore, model: ScriptedChatModel, scoped: bool) -> None:
        AgentMemoryStoreService(store, agent_name="planner").sync.save_memory("eve", "drinks privately", "context")
        AgentMemoryStoreService(store).sync.save_memory("eve", "drinks openly", "context")
        middleware = patient_memory(user_id="eve", agent_name="planner", agent_scope_enabled=scoped)
        make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert ("privately" in the_block(model.requests[0])) == scoped
        assert "openly" in the_block(model.requests[0])

    def test_max_content_bytes(self, store: BaseStore) -> None:
        model = ScriptedChatModel(turns=[call_tool("save_memory_store", content="x" * 101), "Done."])
        middleware = patient_memory(user_id="ada", max_content_bytes=100)
        result = make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert replies(result)[0].startswith("✗ content has 101 characters")


def with_all_arguments(service: AgentMemoryStoreService) -> MemoryMiddleware:
    return create_memory_middleware(
        memory_service=service,
        user_id="ada",
        auto_recall=True,
        max_recall_results=5,
        include_memory_types=["facts"],
        include_categories=["semantic"],
        session_id="s",
    )


def on_sync_face(service: AgentMemoryStoreService) -> MemoryMiddleware:
    return patient_memory(service.sync)


def from_settings(service: AgentMemoryStoreService) -> MemoryMiddleware:
    return MemoryMiddleware.from_settings(MemorySettings(), service, recall_timeout=60)


MAKERS: dict[str, Callable[[AgentMemoryStoreService], MemoryMiddleware]] = {
    "class": patient_memory,
    "create": create_memory_middleware,
    "create with all": with_all_arguments,
    "sync service": on_sync_face,
    "settings": from_settings,
}


def stored_row(store: BaseStore) -> Any:
    """Ada's only memory as it is stored."""
    (row,) = store.search(("ada", "semantic"))
    return row


async def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Waits until something in the background has happened."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


class TestServices:
    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("make", MAKERS)
    async def test_a_service_is_enough(self, store: BaseStore, model: ScriptedChatModel, make: str, face: str) -> None:
        agent = make_agent(model, middleware=[MAKERS[make](AgentMemoryStoreService(store))])
        await ask(agent, face, "drinks", {"configurable": ADA})
        (block,) = blocks(model.requests[0])
        (line,) = memory_lines(block)
        assert TEA in line

    def test_the_service_wins_over_the_agents_store(self, store: BaseStore, model: ScriptedChatModel) -> None:
        other = InMemoryStore()
        remember(other, {"ada": ["Ada drinks nothing"]})
        middleware = patient_memory(AgentMemoryStoreService(store), user_id="ada")
        make_agent(model, store=other, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert TEA in the_block(model.requests[0])
        assert "nothing" not in the_block(model.requests[0])

    def test_settings_describe_the_middleware(self, store: BaseStore, model: ScriptedChatModel) -> None:
        settings = MemorySettings(enabled=False, max_results=2, timezone="Asia/Tokyo")
        middleware = MemoryMiddleware.from_settings(settings, user_id="ada")
        result = make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert (list(middleware.tools), result["memory_status"]) == ([], "off")
        assert system_text(model.requests[0]) == ""

    def test_options_win_over_settings(self, store: BaseStore, model: ScriptedChatModel) -> None:
        remember(store, {"ada": ["Ada drinks cocoa", "Ada drinks juice"]})
        middleware = MemoryMiddleware.from_settings(
            MemorySettings(max_results=1, placement="system", profile=False),
            user_id="ada",
            max_recall_results=2,
            recall_timeout=60,
        )
        make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert len(recalled(model)) == 2

    @pytest.mark.parametrize("face", FACES)
    async def test_stores_that_are_gone_are_forgotten(self, model: ScriptedChatModel, face: str) -> None:
        middleware = patient_memory(user_id="ada")
        scopes = middleware._binding._scopes
        store = InMemoryStore()
        await ask(make_agent(model, store=store, middleware=[middleware]), face, "drinks")
        assert len(scopes) == 1
        gone = weakref.ref(store)
        del store
        for _ in range(600):  # a thread that has just worked for the store may hold it for a moment
            gc.collect()
            if not scopes:
                break
            await asyncio.sleep(0.1)
        assert (gone(), len(scopes)) == (None, 0)

    @pytest.mark.parametrize("face", FACES)
    async def test_what_was_made_for_a_store_goes_with_it(self, model: ScriptedChatModel, face: str) -> None:
        before = set(threading.enumerate())
        middleware = patient_memory(user_id="ada")
        store = InMemoryStore()
        await ask(make_agent(model, store=store, middleware=[middleware]), face, "drinks")
        ((scope,),) = [known.values() for known in middleware._binding._scopes.values()]
        engine = weakref.ref(scope.engine)
        del scope
        workers = [one for one in set(threading.enumerate()) - before if one.name.startswith("memory-store")]
        assert workers
        del store
        for _ in range(600):  # a thread that has just worked for the store may hold it for a moment
            gc.collect()
            if engine() is None and not any(worker.is_alive() for worker in workers):
                break
            await asyncio.sleep(0.1)
        assert ([worker.is_alive() for worker in workers], engine()) == ([False] * len(workers), None)

    def test_a_forgotten_store_leaves_the_model_to_the_others(self, model: ScriptedChatModel) -> None:
        middleware = patient_memory(user_id="ada", embeddings=HashingEmbeddings())
        statuses: list[str] = []
        for _ in range(2):
            store = InMemoryStore()
            agent = make_agent(model, store=store, middleware=[middleware])
            statuses.append(agent.invoke({"messages": [("user", "drinks")]})["memory_status"])
            del store, agent
            gc.collect()
            for closing_thread in [one for one in threading.enumerate() if one.name == "memory-close"]:
                closing_thread.join(60)
        assert statuses == ["recalled", "recalled"]

    async def test_missing_vectors_are_added_once(self, model: ScriptedChatModel) -> None:
        store = InMemoryStore()
        remember(store, {"ada": [TEA]})
        middleware = patient_memory(user_id="ada", embeddings=HashingEmbeddings())
        await ask(make_agent(model, store=store, middleware=[middleware]), "async", "drinks")
        await until(lambda: "vector" in stored_row(store).value["_inference_core"])
        await asyncio.sleep(0.2)
        before = stored_row(store)
        await asyncio.sleep(0.2)
        assert stored_row(store).updated_at == before.updated_at

    def test_own_stores_are_forgotten_too(self, model: ScriptedChatModel) -> None:
        middleware = patient_memory(user_id="ada")
        store = open_store("memory://", embeddings=None)
        with closing(store.engine):
            make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
            assert len(middleware._binding._scopes) == 1
            del store
            gc.collect()
            assert len(middleware._binding._scopes) == 0

    @pytest.mark.parametrize("embeddings", [None, HashingEmbeddings()], ids=["words", "meaning"])
    def test_each_store_has_its_own_memory(self, model: ScriptedChatModel, embeddings: Any) -> None:
        middleware = patient_memory(user_id="ada", embeddings=embeddings)
        for drink in ("tea", "cocoa"):
            store = InMemoryStore()
            remember(store, {"ada": [f"Ada drinks {drink}"]})
            make_agent(model, store=store, middleware=[middleware]).invoke({"messages": [("user", "drinks")]})
        assert [drink in the_block(model.requests[-1]) for drink in ("tea", "cocoa")] == [False, True]


MODES: list[Any] = ["messages", "custom", ["messages", "custom"]]


class TestStreams:
    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("mode", MODES, ids=str)
    async def test_what_is_streamed_to_the_user_holds_no_memory(self, store: BaseStore, mode: Any, face: str) -> None:
        model = ScriptedChatModel(turns=[call_tool("save_memory_store", content="Ada likes mint"), "Sure."])
        middleware = patient_memory(user_id="ada")
        agent = make_agent(model, store=store, middleware=[middleware], checkpointer=InMemorySaver())
        asked, thread = {"messages": [("user", "What do I drink?")]}, {"configurable": {"thread_id": "1"}}
        if face == "sync":
            chunks = list(agent.stream(asked, thread, stream_mode=mode))
        else:
            chunks = [chunk async for chunk in agent.astream(asked, thread, stream_mode=mode)]
        assert all(TEA in the_block(request) for request in model.requests)
        assert ("Sure." in repr(chunks)) == (mode != "custom")
        assert CANARY not in repr(chunks)
        assert "user_memory_context" not in repr(chunks)

    async def test_values_of_a_stream_end_with_the_answer(self, store: BaseStore, model: ScriptedChatModel) -> None:
        agent = make_agent(model, store=store, middleware=[patient_memory(user_id="ada")])
        last = list(agent.stream({"messages": [("user", "drinks")]}, stream_mode="values"))[-1]
        assert last["messages"][-1].text == "Noted."
        assert last["memory_status"] == "lexical"


class TestPlainGraph:
    def graph(self, model: ScriptedChatModel, tools: list[Any], store: BaseStore) -> Any:
        def think(state: MessagesState) -> dict[str, Any]:
            return {"messages": [model.invoke(state["messages"])]}

        def route(state: MessagesState) -> str:
            last = state["messages"][-1]
            return "tools" if isinstance(last, AIMessage) and last.tool_calls else "__end__"

        builder = StateGraph(MessagesState)
        builder.add_node("think", think)
        builder.add_node("tools", ToolNode(tools))
        builder.add_edge(START, "think")
        builder.add_conditional_edges("think", route)
        builder.add_edge("tools", "think")
        return builder.compile(store=store)

    @pytest.mark.parametrize("face", FACES)
    async def test_a_tool_node_works(self, service: AgentMemoryStoreService, face: str) -> None:
        model = ScriptedChatModel(
            turns=[
                call_tool("save_memory_store", content=TEA),
                call_tool("recall_memories_store", query="drinks"),
                "Done.",
            ]
        )
        graph = self.graph(model, get_memory_tools(service), service.store)
        result = await ask(graph, face, "I drink tea", {"configurable": ADA})
        saved, found = replies(result)
        assert saved.startswith("✓ Memory saved")
        assert TEA in found
        assert service.sync.count_memories("ada")["total"] == 1

    @pytest.mark.parametrize("face", FACES)
    async def test_a_node_calls_a_tool_itself(self, service: AgentMemoryStoreService, face: str) -> None:
        save, recall = get_memory_tools(service)[:2]

        def note(state: MessagesState) -> dict[str, Any]:
            save.invoke({"content": state["messages"][-1].text})
            return {"messages": [AIMessage(str(recall.invoke({"query": "tea"})))]}

        builder = StateGraph(MessagesState)
        builder.add_node("note", note)
        builder.add_edge(START, "note")
        result = await ask(builder.compile(), face, TEA, {"configurable": ADA})
        assert TEA in result["messages"][-1].text
        assert service.sync.count_memories("ada")["total"] == 1

    async def test_without_a_user_a_node_gets_an_answer_not_an_error(self, service: AgentMemoryStoreService) -> None:
        model = ScriptedChatModel(turns=[call_tool("save_memory_store", content=TEA), "Done."])
        graph = self.graph(model, get_memory_tools(service), service.store)
        result = await ask(graph, "async", "I drink tea")
        assert replies(result)[0].startswith("✗ Memory is off in this conversation")
