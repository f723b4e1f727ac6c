"""Nobody reads, changes, counts or notices another user's or another agent's memory (T11, T12, T13)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from agent_support import FACES, ask, blocks, make_agent, memory_lines, patient_memory, remember, replies, the_block
from databases import KINDS, database
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.types import Command, interrupt
from support import case, expanded, load

from inference_core import AgentMemoryStoreService, MemoryContext, get_memory_tools, open_store
from inference_core.agents.identity import resolve_user
from inference_core.errors import IdentityError, InvalidId
from inference_core.memory.record import MemoryStoreDocument
from inference_core.testing import ScriptedChatModel, call_tool

SAVE, RECALL, UPDATE, DELETE, LIST = (
    "save_memory_store",
    "recall_memories_store",
    "update_memory_store",
    "delete_memory_store",
    "list_memories_store",
)
MAX_ID_BYTES = 512
HOSTILE_IDS: list[Any] = [expanded(entry["id"]) for entry in load("hostile_ids.json")]
PAIRS = 100
"""On each store, with three operations each; all that there are in the full run."""


def names_an_owner(value: Any) -> bool:
    """What the contract says of ids, in words of its own."""
    try:
        return isinstance(value, str) and "\x00" not in value and 0 < len(value.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


USERS: list[str] = [value for value in HOSTILE_IDS if names_an_owner(value)]
REFUSED: list[Any] = [value for value in HOSTILE_IDS if not names_an_owner(value) and type(value) is not int]
"""An integer is the user of its digits, who may be in the list too."""


def tools_of(service: AgentMemoryStoreService, user_id: str | None = None) -> dict[str, BaseTool]:
    names = [SAVE, RECALL, UPDATE, DELETE, LIST]
    return {one.name: one for one in get_memory_tools(service, user_id=user_id, include_tools=names)}


def statement(owner: int) -> str:
    return f"This memory belongs to owner number {owner}."


@dataclass
class Populated:
    """A store in which every hostile id owns one memory."""

    service: AgentMemoryStoreService
    ids: list[str]


@pytest.fixture(scope="module", params=KINDS)
def populated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Populated]:
    folder = tmp_path_factory.mktemp("isolation")
    with database(request.param, folder) as url, open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        yield Populated(service, [service.sync.save_memory(user, statement(at)) for at, user in enumerate(USERS)])


class TestHostileUserIds:
    def test_the_list_is_what_it_says(self) -> None:
        assert len(HOSTILE_IDS) == 120
        assert len(set(USERS)) == len(USERS) > 90
        assert len(REFUSED) > 15

    def test_what_names_nobody_is_refused(self, populated: Populated) -> None:
        face, memory_id = populated.service.sync, populated.ids[0]
        attempts: list[Callable[[Any], Any]] = [
            lambda user: face.save_memory(user, "x"),
            lambda user: face.recall_memories(user, "x"),
            face.list_memories,
            face.count_memories,
            lambda user: face.get_memory(user, memory_id),
            lambda user: face.update_memory(user, memory_id, "x"),
            lambda user: face.delete_memory(user, memory_id),
            face.delete_user_memories,
            lambda user: face.format_context_for_prompt(user, "x"),
        ]
        for user in REFUSED:
            for number, attempt in enumerate(attempts):
                with case(f"attempt {number} as {ascii(user)[:80]}"), pytest.raises(InvalidId):
                    attempt(user)

    def test_each_user_has_exactly_its_own(self, populated: Populated) -> None:
        face = populated.service.sync
        for at, user in enumerate(USERS):
            own = [statement(at)]
            assert [hit.content for hit in face.recall_memories(user, "memory belongs to owner number", 1_000)] == own
            assert [hit.content for hit in face.recall_memories(user, "", 1_000)] == own
            listed, total = face.list_memories(user, limit=None)
            assert ([memory.content for memory in listed], total) == (own, 1)
            assert face.count_memories(user)["total"] == 1
            assert face.get_user_context(user, ["general"], 10) == {"general": own}
            block = face.format_context_for_prompt(user, "owner number")
            assert [statement(at) in line for line in memory_lines(block)] == [True]

    def test_no_id_opens_another_users_memory(self, populated: Populated, full: bool) -> None:
        face = populated.service.sync
        before = [face.get_memory(user, key) for user, key in zip(USERS, populated.ids, strict=True)]
        assert all(before)
        pairs = [(one, other) for one in range(len(USERS)) for other in range(len(USERS)) if one != other]
        for one, other in pairs if full else random.Random(11).sample(pairs, PAIRS):
            user, key = USERS[one], populated.ids[other]
            got = face.get_memory(user, key), face.update_memory(user, key, "taken"), face.delete_memory(user, key)
            assert got == (None, False, False), (user, USERS[other])
        assert [face.get_memory(user, key) for user, key in zip(USERS, populated.ids, strict=True)] == before

    def test_the_same_id_of_two_users_is_two_memories(self, own_store: BaseStore) -> None:
        face = AgentMemoryStoreService(own_store).sync
        for at, user in enumerate(USERS):
            face.save_memory(user, statement(at), memory_id="same")
        for user in USERS[::2]:
            assert face.delete_memory(user, "same")
        left = [memory and memory.content for memory in (face.get_memory(user, "same") for user in USERS)]
        assert left == [None if at % 2 == 0 else statement(at) for at in range(len(USERS))]

    def test_emptying_one_user_leaves_the_others(self, own_store: BaseStore, full: bool) -> None:
        face = AgentMemoryStoreService(own_store).sync
        for at, user in enumerate(USERS):
            face.save_memory(user, statement(at))
        for done, user in enumerate(USERS, 1):
            assert face.delete_user_memories(user) == 1
            if done % (10 if full else 40) == 0:
                assert sum(face.count_memories(other)["total"] for other in USERS) == len(USERS) - done


class TestHostileAgentNames:
    def test_each_agent_has_exactly_its_own(self, own_store: BaseStore) -> None:
        agents = [AgentMemoryStoreService(own_store, agent_name=name) for name in USERS]
        for at, agent in enumerate(agents):
            agent.sync.save_memory("ada", statement(at), "interaction")
            agent.sync.save_memory("ada", statement(at), "skill")
        for at, agent in enumerate(agents):
            hits = agent.sync.recall_memories("ada", "memory belongs to owner number", 1_000)
            assert [hit.content for hit in hits] == [statement(at)]
            assert agent.sync.count_memories("ada") == {"semantic": 0, "episodic": 1, "procedural": 1, "total": 2}
        assert AgentMemoryStoreService(own_store).sync.count_memories("ada")["total"] == 0

    def test_what_names_no_agent_is_refused(self, own_store: BaseStore) -> None:
        for name in REFUSED:
            if name not in (None, ""):
                with case(ascii(name)[:80]), pytest.raises(InvalidId):
                    AgentMemoryStoreService(own_store, agent_name=name)


ADA, BOB = "ada", "bob"


@dataclass
class Guess:
    """Two users' memories, and ids that the first one must not get anything with."""

    service: AgentMemoryStoreService
    foreign: MemoryStoreDocument
    private: MemoryStoreDocument
    before: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self.before = self.rows()
        assert all(self.before)

    def ids(self) -> dict[str, str]:
        return {
            "foreign": self.foreign.id,
            "foreign prefix": self.foreign.id[:8],
            "other agent's": self.private.id,
            "path": f"{BOB}/semantic/{self.foreign.id}",
            "parent": f"../{BOB}/{self.foreign.id}",
            "wildcard": self.foreign.id[:8] + "%",
            "upper case": self.foreign.id.upper() + "X",
        }

    def rows(self) -> list[Any]:
        """The two memories as they are stored."""
        store = self.service.store
        return [
            store.get((BOB, "semantic"), self.foreign.id),
            store.get((ADA, "episodic", "writer"), self.private.id),
        ]


