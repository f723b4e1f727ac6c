"""Conversations of megabytes: reading them holds up no event loop and no save, and leaves nothing in the process."""

from __future__ import annotations

import threading
import time
import tracemalloc
from typing import Any

import pytest
from agent_support import FACES, ask, make_agent, patient_memory, replies
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from inference_core import MemoryContext, ShortTermMemoryMiddleware, open_store
from inference_core.agents import provenance
from inference_core.agents.tools import memory_tools
from inference_core.ingestion.verbatim import Draft, Drafts
from inference_core.outbox.grounding import Grounding
from inference_core.outbox.messages import ConversationMessage
from inference_core.testing import ScriptedChatModel, call_tool

HOME = "The user lives in Lisbon"
PAGE = "The tram passes by the river and stops in front of the old house. " * 500


@pytest.mark.parametrize("face", FACES)
async def test_a_long_conversation_is_read_on_a_worker_and_takes_no_time_from_the_store(
    face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 MB of tool results were compared for seconds on the event loop; the 2 s for the store had then passed."""
    readers: list[str] = []

    class Slow(Grounding):
        def is_external(self, text: str, share: float = 0.5) -> bool:
            if not readers:
                time.sleep(1.2)
            readers.append(threading.current_thread().name)
            return super().is_external(text, share)

    monkeypatch.setattr(provenance, "Grounding", Slow)
    monkeypatch.setattr(memory_tools, "WRITE_TIMEOUT_S", 1.0)
    fetch = call_tool("fetch")
    page = ToolMessage(PAGE, tool_call_id=fetch.tool_calls[0]["id"], name="fetch")
    said = [HumanMessage("I live in Lisbon. Read the page."), fetch, page]
    with open_store("memory://", embeddings=None) as store:
        model = ScriptedChatModel(turns=[call_tool("save_memory_store", content=HOME), "Done."])
        agent: Any = make_agent(model, store=store, middleware=[patient_memory()], context_schema=MemoryContext)
        result = await ask(agent, face, {"messages": said}, context={"user_id": "ada"})
    assert replies(result)[-1].startswith("✓")
    assert face == "sync" or readers[0].startswith("memory-store")


def test_no_text_of_a_conversation_stays_in_the_process() -> None:
    """Each of the last 1,024 tool results stayed in a cache, with its words: hundreds of megabytes."""
    tracemalloc.start()
    try:
        for number in range(10):
            assert Grounding([], [f"{number} {PAGE}"]).has_outside
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * len(PAGE)


async def test_a_conversation_that_overflows_is_made_into_memories_on_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first overflow of a conversation of 2 MB kept the event loop busy for seconds."""
    makers: set[str] = set()
    of = Drafts.of

    def made(self: Drafts, message: ConversationMessage) -> Draft | None:
        makers.add(threading.current_thread().name)
        return of(self, message)

    monkeypatch.setattr(Drafts, "of", made)
    said = [AIMessage(PAGE) if turn % 2 else HumanMessage("Tell me about Lisbon") for turn in range(6)]
    with open_store("memory://", embeddings=None) as store:
        shortens = ShortTermMemoryMiddleware(max_tokens=10_000)
        model = ScriptedChatModel(turns=["Done."])
        agent: Any = make_agent(model, store=store, middleware=[shortens], context_schema=MemoryContext)
        asked = {"messages": [*said, HumanMessage("And Porto?")]}
        result = await ask(agent, "async", asked, {"configurable": {"thread_id": "1"}}, context={"user_id": "ada"})
    assert len(result["messages"]) < len(said)
    assert makers
    assert all(name.startswith("memory-store") for name in makers)
