"""An embedding model that fails, hangs or answers nonsense: memories are saved and recalled by their words."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from support import FailingEmbeddings, HangingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.effects import run
from inference_core.errors import WriteUnknown
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Put
from inference_core.stores.engine import VECTORS
from inference_core.stores.indexing.search import RecallMode, Search


class Constant(Embeddings):
    """Gives the same vector for everything."""

    def __init__(self, vector: list[float]) -> None:
        self.vector = vector

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.vector for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vector


FAULTS: dict[str, Callable[[], Embeddings]] = {
    "raises": FailingEmbeddings,
    "hangs": lambda: HangingEmbeddings(5),
    "NaN": lambda: Constant([math.nan, 1.0]),
    "zeros": lambda: Constant([0.0, 0.0]),
    "empty": lambda: Constant([]),
}


def recalled(service: AgentMemoryStoreService, query: str) -> list[str]:
    return [hit.content for hit in service.sync.recall_memories("ada", query)]


def until(condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` comes true within ten seconds."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def pending(store: MemoryStore) -> int:
    assert store.engine.embedder is not None
    return len(store.engine.backend.pending(store.engine.embedder.fingerprint, 100))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_is_durable_and_found_by_its_words(fault: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.stores.indexing.embedding.EMBED_TIMEOUT_S", 0.1)
    model = FAULTS[fault]()
    with open_store(sqlite_url, embeddings=model) as store:
        service = AgentMemoryStoreService(store)
        started = time.monotonic()
        for number in range(20):
            service.sync.save_memory("ada", f"Her {number}. hobby is falconry", "facts")
        assert time.monotonic() - started < 5
        assert len(recalled(service, "falconry")) == 5
        assert pending(store) == 20
        if isinstance(model, HangingEmbeddings):
            model.over.set()
    with open_store(sqlite_url, embeddings=None) as store:
        assert AgentMemoryStoreService(store).sync.count_memories("ada")["semantic"] == 20


def test_pending_vectors_are_filled_in_once_the_model_answers(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.embeddings.embedder._PAUSE_S", 0.2)
    monkeypatch.setattr("inference_core.stores.maintenance._PATIENCE_S", (0.1,))
    model = FailingEmbeddings()
    with open_store(sqlite_url, embeddings=model) as store:
        service = AgentMemoryStoreService(store)
        for number in range(50):
            service.sync.save_memory("ada", f"memory number {number}", "facts")
        assert pending(store) == 50
        model.broken = False
        assert until(lambda: pending(store) == 0)
        service.sync.save_memory("ada", "Her dog is called Bix", "facts")
        assert recalled(service, "What is her dog called?")[0] == "Her dog is called Bix"


def test_a_model_that_stays_away_is_asked_less_and_less(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked about twice a second for as long as it was away, or refused a text."""
    monkeypatch.setattr("inference_core.embeddings.embedder._PAUSE_S", 0.01)
    monkeypatch.setattr("inference_core.stores.indexing.embedding._PAUSE_S", 0.01)
    monkeypatch.setattr("inference_core.stores.maintenance._PATIENCE_S", (0.01, 0.01, 60.0))
    with open_store(sqlite_url, embeddings=FailingEmbeddings()) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "likes tea", "facts")

        def failures() -> int:
            return next(one.failures for one in store.engine.maintenance.report() if one.name == VECTORS)

        assert until(lambda: failures() == 3)
        for _ in range(20):
            store.engine.embed_later()
            time.sleep(0.02)
        assert failures() == 3


def test_a_text_that_changed_while_it_was_embedded_keeps_no_stale_vector(sqlite_url: str) -> None:
    with open_store(sqlite_url, embeddings=HangingEmbeddings(0.3)) as store:
        service = AgentMemoryStoreService(store)
        memory_id = service.sync.save_memory("ada", "likes tea", "facts")
        assert service.sync.update_memory("ada", memory_id, "likes coffee")
        assert until(lambda: pending(store) == 0)
        assert recalled(service, "tea coffee") == ["likes coffee"]


