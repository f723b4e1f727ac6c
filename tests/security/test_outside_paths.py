"""Ways on which the trace of a text from outside was lost: other users, nodes, trimmed and plain histories, imports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage, messages_to_dict
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from mcp import Client
from outside_support import FOOD, HOME, RULE, Play, Stage, calls, page, saves
from server_support import served

from inference_core import (
    MemoryContext,
    MemoryMiddleware,
    ShortTermMemoryMiddleware,
    Summarize,
    Trim,
    get_memory_tools,
    open_store,
)
from inference_core.evaluation.formats import load_transcript
from inference_core.ingestion.formats.transcripts import format_of
from inference_core.ingestion.verbatim import hand_over, ingest
from inference_core.server.mcp import Caller, MemoryServer
from inference_core.testing import ScriptedChatModel, call_tool

TOLD: Final = f"The page says: {RULE}"
GO_ON: Final = [HumanMessage("Thanks, go on.")]
PLAY: Final = Play("path", [HumanMessage("What does the page say?")])


@pytest.fixture
def stage(*, full: bool) -> Iterator[Stage]:
    with open_store("memory://", embeddings=None) as store:
        yield Stage(store, full)


def fetch() -> StructuredTool:
    return StructuredTool.from_function(lambda: RULE, name="fetch", description="Fetches.")


# Threads of several users


ORDERS: Final = {
    "another user began": [("mallory", f"{RULE}."), ("", "Hello, it is Ada.")],
    "another user came in between": [("", "Hello."), ("mallory", f"{RULE}."), ("", "Go on.")],
    "two others": [("bob", "Hello."), ("mallory", f"{RULE}."), ("", "Go on.")],
    "another user said yes": [("", "Hello."), ("", "What is new?"), ("mallory", "Yes"), ("", "Go on.")],
}


@pytest.mark.parametrize("order", ORDERS)
def test_another_users_words_in_a_thread_are_not_the_users(stage: Stage, order: str) -> None:
    """Guards group chats with a checkpointer: only the runs say who speaks."""
    stage.begin(PLAY)
    *before, (_, last) = ORDERS[order]
    asks = f"Remember “{RULE}”?" if order.endswith("yes") else "Hm."
    for user, text in before:
        stage.run(stage.acting, [HumanMessage(text)], asks, user=user or None)
    stage.run(stage.acting, [HumanMessage(last)], *stage.turns())
    assert stage.faults(PLAY) == []


@pytest.mark.parametrize("order", ORDERS)
def test_another_users_words_are_not_captured_as_the_users(stage: Stage, order: str) -> None:
    """Guards capture in group chats: also what the assistant repeats of the others."""
    stage.begin(PLAY)
    *before, (_, last) = ORDERS[order]
    for user, text in before:
        stage.run(stage.captured, [HumanMessage(text)], "Hm.", user=user or None)
    stage.run(stage.captured, [HumanMessage(last)], RULE)
    stage.worker.drain()
    assert stage.faults(PLAY) == []


def test_names_tell_users_apart_without_a_checkpointer(stage: Stage) -> None:
    """Guards group chats whose whole history is passed each time."""
    said = [HumanMessage(f"{RULE}.", name="mallory"), AIMessage("OK."), HumanMessage("Go on.", name="user0")]
    assert stage.by_tools(Play("names", said)) == []


# Agents as nodes, subagents, tools without the middleware


def node_of(agent: Any, stage: Stage, *, is_called: bool, is_kept: bool = True) -> Any:
    """A graph in which ``agent`` is a node, or is called by one; it forgets all messages before each run."""

    def trims(state: MessagesState) -> dict[str, Any]:
        held = state["messages"]
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), held[-1]]} if len(held) > 1 else {}

    def calls_agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": agent.invoke({"messages": state["messages"]}, context={"user_id": stage.user})["messages"]}

    graph: Any = StateGraph(MessagesState, context_schema=MemoryContext)
    graph.add_node("trims", trims)
    graph.add_node("agent", calls_agent if is_called else agent)
    graph.add_edge(START, "trims")
    graph.add_edge("trims", "agent")
    return graph.compile(checkpointer=InMemorySaver() if is_kept else None, store=stage.store)


@pytest.mark.parametrize("is_called", [True, False], ids=["called by a node", "a node"])
@pytest.mark.parametrize("is_kept", [True, False], ids=["checkpointer", "none"])
def test_an_agent_in_a_graph_that_trims_keeps_the_trace(stage: Stage, is_called: bool, is_kept: bool) -> None:
    """Guards agents as nodes: their own state is gone after each run, and the messages with the page too."""
    agent = stage.agent(MemoryMiddleware(recall_timeout=60), tools=[fetch()], is_kept=False)
    graph = node_of(agent, stage, is_called=is_called, is_kept=is_kept)
    stage.begin(PLAY)
    stage.run(graph, PLAY.said, call_tool("fetch"), TOLD)
    stage.run(graph, GO_ON, *stage.turns())
    assert stage.faults(PLAY) == []


@pytest.mark.parametrize("is_captured", [True, False], ids=["capture", "tools"])
def test_texts_alone_of_a_known_conversation_keep_the_trace(stage: Stage, is_captured: bool) -> None:
    """Guards chat back ends that store texts and pass them each time, with the same thread and no checkpointer."""
    memory = stage.capture if is_captured else MemoryMiddleware(recall_timeout=60)
    agent = stage.agent(memory, tools=[fetch()], is_kept=False)
    stage.begin(PLAY)
    stage.run(agent, PLAY.said, call_tool("fetch"), TOLD)
    history = [*PLAY.said, AIMessage(TOLD), *GO_ON]
    stage.run(agent, history, *([RULE] if is_captured else stage.turns()))
    stage.worker.drain()
    assert stage.faults(PLAY) == []


def test_texts_alone_of_an_unknown_conversation_prove_nothing(stage: Stage) -> None:
    """Guards the same back ends where this package has not seen the page: an assistant's text may repeat anything."""
    agent = stage.agent(MemoryMiddleware(recall_timeout=60), is_kept=False)
    stage.begin(PLAY)
    stage.run(agent, [*PLAY.said, AIMessage(TOLD), *GO_ON], *stage.turns())
    assert stage.faults(PLAY) == []


