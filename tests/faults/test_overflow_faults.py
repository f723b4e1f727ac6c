"""A fault at any point while an overflow is handled: nothing is lost, nothing is there twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_process import WORDS_A_TURN, talk, turn_of
from agent_support import FACES, ask, make_agent
from flaky import FlakyBackend, crossed, effects_of, run_with_fault, waits
from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import add_messages
from processes import Forked
from short_term_support import (
    USER,
    dialogue,
    extracting,
    lost_words,
    mark_count,
    marker,
    markers,
    markers_in,
    model_of,
    stored_texts,
)

from inference_core import (
    AgentMemory,
    ExtractiveMemory,
    FlushToLongTerm,
    MemoryStore,
    ShortTermMemoryMiddleware,
    Summarize,
    VectorMemory,
    open_store,
)
from inference_core.effects import run
from inference_core.errors import DeadlineExceeded, InferenceCoreError, StoreUnavailable, VersionConflict
from inference_core.short_term.agent_memory import read_window
from inference_core.short_term.blocks.memory import UserSession, scope_of
from inference_core.short_term.strategies import OverflowStrategy
from inference_core.stores.engine import StoreEngine
from inference_core.testing import ScriptedChatModel

SESSION = "s1"
LIMIT = 300
FAULTS = {
    type(one).__name__: one
    for one in (StoreUnavailable("down"), DeadlineExceeded("late"), VersionConflict("changed"), KeyboardInterrupt())
}
COMBINATIONS = ["S", "F", "FS", "SF"]
BEFORE_OR_AFTER = {"before": False, "after": True}
HISTORY = dialogue(4)
QUESTION = HumanMessage(f"{marker(8)} {'word ' * 200}", id="m8")
WORDS = markers([*HISTORY, QUESTION])


@dataclass(frozen=True)
class Models:
    """Those that summarize and that extract."""

    summarizer: ScriptedChatModel
    extractor: ScriptedChatModel

    @property
    def calls(self) -> int:
        return len(self.summarizer.requests) + len(self.extractor.requests)

    def strategies(self, combination: str) -> list[OverflowStrategy]:
        made: dict[str, OverflowStrategy] = {
            "S": Summarize(self.summarizer),
            "F": FlushToLongTerm([ExtractiveMemory(self.extractor), VectorMemory()]),
        }
        return [made[name] for name in combination]


def models() -> Models:
    return Models(model_of(summarizing), model_of(extracting))


def summarizing(messages: list[BaseMessage]) -> str:
    return f"About {' '.join(markers_in(messages[-1].text))}"


def check_once(kept: Sequence[BaseMessage], store: MemoryStore, *, flushes: bool) -> None:
    """Every word is in the window, perhaps in a summary, or is recalled; no passage and no fact is there twice."""
    passages = Counter(markers_in(*stored_texts(store, "episodic")))
    facts = Counter(markers_in(*stored_texts(store, "semantic")))
    assert WORDS - markers(kept) - set(passages) == set()
    assert lost_words(passages, VectorMemory(store, user_id=USER)) == set()
    assert set(passages.values()) | set(facts.values()) == ({1} if flushes else set())
    assert facts == passages
    assert len({one.id for one in kept}) == len(kept)
    assert mark_count(store.engine) == 2 * len(passages)


def with_fault(plan: Any, at: int, fault: BaseException, *, after: bool) -> Any:
    """What ``plan`` gives; None if the fault ended it."""
    with suppress(InferenceCoreError, KeyboardInterrupt):
        return run_with_fault(plan, at, fault, after=after)
    return None


@pytest.mark.parametrize(("combination", "fault", "after"), crossed(COMBINATIONS, FAULTS, BEFORE_OR_AFTER))
def test_a_fault_in_an_update_of_agent_memory(combination: str, fault: BaseException, after: bool, full: bool):
    def updating(store: MemoryStore, asked: Models) -> AgentMemory:
        return AgentMemory(store, overflow=asked.strategies(combination), max_tokens=LIMIT, user_id=USER)

    def updated(at: int | None) -> tuple[int, int]:
        """How often the update waited without a fault, and how often models were asked."""
        asked, effects = models(), 0
        with open_store("memory://", embeddings=None) as store:
            full = AgentMemory(store, overflow=models().strategies(combination), user_id=USER)
            for message in HISTORY:
                full.update(SESSION, message)
            memory = updating(store, asked)
            if at is None:
                effects = effects_of(memory._update(SESSION, QUESTION))
            else:
                with_fault(memory._update(SESSION, QUESTION), at, fault, after=after)
            updating(store, asked).update(SESSION, QUESTION)
            kept = run(read_window(scope_of(store), UserSession(USER, SESSION))).messages
            check_once(kept, store, flushes="F" in combination)
            assert len(kept) < len(HISTORY)
        return effects, asked.calls

    effects, calls = updated(None)
    assert effects > 5
    at_which = waits(effects, COMBINATIONS.index(combination), full=full)
    assert all(updated(at)[1] <= calls + 1 for at in at_which)


@pytest.mark.parametrize(("combination", "fault", "after"), crossed(COMBINATIONS[:3], FAULTS, BEFORE_OR_AFTER))
def test_a_fault_in_a_run_of_the_middleware(combination: str, fault: BaseException, after: bool, full: bool):
    def fitted(at: int | None) -> tuple[int, int]:
        """How often the middleware waited without a fault, and how often models were asked."""
        asked, effects = models(), 0
        with open_store("memory://", embeddings=None) as store:
            state: list[AnyMessage] = [*HISTORY, QUESTION]
            first, second = (
                ShortTermMemoryMiddleware(asked.strategies(combination), max_tokens=LIMIT, user_id=USER)
                for _ in range(2)
            )
            if at is None:
                effects = effects_of(first.before_call(request_of(state, store)))
            else:
                state = applied(state, with_fault(first.before_call(request_of(state, store)), at, fault, after=after))
            state = applied(state, run(second.before_call(request_of(state, store))))
            check_once(state, store, flushes="F" in combination)
            assert len(state) < len(HISTORY)
        return effects, asked.calls

    effects, calls = fitted(None)
    assert effects > 0
    at_which = waits(effects, COMBINATIONS.index(combination), full=full)
    assert all(fitted(at)[1] <= calls + 1 for at in at_which)


def request_of(messages: Sequence[AnyMessage], store: MemoryStore) -> ModelRequest[Any]:
    state: Any = {
        "messages": list(messages),
        "short_term_owner": USER,
        "short_term_user": USER,
        "short_term_recalled": "",
    }
    runtime: Any = SimpleNamespace(store=store, context=None, stream_writer=[].append)
    return ModelRequest(model=model_of("-"), messages=list(messages), state=state, runtime=runtime)


def applied(messages: Sequence[AnyMessage], fitted: Any) -> list[AnyMessage]:
    """What the graph makes of the state; without a result, what it was."""
    changes = fitted[1].get("messages", []) if fitted else []
    merged: Any = add_messages(list(messages), changes)
    return merged


def killed(folder: Path, seconds: float) -> list[str]:
    """Starts an agent and kills it ``seconds`` after it went on; what it said."""
    process = Forked(talk, folder, 1_000_000)
    said = [process.said.readline().decode()]
    time.sleep(seconds)
    process.kill()
    return [*said, *process.end()[1]]


def test_kill_9_of_an_agent_loses_nothing(tmp_path: Path, full: bool):
    chance = random.Random(3)
    said = [line for _ in range(100 if full else 20) for line in killed(tmp_path, chance.uniform(0, 0.1))]
    turns = max(int(line.split()[1]) for line in said if line.startswith("turn ") and line.strip()[5:].isdigit()) + 3
    kept = talk(tmp_path, turns)
    assert [line for line in said if line.startswith("invalid")] == []
    assert turns > 25
    assert turn_of(kept) >= turns - 1
    words = {marker(number) for number in range((turn_of(kept) + 1) * WORDS_A_TURN)}
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        passages = Counter(markers_in(*stored_texts(store)))
        there = Counter(markers_in(*(one.text for one in kept)))
        assert (set(passages) | set(there)) == words
        assert set((passages + there).values()) == {1}
        assert lost_words(list(passages)[:: 20 if full else 5], VectorMemory(store, user_id=USER)) == set()


@pytest.mark.parametrize("face", FACES)
async def test_a_summarizer_that_hangs_costs_its_timeout_once(face: str):
    over = threading.Event()

    def hang(messages: list[BaseMessage]) -> str:
        over.wait(30)
        return "too late"

    summarizer = model_of(hang)
    middleware = ShortTermMemoryMiddleware(Summarize(summarizer, timeout=0.2), max_tokens=LIMIT)
    agent = make_agent(model_of("answered"), middleware=[middleware], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": SESSION}}
    begun = time.monotonic()
    result = await ask(agent, face, {"messages": [*HISTORY, QUESTION]}, thread)
    took = time.monotonic() - begun
    assert [one.text for one in result["messages"]] == [*(one.text for one in [*HISTORY, QUESTION]), "answered"]
    assert 0.2 <= took < 5
    again = await ask(agent, face, "and now?", thread)
    over.set()
    assert len(again["messages"]) == len(HISTORY) + 4
    assert len(summarizer.requests) == 1


@pytest.mark.parametrize("face", FACES)
async def test_what_could_not_be_flushed_is_flushed_once_when_the_store_is_back(face: str):
    backend = FlakyBackend()
    with MemoryStore(StoreEngine(backend)) as store:
        middleware = ShortTermMemoryMiddleware(max_tokens=LIMIT, user_id=USER)
        agent = make_agent(model_of("answered"), middleware=[middleware], store=store, checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": SESSION}}
        backend.fault = "down"
        result = await ask(agent, face, {"messages": [*HISTORY, QUESTION]}, thread)
        result = await ask(agent, face, "still there?", thread)
        assert markers(result["messages"]) == WORDS
        assert result["messages"][-1].text == "answered"
        backend.heal()
        with store.engine._reading:
            pass  # an answer closes the breaker
        assert stored_texts(store) == []
        for _ in range(2):
            result = await ask(agent, face, f"{'word ' * 200}", thread)
        passages = markers_in(*stored_texts(store))
        assert sorted(passages) == sorted(WORDS - markers(result["messages"]))
        assert len(passages) == len(WORDS)


def test_what_another_middleware_puts_before_the_model_does_not_move_the_summary():
    asked = models()
    with open_store("memory://", embeddings=None) as store:
        middleware = ShortTermMemoryMiddleware(Summarize(asked.summarizer), max_tokens=LIMIT, user_id=USER)
        request = request_of([*HISTORY, QUESTION], store)
        passing = HumanMessage("Today is Monday. " * 20, id="passing")
        fitted = run(middleware.before_call(request.override(messages=[passing, *request.messages])))
        state = applied([*HISTORY, QUESTION], fitted)
        only_passing = request_of([QUESTION], store).override(messages=[passing, QUESTION])
        nothing = applied([QUESTION], run(middleware.before_call(only_passing)))
    assert [one.id for one in state] == ["m0", "m8"]
    assert state[0].text.startswith("CONVERSATION SUMMARY: ")
    assert nothing == [QUESTION]
