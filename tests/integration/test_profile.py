"""The profile of a thread, told in the same bytes until enough of it has changed, and what is told beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_support import FACES, ask, blocks, make_agent, memory_lines, patient_memory, system_text, without_workers
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import Field

from inference_core import (
    AgentMemoryStoreService,
    ContextEngineer,
    MemoryContext,
    MemoryMiddleware,
    MemorySource,
    Pruning,
    open_store,
)
from inference_core.context.render import profile_of
from inference_core.effects import run
from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.memory.namespaces import is_owner
from inference_core.memory.record import MemoryRecord
from inference_core.memory.trust import Origin
from inference_core.memory.types import MemoryCategory, MemoryType
from inference_core.services.operations.prompt_context import TurnOptions, build_turn_context
from inference_core.services.operations.scope import find, put_of
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

U = "ada"
THREAD = {"configurable": {"thread_id": "1"}}
_PROFILE = re.compile(r"<user_profile>\n(.*?)\n</user_profile>", re.DOTALL)
MARK = {"cache_control": {"type": "ephemeral"}}


def profiled(service: Any = None, **options: Any) -> MemoryMiddleware:
    """The middleware as it is by default."""
    return patient_memory(service, **{"placement": "last_user", "profile": True} | options)


def profiles(messages: Sequence[BaseMessage]) -> list[str]:
    """The profiles of a prompt, which stand in its system message."""
    return _PROFILE.findall(system_text(messages))


def standing(store: BaseStore, *, clock: FrozenClock | None = None) -> tuple[AgentMemoryStoreService, list[str]]:
    """A service on which Ada has a preference, an instruction, a pinned fact and a fact; and their ids."""
    service = AgentMemoryStoreService(store, clock=clock)
    kinds = (("Prefers bullet points", "preferences"), ("Never book night flights", "instructions"))
    ids = [service.sync.save_memory(U, text, kind) for text, kind in kinds]
    ids.append(service.sync.save_memory(U, "Is allergic to wool", "facts", pinned=True))
    return service, [*ids, service.sync.save_memory(U, "Keeps falcons in the barn", "facts")]


def agent_of(service: AgentMemoryStoreService, model: ScriptedChatModel, **options: Any) -> Any:
    saver = InMemorySaver()
    return make_agent(
        model, middleware=[profiled(service, **options)], context_schema=MemoryContext, checkpointer=saver
    )


@pytest.fixture
def model() -> ScriptedChatModel:
    return ScriptedChatModel(turns=["Noted."])


@pytest.mark.parametrize("face", FACES)
async def test_the_profile_keeps_its_bytes_and_news_come_with_the_message(
    any_store: BaseStore, model: ScriptedChatModel, face: str
) -> None:
    service, ids = standing(any_store)
    agent = agent_of(service, model, profile_change=0.25)
    await ask(agent, face, "What about the falcons?", THREAD, context={"user_id": U})
    service.sync.update_memory(U, ids[0], "Prefers tables")
    service.sync.save_memory(U, "Likes prices with VAT", "preferences")
    result = await ask(agent, face, "And now the falcons?", THREAD, context={"user_id": U})
    first, second = [profiles(request)[0] for request in model.requests]
    assert first == second
    assert system_text(model.requests[0]) == system_text(model.requests[1])
    assert [line.split(" ", 2)[2] for line in memory_lines(first)] == [
        "Never book night flights",
        "Prefers bullet points",
        "Is allergic to wool",
    ]
    (told,) = blocks(model.requests[1])
    assert re.search(r"Prefers tables\n  in place of: .*Prefers bullet points", told)
    assert " Likes prices with VAT\n" in f"{told}\n"
    assert told.count("Keeps falcons in the barn") == 1
    assert "Never book night flights" not in told
    assert told in model.requests[1][-1].text
    assert result["memories_recalled"] == 5
    assert not any("memory_context" in repr(message.content) for message in result["messages"])
    assert model.requests[1][1].content == "What about the falcons?"


@pytest.mark.parametrize(("added", "is_renewed"), [(3, False), (4, True)])
def test_many_changes_write_it_anew(
    own_store: BaseStore, model: ScriptedChatModel, added: int, is_renewed: bool
) -> None:
    service, _ = standing(own_store)
    agent = agent_of(service, model, user_id=U, profile_change=0.25, max_recall_results=20)
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    for number in range(added):
        service.sync.save_memory(U, f"Likes walk number {number}", "preferences")
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    first, second = [profiles(request)[0] for request in model.requests]
    assert second.startswith(first)  # what is new stands behind what was there
    assert (second != first) == is_renewed
    told = second + "".join(blocks(model.requests[1]))
    assert all(told.count(f"walk number {number}") == 1 for number in range(added))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("how", ["deleted", "superseded", "no longer standing"])
async def test_what_does_not_hold_any_more_leaves_at_once(
    any_store: BaseStore, model: ScriptedChatModel, how: str, face: str
) -> None:
    service, ids = standing(any_store)
    agent = agent_of(service, model, user_id=U)
    await ask(agent, face, "falcons", THREAD)
    if how == "deleted":
        service.sync.delete_memory(U, ids[0])
    elif how == "superseded":
        record = run(find(service.scope, U, ids[0]))
        assert record is not None
        run(service.scope.engine.write([put_of(replace(record, superseded_by="another"))]))
    else:
        service.sync.update_memory(U, ids[0], "Drew a falcon", "facts")
    await ask(agent, face, "falcons", THREAD)
    assert "bullet points" in system_text(model.requests[0])
    assert "bullet points" not in repr(model.requests[1])
    assert "bullet points" not in repr((await agent.aget_state(THREAD)).values)


def test_what_stands_changes_with_a_write_and_when_a_memory_ends(own_store: BaseStore) -> None:
    """Without a thread, whose profile changes by rules of its own; two agents ask in turn."""
    clock = FrozenClock()
    service, _ = standing(own_store, clock=clock)
    end = clock.now() + timedelta(hours=2)
    fasts = service.sync.save_memory(U, "Fasts", "facts", pinned=True, expires_at=end)

    def told(**options: Any) -> str:
        turn = TurnOptions(wait_seconds=60, cold_seconds=60, **options)
        return run(build_turn_context(service.scope, U, "falcons", turn)).profile.text

    assert [("Fasts" in told(), "Fasts" in told(types=["instructions"])) for _ in range(2)] == [(True, False)] * 2
    assert told() == told()
    service.sync.update_memory(U, fasts, "Fasts in Lent")
    assert "Lent" in told()
    for hours, holds in ((1, True), (1, False), (-1, True)):
        clock.advance(timedelta(hours=hours))
        assert ("Lent" in told()) is holds


def test_what_expires_in_the_store_is_looked_for_each_time() -> None:
    clock = FrozenClock()
    with open_store("memory://", clock=clock, ttl={"default_ttl": 60, "refresh_on_read": True}) as store:
        service, _ = standing(store, clock=clock)
        for minutes, count in ((0, 3), (45, 3), (45, 3), (61, 1)):  # a pinned one never does
            clock.advance(timedelta(minutes=minutes))
            turn = TurnOptions(wait_seconds=60, cold_seconds=60)
            assert len(run(build_turn_context(service.scope, U, "falcons", turn)).profile.lines) == count
            run(service.scope.engine.flush_later())  # the recall has extended them


def test_threads_have_their_own(own_store: BaseStore, model: ScriptedChatModel) -> None:
    service, _ = standing(own_store)
    agent = agent_of(service, model, user_id=U)
    for thread, said in (("1", None), ("2", "Likes prices with VAT"), ("1", None), ("2", None)):
        if said:
            service.sync.save_memory(U, said, "preferences")
        agent.invoke({"messages": [("user", "falcons")]}, {"configurable": {"thread_id": thread}})
    assert ["VAT" in profiles(request)[0] for request in model.requests] == [False, True, False, True]
    assert ["VAT" in blocks(request)[0] for request in model.requests] == [False, False, True, False]


@pytest.mark.parametrize("face", FACES)
async def test_a_thread_that_another_user_takes_over_tells_nothing(
    any_store: BaseStore, model: ScriptedChatModel, face: str
) -> None:
    service, _ = standing(any_store)
    service.sync.save_memory("bob", "Prefers songs", "preferences")
    agent = agent_of(service, model)
    for user in (U, "bob", None, U):
        await ask(agent, face, "falcons", THREAD, context={"user_id": user} if user else None)
        values = (await agent.aget_state(THREAD)).values
        kept = values["memory_profile"]
        assert [is_owner(kept["owner"], one) for one in (U, "bob")] == [user == U, user == "bob"] if user else not kept
        assert not any(word in repr(values) for word in ("bullet points", "songs"))
    told = [repr(request) for request in model.requests]
    assert ["bullet points" in one for one in told] == [True, False, False, True]
    assert ["songs" in one for one in told] == [False, True, False, False]


@tool
def confirm(question: str) -> str:
    """Asks the user."""
    return str(interrupt(question))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("by", [U, None, "bob"], ids=["owner", "nobody", "another"])
async def test_a_resumed_run(own_store: BaseStore, by: str | None, face: str) -> None:
    service, _ = standing(own_store)
    model = ScriptedChatModel(turns=[call_tool("confirm", question="?"), "Done."])
    agent = make_agent(
        model,
        tools=[confirm],
        middleware=[profiled(service)],
        context_schema=MemoryContext,
        checkpointer=InMemorySaver(),
    )
    await ask(agent, face, "falcons", THREAD, context={"user_id": U})
    service.sync.save_memory(U, "Likes prices with VAT", "preferences")
    await ask(agent, face, Command(resume="yes"), THREAD, context={"user_id": by} if by else None)
    if by != U:
        assert profiles(model.requests[1]) + blocks(model.requests[1]) == []
        return
    assert profiles(model.requests[0]) == profiles(model.requests[1])
    (told,) = blocks(model.requests[1])
    assert "VAT" in told
    assert told in model.requests[1][1].text  # behind what the user said, not behind what the tool did


@pytest.mark.parametrize("face", FACES)
async def test_messages_of_several_parts_and_none_of_the_user(
    own_store: BaseStore, model: ScriptedChatModel, face: str
) -> None:
    service, _ = standing(own_store)
    parts: list[Any] = [{"type": "text", "text": "The falcons"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    result = await ask(agent_of(service, model, user_id=U), face, {"messages": [HumanMessage(parts)]}, THREAD)
    told: Any = model.requests[0][-1].content
    assert told[:2] == parts
    assert "Keeps falcons" in told[2]["text"]
    assert result["messages"][0].content == parts
    await ask(agent_of(service, model, user_id=U), face, {"messages": [AIMessage("How can I help?")]}, THREAD)
    assert "Keeps falcons" in system_text(model.requests[1])


@pytest.mark.parametrize("markers", [0, 1, 4])
def test_cache_markers(own_store: BaseStore, model: ScriptedChatModel, markers: int) -> None:
    service, _ = standing(own_store)
    own: list[Any] = [{"type": "text", "text": f"Rule {at}", **(MARK if at < markers else {})} for at in range(4)]
    agent = make_agent(model, middleware=[profiled(service, user_id=U)], system_prompt=SystemMessage(own))
    agent.invoke({"messages": [("user", "falcons")]})
    content: Any = model.requests[0][0].content
    assert content[:4] == own
    (block,) = [one for one in content if "<user_profile>" in one["text"]]
    assert ("cache_control" in block) == (markers == 1)
    assert not any("cache_control" in one for one in content[4:] if one is not block)
    assert isinstance(model.requests[0][-1].content, str)


def test_regression_a_providers_own_blocks_and_the_role_of_a_system_message_stay(
    own_store: BaseStore, model: ScriptedChatModel
) -> None:
    service, _ = standing(own_store)
    own: list[Any] = [{"text": "Rule"}, {"cachePoint": {"type": "default"}}]
    system = SystemMessage(own, additional_kwargs={"__openai_role__": "developer"})
    make_agent(model, middleware=[profiled(service, user_id=U)], system_prompt=system).invoke(
        {"messages": [("user", "falcons")]}
    )
    sent = model.requests[0][0]
    assert sent.content[:2] == own
    assert sent.additional_kwargs == system.additional_kwargs
    assert "<user_profile>" in sent.text


class Listening(DeterministicFakeEmbedding):
    """Notes what it is asked for."""

    asked: list[str] = Field(default_factory=list[str])

    def embed_query(self, text: str) -> list[float]:
        self.asked.append(text)
        return super().embed_query(text)


@pytest.mark.parametrize("face", FACES)
async def test_regression_of_a_long_message_only_start_and_end_are_searched_for(
    model: ScriptedChatModel, face: str
) -> None:
    """Ranking by each word of a pasted log took longer than a reply waits; the profile was lost with the rest."""
    log = "\n".join(f"worker-{at % 7} request {at * 7_919:x} path=/items/{at * 104_729}" for at in range(6_000))
    listening = Listening(size=16)
    with open_store("memory://", embeddings=listening) as store:
        service = AgentMemoryStoreService(store)
        service.sync.save_memory(U, "Answer in French", "instructions")
        agent = make_agent(model, middleware=[profiled(service, user_id=U)])
        await ask(agent, face, f"Summarize this: {log} Is it fine?")
    (asked,) = listening.asked
    assert asked.startswith("Summarize this:")
    assert asked.endswith("Is it fine?")
    assert len(asked) < 10_000
    assert "Answer in French" in system_text(model.requests[0])


def test_markers_elsewhere_take_room_too(own_store: BaseStore, model: ScriptedChatModel) -> None:
    service, _ = standing(own_store)
    said = [HumanMessage([{"type": "text", "text": f"falcons {at}", **MARK}]) for at in range(3)]
    system = SystemMessage([{"type": "text", "text": "Rule", **MARK}])
    agent = make_agent(model, middleware=[profiled(service, user_id=U)], system_prompt=system)
    agent.invoke({"messages": said})
    assert repr(model.requests[0]).count("cache_control") == 4
    last: Any = model.requests[0][-1].content
    assert last[0] == said[2].content[0]
    assert set(last[1]) == {"type", "text"}


@pytest.mark.parametrize("face", FACES)
async def test_streams_hold_nothing_of_it(own_store: BaseStore, model: ScriptedChatModel, face: str) -> None:
    service, _ = standing(own_store)
    agent = agent_of(service, model, user_id=U)
    asked = {"messages": [("user", "falcons")]}
    if face == "sync":
        chunks = list(agent.stream(asked, THREAD, stream_mode=["messages", "custom"]))
    else:
        chunks = [chunk async for chunk in agent.astream(asked, THREAD, stream_mode=["messages", "custom"])]
    assert "Noted." in repr(chunks)
    assert "bullet points" not in repr(chunks)


def test_without_the_store_nothing_is_told_and_nothing_lost(model: ScriptedChatModel) -> None:
    store = InMemoryStore()
    service, _ = standing(store)
    good, saver = profiled(service, user_id=U), InMemorySaver()
    late = profiled(service, user_id=U, recall_timeout=0.01)
    statuses: list[str] = []
    for middleware in (good, late, good):
        agent = make_agent(model, middleware=[middleware], checkpointer=saver)
        with without_workers(store) if middleware is late else nullcontext():
            statuses.append(agent.invoke({"messages": [("user", "falcons")]}, THREAD)["memory_status"])
        service.sync.save_memory(U, "Likes prices with VAT", "preferences")
    assert statuses == ["lexical", "degraded", "lexical"]
    assert profiles(model.requests[1]) + blocks(model.requests[1]) == []
    assert profiles(model.requests[0]) == profiles(model.requests[2])


def test_an_engineer_chooses_what_stands_beside_it(own_store: BaseStore, model: ScriptedChatModel) -> None:
    clock = FrozenClock(datetime(2026, 3, 2, tzinfo=UTC))
    service, _ = standing(own_store, clock=clock)
    clock.advance(timedelta(days=1))
    service.sync.save_memory(U, "The market is on Monday", "facts")
    for engineer in (None, ContextEngineer(pruning=Pruning(min_relevance=0.2))):
        agent_of(service, model, user_id=U, engineer=engineer).invoke({"messages": [("user", "falcons barn")]}, THREAD)
    told = [blocks(request)[0] for request in model.requests]
    assert ["Keeps falcons" in one for one in told] == [True, True]
    assert ["market" in one for one in told] == [True, False]


def test_kinds_and_categories_bound_it_too(own_store: BaseStore, model: ScriptedChatModel) -> None:
    service, _ = standing(own_store)
    for options in ({"include_categories": ["procedural"]}, {"include_memory_types": ["preferences"]}):
        agent_of(service, model, user_id=U, **options).invoke({"messages": [("user", "falcons")]}, THREAD)
    assert [len(memory_lines(profiles(request)[0])) for request in model.requests] == [1, 1]


def test_a_profile_is_bounded_and_holds_nothing_that_only_a_page_has_said() -> None:
    def record(number: int, kind: MemoryType, **fields: Any) -> MemoryRecord:
        at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=number)
        return MemoryRecord(
            id=f"m{number:03}",
            content=f"Rule number {number} of the farm",
            memory_type=kind,
            category=MemoryCategory.SEMANTIC,
            namespace=(U, "semantic"),
            created_at=at,
            updated_at=at,
            **fields,
        )

    web = MemorySource(origin=Origin.WEB)
    records = [record(at, MemoryType.PREFERENCES) for at in range(40)]
    records += [record(50, MemoryType.FACTS, pinned=True), record(51, MemoryType.FACTS)]
    records += [record(60, MemoryType.PREFERENCES, source=web, trust=web.trust)]
    profile = profile_of(records, UTC, 400)
    ids = [line.id for line in profile.lines]
    assert len(profile.text) / 4 <= 400
    assert ids == sorted(ids)
    assert ids[-2:] == ["m039", "m050"]
    assert profile == profile_of(reversed(records), UTC, 400)
    assert profile_of(records, UTC, 10_000).text.count("\n  - [") == 41


@pytest.mark.parametrize("options", [{"placement": "middle"}, {"profile_tokens": 0}, {"profile_change": -0.1}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        MemoryMiddleware(**options)


def test_a_line_that_is_not_among_the_newest_any_more_still_stands(
    own_store: BaseStore, model: ScriptedChatModel
) -> None:
    service = AgentMemoryStoreService(own_store)
    first, *_ = [service.sync.save_memory(U, f"Likes stall {number}", "preferences") for number in range(3)]
    agent = agent_of(service, model, user_id=U)
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    model.requests.clear()
    for change in (
        lambda: service.sync.save_memory(U, "Likes the pier", "preferences"),
        lambda: service.sync.delete_memory(U, first),
    ):
        agent.invoke({"messages": [("user", "falcons")]}, THREAD)
        change()
    agent.invoke({"messages": [("user", "falcons")]}, THREAD)
    told = [profiles(request)[0] for request in model.requests]
    assert told[0] == told[1] != told[2]
    assert ["Likes stall 0\n" in f"{one}\n" for one in told[1:]] == [True, False]


def test_no_more_is_told_than_fits(own_store: BaseStore, model: ScriptedChatModel) -> None:
    service = AgentMemoryStoreService(own_store)
    for number in range(32):
        service.sync.save_memory(U, f"Likes stall {number} " + "by the long pier " * 8, "preferences")
    agent_of(service, model, user_id=U, profile_tokens=300, max_recall_results=50).invoke(
        {"messages": [("user", "falcons")]}, THREAD
    )
    (told,) = profiles(model.requests[0])
    assert 0 < len(memory_lines(told)) < 6
    assert "Likes stall 31 " in told


def test_a_profile_that_cannot_be_read_is_said(
    own_store: BaseStore, model: ScriptedChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = standing(own_store)

    async def fails(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("Away")

    monkeypatch.setattr(service.scope.engine, "read", fails)
    result = agent_of(service, model, user_id=U).invoke({"messages": [("user", "falcons")]}, THREAD)
    assert (result["memory_status"], result["memory_status_reason"]) == ("degraded", "Away")
    assert profiles(model.requests[0]) == []
