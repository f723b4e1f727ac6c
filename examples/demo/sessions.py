"""Two sessions of an agent with its user, each in a process of its own: ``python examples/demo/sessions.py NAME URL``.

Without AGENT_MODEL a scripted model stands in for a real one; the memory is real. The process prints JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call

from inference_core import MemoryContext, MemoryMiddleware
from inference_core.agents.from_settings import ModelErrors, guards, make_chat_model
from inference_core.errors import InferenceCoreError, ModelError
from inference_core.settings import AgentSettings, MemorySettings, read_settings
from inference_core.stores.factory import open_configured_store
from inference_core.testing import ScriptedChatModel, call_tool

USER: Final = "ada@example.com"
TOLD: Final = "Hi! I'm Ada, I live in Lisbon, I'm allergic to hazelnuts, and please always answer me in bullet points."
ASKED: Final = "Hi again! I'm hungry. What should a pastry for me be free of, and where could I buy it?"
FIRST: Final = "first"
SECOND: Final = "second"
_LOADING_S: Final = 30.0
_RECALL_S: Final = 10.0
_BLOCK: Final = re.compile(r"<(user_profile|user_memory_context)>\n.*?</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Session:
    """What happened in a session: steps are ("calls" | "tool" | "reply", text); ``model`` None was the stand-in."""

    said: str
    model: str | None
    prompt_block: str
    steps: list[list[str]]
    process: int
    memory_status: str


def in_a_new_process(name: str, url: str) -> Session:
    """The session ``FIRST`` or ``SECOND`` on the store at ``url``. Raises ModelError if its process failed."""
    command = [sys.executable, __file__, name, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this very module
    if done.returncode:
        raise ModelError((done.stderr.strip().splitlines() or ["The session ended without a word"])[-1])
    return Session(**json.loads(done.stdout))


def talk(name: str, url: str) -> Session:
    """One session, in this process. Raises what the store and the configured model raise."""
    settings = read_settings(AgentSettings)
    said, script = {FIRST: (TOLD, _TELLING), SECOND: (ASKED, [_from_the_prompt])}[name]
    prompts: list[str] = []

    @wrap_model_call
    def keep_prompt(request: Any, handler: Callable[[Any], Any]) -> Any:
        system = [request.system_message] if request.system_message else []
        prompts.append("\n".join(message.text for message in (*system, *request.messages)))
        return handler(request)

    with open_configured_store(read_settings(MemorySettings, store_url=url), encryption_key=None) as store:
        store.wait_ready(_LOADING_S)
        agent: Any = create_agent(
            make_chat_model(settings, None if settings.model else ScriptedChatModel(turns=script)),
            store=store,
            # The default deadline, 300 ms, is for agents that answer people; a busy machine may miss it.
            middleware=[ModelErrors(), MemoryMiddleware(recall_timeout=_RECALL_S), *guards(settings), keep_prompt],
            context_schema=MemoryContext,
        )
        result = agent.invoke({"messages": [("user", said)]}, context={"user_id": USER})
    block = memory_block(prompts[0])
    return Session(said, settings.model, block, _steps(result["messages"]), os.getpid(), result["memory_status"])


def memory_block(prompt: str) -> str:
    """The memory that a prompt holds, or nothing."""
    return "\n\n".join(found[0] for found in _BLOCK.finditer(prompt))


def _steps(messages: Sequence[Any]) -> list[list[str]]:
    steps: list[list[str]] = []
    for message in messages:
        calls: list[dict[str, Any]] = getattr(message, "tool_calls", [])
        steps += [["calls", f"{call['name']} {json.dumps(call['args'], ensure_ascii=False)}"] for call in calls]
        if message.type == "tool" or (message.type == "ai" and not calls):
            steps.append(["tool" if message.type == "tool" else "reply", message.text])
    return steps


def _from_the_prompt(messages: Sequence[Any]) -> str:
    """The stand-in's second answer: made of the memories in its prompt, not known by heart."""
    block = memory_block("\n".join(message.text for message in messages if message.type in ("system", "human")))
    found = [line.split(" ", 2)[2] for line in block.splitlines() if line.startswith("- ")]
    return "\n".join(["What I remember about you:", *(f"• {memory}" for memory in found)])


_TELLING: Final = [
    call_tool("save_memory_store", content="Ada lives in Lisbon", memory_type="facts"),
    call_tool("save_memory_store", content="Ada is allergic to hazelnuts", memory_type="facts"),
    call_tool("save_memory_store", content="Always answer Ada in bullet points", memory_type="instructions"),
    "• Nice to meet you, Ada!",
]

if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(asdict(talk(*sys.argv[1:]))))
    except InferenceCoreError as error:
        sys.exit(str(error))
