"""ShortTermMemoryMiddleware in agents made by `create_agent`: what the model, the state, streams and the memory see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent_support import FACES, as_node, ask, make_agent, patient_memory, system_text
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from short_term_support import FORMS, exchange, numbered

from inference_core import (
    AgentMemoryStoreService,
    CaptureMiddleware,
    Delete,
    ExtractiveMemory,
    FlushToLongTerm,
    MemoryContext,
    MemoryStore,
    RuleExtractor,
    ShortTermMemoryMiddleware,
    StaticMemory,
    Summarize,
    Trim,
    VectorMemory,
    open_store,
)
from inference_core.agents.checkpoints import SqliteCheckpointer
from inference_core.errors import ConfigurationError
from inference_core.short_term.window import count_tokens
from inference_core.testing import ScriptedChatModel, call_tool

ADA = {"user_id": "ada"}
THREAD: dict[str, Any] = {"configurable": {"thread_id": "first"}}
SUMMARY = "Ada counts sheep in the hills."


@tool
def wool() -> str:
    """Counts the wool."""
    return "three bags"


def said(number: int) -> str:
    return f"Sheep number {number} is called Wooly{number}, eats clover all day and sleeps under the old oak at night."


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with open_store("memory://", embeddings=None) as opened:
        yield opened


def agent_with(store: MemoryStore | None, *middleware: Any, model: Any = None, **options: Any) -> Any:
    chosen = model or ScriptedChatModel(turns=["Noted."])
    options.setdefault("checkpointer", InMemorySaver())
    return make_agent(chosen, store=store, middleware=list(middleware), context_schema=MemoryContext, **options)


async def talk(agent: Any, face: str, turns: int, context: dict[str, str] = ADA) -> Any:
    result: Any = None
    for number in range(turns):
        result = await ask(agent, face, said(number), THREAD, context=context)
    return result


def recallable(store: MemoryStore, user: str = "ada") -> list[int]:
    """The numbers of the sheep that are found by their names."""
    block = VectorMemory(store, user_id=user)
    return [
        number for number in range(12) if any(said(number) in one.content for one in block.get("x", f"Wooly{number}"))
    ]


def texts(messages: list[BaseMessage]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.parametrize("face", FACES)
async def test_what_leaves_the_window_can_be_recalled(store: MemoryStore, face: str) -> None:
    model = ScriptedChatModel(turns=["Noted."])
    agent = agent_with(store, ShortTermMemoryMiddleware(max_tokens=300), model=model)
    result = await talk(agent, face, 12)
    left = [number for number in range(12) if said(number) not in texts(result["messages"])]
    assert len(left) > 5
    assert recallable(store) == left
    assert len(model.requests[-1]) < 10
    assert model.requests[-1][-1].text == said(11)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("role", ["user", "system"])
async def test_one_summary_is_folded_into_the_next(face: str, role: Any) -> None:
    def more(messages: list[BaseMessage]) -> str:
        return f"{SUMMARY} More. {SUMMARY in messages[-1].text}"

    summarizer = ScriptedChatModel(turns=[SUMMARY, more])
    model = ScriptedChatModel(turns=["Noted."])
    summarize = Summarize(summarizer, role=role, summary_message_count=4, max_summary_tokens=40)
    result = await talk(agent_with(None, ShortTermMemoryMiddleware(summarize, max_tokens=140), model=model), face, 12)
    folded = f"CONVERSATION SUMMARY: {SUMMARY} More. True"
    assert [text for text in texts(result["messages"]) if "SUMMARY" in text] == [folded]
    assert 2 <= len(summarizer.requests) <= 5
    last = model.requests[-1]
    assert [message.type for message in last if "SUMMARY" in message.text] == ["human" if role == "user" else "system"]
    assert (folded in system_text(last)) == (role == "system")


async def test_a_turn_without_overflow_changes_nothing(store: MemoryStore) -> None:
    model = ScriptedChatModel(turns=["Noted."])
    result = await talk(agent_with(store, ShortTermMemoryMiddleware(), model=model), "sync", 3)
    assert texts(result["messages"]) == [said(0), "Noted.", said(1), "Noted.", said(2), "Noted."]
    assert texts(model.requests[-1]) == texts(result["messages"])[:-1]


async def test_the_system_prompt_and_the_tools_count() -> None:
    @tool
    def look(place: str) -> str:
        """Looks somewhere, which takes a description of quite some length in order to be chosen by the model."""
        return place

    sizes: list[int] = []
    for prompt, tools in (("", []), ("Be kind. " * 60, []), ("", [look, look])):
        model = ScriptedChatModel(turns=["Noted."])
        agent = agent_with(
            None,
            ShortTermMemoryMiddleware(Trim(10_000), max_tokens=300),
            model=model,
            system_prompt=prompt,
            tools=tools,
        )
        await talk(agent, "sync", 12)
        sizes.append(len([message for message in model.requests[-1] if message.type != "system"]))
    assert sizes[0] > sizes[1] > 0
    assert sizes[0] > sizes[2] > 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kept", [1, 2, 3])
async def test_user_and_assistant_take_turns_in_requests_with_a_summary(face: str, kept: int) -> None:
    model = ScriptedChatModel(turns=["Noted."])
    summarize = Summarize(ScriptedChatModel(turns=[SUMMARY]), summary_message_count=kept, max_summary_tokens=40)
    result = await talk(agent_with(None, ShortTermMemoryMiddleware(summarize, max_tokens=140), model=model), face, 8)
    assert any(SUMMARY in message.text for message in model.requests[-1])
    for request in model.requests:
        assert all(one.type != other.type for one, other in pairwise(request))
    assert said(7) in texts(result["messages"])


@pytest.mark.parametrize("form", FORMS)
async def test_a_conversation_that_fits_is_sent_as_it_is(form: str) -> None:
    model = ScriptedChatModel(turns=["Noted."])
    given = numbered([HumanMessage("question"), *exchange(form, "a"), AIMessage("done"), HumanMessage("and now?")])
    await ask(agent_with(None, ShortTermMemoryMiddleware(Trim()), model=model), "async", {"messages": given}, THREAD)
    (request,) = model.requests
    assert [message.model_dump() for message in request] == [message.model_dump() for message in given]


async def test_a_limit_that_leaves_no_room_beside_the_tools_is_told_once(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with(store, patient_memory(), ShortTermMemoryMiddleware(Trim(), max_tokens=600))
    await talk(agent, "async", 3)
    assert [record.levelname for record in caplog.records if " of the 600 tokens " in record.message] == ["WARNING"]


async def test_the_limit_is_a_share_of_the_models_window_and_never_more_than_it() -> None:
    counts: list[int] = []
    variants: list[dict[str, Any]] = [{"max_ratio": 0.5}, {}, {"max_tokens": 100}]
    for options in variants:
        model = ScriptedChatModel(turns=["Noted."], profile={"max_input_tokens": 400})
        await talk(agent_with(None, ShortTermMemoryMiddleware(Trim(10_000), **options), model=model), "sync", 12)
        counts.append(len(model.requests[-1]))
    assert counts[1] > counts[0] > counts[2]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("mode", ["messages", "updates", "custom", "values", "events"])
async def test_streams_hold_nothing_of_what_internal_models_say(store: MemoryStore, face: str, mode: str) -> None:
    extractor = ScriptedChatModel(turns=[call_tool("ExtractedFacts", facts=[{"content": "Ada herds EXTRACTED sheep"}])])
    summarizer = ScriptedChatModel(turns=["A SUMMARIZED story"])
    flush = FlushToLongTerm([ExtractiveMemory(extractor), VectorMemory()])
    agent = agent_with(store, ShortTermMemoryMiddleware([flush, Summarize(summarizer)], max_tokens=100))
    await talk(agent, face, 3)
    seen: list[Any] = []
    given: Any = {"messages": [("user", said(3))]}
    if mode == "events":
        seen = [event async for event in agent.astream_events(given, THREAD, context=ADA, version="v2")]
        seen = [event for event in seen if "chat_model" in event["event"] or event["event"] == "on_custom_event"]
    elif face == "sync":
        seen = list(agent.stream(given, THREAD, context=ADA, stream_mode=mode))
    else:
        seen = [chunk async for chunk in agent.astream(given, THREAD, context=ADA, stream_mode=mode)]
    assert len(summarizer.requests) > 1
    assert len(extractor.requests) > 1
    assert "EXTRACTED" not in repr(seen)
    if mode == "custom":
        assert [event["type"] for event in seen] == ["short_term_memory"]
        assert seen[0]["evicted"] > 0
        assert seen[0]["tokens_after"] <= seen[0]["tokens_before"] + 50
        assert (seen[0]["summarized"], seen[0]["notice"]) == (True, None)
    if mode == "messages":
        assert [chunk.text for chunk, _ in seen] == ["Noted."]
    if mode == "events":
        starts = [event for event in seen if event["event"] == "on_chat_model_start"]
        assert len(starts) == 1
    if mode in ("messages", "custom"):
        assert "SUMMARIZED" not in repr(seen)


@pytest.mark.parametrize("face", FACES)
async def test_a_failing_summarizer_loses_nothing_and_the_model_sees_what_fits(face: str) -> None:
    model = ScriptedChatModel(turns=["Noted."])
    summarizer = ScriptedChatModel(turns=[ValueError("no tokens left")])
    agent = agent_with(None, ShortTermMemoryMiddleware(Summarize(summarizer), max_tokens=150), model=model)
    result = await talk(agent, face, 12)
    assert [said(number) in texts(result["messages"]) for number in range(12)] == [True] * 12
    assert model.requests[-1][-1].text == said(11)
    assert len(model.requests[-1]) < 12
    assert len(summarizer.requests) == 1  # it is left alone for a while


async def test_a_failing_summarizer_behind_a_flush_lets_messages_leave(store: MemoryStore) -> None:
    summarizer = ScriptedChatModel(turns=[""])
    chain = [FlushToLongTerm(), Summarize(summarizer)]
    result = await talk(agent_with(store, ShortTermMemoryMiddleware(chain, max_tokens=300)), "sync", 12)
    left = [number for number in range(12) if said(number) not in texts(result["messages"])]
    assert 0 in left
    assert recallable(store) == left


async def test_regression_a_failure_pauses_no_other_thread_without_a_user() -> None:
    """Threads whose user is unknown counted as one conversation, so one's failure kept all from being summarized."""
    summarizer = ScriptedChatModel(turns=[ConnectionError("away"), *[SUMMARY] * 9])
    agent = agent_with(None, ShortTermMemoryMiddleware(Summarize(summarizer), max_tokens=150))
    for thread, expected in (("first", 1), ("second", 2), ("first", 2)):
        config: dict[str, Any] = {"configurable": {"thread_id": thread}}
        history = [HumanMessage(said(number)) for number in range(6)]
        await agent.ainvoke({"messages": history}, config, context={})
        assert len(summarizer.requests) == expected, "the thread whose model failed waits, and no other"


