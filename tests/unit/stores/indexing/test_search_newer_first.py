"""Recall with vectors gives the newer of two memories on the same subject first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.memory.record import MemoryStoreDocument
from inference_core.memory.trust import MemorySource, Origin
from inference_core.services.agent_memory_service import SyncMemoryService

OLD = "The room of the planning team is Aspen"
NEW = "Since May, the room of the planning team is Birch"
OTHERS = ["Likes green tea", "Owns a red boat", "Plays the violin on Sundays", "The dog is called Rex"]
ASKED = "Book the room of the planning team"


@pytest.fixture
def memory() -> Iterator[SyncMemoryService]:
    with open_store("memory://", embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store).sync
        for content in OTHERS:
            service.save_memory("ada", content)
        yield service


def _save(memory: SyncMemoryService, content: str, day: int, **options: Any) -> None:
    memory.save_memory("ada", content, valid_from=datetime(2026, 1, day, tzinfo=UTC), **options)


def _first_two(found: list[MemoryStoreDocument]) -> list[str]:
    return [one.content for one in found[:2]]


def test_the_newer_comes_first_with_falling_scores_that_are_explained(memory: SyncMemoryService):
    """The older one is shorter, so its words counted more, and it came first."""
    _save(memory, OLD, 1)
    _save(memory, NEW, 5)
    found = memory.recall_memories("ada", ASKED, explain=True)
    assert _first_two(found) == [NEW, OLD]
    assert [one.score for one in found] == sorted((one.score or 0 for one in found), reverse=True)
    for one in found:
        assert sum((one.explanation or {}).values()) == pytest.approx(one.score, abs=1e-4)
    newer, older = ((one.explanation or {})["newer"] for one in found[:2])
    assert newer > 0
    assert newer == pytest.approx(-older)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_the_first_of_few_are_the_first_of_many(memory: SyncMemoryService, k: int):
    """With a small limit, the newer one could be beyond it."""
    _save(memory, OLD, 1)
    _save(memory, NEW, 5)
    many = [one.id for one in memory.recall_memories("ada", ASKED, 20)]
    assert [one.id for one in memory.recall_memories("ada", ASKED, k)] == many[:k]


@pytest.mark.parametrize(
    ("query", "options"),
    [
        (ASKED.replace("Book", "Name all previous times in"), {}),
        (ASKED, {"as_of": datetime(2026, 1, 6, tzinfo=UTC)}),
        (ASKED, {"ignore_session": True}),
    ],
    ids=["past", "as of", "text only"],
)
def test_who_asks_for_the_past_gets_the_closest_first(memory: SyncMemoryService, query: str, options: dict[str, Any]):
    _save(memory, OLD, 1)
    _save(memory, NEW, 5)
    assert _first_two(memory.recall_memories("ada", query, **options)) == [OLD, NEW]


@pytest.mark.parametrize(
    "source",
    [
        MemorySource(origin=Origin.AGENT),
        MemorySource(origin=Origin.WEB),
        MemorySource(origin=Origin.WEB, tool="browser"),
        MemorySource(origin=Origin.TOOL, tool="search"),
    ],
    ids=["agent", "web", "by a browser", "tool"],
)
def test_text_of_others_takes_no_place_from_the_users(memory: SyncMemoryService, source: MemorySource):
    """Text from the web that a tool had brought counted like the user's own."""
    _save(memory, OLD, 1)
    _save(memory, NEW, 5, source=source)
    assert _first_two(memory.recall_memories("ada", ASKED)) == [OLD, NEW]


def test_what_the_model_saved_for_the_user_counts_as_the_users(memory: SyncMemoryService):
    _save(memory, OLD, 1)
    _save(memory, NEW, 5, source=MemorySource(origin=Origin.AGENT, tool="save_memory"))
    assert _first_two(memory.recall_memories("ada", ASKED)) == [NEW, OLD]


@pytest.mark.parametrize("sessions", [("s", "s"), ("s", None), (None, "s")], ids=str)
def test_turns_of_a_session_are_not_compared_by_vectors(memory: SyncMemoryService, sessions: tuple[str, str]):
    for content, day, session in zip((OLD, NEW), (1, 5), sessions, strict=True):
        _save(memory, content, day, session_id=session, category="episodic")
    assert _first_two(memory.recall_memories("ada", ASKED)) == [OLD, NEW]


def test_diversity_decides_alone(memory: SyncMemoryService):
    _save(memory, OLD, 1)
    _save(memory, NEW, 5)
    assert [one.content for one in memory.recall_memories("ada", ASKED, 1, diversity=0.1)] == [OLD]


def test_what_was_learned_in_a_session_is_no_turn_of_it(memory: SyncMemoryService):
    """Guards that memories saved by the tools, which name their conversation, were compared by words only."""
    for content, day in zip((OLD, NEW), (1, 5), strict=True):
        _save(memory, content, day, session_id="s")
    assert memory.recall_memories("ada", ASKED)[0].content == NEW


def test_regression_what_is_newer_about_the_users_sister_takes_no_place_from_the_users_own(memory: SyncMemoryService):
    own, sisters = "My phone number is 555-0101.", "My sister's phone number is 555-0199."
    _save(memory, own, 1)
    _save(memory, sisters, 5)
    assert _first_two(memory.recall_memories("ada", "What is my phone number?")) == [own, sisters]
