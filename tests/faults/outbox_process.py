"""Processes around an outbox, to be killed at any moment: an agent that captures what is said, and workers."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Sequence
from datetime import datetime, tzinfo
from itertools import count
from typing import Any

from langchain_core.messages import BaseMessage

from inference_core import AgentMemoryStoreService, open_store
from inference_core.asking import ask
from inference_core.ingestion import worker
from inference_core.ingestion.worker import Pipeline, Worker
from inference_core.outbox.messages import Candidate, ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Limits
from inference_core.testing import ScriptedChatModel

MARKER = re.compile(r"\[\w+\]")
LIMITS = Limits(batch_messages=5, lease_s=0.5, backoff_s=0.05, max_tries=1_000)
POISON_LIMITS = Limits(lease_s=1.5, backoff_s=0.02)
PAUSE_S = 0.02


class Forgetful:
    """An extractor that answers otherwise each time: a memory a message, named by its marker and by its moment."""

    async def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Extraction:
        time.sleep(random.random() * 0.005)  # noqa: ASYNC251 - an operation, which no loop runs
        made = f"{os.getpid()} {time.monotonic_ns()}"
        marks = [mark for message in messages for mark in MARKER.findall(message.text)]
        return Extraction([Candidate(content=f"{mark} {made}") for mark in marks])


def hang(_: object) -> str:
    time.sleep(60)
    return "too late"


def reply(messages: list[BaseMessage]) -> str:
    return f"Heard [a{messages[-1].text[2:]}"


class Poisoned:
    """An extractor for which some messages always fail, hang, or end the process."""

    model = ScriptedChatModel(turns=[hang], record=False)

    async def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Extraction:
        text = " ".join(message.text for message in messages)
        os.write(1, f"tried {text} {time.time()}\n".encode())
        if "fails" in text:
            raise ValueError("nonsense")
        if "kills" in text:
            os._exit(9)
        if "hangs" in text:
            await ask(self.model, [], timeout=0.2)
        return Extraction([Candidate(content=text)])


def work(url: str) -> None:
    """A worker that goes on until the process is killed."""
    with open_store(url, embeddings=None) as store:
        scope = AgentMemoryStoreService(store, timeout=None).scope
        one = Worker(Pipeline(scope, Forgetful(), limits=LIMITS))
        print("started", flush=True)
        while True:
            one.drain()
            time.sleep(0.01)


def work_on_poison(url: str) -> None:
    """A worker that ends when nothing is left."""
    worker._FIRST_PAUSE_S = PAUSE_S  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    with open_store(url, embeddings=None) as store:
        scope = AgentMemoryStoreService(store, timeout=None).scope
        pipeline = Pipeline(scope, Poisoned(), limits=POISON_LIMITS)
        one = Worker(pipeline)
        while store.engine.backend.namespaces(("~outbox",)) not in ([], [("~outbox", "dead")]):
            one.drain()
            time.sleep(0.01)


def talk(url: str, checkpoints: str, name: str, turns: int | None = None) -> None:
    """An agent with which a user talks so many times, or until the process is killed; says which turns have ended."""
    from langchain.agents import create_agent

    from inference_core import MemoryContext
    from inference_core.agents.checkpoints import open_checkpointer
    from inference_core.agents.middleware.capture import CaptureMiddleware

    model: Any = ScriptedChatModel(turns=[reply], record=False)
    with open_store(url, embeddings=None) as store:
        capture: Any = CaptureMiddleware(Forgetful(), works=False, limits=LIMITS)
        agent: Any = create_agent(
            model,
            store=store,
            middleware=[capture],
            checkpointer=open_checkpointer(checkpoints),
            context_schema=MemoryContext,
        )
        thread = {"configurable": {"thread_id": "one"}}
        print("started", flush=True)
        for number in count() if turns is None else range(turns):
            text = f"[u{name}x{number}]"
            agent.invoke({"messages": [("user", text)]}, thread, context={"user_id": "ada"}, durability="sync")
            print("said", text, flush=True)
