"""What the tests of agents share: asking an agent, sync or async, and reading the prompt that its model was given."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware
from inference_core.stores.engine import WORKERS
from inference_core.stores.factory import engine_of

FACES = ("sync", "async")
_BLOCK = re.compile(r"<user_memory_context>\n(.*?)\n</user_memory_context>", re.DOTALL)


def make_agent(model: Any, **options: Any) -> Any:
    """`create_agent`, untyped: its type arguments follow from options that tests vary."""
    return create_agent(model, **options)


def as_node(agent: Any, store: BaseStore) -> Any:
    """A graph with a checkpointer, in which ``agent`` is a node."""
    graph: Any = StateGraph(MessagesState, context_schema=MemoryContext)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    return graph.compile(checkpointer=InMemorySaver(), store=store)


def patient_memory(service: Any = None, **options: Any) -> MemoryMiddleware:
    """The middleware with time to spare, so that a busy machine does not change what a test sees.

    All that it tells stands in one block at the end of the system prompt, unless the test says otherwise.
    """
    options = {"recall_timeout": 60, "placement": "system", "profile": False} | options
    return MemoryMiddleware(service, **options)


@contextmanager
def without_workers(store: BaseStore) -> Generator[None]:
    """Meanwhile, calls of ``store`` wait for a worker in vain."""
    gate = threading.Event()
    for _ in range(WORKERS):
        engine_of(store).pool.submit(gate.wait)
    try:
        yield
    finally:
        gate.set()


def set_environment(monkeypatch: pytest.MonkeyPatch, folder: Path, **more: str) -> None:
    """Settings of `AgentService` with time to spare, as `patient_memory` has it, and ``more``."""
    values = {
        "AGENT_MEMORY_STORE_URL": f"sqlite:///{folder}/memory.db",
        "AGENT_MEMORY_EMBEDDINGS": "none",
        "AGENT_MEMORY_RECALL_TIMEOUT": "60",
        "AGENT_MEMORY_PLACEMENT": "system",
        "AGENT_MEMORY_PROFILE": "false",
    }
    for name, value in (values | more).items():
        monkeypatch.setenv(name, value)


async def ask(agent: Any, face: str, given: Any, config: dict[str, Any] | None = None, **options: Any) -> Any:
    """The result of one run; a text becomes the user's message."""
    asked = {"messages": [("user", given)]} if isinstance(given, str) else given
    if face == "sync":
        return agent.invoke(asked, config, **options)
    return await agent.ainvoke(asked, config, **options)


def system_text(messages: Sequence[BaseMessage]) -> str:
    """The system text of a prompt; "" without a system message."""
    return "".join(message.text for message in messages if isinstance(message, SystemMessage))


def blocks(messages: Sequence[BaseMessage]) -> list[str]:
    """The memory blocks of a whole prompt, wherever they stand."""
    return _BLOCK.findall("".join(message.text for message in messages))


def the_block(messages: Sequence[BaseMessage]) -> str:
    """The one memory block of a prompt, which stands in its system message."""
    (block,) = blocks(messages)
    assert block in system_text(messages)
    return block


def memory_lines(block: str) -> list[str]:
    """The lines of a block that hold a memory."""
    return [line for line in block.splitlines() if line.startswith(("  - [", "- 2", "- undated "))]


def replies(result: Any) -> list[str]:
    """What the tools answered in a run."""
    return [message.text for message in result["messages"] if isinstance(message, ToolMessage)]


def remember(store: BaseStore, memories: Mapping[str, Sequence[str]], **options: Any) -> AgentMemoryStoreService:
    """Saves each user's facts and returns the service that did."""
    service = AgentMemoryStoreService(store, **options)
    for user, contents in memories.items():
        for content in contents:
            service.sync.save_memory(user, content, "facts")
    return service