def test_one_vector_of_other_dimensions_is_refused_and_the_memory_kept(sqlite_url: str) -> None:
    model = Constant([0.6, 0.8])
    with open_store(sqlite_url, embeddings=model) as store:
        service = AgentMemoryStoreService(store)
        service.sync.save_memory("ada", "likes tea", "facts")
        model.vector = [1.0, 0.0, 0.0]
        service.sync.save_memory("ada", "likes coffee", "facts")
        assert pending(store) == 1
        assert recalled(service, "coffee") == ["likes coffee"]


def test_recall_says_by_which_evidence_it_ranked(sqlite_url: str) -> None:
    model = FailingEmbeddings(broken=False)
    with open_store(sqlite_url, embeddings=model) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "likes tea", "facts")
        search = Search(groups=[[("ada", "semantic")]], text="tea", limit=5)
        assert run(store.engine.search(search)).mode is RecallMode.HYBRID
        model.broken = True
        result = run(store.engine.search(search))
        assert result.mode is RecallMode.LEXICAL
        assert "the embedding server is down" in str(result.reason)
        assert [found.row.value["content"] for found in result.groups[0]] == ["likes tea"]


def test_a_model_that_hangs_in_the_background_holds_up_no_other_chore(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_core.stores.indexing.embedding.EMBED_TIMEOUT_S", 0.05)
    model = HangingEmbeddings(8)
    with open_store(sqlite_url, embeddings=model, access_interval_s=0.05) as store:
        service = AgentMemoryStoreService(store)
        memory_id = service.sync.save_memory("ada", "likes tea", "facts")
        time.sleep(0.2)
        store.engine.accesses.note([(("ada", "semantic"), memory_id)], service.scope.clock.now())
        figures = [(("ada", "usage", "semantic"), memory_id)]
        assert until(lambda: store.engine.backend.get(figures) != [None])
        assert pending(store) == 1
        model.over.set()
        assert until(lambda: pending(store) == 0)


class Lazy(Embeddings):
    """Gives a generator, which fails at a text that it does not like."""

    def embed_documents(self, texts: list[str]) -> Any:
        def vectors() -> Iterator[list[float]]:
            for text in texts:
                if "tea" in text:
                    raise RuntimeError("no tea")
                yield [float(len(text)), 1.0]

        return vectors()

    def embed_query(self, text: str) -> list[float]:
        return [1.0, 1.0]


def test_regression_a_model_that_fails_late_holds_up_only_the_text_that_it_refuses(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for that answer got none, and no text after it ever got its vector."""
    monkeypatch.setattr("inference_core.stores.indexing.embedding.EMBED_TIMEOUT_S", 30)
    monkeypatch.setattr("inference_core.stores.maintenance._PATIENCE_S", (0.1,))
    with open_store(sqlite_url, embeddings=Lazy()) as store:
        service = AgentMemoryStoreService(store).sync
        began = time.monotonic()
        service.save_memory("ada", "likes tea", "facts")
        assert time.monotonic() - began < 10
        for drink in ("coffee", "cocoa"):
            put = Put(
                namespace=("ada", "semantic"),
                key=drink,
                value="{}",
                updated_at=datetime.now(UTC),
                document=Document.of(drink),
            )
            run(store.engine.write([put], embeds=False))
        store.engine.embed_later()
        assert until(lambda: pending(store) == 1)


def test_regression_a_write_that_the_database_did_not_confirm_gets_its_vector_and_its_seal(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_core.embeddings.embedder._PAUSE_S", 0.01)
    monkeypatch.setattr("inference_core.stores.maintenance._PATIENCE_S", (0.1,))
    model = FailingEmbeddings()
    with open_store(sqlite_url, embeddings=model) as store:
        service = AgentMemoryStoreService(store).sync
        backend = store.engine.backend
        apply = backend.apply

        def unconfirmed(batches: Any) -> Any:
            apply(batches)
            raise WriteUnknown("the connection was lost")

        with monkeypatch.context() as patched:
            patched.setattr(backend, "apply", unconfirmed)
            with pytest.raises(WriteUnknown):
                service.save_memory("ada", "likes tea", "facts")
        assert list(store.engine.audit_log.unsealed) == ["ada"]
        model.broken = False
        assert until(lambda: pending(store) == 0)
