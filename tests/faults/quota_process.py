"""Saves and deletes memories of one user until the quota refuses; says how many were accepted."""

from __future__ import annotations

from inference_core import AgentMemoryStoreService, Quota, open_store
from inference_core.errors import QuotaExceeded


def fill(url: str, limit: int, name: str) -> None:
    """Every fifth memory is deleted again. Ends when 3 saves in a row are refused."""
    accepted = refused = 0
    with open_store(url, embeddings=None, quota=Quota(max_memories=limit)) as store:
        service = AgentMemoryStoreService(store, timeout=None).sync
        number = 0
        while refused < 3:
            number += 1
            try:
                memory_id = service.save_memory("ada", f"Fact {number} of {name}", "facts")
            except QuotaExceeded:
                refused += 1
                continue
            refused = 0
            accepted += 1
            if number % 5 == 0:
                accepted -= service.delete_memory("ada", memory_id, erase=True)
    print(accepted, flush=True)
