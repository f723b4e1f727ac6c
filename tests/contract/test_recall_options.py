"""What recall can be told and what it tells: explanations, duplicates, budget, diversity, re-rankers, time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStoreDocument, open_store
from inference_core.errors import InvalidInput
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.testing import FrozenClock

U = "ada"


@pytest.fixture
def service(any_store: BaseStore, clock: FrozenClock) -> SyncMemoryService:
    """Of any store, without embeddings."""
    return AgentMemoryStoreService(any_store, clock=clock).sync


def _contents(documents: Sequence[MemoryStoreDocument]) -> list[str]:
    return [document.content for document in documents]


def _save(service: SyncMemoryService, *contents: str, **options: Any) -> list[str]:
    return [service.save_memory(U, content, "facts", **options) for content in contents]


def test_a_hit_has_a_relevance_and_its_explanation_adds_up(service: SyncMemoryService):
    _save(service, "likes green tea", "owns a boat")
    (plain,) = service.recall_memories(U, "green tea")
    (explained,) = service.recall_memories(U, "green tea", explain=True)
    assert plain.explanation is None
    assert plain.relevance is not None
    assert 0.5 < plain.relevance <= 1
    assert explained.explanation is not None
    assert explained.score == pytest.approx(sum(explained.explanation.values()), abs=1e-4)
    assert {"lexical", "coverage", "role"} <= set(explained.explanation)


def test_relevance_is_not_relative_to_the_best(service: SyncMemoryService):
    _save(service, "likes green tea with lemon", "owns a boat")
    (fitting,) = service.recall_memories(U, "green tea with lemon")
    (unfitting,) = service.recall_memories(U, "green roof insulation cost estimate")
    assert fitting.relevance is not None
    assert unfitting.relevance is not None
    assert unfitting.relevance < 0.5 * fitting.relevance


def test_a_blank_query_and_switched_off_scores_give_no_relevance(service: SyncMemoryService):
    _save(service, "likes green tea")
    for found in (service.recall_memories(U, " "), service.recall_memories(U, "tea", include_scores=False)):
        assert [(one.score, one.relevance) for one in found] == [(None, None)]


def test_what_was_left_out_is_told_with_the_reason(service: SyncMemoryService, clock: FrozenClock):
    first, again, old, long = _save(service, "likes green tea", "The user likes green tea", "green tea is", "tea " * 40)
    service.save_memory(U, "green tea is", "facts", memory_id=old, expires_at=clock.now() + timedelta(hours=1))
    clock.advance(timedelta(hours=2))
    found = service.recall_memories(U, "green tea", explain=True, max_characters=60)
    reasons = {document.id: reason for document, reason in found.left_out}
    (kept,) = found
    assert kept.id in (first, again)
    twin = again if kept.id == first else first
    assert reasons == {twin: f"duplicate of {kept.id}", old: "expired", long: "budget"}
    assert all(document.explanation for document, _ in found.left_out)
    assert service.recall_memories(U, "green tea").left_out == []


def test_a_negation_is_no_duplicate(service: SyncMemoryService):
    _save(service, "likes green tea", "does not like green tea")
    assert len(service.recall_memories(U, "green tea")) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Prefers tabs over spaces", "Prefers spaces over tabs"),
        ("Ana lent Ben 50 euros", "Ben lent Ana 50 euros"),
        ("Takes .5 mg of melatonin", "Takes 5 mg of melatonin"),
    ],
)
def test_regression_the_same_words_in_another_order_are_no_duplicate(service: SyncMemoryService, old: str, new: str):
    _save(service, old, new)
    assert sorted(_contents(service.recall_memories(U, old))) == sorted([old, new])


def test_the_budget_bounds_all_contents_together(service: SyncMemoryService):
    _save(service, *(f"tea number {number} is fine" for number in range(5)))
    found = service.recall_memories(U, "tea", k=5, max_characters=50)
    assert len(found) == 2
    assert sum(map(len, _contents(found))) <= 50


def test_diversity_prefers_what_is_new(service: SyncMemoryService):
    _save(service, "tea green leaf loose fine", "tea green leaf loose good", "tea harbour boat lamp rope")
    plain = _contents(service.recall_memories(U, "tea green leaf loose", k=2))
    various = _contents(service.recall_memories(U, "tea green leaf loose", k=2, diversity=10))
    assert plain[1].startswith("tea green")
    assert (various[0], various[1]) == (plain[0], "tea harbour boat lamp rope")
    told = service.recall_memories(U, "tea green leaf loose", k=2, diversity=10, explain=True)
    assert [reason for _, reason in told.left_out] == ["repeats others"]


@pytest.mark.parametrize(
    "options",
    [{"max_characters": 0}, {"max_characters": -5}, {"diversity": -1}, {"diversity": 11}],
    ids=["no budget", "negative budget", "negative diversity", "too diverse"],
)
def test_impossible_options_are_refused(service: SyncMemoryService, options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        service.recall_memories(U, "tea", **options)


def test_a_time_in_the_query_boosts_and_never_hides(service: SyncMemoryService):
    may, june = datetime(2026, 5, 8, tzinfo=UTC), datetime(2026, 6, 8, tzinfo=UTC)
    _save(service, "went to the harbour", valid_from=june)
    _save(service, "went to the harbour with Bo", valid_from=may)
    assert _contents(service.recall_memories(U, "the harbour in May 2026")) == [
        "went to the harbour with Bo",
        "went to the harbour",
    ]
    assert _contents(service.recall_memories(U, "the harbour in June 2026"))[0] == "went to the harbour"


def test_an_action_is_guided_by_rules_and_preferences(service: SyncMemoryService):
    service.save_memory(U, "the report is about tides", "facts")
    service.save_memory(U, "the report ends with a summary", "instructions")
    assert _contents(service.recall_memories(U, "Write the report"))[0].endswith("summary")
    assert _contents(service.recall_memories(U, "What tides does the report cover?"))[0].endswith("tides")


class Backwards:
    """Turns the order round, or fails."""

    def __init__(self) -> None:
        self.fails = False
        self.seen: list[list[str]] = []

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self.seen.append(list(texts))
        if self.fails:
            raise ConnectionError("the re-ranker is down")
        return [float(at) for at in range(len(texts))]


@pytest.fixture
def reranker() -> Backwards:
    return Backwards()


@pytest.fixture
def reranked(reranker: Backwards) -> Iterator[SyncMemoryService]:
    with open_store("memory://", embeddings=HashingEmbeddings(), reranker=reranker) as store:
        yield AgentMemoryStoreService(store).sync


def test_a_reranker_has_the_last_word_on_more_than_is_asked_for(reranked: SyncMemoryService, reranker: Backwards):
    _save(reranked, *(f"tea {number}" for number in range(8)))
    assert len(reranked.recall_memories(U, "tea", k=2)) == 2
    (seen,) = reranker.seen
    assert len(seen) == 8
    assert _contents(reranked.recall_memories(U, "tea", k=2)) == [seen[-1], seen[-2]]


def test_a_failing_reranker_leaves_the_order(reranked: SyncMemoryService, reranker: Backwards):
    _save(reranked, "tea", "green tea", "coffee")
    reranker.fails = True
    assert _contents(reranked.recall_memories(U, "green tea", k=1)) == ["green tea"]
    assert reranked.recall_memories("nobody", "green tea") == []
