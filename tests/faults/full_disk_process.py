"""A process for which the disk is full after so many bytes, and then is not."""

from __future__ import annotations

import resource
import signal

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import StoreUnavailable

FULL = 600_000
"""Bytes after which no file grows: enough to open a store, and for some memories."""


def fill(url: str) -> None:
    """Saves until the disk is full, and once more when it is not; prints every id that was acknowledged."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        print(service.save_memory("ada", "Plays the violin", "facts"))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, hard))
        refused = 0
        for number in range(1_000):
            try:
                print(service.save_memory("ada", f"{number} {'words ' * 600}"))
            except StoreUnavailable:
                refused += 1
                if refused == 3:
                    break
        assert refused == 3, "the disk never was full"
        assert [one.content for one in service.recall_memories("ada", "violin", 1)] == ["Plays the violin"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(service.save_memory("ada", "Has room again"))
