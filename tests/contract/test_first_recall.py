"""What a process recalls first, and what becomes of texts that were saved before the model was loaded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agent_support import FACES, ask, make_agent
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemoryStore, open_store
from inference_core.agents.middleware import short_term
from inference_core.agents.middleware.short_term import ShortTermMemoryMiddleware
from inference_core.effects import run
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import EmbeddingError, StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.short_term.blocks.vector import VectorMemory
from inference_core.short_term.strategies import FlushToLongTerm
from inference_core.stores import engine as engines
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing import embedding
from inference_core.stores.indexing.embedding import Backfill
from inference_core.stores.indexing.search import RecallMode, Search
from inference_core.testing import ScriptedChatModel

LATE = 30.0
ADA: Namespace = ("ada", "semantic")
Load = Callable[[], None]


class LocalModel(HashingEmbeddings):
    """A model that runs in this process; notes how many texts it embeds each time."""

    runs_in_process = True

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.sizes.append(len(texts))
        return super().embed_documents(texts)


class Loading:
    """Lets a model load once ``go`` is set, or fail if there is an ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self.error = error

    def __call__(self) -> None:
        assert self.go.wait(LATE)
        if self.error:
            raise self.error


@pytest.fixture
def loading() -> Iterator[Loading]:
    loading = Loading()
    yield loading
    loading.go.set()


def opened(url: str, load: Load | None = None, model: HashingEmbeddings | None = None) -> MemoryStore:
    """The store at ``url`` with a model that ``load`` loads."""
    return open_store(url, embeddings=Embedder(model or LocalModel(), "hashing", load))


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def pending(store: MemoryStore) -> list[str]:
    return [row.text for row in store.engine.backend.pending("hashing", 99)]


def _nothing(_: Backfill) -> None:
    """Instead of a portion."""


