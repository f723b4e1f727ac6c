"""Eight processes that open one new database at the same moment, twenty savers each: nothing lost, nothing locked."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier

from processes import CONTEXT, Forked
from saver_process import SAVERS, SHARED_UPDATES, save

from inference_core import AgentMemoryStoreService, StaticMemory, open_store
from inference_core.services.user_memories import count_user_memories

PROCESSES = 8
RULES = [f"Rule {number} of the house" for number in range(40)]


def test_no_write_is_lost_or_locked_out_from_a_cold_start(shared_url: str, full: bool) -> None:
    saves = 100 if full else 3
    barrier = CONTEXT.Barrier(PROCESSES)
    with open_store(shared_url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("everyone", "shared", "facts", memory_id="shared")
        processes = [Forked(save, barrier, shared_url, f"p{at}", saves) for at in range(PROCESSES)]
        assert [process.end() for process in processes] == [(0, [])] * PROCESSES
        counts = [count_user_memories(store, f"user{at}")["semantic"] for at in range(SAVERS)]
        shared = AgentMemoryStoreService(store).sync.get_memory("everyone", "shared")
    assert counts == [PROCESSES * saves] * SAVERS
    assert shared is not None
    assert len(shared.metadata) == PROCESSES * SHARED_UPDATES


def test_a_cold_start_makes_the_tables_once(sqlite_url: str) -> None:
    barrier = CONTEXT.Barrier(PROCESSES)
    processes = [Forked(open_and_close, barrier, sqlite_url) for _ in range(PROCESSES)]
    assert [process.end() for process in processes] == [(0, [])] * PROCESSES


def open_and_close(barrier: Barrier, url: str) -> None:
    barrier.wait(60)
    open_store(url, embeddings=None).close()


def load_rules(url: str) -> None:
    with open_store(url, embeddings=None) as store:
        for name in range(5):
            StaticMemory(RULES, store, name=f"rules{name}").load()


def test_processes_may_load_static_memory_at_once(sqlite_url: str) -> None:
    processes = [Forked(load_rules, sqlite_url) for _ in range(2)]
    assert [process.end() for process in processes] == [(0, []), (0, [])]
    with open_store(sqlite_url, embeddings=None) as store:
        for name in range(5):
            found = StaticMemory(None, store, name=f"rules{name}").get("any session")
            assert [document.content for document in found] == RULES
