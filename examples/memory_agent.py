"""An agent with memory tools on each store: in memory, a folder of files, SQLite, and the URLs that you name.

    python examples/memory_agent.py redis://localhost:6379/0 postgresql://user:password@localhost/db

Runs without a key. With AGENT_MODEL set (for example ``openai:gpt-5-mini`` or ``ollama:llama3``), that model replies.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import BaseMessage
from stand_in import announce, chat_model

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware, open_store
from inference_core.services.user_memories import purge_user_memories
from inference_core.testing import call_tool

DEMO: Any = {"user_id": "demo_user"}
PYTHON = "Prefers Python over Ruby for data science tasks"
_ID = re.compile(r"id: (\w+)")


def corrects(messages: Sequence[BaseMessage]) -> Any:
    """Updates the memory that the search before it has found."""
    found = _ID.search(messages[-1].text)
    return call_tool("update_memory_store", memory_id=found[1] if found else "", content=f"{PYTHON}, Julia for maths")


def repeats(messages: Sequence[BaseMessage]) -> str:
    """Says what the list before it has."""
    return f"You told me: {messages[-1].text.partition(']: ')[2]}"


def turns() -> list[Any]:
    """The script that stands in for a model: it saves, searches, corrects and lists."""
    return [
        call_tool("save_memory_store", content=PYTHON, memory_type="preferences"),
        "I will remember that.",
        call_tool("recall_memories_store", query="Python or Ruby for data science"),
        corrects,
        "Corrected.",
        call_tool("list_memories_store"),
        repeats,
    ]


def show(url: str) -> None:
    """Three sessions of an agent on the store at ``url``, then what an application sees there."""
    print(f"\n{url.partition('://')[0]}")
    with open_store(url) as store:
        memory = AgentMemoryStoreService(store)
        tools = ["save_memory_store", "recall_memories_store", "update_memory_store", "list_memories_store"]
        middleware = MemoryMiddleware(memory, include_tools=tools)
        agent: Any = create_agent(chat_model(turns()), middleware=[middleware], context_schema=MemoryContext)
        for text in (
            "Remember that I prefer Python over Ruby for data science tasks",
            "For maths I use Julia.",
            "What do you know about me?",
        ):
            result = agent.invoke({"messages": [("user", text)]}, context=DEMO)
            print(f"  user:  {text}\n  agent: {result['messages'][-1].text}")
        for hit in memory.sync.recall_memories("demo_user", "data science", k=1):
            why = memory.sync.why("demo_user", hit.id)
            print(f"  found: {hit.content}\n  before: {[one.content for one in why.earlier]}")
        print(f"  purged: {purge_user_memories(store, 'demo_user') > 0}")


def main() -> None:
    """The same conversation on every store."""
    announce()
    with tempfile.TemporaryDirectory() as folder:
        own = ["memory://", f"file:///{Path(folder) / 'files'}", f"sqlite:///{Path(folder) / 'memory.db'}"]
        for url in [*own, *sys.argv[1:]]:
            show(url)


if __name__ == "__main__":
    main()
