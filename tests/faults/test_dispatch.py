"""Dispatcher: Procrastinate calls workers of several processes, and each message has one effect all the same."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from typing import TypeVar

import psycopg
import pytest
from agent_support import ask, make_agent
from databases import database
from outbox_process import LIMITS, Forgetful
from outbox_support import Scripted, contents, pipeline_on, put, said, service_on, word_for_word
from postgres_server import new_server
from processes import Forked
from procrastinate.exceptions import ConnectorException

from inference_core import MemoryContext, MemoryStore, open_store
from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.effects import run
from inference_core.errors import StoreUnavailable
from inference_core.ingestion import procrastinate_dispatch
from inference_core.ingestion.procrastinate_dispatch import Dispatcher
from inference_core.ingestion.worker import Pipeline, Worker
from inference_core.outbox.messages import ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.testing import FrozenClock, ScriptedChatModel

T = TypeVar("T")
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


class Down(logging.Handler):
    """Notes that a worker has met an outage: one of Procrastinate's side tasks did, or else its search for jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.met = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "side_task_failed" or record.name == procrastinate_dispatch.__name__:
            self.met.set()

    @contextmanager
    def listening(self) -> Generator[None]:
        loggers = [logging.getLogger(name) for name in ("procrastinate", procrastinate_dispatch.__name__)]
        for logger in loggers:
            logger.addHandler(self)
        yield
        for logger in loggers:
            logger.removeHandler(self)


async def test_regression_a_worker_goes_on_after_a_restart_of_its_server(caplog: pytest.LogCaptureFixture) -> None:
    """Procrastinate's worker ended, with code 0: agents went on capturing, and nothing became a memory any more."""
    server, down = new_server("postgres"), Down()
    url = server.url()
    with (
        closing(server),
        down.listening(),
        closing(Dispatcher(url)) as dispatcher,
        open_store(url, embeddings=None) as store,
    ):
        dispatcher.set_up()
        pipeline, worked = pipeline_on(store, word_for_word), list[str]()
        working = asyncio.create_task(dispatcher.work(Worker(pipeline), install_signal_handlers=False))
        for at, text in enumerate(("before", "after")):
            if at:
                server.kill()
                assert await asyncio.to_thread(down.met.wait, 300)
                await asyncio.to_thread(server.start)
            await asyncio.to_thread(patiently, lambda text=text: put(pipeline.outbox, said(text)))
            await asyncio.to_thread(patiently, lambda: dispatcher.dispatch(Partition("ada")))
            while text not in worked:
                assert not working.done(), "it goes on"
                worked = await asyncio.to_thread(patiently, lambda: contents(store))
                await asyncio.sleep(0.05)
        assert "it goes on in 1 s" in caplog.text
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        assert waiting_in(url, store) == (0, 0)


def patiently(function: Callable[[], T]) -> T:
    """What ``function`` returns once the server is back."""
    for _ in range(600):
        with suppress(StoreUnavailable, ConnectorException):
            return function()
        time.sleep(0.1)
    return function()


def waiting_in(url: str, store: MemoryStore) -> tuple[int, int]:
    """How many messages wait in the outbox, and how many jobs of Procrastinate."""
    with psycopg.connect(url) as connection:
        (jobs,) = connection.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo' AND task_name = 'inference_core.process'"
        ).fetchall()[0]
    outbox = Outbox(store.engine, FrozenClock())
    messages = sum(run(store.engine.count([one.messages])) for one in run(outbox.partitions()))
    return messages, jobs


async def test_a_worker_that_cannot_go_on_says_so(tmp_path: Path) -> None:
    """Its tables are gone: its process ends with a code other than 0, so that whoever supervises it notices."""
    with (
        database("postgres", tmp_path, is_new=True) as url,
        open_store(url, embeddings=None) as store,
        closing(Dispatcher(url)) as dispatcher,
    ):
        dispatcher.set_up()
        worker = Worker(pipeline_on(store, word_for_word))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE procrastinate_jobs CASCADE")
        with pytest.raises(ConnectorException):
            await dispatcher.work(worker, install_signal_handlers=False)


