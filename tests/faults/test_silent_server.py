"""Connections to PostgreSQL that stay open while nobody answers: no call waits forever, and the next one works."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any

import postgres_server
import psycopg
import pytest
from langchain.agents import create_agent
from server_support import Served, served
from silent_proxy import SilentProxy

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.agents import postgres_checkpoints
from inference_core.agents.postgres_checkpoints import _SETUP_LOCK, PostgresCheckpointer
from inference_core.effects import awake_s
from inference_core.errors import StoreUnavailable, WriteUnknown
from inference_core.stores.backend import Put
from inference_core.stores.backends.sql import postgres
from inference_core.stores.backends.sql.postgres import _MIGRATION_LOCK, Connection, PostgresBackend
from inference_core.testing import ScriptedChatModel

SAVERS = 3
SILENCE_S = 3.0
RECOVERY_S = 20.0
LATE_S = 60.0
ROW = Put(namespace=("ada", "semantic"), key="a", value="{}", kind="fact", updated_at=datetime.now(UTC))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "silence_s", SILENCE_S)
    monkeypatch.setattr(postgres, "_WRITING", postgres._WRITING.replace("15s", "6s"))


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_server.fresh_database() as url:
        yield url
        with psycopg.connect(url, autocommit=True) as connection:  # what was cut off still holds its locks for a while
            theirs = "FROM pg_stat_activity WHERE application_name = 'inference_core'"
            connection.execute(f"SELECT pg_terminate_backend(pid) {theirs}".encode())
            wait_for(lambda: not connection.execute(f"SELECT {theirs}".encode()).fetchall())


@pytest.fixture
def proxy() -> Iterator[SilentProxy]:
    with closing(SilentProxy(postgres_server.server("postgres").folder / ".s.PGSQL.5432")) as proxy:
        yield proxy


@pytest.fixture
def store(url: str, proxy: SilentProxy) -> Iterator[MemoryStore]:
    with open_store(through(proxy, url), embeddings=None) as store:
        store.engine.pool._hang_s = store.engine._writer._hang_s = SILENCE_S
        yield store


def through(proxy: SilentProxy, url: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?{url.rpartition('&')[2]}&connect_timeout=2"


def wait_for(condition: Callable[[], object], seconds: float = LATE_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def readiness(server: Served) -> int:
    async def look() -> int:
        async with server.client() as client:
            return (await client.get("/readyz")).status_code

    return asyncio.run(look())


def test_saves_work_again_after_a_silence(store: MemoryStore, proxy: SilentProxy):
    """The writer waited for the lost answer forever: it refused each later save, and /readyz said that all was well."""
    service = AgentMemoryStoreService(store, timeout=LATE_S)
    server = served(service)
    acknowledged: list[str] = []
    failed, done = threading.Event(), threading.Event()

    def save(worker: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            try:
                service.sync.save_memory(f"user{worker}", f"fact {number}", "facts", memory_id=f"{worker}-{number}")
                acknowledged.append(f"{worker}-{number}")
            except StoreUnavailable:
                failed.set()
                time.sleep(0.02)

    with ThreadPoolExecutor(SAVERS) as pool:
        work = [pool.submit(save, worker) for worker in range(SAVERS)]
        try:
            wait_for(lambda: len(acknowledged) > 10)
            assert readiness(server) == 200
            proxy.fall_silent()
            assert failed.wait(LATE_S)
            assert readiness(server) == 503
            before = len(acknowledged)
            proxy.recover()
            wait_for(lambda: len(acknowledged) > before, RECOVERY_S)
            wait_for(lambda: readiness(server) == 200, RECOVERY_S)
        finally:
            done.set()
        for one in work:
            one.result()
    lost = [key for key in acknowledged if service.sync.get_memory(f"user{key.partition('-')[0]}", key) is None]
    assert lost == []


def test_a_commit_that_nobody_confirms_is_unknown(url: str, proxy: SilentProxy):
    with closing(PostgresBackend(through(proxy, url))) as backend:
        backend.apply([[ROW]])
        proxy.fall_silent(after=b"COMMIT\x00")
        error: StoreUnavailable | None = None
        for _ in range(10):  # a starved server may be silent before the commit, or another connection commits first
            with pytest.raises(StoreUnavailable) as raised:
                backend.apply([[ROW]])
            proxy.recover()
            error = raised.value
            if isinstance(error, WriteUnknown):
                break
            proxy.fall_silent(after=b"COMMIT\x00")
        assert isinstance(error, WriteUnknown)
        assert "retry the write under the same id" in str(error)
        (row,) = backend.get([(ROW.namespace, ROW.key)])
        assert row is not None
        assert row.version == 2
        assert backend.apply([[ROW]]) == [[3]]


def test_what_was_cut_off_gives_back_its_locks(url: str, proxy: SilentProxy):
    """The server waited for the rest of the pipeline, and kept the user's scopes locked."""
    with closing(PostgresBackend(through(proxy, url))) as backend:
        backend.apply([[ROW]])
        proxy.fall_silent(after=b"FOR NO KEY UPDATE")
        with pytest.raises(StoreUnavailable, match="no answer"):
            backend.apply([[ROW]])
        proxy.recover()

        def is_saved() -> bool:
            try:
                return backend.apply([[ROW]]) == [[2]]
            except StoreUnavailable:
                return False

        wait_for(is_saved)


