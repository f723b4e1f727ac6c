"""A store that fails or hangs under an agent: every turn is answered and nothing is called saved that is not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import stopped_process
from flaky import FlakyBackend
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore
from inference_core.agents import tools
from inference_core.errors import DeadlineExceeded, StoreUnavailable, WriteUnknown
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel, call_tool

USER = {"user_id": "ada"}
TURNS = 12
RECOVERY_S = 60


def save_then_answer(messages: list[BaseMessage]) -> AIMessage | str:
    if isinstance(messages[-1], HumanMessage):
        return call_tool("save_memory_store", content="likes tea", memory_type="preferences")
    return "answered"


@pytest.fixture
def backend() -> FlakyBackend:
    return FlakyBackend()


@pytest.fixture
def store(backend: FlakyBackend) -> Iterator[MemoryStore]:
    with MemoryStore(StoreEngine(backend)) as store:
        yield store
        backend.heal()


@pytest.fixture
def agent(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tools, "WRITE_TIMEOUT_S", 0.1)
    model = ScriptedChatModel(turns=[save_then_answer], record=False)
    return create_agent(model, store=store, middleware=[MemoryMiddleware(recall_timeout=0.1)])


def tool_replies(result: dict[str, Any]) -> list[str]:
    return [message.text for message in result["messages"] if isinstance(message, ToolMessage)]


def has_recovered(result: dict[str, Any]) -> bool:
    """Whether memory was recalled and saved."""
    return result["memory_status"] == "lexical" and tool_replies(result)[0].startswith("✓")


@pytest.mark.parametrize("fault", ["down", "hang"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_every_turn_is_answered_and_none_claims_a_save(
    agent: Any, backend: FlakyBackend, store: MemoryStore, fault: str, is_async: bool
) -> None:
    question = {"messages": [("user", "I like tea")]}
    store.engine.pool._hang_s = store.engine._writer._hang_s = 1.0  # after which turns wait no more at all
    backend.fault = fault
    started = time.monotonic()
    results = [
        await agent.ainvoke(question, context=USER) if is_async else agent.invoke(question, context=USER)
        for _ in range(TURNS)
    ]
    elapsed = time.monotonic() - started
    assert [result["messages"][-1].text for result in results] == ["answered"] * TURNS
    assert {result["memory_status"] for result in results} == {"degraded"}
    assert all(reply.startswith("✗") for result in results for reply in tool_replies(result))
    assert elapsed < TURNS  # a call that hangs takes 30 s
    backend.heal()
    healed = time.monotonic()
    while not has_recovered(await agent.ainvoke(question, context=USER)):
        assert time.monotonic() - healed < RECOVERY_S
        time.sleep(0.05)  # noqa: ASYNC251 - nothing else runs on this loop


async def test_an_unrelated_thread_call_is_served_while_the_store_hangs(agent: Any, backend: FlakyBackend) -> None:
    backend.fault = "hang"
    turns = [asyncio.create_task(agent.ainvoke({"messages": [("user", "hi")]}, context=USER)) for _ in range(50)]
    await asyncio.sleep(0.02)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "served"), 60) == "served"
    results = await asyncio.gather(*turns)
    assert {result["messages"][-1].text for result in results} == {"answered"}


def test_a_write_that_timed_out_is_unknown_and_can_be_retried_under_its_id(
    store: MemoryStore, backend: FlakyBackend
) -> None:
    service, patient = AgentMemoryStoreService(store, timeout=1.0).sync, AgentMemoryStoreService(store).sync
    for what in ("milk", "water"):  # a user's second save reads whether the first has stored the audit key
        patient.save_memory("ada", f"likes {what}")
    backend.fault = "hang"
    with pytest.raises(StoreUnavailable):
        service.list_memories("ada")
    backend.calls = ["apply"]  # a save may read first who was erased
    with pytest.raises(WriteUnknown, match="retry it under the same id"):
        service.save_memory("ada", "likes tea")
    with pytest.raises(DeadlineExceeded, match="it is not made"):
        service.save_memory("ada", "likes cake")
    backend.heal()
    for _ in range(2):  # the writer stores what was sent before, first
        patient.save_memory("ada", "likes cocoa", memory_id="cocoa")
    assert patient.count_memories("ada")["semantic"] == 4


@pytest.mark.parametrize("fault", ["down", "hang"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_says_within_its_own_deadline_that_nothing_was_saved(
    backend: FlakyBackend,
    store: MemoryStore,
    fault: str,
    is_async: bool,
    default_deadlines: Mapping[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saves used to wait in a file until the database was back; now the model is told, and the run goes on."""
    limit = default_deadlines["WRITE_TIMEOUT_S"]
    assert limit <= 2
    monkeypatch.setattr(tools, "WRITE_TIMEOUT_S", limit)
    agent: Any = create_agent(
        ScriptedChatModel(turns=[save_then_answer], record=False),
        store=store,
        middleware=[MemoryMiddleware(recall_timeout=default_deadlines["recall_timeout"])],
    )
    question: Any = {"messages": [("user", "I like tea")]}
    backend.fault = fault
    run = agent.ainvoke(question, context=USER) if is_async else asyncio.to_thread(agent.invoke, question, context=USER)
    result = await asyncio.wait_for(run, limit + 20)  # a call that hangs takes 30 s
    assert result["messages"][-1].text == "answered"
    assert [reply[0] for reply in tool_replies(result)] == ["✗"]


def test_a_process_that_was_stopped_does_not_take_its_store_for_a_hanging_one():
    """As on a busy machine or after a suspended laptop: by the clock, its calls had been running for too long."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("stopped_process.py")], stdout=subprocess.PIPE, text=True
    )
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(1.5 * stopped_process.HANG_S)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert said.splitlines() == ["read", "written", "hangs"]
