"""Background extraction: a conversation is captured, a worker extracts memories, a new process recalls them.

    talk (outbox) → worker (memories) → another process: an agent that knows

Runs without a key. With AGENT_MODEL set, that model replies; with AGENT_MEMORY_MODEL, that model extracts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from stand_in import announce, chat_model, what_i_know

from inference_core import (
    AgentMemoryStoreService,
    CaptureMiddleware,
    MemoryContext,
    MemoryMiddleware,
    MemorySettings,
    ModelExtractor,
    open_store,
)
from inference_core.agents.from_settings import make_chat_models
from inference_core.testing import ScriptedChatModel, call_tool

TOUR: dict[str, Any] = json.loads(Path(__file__).with_name("bike_tour.json").read_text(encoding="utf-8"))
QUESTION = "How far can I ride a day, when do we leave, and what is our budget?"
_SAID = re.compile(r'<message id="(m\d+)" from="user"[^>]*>(.*?)</message>')
_KNOWN = re.compile(r'<memory name="(k\d+)">(.*?)</memory>')


def picked(request: Sequence[BaseMessage]) -> AIMessage:
    """The script that stands in for a model which picks memories: those that the file names for what it is shown."""
    text = request[-1].text
    known: dict[str, str] = {name: unescape(content) for name, content in _KNOWN.findall(text)}
    names: dict[str, str] = {unescape(said): name for name, said in _SAID.findall(text)}
    entries = [
        entry for turn in TOUR["turns"] if turn["user"] in names for entry in _entries(turn, names[turn["user"]], known)
    ]
    return call_tool("ExtractedMemories", memories=entries)


def _entries(turn: dict[str, Any], source: str, known: dict[str, str]) -> Iterator[dict[str, Any]]:
    for memory in turn.get("memories", []):
        entry: dict[str, Any] = {**memory, "sources": [source]}
        replaced = entry.pop("replaces", None)
        target = next((name for name, content in known.items() if replaced and replaced in content), None)
        yield {**entry, "action": "supersede", "target": target} if target else entry


def extractor() -> ModelExtractor:
    """The model that AGENT_MEMORY_MODEL names, or the script."""
    name = MemorySettings().model
    return ModelExtractor(make_chat_models(name) if name else [ScriptedChatModel(turns=[picked])])


def talk(url: str) -> None:
    """The whole conversation, and then the worker, which another machine might run."""
    with open_store(url) as store:
        capture = CaptureMiddleware(extractor(), works=False)
        agent: Any = create_agent(
            chat_model([turn["assistant"] for turn in TOUR["turns"]]),
            store=store,
            checkpointer=InMemorySaver(),
            middleware=[capture],
            context_schema=MemoryContext,
        )
        for turn in TOUR["turns"]:
            thread: dict[str, Any] = {"configurable": {"thread_id": TOUR["thread"]}}
            agent.invoke({"messages": [("user", turn["user"])]}, thread, context={"user_id": TOUR["user"]})
        print(f"{2 * len(TOUR['turns'])} messages were captured.")
        capture.drain()
        print(
            f"{AgentMemoryStoreService(store).sync.count_memories(TOUR['user'])['total']} memories were made of them."
        )


def recall(url: str) -> None:
    """A new session, in a process that has heard nothing of the conversation."""
    with open_store(url) as store:
        agent: Any = create_agent(
            chat_model([what_i_know]),
            store=store,
            middleware=[MemoryMiddleware(recall_timeout=10)],
            context_schema=MemoryContext,
        )
        result = agent.invoke({"messages": [("user", QUESTION)]}, context={"user_id": TOUR["user"]})
        print(f"\nMara: {QUESTION}\nai:   {result['messages'][-1].text}")


def main() -> None:
    """Talks, and has another process recall."""
    announce()
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/memory.db"
        talk(url)
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, url], check=True)  # noqa: S603 - this very file


if __name__ == "__main__":
    recall(sys.argv[1]) if len(sys.argv) > 1 else main()
