"""How long other tasks on an event loop wait because of memory.

Measured with an unrelated ``asyncio.to_thread`` while the store of fifty running agents hangs; and as the longest time
that the loop's thread works without a break while callers save, recall, list, build prompts and purge on SQLite, where
one user has 10,000 memories without an index yet.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import ours
from command import Options, bar, plain
from corpus import ASKER, queries
from langchain.agents import create_agent
from report import Row, publish
from timing import scratch

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore
from inference_core.effects import HANG_S
from inference_core.stores.backend import Head
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel

AGENTS = 50
BAR_MS = 20
CALLERS = 16
SECONDS = 10.0
RECALL_MS = 300


class HangingBackend(InMemoryBackend):
    """Never answers a search before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def heads(self, namespaces: Any) -> list[Head]:
        """Hangs."""
        self.let_go.wait(30)
        return super().heads(namespaces)


class Breaks:
    """The longest that a callback of the event loops has taken: of the thread's own time, and by the clock."""

    def __init__(self) -> None:
        self.worked_ms = 0.0
        self.took_ms = 0.0

    @contextmanager
    def watched(self) -> Generator[None]:
        """Measures every callback."""
        usual = asyncio.Handle._run  # pyright: ignore[reportPrivateUsage] # noqa: SLF001 - nothing public sees each callback

        def timed(handle: asyncio.Handle) -> None:
            started, worked = time.perf_counter(), time.thread_time()
            usual(handle)
            self.worked_ms = max(self.worked_ms, (time.thread_time() - worked) * 1000)
            self.took_ms = max(self.took_ms, (time.perf_counter() - started) * 1000)

        asyncio.Handle._run = timed  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] # noqa: SLF001 - as above
        try:
            yield
        finally:
            asyncio.Handle._run = usual  # pyright: ignore[reportPrivateUsage] # noqa: SLF001 - as above


async def used(store: MemoryStore, seconds: float) -> None:
    """Callers of the large user and of small ones do all that a service can do."""
    service = AgentMemoryStoreService(store, timeout=60)
    end = time.perf_counter() + seconds

    async def calls(user: str, number: int) -> None:
        for text in itertools.cycle(queries(20)):
            memory_id = await service.save_memory(user, f"{text} {number}", "facts", session_id=f"s{number}")
            await service.recall_memories(user, text, k=20)
            await service.list_memories(user, limit=50)
            await service.list_memories(user, limit=None)
            await service.format_context_for_prompt(user, text)
            await store.asearch((user,), filter={"memory_type": "facts"}, limit=50)
            await service.update_memory(user, memory_id, topic="stars")
            await service.delete_memory(user, memory_id)
            if user != ASKER:
                await service.delete_user_memories(user)
            if time.perf_counter() > end:
                return

    await asyncio.gather(*(calls(ASKER if at % 2 else f"small{at}", at) for at in range(CALLERS)))


def breaks() -> Breaks:
    """The longest callbacks of callers on a store that was just opened."""
    found = Breaks()
    with scratch() as folder:
        with ours.filled(folder / "memory.db", Options()):
            pass
        with ours.opened(folder / "memory.db") as store, found.watched():
            asyncio.run(used(store, SECONDS))
    return found


async def measured() -> tuple[float, float, set[str]]:
    """The longest delay of an unrelated call, the longest turn, and what the agents said of their memory."""
    backend = HangingBackend()
    store = MemoryStore(StoreEngine(backend))
    model = ScriptedChatModel(turns=["answered"], record=False)
    agent: Any = create_agent(model, store=store, middleware=[MemoryMiddleware()])
    question = {"messages": [("user", "hi")]}
    await agent.ainvoke({"messages": []} | question, context={})

    async def turn() -> tuple[float, str]:
        started = time.perf_counter()
        result = await agent.ainvoke(question, context={"user_id": "ada"})
        return (time.perf_counter() - started) * 1000, result["memory_status"]

    turns = [asyncio.create_task(turn()) for _ in range(AGENTS)]
    await asyncio.sleep(0.15)
    delays: list[float] = []
    for _ in range(10):
        started = time.perf_counter()
        await asyncio.to_thread(time.sleep, 0)
        delays.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(0.005)
    results = await asyncio.gather(*turns)
    await asyncio.sleep(HANG_S)  # from then on the store's pool refuses
    after = [await turn() for _ in range(20)]
    backend.let_go.set()
    store.close()
    return max(delays), max(took for took, _ in after), {status for _, status in [*results, *after]}


def rows() -> list[Row]:
    """The measurements and their bars."""
    delay, later, statuses = asyncio.run(measured())
    longest = breaks()
    return [
        bar("the loop's thread works without a break, longest", longest.worked_ms, BAR_MS),
        plain("the same by the clock, which other threads slow", longest.took_ms),
        ("unrelated to_thread while the store hangs, worst of 10", f"{delay:.1f} ms", f"< {BAR_MS} ms", delay < BAR_MS),
        ("a whole turn once the pool refuses, worst of 20", f"{later:.1f} ms", f"< {RECALL_MS} ms", later < RECALL_MS),
        ("status of all turns", ", ".join(sorted(statuses)), "degraded", statuses == {"degraded"}),
    ]


if __name__ == "__main__":
    sys.exit(not publish("responsiveness", rows()))
