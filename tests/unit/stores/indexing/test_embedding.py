"""A model of other dimensions behind the same class is refused, and stores of before go on opening."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from langchain_core.embeddings import Embeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.embeddings.embedder import Embedder, Passage
from inference_core.errors import EmbeddingMismatch
from inference_core.stores.backend import EMBEDDING_META
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.factory import open_backend
from inference_core.stores.indexing.embedding import DIMENSIONS_META, VectorSpace
from inference_core.transfer.copying import reembed


class Mine(Embeddings):
    """A class of an application's own, which does not tell its dimensions."""

    def __init__(self, size: int) -> None:
        self.size = size

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text) + at) for at in range(self.size)] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def save(url: str, embeddings: Embeddings | Embedder, memory_id: str = "a") -> None:
    with open_store(url, embeddings=embeddings) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "likes tea", memory_id=memory_id)


def recorded(url: str) -> str | None:
    with closing(open_backend(url)) as backend:
        return backend.get_meta(DIMENSIONS_META)


def test_other_dimensions_of_the_same_class_are_refused(sqlite_url: str):
    """The cause: a class of one's own was fingerprinted by its name, whatever its vectors look like."""
    save(sqlite_url, Mine(8))
    assert recorded(sqlite_url) == "8"
    with open_store(sqlite_url, embeddings=Mine(16)) as store:
        service = AgentMemoryStoreService(store)
        with pytest.raises(EmbeddingMismatch, match="have 8 dimensions"):
            service.sync.save_memory("ada", "likes coffee")
        with pytest.raises(EmbeddingMismatch, match="reembed"):
            service.sync.recall_memories("ada", "tea")
        with pytest.raises(EmbeddingMismatch):
            asyncio.run(service.recall_memories("ada", "tea"))
        assert service.sync.count_memories("ada")["total"] == 1
    save(sqlite_url, Mine(8), "b")


def test_a_store_of_before_opens_and_is_held_to_its_vectors(sqlite_url: str, tmp_path: Path):
    save(sqlite_url, Mine(8))
    with closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
        connection.execute("DELETE FROM memory_meta WHERE name = ?", (DIMENSIONS_META,))
    with pytest.raises(EmbeddingMismatch):
        save(sqlite_url, Mine(16), "b")
    assert recorded(sqlite_url) is None
    save(sqlite_url, Mine(8), "b")
    assert recorded(sqlite_url) == "8"


def test_two_that_open_an_empty_store_cannot_both_fill_it(sqlite_url: str):
    with open_store(sqlite_url, embeddings=Mine(8)) as first, open_store(sqlite_url, embeddings=Mine(16)) as second:
        AgentMemoryStoreService(first).sync.save_memory("ada", "likes tea")
        with pytest.raises(EmbeddingMismatch):
            AgentMemoryStoreService(second).sync.save_memory("ada", "likes coffee")


def test_a_model_that_is_known_to_differ_is_refused_at_open(sqlite_url: str):
    save(sqlite_url, Embedder(Mine(8), "mine"))
    embedder = Embedder(Mine(16), "mine")
    embedder.embed_now([Passage("tea")])
    with pytest.raises(EmbeddingMismatch):
        open_store(sqlite_url, embeddings=embedder)


def test_embedding_anew_needs_another_name(sqlite_url: str):
    save(sqlite_url, Embedder(Mine(8), "mine"))
    with pytest.raises(EmbeddingMismatch):
        reembed(sqlite_url, Embedder(Mine(16), "mine"))
    assert recorded(sqlite_url) == "8"
    assert reembed(sqlite_url, Embedder(Mine(16), "mine-2")) == 1
    assert recorded(sqlite_url) == "16"
    save(sqlite_url, Embedder(Mine(16), "mine-2"), "b")


def test_regression_of_two_models_for_a_new_store_the_first_has_it(monkeypatch: pytest.MonkeyPatch):
    """Both read that there was none, both set theirs, and neither was refused."""
    backend = InMemoryBackend()
    set_meta = backend.set_meta

    def late(name: str, value: str, *, is_first: bool = False) -> None:
        set_meta(EMBEDDING_META, "another")
        set_meta(name, value, is_first=is_first)

    monkeypatch.setattr(backend, "set_meta", late)
    with pytest.raises(EmbeddingMismatch, match="another"):
        VectorSpace(backend, Embedder(Mine(8), "mine"))


def test_regression_of_two_that_record_dimensions_the_first_decides(monkeypatch: pytest.MonkeyPatch):
    backend, embedder = InMemoryBackend(), Embedder(Mine(16), "mine")
    space, set_meta = VectorSpace(backend, embedder), backend.set_meta
    embedder.embed_now([Passage("tea")])

    def late(name: str, value: str, *, is_first: bool = False) -> None:
        set_meta(DIMENSIONS_META, "8")
        set_meta(name, value, is_first=is_first)

    monkeypatch.setattr(backend, "set_meta", late)
    with pytest.raises(EmbeddingMismatch, match="have 8 dimensions"):
        space.record()
