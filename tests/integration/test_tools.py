"""The memory tools: what a model may pass, what it is told, and that nothing it passes raises or changes the user."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agent_support import FACES, ask, make_agent, patient_memory, remember, replies
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from support import HashingEmbeddings

from inference_core import (
    AgentMemoryStoreService,
    ForgettingPolicy,
    MemoryLifecycle,
    generate_memory_tools_system_instructions,
    get_memory_tools,
    open_store,
)
from inference_core.agents import tools as tools_module
from inference_core.errors import ConfigurationError
from inference_core.memory.types import MEMORY_TYPES, format_memory_types_for_description
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

TOOLS = [
    "save_memory_store",
    "recall_memories_store",
    "update_memory_store",
    "delete_memory_store",
    "list_memories_store",
]
SAVE, RECALL, UPDATE, DELETE, LIST = TOOLS
ARGUMENTS = {
    SAVE: ({"content", "memory_type", "topic", "category"}, {"content"}),
    RECALL: ({"query", "memory_type", "max_results", "category"}, {"query"}),
    UPDATE: ({"memory_id", "content", "memory_type", "topic", "category"}, {"memory_id", "content"}),
    DELETE: ({"memory_id"}, {"memory_id"}),
    LIST: ({"memory_type", "category", "page"}, set[str]()),
}
TEA = "Ada drinks tea"


def tools_of(service: Any, **options: Any) -> dict[str, BaseTool]:
    """All five tools by name."""
    return {one.name: one for one in get_memory_tools(service, include_tools=TOOLS, **options)}


async def use(tool: BaseTool, face: str, config: Any = None, /, **arguments: Any) -> str:
    """What the tool answers."""
    if face == "sync":
        return tool.invoke(arguments, config)
    return await tool.ainvoke(arguments, config)


def saved_id(reply: str) -> str:
    """The id in the reply of a save."""
    found = re.fullmatch(r"✓ Memory saved \(id: (\S+), category: \w+\)", reply)
    assert found, reply
    return found[1]


@pytest.fixture
def tools(service: AgentMemoryStoreService) -> dict[str, BaseTool]:
    """The tools of the user ada on every kind of store."""
    return tools_of(service, user_id="ada")


@pytest.fixture
def mine() -> Iterator[AgentMemoryStoreService]:
    """A service on a store in memory, for what does not depend on the store."""
    with open_store("memory://", embeddings=None) as store:
        yield AgentMemoryStoreService(store, agent_name="planner", clock=FrozenClock())


class TestSchemas:
    @pytest.mark.parametrize("name", TOOLS)
    def test_the_model_sees_exactly_the_documented_arguments(self, mine: AgentMemoryStoreService, name: str) -> None:
        schema: Any = tools_of(mine)[name].tool_call_schema
        described = schema.model_json_schema()
        assert (set(described["properties"]), set(described.get("required", ()))) == ARGUMENTS[name]
        assert not {"user_id", "runtime", "session_id", "memory_owner"} & set(described["properties"])
        assert all(field["description"] for field in described["properties"].values())
        assert tools_of(mine)[name].args.keys() >= described["properties"].keys()

    def test_types_categories_and_bounds(self, mine: AgentMemoryStoreService) -> None:
        tools = tools_of(mine)

        def field(tool: str, name: str) -> dict[str, Any]:
            schema: Any = tools[tool].tool_call_schema
            return schema.model_json_schema()["properties"][name]

        assert (field(SAVE, "memory_type")["default"], field(SAVE, "memory_type")["enum"]) == ("general", MEMORY_TYPES)
        assert "default" not in field(UPDATE, "memory_type")
        assert field(RECALL, "max_results")["type"] == "integer"
        assert field(LIST, "page")["minimum"] == 1

    def test_descriptions(self, mine: AgentMemoryStoreService) -> None:
        assert all(len(one.description) > 20 for one in tools_of(mine).values())

    def test_a_tool_does_not_show_its_service_or_user(self, mine: AgentMemoryStoreService) -> None:
        for one in tools_of(mine, user_id="ada", session_id="s-1").values():
            assert not {"memory_service", "user_id", "session_id"} & one.model_dump().keys()


class TestChoice:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (None, TOOLS[:4]),
            ([], []),
            ([LIST, SAVE], [LIST, SAVE]),
            (["forget_everything", DELETE, ""], [DELETE]),
            (["SAVE_MEMORY_STORE"], []),
            (list(reversed(TOOLS)), list(reversed(TOOLS))),
        ],
    )
    def test_include_tools(self, mine: AgentMemoryStoreService, names: list[str] | None, expected: list[str]) -> None:
        assert [one.name for one in get_memory_tools(mine, include_tools=names)] == expected

    @pytest.mark.parametrize("service", ["sqlite:///memory.db", 42, InMemoryStore()], ids=["url", "number", "store"])
    def test_what_is_no_service_raises(self, service: Any) -> None:
        with pytest.raises(ConfigurationError, match="must be an AgentMemoryStoreService"):
            get_memory_tools(service)

    def test_the_sync_face_is_a_service_too(self, mine: AgentMemoryStoreService) -> None:
        assert tools_of(mine.sync, user_id="ada")[SAVE].invoke({"content": TEA}).startswith("✓")
        assert mine.sync.count_memories("ada")["total"] == 1


@pytest.mark.parametrize("face", FACES)
class TestReplies:
    async def test_save(self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], face: str) -> None:
        reply = await use(tools[SAVE], face, content=TEA, memory_type="preferences", topic="drinks")
        memory = await service.get_memory("ada", saved_id(reply))
        assert memory is not None
        assert (memory.content, memory.memory_type, memory.topic) == (TEA, "preferences", "drinks")
        assert reply.endswith("category: semantic)")
        assert memory.value["source"] == {"origin": "agent", "tool": SAVE}
        assert "category: episodic)" in await use(tools[SAVE], face, content=TEA, category="episodic")
        assert "category: procedural)" in await use(tools[SAVE], face, content=TEA, memory_type="skill")

    async def test_recall(self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], face: str) -> None:
        assert await use(tools[RECALL], face, query="tea") == "No relevant memories found."
        first = await service.save_memory("ada", TEA, "preferences", topic="drinks")
        second = await service.save_memory("ada", "Ada met a tea dealer", "interaction")
        await service.save_memory("bob", "Bob drinks tea", "preferences")
        heading, *lines = (await use(tools[RECALL], face, query="tea drinks")).splitlines()
        assert heading == "Found 2 relevant memories:"
        created = "[created: 2026-01-15 12:00]"
        relevances = [float(found) for line in lines for found in re.findall(r" \[relevance: ([\d.]+)\]", line)]
        assert len(relevances) == 2
        assert 1 > relevances[0] > relevances[1] > 0
        assert [re.sub(r" \[relevance: [\d.]+\]", "", line) for line in lines] == [
            f"1. [id: {first}] [semantic] [preferences] {created} - (drinks): {TEA}",
            f"2. [id: {second}] [episodic] [interaction] {created}: Ada met a tea dealer",
        ]

    async def test_recall_narrows(
        self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], face: str
    ) -> None:
        for kind in ("facts", "preferences", "context", "skill"):
            await service.save_memory("ada", f"tea in {kind}", kind)
        for arguments, expected in (
            ({"memory_type": "facts"}, ["tea in facts"]),
            ({"category": "episodic"}, ["tea in context"]),
            ({"category": "semantic", "memory_type": "preferences"}, ["tea in preferences"]),
            ({"category": "episodic", "memory_type": "facts"}, []),
        ):
            reply = await use(tools[RECALL], face, query="tea", **arguments)
            assert re.findall(r"tea in \w+", reply) == expected
        assert (await use(tools[RECALL], face, query="tea", max_results=3)).startswith("Found 3 ")

    async def test_default_number_of_results(self, mine: AgentMemoryStoreService, face: str) -> None:
        for number in range(9):
            await mine.save_memory("ada", f"tea {number}")
        for options, expected in (({}, 5), ({"max_recall_results": 2}, 2)):
            recall = tools_of(mine, user_id="ada", **options)[RECALL]
            assert (await use(recall, face, query="tea")).startswith(f"Found {expected} ")
            assert (await use(recall, face, query="tea", max_results=9)).startswith("Found 9 ")

    async def test_update_and_delete_take_the_ids_that_save_and_recall_gave(
        self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], face: str
    ) -> None:
        key = saved_id(await use(tools[SAVE], face, content=TEA))
        reply = await use(tools[UPDATE], face, memory_id=key, content="Ada drinks cocoa")
        assert reply == f"✓ Memory updated successfully (id: {key})"
        found = re.findall(r"\[id: (\S+)\].*: (.*)", await use(tools[RECALL], face, query="cocoa"))
        assert found == [(key, "Ada drinks cocoa")]
        listed = re.findall(r"\[id: (\S+)\]", await use(tools[LIST], face))
        assert listed == [key]
        assert await use(tools[DELETE], face, memory_id=key) == f"✓ Memory deleted successfully (id: {key})"
        assert await use(tools[LIST], face) == "No memories stored."
        assert await service.get_memory("ada", key) is None

    async def test_update_keeps_what_is_left_out(
        self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], face: str
    ) -> None:
        key = await service.save_memory("ada", TEA, "preferences", session_id="s-1", topic="drinks")
        await use(tools[UPDATE], face, memory_id=key, content="Ada drinks cocoa")
        memory = await service.get_memory("ada", key)
        assert memory is not None
        kept = (memory.content, memory.memory_type, memory.topic, memory.value["session_id"])
        assert kept == ("Ada drinks cocoa", "preferences", "drinks", "s-1")

    async def test_update_moves_to_another_type(
        self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], face: str
    ) -> None:
        key = await service.save_memory("ada", TEA, "preferences")
        await use(tools[UPDATE], face, memory_id=key, content="Serve tea", memory_type="instructions", topic="service")
        memory = await service.get_memory("ada", key)
        assert memory is not None
        assert (memory.memory_category, memory.topic) == ("procedural", "service")
        assert (await service.count_memories("ada"))["total"] == 1
        await use(tools[UPDATE], face, memory_id=key, content="Serve tea", category="episodic")
        assert (await service.count_memories("ada"))["episodic"] == 1

    @pytest.mark.parametrize("key", ["missing", "0" * 32, "3f2b8c1e"])
    async def test_an_unknown_id_is_not_found(
        self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], key: str, face: str
    ) -> None:
        await service.save_memory("ada", TEA)
        reply = await use(tools[UPDATE], face, memory_id=key, content="x")
        assert reply == f"✗ Failed to update memory (id: {key} not found)"
        assert await use(tools[DELETE], face, memory_id=key) == f"✗ Failed to delete memory (id: {key} not found)"
        assert (await service.count_memories("ada"))["total"] == 1

    @pytest.mark.parametrize("how", ["forgotten", "deleted"])
    async def test_regression_what_can_be_restored_is_no_memory_to_delete(self, how: str, face: str) -> None:
        """A memory that was forgotten was destroyed for good, with its earlier texts."""
        with open_store("memory://", embeddings=None) as store:
            service = AgentMemoryStoreService(store)
            life, tools = MemoryLifecycle(service), tools_of(service, user_id="ada")
            key = await service.save_memory("ada", TEA, memory_id="known")
            await service.update_memory("ada", key, f"{TEA} at five")
            if how == "forgotten":
                await life.forget("ada", ForgettingPolicy(max_memories={"all": 0}))
            else:
                await service.delete_memory("ada", key)
            assert await use(tools[DELETE], face, memory_id=key) == "✗ Failed to delete memory (id: known not found)"
            assert (await life.restore("ada", [key])).restored == [key]
            assert [one.content for one in (await service.why("ada", key)).earlier] == [TEA]

    async def test_list_pages(self, service: AgentMemoryStoreService, tools: dict[str, BaseTool], face: str) -> None:
        for number in range(45):
            await service.save_memory("ada", f"tea no. {number}", "facts" if number < 3 else "skill")
        seen: list[str] = []
        for page, size in ((1, 20), (2, 20), (3, 5), (4, 0)):
            heading, *lines = (await use(tools[LIST], face, page=page)).splitlines()
            assert heading == f"Page {page} of 3, 45 memories in all:"
            assert [int(line.split(".")[0]) for line in lines] == list(range(len(seen) + 1, len(seen) + size + 1))
            seen += [line.rsplit(": ")[-1] for line in lines]
        assert sorted(seen) == sorted(f"tea no. {number}" for number in range(45))
        assert (await use(tools[LIST], face, memory_type="facts")).startswith("Page 1 of 1, 3 memories in all:")
        assert (await use(tools[LIST], face, category="procedural")).startswith("Page 1 of 3, 42 memories in all:")
        assert await use(tools[LIST], face, category="episodic") == "No memories stored."


INVALID: list[tuple[str, dict[str, Any]]] = [
    (SAVE, {}),
    (SAVE, {"content": None}),
    (SAVE, {"content": 42}),
    (SAVE, {"content": ["a", "b"]}),
    (SAVE, {"content": ""}),
    (SAVE, {"content": " \n\t "}),
    (SAVE, {"content": "a\x00b"}),
    (SAVE, {"content": "a\ud800b"}),
    (SAVE, {"content": "x" * 8193}),
    (SAVE, {"content": TEA, "memory_type": "recipes"}),
    (SAVE, {"content": TEA, "memory_type": 7}),
    (SAVE, {"content": TEA, "category": "culinary"}),
    (SAVE, {"content": TEA, "topic": "x" * 513}),
    (SAVE, {"content": TEA, "topic": 7}),
    (RECALL, {}),
    (RECALL, {"query": None}),
    (RECALL, {"query": "tea", "max_results": 0}),
    (RECALL, {"query": "tea", "max_results": -1}),
    (RECALL, {"query": "tea", "max_results": 51}),
    (RECALL, {"query": "tea", "max_results": "many"}),
    (RECALL, {"query": "tea", "memory_type": "recipes"}),
    (RECALL, {"query": "tea", "category": "culinary"}),
    (UPDATE, {"content": TEA}),
    (UPDATE, {"memory_id": "known"}),
    (UPDATE, {"memory_id": "known", "content": ""}),
    (UPDATE, {"memory_id": "known", "content": "x" * 8193}),
    (UPDATE, {"memory_id": "known", "content": TEA, "memory_type": "recipes"}),
    (UPDATE, {"memory_id": "known", "content": TEA, "category": "culinary"}),
    (UPDATE, {"memory_id": "", "content": TEA}),
    (UPDATE, {"memory_id": "a b", "content": TEA}),
    (UPDATE, {"memory_id": "x" * 256, "content": TEA}),
    (DELETE, {}),
    (DELETE, {"memory_id": None}),
    (DELETE, {"memory_id": ["known"]}),
    (DELETE, {"memory_id": ""}),
    (DELETE, {"memory_id": "<known>"}),
    (DELETE, {"memory_id": "known\nknown"}),
    (LIST, {"page": 0}),
    (LIST, {"page": 10_001}),
    (LIST, {"page": "first"}),
    (LIST, {"memory_type": "recipes"}),
    (LIST, {"category": "culinary"}),
]


class TestInvalidArguments:
    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize(("name", "arguments"), INVALID, ids=range(len(INVALID)))
    async def test_are_answered_and_change_nothing(
        self, mine: AgentMemoryStoreService, name: str, arguments: dict[str, Any], face: str
    ) -> None:
        await mine.save_memory("ada", TEA, memory_id="known")
        before = await mine.get_memory("ada", "known")
        reply = await use(tools_of(mine, user_id="ada")[name], face, **arguments)
        assert re.match(r"✗ \S", reply)
        assert len(reply) < 400
        assert await mine.get_memory("ada", "known") == before
        assert (await mine.count_memories("ada"))["total"] == 1

    @pytest.mark.parametrize(("name", "arguments"), INVALID, ids=range(len(INVALID)))
    def test_as_a_tool_call(self, mine: AgentMemoryStoreService, name: str, arguments: dict[str, Any]) -> None:
        call = {"name": name, "args": arguments, "id": "1", "type": "tool_call"}
        reply = tools_of(mine, user_id="ada")[name].invoke(call)
        assert isinstance(reply, ToolMessage)
        assert re.match(r"✗ \S", reply.text)

    @pytest.mark.parametrize("face", FACES)
    async def test_in_an_agent(self, mine: AgentMemoryStoreService, face: str) -> None:
        turns = [call_tool(name, **arguments) for name, arguments in INVALID if "\ud800" not in repr(arguments)]
        middleware = patient_memory(mine, user_id="ada", include_tools=TOOLS)
        agent = make_agent(ScriptedChatModel(turns=[*turns, "Done."]), middleware=[middleware])
        result = await ask(agent, face, "tea", {"recursion_limit": 200})
        assert result["messages"][-1].text == "Done."
        bad = [reply for reply in replies(result) if not reply.startswith("✗")]
        assert (len(replies(result)), bad) == (len(turns), [])

    def test_a_bare_text_is_answered(self, mine: AgentMemoryStoreService) -> None:
        for name in TOOLS[:4]:
            assert tools_of(mine, user_id="ada")[name].invoke("tea").startswith("✗")


@pytest.mark.parametrize("face", FACES)
class TestFailures:
    async def test_a_closed_store_is_not_a_success(self, sqlite_url: str, face: str) -> None:
        with open_store(sqlite_url, embeddings=None) as store:
            tools = tools_of(AgentMemoryStoreService(store), user_id="ada")
        for name, verb, arguments in (
            (SAVE, "save memory", {"content": TEA}),
            (RECALL, "recall memories", {"query": "tea"}),
            (UPDATE, "update memory", {"memory_id": "x", "content": TEA}),
            (DELETE, "delete memory", {"memory_id": "x"}),
            (LIST, "list memories", {}),
        ):
            answer = await use(tools[name], face, **arguments)
            assert answer == f"✗ Failed to {verb}: the memory store does not answer"  # no path or address of it

    async def test_a_write_that_is_not_confirmed_is_not_a_success(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sqlite_url: str, face: str
    ) -> None:
        with (
            open_store(sqlite_url, embeddings=None) as store,
            closing(sqlite3.connect(tmp_path / "memory.db")) as other,
        ):
            save = tools_of(AgentMemoryStoreService(store), user_id="ada")[SAVE]
            assert (await use(save, face, content="Ada was here before")).startswith("✓")
            monkeypatch.setattr(tools_module, "WRITE_TIMEOUT_S", 1.0)
            other.execute("BEGIN IMMEDIATE")
            reply = await use(save, face, content=TEA)
            other.rollback()
        assert reply.startswith("✗ Not confirmed: could not save memory; the store did not answer in time")

    async def test_without_service_and_store(self, caplog: pytest.LogCaptureFixture, face: str) -> None:
        """Guards that the model is told in words for a model, and the developer in the log."""
        reply = await use(tools_of(None, user_id="ada")[SAVE], face, content=TEA)
        assert reply == "✗ Failed to save memory: memory does not work at the moment"
        assert "There is no memory to use: pass store=" in caplog.text

    async def test_without_user(self, mine: AgentMemoryStoreService, face: str) -> None:
        for name, arguments in ((SAVE, {"content": TEA}), (RECALL, {"query": "tea"}), (LIST, {})):
            reply = await use(tools_of(mine)[name], face, **arguments)
            assert reply.startswith("✗ Memory is off in this conversation")
            assert "user_id" not in reply


@pytest.mark.parametrize("face", FACES)
class TestWhoseMemory:
    async def test_the_user_of_the_configuration(self, service: AgentMemoryStoreService, face: str) -> None:
        tools = tools_of(service)
        reply = await use(tools[SAVE], face, {"configurable": {"user_id": "ada", "thread_id": 7}}, content=TEA)
        memory = await service.get_memory("ada", saved_id(reply))
        assert memory is not None
        assert (memory.value["session_id"], memory.value["source"]["thread_id"]) == ("7", "7")
        assert TEA in await use(tools[RECALL], face, {"configurable": {"user_id": "ada"}}, query="tea")
        other = await use(tools[RECALL], face, {"configurable": {"user_id": "bob"}}, query="tea")
        assert other == "No relevant memories found."

    async def test_a_fixed_user_wins_over_the_configuration(self, mine: AgentMemoryStoreService, face: str) -> None:
        tools = tools_of(mine, user_id="ada", session_id="s-1")
        reply = await use(tools[SAVE], face, {"configurable": {"user_id": "bob", "thread_id": "t"}}, content=TEA)
        memory = await mine.get_memory("ada", saved_id(reply))
        assert memory is not None
        assert memory.value["session_id"] == "s-1"
        assert (await mine.count_memories("bob"))["total"] == 0

    @pytest.mark.parametrize("user", ["", 7.5, True, ["ada"], "a\x00b", "\ud800"], ids=repr)
    async def test_what_is_no_user_is_refused(self, mine: AgentMemoryStoreService, user: Any, face: str) -> None:
        reply = await use(tools_of(mine)[SAVE], face, {"configurable": {"user_id": user}}, content=TEA)
        assert re.match(r"✗ \S", reply)

    @pytest.mark.parametrize("how", ["tool", "tool call", "agent"])
    @pytest.mark.parametrize("name", TOOLS)
    async def test_forged_arguments_have_no_effect(
        self, mine: AgentMemoryStoreService, name: str, how: str, face: str
    ) -> None:
        await mine.save_memory("ada", TEA, memory_id="known")
        theirs = await mine.save_memory("bob", "Bob drinks tea", memory_id="secret")
        before = await mine.get_memory("bob", theirs)
        bob = {"user_id": "bob"}
        forged: dict[str, Any] = {
            **bob,
            "memory_owner": "bob",
            "session_id": "forged",
            "memory_service": None,
            "config": {"configurable": bob},
            "runtime": {"context": bob, "config": {"configurable": bob}, "state": {"memory_owner": "bob"}},
        }
        real = {"content": "Ada drinks cocoa", "query": "drinks", "memory_id": "secret"}
        arguments = {key: value for key, value in real.items() if key in ARGUMENTS[name][0]} | forged
        reply = await self.forge(mine, name, arguments, how, face)
        assert "Bob" not in reply
        assert reply.startswith("✗") == (name in {UPDATE, DELETE})
        assert await mine.get_memory("bob", theirs) == before
        assert (await mine.count_memories("bob"))["total"] == 1
        listed, total = await mine.list_memories("ada")
        assert total == (2 if name == SAVE else 1)
        assert "forged" not in [memory.value["session_id"] for memory in listed]

    async def forge(
        self, service: AgentMemoryStoreService, name: str, arguments: dict[str, Any], how: str, face: str
    ) -> str:
        config: Any = {"configurable": {"user_id": "ada"}}
        if how == "agent":
            model = ScriptedChatModel(turns=[call_tool(name, **arguments), "Done."])
            agent = make_agent(model, middleware=[patient_memory(service, include_tools=TOOLS)])
            return replies(await ask(agent, face, "Hi", config))[0]
        tool = tools_of(service)[name]
        if how == "tool":
            return await use(tool, face, config, **arguments)
        call = {"name": name, "args": arguments, "id": "1", "type": "tool_call"}
        reply = tool.invoke(call, config) if face == "sync" else await tool.ainvoke(call, config)
        return reply.text


class TestStoreOfTheRun:
    @pytest.mark.parametrize("face", FACES)
    async def test_tools_without_service_use_the_agents_store(self, any_store: BaseStore, face: str) -> None:
        turns = [call_tool(SAVE, content=TEA), call_tool(RECALL, query="tea"), "Done."]
        agent = make_agent(ScriptedChatModel(turns=turns), store=any_store, tools=get_memory_tools(None))
        result = await ask(agent, face, "Hi", {"configurable": {"user_id": "ada"}})
        assert TEA in replies(result)[1]
        assert AgentMemoryStoreService(any_store).sync.count_memories("ada")["total"] == 1

    def test_recall_by_meaning(self) -> None:
        with open_store("memory://", embeddings=HashingEmbeddings()) as store:
            service = remember(store, {"ada": [TEA]})
            assert TEA in tools_of(service, user_id="ada")[RECALL].invoke({"query": "drinking"})


class TestInstructions:
    @pytest.mark.parametrize("names", [None, TOOLS, [SAVE], [LIST, RECALL], [UPDATE, DELETE, "unknown"]])
    def test_name_the_active_tools_only(self, names: list[str] | None) -> None:
        text = generate_memory_tools_system_instructions(names)
        active = TOOLS[:4] if names is None else [name for name in TOOLS if name in names]
        assert text.startswith("## Memory Tools Usage (CoALA Architecture)\n")
        assert re.findall(r"^#### (\w+)$", text, re.MULTILINE) == active
        assert ("Mandatory save triggers" in text) == (SAVE in active)
        assert format_memory_types_for_description() in text
        assert "never announce" in text

    @pytest.mark.parametrize("names", [[], ["unknown"], ["save"]])
    def test_without_tools_there_is_nothing_to_say(self, names: list[str]) -> None:
        assert generate_memory_tools_system_instructions(names) == ""


def test_the_documents_import_path_works() -> None:
    from inference_core import get_memory_tools as tools
    from inference_core.agents.tools.memory_tools import (
        generate_memory_tools_system_instructions,
        get_memory_tools,
    )

    assert get_memory_tools is tools
    assert "save_memory_store" in generate_memory_tools_system_instructions()
