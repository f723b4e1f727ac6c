"""Recall and list narrowed down by tags, session, time and relevance, and the fields that an update changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from inference_core import AgentMemoryStoreService, ContextEngineer, open_store
from inference_core.errors import InvalidInput, InvalidMemory
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.testing import FrozenClock

HOUR = timedelta(hours=1)


@pytest.fixture
def memory(service: AgentMemoryStoreService, clock: FrozenClock) -> SyncMemoryService:
    """Notes on tea, one an hour: "n0" to "n3"."""
    for number, tags in enumerate([["green", "hot"], ["hot"], [], ["green", "cold"]]):
        service.sync.save_memory(
            "ada", f"Tea note number {number}", memory_id=f"n{number}", tags=tags, session_id=f"s{number % 2}"
        )
        clock.advance(HOUR)
    return service.sync


def narrowed(memory: SyncMemoryService, **narrow: Any) -> list[str]:
    """The ids that a recall, a recall without a query and a list find, which are the same."""
    recalled = [memory.recall_memories("ada", query, 10, **narrow) for query in ("tea note", "")]
    page, total = memory.list_memories("ada", **narrow)
    found = {tuple(sorted(one.id for one in documents)) for documents in (*recalled, page)}
    assert len(found) == 1
    assert total == len(page)
    return list(found.pop())


def test_by_tags(memory: SyncMemoryService):
    """Neither recall nor list could be narrowed down by tag: they raised TypeError."""
    assert narrowed(memory, tags=["green"]) == ["n0", "n3"]
    assert narrowed(memory, tags=["hot", "green"]) == ["n0"]
    assert narrowed(memory, tags=["gre"]) == []


def test_by_session_and_time(memory: SyncMemoryService, clock: FrozenClock):
    """Only list took a session, and neither took a time."""
    first = clock.now() - 4 * HOUR
    assert narrowed(memory, session_id="s1") == ["n1", "n3"]
    assert narrowed(memory, created_after=first + HOUR, created_before=first + 3 * HOUR) == ["n1", "n2"]
    assert narrowed(memory, created_after=first + 2 * HOUR, session_id="s1", tags=["cold"]) == ["n3"]
    assert narrowed(memory, created_before=first) == []


def test_pages_of_a_narrowed_list(memory: SyncMemoryService):
    first, total = memory.list_memories("ada", tags=["green"], limit=1)
    second, _ = memory.list_memories("ada", tags=["green"], limit=1, after=first.next_cursor)
    assert ([one.id for one in (*first, *second)], total, second.next_cursor) == (["n3", "n0"], 2, None)


def test_the_filter_comes_before_the_cut(sqlite_url: str):
    """The two memories that match are found behind a hundred that rank higher."""
    with open_store(sqlite_url, embeddings=None) as store:
        memory = AgentMemoryStoreService(store).sync
        for number in range(100):
            memory.save_memory("ada", f"green tea green tea {number}", tags=["other"])
        for number in range(2):
            memory.save_memory("ada", f"a longer note on some kind of tea {number}", memory_id=f"t{number}", tags=["t"])
        found = memory.recall_memories("ada", "green tea", 3, tags=["t"], explain=True)
        assert sorted(one.id for one in found) == ["t0", "t1"]
        assert found.left_out == []


def test_by_relevance(memory: SyncMemoryService):
    found = memory.recall_memories("ada", "tea note number 2", 10)
    bound = found[0].relevance or 0.0
    likely = memory.recall_memories("ada", "tea note number 2", 10, min_relevance=bound, explain=True)
    assert [one.id for one in likely] == [one.id for one in found if (one.relevance or 0.0) >= bound]
    assert len(likely) < len(found)
    reasons = {reason for _, reason in likely.left_out}
    assert reasons == {"below min_relevance"}
    assert len(memory.recall_memories("ada", "", 10, min_relevance=1)) == 4


@pytest.mark.parametrize(
    ("narrow", "message"),
    [
        ({"tags": "green"}, "list"),
        ({"session_id": 3.5}, "session_id"),
        ({"created_after": "2026"}, "created_after"),
        ({"created_after": datetime(2026, 2, 1), "created_before": datetime(2026, 1, 1)}, "earlier"),  # noqa: DTZ001
    ],
)
def test_what_cannot_be_a_filter(memory: SyncMemoryService, narrow: dict[str, Any], message: str):
    for ask in (lambda: memory.recall_memories("ada", "tea", **narrow), lambda: memory.list_memories("ada", **narrow)):
        with pytest.raises(InvalidInput, match=message):
            ask()
    with pytest.raises(InvalidInput, match="min_relevance"):
        memory.recall_memories("ada", "tea", min_relevance=2)


def test_an_update_of_tags_importance_and_expiry(memory: SyncMemoryService, clock: FrozenClock):
    """`update_memory` raised TypeError for each of them."""
    end = clock.now() + HOUR
    assert memory.update_memory("ada", "n0", tags=["black"], importance=0.9, expires_at=end)
    changed = memory.get_memory("ada", "n0")
    assert changed
    assert changed.content == "Tea note number 0"
    kept = {name: changed.value[name] for name in ("tags", "importance", "expires_at")}
    assert kept == {"tags": ["black"], "importance": 0.9, "expires_at": end.isoformat()}
    clock.advance(HOUR)
    assert narrowed_ids(memory) == ["n1", "n2", "n3"]
    assert memory.update_memory("ada", "n0", expires_at="never", tags=[])
    assert narrowed_ids(memory) == ["n0", "n1", "n2", "n3"]
    again = memory.get_memory("ada", "n0")
    assert again
    assert (again.value.get("tags"), again.value["importance"], again.value.get("expires_at")) == (None, 0.9, None)


def narrowed_ids(memory: SyncMemoryService) -> list[str]:
    return sorted(one.id for one in memory.recall_memories("ada", "tea note", 10))


@pytest.mark.parametrize("changes", [{"tags": "black"}, {"importance": 2}, {"expires_at": "soon"}])
def test_an_update_that_cannot_be(memory: SyncMemoryService, changes: dict[str, Any]):
    before = memory.get_memory("ada", "n0")
    with pytest.raises(InvalidMemory):
        memory.update_memory("ada", "n0", **changes)
    assert memory.get_memory("ada", "n0") == before


def test_a_context_of_what_recall_gives(memory: SyncMemoryService, clock: FrozenClock):
    """`assemble` took only items of its own: recalled memories ended in AttributeError."""
    memory.save_memory("ada", "The kettle is in the blue cupboard", "facts", memory_id="kettle")
    context = ContextEngineer(selects=False).assemble(memory.recall_memories("ada", "tea kettle", 10))
    assert sorted(item.id for item in context.items) == ["kettle", "n0", "n1", "n2", "n3"]
    assert "The kettle is in the blue cupboard" in context.text
    now = clock.now()
    again = ContextEngineer().assemble(memory.recall_memories("ada", "kettle", 10), query="kettle", now=now)
    assert again == ContextEngineer().assemble(memory.recall_memories("ada", "kettle", 10), query="kettle", now=now)
