"""Conversations of megabytes hold up no event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from agent_support import ask, make_agent
from langchain_core.messages import AIMessage, HumanMessage

from inference_core import MemoryContext, ShortTermMemoryMiddleware, open_store
from inference_core.ingestion.verbatim import Draft, Drafts
from inference_core.outbox.messages import ConversationMessage
from inference_core.testing import ScriptedChatModel

PAGE = "The tram passes by the river and stops in front of the old house. " * 500


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
