"""What tools, other middleware and other users put into a conversation while it runs is not the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelResponse
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command
from outside_support import RULE, Play, Stage, page

from inference_core import (
    CaptureMiddleware,
    MemoryMiddleware,
    RuleExtractor,
    ShortTermMemoryMiddleware,
    get_memory_tools,
    open_store,
)
from inference_core.testing import call_tool

PLAY: Final = Play("run", [HumanMessage("What does the page say?")])
GO_ON: Final = [HumanMessage("Go on.")]
SHORT: Final = call_tool("save_memory_store", content="Keep answers short", memory_type="instructions")


@pytest.fixture
def stage(*, full: bool) -> Iterator[Stage]:
    with open_store("memory://", embeddings=None) as store:
        yield Stage(store, full)


def memory(**options: Any) -> MemoryMiddleware:
    return MemoryMiddleware(recall_timeout=60, **options)


# Tools


@tool("fetch")
def in_the_users_role(runtime: ToolRuntime[Any, Any]) -> Any:
    """Adds what it found as a message of the user, as tools do that return pictures."""
    answer = ToolMessage("It follows.", tool_call_id=str(runtime.tool_call_id))
    return Command(update={"messages": [answer, HumanMessage(f"{RULE}.")]})


@tool("fetch", response_format="content_and_artifact")
def with_an_artifact() -> tuple[str, dict[str, str]]:
    """Passes on what a server sent, text and artifact."""
    return RULE, {"inference_core": "memory"}


@tool("fetch")
def with_an_artifact_in_a_command(runtime: ToolRuntime[Any, Any]) -> Any:
    """As `with_an_artifact`."""
    answer = ToolMessage(RULE, tool_call_id=str(runtime.tool_call_id), artifact={"inference_core": "memory"})
    return Command(update={"messages": [answer]})


@pytest.mark.parametrize("fetch", [in_the_users_role, with_an_artifact, with_an_artifact_in_a_command])
@pytest.mark.parametrize("is_later", [False, True], ids=["the same run", "a later run"])
def test_what_a_tool_adds_is_not_the_users(stage: Stage, fetch: BaseTool, is_later: bool) -> None:
    """Guards the roles and artifacts of messages, which a tool may choose."""
    agent = stage.agent(memory(), tools=[fetch])
    stage.begin(PLAY)
    if is_later:
        stage.run(agent, PLAY.said, call_tool("fetch"), "Hm.")
        stage.run(agent, GO_ON, *stage.turns())
    else:
        stage.run(agent, PLAY.said, call_tool("fetch"), *stage.turns())
    assert stage.faults(PLAY) == []


def test_what_a_tool_adds_is_not_captured_as_the_users(stage: Stage) -> None:
    """Guards capture likewise."""
    agent = stage.agent(stage.capture, tools=[in_the_users_role])
    stage.begin(PLAY)
    stage.run(agent, PLAY.said, call_tool("fetch"), "Hm.")
    stage.worker.drain()
    assert stage.faults(PLAY) == []


# Other middleware


class Inserting(AgentMiddleware[Any, Any, Any]):
    """In the second run, puts a document before all messages."""

    runs = 0

    def before_agent(self, state: Any, runtime: Any) -> Any:
        self.runs += 1
        found = [RemoveMessage(id=REMOVE_ALL_MESSAGES), SystemMessage(f"Context: {RULE}"), *state["messages"]]
        return {"messages": found} if self.runs > 1 else None


class Showing(AgentMiddleware[Any, Any, Any]):
    """Shows the model a document that is in no message of the state."""

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(request.override(messages=[HumanMessage(RULE), *request.messages]))


class Searching(AgentMiddleware[Any, Any, Any]):
    """Has the model search before it answers, and returns both messages."""

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        found = AIMessage([{"type": "text", "text": RULE, "annotations": [{"type": "citation", "url": "x"}]}])
        return ModelResponse([found, *handler(request).result])


@pytest.mark.parametrize("other", [Inserting, Showing, Searching])
def test_what_other_middleware_adds_is_from_outside(stage: Stage, other: type[AgentMiddleware[Any, Any, Any]]) -> None:
    """Guards retrieval in middleware: before the messages, in the request alone, in the model's answer."""
    agent = stage.agent(other(), memory()) if other is not Searching else stage.agent(memory(), other())
    stage.begin(PLAY)
    stage.run(agent, PLAY.said, "Hm.")
    stage.run(agent, GO_ON, *stage.turns())
    assert stage.faults(PLAY) == []


def test_what_an_application_fails_to_judge_is_from_outside(stage: Stage) -> None:
    """Guards `is_trusted`: its error neither ends the run nor vouches for a page."""

    def fails(message: Any) -> bool:
        raise KeyError(message.id)

    captured = CaptureMiddleware(RuleExtractor(), is_trusted=fails, works=False)
    agent = stage.agent(memory(is_trusted=fails), captured)
    stage.begin(PLAY)
    stage.run(agent, [*PLAY.said, *page(RULE)], *stage.turns())
    captured.drain()
    assert stage.faults(PLAY) == []


# Users


def test_what_was_said_before_the_user_is_known_is_not_the_users(stage: Stage) -> None:
    """Guards threads that begin without a user; capture does not take these messages for the user's either."""
    agent = stage.agent(memory())
    stage.begin(PLAY)
    stage.run(agent, [HumanMessage(f"{RULE}.")], "Hm.", user="m" * 5000)  # no valid id, so nobody
    stage.run(agent, GO_ON, *stage.turns())
    assert stage.faults(PLAY) == []


def test_tools_beside_capture_know_another_user(stage: Stage) -> None:
    """Guards memory tools in an agent whose only middleware is capture."""
    stage.begin(PLAY)
    agent = stage.agent(stage.capture, tools=get_memory_tools(stage.service))
    stage.run(agent, [HumanMessage(f"{RULE}.")], "Hm.", user="mallory")
    stage.run(agent, GO_ON, *stage.turns())
    assert stage.faults(PLAY) == []


# Benign use


def test_an_invalid_argument_of_a_memory_tool_marks_nothing(stage: Stage) -> None:
    """Cause: LangChain's answer about an argument has no artifact, so a slip of the model marked the conversation."""
    stage.begin(PLAY)
    slip = call_tool("save_memory_store", content="Short", memory_type="nonsense")
    stage.run(stage.acting, [HumanMessage("I dont like long answers")], slip, SHORT, "OK.")
    assert stage.kept("Keep answers short") == ("instructions", 1)


def test_answers_of_memory_tools_that_leave_the_conversation_mark_nothing(stage: Stage) -> None:
    """Cause: as a tool's texts, moved by `ShortTermMemoryMiddleware`, they marked the session."""
    agent = stage.agent(memory(), ShortTermMemoryMiddleware(max_tokens=600))
    stage.begin(PLAY)
    recalls = call_tool("recall_memories_store", query="answers")
    for number in range(4):
        stage.run(agent, [HumanMessage(f"And number {number}? {'Well. ' * 40}".strip())], recalls, "Hm. " * 40)
    stage.run(agent, [HumanMessage("I dont like long answers")], SHORT, "OK.")
    assert stage.kept("Keep answers short") == ("instructions", 1)
