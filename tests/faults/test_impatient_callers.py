"""A caller who goes away or has little time, on every face: nobody else's call fails for it, and nothing is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from langchain_core.embeddings import Embeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import arun, run
from inference_core.embeddings import embedder as embedder_module
from inference_core.errors import DeadlineExceeded, EmbeddingError
from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Head, PageRequest
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing.search import RecallMode, Search, SearchResult
from inference_core.stores.store import MemoryStore
from inference_core.stores.writer import PATIENCE

ADA = ("ada", "semantic")


def test_a_saver_who_disconnects_costs_nobody_a_save(sqlite_url: str) -> None:
    """A cancelled save in a running transaction marked the one writer as stuck: 328 of 2,000 saves of others failed."""

    async def saved(service: AgentMemoryStoreService) -> list[str]:
        ids: list[str] = []
        for turn in range(20):
            gone = asyncio.create_task(service.save_memory("alice", f"gone {turn}"))
            others = [asyncio.create_task(service.save_memory(f"bob{n}", f"likes {turn}")) for n in range(20)]
            await asyncio.sleep(0.001)
            gone.cancel()
            ids += await asyncio.gather(*others)
        return ids

    with open_store(sqlite_url, embeddings=None) as store:
        ids = asyncio.run(saved(AgentMemoryStoreService(store)))
        rows = store.engine.backend.get([((f"bob{at % 20}", "semantic"), one) for at, one in enumerate(ids)])
    assert len(ids) == 400
    assert all(rows)


class SlowQueries(Embeddings):
    """Takes its time for a query."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, float(len(text) % 7)] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        time.sleep(0.1)
        return [1.0, 0.5]


class SilentCoroutine(SlowQueries):
    """Its coroutines give no answer while it is silent."""

    silent = True

    async def aembed_query(self, text: str) -> list[float]:
        if self.silent:
            await asyncio.sleep(60)
        return [1.0, 0.5]


async def searched(store: MemoryStore, wait_seconds: float = 5.0) -> SearchResult:
    return await arun(store.engine.search(Search(groups=[[ADA]], text="note", limit=5, wait_seconds=wait_seconds)))


async def test_two_recalls_that_are_cancelled_leave_everybody_the_model() -> None:
    """Each cancelled call marked a worker of the embedder as stuck; two made all recall lexical."""
    with open_store("memory://", embeddings=SlowQueries()) as store:
        await AgentMemoryStoreService(store).save_memory("ada", "note")
        gone = [asyncio.create_task(searched(store)) for _ in range(4)]
        await asyncio.sleep(0.03)
        for one in gone:
            one.cancel()
        assert (await searched(store)).mode is RecallMode.HYBRID


def test_callers_without_time_do_not_make_the_model_a_failed_one() -> None:
    """Three deadlines in a row counted as three failures of the model, which was left alone for five seconds."""
    with open_store("memory://", embeddings=SlowQueries()) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "note")
        hasty, patient = (Search(groups=[[ADA]], text="note", limit=5, wait_seconds=seconds) for seconds in (0.001, 5))
        assert [run(store.engine.search(hasty)).mode for _ in range(5)] == [RecallMode.LEXICAL] * 5
        assert run(store.engine.search(patient)).mode is RecallMode.HYBRID


async def test_a_coroutine_that_never_answers_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder_module, "_SILENCE_S", 0.2)
    monkeypatch.setattr(embedder_module, "_PAUSE_S", 2.0)
    model = SilentCoroutine()
    with open_store("memory://", embeddings=model) as store:
        assert store.engine.embedder is not None
        for _ in range(3):
            await asyncio.gather(*(searched(store, 0.08) for _ in range(5)))
        assert not store.engine.embedder.is_ready
        with pytest.raises(EmbeddingError):
            run(store.engine.embedder.query("note", 1))
        await asyncio.sleep(2.0)
        model.silent = False
        assert (await searched(store)).mode is RecallMode.HYBRID


class SlowForOne(InMemoryBackend):
    """Reads of one user take longer than some callers have time."""

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        if namespaces and namespaces[0][0] == "big":
            time.sleep(0.1)
        return super().heads(namespaces)


def test_deadlines_of_one_user_close_the_database_for_nobody() -> None:
    """Five recalls that outlived their callers' 0.3 s opened the read breaker for all, with however much time."""
    with MemoryStore(StoreEngine(SlowForOne())) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("big", "likes tea")
        memory_id = service.save_memory("small", "likes tea")
        search = Search(groups=[[("big", "semantic")]], text="tea", limit=5)
        for _ in range(PATIENCE + 1):
            with pytest.raises(DeadlineExceeded):
                run(store.engine.search(search), 0.02)
        assert service.get_memory("small", memory_id)


async def test_a_write_in_a_transaction_is_applied_without_its_caller_and_a_queued_one_dropped() -> None:
    backend = InMemoryBackend()
    with MemoryStore(StoreEngine(backend)) as store:
        service = AgentMemoryStoreService(store)
        for content in ("before", "earlier"):  # a user's second save reads whether the first has stored the audit key
            await service.save_memory("ada", content)
        with backend._lock:
            running = asyncio.create_task(service.save_memory("ada", "running"))
            await asyncio.sleep(0.05)
            queued = asyncio.create_task(service.save_memory("ada", "queued"))
            await asyncio.sleep(0.05)
            for gone in (running, queued):
                gone.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await gone
        await service.save_memory("ada", "next")
        found = {row.value["content"] for row in backend.page(PageRequest([ADA], limit=9))}
    assert found == {"before", "earlier", "running", "next"}