async def test_without_a_user_nothing_is_flushed_and_nothing_leaves(store: MemoryStore) -> None:
    result = await talk(agent_with(store, ShortTermMemoryMiddleware(max_tokens=300)), "sync", 12, context={})
    assert [said(number) in texts(result["messages"]) for number in range(12)] == [True] * 12
    assert store.engine.backend.namespaces() == []


async def test_a_thread_of_one_user_is_never_flushed_into_anothers_memory(store: MemoryStore) -> None:
    agent = agent_with(store, ShortTermMemoryMiddleware(max_tokens=400))
    await talk(agent, "sync", 3)
    result: Any = None
    for number in range(3, 12):
        result = await ask(agent, "sync", said(number), THREAD, context={"user_id": "eve"})
    assert recallable(store, "eve") == []
    assert all(said(number) in texts(result["messages"]) for number in range(3, 12))
    assert store.engine.backend.namespaces(("eve",)) == []


@pytest.mark.parametrize("face", FACES)
async def test_beside_long_term_memory_nothing_is_told_twice(store: MemoryStore, face: str) -> None:
    service = AgentMemoryStoreService(store)
    service.sync.save_memory("ada", "Ada is allergic to clover", "facts")
    model = ScriptedChatModel(turns=["Noted."])
    policy = StaticMemory(["Dogs must be kept on a leash"])
    flush = FlushToLongTerm(
        [policy, VectorMemory(), ExtractiveMemory(ScriptedChatModel(turns=[call_tool("ExtractedFacts", facts=[])]))],
        into_system_prompt=True,
    )
    short_term = ShortTermMemoryMiddleware(flush, max_tokens=3_000)
    agent = agent_with(store, patient_memory(), short_term, model=model)
    await ask(agent, face, "What about clover?", THREAD, context=ADA)
    prompt = system_text(model.requests[-1])
    assert prompt.count("Ada is allergic to clover") == 1
    assert prompt.count("<static_memory>\n    - Dogs must be kept on a leash") == 1