@pytest.fixture
def guess(any_store: BaseStore) -> Guess:
    planner = AgentMemoryStoreService(any_store, agent_name="planner").sync
    writer = AgentMemoryStoreService(any_store, agent_name="writer").sync
    planner.save_memory(ADA, "Ada drinks tea")
    foreign = planner.get_memory(BOB, planner.save_memory(BOB, "Bob drinks gin"))
    private = writer.get_memory(ADA, writer.save_memory(ADA, "Ada and gin", "interaction"))
    assert foreign is not None
    assert private is not None
    return Guess(AgentMemoryStoreService(any_store, agent_name="planner"), foreign, private)


class TestGuessedIds:
    @pytest.mark.parametrize("face", FACES)
    async def test_tools_answer_as_for_a_missing_id(self, guess: Guess, face: str) -> None:
        tools = tools_of(guess.service, ADA)
        for key, (name, more) in product(guess.ids().values(), ((UPDATE, {"content": "taken"}), (DELETE, {}))):
            answers: list[str] = []
            for tried in (key, "0" * len(key)):
                arguments = {"memory_id": tried, **more}
                reply = tools[name].invoke(arguments) if face == "sync" else await tools[name].ainvoke(arguments)
                answers.append(reply.replace(tried, "ID"))
            assert answers[0].encode() == answers[1].encode()
            assert answers[0].startswith("✗")
        assert guess.rows() == guess.before

    async def test_the_service_answers_as_for_a_missing_id(self, guess: Guess) -> None:
        service = guess.service
        for key in guess.ids().values():
            assert await service.get_memory(ADA, key) is None
            assert await service.update_memory(ADA, key, "taken") is False
            for category in (None, "semantic", "episodic", "procedural"):
                assert await service.delete_memory(ADA, key, category) is False
        assert guess.rows() == guess.before

    @pytest.mark.parametrize("kind", ["foreign", "other agent's"])
    async def test_saving_under_a_foreign_id_makes_ones_own(self, guess: Guess, kind: str) -> None:
        key = guess.ids()[kind]
        await guess.service.save_memory(ADA, "mine", memory_id=key)
        mine = await guess.service.get_memory(ADA, key)
        assert mine is not None
        assert mine.content == "mine"
        assert guess.rows() == guess.before


