"""Nothing of a user's memory, and no user id, leaves with a stream of an agent's state, in whatever mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from operator import add
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
from agent_support import FACES, as_node, ask, make_agent, patient_memory, system_text
from langchain.agents import AgentState
from langchain.agents.middleware.types import AgentMiddleware, PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Send, interrupt

from inference_core import (
    MEMORY_STATE_KEYS,
    AgentMemoryStoreService,
    CaptureMiddleware,
    FlushToLongTerm,
    MemoryContext,
    MemoryReviewMiddleware,
    MemoryStore,
    RuleExtractor,
    ShortTermMemoryMiddleware,
    StaticMemory,
    VectorMemory,
    open_store,
    without_memory,
)
from inference_core.agents.checkpoints import open_checkpointer
from inference_core.agents.streams import RunObserver
from inference_core.errors import InvalidInput
from inference_core.ingestion.formats.chat_exports import OTHERS, thread_entries
from inference_core.outbox.outbox import Partition
from inference_core.stores.backend import PageRequest
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

USER = "ada@example.com"
CANARIES = ("CANARYRULE", "CANARYFACT", "CANARYBLOCK")
SECRETS = (*CANARIES, USER)
THREAD = {"configurable": {"thread_id": "1"}}
ASKED = {"messages": [("user", "Which falcons does the barn have?")]}
HOLDS_TEXT = {"memory_context", "short_term_recalled"}
"""The only names under which the state holds memories. None holds user ids."""
MODES = ["values", "updates", "tasks", "checkpoints", "debug", "messages", "custom"]


@tool
def look(place: str) -> str:
    """Looks at a place."""
    return "Nothing to see."


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with open_store("memory://", embeddings=None) as opened:
        service = AgentMemoryStoreService(opened).sync
        service.save_memory(USER, "Answer about falcons with CANARYRULE", "instructions")
        service.save_memory(USER, "The barn has falcons called CANARYFACT", "facts")
        yield opened


def full_agent(store: MemoryStore, saver: Any = None, **options: Any) -> tuple[Any, ScriptedChatModel]:
    """An agent with all middleware of the package, which calls a tool in each turn."""
    turn = [call_tool("look", place="barn"), "Done."]
    model = ScriptedChatModel(turns=turn * 2)
    block = StaticMemory(["The barn and its falcons are CANARYBLOCK"])
    middleware = [
        patient_memory(profile=True, placement="last_user"),
        CaptureMiddleware(RuleExtractor(), works=False),
        MemoryReviewMiddleware(),
        ShortTermMemoryMiddleware(FlushToLongTerm([block, VectorMemory()], into_system_prompt=True)),
    ]
    options = {"context_schema": MemoryContext, "checkpointer": saver} | options
    return make_agent(model, store=store, tools=[look], middleware=middleware, **options), model


def leaks(found: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Where in ``found`` a secret stands: the names that lead there."""
    if isinstance(found, dict):
        return {one for name, value in found.items() for one in leaks(value, (*path, str(name)))}
    if isinstance(found, list | tuple):
        return {one for value in found for one in leaks(value, path)}
    if isinstance(found, Command | BaseMessage):
        return leaks(vars(found), path)
    text = found if isinstance(found, str) else repr(found)
    return {path} if any(secret in text for secret in SECRETS) else set()


def names_in(found: Any) -> set[str]:
    """All names in ``found`` outside of private state."""
    if isinstance(found, dict):
        return set(found).union(*(names_in(value) for name, value in found.items() if name not in MEMORY_STATE_KEYS))
    return set[str]().union(*map(names_in, found)) if isinstance(found, list | tuple) else set()


async def streamed(agent: Any, face: str, **options: Any) -> list[Any]:
    """What two turns of a thread stream."""
    chunks: list[Any] = []
    for _ in range(2):
        if face == "sync":
            chunks += agent.stream(ASKED, THREAD, context={"user_id": USER}, **options)
        else:
            chunks += [one async for one in agent.astream(ASKED, THREAD, context={"user_id": USER}, **options)]
    return chunks


