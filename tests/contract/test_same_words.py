"""The same words are one memory, by whichever two roads they come, in upper or lower case, with or without a dot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from outbox_support import candidates, pipeline_on, put, said, service_on, step, undone
from short_term_support import model_of

from inference_core import ExtractiveMemory, MemorySource
from inference_core.effects import run
from inference_core.errors import ConfirmationNeeded
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryType
from inference_core.outbox.messages import Candidate
from inference_core.testing import call_tool

U = "ada"
LISBON = "I live in Lisbon."
KIND = MemoryType.FACTS
Road = Callable[[BaseStore, str], object]


def saved(store: BaseStore, text: str, **options: Any) -> str:
    return service_on(store).sync.save_memory(U, text, KIND.value, **options)


def saved_by_an_agent(store: BaseStore, text: str) -> None:
    saved(store, text, source=MemorySource(origin=Origin.AGENT))


def captured(store: BaseStore, text: str) -> None:
    pipeline = pipeline_on(store, candidates(Candidate(content=text, memory_type=KIND, origin=Origin.USER)))
    put(pipeline.outbox, said(text))
    while run(pipeline.outbox.partitions()):
        step(pipeline)


def extracted_by_a_block(store: BaseStore, text: str) -> None:
    block = ExtractiveMemory(model_of(call_tool("ExtractedFacts", facts=[{"content": text}])), store, user_id=U)
    block.update("s1", ("user", text))


def approved(store: BaseStore, text: str) -> None:
    service = service_on(store, confirm=["semantic"])
    with suppress(ConfirmationNeeded):  # unless it is known
        service.sync.save_memory(U, text, KIND.value, source=MemorySource(origin=Origin.AGENT))
    for one in service.sync.list_pending(U):
        assert service.sync.approve_pending(U, one.id) == [one.id]


ROADS: list[Road] = [saved, saved_by_an_agent, captured, extracted_by_a_block, approved]


PAIRS = [
    pytest.param(first, second, marks=() if saved in (first, second) or first is second else pytest.mark.full)
    for first, second in product(ROADS, ROADS)
]
"""In the short run each road before and after a plain save, and twice."""


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_roads_lead_to_one_memory(any_store: BaseStore, first: Road, second: Road):
    """What was captured and then saved was there twice, and a third time if it was saved in lower case."""
    first(any_store, LISBON)
    for text in (LISBON, "i live in lisbon", "I LIVE  in Lisbon!"):
        second(any_store, text)
    (memory,) = service_on(any_store).sync.list_memories(U)[0]
    assert memory.content == LISBON


def test_what_was_saved_since_outlives_what_it_was_made_of(any_store: BaseStore):
    """A save that finds its words adds no memory, so undoing the conversation must not take that one away."""
    pipeline = pipeline_on(any_store, candidates(Candidate(content=LISBON, memory_type=KIND, origin=Origin.USER)))
    put(pipeline.outbox, said(LISBON))
    while run(pipeline.outbox.partitions()):
        step(pipeline)
    key = saved(any_store, LISBON, tags=["home"])
    assert undone(pipeline.scope, U, session_id="s") == 0
    (memory,) = service_on(any_store).sync.list_memories(U)[0]
    assert (memory.id, memory.value["tags"]) == (key, ["home"])


def test_what_was_saved_since_outlives_the_session_of_a_block(any_store: BaseStore):
    extracted_by_a_block(any_store, LISBON)
    saved(any_store, LISBON)
    ExtractiveMemory(model_of(""), any_store, user_id=U).delete("s1")
    assert [one.content for one in service_on(any_store).sync.list_memories(U)[0]] == [LISBON]


def test_an_approval_takes_the_place_of_what_was_saved_meanwhile(any_store: BaseStore):
    service = service_on(any_store, confirm=["semantic"])
    with pytest.raises(ConfirmationNeeded):
        service.sync.save_memory(U, LISBON, KIND.value, source=MemorySource(origin=Origin.AGENT))
    key = saved(any_store, "i live in lisbon", pinned=True)
    (waiting,) = service.sync.list_pending(U)
    assert service.sync.approve_pending(U, waiting.id) == [waiting.id]
    (found,) = service.sync.recall_memories(U, LISBON)
    assert (found.id, found.value["supersedes"], found.value["pinned"]) == (waiting.id, [key], True)