async def test_regression_a_memory_that_quotes_a_fact_does_not_hide_it(store: MemoryStore) -> None:
    AgentMemoryStoreService(store).sync.save_memory("ada", "Heard that dogs need a leash on Sundays alone", "facts")
    model = ScriptedChatModel(turns=["Noted."])
    flush = FlushToLongTerm([StaticMemory(["dogs need a leash"]), VectorMemory()], into_system_prompt=True)
    agent = agent_with(store, patient_memory(), ShortTermMemoryMiddleware(flush, max_tokens=3_000), model=model)
    await ask(agent, "sync", "When do dogs need a leash?", THREAD, context=ADA)
    prompt = system_text(model.requests[-1])
    assert "Heard that dogs need a leash on Sundays alone" in prompt
    assert "<static_memory>\n    - dogs need a leash\n" in prompt


@pytest.mark.parametrize("face", FACES)
async def test_regression_a_failing_user_id_function_does_not_end_the_run(store: MemoryStore, face: str) -> None:
    def failing(_: Any) -> str:
        raise LookupError("the session is gone")

    short_term = ShortTermMemoryMiddleware(max_tokens=300, user_id=failing)
    capture = CaptureMiddleware(RuleExtractor(), works=False, user_id=failing)
    agent = agent_with(store, patient_memory(user_id=failing), capture, short_term)
    result = await talk(agent, face, 12)
    assert [said(number) in texts(result["messages"]) for number in range(12)] == [True] * 12
    assert (result["memory_status"], result["memory_status_reason"]) == (
        "closed",
        "user_id failed: the session is gone",
    )
    assert store.engine.backend.namespaces() == []


