"""Periodic work on every store, of this package and of LangGraph, and by two workers at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.store.base import BaseStore
from outbox_support import undone
from periodic_support import DAY, QUIET, Life, citing_all, insight, summarizer, summary

from inference_core import MemoryStore, open_store
from inference_core.errors import Held, ModelError
from inference_core.ingestion.periodic.insights import INSIGHT
from inference_core.services.user_memories import delete_user_memory_entries, purge_user_memories
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


def erased(life: Life, how: str, memory_id: str) -> object:
    """Erases the memory in one of the ways there are."""
    service = life.service.sync
    if how == "delete":
        return service.delete_memory("ada", memory_id, erase=True)
    if how == "entry":
        memory = service.get_memory("ada", memory_id)
        assert memory is not None
        home = [("ada", str(memory.memory_category)), ("ada", str(memory.memory_category), "planner")]
        return delete_user_memory_entries(life.store, "ada", [(name, memory_id) for name in home])
    if how == "purge":
        return purge_user_memories(life.store, "ada", "semantic")
    return service.delete_user_memories("ada", "facts")


@pytest.mark.parametrize("how", ["delete", "entry", "purge", "delete type"])
def test_what_was_made_from_an_erased_memory_goes_with_it(any_store: BaseStore, clock: FrozenClock, how: str) -> None:
    """The summary of its session, the next summary, and insights told the erased text for ever."""
    with open_store("memory://", embeddings=None) as other:
        outbox = None if isinstance(any_store, MemoryStore) else other
        turns = [citing_all("Poplar Lane it is"), citing_all("They talked of a street"), citing_all("Of Bob")]
        life = Life(any_store, clock, summarizer=summarizer(*turns), insights=[insight()], outbox=outbox)
        life.says("I live at 12 Poplar Lane")
        life.works(QUIET)
        life.says("We talk of something else")  # the second summary is made of the first, and cites no word of it
        life.works(QUIET)
        home = next(one for one in life.all() if one.content == "I live at 12 Poplar Lane")
        for at in range(3):
            life.service.sync.save_memory("ada", f"Climbs {at}", "goals", topic="climbing", memory_id=f"c{at}")
        clock.advance(DAY)
        life.works(DAY)
        assert life.made_by(INSIGHT)
        made = {one.id for one in life.summaries()}
        assert len(made) == 2
        done: Any = erased(life, how, home.id)
        assert done == {"purge": 6, "delete type": 2}.get(how, 1)
        if how == "delete":
            assert set(done.derived) == made
        assert life.summaries() == []
        assert "Poplar" not in str([[one.value, one.content] for one in life.all()])
        if how != "purge":
            (about_climbing,) = life.made_by(INSIGHT)  # it was made of others
            done = life.service.sync.delete_memory("ada", "c0", erase=True)
            assert done.derived == (about_climbing.id,)
        assert life.made_by(INSIGHT) == []


@pytest.mark.parametrize("state", ["deleted", "changed", "pinned", "under a hold", "not yet summed up"])
def test_what_was_made_goes_whatever_became_of_the_memory(clock: FrozenClock, state: str) -> None:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        life = Life(store, clock, summarizer=summarizer(citing_all("On Poplar Lane"), citing_all("Bob talked")))
        life.says("I live at 12 Poplar Lane")
        life.says("Bob lives in Porto", session="other")
        if state != "not yet summed up":
            life.works(QUIET)
        service = life.service.sync
        home = next(one for one in life.all() if one.content == "I live at 12 Poplar Lane")
        if state == "deleted":
            service.delete_memory("ada", home.id)
        elif state == "changed":
            service.update_memory("ada", home.id, "I live somewhere")
        elif state == "pinned":
            for one in life.summaries():
                service.update_memory("ada", one.id, pinned=True)
        elif state == "under a hold":
            hold = service.hold("ada", "case 7")
            with pytest.raises(Held):
                service.delete_memory("ada", home.id, erase=True)
            assert len(life.summaries()) == 2
            service.release_hold("ada", hold.id)
        assert service.delete_memory("ada", home.id, erase=True)
        life.works(QUIET)
        assert life.holding(life.summaries()) == (
            ["Bob talked"] if state != "not yet summed up" else ["On Poplar Lane"]
        )
        left = [row for row in store.engine.backend.inspect("ada") if "12 Poplar" in str(getattr(row, "value", row))]
        assert left == []


@pytest.mark.parametrize(("content", "goes"), [("I have a bakery", False), ("I sell my lane's bread", True)])
def test_a_summary_of_the_session_goes_if_it_shares_a_word(clock: FrozenClock, content: str, goes: bool) -> None:
    """A model need not cite all that it used."""
    with open_store("memory://", embeddings=None, clock=clock) as store:
        life = Life(store, clock, summarizer=summarizer(summary("Ada lives on Poplar Lane", ["s1"])))
        life.says("I live at 12 Poplar Lane", content)
        life.works(QUIET)
        one = next(one for one in life.all() if one.content == content)
        done: Any = life.service.sync.delete_memory("ada", one.id, erase=True)
        assert (len(done.derived), len(life.summaries())) == ((1, 0) if goes else (0, 1))


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
