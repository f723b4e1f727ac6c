"""Dispatcher: Procrastinate calls workers of several processes, and each message has one effect all the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from agent_support import ask, make_agent
from databases import database
from outbox_process import LIMITS, Forgetful
from outbox_support import Scripted, contents, pipeline_on, put, said, service_on, word_for_word
from processes import Forked

from inference_core import MemoryContext, MemoryStore, open_store
from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.ingestion.pipeline import Pipeline
from inference_core.ingestion.procrastinate_dispatch import Dispatcher
from inference_core.ingestion.worker import Worker
from inference_core.outbox.candidates import Extraction, KnownMemory
from inference_core.outbox.messages import ConversationMessage
from inference_core.outbox.partitions import Partition
from inference_core.testing import ScriptedChatModel

USERS = [f"user{number}" for number in range(3)]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with database("postgres", tmp_path) as made:
        with closing(Dispatcher(made)) as dispatcher:
            dispatcher.set_up()
            dispatcher.set_up()
        yield made


def work_as_called(url: str) -> None:
    """Works until the process is killed."""
    with open_store(url, embeddings=None) as store, closing(Dispatcher(url)) as dispatcher:
        worker = Worker(Pipeline(service_on(store).scope, Forgetful(), limits=LIMITS))
        print("started", flush=True)
        asyncio.run(dispatcher.work(worker))


async def until(found: list[str], count: int) -> None:
    end = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_a_message_is_worked_on_when_the_worker_is_called_and_when_it_begins(url: str) -> None:
    worked: list[str] = []

    def noted(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        worked.append("batch")
        return word_for_word(messages, offered)

    with open_store(url, embeddings=None) as store, closing(Dispatcher(url)) as dispatcher:
        pipeline = pipeline_on(store, noted)
        put(pipeline.outbox, said("before"), partition=Partition("bob"))
        working = asyncio.create_task(dispatcher.work(Worker(pipeline), install_signal_handlers=False))
        await until(worked, 1)
        put(pipeline.outbox, said("hello"))
        for _ in range(3):
            await asyncio.to_thread(dispatcher.dispatch, Partition("ada"))
        await asyncio.to_thread(dispatcher.dispatch, Partition("nobody"))
        await until(worked, 2)
        put(pipeline.outbox, said("again"))
        await asyncio.to_thread(dispatcher.dispatch, Partition("ada"))
        await until(worked, 3)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        assert (contents(store), contents(store, "bob")) == (["again", "hello"], ["before"])


def test_several_processes_share_what_waits_and_take_over_from_one_that_was_killed(url: str) -> None:
    workers = [Forked(work_as_called, url) for _ in range(2)]
    for one in workers:
        one.said.readline()
    with open_store(url, embeddings=None) as store, closing(Dispatcher(url)) as dispatcher:
        pipeline = pipeline_on(store, word_for_word)

        def speak(user: str) -> None:
            for number in range(5):
                put(pipeline.outbox, said(f"[m{number}]"), partition=Partition(user))
                dispatcher.dispatch(Partition(user))

        threads = [threading.Thread(target=speak, args=(user,)) for user in USERS]
        for thread in threads:
            thread.start()
        workers[0].kill()
        for thread in threads:
            thread.join()
        end = time.monotonic() + 20
        while waiting := Worker(pipeline).waiting():
            assert time.monotonic() < end
            for partition in waiting:
                dispatcher.dispatch(partition)
            time.sleep(0.1)
        workers[1].kill()
        effects = [Counter(text.split()[0] for text in contents(store, user)) for user in USERS]
    for one in workers:
        one.end()
    assert effects == [Counter(f"[m{number}]" for number in range(5))] * len(USERS)


async def test_capture_calls_a_worker_and_goes_on_if_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    called: list[Partition] = []

    def dispatch(partition: Partition) -> None:
        called.append(partition)
        if len(called) == 2:
            raise ConnectionError("no broker")

    store: MemoryStore
    with open_store("memory://", embeddings=None) as store:
        capture = CaptureMiddleware(Scripted(), works=False, dispatch=dispatch)
        model = ScriptedChatModel(turns=["One.", "Two."])
        agent = make_agent(model, store=store, middleware=[capture], context_schema=MemoryContext)
        for face in ("sync", "async"):
            await ask(agent, face, f"hello {face}", {}, context={"user_id": "ada"})
    assert [partition.user_id for partition in called] == ["ada", "ada"]
    assert "No worker was called: no broker" in caplog.text