@pytest.mark.parametrize(
    ("face", "is_kept", "is_node", "form"),
    [
        ("sync", True, False, {}),
        ("async", True, False, {"version": "v2"}),
        ("async", False, False, {"subgraphs": True}),
        ("sync", True, True, {"subgraphs": True}),
        ("async", True, True, {}),
    ],
    ids=["checkpointer", "v2", "none", "subgraph", "node"],
)
async def test_no_mode_shows_memory(
    store: MemoryStore, face: str, is_kept: bool, is_node: bool, form: dict[str, Any]
) -> None:
    agent, model = full_agent(store, InMemorySaver() if is_kept and not is_node else None)
    chunks = await streamed(as_node(agent, store) if is_node else agent, face, stream_mode=MODES, **form)
    modes = {one["type"] if form.get("version") else one[-2] for one in chunks}
    assert modes == {one for one in MODES if one != "custom" and (is_kept or one != "checkpoints")}
    prompts = "".join(request.text for sent in model.requests for request in sent)
    assert all(one in prompts for one in CANARIES)
    shown = leaks(chunks)
    assert {next(name for name in path if name in MEMORY_STATE_KEYS) for path in shown} == (
        set() if is_node and "subgraphs" not in form else HOLDS_TEXT
    )
    bare = [one["data"] if form.get("version") else one[-1] for one in chunks]  # as with a single mode
    for given in (chunks, bare):
        clean = [without_memory(one) for one in given]
        assert [type(one) for one in clean] == [type(one) for one in given]
        assert leaks(clean) == set()
        assert names_in(clean) == names_in(given) - MEMORY_STATE_KEYS


@pytest.mark.parametrize("is_named_in_config", [True, False])
async def test_events_show_no_memory(store: MemoryStore, is_named_in_config: bool) -> None:
    """Events also have the prompts, and with the checkpoints the configuration, which may name the user."""
    agent, _ = full_agent(store, InMemorySaver())
    named: Any = {"configurable": THREAD["configurable"] | ({"user_id": USER} if is_named_in_config else {})}
    options: Any = {"context": {"user_id": USER}, "version": "v2", "stream_mode": ["debug", "messages"]}
    events = [one for _ in range(2) for one in [one async for one in agent.astream_events(ASKED, named, **options)]]
    assert len(leaks(events)) > 3
    clean = [without_memory(one) for one in events]
    assert leaks(clean) == set()
    assert {one["event"] for one in clean} >= {"on_chat_model_end", "on_tool_start", "on_chain_end"}
    assert {"place": "barn"} in [one["data"].get("input") for one in clean]
    assert "Done." in repr(clean)


def test_the_checkpointer_and_its_history_hold_none(store: MemoryStore) -> None:
    saver = InMemorySaver()
    agent, _ = full_agent(store, saver)
    for _ in range(2):
        agent.invoke(ASKED, THREAD, context={"user_id": USER})
    assert not any(secret.encode() in repr([saver.storage, saver.blobs, saver.writes]).encode() for secret in SECRETS)
    history = list(agent.get_state_history(THREAD))
    assert len(history) > 10
    assert leaks([list(one) for one in history]) == set()
    assert "captured" in history[0].values
    assert not MEMORY_STATE_KEYS.intersection(without_memory(history[0]).values)


def test_the_constant_names_all_private_state_of_the_middlewares() -> None:
    def parts(kind: type) -> Iterator[Any]:
        yield kind
        for one in kind.__subclasses__():
            yield from parts(one)

    full = [one for one in parts(AgentMiddleware) if one.__module__.startswith("inference_core.")]
    private = {
        name
        for one in full
        for name, hint in get_type_hints(one.state_schema, include_extras=True).items()
        if name not in AgentState.__annotations__ and PrivateStateAttr in _marks(hint)
    }
    assert private == MEMORY_STATE_KEYS


def _marks(hint: Any) -> list[Any]:
    """What annotates a field of a TypedDict."""
    while not hasattr(hint, "__metadata__"):
        if not hasattr(hint, "__args__"):
            return []
        (hint,) = hint.__args__[:1]
    return list(hint.__metadata__)


def test_any_form_of_state_is_cleaned_and_what_is_the_applications_stays() -> None:
    told = {"memory_context": {"block": "x"}, "captured": {"user": "u", "id": "1"}, "messages": [HumanMessage("Hi")]}
    rest = {"messages": told["messages"]}
    for given, expected in (
        (told, rest),
        (("values", told), ("values", rest)),
        ((("agent:1",), "values", told), (("agent:1",), "values", rest)),
        ({"result": list(told.items())}, {"result": list(rest.items())}),
        (Command(update=told, goto=Send("tools", told)), Command(update=rest, goto=Send("tools", rest))),
        ({"captured": 20.0, "memory": {"status": "off"}}, {"captured": 20.0, "memory": {"status": "off"}}),
        ({"config": {"configurable": {"user_id": "u", "a": 1}}}, {"config": {"configurable": {"a": 1}}}),
        (((AIMessage("Hi"), {"user_id": "u", "a": 1})), ((AIMessage("Hi"), {"a": 1}))),
        ({"event": "sale", "data": "sold"}, {"event": "sale", "data": "sold"}),
        ("text", "text"),
        (None, None),
    ):
        before = deepcopy(given)
        assert without_memory(given) == expected
        assert given == before


