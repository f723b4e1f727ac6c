"""Many runs of agents at once in one process: none of them loses its memories to the queue."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from agent_support import make_agent
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore
from inference_core.agents.identity import configurable_of
from inference_core.embeddings.embedder import Embedder
from inference_core.stores.backend import Head
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel

RUNS = 40
READ_S = 0.1
PATIENCE_S = 1.0
"""Eight runs at a time are served, so that the last ones wait for longer than that."""


class SlowBackend(InMemoryBackend):
    """A database whose answers take a while, though less than a caller would wait."""

    def heads(self, namespaces: Any) -> list[Head]:
        time.sleep(READ_S)
        return super().heads(namespaces)


class SlowModel(HashingEmbeddings):
    """Takes so long for a question that only the first runs get its vector."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return list(map(super().embed_query, texts))

    def embed_query(self, text: str) -> list[float]:
        time.sleep(PATIENCE_S / 2)
        return super().embed_query(text)


def test_in_a_burst_every_run_has_its_profile_and_a_word_match():
    store = MemoryStore(StoreEngine(SlowBackend(), Embedder(SlowModel(), "slow")))
    service = AgentMemoryStoreService(store).sync
    for number in range(RUNS):
        service.save_memory(f"user{number}", "Likes short answers", "preferences")
        service.save_memory(f"user{number}", f"The home city is Porto{number}", "facts")
    middleware = MemoryMiddleware(user_id=lambda _: configurable_of()["user_id"], recall_timeout=PATIENCE_S)

    async def one(number: int) -> tuple[str, bool]:
        model = ScriptedChatModel(turns=["ok"])
        agent = make_agent(model, store=store, middleware=[middleware])
        asked = {"messages": [("user", "Which city is home?")]}
        result = await agent.ainvoke(asked, {"configurable": {"user_id": f"user{number}"}})
        told = "".join(message.text for message in model.requests[-1])
        return result["memory_status"], "Likes short answers" in told and f"Porto{number}" in told

    async def at_once() -> list[tuple[str, bool]]:
        return list(await asyncio.gather(*map(one, range(RUNS))))

    seen = asyncio.run(at_once())
    store.close()
    assert all(is_told for _, is_told in seen), Counter(seen)
    assert {status for status, _ in seen} <= {"recalled", "lexical"}
