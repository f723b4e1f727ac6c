"""Two agents of one user: they share facts about her, and each keeps its own episodes.

Runs without a key. With AGENT_MODEL set (for example ``openai:gpt-5-mini``), that model replies.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langgraph.store.base import BaseStore
from stand_in import announce, chat_model, what_i_know

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware, open_store
from inference_core.testing import call_tool

ADA: Any = {"user_id": "ada@example.com"}


def make_agent(name: str, store: BaseStore, turns: list[Any]) -> Any:
    """An agent with its own episodes and procedures, on the store that all agents use."""
    return create_agent(
        chat_model(turns),
        store=store,
        middleware=[MemoryMiddleware(agent_name=name)],
        context_schema=MemoryContext,
        name=name,
    )


def say(agent: Any, text: str) -> None:
    """A new conversation with ``agent``."""
    result = agent.invoke({"messages": [("user", text)]}, context=ADA)
    print(f"\nAda to {agent.name}: {text}\n{agent.name}: {result['messages'][-1].text}")


def main() -> None:
    """Ada tells the travel agent; the cook knows the fact, and nothing of their conversation."""
    announce()
    with open_store("memory://") as store:
        store.wait_ready(30)
        travel = make_agent(
            "travel",
            store,
            [
                call_tool("save_memory_store", content="Ada is allergic to hazelnuts", memory_type="facts"),
                call_tool(
                    "save_memory_store", content="Booked Ada's train to Porto for Friday", memory_type="session_summary"
                ),
                "Booked. I told the train's kitchen about the hazelnuts.",
                what_i_know,
            ],
        )
        cook = make_agent("cook", store, [what_i_know])
        say(travel, "Book me a train to Porto on Friday. I'm allergic to hazelnuts, tell the kitchen.")
        say(cook, "What should I eat on Friday?")
        say(travel, "What is planned for Friday?")

        print("\nWhat each of them reads:")
        for name in ("travel", "cook"):
            counts = AgentMemoryStoreService(store, agent_name=name).sync.count_memories(ADA["user_id"])
            print(f"  {name}: {counts}")
        print("Where it lies:", *sorted("/".join(labels) for labels in store.list_namespaces()), sep="\n  ")


if __name__ == "__main__":
    main()
