"""Many runs of agents at once in one process: who is told what, and how long recall takes.

Each run has a user of its own, with a preference, which belongs to the profile, and a fact that shares a word with the
question. The embedding model takes 5 or 100 ms for a question, in a thread, as a model on a server would.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

import ours
from langchain.agents import create_agent
from langchain_core.embeddings import DeterministicFakeEmbedding
from report import Row, publish
from timing import quantile, scratch, watched

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware, MemoryStore, open_store
from inference_core.testing import ScriptedChatModel

AT_ONCE: Final = (1, 10, 50, 200)
MODEL_S: Final = (0.005, 0.1)
PREFERENCE: Final = "Likes short answers"


class Slow(DeterministicFakeEmbedding):
    """Takes ``seconds`` for a question."""

    seconds: float = 0.0

    def embed_query(self, text: str) -> list[float]:
        """The vector, late."""
        time.sleep(self.seconds)
        return super().embed_query(text)


def fill(store: MemoryStore) -> None:
    """Two memories for each user."""
    service = AgentMemoryStoreService(store).sync
    for at in watched(range(max(AT_ONCE)), "users"):
        service.save_memory(f"user{at}", PREFERENCE, "preferences")
        service.save_memory(f"user{at}", f"The home city is Porto{at}", "facts")


async def burst(store: MemoryStore, count: int) -> list[dict[str, Any]]:
    """What ``count`` runs at once are told, after one run that warms the process up."""

    async def one(at: int) -> dict[str, Any]:
        model = ScriptedChatModel(turns=["ok"])
        agent: Any = create_agent(model, store=store, middleware=[MemoryMiddleware()], context_schema=MemoryContext)
        asked = {"messages": [("user", "Which city is home?")]}
        result = await agent.ainvoke(asked, context={"user_id": f"user{at}"})
        told = "".join(message.text for message in model.requests[-1])
        return {
            "is_told": PREFERENCE in told and f"Porto{at}" in told,
            "status": result["memory_status"],
            "ms": result["memory_recall_latency_ms"],
        }

    await one(0)
    return list(await asyncio.gather(*map(one, range(count))))


def rows() -> list[Row]:
    """For each model and number of runs: who was not told, who was answered by meaning, and recall's time."""
    made: list[Row] = []
    for seconds in MODEL_S:
        with scratch() as folder, open_store(ours.url(folder / "m.db"), embeddings=Slow(size=64)) as store:
            fill(store)
            store.engine.embedder.model.seconds = seconds  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            for count in AT_ONCE:
                seen = asyncio.run(burst(store, count))
                what = f"{count} at once, a model of {seconds * 1000:.0f} ms"
                untold = sum(not one["is_told"] for one in seen)
                by_meaning = sum(one["status"] == "recalled" for one in seen)
                times = [one["ms"] for one in seen]
                made += [
                    (f"{what}: without profile or word match", str(untold), "0", not untold),
                    (f"{what}: by meaning too", f"{by_meaning} of {count}", "", None),
                    (f"{what}: recall, median", f"{quantile(times):.0f} ms", "", None),
                    (f"{what}: recall, p95", f"{quantile(times, 0.95):.0f} ms", "", None),
                ]
    return made


if __name__ == "__main__":
    sys.exit(not publish("burst", rows()))
