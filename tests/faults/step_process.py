"""A scripted run of an agent and a worker in processes that end by kill -9 at their first step, then at their second…

A step is before and after each call of the database, of the checkpointer and of the extractor.
Each process goes on in the databases that those before it left. Time leaps, so that nobody waits for a lease.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, tzinfo
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from outbox_process import MARKER, Forgetful, reply

from inference_core import AgentMemoryStoreService, MemoryContext, open_store
from inference_core.agents.checkpoints import open_checkpointer
from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.effects import run
from inference_core.ingestion.worker import Pipeline
from inference_core.outbox.messages import ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Limits
from inference_core.testing import FrozenClock, ScriptedChatModel

LIMITS = Limits(max_tries=1_000_000)
_LEAP = timedelta(seconds=1_000)
_CALLS = ("apply", "get", "page", "count", "namespaces", "put", "put_writes", "get_tuple")
TURNS_OF_A_THREAD = 5
_DONE, _MORE = 0, 3


class Steps:
    """Counts steps, and ends the process at number ``last``."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._count = 0
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()

    def watch(self, database: Any) -> None:
        """Makes steps of the calls of ``database``."""
        for name in _CALLS:
            if hasattr(database, name):
                setattr(database, name, partial(self._stepped, getattr(database, name)))

    def _stepped(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.step()
        result = call(*args, **kwargs)
        self.step()
        return result


class Stepped(Forgetful):
    """Answers otherwise each time."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Extraction:
        self._steps.step()
        extraction = await super().extract(messages, offered, now, zone)
        self._steps.step()
        return extraction


def step_through(url: str, checkpoints: str, messages: int) -> None:
    """Talks and works until ``messages`` were said at least; then says how many processes were killed at which.

    After each turn that ended, all that waits is worked on, batch by batch.
    """
    clock = FrozenClock()
    _warm_up(url, clock)
    said, killed = 0, {"agents": 0, "workers": 0}
    for turn in count():
        if said >= messages:
            break
        kills, _ = _to_the_end(clock, partial(_talk, url, checkpoints, turn))
        killed["agents"] += kills
        said = len(everything_said(checkpoints))
        has_more = True
        while has_more:
            kills, has_more = _to_the_end(clock, partial(_work, url))
            killed["workers"] += kills
    print(f"said {said} killed {killed['agents']} {killed['workers']}", flush=True)


def _warm_up(url: str, clock: FrozenClock) -> None:
    """Does all once, elsewhere and unharmed, so that no process has to import anything."""
    open_store(url, embeddings=None).close()
    with TemporaryDirectory() as folder:
        elsewhere = f"sqlite:///{folder}/warm.db"
        _talk(elsewhere, elsewhere, 0, clock, Steps(0), 0)
        _work(elsewhere, clock, Steps(0), 0)


def everything_said(checkpoints: str) -> list[str]:
    """The markers of all messages that the agent's threads hold."""
    saver = open_checkpointer(checkpoints)
    found: list[str] = []
    for at in count():
        kept = saver.get_tuple(_thread(at * TURNS_OF_A_THREAD))
        if kept is None:
            break
        messages = kept.checkpoint["channel_values"].get("messages", [])
        found += [mark for message in messages for mark in MARKER.findall(message.text)]
    saver.close()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _thread(turn: int) -> RunnableConfig:
    return {"configurable": {"thread_id": f"thread{turn // TURNS_OF_A_THREAD}"}}


def _to_the_end(clock: FrozenClock, act: Callable[[FrozenClock, Steps, int], bool]) -> tuple[int, bool]:
    """Has ``act`` done by one process after the other until one comes to its end; how many were killed, its result."""
    last, status = 0, 0
    while last == 0 or os.WIFSIGNALED(status):
        last += 1
        clock.advance(_LEAP)
        process = os.fork()
        if not process:
            _end(partial(act, clock, Steps(last), last))
        _, status = os.waitpid(process, 0)
        if status not in (signal.SIGKILL, _DONE << 8, _MORE << 8):
            raise RuntimeError(f"A process ended with status {status}")
    return last - 1, os.WEXITSTATUS(status) == _MORE


def _end(act: Callable[[], bool]) -> NoReturn:
    code = 1
    try:
        code = _MORE if act() else _DONE
    except BaseException:  # noqa: BLE001 - this process must not return into what its parent does
        traceback.print_exc()
    os._exit(code)


def _work(url: str, clock: FrozenClock, steps: Steps, _: int) -> bool:
    """Works on one batch; whether there may be more."""
    with open_store(url, embeddings=None, clock=clock) as store:
        steps.watch(store.engine.backend)
        scope = AgentMemoryStoreService(store, timeout=None, clock=clock).scope
        pipeline = Pipeline(scope, Stepped(steps), limits=LIMITS)
        partitions = run(pipeline.outbox.partitions())
        for one in partitions:
            run(pipeline.process(one))
        store.engine.audit_log.unsealed.clear()  # what a store does when it is closed is no step of the work
    return bool(partitions)


def _talk(url: str, checkpoints: str, turn: int, clock: FrozenClock, steps: Steps, attempt: int) -> bool:
    """Says something to an agent that captures it; in every other thread goes on with what the one before began."""
    model: Any = ScriptedChatModel(turns=[reply], record=False)
    saver = open_checkpointer(checkpoints)
    with open_store(url, embeddings=None, clock=clock) as store:
        capture: Any = CaptureMiddleware(Stepped(steps), works=False, limits=LIMITS, clock=clock)
        agent: Any = create_agent(
            model, store=store, middleware=[capture], checkpointer=saver, context_schema=MemoryContext
        )
        for database in (store.engine.backend, saver):
            steps.watch(database)
        thread = _thread(turn)
        resumes = turn // TURNS_OF_A_THREAD % 2 == 0
        name = f"[u{turn}]" if resumes else f"[u{turn}x{attempt}]"
        is_begun = resumes and (agent.get_state(thread).next or name in everything_said(checkpoints))
        given = None if is_begun else {"messages": [("user", name)]}
        agent.invoke(given, thread, context={"user_id": "ada"}, durability="sync")
        store.engine.audit_log.unsealed.clear()
    return False
