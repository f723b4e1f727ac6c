"""Engines of stores of other libraries: found again, shared by whoever uses the store, and gone with it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from support import FailingEmbeddings, HangingEmbeddings, HashingEmbeddings

from inference_core import (
    AgentMemory,
    AgentMemoryStoreService,
    ContextBuilder,
    MemoryLifecycle,
    MemoryMiddleware,
    RuleExtractor,
    StaticMemory,
    Worker,
    get_memory_tools,
    open_store,
)
from inference_core.errors import ConfigurationError
from inference_core.services.user_memories import purge_user_memories
from inference_core.stores.factory import any_engine_of, engine_of

U = "ada"


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "it never came true"
        gc.collect()
        time.sleep(0.01)


def test_many_services_of_one_store_are_one_engine() -> None:
    """Each service made an engine, with threads and a mirror of its own, that nobody ended: 50 left 151 threads."""
    store, before = InMemoryStore(), set(threading.enumerate())
    services = [AgentMemoryStoreService(store) for _ in range(50)]
    for service in services:
        service.sync.save_memory(U, "likes tea")
        service.sync.recall_memories(U, "tea")
    assert len({id(service.scope.engine) for service in services}) == 1
    engine = services[0].scope.engine
    assert MemoryMiddleware(user_id=U)._binding.scope(store).engine is engine
    assert any_engine_of(store) is engine
    names = [one.name for one in set(threading.enumerate()) - before]
    assert len([name for name in names if name.startswith("memory-store-")]) <= 8


def test_other_embeddings_are_another_engine_and_the_same_ones_are_not() -> None:
    store, other, model = InMemoryStore(), InMemoryStore(), HashingEmbeddings()
    lexical, semantic = engine_of(store), engine_of(store, model)
    assert lexical is not semantic
    assert engine_of(store, model) is semantic
    assert engine_of(store, HashingEmbeddings()) is not semantic
    elsewhere = engine_of(other, model)
    assert elsewhere is not semantic
    assert elsewhere.embedder is semantic.embedder is not None
    assert any_engine_of(store) in {lexical, semantic}


def test_a_store_with_an_index_is_ranked_with_its_own_embeddings_unless_others_are_given() -> None:
    """Regression: without a word, recall by meaning vanished for who moved over with an indexed store."""

    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.1] if "puppy" in text or "canine" in text else [0.1, 1.0] for text in texts]

    store = InMemoryStore(index={"embed": embed, "dims": 2})
    service = AgentMemoryStoreService(store).sync
    service.save_memory(U, "Owns a puppy")
    service.save_memory(U, "Drives an automobile")
    assert service.recall_memories(U, "canine", 1)[0].content == "Owns a puppy"
    own, others = engine_of(store).embedder, engine_of(store, HashingEmbeddings()).embedder
    assert own is not None
    assert others is not None
    assert own.fingerprint.endswith("embed")
    assert own.fingerprint != others.fingerprint
    assert engine_of(store) is service.scope.engine


def test_an_engine_goes_with_its_store_and_a_service_keeps_it() -> None:
    store = InMemoryStore()
    gone = weakref.ref(store)
    service = AgentMemoryStoreService(store)
    service.sync.save_memory(U, "likes tea")
    scope, engine = service.scope, service.scope.engine
    del store, service
    gc.collect()
    assert gone() is not None
    assert not engine.is_closed
    del scope
    until(lambda: gone() is None and engine.is_closed)


def test_an_engine_that_was_closed_is_made_again() -> None:
    store = InMemoryStore()
    first = engine_of(store)
    first.close()
    assert engine_of(store) is not first
    AgentMemoryStoreService(store).sync.save_memory(U, "likes tea")
    assert purge_user_memories(store, U) == 1
    assert not engine_of(store).is_closed


def test_the_threads_of_a_model_end_with_its_last_store() -> None:
    store = InMemoryStore()
    engine = engine_of(store, HashingEmbeddings())
    service = AgentMemoryStoreService(store)
    service.sync.save_memory(U, "likes tea")
    embedder = weakref.ref(engine.embedder or engine)
    del store, engine, service
    until(lambda: embedder() is None)


def test_rows_that_are_gone_do_not_hide_texts_that_wait_for_their_vectors() -> None:
    store, model = InMemoryStore(), FailingEmbeddings()
    service = AgentMemoryStoreService(store, embeddings=model)
    for text in ("tea", "mate", "coffee"):
        service.sync.save_memory(U, f"likes {text}")
    service.sync.recall_memories(U, "tea")
    for item in store.search(()):
        store.delete(item.namespace, item.key)
    service.sync.save_memory("bob", "likes water")
    service.sync.recall_memories("bob", "water")
    engine = service.scope.engine
    assert engine.embedder is not None
    (waiting,) = engine.backend.pending(engine.embedder.fingerprint, 3)
    assert "water" in waiting.text
    engine.close()


def test_regression_closing_waits_for_texts_that_are_embedded_for_another_librarys_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner closes the connection after that, which they still read."""
    monkeypatch.setattr("inference_core.stores.indexing.embedding.EMBED_TIMEOUT_S", 0.05)
    store, model = InMemoryStore(), HangingEmbeddings(0.5)
    service = AgentMemoryStoreService(store, embeddings=model)
    service.sync.save_memory(U, "likes tea")
    engine = service.scope.engine
    backfill = engine.parts.backfill
    assert backfill is not None
    until(lambda: backfill._running is not None)
    running = backfill._running
    engine.close()
    assert running is not None
    assert running.done()


MOCKS = [MagicMock(), AsyncMock(), MagicMock(spec=BaseStore), MagicMock(spec=AgentMemoryStoreService), Mock(spec=dict)]


@pytest.mark.parametrize(
    "take",
    [
        AgentMemoryStoreService,
        open_store,
        ContextBuilder,
        MemoryLifecycle,
        partial(MemoryMiddleware, user_id=U),
        partial(get_memory_tools, user_id=U),
        partial(AgentMemory, user_id=U),
        partial(StaticMemory, "Closed on Sundays."),
        partial(Worker.of, extractor=RuleExtractor()),
        MemoryMiddleware()._binding.scope,
    ],
)
def test_regression_a_mock_is_neither_a_store_nor_a_service(take: Callable[[Any], object]) -> None:
    """Mocks with a spec were taken: what they were given was lost, or a call failed far away from its cause."""
    for mock in MOCKS:
        with pytest.raises(ConfigurationError, match=r"keeps nothing.*open_store\('memory://'.*inference_core.testing"):
            take(mock)
