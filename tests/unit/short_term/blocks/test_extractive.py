"""Facts that a model picks out of what was said."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from short_term_support import USER, calls, in_threads, mark_count, model_of, result, resumed, stored_texts
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, ExtractiveMemory, MemoryStore, RuleExtractor, Worker, open_store
from inference_core.effects import run
from inference_core.errors import ConfigurationError, ModelError
from inference_core.memory.record import MemoryStoreDocument
from inference_core.short_term.blocks import extractive
from inference_core.short_term.blocks.memory import UserSession
from inference_core.testing import call_tool

TEA = {"content": "Likes tea", "topic": "drinks"}


def told(*facts: dict[str, Any]) -> AIMessage:
    return call_tool("ExtractedFacts", facts=list(facts))


def block_of(store: MemoryStore, *turns: Any, **options: Any) -> ExtractiveMemory:
    return ExtractiveMemory(model_of(*turns), store, user_id=USER, **options)


def absorb(block: ExtractiveMemory, messages: Sequence[AnyMessage], session: str = "s1") -> None:
    run(block.absorb(block.scope(), UserSession(USER, session), messages))


def memories(store: MemoryStore) -> list[MemoryStoreDocument]:
    return AgentMemoryStoreService(store).sync.list_memories(USER)[0]


def test_facts_are_stored_beside_what_agents_saved(store: MemoryStore):
    AgentMemoryStoreService(store).sync.save_memory(USER, "Lives in Kyoto", "facts")
    block = block_of(store, told(TEA))
    block.update("s1", "I like tea")
    fact = next(one for one in memories(store) if one.content == "Likes tea")
    assert (fact.memory_type, fact.topic) == ("facts", "drinks")
    assert fact.metadata == {"block": "extractive_memory", "sessions": ["s1"]}
    assert [one.content for one in block.get("s2", "tea or coffee?")] == ["Likes tea", "Lives in Kyoto"]


def test_the_model_sees_what_user_and_assistant_said_and_nothing_else(store: MemoryStore):
    model = model_of(told())
    block = ExtractiveMemory(model, store, user_id=USER, extraction_prompt="Only names.")
    wanted = AIMessage("Looking", tool_calls=[{"name": "find", "args": {"word": "secret"}, "id": "a"}])
    absorb(block, [calls("b"), HumanMessage("I am Ada"), wanted, result("a", "from a tool"), HumanMessage(" ")])
    ((prompt, history),) = model.requests
    assert prompt.text == "Only names."
    assert "I am Ada" in history.text
    assert "Looking" in history.text
    assert not any(word in history.text for word in ("secret", "from a tool", "find"))


def test_of_messages_without_text_nobody_is_asked(store: MemoryStore):
    model = model_of(told(TEA))
    absorb(ExtractiveMemory(model, store, user_id=USER), [calls("a"), result("a"), HumanMessage("")])
    assert model.requests == []
    assert stored_texts(store) == []


def test_a_message_is_dealt_with_once(store: MemoryStore):
    model = model_of(told(TEA))
    block = ExtractiveMemory(model, store, user_id=USER)
    message = HumanMessage("I like tea", id="m1")
    absorb(block, [message])
    AgentMemoryStoreService(store).sync.delete_user_memories(USER)
    absorb(block, [message])
    assert stored_texts(store) == []
    assert len(model.requests) == 1


def test_the_same_fact_of_two_sessions_is_one(store: MemoryStore):
    block = block_of(store, told(TEA), told({"content": "likes  TEA"}, {"content": "Has a cat"}))
    for session in ("s1", "s2", "s2"):
        block.update(session, HumanMessage("I like tea", id=session))
    block.update("s2", HumanMessage("As I said", id="again"))
    assert sorted(stored_texts(store)) == ["Has a cat", "Likes tea"]
    block.delete("s2")
    assert stored_texts(store) == ["Likes tea"]
    block.delete("s1")
    assert stored_texts(store) == []


@pytest.mark.parametrize("is_edited", [True, False], ids=["edited", "superseded"])
def test_regression_a_fact_that_is_told_again_after_it_changed_is_stored(store: MemoryStore, *, is_edited: bool):
    """The row under the fact's id counted as the fact, though it said something else by then, or had ended."""
    service = AgentMemoryStoreService(store, timeout=None)
    block = block_of(store, told({"content": "I live in Rome"}))
    block.update("s1", "I live in Rome")
    (old,) = memories(store)
    if is_edited:
        service.sync.update_memory(USER, old.id, "I moved to Oslo")
    else:
        service.sync.add_messages(USER, ["I moved to Oslo"])
        Worker.of(service, RuleExtractor()).drain()
    for session in ("s2", "s3"):
        block.update(session, f"I am back in Rome, says {session}")
    found = service.sync.recall_memories(USER, "Where do I live?")
    assert [one.metadata["sessions"] for one in found if one.content == "I live in Rome"] == [["s2", "s3"]]


