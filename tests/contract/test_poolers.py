"""PgBouncer in transaction mode: each transaction may run in another session, which other applications use too."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import postgres_server
import psycopg
import pytest
from langchain.agents import create_agent
from pgbouncer_server import POOL, pooled_database

from inference_core import AgentMemoryStoreService, open_store
from inference_core.agents.checkpoints import CheckpointThreads, open_checkpointer
from inference_core.agents.fenced_checkpoints import OnWorkers
from inference_core.ingestion.formats import chat_exports
from inference_core.stores.backends.sql.postgres import Connection, PostgresBackend
from inference_core.testing import ScriptedChatModel
from inference_core.transfer.sources import PostgresTable

CALLERS = 6
PATIENT_S = 60.0
OF_A_POOLER = ("application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings")
"""What PgBouncer itself sets, for each client anew."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # Six callers wait for two sessions: on a busy machine an answer may take longer than a hang in production.
    monkeypatch.setattr(Connection, "silence_s", PATIENT_S)
    with pooled_database(postgres_server.server("postgres")) as url:
        yield url


def left_behind(url: str) -> list[Any]:
    """What another application finds in the sessions of the pool, all of which it holds at once."""
    found: list[Any] = []
    sessions: set[int] = set()
    with ExitStack() as opened:
        for _ in range(POOL):
            connection = opened.enter_context(psycopg.connect(url, prepare_threshold=None))
            sessions |= {pid for (pid,) in connection.execute("SELECT pg_backend_pid()")}
            asked = "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name <> ALL(%s)"
            found += connection.execute(asked, ([*OF_A_POOLER],)).fetchall()
            found += connection.execute("SELECT name, statement FROM pg_prepared_statements").fetchall()
            found += connection.execute("SELECT objid FROM pg_locks WHERE locktype = 'advisory'").fetchall()
            found += connection.execute("SELECT name FROM pg_cursors").fetchall()
    assert len(sessions) == POOL
    return found


def test_callers_of_a_store_share_the_sessions_of_a_pooler(url: str, full: bool):
    """Statements were prepared, and settings made, in sessions that then served others: calls failed, or ran theirs."""
    turns = (1_008 if full else 120) // CALLERS // 4

    def work(service: AgentMemoryStoreService, caller: int) -> None:
        face, user = service.sync, f"user{caller}"
        for turn in range(turns):
            face.save_memory(user, f"likes tea number {turn}", "preferences", memory_id=f"m{turn}")
            found = face.recall_memories(user_id=user, query="tea")
            assert {memory.id for memory in found} <= {f"m{number}" for number in range(turn + 1)}
            assert face.get_memory(user, f"m{turn}") is not None
            assert face.count_memories(user)["total"] == turn + 1

    with ThreadPoolExecutor(CALLERS) as pool, ExitStack() as opened:
        stores = [opened.enter_context(open_store(url, embeddings=None)) for _ in range(2)]
        services = [AgentMemoryStoreService(store, timeout=PATIENT_S) for store in stores]
        for done in [pool.submit(work, services[caller % 2], caller) for caller in range(CALLERS)]:
            done.result()
        backend = stores[0].engine.backend
        with closing(PostgresBackend(url)) as one, one.snapshot() as frozen:
            assert len(frozen.namespaces()) >= CALLERS
        backend.set_meta("a", "b")
        backend.erase("user0")
        backend.reclaim()
        assert services[0].sync.count_memories("user1")["total"] == turns
    with closing(PostgresTable(url)) as table:
        assert [*table.spaces()] == []
    assert left_behind(url) == []


def test_conversations_are_kept_through_a_pooler(url: str):
    """The set-up held a lock of the session, which stayed behind, and all statements were prepared at once."""
    with ThreadPoolExecutor(CALLERS) as pool:
        savers = [*pool.map(open_checkpointer, [url] * CALLERS)]
        agents: list[Any] = [
            create_agent(ScriptedChatModel(turns=[lambda messages: f"answer {len(messages)}"]), checkpointer=saver)
            for saver in savers
        ]

        def talk(caller: int) -> int:
            said: dict[str, Any] = {}
            for turn in range(4):
                config = {"configurable": {"thread_id": f"t{caller}"}}
                said = agents[(caller + turn) % CALLERS].invoke({"messages": [("user", "Hi")]}, config)
            return len(said["messages"])

        assert [*pool.map(talk, range(CALLERS))] == [8] * CALLERS
    with chat_exports._opened(url) as (saver, names):
        assert sorted(names) == [f"t{caller}" for caller in range(CALLERS)]
        assert all([*saver.list({"configurable": {"thread_id": name}})] for name in names)
    with closing(CheckpointThreads(url)) as kept:
        kept.erase(["t1"])
        assert sorted(kept.there()) == sorted({*names} - {"t1"})
    for saver in savers:
        assert isinstance(saver, OnWorkers)
        saver.close()
    assert left_behind(url) == []