class TestSmuggledUsers:
    @pytest.mark.parametrize(
        "metadata",
        [{"user_id": BOB}, {"namespace": [BOB, "semantic"]}, {"memory_owner": BOB, "agent_name": "writer"}],
        ids=str,
    )
    async def test_in_metadata(self, guess: Guess, metadata: dict[str, Any]) -> None:
        key = await guess.service.save_memory(ADA, "smuggled gin", extra_metadata=metadata, topic=BOB, session_id=BOB)
        await guess.service.update_memory(ADA, key, extra_metadata=metadata)
        assert (await guess.service.count_memories(BOB))["total"] == 1
        mine = await guess.service.get_memory(ADA, key)
        assert mine is not None
        assert mine.metadata == metadata
        assert guess.rows() == guess.before

    @pytest.mark.parametrize(
        "asked",
        [{"user_id": BOB}, {"namespace": [BOB, "semantic"]}, {"content": "Bob drinks gin"}, {"agent_name": "writer"}],
        ids=str,
    )
    @pytest.mark.parametrize("query", [None, "gin"])
    def test_in_a_filter(self, own_store: BaseStore, asked: dict[str, Any], query: str | None) -> None:
        remember(own_store, {ADA: ["Ada drinks tea"], BOB: ["Bob drinks gin"]})
        assert own_store.search((ADA,), filter=asked, query=query) == []

    @pytest.mark.parametrize("face", FACES)
    async def test_in_the_metadata_of_the_configuration(self, guess: Guess, face: str) -> None:
        config = {"configurable": {"user_id": ADA}, "metadata": {"user_id": BOB, "memory_owner": BOB}, "tags": [BOB]}
        model = ScriptedChatModel(turns=[call_tool(RECALL, query="drinks"), call_tool(LIST), "Done."])
        middleware = patient_memory(guess.service, include_tools=[RECALL, LIST])
        result = await ask(make_agent(model, middleware=[middleware]), face, "drinks", config)
        prompts = [message.text for request in model.requests for message in request]
        assert "Ada drinks tea" in the_block(model.requests[0])
        assert not any("gin" in text for text in [*prompts, *replies(result)])

    @pytest.mark.parametrize("face", FACES)
    async def test_in_a_message(self, guess: Guess, face: str) -> None:
        model = ScriptedChatModel(turns=["Done."])
        asked = {"messages": [{"role": "user", "content": "drinks", "user_id": BOB, "name": BOB}], "user_id": BOB}
        agent = make_agent(model, middleware=[patient_memory(guess.service)])
        await ask(agent, face, asked, {"configurable": {"user_id": ADA}})
        assert "Ada drinks tea" in the_block(model.requests[0])
        assert "Bob drinks" not in the_block(model.requests[0])


