"""One of several processes that open a store at the same moment, save, and update one memory that all of them share."""

from __future__ import annotations

import asyncio
from multiprocessing.synchronize import Barrier

from inference_core import AgentMemoryStoreService, open_store

SAVERS = 20
SHARED_UPDATES = 5


async def main(url: str, name: str, saves: int) -> None:
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        await service.save_memory("everyone", "shared", "facts", memory_id=f"own-{name}")

        async def saver(at: int) -> None:
            for number in range(saves):
                await service.save_memory(f"user{at}", f"{name} {at} {number}", "facts")

        async def updater() -> None:
            for number in range(SHARED_UPDATES):
                assert await service.update_memory("everyone", "shared", extra_metadata={f"{name}-{number}": 1})

        await asyncio.gather(*(saver(at) for at in range(SAVERS)), updater())


def save(barrier: Barrier, url: str, name: str, saves: int) -> None:
    """Saves from the moment at which all processes have come to ``barrier``."""
    barrier.wait(60)
    asyncio.run(main(url, name, saves))
