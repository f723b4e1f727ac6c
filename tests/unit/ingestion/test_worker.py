"""The worker: all users' messages in the background, rests when the model is out, and lets go without losing any."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from outbox_support import Scripted, claiming, contents, pipeline_on, put, said, word_for_word

from inference_core import MemoryStore
from inference_core.effects import run
from inference_core.errors import ModelError, StoreUnavailable
from inference_core.ingestion import worker
from inference_core.ingestion.worker import Worker
from inference_core.outbox import outbox as queue
from inference_core.outbox.messages import ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Partition
from inference_core.testing import FrozenClock

USERS = [Partition(f"user{number}") for number in range(8)]
PATIENCE_S = 20.0


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def fail(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
    raise ModelError("out of order")


def test_drain_works_on_all_users_until_nothing_is_left(store: MemoryStore) -> None:
    pipeline = pipeline_on(store, word_for_word, batch_messages=2)
    for user in USERS:
        put(pipeline.outbox, *(said(f"message {number}") for number in range(5)), partition=user)
    progress = Worker(pipeline).drain()
    assert (progress.batches, progress.messages, progress.dead, progress.failures) == (24, 40, 0, 0)
    assert all(len(contents(store, user.user_id)) == 5 for user in USERS)
    assert run(pipeline.outbox.partitions()) == []


def test_a_chore_is_done_after_each_look(store: MemoryStore) -> None:
    done: list[int] = []
    one = Worker(pipeline_on(store, word_for_word), interval_s=0.01, chore=lambda: done.append(1))
    one.start()
    until(lambda: len(done) > 1)
    one.close()


def test_a_chore_that_fails_does_not_end_the_worker(store: MemoryStore) -> None:
    done: list[int] = []

    def fails() -> None:
        done.append(1)
        raise KeyError("chore")

    one = Worker(pipeline_on(store, word_for_word), interval_s=0.01, chore=fails)
    one.start()
    until(lambda: len(done) > 2)
    one.close()


def test_a_worker_in_the_background_looks_when_it_is_woken_and_from_time_to_time(store: MemoryStore) -> None:
    before = threading.enumerate()
    pipeline = pipeline_on(store, word_for_word)
    sleepy, quick = Worker(pipeline, interval_s=600), Worker(pipeline, interval_s=0.01)
    for at, one in enumerate((sleepy, quick)):
        one.start()
        one.start()
        put(pipeline.outbox, said(f"message {at}"))
        one.wake()
        until(lambda at=at: len(contents(store)) == at + 1)
        one.close()
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in left if thread.name == "memory-worker"]


def test_a_worker_that_is_closed_with_a_batch_in_hand_ends_after_it(store: MemoryStore) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        begun.set()
        assert may_end.wait(60)
        return word_for_word(messages, offered)

    before = threading.enumerate()
    pipeline = pipeline_on(store, slow)
    put(pipeline.outbox, said("hello"))
    one = Worker(pipeline, interval_s=600)
    one.start()
    assert begun.wait(60)
    one.close(timeout=0.05)
    may_end.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread not in before and "worker" in thread.name])
    assert one.progress.messages == 1


def test_five_failures_of_the_model_in_a_row_make_it_rest(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_FIRST_PAUSE_S", 60.0)
    extractor = Scripted(fail)
    pipeline = pipeline_on(store, extractor, backoff_s=0.0)
    for user in USERS:
        put(pipeline.outbox, said("hello"), partition=user)
    one = Worker(pipeline, threads=1)
    assert one.drain().failures == len(extractor.asked) == 5
    assert one.drain().failures == 5
    one._paused_until = 0.0  # a minute later
    extractor.script = word_for_word
    assert one.drain().messages == 8
    extractor.script = fail
    for user in USERS[:4]:
        put(pipeline.outbox, said("once more"), partition=user)
    assert one.drain().failures == 5 + 4
    assert not one._rests, "a success in between starts the count anew"


@pytest.mark.parametrize("failures", [5, 100, 5_000])
def test_regression_an_outage_of_any_length_does_not_end_the_worker(store: MemoryStore, failures: int) -> None:
    one = Worker(pipeline_on(store, fail))
    put(one._pipeline.outbox, said("hello"))
    one._failures = failures
    before = time.monotonic()
    one.drain()
    assert 0 < one._paused_until - before <= 301


def test_regression_whatever_fails_does_not_end_the_worker(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipeline_on(store, word_for_word)
    put(pipeline.outbox, said("hello"))
    outages: list[Exception] = [StoreUnavailable("down"), ValueError("a row that cannot be read")]
    partitions, process = pipeline.outbox.partitions, pipeline.process

    def read(tasks: Sequence[str | None]) -> object:
        if len(outages) == 2:
            raise outages.pop(0)
        return partitions(tasks)

    def work(*given: object, **options: object) -> object:
        if outages:
            raise outages.pop(0)
        return process(*given, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(pipeline.outbox, "partitions", read)
    monkeypatch.setattr(pipeline, "process", work)
    one = Worker(pipeline, interval_s=0.01)
    one.start()
    until(lambda: contents(store))
    one.close()
    assert one.progress.failures == 1


def test_close_in_the_midst_loses_nothing(store: MemoryStore) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        started.set()
        go_on.wait(PATIENCE_S)
        return word_for_word(messages, offered)

    pipeline = pipeline_on(store, slow, batch_messages=1)
    for user in USERS:
        put(pipeline.outbox, said("one"), said("two"), partition=user)
    one = Worker(pipeline, threads=2)
    one.start()
    assert started.wait(PATIENCE_S)
    one.close(timeout=0.01)
    go_on.set()
    one.close()
    found = run(queue.status(pipeline.outbox.engine, FrozenClock()))
    done = sum(len(contents(store, user.user_id)) for user in USERS)
    assert 1 <= done <= 2
    assert found.waiting + done == 16
    assert one.drain().messages == done
    Worker(pipeline).drain()
    assert all(contents(store, user.user_id) == ["one", "two"] for user in USERS)


def test_regression_messages_in_whose_midst_a_worker_ended_are_worked_on_one_after_the_other(
    store: MemoryStore, clock: FrozenClock
) -> None:
    running: list[int] = []
    most: list[int] = []

    def watched(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        return word_for_word(messages, offered)

    pipeline = pipeline_on(store, watched, clock)
    for user in USERS:
        put(pipeline.outbox, said("hello"), partition=user)
        run(claiming(pipeline.outbox, user))
    clock._moment = clock.now().replace(year=2030)
    assert Worker(pipeline).drain().messages == 8
    assert most == [1] * 8


def test_a_slow_user_holds_up_nobody(store: MemoryStore) -> None:
    """A worker did one batch of everybody and waited for the slowest before the next: 40 messages took 6 s, not .2."""
    others_are_done, slow_began = threading.Event(), threading.Event()

    def script(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        if messages[0].text.startswith("slow"):
            slow_began.set()
            assert others_are_done.wait(PATIENCE_S)
        return word_for_word(messages, offered)

    pipeline = pipeline_on(store, script, batch_messages=1)
    slow, quick, late = USERS[:3]
    put(pipeline.outbox, said("slow 1"), said("slow 2"), partition=slow)
    put(pipeline.outbox, *(said(f"message {number}") for number in range(5)), partition=quick)
    one = Worker(pipeline, threads=2, interval_s=600)
    one.start()
    assert slow_began.wait(PATIENCE_S)
    until(lambda: len(contents(store, quick.user_id)) == 5)
    put(pipeline.outbox, said("came later"), partition=late)
    one.wake()
    until(lambda: contents(store, late.user_id))
    assert contents(store, slow.user_id) == []
    others_are_done.set()
    until(lambda: len(contents(store, slow.user_id)) == 2)
    one.close()


def test_all_get_their_turn(store: MemoryStore) -> None:
    order: list[str] = []

    def script(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        order.append(messages[0].text.split()[0])
        return word_for_word(messages, offered)

    pipeline = pipeline_on(store, script, batch_messages=1)
    for user in USERS[:3]:
        put(pipeline.outbox, *(said(f"{user.user_id} {number}") for number in range(3)), partition=user)
    assert Worker(pipeline, threads=1).drain().messages == 9
    assert [set(order[at : at + 3]) for at in (0, 3, 6)] == [{user.user_id for user in USERS[:3]}] * 3


def test_it_wakes_when_a_batch_of_one_user_waits(store: MemoryStore) -> None:
    """It woke only for a run that added a whole batch by itself; messages of many runs waited for the interval."""
    pipeline = pipeline_on(store, word_for_word, batch_messages=4)
    one = Worker(pipeline, interval_s=600)
    one.start()
    time.sleep(0.1)
    for at, user in enumerate([*USERS[:3], USERS[0]]):
        put(pipeline.outbox, said(f"message {at}"), partition=user)
    time.sleep(0.1)
    assert contents(store, USERS[0].user_id) == []
    for at in range(2):
        put(pipeline.outbox, said(f"and {at}"), partition=USERS[0])
        one.note(USERS[0], 1)
    until(lambda: len(contents(store, USERS[0].user_id)) == 4)
    one.close()


PROGRAM = """
import time
from outbox_support import pipeline_on, put, said
from inference_core import open_store
from inference_core.outbox.outbox import Partition
from inference_core.ingestion.worker import Worker

