"""Memory in a deep agent: the main agent and its subagent share facts, and each learns procedures of its own.

Runs without a key. With AGENT_MODEL set (for example ``openai:gpt-5-mini``), that model replies. Needs the package
``deepagents``.
"""

from __future__ import annotations

from typing import Any

from deepagents import create_deep_agent
from langchain_core.messages import BaseMessage
from langgraph.store.base import BaseStore
from stand_in import announce, chat_model, what_i_know

from inference_core import MemoryContext, MemoryMiddleware, open_store
from inference_core.testing import call_tool

ADA: Any = {"user_id": "ada@example.com"}
FACT = "Ada lives in Lisbon"
SPEAKERS = {"task": "researcher", "save_memory_store": "tool"}
SKILL = "Look tides up in tables, never in prose"


def delegate(task: str) -> Any:
    """A scripted reply that hands ``task`` to the subagent."""
    return call_tool("task", description=task, subagent_type="researcher")


def researcher(turns: list[Any]) -> Any:
    """A subagent with a memory of its own: middleware is not inherited, so it gets its own, under its own name."""
    return {
        "name": "researcher",
        "description": "Looks things up.",
        "system_prompt": "You look things up and report in one sentence.",
        "model": chat_model(turns),
        "tools": [],
        "middleware": [MemoryMiddleware(agent_name="researcher")],
    }


def make_agent(store: BaseStore) -> Any:
    """The deep agent. Subagents use its store, and know its user from the same run."""

    def reports(messages: list[BaseMessage]) -> str:
        return f"The tide is low at 9. {what_i_know(messages)}"

    return create_deep_agent(
        chat_model(
            [
                call_tool("save_memory_store", content=FACT, memory_type="facts"),
                delegate("When is low tide in Lisbon?"),
                "Low tide is at 9.",
                delegate("When is low tide today?"),
                what_i_know,
            ]
        ),
        subagents=[
            researcher(
                [
                    call_tool("save_memory_store", content=SKILL, memory_type="skill"),
                    "The tide is low at 9.",
                    reports,
                ]
            )
        ],
        middleware=[MemoryMiddleware(agent_name="main")],
        context_schema=MemoryContext,
        store=store,
    )


def say(agent: Any, text: str) -> None:
    """A new conversation with ``agent``."""
    result = agent.invoke({"messages": [("user", text)]}, context=ADA)
    print(f"\nAda: {text}")
    for message in result["messages"][1:]:
        if message.text:
            print(f"{SPEAKERS.get(message.name, 'main')}: {message.text}")


def main() -> None:
    """Two conversations: in the first both learn, in the second each shows what it knows."""
    announce()
    with open_store("memory://") as store:
        store.wait_ready(30)
        agent = make_agent(store)
        say(agent, "I live in Lisbon. When is low tide?")
        say(agent, "And today?")
        print("\nWhere it lies:", *sorted("/".join(labels) for labels in store.list_namespaces()), sep="\n  ")


if __name__ == "__main__":
    main()
