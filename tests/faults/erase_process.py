"""What runs beside an erasure: a writer, workers in mid-extraction, a reader whose index is warm; and one to be killed.

Each is a process of its own, or a thread where the store is one of this process. None writes for the user any more once
it was refused: what comes later is a user who has come back.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from erasing_support import ADA, CANARY, pipeline_on
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from outbox_support import said, word_for_word
from processes import CONTEXT

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.errors import StoreUnavailable, UserErased
from inference_core.ingestion.worker import Worker
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.services.agent_memory_service import SyncMemoryService
from inference_core.stores.factory import any_engine_of
from inference_core.testing import FrozenClock

KEPT = "carol@example.com"
"""A user whom the writers go on writing for."""
SESSION = f"session of {ADA}"
BEFORE, AFTER = "before", "after"
"""Words of messages: the model answers while the erasure is under way, or after it has ended."""
Say = Callable[[str], Any]
_PAUSE_S = 0.002


@dataclass
class Place:
    """Where memories and the outbox lie: URLs, the file of LangGraph's SqliteStore, or its InMemoryStore itself."""

    store: str | InMemoryStore
    outbox: str | None = None

    @contextmanager
    def opened(self) -> Generator[tuple[Any, Any]]:
        """The store, and that of the outbox."""
        with open_store(self.outbox or "memory://", embeddings=None) as outbox:
            if isinstance(self.store, InMemoryStore):
                yield self.store, outbox
            elif self.store.startswith("langgraph:"):
                with SqliteStore.from_conn_string(self.store.removeprefix("langgraph:")) as foreign:
                    foreign.setup()
                    yield foreign, outbox
                    any_engine_of(foreign).close()
            else:
                with open_store(self.store, embeddings=None) as store:
                    yield store, outbox if self.outbox else store


class Signs:
    """What the processes and the test tell each other; ``erased`` is the moment at which an erasure had ended, or 0."""

    def __init__(self) -> None:
        self.started: Semaphore = CONTEXT.Semaphore(0)
        self.asked: Semaphore = CONTEXT.Semaphore(0)
        self.refused: Semaphore = CONTEXT.Semaphore(0)
        self.under_way: Event = CONTEXT.Event()
        self.over: Event = CONTEXT.Event()
        self.erased: Any = CONTEXT.Value("d", 0.0)


def say_to(path: Path, text: str) -> None:
    """Adds a line to the file at ``path``, which any number of processes may do."""
    with path.open("a") as file:
        file.write(f"{text}\n")


def write(place: Place, signs: Signs, say: Say, *, writes_for_ada: bool = True) -> None:
    """Saves, updates, recalls, deletes and hands over messages without a pause; says what it has saved of KEPT."""
    with place.opened() as (store, outbox):
        service = AgentMemoryStoreService(store, timeout=None).sync
        box = Outbox(any_engine_of(outbox), FrozenClock())
        signs.started.release()
        for number in count():
            if signs.over.is_set():
                return
            with suppress(StoreUnavailable):  # a store of LangGraph's is locked by others now and then
                name = f"kept-{os.getpid()}-{number}"
                service.save_memory(KEPT, name, memory_id=name)
                say(name)
            if writes_for_ada:
                try:
                    _live(service, box, f"{os.getpid()}-{number}")
                except UserErased:
                    writes_for_ada = False
                    signs.refused.release()
                except StoreUnavailable:
                    pass
            time.sleep(_PAUSE_S)


def _live(service: SyncMemoryService, box: Outbox, name: str) -> None:
    service.save_memory(ADA, f"{CANARY} {name}", memory_id=name, session_id=SESSION)
    service.update_memory(ADA, name, f"{CANARY} {name} again")
    service.recall_memories(ADA, CANARY)
    run(box.put(Partition(ADA), [said(f"{CANARY} was said {name}", session=SESSION)]))
    service.delete_memory(ADA, name)


def work(place: Place, signs: Signs, say: Say) -> None:
    """A worker whose model answers when the erasure is under way, or, to messages with the word AFTER, has ended."""

    def answered(messages: Any, offered: Any) -> Any:
        text = " ".join(message.text for message in messages)
        if BEFORE in text or AFTER in text:
            signs.asked.release()
            assert signs.under_way.wait(60)
        while AFTER in text and not signs.erased.value:
            time.sleep(_PAUSE_S)
        return word_for_word(messages, offered)

    with place.opened() as (store, outbox):
        worker = Worker(pipeline_on(store, outbox, answered))
        signs.started.release()
        while not signs.over.is_set():
            with suppress(StoreUnavailable):
                worker.drain()
            time.sleep(_PAUSE_S * 10)
        say(f"failures {worker.progress.failures}")


def read(place: Place, signs: Signs, say: Say) -> None:
    """Reads on every path; says what it has found in a question that began after the erasure."""
    with place.opened() as (store, _):
        service = AgentMemoryStoreService(store, timeout=None).sync
        is_started = False
        while not signs.over.is_set():
            began = time.time()
            with suppress(StoreUnavailable):
                found = [
                    service.recall_memories(ADA, CANARY, k=3),
                    service.list_memories(ADA, limit=5),
                    service.format_context_for_prompt(ADA, CANARY),
                    service.get_memory(ADA, "m0"),
                    service.list_receipts(ADA),
                    service.list_pending(ADA),
                    service.audit(ADA),
                ]
                if 0 < signs.erased.value < began and CANARY in repr(found):
                    say(f"seen {found}")
                if not is_started:
                    is_started = True
                    signs.started.release()
            time.sleep(_PAUSE_S)


def erase_and_die(url: str, ledger: Path, step: int, say: Say) -> None:
    """Erases, and is killed before line number ``step`` of what makes an erasure; says how many lines there are."""
    from inference_core.lifecycle import erasing
    from inference_core.stores.locks import private_file
    from inference_core.stores.rules.erasure_epoch import Fences

    writes: Any = private_file
    functions: list[Any] = [
        erase,
        erasing._remove_all,
        erasing._remove,
        erasing._write_plan,
        erasing._fenced,
        erasing.hits_in_files,
    ]
    functions += [Ledger.append, Ledger.make, writes.__wrapped__, Fences.put_up, Fences.take_down]
    traced: set[CodeType] = {one.__code__ for one in functions}
    lines = 0

    def trace(frame: FrameType, event: str, given: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == step:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace if frame.f_code in traced else None

    with open_store(url, embeddings=None) as store:
        sys.settrace(trace)
        erase([store.engine.backend], ADA, Ledger(ledger))
        sys.settrace(None)
    say(f"{lines}")
