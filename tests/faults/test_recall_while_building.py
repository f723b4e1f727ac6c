"""Constant recalls of a user with 200,000 memories, whose index is not there yet."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from databases import database
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStore
from inference_core.effects import run
from inference_core.embeddings.embedder import Embedder
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Document
from inference_core.retrieval.vectors import pack_vectors
from inference_core.services.operations.prompt_context import TurnOptions, build_turn_context
from inference_core.stores.backend import Backend, Put
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import open_backend
from inference_core.stores.indexing.search import Search

MANY, PORTION, CALLERS = 200_000, 2_000, 2
USER: Namespace = ("ada", "semantic")
PLACES = ("harbour", "kitchen", "market", "garden", "river", "station", "library", "bakery", "theatre", "tower")
QUESTION = "what did I note about the kitchen and the tower on day 77?"


def fill(backend: Backend, model: str) -> None:
    """The user's memories, each with a vector of ``model``."""
    random, start = np.random.default_rng(1), datetime(2026, 1, 1, tzinfo=UTC)
    for first in range(0, MANY, PORTION):
        vectors = random.standard_normal((PORTION, HashingEmbeddings.dimensions)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        batch: list[Put] = []
        for number in range(first, first + PORTION):
            near, far = PLACES[number % 10], PLACES[number // 10 % 10]
            text = f"Note {number} about the {near} and the {far}, of day {number % 365}"
            document = Document.of(text)._replace(vector=pack_vectors(vectors[[number - first]]), model=model)
            value = f'{{"content": "{text}", "memory_type": "facts", "memory_category": "semantic"}}'
            at = start + timedelta(minutes=number)
            batch.append(
                Put(namespace=USER, key=f"k{number}", value=value, document=document, kind="facts", updated_at=at)
            )
        (outcome,) = backend.apply([batch])
        assert isinstance(outcome, list)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_recall_fails_while_a_large_index_is_built(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each recall looked through all memories: half of them failed, and the index was not there after minutes."""
    monkeypatch.setitem(Search.__init__.__kwdefaults__ or {}, "wait_seconds", 2.0)  # else it would wait for the index
    embedder = Embedder(HashingEmbeddings(), "hashing")
    with database(kind, tmp_path) as url:
        with closing(open_backend(url)) as backend:
            fill(backend, embedder.fingerprint)
        with MemoryStore(StoreEngine(open_backend(url), embedder)) as store:
            store.wait_ready()
            service = AgentMemoryStoreService(store)
            is_built, give_up = threading.Event(), threading.Event()
            timer = threading.Timer(600, give_up.set)
            timer.start()

            def ask() -> tuple[int, int]:
                by_words = turns = 0
                while not is_built.is_set() and not give_up.is_set():
                    assert len(service.sync.recall_memories("ada", QUESTION, 5)) == 5
                    turn = run(build_turn_context(service.scope, "ada", QUESTION, TurnOptions(wait_seconds=0.2)))
                    assert turn.block
                    if turn.reason is None:
                        is_built.set()
                    by_words += turn.reason is not None
                    turns += 1
                return by_words, turns

            with ThreadPoolExecutor() as pool:
                callers = [pool.submit(ask) for _ in range(CALLERS)]
                counts = [caller.result() for caller in callers]
            timer.cancel()
            assert is_built.is_set()
            assert sum(by_words for by_words, _ in counts) > 0
            print(f"{kind}: {sum(turns for _, turns in counts)} turns, all answered")