LEAVING: Final[dict[str, Callable[[Any], list[Any]]]] = {
    "the tool's messages": lambda held: [one for one in held if one.type == "tool" or one.tool_calls],
    "all messages": list,
    "all but the answer": lambda held: held[:-1],
}


def left(held: Sequence[Any], which: str) -> list[RemoveMessage]:
    found = LEAVING[which]([one for one in held if one.type in ("tool", "ai") or which.startswith("all")])
    return [RemoveMessage(id=one.id) for one in found]


@pytest.mark.parametrize("which", LEAVING)
@pytest.mark.parametrize("has_middleware", [True, False], ids=["middleware", "tools alone"])
def test_what_an_application_removes_has_still_spoken(stage: Stage, which: str, has_middleware: bool) -> None:
    """Guards the trace with and without the middleware."""
    user = stage.begin(PLAY)
    middleware = [MemoryMiddleware(recall_timeout=60)] if has_middleware else []
    tools = [fetch(), *([] if has_middleware else get_memory_tools(stage.service, user))]
    agent = stage.agent(*middleware, tools=tools)
    stage.run(agent, PLAY.said, call_tool("fetch"), TOLD)
    config = {"configurable": {"thread_id": stage.thread}}
    held = agent.get_state(config).values["messages"]
    agent.update_state(config, {"messages": left(held, which)})
    stage.run(agent, GO_ON, *stage.turns())
    assert stage.faults(PLAY) == []