TYPES = {"semantic": "facts", "episodic": "interaction", "procedural": "skill"}


@dataclass
class Agents:
    """The same user's memories with agents X and Y and without an agent: one of each category."""

    x: AgentMemoryStoreService
    y: AgentMemoryStoreService
    shared: AgentMemoryStoreService


@pytest.fixture
def agents(any_store: BaseStore) -> Agents:
    made = [AgentMemoryStoreService(any_store, agent_name=name) for name in ("X", "Y", None)]
    for service in made:
        for category, kind in TYPES.items():
            service.sync.save_memory(ADA, f"{category} note by {service.agent_name}", kind)
    return Agents(*made)


def seen_by(names: tuple[Any, ...]) -> set[str]:
    """What an agent sees of its own and the shared scopes, and everybody's semantic memory."""
    semantic = {f"semantic note by {name}" for name in ("X", "Y", None)}
    return semantic | {f"{category} note by {name}" for category in ("episodic", "procedural") for name in names}


class TestScopes:
    @pytest.mark.parametrize("who", ["x", "y", "shared"])
    def test_an_agent_sees_its_own_and_the_shared(self, agents: Agents, who: str) -> None:
        service: AgentMemoryStoreService = getattr(agents, who)
        expected = seen_by((None,) if who == "shared" else (who.upper(), None))
        face = service.sync
        assert {hit.content for hit in face.recall_memories(ADA, "note", 100)} == expected
        assert {hit.content for hit in face.recall_memories(ADA, "", 100)} == expected
        assert {memory.content for memory in face.list_memories(ADA, limit=None)[0]} == expected
        assert face.count_memories(ADA)["total"] == len(expected)
        block = face.format_context_for_prompt(ADA, "note", max_memories=300)
        assert {line.split("] ", 1)[1].split(" (type", 1)[0] for line in memory_lines(block)} == expected
        reply = tools_of(service, ADA)[RECALL].invoke({"query": "note", "max_results": 50})
        assert {line.rsplit(": ", 1)[1] for line in reply.splitlines()[1:]} == expected

    def test_scoping_off_sees_the_shared_only(self, any_store: BaseStore, agents: Agents) -> None:
        off = AgentMemoryStoreService(any_store, agent_name="X", agent_scope_enabled=False).sync
        assert {memory.content for memory in off.list_memories(ADA)[0]} == seen_by((None,))

    @pytest.mark.parametrize("category", ["episodic", "procedural"])
    def test_one_category(self, agents: Agents, category: str) -> None:
        hits = agents.x.sync.recall_by_category(ADA, category, "note", 100)
        assert {hit.content for hit in hits} == {f"{category} note by {name}" for name in ("X", None)}
        shared = agents.shared.sync.recall_by_category(ADA, category, "note", 100)
        assert {hit.content for hit in shared} == {f"{category} note by None"}

    @pytest.mark.parametrize("category", ["episodic", "procedural"])
    @pytest.mark.parametrize("query", ["note", ""])
    def test_the_limit_applies_after_the_exact_filter(self, agents: Agents, category: str, query: str) -> None:
        for number in range(40):
            agents.y.sync.save_memory(ADA, f"note note note {number}", TYPES[category])
            if number < 4:
                agents.x.sync.save_memory(ADA, f"a mere note, number {number} of X", TYPES[category])
        hits = agents.x.sync.recall_memories(ADA, query, 5, category=category)
        assert len(hits) == 5
        assert all(hit.value["agent_name"] in ("X", None) for hit in hits)
        listed, total = agents.x.sync.list_memories(ADA, category=category, limit=5)
        assert (len(listed), total) == (5, 6)

    def test_emptying_an_agent_leaves_the_others_own(self, agents: Agents) -> None:
        agents.x.sync.delete_user_memories(ADA)
        left = {memory.content for memory in agents.y.sync.list_memories(ADA)[0]}
        assert left == {"episodic note by Y", "procedural note by Y"}

    def test_a_moved_memory_leaves_its_old_scope(self, agents: Agents) -> None:
        key = agents.x.sync.save_memory(ADA, "secret of X", "interaction")
        assert agents.y.sync.get_memory(ADA, key) is None
        assert agents.x.sync.update_memory(ADA, key, memory_type="facts")
        assert agents.y.sync.get_memory(ADA, key) is not None
        assert agents.x.sync.count_memories(ADA)["total"] == len(seen_by(("X", None))) + 1

    @pytest.mark.parametrize("face", FACES)
    async def test_agents_with_middleware(self, any_store: BaseStore, agents: Agents, face: str) -> None:
        for name, other in (("X", "Y"), ("Y", "X")):
            model = ScriptedChatModel(turns=["Done."])
            middleware = patient_memory(agent_name=name, user_id=ADA, max_recall_results=50)
            await ask(make_agent(model, store=any_store, middleware=[middleware]), face, "note")
            block = the_block(model.requests[0])
            assert f"episodic note by {name}" in block
            assert "procedural note by None" in block
            assert f"episodic note by {other}" not in block
            assert f"procedural note by {other}" not in block