@pytest.mark.parametrize("face", FACES)
async def test_the_result_tells_of_memory_in_one_place(store: MemoryStore, face: str) -> None:
    agent, _ = full_agent(store, InMemorySaver())
    for user, status in ((USER, "lexical"), (None, "closed")):
        result = await ask(agent, face, ASKED, THREAD, context={"user_id": user} if user else None)
        told = result["memory"]
        assert told == {
            "status": result["memory_status"],
            "reason": result["memory_status_reason"],
            "recalled": result["memories_recalled"],
            "latency_ms": result["memory_recall_latency_ms"],
            "types": result["memory_types_recalled"],
            "categories": result["memory_categories_recalled"],
        }
        assert (told["status"], told["recalled"]) == (status, 2 if user else 0)


def test_a_response_has_the_state_that_invoke_returns(store: MemoryStore) -> None:
    agent, _ = full_agent(store, InMemorySaver())
    observer = RunObserver(None, None)
    for mode, part in agent.stream(ASKED, THREAD, context={"user_id": USER}, stream_mode=observer.modes):
        observer.note(mode, part)
    assert observer.state.keys() == agent.invoke(ASKED, THREAD, context={"user_id": USER}).keys()
    assert leaks(dict(observer.state)) == set()


class Owning(AgentState[Any]):
    memory: Annotated[list[str], add]


async def test_a_state_of_the_application_with_that_name_stays_its_own(store: MemoryStore) -> None:
    agent, _ = full_agent(store, InMemorySaver(), state_schema=Owning)
    result = await ask(agent, "async", {**ASKED, "memory": ["own"]}, THREAD, context={"user_id": USER})
    assert (result["memory"], result["memory_status"]) == (["own"], "lexical")


def profile_in(request: Any) -> str:
    return system_text(request).partition("<user_profile>")[2].partition("</user_profile>")[0]


def test_another_process_goes_on_with_the_same_profile(tmp_path: Path) -> None:
    """Also after a memory in it was edited: the earlier text is among the memory's versions."""
    clock = FrozenClock(datetime.now(UTC))  # the database removes by its own clock what has ended
    told: list[str] = []
    blocks: list[str] = []
    rule = ""
    steps = (None, "Answer about falcons in French", "Answer about falcons in Dutch", None)
    for step in steps:
        with (
            open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store,
            closing(open_checkpointer(f"sqlite:///{tmp_path / 'c.db'}")) as saver,  # pyright: ignore[reportArgumentType]
        ):
            service = AgentMemoryStoreService(store, clock=clock)
            if not told:
                rule = service.sync.save_memory(USER, "Answer about falcons with CANARYRULE", "instructions")
                service.sync.save_memory(USER, "Likes tables", "preferences")
            if step:
                service.sync.update_memory(USER, rule, step)
            model = ScriptedChatModel(turns=["Done."])
            memory = patient_memory(service, profile=True, placement="last_user", user_id=USER)
            make_agent(model, middleware=[memory], checkpointer=saver).invoke(ASKED, THREAD)
            told.append(profile_in(model.requests[0]))
            blocks.append(model.requests[0][-1].text)
        clock.advance(timedelta(days=4))  # the text that the second turn replaces is kept for 7 days
    assert "CANARYRULE" in told[0]
    assert told[0] == told[1] == told[2]
    assert "French" in blocks[1]
    assert "in place of" in blocks[1]
    assert "Dutch" in blocks[2]
    assert "Dutch" in told[3]  # written anew
    assert "CANARYRULE" not in blocks[3] + told[3]
    assert not any(b"CANARYRULE" in file.read_bytes() for file in tmp_path.glob("c.db*"))


def test_an_erased_text_is_nowhere_in_the_thread(tmp_path: Path) -> None:
    with (
        open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=None) as store,
        closing(open_checkpointer(f"sqlite:///{tmp_path / 'c.db'}")) as saver,  # pyright: ignore[reportArgumentType]
    ):
        service = AgentMemoryStoreService(store).sync
        rule = service.save_memory(USER, "Answer about falcons with CANARYRULE", "instructions")
        agent, model = full_agent(store, saver)
        agent.invoke(ASKED, THREAD, context={"user_id": USER})
        service.delete_memory(USER, rule, erase=True)
        agent.invoke(ASKED, THREAD, context={"user_id": USER})
    assert ["CANARYRULE" in repr(request) for request in model.requests] == [True, True, False, False]
    assert not any(b"CANARYRULE" in file.read_bytes() for file in tmp_path.iterdir())


@tool
def confirm(question: str) -> str:
    """Asks the user."""
    return str(interrupt(question))


