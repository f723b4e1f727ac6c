"""An agent that remembers, shown in two processes; then recall from a conversation of several months.

Runs without a key: a scripted model stands in for a real one, and says so. With AGENT_MODEL set (for example
``openai:gpt-5-mini``) the configured model talks instead. ``--data FILE`` takes any conversation in LoCoMo's format.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware.types import AgentMiddleware, ModelRequest
from langchain.chat_models import init_chat_model
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from inference_core import AgentMemoryStoreService, MemoryContext, MemoryMiddleware, MemoryStore, open_store
from inference_core.evaluation.locomo import Conversation, load_locomo
from inference_core.testing import ScriptedChatModel, call_tool

EXAMPLE = Path(__file__).parent / "conversation.json"
USER = "ada@example.com"
TOLD = "Hi! I'm Ada, I live in Lisbon, I'm allergic to hazelnuts, and please always answer me in bullet points."
ASKED = "Hi again! I'm hungry. What should a pastry for me be free of, and where could I buy it?"
QUESTIONS = 10
console = Console(width=110)


class Spy(AgentMiddleware[Any, Any, Any]):
    """Keeps what reached the model, to show it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[list[BaseMessage]] = []

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Keeps the request and passes it on."""
        self.requests.append([*([request.system_message] if request.system_message else []), *request.messages])
        return handler(request)


def from_the_prompt(messages: list[BaseMessage]) -> str:
    """The scripted model's second answer: put together from the memory block that it was given, not known by heart."""
    block = memory_block(messages)
    found = [line.split("] ", 1)[1].split(" (type:")[0] for line in block.splitlines() if line.startswith("  - [")]
    return "\n".join(["What I remember about you:", *(f"• {memory}" for memory in found)])


def memory_block(messages: list[BaseMessage]) -> str:
    """The memory that reached the model, or nothing."""
    system = "".join(message.text for message in messages if isinstance(message, SystemMessage))
    start, end = system.find("<user_memory_context>"), system.find("</user_memory_context>")
    return system[start : end + len("</user_memory_context>")] if start >= 0 else ""


def chat_model(turns: list[Any]) -> Any:
    """The configured model, else one that follows ``turns``."""
    name = os.environ.get("AGENT_MODEL")
    if name:
        console.print(f"[dim]Model: {name}[/]")
        return init_chat_model(name)
    console.print("[dim]Model: none configured (AGENT_MODEL); a scripted stand-in replies, the memory is real[/]")
    return ScriptedChatModel(turns=turns)


def talk(url: str, text: str, turns: list[Any]) -> None:
    """One process: an agent with memory answers ``text``."""
    with open_store(url) as store:
        store.wait_ready(30)
        spy = Spy()
        agent: Any = create_agent(
            chat_model(turns), store=store, middleware=[MemoryMiddleware(), spy], context_schema=MemoryContext
        )
        console.print(f"[bold green]Ada:[/] {text}")
        result = agent.invoke({"messages": [("user", text)]}, context={"user_id": USER})
        if block := memory_block(spy.requests[0]):
            console.print(Panel(Text(block), title="the memory block that reached the model", border_style="cyan"))
        for message in result["messages"]:
            if isinstance(message, AIMessage) and message.tool_calls:
                for call in message.tool_calls:
                    console.print(f"[yellow]agent calls[/] {call['name']} {call['args']}")
            elif isinstance(message, ToolMessage):
                console.print(f"[yellow]tool says[/]  {message.text}")
            elif isinstance(message, AIMessage):
                console.print(Text.assemble(("Agent: ", "bold blue"), message.text))
        console.print(f"[dim]process {os.getpid()}, memory status: {result['memory_status']}[/]\n")


def first_session(url: str) -> None:
    """Ada tells facts; the agent saves them."""
    talk(
        url,
        TOLD,
        [
            call_tool("save_memory_store", content="Ada lives in Lisbon", memory_type="facts"),
            call_tool("save_memory_store", content="Ada is allergic to hazelnuts", memory_type="facts"),
            call_tool("save_memory_store", content="Always answer Ada in bullet points", memory_type="instructions"),
            "• Nice to meet you, Ada!",
        ],
    )


def second_session(url: str) -> None:
    """A new process and a new thread; the agent knows her."""
    talk(url, ASKED, [from_the_prompt])


async def ingest(service: AgentMemoryStoreService, conversation: Conversation) -> float:
    """Saves every turn as a memory through the public service; the seconds it took."""
    columns = (TextColumn("Remembering {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.perf_counter()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(conversation.id, total=len(conversation.turns))
        for turn in conversation.turns:
            await service.save_memory(
                user_id=conversation.id,
                content=turn.content,
                memory_type="interaction",
                session_id=turn.session,
                memory_id=turn.id,
                valid_from=turn.at,
            )
            progress.advance(task)
    return time.perf_counter() - started


async def quiz(service: AgentMemoryStoreService, conversation: Conversation) -> None:
    """Recalls for ten questions and shows whether the turns that answer them are among the ten hits."""
    table = Table(title=f"Recall from {len(conversation.turns)} turns of “{conversation.id}”")
    for heading in ("question", "best hit", "evidence in top 10", "ms"):
        table.add_column(heading, justify="right" if heading == "ms" else "left")
    answerable = [question for question in conversation.questions if question.evidence][:QUESTIONS]
    found_in_all = 0
    for question in answerable:
        started = time.perf_counter()
        hits = await service.recall_memories(user_id=conversation.id, query=question.text, k=10)
        took = (time.perf_counter() - started) * 1000
        ids = [hit.id for hit in hits]
        found = sum(evidence in ids for evidence in question.evidence)
        found_in_all += found == len(question.evidence)
        best = hits[0].content[:60] if hits else "-"
        table.add_row(question.text, best, f"{found} of {len(question.evidence)}", f"{took:.0f}")
    console.print(table)
    console.print(f"All evidence found for [bold]{found_in_all} of {len(answerable)}[/] questions.")


async def months_of_conversation(store: MemoryStore, conversations: list[Conversation]) -> None:
    """Ingests each conversation as its own user and asks about the first one."""
    service = AgentMemoryStoreService(store=store)
    for conversation in conversations:
        seconds = await ingest(service, conversation)
        console.print(f"[dim]{len(conversation.turns)} memories in {seconds:.1f} s[/]")
    for conversation in conversations:
        await quiz(service, conversation)


def in_a_new_process(step: str, url: str) -> None:
    """Runs one session in a process of its own."""
    subprocess.run([sys.executable, __file__, "--step", step, "--url", url], check=True)  # noqa: S603 - this very file


def main() -> None:
    """The whole demonstration, or one step of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=EXAMPLE, help="a conversation in LoCoMo's format")
    parser.add_argument("--step", choices=["first", "second"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        (first_session if options.step == "first" else second_session)(options.url)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/memory.db"
        console.rule("Monday: Ada tells the agent about herself")
        in_a_new_process("first", url)
        console.rule("Tuesday: a new process, a new thread")
        in_a_new_process("second", url)
        console.rule("A conversation of several months")
        with open_store(url) as store:
            if not store.wait_ready(30):
                console.print("[yellow]No local embedding model: recall is by words alone (extra: local)[/]")
            asyncio.run(months_of_conversation(store, load_locomo(options.data)))


if __name__ == "__main__":
    main()
