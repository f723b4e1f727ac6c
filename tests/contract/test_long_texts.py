"""Long texts: analysed on a worker, not in the thread of a caller's event loop, and found all the same."""

from __future__ import annotations

import threading

import pytest

from inference_core import AgentMemoryStoreService, open_store
from inference_core.retrieval import documents
from inference_core.retrieval.documents import LONG_CHARACTERS, Document

LONG = " ".join(f"word{number} about falcons" for number in range(8_000))[:8_000]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that analyse long texts, in their order."""
    names: list[str] = []
    analyze = documents.analyze

    def watched(text: str) -> list[str]:
        if len(text) >= LONG_CHARACTERS:  # the store analyses a word when it opens
            names.append(threading.current_thread().name)
        return analyze(text)

    monkeypatch.setattr(documents, "analyze", watched)
    return names


async def test_a_long_text_is_analysed_by_a_worker(sqlite_url: str, threads: list[str]) -> None:
    """8 KB of new words took 50 to 70 ms of the event loop's thread."""
    with open_store(sqlite_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        memory_id = await service.save_memory("ada", LONG)
        await service.update_memory("ada", memory_id, LONG + " and hawks")
        await store.aput(("notes",), "long", {"text": LONG})
        assert len(threads) == 3
        assert all(name.startswith("memory-store") for name in threads)
        (found,) = await service.recall_memories("ada", "hawks")
        (item,) = await store.asearch(("notes",), query="falcons")
        stored = {change.document for change in store.engine.backend.changes(("ada", "semantic"), 0)}
    assert (found.id, item.key) == (memory_id, "long")
    assert [document and document.is_analysed for document in stored] == [True]


async def test_a_short_text_is_analysed_at_once(sqlite_url: str, threads: list[str]) -> None:
    with open_store(sqlite_url, embeddings=None) as store:
        await AgentMemoryStoreService(store).save_memory("ada", "x" * LONG_CHARACTERS)
    assert threads == [threading.current_thread().name]


def test_what_is_analysed_later_is_what_is_analysed_at_once() -> None:
    document = Document.soon_of(LONG)
    assert not document.is_analysed
    assert document.analysed() == Document.of(LONG)
    assert document.analysed().analysed() == document.analysed()