def test_tools_alone_keep_the_trace_in_the_run_that_trims(stage: Stage) -> None:
    """Guards tools without the middleware: the page leaves within the run in which it came."""

    class Forgetful(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> Any:
            gone = [one for one in state["messages"] if one.type == "tool"]
            gone += [one for one in state["messages"] if one.type == "ai" and one.tool_calls]
            return {"messages": [RemoveMessage(id=one.id) for one in gone]}

    user = stage.begin(PLAY)
    noted = call_tool("save_memory_store", content="Reads pages", memory_type="facts")
    agent = stage.agent(Forgetful(), tools=[fetch(), *get_memory_tools(stage.service, user)])
    stage.run(agent, PLAY.said, calls(call_tool("fetch"), noted), *stage.turns())
    assert stage.faults(PLAY) == []


SHRINKING: Final[dict[str, Callable[[], Any]]] = {
    "LangChain's summaries": lambda: SummarizationMiddleware(
        ScriptedChatModel(turns=[RULE], record=False), trigger=("messages", 4), keep=("messages", 1)
    ),
    "own summaries": lambda: ShortTermMemoryMiddleware(
        Summarize(ScriptedChatModel(turns=[RULE], record=False)), max_tokens=60
    ),
    "trimming": lambda: ShortTermMemoryMiddleware(Trim(40), max_tokens=60),
    "flushing": lambda: ShortTermMemoryMiddleware(max_tokens=60),
}


@pytest.mark.parametrize("how", SHRINKING)
def test_what_was_trimmed_or_summarized_has_still_spoken(stage: Stage, how: str) -> None:
    """Guards the trace through all that makes a conversation shorter."""
    agent = stage.agent(SHRINKING[how](), MemoryMiddleware(recall_timeout=60), tools=[fetch()])
    stage.begin(PLAY)
    stage.run(agent, PLAY.said, call_tool("fetch"), TOLD)
    for number in range(4):
        stage.run(agent, [HumanMessage(f"And number {number}? {'Well. ' * 20}")], "Hm.")
    stage.run(agent, GO_ON, *stage.turns())
    assert stage.faults(PLAY) == []


def delegating(stage: Stage, inner: Any, *, thread: str | None = None) -> StructuredTool:
    """A tool that runs the agent ``inner`` with what it is told."""

    def work(task: str) -> str:
        config: Any = {"configurable": {"thread_id": thread}} if thread else {}
        given = {"messages": [HumanMessage(task)]}
        return str(inner.invoke(given, config, context={"user_id": stage.user})["messages"][-1].text)

    return StructuredTool.from_function(work, name="work", description="Lets an agent work.")


SUBAGENTS: Final = ["the page before", "the page in its task", "without the middleware outside", "a page of its own"]


@pytest.mark.parametrize("how", SUBAGENTS)
def test_a_subagents_user_is_an_agent(stage: Stage, how: str) -> None:
    """Guards subagents: what their calling agent writes is not the user's, and may repeat a page."""
    inner = stage.agent(MemoryMiddleware(recall_timeout=60), tools=[fetch()], is_kept=False)
    outer_memory = [] if how == SUBAGENTS[2] else [MemoryMiddleware(recall_timeout=60)]
    outer = stage.agent(*outer_memory, tools=[fetch(), delegating(stage, inner)])
    stage.begin(PLAY)
    before = [] if how == SUBAGENTS[3] else [call_tool("fetch")]
    own = [call_tool("fetch")] if how == SUBAGENTS[3] else []
    task = "Note what the page says." if how == SUBAGENTS[0] else f"{RULE}."
    stage.run(outer, PLAY.said, *before, call_tool("work", task=task), *own, *stage.turns(), "Done.")
    assert stage.faults(PLAY) == []


# Messages that an application hands over


def shaped(*blocks: Any) -> AIMessage:
    return AIMessage([*blocks, {"type": "text", "text": "I looked it up."}])


HANDED: Final[dict[str, list[list[Any]]]] = {
    "a tool's image": [[*PLAY.said, ToolMessage([{"type": "image", "url": "x"}], tool_call_id="t")], [AIMessage(RULE)]],
    "a tool without text": [[*PLAY.said, ToolMessage("", tool_call_id="t")], [AIMessage(RULE)]],
    "a provider's call": [[*PLAY.said, shaped({"type": "mcp_call", "output": RULE})], [AIMessage(RULE)]],
    "a call without text": [[*PLAY.said, AIMessage([{"type": "web_search_call", "id": "w"}])], [AIMessage(RULE)]],
    "a page": [[*PLAY.said, *page(RULE)], [AIMessage(RULE)]],
    "ok do that": [[*PLAY.said, *page(RULE), AIMessage(TOLD)], [HumanMessage("ok do that")], [AIMessage(RULE)]],
    "yes": [[*PLAY.said, *page(RULE), AIMessage(TOLD)], [HumanMessage("Yes")]],
    "another person": [[HumanMessage(f"{RULE}.", name="Mallory")], [AIMessage(RULE)]],
    "a framework's message": [[HumanMessage(RULE, additional_kwargs={"lc_source": "pinned_skill"})], [AIMessage(RULE)]],
    "a summary": [[HumanMessage(RULE, additional_kwargs={"lc_source": "summarization"})], [AIMessage(RULE)]],
    "a system message": [[*PLAY.said, SystemMessage(f"Context: {RULE}")], [AIMessage(RULE)]],
    "a file": [
        [HumanMessage([{"type": "text", "text": "See."}, {"type": "file", "base64": "QQ=="}])],
        [AIMessage(RULE)],
    ],
    "citations": [[*PLAY.said, AIMessage("So.", additional_kwargs={"citations": ["x"]})], [AIMessage(RULE)]],
}
GAPS: Final = {"none": [], "the same session": ["t"], "other sessions": ["a", "b", "c"]}
_AFTER_A_GAP: Final = {"the same session": "a page", "other sessions": "ok do that"}
"""What is handed over before each gap in the short run."""
_GAP: Final = 105
"""More messages than are kept of a user."""


@pytest.mark.parametrize("gap", GAPS)
def test_the_trace_of_messages_handed_over_does_not_end(stage: Stage, gap: str) -> None:
    """Guards `add_messages`: the trace is a session's, however much is said since, here or elsewhere."""
    found: list[str] = []
    for name, parts in HANDED.items():
        if gap != "none" and not stage.full and name != _AFTER_A_GAP[gap]:
            continue
        play = Play(name, [])
        user = stage.begin(play)
        for part in parts:
            stage.service.sync.add_messages(user, part, session_id=stage.thread)
            stage.worker.drain()
            sessions = GAPS[gap]
            for at, session in enumerate(sessions):
                where = stage.thread if session == "t" else session
                texts = [("user", f"Number {at} {number}") for number in range(_GAP // len(sessions) + 1)]
                stage.service.sync.add_messages(user, texts, session_id=where)
                stage.rules.drain()  # which find nothing in these
        faults = stage.faults(play)
        found += [f"{name}: {', '.join(faults)}"] if faults else []
    assert not found, "\n".join(found)


SENT: Final[dict[str, list[dict[str, str]]]] = {
    "a tool": [{"role": "tool", "content": RULE}],
    "a tool without text": [{"role": "tool", "content": ""}],
    "a pasted mail": [{"role": "user", "content": f"Fasse zusammen:\n\nLiebe Ada,\n{RULE}.\nBob"}],
    "ok do that": [{"role": "tool", "content": RULE}, {"role": "assistant", "content": TOLD}],
}


@pytest.mark.parametrize("name", SENT)
async def test_the_same_over_http(stage: Stage, name: str) -> None:
    """Guards POST /v1/messages, in several requests."""
    play = Play(name, [])
    user = stage.begin(play)
    parts = [[{"role": "user", "content": "Hello"}, *SENT[name]], [{"role": "user", "content": "ok do that"}]]
    async with served(stage.service).client(user) as client:
        for part in (*parts, [{"role": "assistant", "content": RULE}]):
            sent = {"messages": part, "session_id": stage.thread}
            assert (await client.post("/v1/messages", json=sent)).status_code == 202
            stage.worker.drain()
    assert stage.faults(play) == []


async def test_nothing_over_mcp_is_the_users(stage: Stage) -> None:
    """Guards MCP: a client's model has no proof of what its user said."""
    user = stage.begin(PLAY)
    async with Client(MemoryServer(stage.service, lambda: Caller(user))) as client:
        for call in (*saves(PLAY.says), *saves([f"Remember “{RULE}”? Yes"])):
            one = call.tool_calls[0]
            await client.call_tool("save_memory", one["args"])
        for key in stage.seeds:
            await client.call_tool("update_memory", {"memory_id": key, "content": RULE})
            await client.call_tool("update_memory", {"memory_id": key, "content": RULE, "memory_type": "instructions"})
            await client.call_tool("delete_memory", {"memory_id": key})
    assert stage.faults(PLAY) == []
    assert HOME in stage.seeds.values()
    assert FOOD in stage.seeds.values()


# Conversations in files


def chatgpt(*messages: dict[str, Any]) -> dict[str, Any]:
    """A conversation in ChatGPT's export, whose last message is the assistant's repetition."""
    said = [*messages, of_gpt("assistant", RULE)]
    nodes = {
        str(at): {"id": str(at), "parent": str(at - 1) if at else None, "children": [str(at + 1)], "message": one}
        for at, one in enumerate(said)
    }
    return {"title": "Chat", "conversation_id": "c", "current_node": str(len(said) - 1), "mapping": nodes}


def of_gpt(role: str, *parts: Any, metadata: Any = None, kind: str = "text", **more: Any) -> dict[str, Any]:
    content = {"content_type": kind, "parts": list(parts)}
    made = {"author": {"role": role}, "content": content, "metadata": metadata or {}, "create_time": 1.7e9}
    return made | more


def claude(*messages: dict[str, Any]) -> dict[str, Any]:
    """A conversation in Claude's export, likewise."""
    said = [*messages, {"sender": "assistant", "text": RULE}]
    made = [{"uuid": str(at), "created_at": "2026-01-02T03:04:05Z"} | one for at, one in enumerate(said)]
    return {"uuid": "c", "name": "Chat", "chat_messages": made}


def openai(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [*messages, {"role": "assistant", "content": RULE}]


ASK: Final = "What does it say?"
TEXT: Final = {"type": "text", "text": ASK}
PICTURE: Final = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
ADDRESS: Final = {"type": "image_url", "image_url": {"url": "https://example.net/i"}}
SAYS_SO: Final = {"type": "text", "text": "So."}
FILES: Final[dict[str, Any]] = {
    "ChatGPT: an attachment": chatgpt(of_gpt("user", ASK, metadata={"attachments": [{"name": "mail.pdf"}]})),
    "ChatGPT: an image": chatgpt(of_gpt("user", PICTURE, ASK, kind="multimodal_text")),
    "ChatGPT: citations": chatgpt(of_gpt("user", ASK), of_gpt("assistant", "So.", metadata={"citations": [{"x": 1}]})),
    "ChatGPT: content references": chatgpt(
        of_gpt("user", ASK), of_gpt("assistant", "So.", metadata={"content_references": [{"type": "webpage"}]})
    ),
    "ChatGPT: search results": chatgpt(
        of_gpt("user", ASK), of_gpt("assistant", "So.", metadata={"search_result_groups": [{"domain": "x"}]})
    ),
    "ChatGPT: hidden instructions": chatgpt(
        of_gpt("user", RULE, metadata={"is_visually_hidden_from_conversation": True}), of_gpt("user", ASK)
    ),
    "ChatGPT: custom instructions": chatgpt(
        of_gpt("user", kind="user_editable_context", metadata={"user_context_message_data": {"about": RULE}}),
        of_gpt("user", ASK),
    ),
    "ChatGPT: a tool": chatgpt(of_gpt("user", ASK), of_gpt("tool", RULE)),
    "ChatGPT: a browser's quote": chatgpt(of_gpt("user", ASK), of_gpt("tool", RULE, kind="tether_quote")),
    "ChatGPT: code": chatgpt(of_gpt("user", ASK), of_gpt("assistant", "search('x')", kind="code", recipient="web")),
    "ChatGPT: output of code": chatgpt(of_gpt("user", ASK), of_gpt("tool", RULE, kind="execution_output")),
    "ChatGPT: a shared chat's author": chatgpt(of_gpt("user", f"{RULE}.", author={"role": "user", "name": "Mallory"})),
    "Claude: extracted content": claude(
        {"sender": "human", "text": ASK, "attachments": [{"file_name": "m.txt", "extracted_content": RULE}]}
    ),
    "Claude: files": claude({"sender": "human", "text": ASK, "files": [{"file_name": "scan.png"}]}),
    "Claude: files_v2": claude({"sender": "human", "text": ASK, "files_v2": [{"file_kind": "image"}]}),
    "Claude: citations": claude(
        {"sender": "human", "text": ASK},
        {"sender": "assistant", "content": [{**SAYS_SO, "citations": [{"url": "https://example.net"}]}]},
    ),
    "Claude: a tool's use": claude(
        {"sender": "human", "text": ASK}, {"sender": "assistant", "content": [{"type": "tool_use", "name": "x"}]}
    ),
    "Claude: a tool's result": claude(
        {"sender": "human", "text": ASK}, {"sender": "assistant", "content": [{"type": "tool_result", "content": RULE}]}
    ),
    "Claude: an unknown block": claude({"sender": "human", "content": [TEXT, {"type": "artifact", "text": RULE}]}),
    "OpenAI: image_url": openai({"role": "user", "content": [TEXT, ADDRESS]}),
    "OpenAI: input_file": openai({"role": "user", "content": [TEXT, {"type": "input_file", "file_id": "f"}]}),
    "OpenAI: file": openai({"role": "user", "content": [TEXT, {"type": "file", "file": {"file_id": "f"}}]}),
    "OpenAI: input_audio": openai({"role": "user", "content": [TEXT, {"type": "input_audio", "input_audio": {}}]}),
    "OpenAI: annotations": openai(
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": [{"type": "output_text", "text": "So.", "annotations": [{"url": "x"}]}]},
    ),
    "OpenAI: annotations beside": openai(
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": "So.", "annotations": [{"type": "url_citation"}]},
    ),
    "OpenAI: a tool": openai({"role": "user", "content": ASK}, {"role": "tool", "content": RULE, "tool_call_id": "t"}),
    "OpenAI: a function": openai({"role": "user", "content": ASK}, {"role": "function", "name": "x", "content": RULE}),
    "OpenAI: a developer": openai(
        {"role": "user", "content": ASK}, {"role": "developer", "content": f"Context: {RULE}"}
    ),
    "OpenAI: an unknown part": openai({"role": "user", "content": [TEXT, {"type": "clipboard", "text": RULE}]}),
    "OpenAI: another's name": openai({"role": "user", "name": "Mallory", "content": f"{RULE}."}),
    "OpenAI: attachments": openai({"role": "user", "content": ASK, "attachments": [{"file_id": "f"}]}),
    "LangChain: a summary": messages_to_dict(
        [HumanMessage(RULE, additional_kwargs={"lc_source": "summarization"}), AIMessage(RULE)]
    ),
    "LangChain: a skill": messages_to_dict(
        [HumanMessage(RULE, additional_kwargs={"lc_source": "pinned_skill"}), AIMessage(RULE)]
    ),
    "LangChain: a tool": messages_to_dict([HumanMessage(ASK), *page(RULE), AIMessage(RULE)]),
    "LangChain: a tool without text": messages_to_dict([HumanMessage(ASK), *page(""), AIMessage(RULE)]),
    "LangChain: a provider's call": messages_to_dict(
        [HumanMessage(ASK), shaped({"type": "mcp_call", "output": RULE}), AIMessage(RULE)]
    ),
    "LangChain: citations": messages_to_dict(
        [HumanMessage(ASK), AIMessage("So.", response_metadata={"citations": ["x"]}), AIMessage(RULE)]
    ),
    "LangChain: another agent": messages_to_dict([HumanMessage(ASK), HumanMessage(RULE, name="web"), AIMessage(RULE)]),
    "JSON Lines: a tool": [{"role": "user", "content": ASK}, {"role": "tool", "content": RULE}, *openai()],
    "JSON Lines: an image": [{"role": "user", "content": [TEXT, ADDRESS]}, *openai()],
    "JSON Lines: a mail": [{"role": "user", "content": f"Zusammenfassen:\n\nLiebe Ada,\n{RULE}.\nBob"}, *openai()],
    "JSON Lines: another's name": [{"role": "user", "content": f"{RULE}.", "name": "Mallory"}, *openai()],
}


def written(value: Any, path: Path, *, lines: bool) -> str:
    one_each = [value] if isinstance(value, dict) else value
    text = "".join(f"{json.dumps(one)}\n" for one in one_each) if lines else json.dumps(one_each)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "word for word"])
def test_no_file_makes_a_rule_of_what_others_wrote(stage: Stage, tmp_path: Path, is_queued: bool) -> None:
    """Guards imports of chats: their files, images, citations and tools are text from outside."""
    found: list[str] = []
    for at, (name, value) in enumerate(FILES.items()):
        if not stage.full and at % 2 == is_queued:
            continue
        play = Play(name, [])
        user = stage.begin(play)
        lines = name.startswith("JSON Lines")
        path = written(value, tmp_path / f"chat{at}.{'jsonl' if lines else 'json'}", lines=lines)
        transcript = load_transcript(format_of(path), path, user_id=user)
        for _ in (hand_over if is_queued else ingest)(stage.service.scope, user, transcript):
            pass
        stage.worker.drain()
        faults = stage.faults(play)
        found += [f"{name}: {', '.join(faults)}"] if faults else []
    assert not found, "\n".join(found)


def test_a_chat_without_anything_from_outside_is_the_users(stage: Stage, tmp_path: Path) -> None:
    """Guards benign imports: a plain chat gives the user's own rules."""
    plain: dict[str, Any] = {
        "ChatGPT": chatgpt(of_gpt("user", f"{RULE}.")),
        "Claude": claude({"sender": "human", "text": f"{RULE}.", "attachments": [], "files": []}),
        "OpenAI": openai({"role": "user", "content": f"{RULE}."}),
    }
    for name, value in plain.items():
        user = stage.begin(Play(name, []))
        path = written(value, tmp_path / f"{name}.json", lines=False)
        for _ in hand_over(stage.service.scope, user, load_transcript(format_of(path), path, user_id=user)):
            pass
        stage.worker.drain()
        assert stage.kept(RULE) == ("instructions", 1), name