def test_reads_work_again_after_a_silence(store: MemoryStore, proxy: SilentProxy):
    """All idle connections are dead then; a read must not try one after the other."""
    backend = store.engine.backend
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(backend.get_meta, ["a"] * 64)] == [None] * 64
        proxy.fall_silent()
        with pytest.raises(StoreUnavailable, match="no answer for 3 s"):
            backend.get_meta("a")
        proxy.recover()
        assert [*pool.map(backend.get_meta, ["a"] * 64)] == [None] * 64


def test_conversations_go_on_after_a_silence(url: str, proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_checkpoints, "_CONNECT_TIMEOUT_S", 2.0)
    monkeypatch.setattr(postgres_checkpoints, "_RECONNECT_S", 1.0)
    with closing(PostgresCheckpointer(through(proxy, url), silence_s=SILENCE_S)) as saver:
        agent: Any = create_agent(ScriptedChatModel(turns=[lambda _: "answer"]), checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        agent.invoke({"messages": [("user", "Hi")]}, config)
        proxy.fall_silent(after=b"INSERT INTO checkpoint")
        with pytest.raises(psycopg.OperationalError):
            agent.invoke({"messages": [("user", "Hi")]}, config)
        proxy.recover()

        def is_answered() -> bool:
            try:
                return agent.invoke({"messages": [("user", "Hi")]}, config)["messages"][-1].text == "answer"
            except psycopg.OperationalError:  # the pool pauses between its tries to connect
                return False

        wait_for(is_answered, RECOVERY_S)


def vacuum(url: str) -> None:
    with closing(PostgresBackend(url)) as backend:
        backend.reclaim()


LONG: dict[str, tuple[str, Callable[[str], object]]] = {
    "vacuum": ("LOCK TABLE memory_rows IN SHARE UPDATE EXCLUSIVE MODE", vacuum),
    "migration": (f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})", lambda url: PostgresBackend(url).close()),
    "checkpoints": (
        f"SELECT pg_advisory_xact_lock({_SETUP_LOCK})",
        lambda url: PostgresCheckpointer(url, silence_s=SILENCE_S).close(),
    ),
}


def test_what_takes_long_by_its_nature_is_not_cut_off():
    """It waits for a lock for longer than a connection may be silent."""
    with ExitStack() as opened:
        pool = opened.enter_context(ThreadPoolExecutor(len(LONG)))
        waiting: list[tuple[psycopg.Connection[Any], Future[object]]] = []
        databases = [opened.enter_context(postgres_server.fresh_database(is_new=name == "migration")) for name in LONG]
        for url, (statement, work) in zip(databases, LONG.values(), strict=True):
            holder = opened.enter_context(psycopg.connect(url))
            holder.execute(statement.encode())
            waiting.append((holder, pool.submit(work, url)))
        began = awake_s()
        wait_for(lambda: awake_s() - began > 2 * SILENCE_S)
        assert not any(working.done() for _, working in waiting)
        for holder, working in waiting:
            holder.rollback()
            working.result(LATE_S)
