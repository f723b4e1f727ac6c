"""What this process keeps of a LangGraph store that is not ours: bounded by bytes, whoever reads how much of it."""

from __future__ import annotations

import gc
import tracemalloc

from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, MemoryStore
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.stores.backends.foreign import ForeignBackend
from inference_core.stores.engine import StoreEngine

USERS, ROWS = 60, 20
CONTENT = "x" * 2_000
INDEX_BYTES = 500_000
"""Room for the rows of a few users; those of all take five times as much."""


def test_the_mirror_of_a_foreign_store_is_bounded():
    """Rows of every user ever read stayed in the mirror: ``index_bytes`` bounded the indexes alone."""
    store = InMemoryStore()
    for user in range(USERS):
        store.batch([put(user, number) for number in range(ROWS)])
    engine = StoreEngine(ForeignBackend(store), index_bytes=INDEX_BYTES)
    service = AgentMemoryStoreService(MemoryStore(engine), timeout=None).sync
    recalled(service, 0)
    tracemalloc.start()
    for user in range(USERS):
        assert recalled(service, user) == f"fact 7 of {user}"
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert recalled(service, 0) == "fact 7 of 0"
    engine.close()
    assert kept < 2 * INDEX_BYTES < USERS * ROWS * len(CONTENT)


def put(user: int, number: int) -> PutOp:
    value = {"content": f"fact {number} of {user} {CONTENT}", "memory_type": "facts", "memory_category": "semantic"}
    return PutOp((f"user{user}", "semantic"), str(number), value)


def recalled(service: SyncMemoryService, user: int) -> str:
    (found,) = service.recall_memories(f"user{user}", "fact 7", 1)
    return found.content.partition(f" {CONTENT}")[0]
