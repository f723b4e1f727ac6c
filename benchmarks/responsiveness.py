"""How long an unrelated ``asyncio.to_thread`` waits while the store of fifty running agents hangs."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from langchain.agents import create_agent
from report import Row, publish

from inference_core import MemoryMiddleware, MemoryStore
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel

AGENTS = 50
BAR_MS = 20
RECALL_MS = 300


class HangingBackend(InMemoryBackend):
    """Never answers a search before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def heads(self, scopes: Any) -> list[int]:
        """Hangs."""
        self.let_go.wait(30)
        return super().heads(scopes)


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
    after = [await turn() for _ in range(20)]
    backend.let_go.set()
    store.close()
    return max(delays), max(took for took, _ in after), {status for _, status in [*results, *after]}


def rows() -> list[Row]:
    """The measurements and their bars."""
    delay, later, statuses = asyncio.run(measured())
    return [
        ("unrelated to_thread while the store hangs, worst of 10", f"{delay:.1f} ms", f"< {BAR_MS} ms", delay < BAR_MS),
        ("a whole turn once the pool refuses, worst of 20", f"{later:.1f} ms", f"< {RECALL_MS} ms", later < RECALL_MS),
        ("status of all turns", ", ".join(sorted(statuses)), "degraded", statuses == {"degraded"}),
    ]


if __name__ == "__main__":
    sys.exit(not publish("responsiveness", rows()))
