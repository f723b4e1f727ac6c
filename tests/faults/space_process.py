"""A process whose agent answers a member of a space; the test says when, and what time it is."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection

from agent_support import make_agent, patient_memory
from langgraph.checkpoint.memory import InMemorySaver

from inference_core import AgentMemoryStoreService, Spaces, open_store
from inference_core.testing import FrozenClock, ScriptedChatModel


def answer(url: str, told: Connection) -> None:
    """Answers a number by letting so many seconds pass, a question by the prompt and the recall of it."""
    clock = FrozenClock()
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, spaces=Spaces(), clock=clock, timeout=None)
        model = ScriptedChatModel(turns=["done"])
        memory = patient_memory(service, profile=True, placement="last_user", receipts=False)
        agent = make_agent(model, middleware=[memory], checkpointer=InMemorySaver())
        config = {"configurable": {"user_id": "ada", "thread_id": "always the same"}}
        while (asked := told.recv()) is not None:
            if isinstance(asked, str):
                agent.invoke({"messages": [("user", asked)]}, config)
                prompt = "".join(message.text for message in model.requests[-1])
                told.send((prompt, [one.content for one in service.sync.recall_memories("ada", asked)]))
            else:
                clock.advance(timedelta(seconds=asked))
                told.send(None)