@pytest.mark.full
def test_ten_restarts_and_two_failovers_leave_nothing_waiting() -> None:
    """While agents capture messages all the time; then the worker ends by SIGTERM, with code 0."""
    with closing(Pair()) as pair, closing(Dispatcher(pair.url)) as dispatcher:
        dispatcher.set_up()
        with open_store(pair.url, embeddings=None) as store:
            pipeline, texts, over, speaking = pipeline_on(store, word_for_word), list[str](), Event(), Lock()
            worker = Forked(work_until_asked, pair.url)
            pid = int(worker.said.readline())

            def speak() -> None:
                while not over.wait(0.1):
                    with speaking, suppress(StoreUnavailable, ConnectorException):  # then the same message again
                        put(pipeline.outbox, said(text := f"[m{len(texts)}]"))
                        texts.append(text)

            def notify() -> None:
                while not over.wait(0.1):
                    with suppress(ConnectorException):
                        dispatcher.dispatch(Partition("ada"))

            agents = [threading.Thread(target=target) for target in (speak, notify)]
            for agent in agents:
                agent.start()
            for number in range(12):
                over.wait(3)
                if number % 6 == 5:
                    with speaking:  # what was acknowledged last may be lost with an asynchronous standby
                        pair.fail_over()
                else:
                    pair.restart(away_s=(0.2, 1, 4)[number % 3])
            over.wait(3)
            over.set()
            for agent in agents:
                agent.join()
            end = time.monotonic() + 180
            while (waiting := patiently(lambda: waiting_in(pair.url, store))) != (0, 0):
                assert time.monotonic() < end, waiting
                time.sleep(1)
            found = Counter(contents(store))
            assert [text for text in texts if found[text] != 1] == []
            print(f"{len(texts)} messages")
        os.kill(pid, signal.SIGTERM)
        code, lines = worker.end()
        assert (code, lines[-1]) == (0, "ended"), lines


def work_until_asked(url: str) -> None:
    with open_store(url, embeddings=None) as store, closing(Dispatcher(url)) as dispatcher:
        worker = Worker(pipeline_on(store, word_for_word))
        print(os.getpid(), flush=True)
        asyncio.run(dispatcher.work(worker))
        print("ended", flush=True)


class Pair:
    """A primary and a standby, and the URL by which clients find whichever is the primary."""

    def __init__(self) -> None:
        self._primary = new_server("postgres-debian", durable=True)
        self._standby = new_server("postgres-debian", durable=True)
        folders = ",".join(str(one.folder) for one in (self._primary, self._standby))
        self.url = f"postgresql://postgres@/postgres?host={folders}&target_session_attrs=read-write"
        self._standby.kill()
        self._follow()

    def restart(self, away_s: float) -> None:
        """Kills the primary, and starts it again after ``away_s`` seconds."""
        self._primary.kill()
        time.sleep(away_s)
        self._primary.start()

    def fail_over(self) -> None:
        """Kills the primary and promotes the standby; the former primary then follows that."""
        with psycopg.connect(self._primary.url(), autocommit=True) as connection:
            lag = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= %s"
            (now,) = connection.execute("SELECT pg_current_wal_lsn()").fetchall()[0]
            while connection.execute(lag, (now,)).fetchall() != [(1,)]:
                time.sleep(0.05)
        self._primary.kill()
        self._primary, self._standby = self._standby, self._primary
        self._primary.execute("SELECT pg_promote()")
        self._follow()

    def close(self) -> None:
        for one in (self._primary, self._standby):
            one.close()

    def _follow(self) -> None:
        """Makes the standby anew, from the primary."""
        data = self._standby.folder / "data"
        shutil.rmtree(data)
        host = ("-h", str(self._primary.folder), "-U", "postgres")
        copied = self._standby.run("pg_basebackup", *host, "-D", str(data), "-R", "-X", "stream", "-c", "fast")
        assert copied.wait() == 0
        self._standby.start()