@pytest.mark.parametrize("face", FACES)
async def test_who_the_user_is_is_not_asked_for_each_call_of_the_model(store: MemoryStore, face: str) -> None:
    asked: list[Any] = []

    def ada(runtime: Any) -> str:
        asked.append(runtime)
        return "ada"

    turns = [call_tool("wool"), call_tool("wool"), "Noted."]
    agent = agent_with(
        store, ShortTermMemoryMiddleware(user_id=ada), model=ScriptedChatModel(turns=turns), tools=[wool]
    )
    await ask(agent, face, "Count the wool", THREAD)
    assert len(asked) == 1


@pytest.mark.parametrize("face", FACES)
async def test_blocks_are_recalled_once_a_run_and_again_after_a_resume(tmp_path: Path, face: str) -> None:
    @tool
    def herd(sheep: str) -> str:
        """Herds a sheep."""
        return f"{sheep} {interrupt('Really?')}"

    model = ScriptedChatModel(turns=[call_tool("herd", sheep="Wooly"), "Done."])
    with (
        open_store("memory://", embeddings=None) as store,
        closing(SqliteCheckpointer(tmp_path / "conversations.db")) as saver,
    ):
        flush = FlushToLongTerm([StaticMemory(["The hills are green"]), VectorMemory()], into_system_prompt=True)
        agent = agent_with(
            store, ShortTermMemoryMiddleware(flush, max_tokens=3_000), model=model, tools=[herd], checkpointer=saver
        )
        await ask(agent, face, "Herd Wooly", THREAD, context=ADA)
        result = await ask(agent, face, Command(resume="yes"), THREAD, context=ADA)
    assert result["messages"][-1].text == "Done."
    assert ["The hills are green" in system_text(request) for request in model.requests] == [True, True]


