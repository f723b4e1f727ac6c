"""What a turn of an agent costs the database and the threads, counted; nothing has changed since the turn before."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agent_support import make_agent

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore
from inference_core.effects import WorkerPool
from inference_core.stores.backends.sql.sqlite import SqliteBackend
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel

USER = "ada"
READS = ("heads", "changes", "get", "page", "count", "tokens", "holding", "namespaces")


class Counted(MemoryMiddleware):
    """Counts only while the agent waits for it."""

    def __init__(self, service: AgentMemoryStoreService) -> None:
        super().__init__(service, user_id=USER, recall_timeout=60)
        self.counts: Counter[str] = Counter()
        self.is_waiting = False

    def before_agent(self, state: Any, runtime: Any) -> Any:
        self.counts, self.is_waiting = Counter(), True
        try:
            return super().before_agent(state, runtime)
        finally:
            self.is_waiting = False


def counted(memory: Counted, name: str, function: Any) -> Any:
    """``function``, each call of which is counted under ``name``."""

    def call(*args: Any, **options: Any) -> Any:
        is_of_the_turn = threading.current_thread().name.startswith(("MainThread", "memory-store"))
        if memory.is_waiting and is_of_the_turn:  # and no chore of the background, which writes what turns before left
            memory.counts[name] += 1
        return function(*args, **options)

    return call


def test_a_turn_reads_once_on_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A turn took three threads, seven reads (``heads`` twice, ``get`` four times), 117 JSON texts."""
    with closing(StoreEngine(SqliteBackend(tmp_path / "memory.db"))) as engine:
        service = AgentMemoryStoreService(MemoryStore(engine), timeout=None)
        for number in range(60):
            kind = ("facts", "preferences", "instructions", "interaction")[number % 4]
            service.sync.save_memory(USER, f"note {number} about tea number w{number % 7}", kind)
        memory = Counted(service)
        for name in READS:
            monkeypatch.setattr(SqliteBackend, name, counted(memory, name, getattr(SqliteBackend, name)))
        monkeypatch.setattr(WorkerPool, "submit", counted(memory, "hops", WorkerPool.submit))
        monkeypatch.setattr(json, "loads", counted(memory, "parsed", json.loads))
        agent = make_agent(ScriptedChatModel(turns=["ok"], record=False), middleware=[memory])
        for question in ("what about tea w3?", "and tea w5?", "and tea w6?", "and tea w6?"):
            before = memory.counts
            assert agent.invoke({"messages": [("user", question)]})["memories_recalled"] > 0
    # Another question reads the rows that no turn has read yet; the same one nothing but whether something has changed.
    another, same = before, memory.counts
    assert another["hops"] <= 1
    assert sum(another[name] for name in READS) <= 2
    assert same["hops"] <= 1
    assert sum(same[name] for name in READS) <= 1
    assert same["parsed"] == 0
