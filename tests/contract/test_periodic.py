"""Periodic work on every store, of this package and of LangGraph, and by two workers at once."""

from __future__ import annotations

import threading
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.store.base import BaseStore
from outbox_support import undone
from periodic_support import DAY, QUIET, Life, citing_all, insight, summarizer

from inference_core import MemoryStore, open_store
from inference_core.errors import ModelError
from inference_core.ingestion.periodic.insights import INSIGHT
from inference_core.testing import FrozenClock


def test_summaries_and_insights_on_every_store(any_store: BaseStore, clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None) as other:
        outbox = None if isinstance(any_store, MemoryStore) else other
        given: dict[str, Any] = {"summarizer": summarizer(citing_all("First"), citing_all("Second")), "outbox": outbox}
        life = Life(any_store, clock, insights=[insight()], **given)
        for at in range(3):
            life.service.sync.save_memory("ada", f"Climbs {at}", "facts", topic="climbing", memory_id=f"c{at}")
        life.says("One", "Two")
        life.works(QUIET)
        life.says("Three")
        life.works(DAY)
        assert life.holding(life.summaries()) == ["Second"]
        assert len(life.summaries()) == 2
        assert life.holding(life.made_by(INSIGHT)) == ["Ada climbs whenever she can"]
        assert sorted(one.content for one in life.all(session_id="s")) == ["First", "One", "Second", "Three", "Two"]
        life.service.sync.delete_memory("ada", "c0")
        life.works(DAY)
        assert life.holding(life.made_by(INSIGHT)) == []
        undone(life.service.scope, "ada", session_id="s")
        assert life.all(session_id="s") == []


def test_two_workers_write_one_summary(own_store: MemoryStore, clock: FrozenClock) -> None:
    lives = [Life(own_store, clock, summarizer=summarizer(citing_all(f"By {at}"))) for at in range(2)]
    for number in range(3):
        lives[0].says(f"Hello {number}", session=f"s{number}")
    clock.advance(QUIET)
    threads = [threading.Thread(target=life.works) for life in lives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lives[0].works()
    assert sorted(str(one.value["session_id"]) for one in lives[0].summaries()) == ["s0", "s1", "s2"]


def test_regression_work_that_was_put_off_in_its_last_attempt_is_tried(
    own_store: MemoryStore, clock: FrozenClock
) -> None:
    """That attempt could not be noted, so the new work counted as tried too often and died."""

    def fails(messages: list[BaseMessage]) -> AIMessage:
        raise ModelError("out of order")

    def fails_late(messages: list[BaseMessage]) -> AIMessage:
        life.says("Two")
        return fails(messages)

    life = Life(own_store, clock, summarizer=summarizer(fails, fails, fails_late, citing_all("Both")))
    life.says("One")
    for _ in range(4):
        life.works(DAY)
    assert [one.content for one in life.summaries()] == ["Both"]