def as_user(identity: Any) -> dict[str, Any]:
    """The part of a configuration by which LangGraph Server says whom it has authenticated."""
    return {"langgraph_auth_user": SimpleNamespace(identity=identity)}


def bob(_: Any) -> str:
    return BOB


CONFLICTS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "context": ({}, {"user_id": BOB}, as_user(ADA)),
    "configurable": ({}, None, {**as_user(ADA), "user_id": BOB}),
    "middleware": ({"user_id": BOB}, None, as_user(ADA)),
    "callable": ({"user_id": bob}, None, as_user(ADA)),
    "one of two": ({}, {"user_id": ADA}, {**as_user(ADA), "user_id": BOB}),
    "other case": ({}, {"user_id": "ADA"}, as_user(ADA)),
    "no identity": ({}, {"user_id": ADA}, as_user("")),
}


@pytest.fixture
def store() -> Iterator[BaseStore]:
    with open_store("memory://", embeddings=None) as opened:
        yield opened


class TestIdentity:
    def agent(self, store: BaseStore, model: ScriptedChatModel, **options: Any) -> Any:
        middleware = patient_memory(include_tools=[SAVE, RECALL, LIST], **options)
        return make_agent(model, store=store, middleware=[middleware], context_schema=MemoryContext)

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("conflict", CONFLICTS)
    async def test_a_conflict_closes_memory_and_tools(self, store: BaseStore, conflict: str, face: str) -> None:
        service = remember(store, {ADA: ["Ada drinks tea"], BOB: ["Bob drinks gin"], "ADA": ["ADA drinks ale"]})
        options, context, configurable = CONFLICTS[conflict]
        calls = [call_tool(SAVE, content="x"), call_tool(RECALL, query="drinks"), call_tool(LIST)]
        model = ScriptedChatModel(turns=[*calls, "Done."])
        result = await ask(
            self.agent(store, model, **options), face, "drinks", {"configurable": configurable}, context=context
        )
        assert result["memory_status"] == "closed"
        assert not any(map(blocks, model.requests))
        assert [reply[:2] for reply in replies(result)] == ["✗ "] * 3
        assert "drinks" not in "".join(replies(result))
        assert [service.sync.count_memories(user)["total"] for user in (ADA, BOB, "ADA")] == [1, 1, 1]

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("context", [None, {"user_id": ADA}], ids=["alone", "same"])
    async def test_the_authenticated_user_is_the_user(
        self, store: BaseStore, context: dict[str, str] | None, face: str
    ) -> None:
        remember(store, {ADA: ["Ada drinks tea"], BOB: ["Bob drinks gin"]})
        model = ScriptedChatModel(turns=[call_tool(LIST), "Done."])
        result = await ask(self.agent(store, model), face, "drinks", {"configurable": as_user(ADA)}, context=context)
        assert "Ada drinks tea" in the_block(model.requests[0])
        assert "Ada drinks tea" in replies(result)[0]
        assert "Bob" not in replies(result)[0]

    def test_context_goes_before_configurable(self, store: BaseStore) -> None:
        remember(store, {ADA: ["Ada drinks tea"], BOB: ["Bob drinks gin"]})
        model = ScriptedChatModel(turns=["Done."])
        agent = self.agent(store, model)
        agent.invoke({"messages": [("user", "drinks")]}, {"configurable": {"user_id": BOB}}, context={"user_id": ADA})
        assert "Ada drinks tea" in the_block(model.requests[0])

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize(
        "resumed",
        [
            ({}, {"user_id": BOB}),
            ({"user_id": BOB}, None),
            (as_user(BOB), None),
            ({**as_user(ADA), "user_id": BOB}, None),
            (as_user(""), None),
        ],
        ids=["context", "configurable", "authenticated", "conflict", "nameless"],
    )
    async def test_a_resume_by_somebody_else_is_closed(self, store: BaseStore, resumed: Any, face: str) -> None:
        def confirm() -> str:
            """Asks the user."""
            return str(interrupt("Sure?"))

        remember(store, {ADA: ["Ada drinks tea"], BOB: ["Bob drinks gin"]})
        configurable, context = resumed
        model = ScriptedChatModel(turns=[call_tool("confirm"), call_tool(LIST), "Done."])
        agent = make_agent(
            model,
            store=store,
            tools=[confirm],
            middleware=[patient_memory(include_tools=[LIST])],
            context_schema=MemoryContext,
            checkpointer=InMemorySaver(),
        )
        await ask(agent, face, "drinks", {"configurable": {"thread_id": "1", **as_user(ADA)}})
        result = await ask(
            agent, face, Command(resume="y"), {"configurable": {"thread_id": "1", **configurable}}, context=context
        )
        assert result["memory_status"] == "closed"
        assert [len(blocks(request)) for request in model.requests] == [1, 0, 0]
        assert replies(result)[-1].startswith("✗ ")

    @pytest.mark.parametrize("name", [SAVE, RECALL, UPDATE, DELETE, LIST])
    def test_a_tool_by_itself(self, store: BaseStore, name: str) -> None:
        service = remember(store, {ADA: ["Ada drinks tea"], BOB: ["Bob drinks gin"]})
        arguments = {"content": "x", "query": "drinks", "memory_id": "x", "memory_type": "facts"}
        tool = tools_of(service, BOB)[name]
        known = {key: value for key, value in arguments.items() if key in tool.args}
        runtime = SimpleNamespace(server_info=SimpleNamespace(user=SimpleNamespace(identity=ADA)), context=None)
        assert tool._run(runtime=runtime, **known)[0].startswith("✗ Memory is off in this conversation")
        assert service.sync.count_memories(BOB)["total"] == 1

    def test_an_authenticated_user_without_a_name_is_nobody(self) -> None:
        runtime: Any = SimpleNamespace(server_info=SimpleNamespace(user=SimpleNamespace(identity="")), context=None)
        for owner in (None, ADA):
            with pytest.raises((IdentityError, InvalidId)):
                resolve_user(runtime, None, owner=owner)
