"""ContextBuilder: what its sources give, whose it is, and what a source that fails or hangs costs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from context_support import item
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from inference_core import (
    AgentMemoryStoreService,
    AssembledContext,
    ContextBuilder,
    ContextRequest,
    MemorySource,
    Origin,
    OwnSource,
    Pruning,
    Space,
    StaticMemory,
    open_store,
)
from inference_core.context.engineer import ContextEngineer
from inference_core.errors import ConfigurationError, InvalidId
from inference_core.services.context_builder import (
    DEFAULT_SOURCES,
    AssociatedMemories,
    Entities,
    Memories,
    RecentMessages,
    StaticFacts,
    consolidated_memories,
    goals,
    ideas,
)
from inference_core.testing import FrozenClock, ScriptedChatModel

USER = "ada"
EVERYTHING = ContextEngineer(pruning=Pruning(min_chance=0, min_relevance=0, min_best=0, max_external=1_000))
PATIENT = 60.0


@pytest.fixture
def service(clock: FrozenClock) -> Iterator[AgentMemoryStoreService]:
    with open_store("memory://", embeddings=None) as store:
        yield AgentMemoryStoreService(store, clock=clock)


def told(context: AssembledContext) -> dict[str, list[str]]:
    return {name: sorted(one.text for one in items) for name, items in context.sections.items()}


def built(
    service: AgentMemoryStoreService, sources: Sequence[Any], query: str | None = "Berlin", **options: Any
) -> AssembledContext:
    messages = options.pop("messages", ())
    chosen: dict[str, Any] = {"engineer": EVERYTHING, "deadline": PATIENT} | options
    builder = ContextBuilder(service, sources, **chosen)
    return builder.sync.build(USER, query, messages=messages)


class TestSources:
    def test_memories_of_each_category_with_or_without_a_question(self, service: AgentMemoryStoreService):
        for kind in ("facts", "interaction", "instructions"):
            for at in range(3):
                service.sync.save_memory(USER, f"Berlin {kind} {at}", kind)
        service.sync.save_memory("eve", "Berlin belongs to Eve", "facts")
        either: list[dict[str, Any]] = [{}, {"judged": False}]
        for options in either:
            context = built(service, [Memories(limit=6, **options)])
            assert list(map(len, told(context).values())) == [2, 2, 2]
            assert {one.relevance is None for one in context.sections["semantic_memory"]} == {bool(options)}
        for query in (None, " "):
            assert sum(map(len, told(built(service, [Memories()], query)).values())) == 9
        assert told(built(service, [Memories(types=["interaction"], section="mine")])).keys() == {"mine"}

    def test_goals_ideas_and_what_was_consolidated(self, service: AgentMemoryStoreService):
        save = service.sync.save_memory
        save(USER, "Run in Berlin", "goals")
        save(USER, "Ran in Berlin once", "goals", extra_metadata={"state": "done"})
        save(USER, "Is in Berlin until Friday", "context")
        save(USER, "A Berlin guide as a gift", "general", tags=["idea"])
        save(USER, "Talked about Berlin", "session_summary")
        save(USER, "Travels a lot to Berlin", "general", extra_metadata={"cites": ["a", "b"]})
        for judged in (True, False):
            sources = [goals(judged=judged), ideas(judged=judged), consolidated_memories(judged=judged)]
            assert told(built(service, sources)) == {
                "goals": ["Run in Berlin"],
                "ideas": ["A Berlin guide as a gift"],
                "consolidated_memory": ["Talked about Berlin", "Travels a lot to Berlin"],
            }

    def test_regression_goals_ideas_and_entities_are_shown_whatever_the_question(
        self, service: AgentMemoryStoreService, clock: FrozenClock
    ):
        """An open goal was dropped as irrelevant to "What are her goals?"; the document wants all, by priority."""
        ada = {"entities": [{"name": "Ada", "kind": "person"}]}
        for at, (text, importance) in enumerate((("Read more", 0.2), ("Run a marathon", 0.9), ("Learn Greek", 0.2))):
            service.sync.save_memory(USER, text, "goals", importance=importance, extra_metadata=ada if at else None)
            service.sync.save_memory(USER, f"Podcast {at}", "goals", importance=importance, tags=["idea"])
            clock.advance(timedelta(days=1))
        service.sync.save_memory(USER, "Rex barks", "facts", extra_metadata={"entities": [{"name": "Rex"}]})
        sections = ContextBuilder(service, deadline=PATIENT).sync.build(USER, "Who won the cup in 1954?").sections
        in_order = ["Run a marathon", "Learn Greek", "Read more"]
        assert [one.text for one in sections["goals"]] == in_order
        assert [one.text for one in sections["ideas"]] == ["Podcast 1", "Podcast 2", "Podcast 0"]
        assert [one.text for one in sections["entities"]] == ["Ada (person)", "Rex"]
        asked = [goals(judged=True), ideas(judged=True), Entities(judged=True)]
        assert built(service, asked, "cup of 1954", engineer=None).text == ""

    def test_regression_unrelated_questions_are_not_told_what_is_no_goal_or_idea(
        self, service: AgentMemoryStoreService
    ):
        """Passing circumstances stood under the ideas whatever was asked: half of such questions were told one."""
        service.sync.save_memory(USER, "The builds use JDK 17", "context")
        builder = ContextBuilder(service, deadline=PATIENT).sync
        assert "ideas" not in builder.build(USER, "What does photosynthesis produce?").sections
        assert told(builder.build(USER, "Which JDK do the builds use?")) == {
            "episodic_memory": ["The builds use JDK 17"]
        }

    @pytest.mark.parametrize("judged", [True, False])
    def test_regression_a_limit_is_not_split_over_categories_that_have_nothing(
        self, service: AgentMemoryStoreService, judged: bool
    ):
        """`consolidated_memories(10)` of 15 summaries gave 5, as half was kept for a category without any."""
        for at in range(15):
            service.sync.save_memory(USER, f"Talked about Berlin, part {at}", "session_summary")
        for at in range(120):
            service.sync.save_memory(USER, f"Saw Berlin {at} times", "general")
        context = built(service, [consolidated_memories(10, judged=judged)], max_tokens=20_000)
        assert len(told(context)["consolidated_memory"]) == 10

    def test_what_belongs_to_the_best_memories(self, service: AgentMemoryStoreService):
        service.sync.save_memory(USER, "Berlin is where Ida works as a florist", "facts")
        service.sync.save_memory(USER, "Ida is a sister who loves tulips", "facts")
        service.sync.save_memory(USER, "Prefers trains", "facts")
        context = built(service, [AssociatedMemories()])
        assert told(context) == {"associated_memory": ["Ida is a sister who loves tulips"]}
        assert 0 < (context.sections["associated_memory"][0].relevance or 0) < 0.2
        assert told(built(service, [AssociatedMemories(), Entities(judged=True)], None)) == {}

    @pytest.mark.parametrize("judged", [True, False])
    def test_entities_of_one_trust_stay_together(self, service: AgentMemoryStoreService, judged: bool):
        ida = {"name": "Ida", "kind": "person"}
        noted: list[dict[str, Any]] = [
            {"entities": [ida, "nonsense", {"kind": "x"}], "relations": [["Ida", "lives_in", "Berlin"], ["odd"]]},
            {"entities": [{"name": "ida", "kind": "person"}], "relations": [["Ida", "sister_of", "user"]]},
            {"entities": [{"name": "Berlin"}], "relations": "nonsense"},
        ]
        for at, metadata in enumerate(noted):
            service.sync.save_memory(USER, f"Berlin note {at}", "facts", extra_metadata=metadata)
        web = MemorySource(origin=Origin.WEB)
        service.sync.save_memory(USER, "Berlin page", "facts", extra_metadata={"entities": [ida]}, source=web)
        context = built(service, [Entities(judged=judged)])
        (person, city) = sorted(context.sections["entities"], key=lambda one: one.text, reverse=True)
        assert person.text.casefold().startswith("ida (person): ida ")
        assert {"lives in", "sister of"} <= {part for part in ("lives in", "sister of") if part in person.text}
        assert city.text == "Berlin"
        assert [one.text for one in context.untrusted] == ["Ida (person)"]

    def test_the_conversation_without_the_question(self, service: AgentMemoryStoreService):
        said = [
            SystemMessage("You help."),
            HumanMessage("Too old"),
            HumanMessage("Hello", additional_kwargs={"timestamp": "2026-01-15T09:00:00+00:00"}),
            AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}]),
            ToolMessage("From a tool", tool_call_id="1"),
            AIMessage("Hi", additional_kwargs={"timestamp": 3}),
            HumanMessage("Berlin"),
        ]
        context = built(service, [RecentMessages(limit=3)], messages=said)
        assert told(context) == {"recent_messages": ["Hello", "Hi"]}
        assert [one.text for one in context.untrusted] == ["From a tool"]
        assert "[2026-01-15T09:00:00] Hello (type: user)" in context.text
        assert told(built(service, [RecentMessages()])) == {}

    def test_static_facts_given_or_stored(self, service: AgentMemoryStoreService):
        StaticMemory(["The shop opens at 9"], service).load()
        context = built(service, [StaticFacts(), StaticFacts(["It is closed on Sundays"], name="given")])
        assert told(context) == {"static_memory": ["It is closed on Sundays", "The shop opens at 9"]}

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_one_of_ones_own(self, service: AgentMemoryStoreService, is_async: bool):
        def find(request: ContextRequest) -> list[Any]:
            assert (request.user_id, request.zone) == (USER, service.scope.zone)
            return ["First", item("Second", source="elsewhere"), "Third"]

        async def afind(request: ContextRequest) -> list[Any]:
            await asyncio.sleep(0)
            return find(request)

        own = OwnSource(name="own", find=afind if is_async else find, limit=2)
        context = built(service, [own])
        assert told(context) == {"own": ["First"], "semantic_memory": ["Second"]}
        assert {one.source for section in context.sections.values() for one in section} == {"own"}

    def test_regression_texts_of_ones_own_keep_their_order(self, service: AgentMemoryStoreService):
        """They were taken for a conversation whose newest message comes first, and reversed."""
        context = built(service, [OwnSource(name="own", find=lambda _: ["First", "Second", "Third"])])
        assert [one.text for one in context.sections["own"]] == ["First", "Second", "Third"]

    def test_by_default_all_are_asked(self, service: AgentMemoryStoreService):
        context = built(service, DEFAULT_SOURCES)
        assert (context.text, context.left_out) == ("", {})


class TestFaults:
    async def test_what_hangs_or_fails_is_left_out_and_named(self, service: AgentMemoryStoreService):
        over = threading.Event()
        sources = [
            OwnSource(name="hangs", find=lambda _: [str(over.wait(120))]),
            OwnSource(name="fails", find=lambda _: [str(1 // 0)]),
            OwnSource(name="works", find=lambda _: ["There"]),
            OwnSource(name="hangs too", find=lambda _: [str(over.wait(120))]),
        ]
        builder = ContextBuilder(service, sources, deadline=1.0)
        start = time.perf_counter()
        context, sync = await builder.build(USER), await asyncio.to_thread(builder.sync.build, USER)
        took = time.perf_counter() - start
        over.set()
        for one in (context, sync):
            assert told(one) == {"works": ["There"]}
            assert one.left_out["hangs"] == one.left_out["hangs too"] == "late"
            assert one.left_out["fails"].startswith("ZeroDivisionError: ")
        assert took < 60

    def test_a_source_that_hangs_ends_up_refused_at_once(
        self, service: AgentMemoryStoreService, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("inference_core.services.context_builder._HANG_S", 0.2)
        over = threading.Event()
        sources = [OwnSource(name="hangs", find=lambda _: [str(over.wait(20))])]
        builder = ContextBuilder(service, sources, deadline=0.01)
        reasons = [builder.sync.build(USER).left_out["hangs"] for _ in range(8)]
        assert reasons == ["late"] * 8
        end = time.monotonic() + 15
        while not builder.sync.build(USER).left_out["hangs"].startswith("StoreUnavailable: context-hangs"):
            assert time.monotonic() < end
        over.set()

    async def test_the_loop_is_free_and_a_cancelled_build_waits_for_nothing(self, service: AgentMemoryStoreService):
        over = threading.Event()
        builder = ContextBuilder(service, [OwnSource(name="hangs", find=lambda _: [str(over.wait(10))])], deadline=None)
        building = asyncio.create_task(builder.build(USER))
        await asyncio.sleep(0.05)
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        over.set()

    def test_a_memory_of_somebody_else_is_refused_with_its_source(self, service: AgentMemoryStoreService):
        service.sync.save_memory("eve", "Berlin belongs to Eve", "facts")
        stolen = built(service, [Memories()])
        assert stolen.text == ""
        eve = ContextBuilder(service, [Memories()], engineer=EVERYTHING, deadline=PATIENT).sync.build("eve", "Berlin")
        (secret,) = eve.sections["semantic_memory"]
        context = built(service, [OwnSource(name="leaks", find=lambda _: [secret])])
        assert context.text == ""
        assert context.left_out["leaks"].startswith("IdentityError")

    def test_workers_end_with_the_builder(self, service: AgentMemoryStoreService):
        name = "ends-with-it"
        built(service, [OwnSource(name=name, find=lambda _: [])])
        gc.collect()
        deadline = time.monotonic() + 60
        while any(name in one.name for one in threading.enumerate()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(name in one.name for one in threading.enumerate())

    @pytest.mark.parametrize(
        ("sources", "options"),
        [
            ([Memories(), Memories()], {}),
            (["memories"], {}),
            ([], {"deadline": 0}),
            ([], {"model": "openai:gpt-5-mini"}),
        ],
        ids=["same-name", "no-source", "deadline", "name-of-a-model"],
    )
    def test_arguments_that_make_no_sense(
        self, service: AgentMemoryStoreService, sources: list[Any], options: dict[str, Any]
    ):
        with pytest.raises(ConfigurationError):
            ContextBuilder(service, sources, **options)
        with pytest.raises(InvalidId):
            ContextBuilder(service).sync.build("")


class TestSummary:
    NOTES = OwnSource(name="notes", find=lambda _: [f"{chr(97 + at) * 60} {at}" for at in range(12)], limit=12)

    def test_what_does_not_fit_is_summed_up(self, service: AgentMemoryStoreService):
        model = ScriptedChatModel(turns=["In short."])
        context = built(service, [self.NOTES], model=model, max_tokens=350)
        assert told(context)["summary"] == ["In short."]
        assert context.tokens <= 350

    def test_without_an_answer_it_is_cut_and_said(self, service: AgentMemoryStoreService):
        context = built(service, [self.NOTES], model=ScriptedChatModel(turns=[""]), max_tokens=350)
        assert "summary" in context.left_out
        assert 0 < context.tokens <= 350


def test_regression_a_space_is_no_user_of_a_context(service: AgentMemoryStoreService):
    """It was taken for a user with a name of that form, who has no memories: the context was empty."""
    with pytest.raises(InvalidId, match="a user"):
        ContextBuilder(service).sync.build(Space("team"), "Berlin")  # pyright: ignore[reportArgumentType]