@pytest.fixture
def without_chore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are not made in the background."""
    monkeypatch.setattr(Backfill, "fill_portion", _nothing)


class TestWaiting:
    def test_a_direct_recall_waits_for_the_model(self, sqlite_url: str, loading: Loading) -> None:
        """It used to answer by words at once, however long its caller could wait."""
        with opened(sqlite_url, loading) as store:
            service = AgentMemoryStoreService(store, timeout=2 * LATE)
            service.sync.save_memory("ada", "Drinks green tea")
            asking, results = in_thread(lambda: service.sync.recall_memories("ada", "zeppelin"))
            asking.join(0.1)
            assert asking.is_alive()
            loading.go.set()
            asking.join(LATE)
            (found,) = results
            assert [one.content for one in found] == ["Drinks green tea"]
            assert (found.by_meaning, found.reason) == (True, None)

    def test_it_says_so_if_the_model_is_too_late(self, sqlite_url: str, loading: Loading) -> None:
        with opened(sqlite_url, loading) as store:
            service = AgentMemoryStoreService(store, timeout=0.5)
            service.sync.save_memory("ada", "Drinks green tea")
            patient = AgentMemoryStoreService(store, timeout=None)
            patient.scope = patient.sync.scope = service.scope
            found = patient.sync.recall_memories("ada", "Which tea?")
            assert [one.content for one in found] == ["Drinks green tea"]
            assert (found.by_meaning, found.reason) == (False, "The embedding model is being loaded")
            loading.go.set()  # else closing waits for it

    def test_it_does_not_wait_for_a_model_that_cannot_be_loaded(self, sqlite_url: str, loading: Loading) -> None:
        loading.error = OSError("no such file")
        with opened(sqlite_url, loading) as store:
            service = AgentMemoryStoreService(store, timeout=None)
            service.sync.save_memory("ada", "Drinks green tea")
            loading.go.set()
            found = service.sync.recall_memories("ada", "Which tea?")
            assert found.reason == "The embedding model could not be loaded: no such file"
            assert not found.by_meaning

    def test_without_a_question_nothing_is_compared(self, sqlite_url: str) -> None:
        with opened(sqlite_url) as store:
            service = AgentMemoryStoreService(store).sync
            service.save_memory("ada", "Drinks green tea")
            assert not service.recall_memories("ada", " ").by_meaning

    def test_so_does_a_search_of_the_store(self, sqlite_url: str, loading: Loading) -> None:
        with opened(sqlite_url, loading) as store:
            store.put(ADA, "tea", {"text": "green tea"})
            asking, results = in_thread(lambda: store.search(("ada",), query="zeppelin"))
            loading.go.set()
            asking.join(LATE)
            assert [item.key for item in results[0]] == ["tea"]

    @pytest.mark.parametrize("face", FACES)
    async def test_the_first_run_of_an_agent_waits_for_the_model(
        self, sqlite_url: str, loading: Loading, face: str
    ) -> None:
        """Long beyond its usual limit."""
        with opened(sqlite_url, loading) as store:
            AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks green tea")
            middleware = MemoryMiddleware(user_id="ada", recall_timeout=LATE / 1000, cold_timeout=LATE)
            agent = make_agent(ScriptedChatModel(turns=["ok"]), store=store, middleware=[middleware])
            threading.Timer(0.2, loading.go.set).start()
            result = await ask(agent, face, "zeppelin")
            assert (result["memory_status"], result["memory_status_reason"]) == ("recalled", None)

    @pytest.mark.parametrize("face", FACES)
    async def test_so_does_the_first_recall_of_short_term_memory(
        self, sqlite_url: str, loading: Loading, monkeypatch: pytest.MonkeyPatch, face: str
    ) -> None:
        monkeypatch.setattr(short_term, "COLD_TIMEOUT_S", LATE)
        with opened(sqlite_url, loading) as store:
            AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks green tea", "interaction")
            overflow = FlushToLongTerm([VectorMemory(min_relevance=0)], into_system_prompt=True)
            middleware = ShortTermMemoryMiddleware(overflow, user_id="ada")
            model = ScriptedChatModel(turns=["ok"])
            agent = make_agent(model, store=store, middleware=[middleware])
            threading.Timer(0.2, loading.go.set).start()
            await ask(agent, face, "zeppelin")
            assert any("green tea" in message.text for message in model.requests[0])

    def test_only_the_first_recalls_have_more_time(self, sqlite_url: str, loading: Loading) -> None:
        with opened(sqlite_url, loading) as store:
            first = store.engine.patience(0.3, LATE)
            assert LATE - 1 < first <= LATE
            assert 0.3 < store.engine.patience(0.3, LATE) <= first, "counted from the first recall"
            assert store.engine.patience(0.3, 1e-9) == 0.3, "its time is over"
            search = Search(groups=[[ADA]], text="tea", limit=1, cold_seconds=0.01)
            assert run(store.engine.search(search)).mode is RecallMode.LEXICAL
            assert store.engine.patience(0.3, LATE) > 0.3, "the model is still being loaded"
            loading.go.set()
            assert (
                run(store.engine.search(Search(groups=[[ADA]], text="tea", limit=1, cold_seconds=LATE))).reason is None
            )
            assert store.engine.patience(0.3, LATE) == 0.3

    def test_without_a_model_the_first_recall_has_more_time_too(self, sqlite_url: str) -> None:
        """It opens connections and builds an index."""
        with open_store(sqlite_url, embeddings=None) as store:
            assert store.engine.patience(0.3, LATE) > 1
            run(store.engine.search(Search(groups=[[ADA]], text="tea", limit=1)))
            assert store.engine.patience(0.3, LATE) == 0.3


class TestVectorsOfAnEarlierProcess:
    """One that ended, or was killed, before its model was loaded."""

    @pytest.fixture
    def url(self, sqlite_url: str, without_chore: None) -> str:
        with open_store(sqlite_url, embeddings=None) as store:
            AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks green tea")
        return sqlite_url

    def test_a_search_embeds_the_few_texts_of_its_user_first(self, url: str) -> None:
        with opened(url) as store:
            service = AgentMemoryStoreService(store).sync
            found = service.recall_memories("ada", "zeppelin")
            assert [one.content for one in found] == ["Drinks green tea"]
            assert pending(store) == []

    def test_but_not_those_of_others(self, url: str) -> None:
        with opened(url) as store:
            AgentMemoryStoreService(store).sync.recall_memories("bob", "tea")
            assert pending(store) == ["Drinks green tea"]

    @pytest.mark.parametrize(("name", "most"), [("_MOST_AT_ONCE", 0), ("_MOST_CHARACTERS", 10)])
    def test_many_or_long_texts_are_left_to_the_background(
        self, url: str, monkeypatch: pytest.MonkeyPatch, name: str, most: int
    ) -> None:
        monkeypatch.setattr(embedding, name, most)
        with opened(url) as store:
            assert len(AgentMemoryStoreService(store).sync.recall_memories("ada", "tea")) == 1
            assert pending(store) == ["Drinks green tea"]

    def test_a_model_on_a_server_is_not_asked(self, url: str) -> None:
        with opened(url, model=HashingEmbeddings()) as store:
            AgentMemoryStoreService(store).sync.recall_memories("ada", "tea")
            assert pending(store) == ["Drinks green tea"]

    def test_a_text_that_the_model_refuses_holds_up_no_search(self, url: str) -> None:
        class Refusing(LocalModel):
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                super().embed_documents(texts)
                raise ValueError("too long")

        model = Refusing()
        with opened(url, model=model) as store:
            service = AgentMemoryStoreService(store).sync
            found = [service.recall_memories("ada", "Which tea?") for _ in range(3)]
            assert [len(one) for one in found] == [1, 1, 1]
            assert model.sizes == [1], "not tried again with each search"

    def test_nor_does_a_database_that_takes_no_writes(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with opened(url) as store:

            def refuse(*_: object) -> None:
                raise StoreUnavailable("read-only for the moment")

            monkeypatch.setattr(store.engine.parts.writer, "submit", refuse)
            assert len(AgentMemoryStoreService(store).sync.recall_memories("ada", "Which tea?")) == 1


class TestClosing:
    def test_what_was_saved_without_a_vector_gets_it(
        self, sqlite_url: str, loading: Loading, without_chore: None
    ) -> None:
        """A script saves and ends before its model is loaded."""
        store = opened(sqlite_url, loading)
        service = AgentMemoryStoreService(store).sync
        for number in range(70):
            service.save_memory("ada", f"note {number}")
        assert len(pending(store)) == 70
        closing, _ = in_thread(store.close)
        loading.go.set()
        closing.join(LATE)
        with open_store(sqlite_url, embeddings=None) as store:
            assert pending(store) == []

    def test_it_waits_no_longer_than_it_may(
        self, sqlite_url: str, loading: Loading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(engines, "_LAST_VECTORS_S", 0.05)
        store = opened(sqlite_url, loading)
        AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks green tea")
        with caplog.at_level(logging.INFO):
            store.close()
        assert "when the store is opened again" in caplog.text
        loading.go.set()
        with opened(sqlite_url) as store:
            found = AgentMemoryStoreService(store, timeout=LATE).sync.recall_memories("ada", "zeppelin")
            assert len(found) == 1

    def test_it_does_not_wait_if_nothing_is_missing(
        self, sqlite_url: str, loading: Loading, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that only read ends at once, whatever others have left behind."""
        monkeypatch.setattr(engines, "_LAST_VECTORS_S", 10 * LATE)
        with open_store(sqlite_url, embeddings=None) as store:
            AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks green tea")
        store = opened(sqlite_url, loading)
        closing, _ = in_thread(store.close)
        closing.join(LATE)
        assert not closing.is_alive()
        assert not loading.go.is_set()

    def test_a_portion_that_has_not_begun_is_dropped_in_silence(
        self, sqlite_url: str, loading: Loading, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its threads are busy with others' texts: closing used to end with a traceback."""
        with opened(sqlite_url) as store:
            assert store.engine.backfill is not None
            assert store.engine.embedder is not None
            for _ in range(2):
                store.engine.embedder.in_background(loading)
            store.engine.maintenance.close()  # it is woken once more before that
            store.engine.backfill.fill_portion()
            store.engine.backfill.close(0.01)
            loading.go.set()
        assert caplog.text == ""

    def test_a_model_that_fails_does_not_keep_it_open(
        self, without_chore: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engines, "_LAST_VECTORS_S", 10 * LATE)

        class Failing(LocalModel):
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                super().embed_documents(texts)
                raise EmbeddingError("away")

        model = Failing()
        engine = StoreEngine(InMemoryBackend(), Embedder(model, "hashing"))
        store = MemoryStore(engine)
        AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks green tea")
        closing, _ = in_thread(store.close)
        closing.join(LATE)
        assert not closing.is_alive()
        assert len(model.sizes) <= 3
