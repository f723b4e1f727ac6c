"""A PostgreSQL server that is killed, or stands still, under an agent and its savers: nothing acknowledged is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from postgres_server import PostgresServer, new_server

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore, open_store
from inference_core.agents import tools
from inference_core.cli import main
from inference_core.errors import StoreUnavailable
from inference_core.testing import ScriptedChatModel, call_tool

SAVERS = 6
RECOVERY_S = 5.0
USER = {"user_id": "ada"}
_numbers = count()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with closing(new_server("postgres", durable=True)) as server:
        yield server


@pytest.fixture
def store(server: PostgresServer) -> Iterator[MemoryStore]:
    with open_store(server.url(), embeddings=None) as store:
        yield store


def save_then_answer(messages: list[BaseMessage]) -> AIMessage | str:
    if isinstance(messages[-1], HumanMessage):
        # Another one each time: the same words are stored once.
        return call_tool("save_memory_store", content=f"likes tea number {next(_numbers)}", memory_type="preferences")
    return "answered"


def agent_on(store: MemoryStore) -> Any:
    model = ScriptedChatModel(turns=[save_then_answer], record=False)
    return create_agent(model, store=store, middleware=[MemoryMiddleware()])


def wait_for_memory(agent: Any, seconds: float) -> None:
    """Asks until an answer was given with memory."""
    end = time.monotonic() + seconds
    while agent.invoke({"messages": [("user", "I like tea")]}, context=USER)["memory_status"] != "lexical":
        assert time.monotonic() < end


class Run:
    """Savers and an agent at work until they are told to stop; what was acknowledged and answered."""

    def __init__(self, store: MemoryStore) -> None:
        self.service = AgentMemoryStoreService(store)
        self.agent = agent_on(store)
        self.acknowledged: list[tuple[str, float]] = []
        self.statuses: list[tuple[str, float]] = []
        self.claimed = 0
        self.failures = 0
        self.done = threading.Event()

    def save(self, worker: int) -> None:
        number = 0
        while not self.done.is_set():
            number += 1
            key = f"{worker}-{number}"
            try:
                self.service.sync.save_memory(f"user{worker}", f"fact {key}", "facts", memory_id=key)
                self.acknowledged.append((key, time.monotonic()))
                time.sleep(0.01)
            except StoreUnavailable:
                self.failures += 1
                time.sleep(0.01)

    def ask(self) -> None:
        while not self.done.is_set():
            result = self.agent.invoke({"messages": [("user", "I like tea")]}, context=USER)
            assert result["messages"][-1].text == "answered"
            self.statuses.append((result["memory_status"], time.monotonic()))
            self.claimed += sum(
                message.text.startswith("✓") for message in result["messages"] if isinstance(message, ToolMessage)
            )
            time.sleep(0.02)

    def lost(self) -> list[str]:
        face = self.service.sync
        return [key for key, _ in self.acknowledged if face.get_memory(f"user{key.partition('-')[0]}", key) is None]


def test_a_killed_server_loses_nothing_and_is_used_again_at_once(
    server: PostgresServer, store: MemoryStore, full: bool
) -> None:
    run = Run(store)
    backs: list[float] = []
    with ThreadPoolExecutor(SAVERS + 1) as pool:
        work = [pool.submit(run.ask), *(pool.submit(run.save, worker) for worker in range(SAVERS))]
        for _ in range(10 if full else 1):
            time.sleep(0.7)
            server.kill()
            time.sleep(0.5)
            server.start()
            backs.append(time.monotonic())
            while not all(any(at > backs[-1] for _, at in seen) for seen in (run.acknowledged, run.statuses)):
                assert time.monotonic() - backs[-1] < RECOVERY_S
                time.sleep(0.01)
        time.sleep(0.5)
        run.done.set()
        for one in work:
            one.result()
    assert {status for status, _ in run.statuses} == {"lexical", "degraded"}
    assert run.statuses[-1][0] == "lexical"
    assert run.failures > 0
    assert len(run.acknowledged) > 50
    assert run.lost() == []
    assert run.claimed <= run.service.sync.count_memories("ada")["semantic"]


def test_a_server_that_stands_still_holds_up_no_turn(
    server: PostgresServer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "WRITE_TIMEOUT_S", 0.3)
    model = ScriptedChatModel(turns=[save_then_answer], record=False)
    agent: Any = create_agent(model, store=store, middleware=[MemoryMiddleware(recall_timeout=0.3)])
    question = {"messages": [("user", "I like tea")]}
    wait_for_memory(agent, 30)
    server.signal(signal.SIGSTOP)
    started = time.monotonic()
    results = [agent.invoke(question, context=USER) for _ in range(8)]
    took = time.monotonic() - started
    server.signal(signal.SIGCONT)
    assert [result["messages"][-1].text for result in results] == ["answered"] * 8
    assert {result["memory_status"] for result in results} == {"degraded"}
    assert took < 40  # a call that hangs takes 15 s, and each turn has two
    wait_for_memory(agent, RECOVERY_S)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_worker_waits_for_its_database_as_it_starts(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], comes_back: bool
) -> None:
    """Started together, or while the database was started again, the worker ended at once."""
    monkeypatch.setattr("inference_core.cli.background.STARTING_S", 20.0 if comes_back else 0.5)
    url = server.url()
    with open_store(url, embeddings=None):
        pass
    server.kill()
    back = threading.Timer(2.0, server.start)
    if comes_back:
        back.start()
    code = main(["worker", "--once", "--url", url])
    said = capsys.readouterr().err
    assert (code, said.count("trying again")) == (0 if comes_back else 1, 1)
    if comes_back:
        back.join()
