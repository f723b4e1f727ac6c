"""A process with an agent whose thread is in one SQLite file and whose memory is in another; goes on where it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from short_term_support import USER, check_valid, marker

from inference_core import FlushToLongTerm, ShortTermMemoryMiddleware, open_store
from inference_core.testing import ScriptedChatModel

WORDS_A_TURN = 4
_THREAD: Any = {"configurable": {"thread_id": "s1"}}
_MAX_TOKENS = 600


@tool
def find(number: int) -> str:
    """Finds a word."""
    return f"{marker(number)} {'word ' * 40}"


def turn_of(messages: list[Any]) -> int:
    """The number of the user's last message, which is always there; -1 before the first."""
    return max((int(str(one.id).removeprefix("turn")) for one in messages if isinstance(one, HumanMessage)), default=-1)


def answer(messages: list[BaseMessage]) -> AIMessage:
    """Looks a word up, then answers; says so if it was given what no model accepts."""
    try:
        check_valid(messages)
    except (AssertionError, ValueError) as error:
        os.write(1, f"invalid {error!r}\n".encode())
    first = turn_of(messages) * WORDS_A_TURN
    if isinstance(messages[-1], ToolMessage):
        return AIMessage(f"The answer is {marker(first + 3)} {'word ' * 10}")
    text = f"Let me look for {marker(first + 1)}"
    return AIMessage(text, tool_calls=[{"name": "find", "args": {"number": first + 2}, "id": f"c{first}"}])


def talk(folder: Path, turns: int) -> list[AnyMessage]:
    """Finishes what was begun, and goes on up to turn number ``turns``; the messages of the thread then."""
    model = ScriptedChatModel(turns=[answer], record=False)
    middleware = ShortTermMemoryMiddleware(FlushToLongTerm(), max_tokens=_MAX_TOKENS, user_id=USER)
    with (
        SqliteSaver.from_conn_string(str(folder / "threads.db")) as saver,
        open_store(f"sqlite:///{folder}/memory.db", embeddings=None) as store,
    ):
        agent: Any = create_agent(model, [find], store=store, checkpointer=saver, middleware=[middleware])
        if agent.get_state(_THREAD).tasks:  # of which some may be done, so that next is not enough
            agent.invoke(None, _THREAD, durability="sync")
        for turn in range(turn_of(agent.get_state(_THREAD).values.get("messages", [])) + 1, turns):
            asked = HumanMessage(f"{marker(turn * WORDS_A_TURN)} {'word ' * 20}", id=f"turn{turn}")
            agent.invoke({"messages": [asked]}, _THREAD, durability="sync")
            os.write(1, f"turn {turn}\n".encode())
        return agent.get_state(_THREAD).values["messages"]