def test_regression_a_fact_that_waits_goes_with_its_session(store: MemoryStore):
    """The block's own were removed among the memories alone, and not where they wait for the user."""
    service = AgentMemoryStoreService(store, confirm=("semantic",))
    block = ExtractiveMemory(model_of(told(TEA), told({"content": "Has a cat"})), service, user_id=USER)
    for session in ("s1", "s2"):
        block.update(session, HumanMessage("I like tea", id=session))
    block.delete("s1")
    assert [one.document.content for one in service.sync.list_pending(USER)] == ["Has a cat"]


def test_what_somebody_else_tells_meanwhile_is_not_forgotten(store: MemoryStore):
    block = block_of(store, told(TEA))
    block.update("s1", HumanMessage("I like tea", id="m1"))
    forgetting = block.forget(block.scope(), UserSession(USER, "s1"))
    reading = forgetting.send(None)
    making = forgetting.send(reading.start().result())
    records = making.start().result()
    block.update("s2", HumanMessage("I like tea", id="m2"))

    def go_on() -> None:  # through what is read before the write, to the write
        effect = forgetting.send(records)
        while True:
            effect = forgetting.send(effect.start().result())

    with pytest.raises(Exception, match="version") as conflict:
        go_on()
    again = forgetting.throw(conflict.value)
    run(resumed(forgetting, again))
    assert [one.metadata["sessions"] for one in memories(store)] == [["s2"]]


@pytest.mark.parametrize(
    "turn",
    ["I like to talk.", call_tool("ExtractedFacts", facts="none"), ConnectionError("away")],
    ids=["prose", "other form", "error"],
)
def test_nonsense_is_an_error_and_the_message_is_not_marked(store: MemoryStore, turn: Any):
    block = block_of(store, turn, told(TEA))
    with pytest.raises(ModelError):
        block.update("s1", HumanMessage("I like tea", id="m1"))
    assert (stored_texts(store), mark_count(store.engine)) == ([], 0)
    block.update("s1", HumanMessage("I like tea", id="m1"))
    assert stored_texts(store) == ["Likes tea"]


def test_odd_facts_are_mended_or_left_out(store: MemoryStore):
    long = "A sentence about it. " * 600
    odd = [
        {"content": " "},
        {"content": "a\x00b\ud800", "topic": "\x01"},
        {"content": long, "topic": "\U0001f431" * 200},
    ]
    block = block_of(store, told(*odd))
    block.update("\x01", "hi")
    mended, cut = sorted(memories(store), key=lambda one: len(one.content))
    assert (mended.content, mended.topic) == ("ab\ufffd", None)
    assert cut.topic == "\U0001f431" * 128
    assert long.startswith(cut.content)
    assert len(cut.content) > 4_000


def test_no_more_facts_are_taken_than_make_sense(store: MemoryStore):
    block_of(store, told(*({"content": f"fact {number}"} for number in range(80)))).update("s1", "hi")
    assert len(stored_texts(store)) == extractive.MAX_FACTS


def test_a_long_history_is_given_in_portions(store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extractive, "_CHARACTERS_AT_ONCE", 100)
    model = model_of(told({"content": "one"}), told({"content": "two"}))
    absorb(ExtractiveMemory(model, store, user_id=USER), [HumanMessage(f"{at}" * 60, id=f"m{at}") for at in range(2)])
    assert len(model.requests) == 2
    assert sorted(stored_texts(store)) == ["one", "two"]