def aged(agent: Any, **old: Any) -> None:
    """Gives the thread the private state that an earlier version wrote: plain user ids, and a profile's text."""
    saver, config = agent.checkpointer, agent.get_state(THREAD).config
    kept = saver.get_tuple(config)
    kept.checkpoint["channel_values"] |= old
    saver.put(config, kept.checkpoint, kept.metadata, {name: kept.checkpoint["channel_versions"][name] for name in old})
    assert {name: agent.get_state(THREAD).values[name] for name in old} == old


def captured(store: MemoryStore, user: str) -> list[str]:
    """What the user said that waits in the outbox, the newest first."""
    rows = store.engine.backend.page(PageRequest([Partition(user).messages], limit=100))
    return [row.value["text"] for row in rows if row.value["role"] == "user"]


@pytest.mark.parametrize("user", [USER, "bob"])
@pytest.mark.parametrize("face", FACES)
async def test_a_thread_of_an_earlier_version_goes_on(store: MemoryStore, face: str, user: str) -> None:
    agent, model = full_agent(store, InMemorySaver())
    await ask(agent, face, "I live in Ghent", THREAD, context={"user_id": USER})
    values = agent.get_state(THREAD).values
    ((rule, version, cut),) = values["memory_profile"]["lines"]
    lines = [[rule, version, "procedural_memory", "  - CANARYRULE", cut]]
    aged(
        agent,
        captured={"user": USER, "id": values["messages"][-1].id},
        memory_owner=USER,
        memory_profile={"owner": USER, "lines": lines},
        memory_review={"owner": USER},
        short_term_owner=USER,
        short_term_user=USER,
    )
    result = await ask(agent, face, ASKED, THREAD, context={"user_id": user})
    assert result["memory_status"] == "lexical"
    first, *_, last = map(profile_in, model.requests)
    assert (last == first) == ("CANARYRULE" in last) == (user == USER)
    assert captured(store, user)[0] == ASKED["messages"][0][1]
    assert captured(store, USER)[-1] == "I live in Ghent"
    assert len(captured(store, USER) + captured(store, "bob")) == 2
    values = agent.get_state(THREAD).values
    thread_owner = values.pop("short_term_owner")
    assert thread_owner == USER  # the first user's, until that one comes back
    assert leaks(values) == set()


@pytest.mark.parametrize("is_old", [True, False], ids=["earlier version", "this version"])
def test_an_import_of_threads_knows_whose_they_are(store: MemoryStore, tmp_path: Path, is_old: bool) -> None:
    path = tmp_path / "c.db"
    with closing(open_checkpointer(f"sqlite:///{path}")) as saver:  # pyright: ignore[reportArgumentType]
        agent, _ = full_agent(store, saver)
        agent.invoke(ASKED, THREAD, context={"user_id": USER})
        if is_old:
            config = agent.get_state(THREAD).config
            kept = saver.get_tuple(config)
            kept.checkpoint["channel_values"]["memory_owner"] = USER
            saver.put(config, kept.checkpoint, kept.metadata, {})
    skipped: Counter[str] = Counter()
    mine = list(thread_entries(str(path), USER, [], skipped))
    mark, *said = [fields["role"] for _, fields in mine]
    assert mark == "system"  # the thread held text from outside
    assert said == ["user", "assistant", "tool", "assistant"]
    assert list(thread_entries(str(path), "bob", [], skipped)) == []
    assert skipped == {OTHERS: 1}
    with pytest.raises(InvalidInput, match="is another user's"):
        list(thread_entries(str(path), "bob", ["1"], skipped))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("is_old", [True, False], ids=["earlier version", "this version"])
@pytest.mark.parametrize("by", [USER, "bob", "who saw the mark", None])
async def test_only_its_user_resumes_a_run(store: MemoryStore, face: str, is_old: bool, by: str | None) -> None:
    model = ScriptedChatModel(turns=[call_tool("confirm", question="?"), call_tool("list_memories_store"), "Done."])
    memory = patient_memory(include_tools=["list_memories_store"])
    options: Any = {"context_schema": MemoryContext, "checkpointer": InMemorySaver()}
    agent = make_agent(model, store=store, tools=[confirm], middleware=[memory], **options)
    await ask(agent, face, ASKED, THREAD, context={"user_id": USER})
    if is_old:
        aged(agent, memory_owner=USER)
    elif by == "who saw the mark":
        by = agent.get_state(THREAD).values["memory_owner"]
    result = await ask(agent, face, Command(resume="yes"), THREAD, context={"user_id": by} if by else None)
    assert result["memory_status"] == ("lexical" if by == USER else "closed")
    assert ("CANARYFACT" in repr(model.requests[1:])) == (by == USER)
