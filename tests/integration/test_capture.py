"""CaptureMiddleware in agents made by `create_agent`: what is said goes into the outbox once, and into no stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest
from agent_support import FACES, as_node, ask, make_agent, patient_memory
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from outbox_support import Scripted, contents

from inference_core import (
    AgentMemoryStoreService,
    MemoryContext,
    MemoryMiddleware,
    MemoryReviewMiddleware,
    MemoryStore,
    RuleExtractor,
    ShortTermMemoryMiddleware,
    Trim,
    open_store,
)
from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.asking import ask as ask_model
from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.ingestion.worker import Progress, Worker
from inference_core.outbox.messages import Candidate, ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Partition, Waiting
from inference_core.stores.backend import PageRequest, WriteRule
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

ADA, BOB = {"user_id": "ada"}, {"user_id": "bob"}
THREAD: dict[str, Any] = {"configurable": {"thread_id": "first"}}


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with open_store("memory://", embeddings=None) as opened:
        yield opened


@tool
def look() -> str:
    """Looks something up."""
    return "nothing there"


@tool
def confirm() -> str:
    """Asks the user."""
    return str(interrupt("sure?"))


def agent_with(store: Any, *others: Any, turns: Sequence[Any] = ("Noted.",), **options: Any) -> Any:
    """An agent whose capture works on nothing, so that the outbox shows what was captured."""
    given = {name: options.pop(name) for name in ("outbox", "clock") if name in options}
    capture = CaptureMiddleware(Scripted(), works=False, **given)
    options.setdefault("checkpointer", InMemorySaver())
    model = ScriptedChatModel(turns=list(turns))
    tools = [look, confirm]
    return make_agent(
        model, store=store, middleware=[capture, *others], tools=tools, context_schema=MemoryContext, **options
    )


def captured(store: Any, user: str = "ada") -> list[str]:
    """What waits in the outbox, in its order."""
    rows = store.engine.backend.page(PageRequest([Partition(user).messages], limit=1_000))
    return [f"{row.value['role']}: {row.value['text']}" for row in reversed(rows)]


@pytest.mark.parametrize("face", FACES)
async def test_what_user_and_assistant_said_is_captured_once(store: MemoryStore, face: str) -> None:
    clock = FrozenClock()
    agent = agent_with(store, turns=[call_tool("look"), *(f"Answer {number}" for number in range(8))], clock=clock)
    expected: list[str] = []
    for number in range(8):
        await ask(agent, face, f"Question {number}", THREAD, context=ADA)
        expected += [f"user: Question {number}", f"assistant: Answer {number}"]
        assert sorted(captured(store)) == sorted(expected)
    rows = store.engine.backend.page(PageRequest([Partition("ada").messages], limit=1))
    assert (rows[0].value["session"], rows[0].value["at"]) == ("first", clock.now().isoformat())


@pytest.mark.parametrize("face", FACES)
async def test_runs_that_did_not_end_are_captured_with_the_next(store: MemoryStore, face: str) -> None:
    turns = [ConnectionError("model down"), "One.", call_tool("confirm"), "Two.", *[call_tool("look")] * 3, "Three."]
    agent = agent_with(store, turns=turns)
    with pytest.raises(ConnectionError):
        await ask(agent, face, "first", THREAD, context=ADA)
    assert captured(store) == []
    await ask(agent, face, "second", THREAD, context=ADA)
    assert captured(store) == ["user: first", "user: second", "assistant: One."]
    await ask(agent, face, "third", THREAD, context=ADA)
    assert len(captured(store)) == 3
    await ask(agent, face, Command(resume="yes"), THREAD, context=ADA)
    assert captured(store)[3:] == ["user: third", "assistant: Two."]
    with pytest.raises(GraphRecursionError):
        await ask(agent, face, "fourth", THREAD | {"recursion_limit": 6}, context=ADA)
    assert captured(store)[5:] == ["user: fourth"]
    await ask(agent, face, "fifth", THREAD, context=ADA)
    assert captured(store)[5:] == ["user: fourth", "user: fifth", "assistant: Three."]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("later", [0, 2], ids=["the last", "an earlier one"])
async def test_a_message_that_is_edited_is_captured_anew(store: MemoryStore, face: str, later: int) -> None:
    agent = agent_with(store)
    await ask(agent, face, {"messages": [HumanMessage("I live in Bergen.", id="h1")]}, THREAD, context=ADA)
    for number in range(later):
        await ask(agent, face, f"More {number}", THREAD, context=ADA)
    before = captured(store)
    await ask(agent, face, {"messages": [HumanMessage("I live in Oslo.", id="h1")]}, THREAD, context=ADA)
    assert set(captured(store)) - set(before) == {"user: I live in Oslo."}
    assert len(captured(store)) == len(before) + 2
    await ask(agent, face, "And now?", THREAD, context=ADA)
    assert captured(store).count("user: I live in Oslo.") == 1


@pytest.mark.parametrize("face", FACES)
async def test_an_answer_that_is_edited_is_captured_anew(store: MemoryStore, face: str) -> None:
    agent = agent_with(store)
    await ask(agent, face, {"messages": [HumanMessage("Hello", id="h1")]}, THREAD, context=ADA)
    answer = agent.get_state(THREAD).values["messages"][-1]
    agent.update_state(THREAD, {"messages": [answer.model_copy(update={"content": "Corrected."})]})
    await ask(agent, face, "And now?", THREAD, context=ADA)
    assert captured(store).count("assistant: Corrected.") == 1
    assert captured(store).count("assistant: Noted.") == 2


@pytest.mark.parametrize("face", FACES)
async def test_what_others_said_is_not_captured_when_it_is_edited(store: MemoryStore, face: str) -> None:
    agent = agent_with(store)
    await ask(agent, face, {"messages": [HumanMessage("I live in Bergen.", id="h1")]}, THREAD, context=ADA)
    await ask(agent, face, {"messages": [HumanMessage("I live in Rome.", id="h2")]}, THREAD, context={"user_id": "ben"})
    edits = [HumanMessage("I live in Oslo.", id="h1"), HumanMessage("I live in Milan.", id="h2")]
    await ask(agent, face, {"messages": edits}, THREAD, context={"user_id": "ben"})
    assert "user: I live in Milan." in captured(store, "ben")
    assert "user: I live in Oslo." not in captured(store, "ben")


def marks(store: Any) -> list[tuple[str, str | None, bool, bool]]:
    """Of each message in the outbox: its text, its author, whether it is proven, and whether it is marked."""
    rows = store.engine.backend.page(PageRequest([Partition("ada").messages], limit=1_000))
    found = [Waiting.of(row).message for row in reversed(rows)]
    return [(one.text, one.author, one.is_proven, one.is_marked) for one in found]


def test_regression_captured_messages_tell_who_wrote_them_and_what_is_not_proven(store: MemoryStore) -> None:
    """Another person's "I", a picture's caption and a skill's text counted as the user's."""
    agent = agent_with(store, turns=["Hi.", "Hello.", "Nice."])
    skill = HumanMessage("I live in Skilltown.", additional_kwargs={"lc_source": "pinned_skill"})
    picture = HumanMessage(
        [{"type": "text", "text": "Look"}, {"type": "image", "base64": "AA", "mime_type": "image/x"}]
    )
    for said in (
        [HumanMessage("I live in Ghent.", name="Ada")],
        [HumanMessage("I moved.", name="Bob")],
        [skill, picture],
    ):
        agent.invoke({"messages": said}, THREAD, context=ADA)
    assert marks(store) == [
        ("I live in Ghent.", None, True, False),
        ("Hi.", None, True, False),
        ("I moved.", "Bob", True, True),
        ("Hello.", None, True, True),
        ("Look", None, False, True),
        ("Nice.", None, True, True),
    ]


def test_the_mark_of_a_thread_outlives_the_agents_state(store: MemoryStore) -> None:
    turns = [call_tool("look"), "Found.", "Noted."]
    agent_with(store, turns=turns).invoke({"messages": [("user", "Look it up")]}, THREAD, context=ADA)
    agent_with(store).invoke({"messages": [("user", "I live in Ghent.")]}, THREAD, context=ADA)
    agent_with(store).invoke(
        {"messages": [("user", "I live in Rome.")]}, {"configurable": {"thread_id": "other"}}, context=ADA
    )
    marked = {text: is_marked for text, _, _, is_marked in marks(store)}
    assert (marked["Look it up"], marked["Found."]) == (False, True)
    assert (marked["I live in Ghent."], marked["I live in Rome."]) == (True, False)


@pytest.mark.parametrize("face", FACES)
async def test_nobody_is_captured(store: MemoryStore, face: str) -> None:
    agent = agent_with(store)
    assert (await ask(agent, face, "who am I?", THREAD))["messages"][-1].text == "Noted."
    assert store.engine.backend.namespaces() == []


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
async def test_regression_what_others_said_in_a_thread_is_not_captured_for_the_next(
    store: MemoryStore, fails: bool
) -> None:
    agent = agent_with(store, turns=[ConnectionError("down") if fails else "Hello Ada.", "Hello Bob.", "Bye."])
    try:
        await ask(agent, "sync", "I am Ada", THREAD, context=ADA)
    except ConnectionError:
        assert fails
    await ask(agent, "sync", "I am Bob", THREAD, context=BOB)
    assert captured(store, "bob") == ["user: I am Bob", "assistant: Hello Bob."]
    assert captured(store) == ([] if fails else ["user: I am Ada", "assistant: Hello Ada."])


async def test_regression_what_was_said_before_somebody_was_known_is_not_captured(store: MemoryStore) -> None:
    agent = agent_with(store)
    await ask(agent, "sync", "secret of nobody", THREAD)
    await ask(agent, "sync", "I am Ada", THREAD, context=ADA)
    assert captured(store) == ["user: I am Ada", "assistant: Noted."]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("first", [ADA, None], ids=["another user", "nobody"])
async def test_regression_a_message_that_the_application_removes_brings_up_nothing_that_others_said(
    store: MemoryStore, face: str, first: Any
) -> None:
    """The last message that was captured is the bookmark; without it, capture began anew at the first message."""
    turns = ["Hello Ada.", "Hello Bob.", ConnectionError("down"), "Hi Bob.", "Bye Bob.", "Bye."]
    agent = agent_with(store, turns=turns)
    await ask(agent, face, "I am Ada", THREAD, context=first)
    answered = await ask(agent, face, "I am Bob", THREAD, context=BOB)
    with pytest.raises(ConnectionError):
        await ask(agent, face, "I fish", THREAD, context=BOB)
    said = ["user: I am Bob", "assistant: Hello Bob."]
    for question, reply in (("I cook", "Hi Bob."), ("I swim", "Bye Bob.")):
        gone = RemoveMessage(answered["messages"][-1].id)
        again = {"messages": [gone, HumanMessage(question)]}
        answered = await ask(agent, face, again, THREAD, context=BOB)
        said += ["user: I fish"] * (question == "I cook") + [f"user: {question}", f"assistant: {reply}"]
        assert captured(store, "bob") == said
    await ask(agent, face, "I am Ada again", THREAD, context=ADA)
    assert captured(store)[2 * (first is ADA) :] == ["user: I am Ada again", "assistant: Bye."]


async def test_regression_a_conversation_that_is_written_anew_is_not_captured_for_the_next_user(
    store: MemoryStore,
) -> None:
    """Under new ids nobody can tell who said what, so only what this run brings is captured."""
    agent = agent_with(store, turns=["Hello Ada.", "Hello Bob.", "Bye."])
    await ask(agent, "sync", "I am Ada", THREAD, context=ADA)
    answered = await ask(agent, "sync", "I am Bob", THREAD, context=BOB)
    anew = [one.model_copy(update={"id": None}) for one in answered["messages"]]
    given = {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *anew, HumanMessage("I swim")]}
    await ask(agent, "sync", given, THREAD, context=BOB)
    assert captured(store, "bob") == ["user: I am Bob", "assistant: Hello Bob.", "user: I swim", "assistant: Bye."]


@pytest.mark.parametrize("config", [{}, THREAD], ids=["plain", "with a thread id"])
async def test_without_a_checkpointer_the_history_of_each_run_is_captured_once(
    store: MemoryStore, config: dict[str, Any]
) -> None:
    agent = agent_with(store, turns=["One.", "Two.", "Three."], checkpointer=None)
    history: list[Any] = []
    for number in range(3):
        history.append(("user", f"Question {number}"))
        result = await ask(agent, "sync", {"messages": history}, config, context=ADA)
        history.append(("assistant", result["messages"][-1].text))
    assert sorted(captured(store)) == sorted(
        [
            *(f"user: Question {number}" for number in range(3)),
            *(f"assistant: {name}." for name in ("One", "Two", "Three")),
        ]
    )


@pytest.mark.parametrize(
    "extractor",
    ["openai:gpt-5-mini", ScriptedChatModel(turns=["x"]), RuleExtractor, None],
    ids=["name", "model", "class", "none"],
)
def test_what_cannot_extract_is_refused_before_it_costs_messages(store: MemoryStore, extractor: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is no extractor: pass ModelExtractor\(\[model\]\) or RuleExtractor"):
        CaptureMiddleware(extractor)
    with pytest.raises(ConfigurationError, match="is no extractor"):
        Worker.of(AgentMemoryStoreService(store), extractor)


def test_all_middlewares_fit_into_one_list(store: MemoryStore) -> None:
    """`create_agent` is typed here, unlike in `make_agent`: the list of a user who checks types must pass."""
    capture = CaptureMiddleware(RuleExtractor(), works=False)
    middleware = [MemoryMiddleware(), capture, MemoryReviewMiddleware(), ShortTermMemoryMiddleware()]
    agent = create_agent(ScriptedChatModel(turns=["Noted."]), store=store, middleware=middleware)
    assert agent.get_name() == "LangGraph"


async def test_a_store_without_compare_and_set_needs_an_outbox(store: MemoryStore) -> None:
    with pytest.raises(ConfigurationError, match=r"no compare-and-set.*outbox="):
        await ask(agent_with(InMemoryStore()), "sync", "hello", THREAD, context=ADA)
    foreign = InMemoryStore()
    capture = CaptureMiddleware(Scripted(), outbox=store, interval_s=0.01)
    agent = make_agent(
        ScriptedChatModel(turns=["Noted."]), store=foreign, middleware=[capture], context_schema=MemoryContext
    )
    await ask(agent, "sync", "hello", context=ADA)
    (worker,) = [worker for _, worker in capture._workers.values() if worker]
    worker.wake()
    for _ in range(1_000):
        if worker.progress.messages == 2:
            break
        worker._closed.wait(0.01)
    capture.close()
    assert contents(foreign) == ["Noted.", "hello"]
    assert captured(store) == []
    with pytest.raises(ConfigurationError, match="no compare-and-set"):
        await ask(agent_with(foreign, outbox=InMemoryStore()), "sync", "hello", THREAD, context=ADA)


@pytest.mark.parametrize("face", FACES)
async def test_when_the_store_is_down_the_run_goes_on_and_is_captured_later(
    store: MemoryStore, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(batch: object, **options: object) -> list[int]:
        raise StoreUnavailable("down")

    agent = agent_with(store)
    with monkeypatch.context() as broken:
        broken.setattr(store.engine, "write", down)
        result = await ask(agent, face, "first", THREAD, context=ADA)
    assert result["messages"][-1].text == "Noted."
    assert captured(store) == []
    await ask(agent, face, "second", THREAD, context=ADA)
    assert captured(store) == ["user: first", "assistant: Noted.", "user: second", "assistant: Noted."]


def long(number: int) -> str:
    return f"Message {number} " + "of many words about sheep " * 20


@pytest.mark.parametrize("face", FACES)
async def test_regression_what_left_the_window_was_captured_before(store: MemoryStore, face: str) -> None:
    turns = [
        *[ConnectionError("model down")] * 6,
        *(call_tool("look").model_copy(update={"content": long(number)}) for number in range(10, 16)),
        "Done.",
    ]
    agent = agent_with(store, patient_memory(), ShortTermMemoryMiddleware(Trim(), max_tokens=400), turns=turns)
    for number in range(6):
        with pytest.raises(ConnectionError):
            await ask(agent, face, long(number), THREAD, context=ADA)
    result = await ask(agent, face, long(6), THREAD, context=ADA)
    assert len(result["messages"]) < 12
    expected = [*(f"user: {long(number)}" for number in range(7)), *(f"assistant: {long(at)}" for at in range(10, 16))]
    assert captured(store) == [*expected, "assistant: Done."]


async def test_with_both_other_middlewares_nothing_is_captured_twice(store: MemoryStore) -> None:
    agent = agent_with(store, patient_memory(), ShortTermMemoryMiddleware(Trim(), max_tokens=400))
    for number in range(12):
        await ask(agent, "sync", long(number), THREAD, context=ADA)
    assert sorted(captured(store)) == sorted(
        [*(f"user: {long(number)}" for number in range(12)), *["assistant: Noted."] * 12]
    )


async def test_in_a_thread_that_another_user_began_what_leaves_the_window_is_captured_once(store: MemoryStore) -> None:
    agent = agent_with(store, patient_memory(), ShortTermMemoryMiddleware(Trim(), max_tokens=400))
    for number in range(12):
        await ask(agent, "sync", long(number), THREAD, context=BOB if number else ADA)
    assert sorted(captured(store, "bob")) == sorted(
        [*(f"user: {long(number)}" for number in range(1, 12)), *["assistant: Noted."] * 11]
    )


def counted(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many writes, without their rules, the batches have that are written from now on."""
    apply: Callable[..., Any] = store.engine.backend.apply
    sizes: list[int] = []

    def counting(batches: Sequence[Sequence[object]]) -> object:
        sizes.extend(sum(not isinstance(write, WriteRule) for write in batch) for batch in batches)
        return apply(batches)

    monkeypatch.setattr(store.engine.backend, "apply", counting)
    return sizes


