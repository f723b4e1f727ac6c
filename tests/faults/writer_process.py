"""A process that writes through the service and says on standard output what it tries and what was acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random

from inference_core import AgentMemoryStoreService, open_store

TASKS = 8


def checked(text: str) -> str:
    """``text`` with its checksum, so that a half-written one is noticed."""
    return f"{text} #{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def say(word: str, memory_id: str, content: str) -> None:
    os.write(1, f"{word}\t{memory_id}\t{content}\n".encode())


async def work(service: AgentMemoryStoreService, name: str, seed: int) -> None:
    """Saves, updates and deletes memories of its own, for ever."""
    chance = random.Random(f"{name} {seed}")
    alive: list[str] = []
    number = 0
    while True:
        number += 1
        action = chance.choice(["save", "save", "update", "delete"]) if alive else "save"
        memory_id = f"{name}-{seed}-{number}" if action == "save" else chance.choice(alive)
        content = "" if action == "delete" else checked(f"{memory_id} {number} " + "x" * chance.randint(0, 500))
        say("try", memory_id, content)
        if action == "save":
            await service.save_memory("crash", content, "facts", memory_id=memory_id)
            alive.append(memory_id)
        elif action == "update":
            assert await service.update_memory("crash", memory_id, content)
        else:
            assert await service.delete_memory("crash", memory_id)
            alive.remove(memory_id)
        say("ack", memory_id, content)


async def _write(url: str, seed: int) -> None:
    store = open_store(url, embeddings=None)
    service = AgentMemoryStoreService(store)
    await asyncio.gather(*(work(service, f"task{at}", seed) for at in range(TASKS)))


def write(url: str, seed: int) -> None:
    """Eight tasks write until the process is killed."""
    asyncio.run(_write(url, seed))
