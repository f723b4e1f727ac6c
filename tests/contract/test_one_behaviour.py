"""The same memories give the same answers and scores on every database, and others' writes cost what they are."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from databases import KINDS, database
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.retrieval.documents import Change
from inference_core.testing import FrozenClock

QUERIES = (
    "green tea in the morning",
    "what happened in Kyoto last week?",
    "k\u00e4se",
    "\u8336",
    "nothing of this",
    "",
)
WORDS = ("tea", "coffee", "Kyoto", "K\u00e4se", "\u8336", "bicycle", "opera", "morning", "green", "meeting")


def remember(store: MemoryStore) -> AgentMemoryStoreService:
    clock = FrozenClock(datetime(2026, 3, 1, 9, tzinfo=UTC))
    service = AgentMemoryStoreService(store, clock=clock, agent_name="planner", timeout=None)
    for number in range(60):
        clock.advance(timedelta(hours=5))
        text = f"{WORDS[number % 10]} and {WORDS[number * 7 % 10]} number {number // 3}"
        service.sync.save_memory(
            "ada" if number % 4 else "bob",
            text,
            ("facts", "interaction", "instructions")[number % 3],
            session_id=f"s{number // 12}",
            memory_id=f"m{number}",
            importance=number % 5 / 4,
        )
    for number in range(0, 60, 17):
        service.sync.delete_memory("ada", f"m{number}")
    service.sync.update_memory("ada", "m5", "Green tea is best in the morning")
    return service


def answers(service: AgentMemoryStoreService) -> tuple[list[Any], list[float]]:
    """What is found, in order, and the scores and relevances of it."""
    found: list[Any] = []
    numbers: list[float] = []
    for user in ("ada", "bob"):
        for text in QUERIES:
            hits = service.sync.recall_memories(user, text, 10)
            found.append([(hit.id, hit.content, hit.created_at, hit.updated_at) for hit in hits])
            numbers += [number for hit in hits for number in (hit.score or 0.0, hit.relevance or 0.0)]
        found.append([hit.id for hit in service.sync.list_memories(user)[0]])
    return found, numbers


def test_answers_and_scores_are_the_same_on_every_database(tmp_path: Path) -> None:
    given: dict[str, tuple[list[Any], list[float]]] = {}
    for kind in KINDS:
        with ExitStack() as stack:
            url = stack.enter_context(database(kind, tmp_path))
            given[kind] = answers(remember(stack.enter_context(open_store(url, embeddings=HashingEmbeddings()))))
    found, numbers = given["memory"]
    assert len(numbers) > 100
    for kind, (others, scores) in given.items():
        assert others == found, kind
        assert scores == pytest.approx(numbers, abs=1e-6), kind


def test_saves_of_others_cost_a_read_each_and_not_a_reload(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(shared_url, embeddings=None) as one, open_store(shared_url, embeddings=None) as other:
        here, there = AgentMemoryStoreService(one).sync, AgentMemoryStoreService(other).sync
        for number in range(60):
            there.save_memory("ada", f"fact {number}")
        assert here.recall_memories("ada", "fact 7", 1)
        backend = one.engine.backend
        read: list[Change] = []
        changes = backend.changes

        def counted(*arguments: Any) -> list[Change]:
            found = list(changes(*arguments))
            read.extend(found)
            return found

        monkeypatch.setattr(backend, "changes", counted)
        for number in range(40):
            there.save_memory("ada", f"news {number}")
            assert here.recall_memories("ada", f"news {number}", 1)[0].content == f"news {number}"
        assert len(read) == 40