async def test_a_turn_is_one_commit(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_with(store, patient_memory(), ShortTermMemoryMiddleware(Trim(), max_tokens=400))
    sizes = counted(store, monkeypatch)
    for number in range(5):
        await ask(agent, "sync", long(number), THREAD, context=ADA)
    assert sizes == [5] * 5, "beside the rules, such as that the user was not erased meanwhile"


SECRET = "zanzibar"


class Asking:
    """An extractor that asks a model."""

    model = ScriptedChatModel(turns=[SECRET])

    async def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Extraction:
        answer = await ask_model(self.model, [HumanMessage(messages[0].text)])
        return Extraction([Candidate(content=answer.text)])


async def test_streams_hold_nothing_of_the_extraction(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store:
        capture = CaptureMiddleware(Asking(), interval_s=0.001)
        options: dict[str, Any] = {"checkpointer": InMemorySaver(), "context_schema": MemoryContext}
        model = ScriptedChatModel(turns=["Noted."])
        agent = make_agent(model, store=store, middleware=[capture], **options)
        for mode in ("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"):
            given = {"messages": [("user", "hello")]}
            stream = agent.astream(given, THREAD, context=ADA, stream_mode=mode)
            events = [str(event) async for event in stream]
            assert not any(SECRET in event or "outbox" in event for event in events)
            if mode in ("messages", "custom"):
                assert not any("'captured'" in event for event in events)
        end = time.monotonic() + 20
        while contents(store) != [SECRET]:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        capture.close()


class Zoned(Scripted):
    """Notes the zone in which each message was said."""

    def __init__(self) -> None:
        super().__init__()
        self.zones: dict[str, str] = {}

    async def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Extraction:
        self.zones |= {message.text: str(zone) for message in messages}
        return await super().extract(messages, offered, now, zone)


async def test_regression_messages_are_read_in_the_time_zone_of_their_user(store: MemoryStore) -> None:
    extractor = Zoned()
    capture = CaptureMiddleware(extractor, works=False)
    model = ScriptedChatModel(turns=["Noted."])
    agent = make_agent(model, store=store, middleware=[capture], context_schema=MemoryContext)
    for user, zone in (("ada", "Asia/Tokyo"), ("bob", "Europe/Lisbon"), ("eve", "nonsense")):
        await ask(agent, "sync", user, context={"user_id": user, "timezone": zone})
    ((pipeline, _),) = capture._workers.values()
    Worker(pipeline).drain()
    del extractor.zones["Noted."]
    assert extractor.zones == {"ada": "Asia/Tokyo", "bob": "Europe/Lisbon", "eve": "UTC"}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("keeps", [None, True], ids=["new state in each run", "state kept"])
async def test_regression_what_others_said_to_an_agent_inside_a_graph_is_not_captured(
    store: MemoryStore, face: str, keeps: bool | None
) -> None:
    """The graph keeps the messages, but not whose they are."""
    agent = agent_with(store, turns=["Hello Ada.", "Hello Bob.", "Bye."], checkpointer=keeps)
    graph = as_node(agent, store)
    for text, user in (("I am Ada", ADA), ("I am Bob", BOB), ("I am Bob again", BOB)):
        await ask(graph, face, text, THREAD, context=user)
    assert captured(store) == ["user: I am Ada", "assistant: Hello Ada."]
    said = ["user: I am Bob", "assistant: Hello Bob.", "user: I am Bob again", "assistant: Bye."]
    assert captured(store, "bob") == said


@pytest.mark.parametrize("face", FACES)
async def test_regression_a_question_that_is_summarized_while_tools_run_was_captured(
    store: MemoryStore, face: str
) -> None:
    summarizes = SummarizationMiddleware(ScriptedChatModel(turns=["."]), trigger=("messages", 8), keep=("messages", 4))
    agent = agent_with(store, summarizes, turns=[*[call_tool("look")] * 5, "Done."])
    result = await ask(agent, face, "I am allergic to nuts. Look around", THREAD, context=ADA)
    assert not any("nuts" in message.text for message in result["messages"])
    assert captured(store) == ["user: I am allergic to nuts. Look around", "assistant: Done."]


def test_drain_counts_what_it_did(clock: FrozenClock):
    with open_store("memory://", embeddings=None, clock=clock) as store:
        capture = CaptureMiddleware(Scripted(), works=False, clock=clock)
        agent = make_agent(ScriptedChatModel(turns=["Noted."]), store=store, middleware=[capture])
        assert capture.drain() == Progress()
        for user in ("ada", "bob"):
            agent.invoke({"messages": [("user", "I have a kiln")]}, context={"user_id": user})
        assert capture.drain() == Progress(batches=2, messages=4)
        assert capture.drain() == Progress()
