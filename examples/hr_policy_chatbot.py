"""An HR policy chatbot that keeps its conversations within a limit, and what happens to the messages that leave.

Scenario 1 summarizes them. Scenario 2 moves them into long-term memory, which answers the user's next session. Both are
the use case of the two proposals for memory in Ballerina's agents; `hr_policy.py` holds their conversation.

    python examples/hr_policy_chatbot.py
    python examples/hr_policy_chatbot.py --model openai:gpt-5-mini

Without a model (AGENT_MODEL or ``--model``) scripts reply; the memory is real. The limits here are tiny: the default is
100,000 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from hr_policy import CONVERSATION, SEPTEMBER_17, SEPTEMBER_18, Proposal, extracted, from_memory, replies
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage, convert_to_openai_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from stand_in import announce, chat_model

from inference_core import (
    AgentMemory,
    ExtractiveMemory,
    FlushToLongTerm,
    MemoryContext,
    ShortTermMemoryMiddleware,
    StaticMemory,
    Summarize,
    VectorMemory,
    open_store,
)

SARAH = "sarah@example.com"
BEN = "ben@example.com"
SESSION = "monday"
PROMPT = "You are the company's HR assistant. Answer in at most three sentences."
QUESTION = "Am I eligible for remote work?"


def summarizing_memory(proposal: Proposal) -> AgentMemory:
    """Short-term memory without an agent: a model sums up what is too much, the last messages stay word for word."""
    overflow = Summarize(
        chat_model([proposal.summary]), summary_message_count=proposal.stays_after_summary, role=proposal.role
    )
    return AgentMemory(overflow=overflow, max_tokens=proposal.summarizes_at, user_id=SARAH)


def scenario_1(proposal: Proposal) -> None:
    """Sarah's conversation, message by message, with whatever model; shows what a summary makes of it."""
    memory, model = summarizing_memory(proposal), chat_model(replies())
    memory.update(SESSION, ("system", "\n- ".join([PROMPT, *proposal.policy])))
    for question, _ in CONVERSATION:
        add(memory, ("user", question))
        add(memory, model.invoke(memory.get(SESSION).messages))


def add(memory: AgentMemory, message: Any) -> None:
    """Adds ``message`` to the session; shows the chat history before and after if it was one too many."""
    before = chat_history(memory)
    memory.update(SESSION, message)
    after = chat_history(memory)
    if len(after) <= len(before):
        show("Chat history before", [*before, after[-1]])
        show("Chat history after", after)


def chat_history(memory: AgentMemory) -> list[AnyMessage]:
    """The session's messages, without its system prompt."""
    return memory.get(SESSION).messages[1:]


def long_term(proposal: Proposal) -> FlushToLongTerm:
    """What leaves a conversation becomes facts about the user and passages; the policy is the same for everybody."""
    blocks = [StaticMemory(proposal.policy), ExtractiveMemory(chat_model([extracted(proposal)])), VectorMemory()]
    return FlushToLongTerm(blocks, into_system_prompt=True)


def flushing_agent(proposal: Proposal, store: BaseStore) -> Any:
    """The chatbot as an agent; what its blocks take in goes into ``store``."""
    return create_agent(
        chat_model([*replies(), from_memory]),
        system_prompt=PROMPT,
        middleware=[ShortTermMemoryMiddleware(long_term(proposal), max_tokens=proposal.flushes_at)],
        context_schema=MemoryContext,
        checkpointer=InMemorySaver(),
        store=store,
    )


def scenario_2(proposal: Proposal, store: BaseStore) -> None:
    """Sarah's conversation with an agent, what is known afterwards, and new sessions of hers and of a colleague."""
    agent, monday = flushing_agent(proposal, store), {"configurable": {"thread_id": "monday"}}
    context = MemoryContext(user_id=SARAH)
    for question, _ in CONVERSATION:
        asked = {"messages": [("user", question)]}
        for event in agent.stream(asked, monday, context=context, stream_mode="custom"):
            print(f"\n{event}")
    show("Chat history after", agent.get_state(monday).values["messages"])

    recalling = AgentMemory(store, overflow=long_term(proposal), user_id=SARAH)
    print(f"\nLong-term memory of Sarah, for a new session:\n{recalling.get('tuesday', ('user', QUESTION)).render()}")
    for user in (SARAH, BEN):
        tuesday = {"configurable": {"thread_id": f"tuesday of {user}"}}
        asked = {"messages": [("user", QUESTION)]}
        answer = agent.invoke(asked, tuesday, context=MemoryContext(user_id=user))["messages"][-1].text
        print(f"\n{user}: {QUESTION}\nassistant: {answer}")


def show(title: str, messages: Sequence[AnyMessage]) -> None:
    """Prints ``messages`` as the proposals list them."""
    entries = [json.dumps(listed(message), ensure_ascii=False) for message in messages]
    print(f"\n{title}:\n[", ",\n".join(f"  {entry}" for entry in entries), "]", sep="\n")


def listed(message: AnyMessage) -> dict[str, Any]:
    """Role and content, and the time if it was kept."""
    entry: Any = convert_to_openai_messages(message)
    stamp = message.additional_kwargs.get("timestamp")
    return {**entry, "timestamp": stamp} if stamp else entry


def main(arguments: Sequence[str] | None = None) -> None:
    """Both scenarios as both proposals have them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="chat model as provider:model; without one a script replies")
    if model := parser.parse_args(arguments).model:
        os.environ["AGENT_MODEL"] = model
    announce()
    for proposal in (SEPTEMBER_18, SEPTEMBER_17):
        print(f"\n=== Scenario 1, the proposal of {proposal.date}: Summarize ===")
        scenario_1(proposal)
        print(f"\n=== Scenario 2, the proposal of {proposal.date}: FlushToLongTerm ===")
        with open_store("memory://") as store:
            store.wait_ready(30)
            scenario_2(proposal, store)


if __name__ == "__main__":
    main()