asked = []

def slow(messages, offered):
    asked.append(messages)
    time.sleep(60)

pipeline = pipeline_on(open_store("memory://", embeddings=None), slow)
for number in range(50):
    put(pipeline.outbox, said("hello"), partition=Partition(f"user{number}"))
worker = Worker(pipeline)
worker.start()
while not asked:
    time.sleep(0.01)
"""


def test_regression_a_program_ends_though_its_worker_is_at_work(quick_python: str) -> None:
    started = time.monotonic()
    subprocess.run([quick_python, "-c", PROGRAM], check=True, timeout=40, cwd="tests", capture_output=True)
    assert time.monotonic() - started < 40


def test_regression_a_lap_that_a_fault_ends_waits_for_its_batches(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next lap began beside them, with twice the calls of a model, and closing did not wait for them."""
    begun, may_end = threading.Event(), threading.Event()

    def slow(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        begun.set()
        assert may_end.wait(60)
        return word_for_word(messages, offered)

    pipeline = pipeline_on(store, slow)
    put(pipeline.outbox, said("hello"))
    one, looks = Worker(pipeline, interval_s=0.01), iter([run(pipeline.partitions())])

    async def once() -> list[Partition]:
        for found in looks:
            return found
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(pipeline, "partitions", once)
    drained = threading.Thread(target=suppressed, args=(one.drain,))
    drained.start()
    assert begun.wait(60)
    drained.join(0.2)
    assert drained.is_alive()
    may_end.set()
    drained.join(10)
    assert one.progress.messages == 1


def suppressed(call: Callable[[], object]) -> None:
    with suppress(StoreUnavailable):
        call()