def test_what_was_stored_before_the_model_failed_gets_its_vectors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extractive, "_CHARACTERS_AT_ONCE", 100)
    with open_store("memory://", embeddings=HashingEmbeddings()) as own:
        embedded = threading.Event()
        monkeypatch.setattr(own.engine, "embed_later", embedded.set)
        with pytest.raises(ModelError):
            absorb(block_of(own, told(TEA), AIMessage("no facts")), [HumanMessage(f"{at}" * 60) for at in range(2)])
        assert embedded.is_set()
        assert stored_texts(own) == ["Likes tea"]


def test_who_was_faster_has_done_it(store: MemoryStore):
    message = HumanMessage("I like tea", id="m1")

    def overtaken(messages: Any) -> AIMessage:
        block_of(store, told(TEA)).update("s1", message)
        return told({"content": "Drinks tea"})

    block_of(store, overtaken).update("s1", message)
    assert stored_texts(store) == ["Likes tea"]


def test_threads_that_learn_the_same_lose_nothing(store: MemoryStore):
    def learn(at: int) -> None:
        block = block_of(store, told(TEA, {"content": f"fact {at}"}))
        block.update(f"s{at}", HumanMessage("I like tea", id="m"))
        block.update("shared", HumanMessage("hi", id="m"))

    assert in_threads(*(lambda at=at: learn(at) for at in range(8))) == [None] * 8
    tea = next(one for one in memories(store) if one.content == "Likes tea")
    assert sorted(tea.metadata["sessions"]) == [*(f"s{at}" for at in range(8)), "shared"]
    assert {f"fact {at}" for at in range(8)} <= set(stored_texts(store))


def test_a_model_has_to_be_able_to_call_tools(store: MemoryStore):
    with pytest.raises(ConfigurationError, match="can call tools"):
        ExtractiveMemory(FakeListChatModel(responses=["hi"]), store)


def chosen(*numbers: int) -> AIMessage:
    return call_tool("RelevantFacts", numbers=list(numbers))


def test_a_retrieval_prompt_has_the_model_choose_the_facts(store: MemoryStore):
    """The prompt that finds facts could not be the user's own, as there was none."""
    block_of(store, told(TEA, {"content": "Lives in Oslo"}, {"content": "Plays chess"})).update("s1", "…")
    model = model_of(
        chosen(2, 7, 0, 2), chosen(), ModelError("down"), AIMessage("prose"), chosen(1, 2, 3), chosen(1, 2, 3)
    )
    block = ExtractiveMemory(model, store, user_id=USER, retrieval_prompt="Pick </facts> what helps.", max_results=2)
    ranked = block_of(store, told(), max_results=3).get("s2", "Where is home?")
    everything = [one.content for one in ranked]
    assert [one.content for one in block.get("s2", "Where is home?\n</message>")] == [everything[1]]
    system, asked = model.requests[0]
    assert system.text == "Pick </facts> what helps."
    assert asked.text.startswith(
        f"<facts>\n1. {everything[0]}\n2. {everything[1]}\n3. {everything[2]}\n</facts>\n<message>\n"
    )
    assert asked.text.count("</message>") == 1
    assert block.get("s2", "Where is home?") == []
    for _ in range(2):  # a model that fails, and one that answers nonsense: ranking decides
        assert [one.content for one in block.get("s2", "Where is home?")] == everything[:2]
    assert [one.content for one in block.get("s2", "Where is home?")] == everything[:2]
    small = ExtractiveMemory(model, store, user_id=USER, retrieval_prompt="Pick.", max_tokens=4)
    assert [one.content for one in small.get("s2", "Where is home?")] == everything[:1]
    asked_before = len(model.requests)
    assert len(block.get("s2")) == 2  # nothing was asked, so there is nothing to choose by
    assert ExtractiveMemory(model, store, user_id="bob", retrieval_prompt="Pick.").get("s2", "home?") == []
    assert len(model.requests) == asked_before


def test_the_extraction_prompt_may_be_the_users_own(store: MemoryStore):
    model = model_of(told())
    ExtractiveMemory(model, store, user_id=USER, extraction_prompt="Only allergies.").update("s1", "I like tea")
    assert model.requests[0][0].text == "Only allergies."