async def test_tool_calls_and_their_results_leave_together(store: MemoryStore) -> None:
    @tool
    def weigh(sheep: str) -> str:
        """Weighs a sheep."""
        return f"{sheep} weighs ninety pounds and its wool is as white as the snow on the mountain beyond the hills"

    turns: list[Any] = []
    for number in range(8):
        turns += [call_tool("weigh", sheep=f"Wooly{number}"), "Noted."]
    model = ScriptedChatModel(turns=turns)
    agent = agent_with(store, ShortTermMemoryMiddleware(max_tokens=500), model=model, tools=[weigh])
    await talk(agent, "sync", 8)
    for request in model.requests:
        for at, message in enumerate(request):
            if isinstance(message, ToolMessage):
                before = request[at - 1]
                assert isinstance(before, AIMessage)
                assert before.tool_calls[0]["id"] == message.tool_call_id
    found = VectorMemory(store, user_id="ada").get("x", "What does Wooly0 weigh?")
    assert any(one.content.startswith("weigh: Wooly0 weighs") for one in found)


async def test_a_history_that_its_caller_keeps_is_flushed_once(store: MemoryStore) -> None:
    agent = agent_with(store, ShortTermMemoryMiddleware(max_tokens=300), checkpointer=None)
    history: list[AnyMessage] = []
    for number in range(10):
        history += [HumanMessage(said(number))]
        await ask(agent, "sync", {"messages": list(history)}, context=ADA)
        history += [AIMessage("Noted.")]
    rows = AgentMemoryStoreService(store).sync.list_memories("ada", limit=None)[0]
    contents = [row.content for row in rows if row.content != "Noted."]
    assert len(contents) == len(set(contents)) > 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: ShortTermMemoryMiddleware([]),
        lambda: ShortTermMemoryMiddleware("flush"),  # pyright: ignore[reportArgumentType]
        lambda: ShortTermMemoryMiddleware(max_tokens=0),
        lambda: ShortTermMemoryMiddleware(max_ratio=1.5),
        lambda: ShortTermMemoryMiddleware(Delete(0)),
        lambda: agent_with(None, ShortTermMemoryMiddleware()).invoke(
            {"messages": [("user", "Hi")]}, THREAD, context=ADA
        ),
    ],
    ids=["no strategy", "a name", "no room", "a ratio above 1", "nothing to delete", "no store"],
)
def test_mistakes_of_developers_are_told(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.parametrize("face", FACES)
async def test_long_and_short_term_memory_on_one_agent_across_interrupts(tmp_path: Path, face: str) -> None:
    @tool
    def herd(sheep: str) -> str:
        """Herds a sheep."""
        return (
            f"{sheep} {interrupt('Really?')}, and it follows the old dog up to the highest meadow until the snow comes"
        )

    turns: list[Any] = []
    for number in range(6):
        turns += [call_tool("herd", sheep=f"Wooly{number}"), "Done."]
    model = ScriptedChatModel(turns=[*turns, "Welcome back."])
    summarizer = ScriptedChatModel(turns=[SUMMARY])
    result: Any = None
    with (
        open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store,
        closing(SqliteCheckpointer(tmp_path / "conversations.db")) as saver,
    ):
        short_term = ShortTermMemoryMiddleware([FlushToLongTerm(), Summarize(summarizer)], max_tokens=2_000)
        middleware = [patient_memory(), short_term]
        agent = agent_with(store, *middleware, model=model, tools=[herd], checkpointer=saver)
        for number in range(6):
            await ask(agent, face, f"{said(number)} {'It is a very fine animal. ' * 20}", THREAD, context=ADA)
            result = await ask(agent, face, Command(resume="yes"), THREAD)
        assert result["messages"][-1].text == "Done."
        left = [number for number in range(6) if not any(said(number) in text for text in texts(result["messages"]))]
        assert 0 in left
        found = {one.content for one in VectorMemory(store, user_id="ada", max_results=50, max_tokens=50_000).get("x")}
        assert all(any(content.startswith(said(number)) for content in found) for number in left)
        assert len(summarizer.requests) < len(left) + 1
        await ask(agent, face, "What is Wooly0?", {"configurable": {"thread_id": "second"}}, context=ADA)
    assert said(0)[:40] in system_text(model.requests[-1])
    for request in model.requests:
        calls = [call["id"] for message in request if isinstance(message, AIMessage) for call in message.tool_calls]
        assert calls == [message.tool_call_id for message in request if isinstance(message, ToolMessage)]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("into_system_prompt", [True, False], ids=["blocks", "MemoryMiddleware"])
async def test_the_turn_of_a_flush_knows_what_was_flushed(store: MemoryStore, face: str, into_system_prompt: bool):
    """Recall ran before the flush: for one turn the model saw neither the flushed messages nor what became of them."""
    model = ScriptedChatModel(turns=[*(["Noted."] * 5), call_tool("wool"), "Done."])
    overflow = FlushToLongTerm([VectorMemory()], max_stm_token_ratio=1.0, into_system_prompt=into_system_prompt)
    flush = ShortTermMemoryMiddleware(overflow, max_tokens=1_500)
    others = [] if into_system_prompt else [patient_memory(include_tools=[])]
    agent = agent_with(store, *others, flush, model=model, tools=[wool])
    for number in (1, 2, 3, 4, 5):
        await ask(agent, face, f"{said(number)} {'Clover. ' * 40}", THREAD, context=ADA)
    before = len(model.requests)
    flush._policy._max_tokens = 500  # pyright: ignore[reportPrivateUsage] - this turn flushes, whatever a token is
    await ask(agent, face, "What does Wooly1 eat all day?", THREAD, context=ADA)
    there = {one.text for one in agent.get_state(THREAD).values["messages"]}
    assert not any("Wooly1, eats" in text for text in there)
    for request in model.requests[before:]:  # before the tool's call and after it
        assert "Wooly1, eats clover" in "\n".join(one.text for one in request)
        assert not any("Wooly1, eats" in one.text for one in request if not isinstance(one, SystemMessage))
        assert count_tokens(request) <= 500


async def test_what_is_recalled_after_a_flush_takes_no_more_than_the_limit_leaves(store: MemoryStore):
    flush = ShortTermMemoryMiddleware(
        FlushToLongTerm([VectorMemory()], max_stm_token_ratio=1.0, into_system_prompt=True), max_tokens=60
    )
    model = ScriptedChatModel(turns=["Noted."])
    agent = agent_with(store, flush, model=model)
    for number in (1, 2):
        await ask(agent, "sync", f"{said(number)} Clover. Clover. Clover.", THREAD, context=ADA)
    assert len(model.requests[-1]) == 1  # no room for any of it
    assert all(count_tokens(request) <= 60 for request in model.requests)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("keeps", [None, True], ids=["new state in each run", "state kept"])
async def test_regression_an_agent_inside_a_graph_flushes_nothing_that_others_said(
    store: MemoryStore, face: str, keeps: bool | None
) -> None:
    """The graph keeps the messages, but not whose they are."""
    middleware = ShortTermMemoryMiddleware(max_tokens=200)
    model = ScriptedChatModel(turns=["Noted."])
    agent = make_agent(model, store=store, middleware=[middleware], context_schema=MemoryContext, checkpointer=keeps)
    graph = as_node(agent, store)
    await ask(graph, face, f"I am Ada. {said(1)} {said(2)}", THREAD, context=ADA)
    for number in range(3, 6):
        await ask(graph, face, f"I am Bob. {said(number)}", THREAD, context={"user_id": "bob"})
    assert not any("Ada" in one.content for one in store.memory("bob").all())
