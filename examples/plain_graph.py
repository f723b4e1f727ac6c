"""Memory in a plain LangGraph graph: no create_agent, no middleware, the service in nodes of your own.

    recall → answer ⇄ tools

Runs without a key. With AGENT_MODEL set (for example ``openai:gpt-5-mini``), that model replies.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from langchain_core.messages import SystemMessage
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from stand_in import announce, chat_model, what_i_know

from inference_core import (
    AgentMemoryStoreService,
    MemoryContext,
    generate_memory_tools_system_instructions,
    get_memory_tools,
    open_store,
    resolve_user,
)
from inference_core.errors import IdentityError, StoreUnavailable
from inference_core.testing import call_tool

ADA: Any = {"user_id": "ada@example.com"}


class State(MessagesState):
    """The conversation, and what was recalled for it: of this run only, never in a checkpoint."""

    memory: Annotated[str, UntrackedValue]


def build_graph(model: Any, service: AgentMemoryStoreService) -> Any:
    """A graph that recalls, answers, and runs the memory tools that the model calls."""
    tools = get_memory_tools(service)
    with_tools = model.bind_tools(tools)
    instructions = generate_memory_tools_system_instructions()

    async def recall(state: State, runtime: Runtime[MemoryContext]) -> dict[str, str]:
        question = state["messages"][-1].text
        try:
            user = resolve_user(runtime)
            return {"memory": await service.format_context_for_prompt(user_id=user, query=question)}
        except (IdentityError, StoreUnavailable) as error:
            print(f"(answering without memory: {error})")
            return {"memory": ""}

    async def answer(state: State) -> dict[str, Any]:
        system = SystemMessage(f"You are a helpful assistant.\n\n{instructions}\n\n{state['memory']}")
        return {"messages": [await with_tools.ainvoke([system, *state["messages"]])]}

    graph = StateGraph(State, context_schema=MemoryContext)
    graph.add_node("recall", recall)
    graph.add_node("answer", answer)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "recall")
    graph.add_edge("recall", "answer")
    graph.add_conditional_edges("answer", tools_condition)
    graph.add_edge("tools", "answer")
    return graph.compile()


async def say(graph: Any, text: str) -> None:
    """One session of Ada's: a new conversation, in which nothing is left of the one before."""
    print(f"\nAda:  {text}")
    result = await graph.ainvoke({"messages": [("user", text)]}, context=ADA)
    for message in result["messages"][1:]:
        print(f"{message.type}:".ljust(6) + (message.text or f"calls {message.tool_calls[0]['name']}"))


async def main() -> None:
    """Two sessions: Ada tells something, later she is known."""
    announce()
    model = chat_model(
        [
            call_tool("save_memory_store", content="Hi, I'm Ada and I live in Lisbon.", memory_type="facts"),
            "Noted.",
            what_i_know,
        ]
    )
    with open_store("memory://") as store:
        graph = build_graph(model, AgentMemoryStoreService(store))
        await say(graph, "Hi, I'm Ada and I live in Lisbon.")
        await say(graph, "Where could I have lunch in my city?")


if __name__ == "__main__":
    asyncio.run(main())
