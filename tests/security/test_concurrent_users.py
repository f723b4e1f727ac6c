"""Many users at once on one agent and one middleware object: nobody's prompt or tool result holds another's (T9)."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from agent_support import blocks, make_agent, patient_memory
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware, open_store
from inference_core.testing import ScriptedChatModel, call_tool

SOME, MANY = 30, 200
"""How many users; many in the full run."""
TURNS, MANY_ASYNC, MANY_IN_THREADS = 60, 4_000, 3_000
"""On each store; many in the full run."""
OWNER = re.compile(r"owner-\d{3}")


@dataclass
class Watch:
    """What the model saw that it should not have seen."""

    foreign: list[str] = field(default_factory=list[str])
    without_memory: list[str] = field(default_factory=list[str])
    prompts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, messages: list[BaseMessage]) -> str:
        """The user whose turn it is, from the user's own words, after the prompt was examined."""
        text = "\n".join(message.text for message in messages)
        user = next(message.text for message in reversed(messages) if isinstance(message, HumanMessage)).split()[0]
        with self.lock:
            self.prompts += 1
            self.foreign += [f"{user} saw {other}" for other in set(OWNER.findall(text)) - {user}]
            if [block.count(user) >= 2 for block in blocks(messages)] != [True]:
                self.without_memory.append(user)
        return user


class WatchingModel(ScriptedChatModel):
    """Awaits at random before it answers, so that other runs come in between."""

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        return self._generate(messages)


def scripted(watch: Watch) -> WatchingModel:
    """Some turns recall, some save, most answer at once; each answer names the user whom the model served."""

    def turn(messages: list[BaseMessage]) -> AIMessage | str:
        user = watch.look(messages)
        if isinstance(messages[-1], HumanMessage) and " recall" in messages[-1].text:
            return call_tool("recall_memories_store", query="drinks", max_results=20)
        if isinstance(messages[-1], HumanMessage) and " save" in messages[-1].text:
            return call_tool("save_memory_store", content=f"{user} drinks cocoa too")
        return f"Cheers, {user}."

    return WatchingModel(turns=[turn], record=False)


@pytest.fixture
def users(full: bool) -> list[str]:
    return [f"owner-{number:03d}" for number in range(MANY if full else SOME)]


@pytest.fixture
def populated(database_url: str, users: list[str]) -> Iterator[BaseStore]:
    with open_store(database_url, embeddings=None) as store, ThreadPoolExecutor(8) as threads:
        face = AgentMemoryStoreService(store).sync
        kinds = [("facts", "tea"), ("interaction", "gin"), ("skill", "milk")]
        jobs = [
            threads.submit(face.save_memory, user, f"{user} drinks {what}", kind)
            for user in users
            for kind, what in kinds
        ]
        assert len({job.result() for job in jobs}) == len(users) * len(kinds)
        yield store


def words(user: str, turn: int) -> dict[str, Any]:
    """What the user says; every twentieth turn makes the model recall, another twentieth makes it save."""
    wish = {3: " recall", 13: " save"}.get(turn % 20, "")
    return {"messages": [("user", f"{user} drinks what?{wish}")]}


def identity(user: str, turn: int) -> dict[str, Any]:
    """How the run learns whose it is: by context, by configuration, or by both."""
    config = {"configurable": {"thread_id": f"{user}-{turn}", **({} if turn % 3 == 0 else {"user_id": user})}}
    return {"config": config, **({} if turn % 3 == 1 else {"context": {"user_id": user}})}


def check(watch: Watch, users: list[str], results: list[tuple[str, Any]], store: BaseStore) -> None:
    """Nothing foreign anywhere, memory in every prompt, and every answer and stored memory with its owner."""
    assert watch.foreign == []
    assert watch.without_memory == []
    wrong = [user for user, result in results if set(OWNER.findall(repr(result["messages"]))) != {user}]
    assert wrong == []
    assert {result["memory_status"] for _, result in results} == {"lexical"}
    answers = [message for _, result in results for message in result["messages"] if isinstance(message, ToolMessage)]
    assert len(answers) > len(results) / 20
    assert [answer.text for answer in answers if answer.text.startswith("✗")] == []
    face = AgentMemoryStoreService(store).sync
    for user in users:
        memories, total = face.list_memories(user, limit=None)
        assert total >= 3
        assert {owner for memory in memories for owner in OWNER.findall(memory.content)} == {user}


def agent_with(watch: Watch, store: BaseStore, full: bool) -> tuple[Any, MemoryMiddleware]:
    patient = AgentMemoryStoreService(store, timeout=None)
    middleware = patient_memory(patient, max_recall_results=1, tool_instructions_enabled=False)
    agent = make_agent(
        scripted(watch),
        store=store,
        middleware=[middleware],
        context_schema=MemoryContext,
        system_prompt="You are a barkeeper.",
        checkpointer=InMemorySaver() if full else None,
    )
    return agent, middleware


async def test_async_users_never_mix(populated: BaseStore, users: list[str], full: bool) -> None:
    watch, chance = Watch(), random.Random(9)
    agent, middleware = agent_with(watch, populated, full)
    before = dict(vars(middleware))
    turns = (MANY_ASYNC if full else TURNS) // len(users)
    results: list[tuple[str, Any]] = []
    cancelled = 0

    async def session(user: str) -> None:
        nonlocal cancelled
        for turn in range(turns):
            asked = words(user, chance.randrange(100))
            running = asyncio.create_task(agent.ainvoke(asked, **identity(user, turn)))
            if chance.random() < 0.1:
                for _ in range(chance.randrange(1, 60)):
                    await asyncio.sleep(0)
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
                cancelled += running.cancelled()
            else:
                results.append((user, await running))

    await asyncio.gather(*map(session, users))
    assert cancelled > turns * len(users) / 40
    assert len(results) > turns * len(users) * 0.8
    assert vars(middleware) == before
    check(watch, users, results, populated)


# LangChain silences its own warning by `warnings.catch_warnings`, which another thread may undo.
@pytest.mark.filterwarnings("ignore:Direct attribute assignment to ModelRequest:DeprecationWarning")
def test_threads_never_mix(populated: BaseStore, users: list[str], full: bool) -> None:
    watch, chance = Watch(), random.Random(12)
    agent, middleware = agent_with(watch, populated, full)
    before = dict(vars(middleware))
    total = MANY_IN_THREADS if full else TURNS
    plan = [(users[at % len(users)], at // len(users)) for at in range(total)]
    chance.shuffle(plan)

    def run(user: str, turn: int) -> tuple[str, Any]:
        return user, agent.invoke(words(user, chance.randrange(100)), **identity(user, turn))

    with ThreadPoolExecutor(32) as threads:
        results = list(threads.map(run, *zip(*plan, strict=True)))
    assert (len(results), vars(middleware)) == (total, before)
    check(watch, users, results, populated)
