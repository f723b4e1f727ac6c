"""A Redis that is killed, paused or loses its scripts: nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from redis_server import PERSISTENT, RedisServer, fresh_database, redis_server

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore, open_store
from inference_core.errors import StoreUnavailable, WriteUnknown
from inference_core.stores.backend import Put
from inference_core.stores.factory import open_backend
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

SAVER = Path(__file__).parent / "saver_process.py"
WRITERS = 4
PROCESSES = 2
SAVES = 3
SCOPE = ("u", "semantic")


def save_then_answer(messages: list[BaseMessage]) -> AIMessage | str:
    if isinstance(messages[-1], HumanMessage):
        return call_tool("save_memory_store", content="likes tea", memory_type="preferences")
    return "answered"


def put(key: str, *, expected: int | None = None) -> Put:
    return Put(namespace=SCOPE, key=key, value="{}", updated_at=FrozenClock().now(), expected=expected)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server(*PERSISTENT) as server:
        yield server


class Writer(threading.Thread):
    """Saves and updates memories until it is stopped; of each the text acknowledged last, and all that were tried."""

    def __init__(self, service: AgentMemoryStoreService, name: str) -> None:
        super().__init__(daemon=True)
        self.service = service.sync
        self.mark = name
        self.acknowledged: dict[str, str] = {}
        self.tried: dict[str, list[str]] = {}
        self.failures = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            key = f"{self.mark}-{number - number % 2}"
            content = f"{key} at {number}"
            self.tried.setdefault(key, []).append(content)
            try:
                if key not in self.acknowledged:
                    self.service.save_memory("u", content, "facts", memory_id=key)
                else:
                    assert self.service.update_memory("u", key, content)
                self.acknowledged[key] = content
            except StoreUnavailable:
                self.failures += 1
                time.sleep(0.01)


def test_acknowledged_writes_survive_kill_9_and_every_turn_is_answered(server: RedisServer, full: bool) -> None:
    model = ScriptedChatModel(turns=[save_then_answer], record=False)
    with open_store(server.url, embeddings=None) as store:
        agent: Any = create_agent(model, store=store, middleware=[MemoryMiddleware(recall_timeout=2)])
        question = {"messages": [("user", "I like tea")]}

        def turn() -> tuple[str, str]:
            result = agent.invoke(question, context={"user_id": "ada"})
            (reply,) = [message.text for message in result["messages"] if isinstance(message, ToolMessage)]
            return result["messages"][-1].text, reply[0]

        writers = [Writer(AgentMemoryStoreService(store), f"w{at}") for at in range(WRITERS)]
        for writer in writers:
            writer.start()
        said = [turn()]
        for _ in range(20 if full else 3):
            time.sleep(0.3)
            server.kill()
            said += [turn(), turn()]
            server.start()
            wait_until_served(store)
            said.append(turn())
        for writer in writers:
            writer.stopped.set()
            writer.join()
        documents, total = AgentMemoryStoreService(store).sync.list_memories("u", limit=None)
        stored = {document.id: document.content for document in documents}
        acknowledged = {key: text for writer in writers for key, text in writer.acknowledged.items()}
        tried = {key: texts for writer in writers for key, texts in writer.tried.items()}
    assert [text for text, _ in said] == ["answered"] * len(said)
    assert [mark for _, mark in said] == ["✓"] + ["✗", "✗", "✓"] * (len(said) // 3)
    assert len(acknowledged) > 50
    assert sum(writer.failures for writer in writers) > 0
    assert {key for key, text in acknowledged.items() if stored.get(key) not in since(tried[key], text)} == set()
    assert {key for key, text in stored.items() if text not in tried[key]} == set()
    assert total == len(stored)


def wait_until_served(store: MemoryStore) -> None:
    """Waits until reads and writes are let through again; after failures in a row they are refused for a while."""
    service = AgentMemoryStoreService(store).sync
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            service.save_memory("probe", "Are you there?", memory_id="probe")
        except (StoreUnavailable, WriteUnknown):
            time.sleep(0.05)
        else:
            return


def since(texts: list[str], acknowledged: str) -> list[str]:
    """The acknowledged text and those that were tried after it."""
    return texts[texts.index(acknowledged) :]


def test_the_next_call_after_a_restart_works(server: RedisServer) -> None:
    with closing(open_backend(server.url)) as backend:
        assert backend.apply([[put("a")]]) == [[1]]
        server.kill()
        with pytest.raises(StoreUnavailable):
            backend.get([(SCOPE, "a")])
        (outcome,) = backend.apply([[put("b")]])
        assert isinstance(outcome, StoreUnavailable)
        assert not isinstance(outcome, WriteUnknown)
        server.start()
        assert [row and row.version for row in backend.get([(SCOPE, "a"), (SCOPE, "b")])] == [1, None]
        server.stop()
        server.start()
        assert backend.apply([[put("a"), put("b", expected=0)]]) == [[2, 1]]


def test_a_write_whose_answer_is_lost_is_unknown_and_done_once() -> None:
    from redis import Redis

    with ExitStack() as opened:
        url = opened.enter_context(fresh_database())
        client = opened.enter_context(Redis.from_url(url))
        backend = opened.enter_context(closing(open_backend(f"{url}&socket_timeout=1")))
        assert backend.apply([[put("a")]]) == [[1]]
        client.client_pause(60_000, all=False)
        first, second = backend.apply([[put("a"), put("b")], [put("c")]])
        assert isinstance(first, WriteUnknown)
        assert isinstance(second, WriteUnknown)
        client.client_unpause()
        time.sleep(0.1)
        versions = [row and row.version for row in backend.get([(SCOPE, "a"), (SCOPE, "b"), (SCOPE, "c")])]
        assert versions in ([2, 1, 1], [1, None, None])
        assert backend.apply([[put("d")]]) == [[1]]


def test_a_question_that_hangs_is_given_up() -> None:
    from redis import Redis

    with ExitStack() as opened:
        url = opened.enter_context(fresh_database())
        client = opened.enter_context(Redis.from_url(url))
        backend = opened.enter_context(closing(open_backend(f"{url}&socket_timeout=0.5")))
        client.client_pause(2_000)  # of all commands, so nobody can end it
        with pytest.raises(StoreUnavailable, match="Timeout"):
            backend.get([(SCOPE, "a")])
        client.client_unpause()
        assert backend.get([(SCOPE, "a")]) == [None]


def test_scripts_that_were_flushed_are_loaded_again() -> None:
    from redis import Redis

    with fresh_database() as url, Redis.from_url(url) as client, closing(open_backend(url)) as backend:
        for version in (1, 2):
            client.script_flush()
            assert backend.apply([[put("a")], [put(f"b{version}", expected=0)]]) == [[version], [1]]


def test_a_login_that_is_withdrawn_makes_the_store_unavailable() -> None:
    from redis import Redis

    with redis_server() as server, Redis.from_url(server.url) as client:
        client.acl_setuser("ada", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"])
        address = server.url.replace("unix://", "unix://ada@") + "?password=secret"
        with closing(open_backend(address)) as backend:
            client.acl_deluser("ada")
            with pytest.raises(StoreUnavailable, match="check user and password") as caught:
                backend.heads([SCOPE])
            assert "secret" not in str(caught.value)
