"""Faults, kill -9, poison and outages on the way from messages to memories: none lost, none twice, none in the way."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from databases import database
from flaky import crossed, waits
from outbox_process import LIMITS, MARKER, POISON_LIMITS, Forgetful, talk, work, work_on_poison
from outbox_support import ADA, Scripted, contents, pipeline_on, put, said, service_on, word_for_word
from processes import Forked

from inference_core import open_store
from inference_core.agents.checkpoints import open_checkpointer
from inference_core.effects import Operation, run
from inference_core.errors import DeadlineExceeded, ModelError, StoreError, StoreUnavailable, VersionConflict
from inference_core.ingestion import worker
from inference_core.ingestion.undo import jobs
from inference_core.ingestion.worker import Pipeline, Worker
from inference_core.outbox import outbox as queue
from inference_core.outbox.messages import Action, Candidate, ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.testing import FrozenClock

FAULTS = {
    type(one).__name__: one
    for one in (StoreUnavailable("down"), DeadlineExceeded("late"), VersionConflict("changed"), KeyboardInterrupt())
}
INSTEAD_OR_AFTER = {"instead": False, "after": True}
ONE_OR_TWO = {"one database": False, "outbox elsewhere": True}
MOST_WAITS = 1_000
"""No operation has so many."""
TEXTS = ["Lives in Porto", "Has a cat", "Likes tea"]


TURNS: dict[BaseException, int] = {fault: turn for turn, fault in enumerate(FAULTS.values())}


def with_fault(plan: Operation[Any], at: int, fault: BaseException, *, is_done: bool) -> bool:
    """Runs ``plan``, but its effect number ``at`` raises ``fault``, after it was done or instead; whether it came."""
    advance: Callable[[], Any] = partial(plan.send, None)
    for number in count():
        try:
            effect = advance()
        except (StopIteration, StoreError, KeyboardInterrupt):
            return number > at
        try:
            result = None if number == at and not is_done else effect.start().result()
            if number == at:
                raise fault
            advance = partial(plan.send, result)
        except BaseException as error:  # noqa: BLE001 - a driver hands every error to the plan
            advance = partial(plan.throw, error)
    return False


def fickle(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
    """Answers otherwise each time; Porto takes the place of Lisbon."""
    made = time.monotonic_ns()
    home = next((one.memory_id for one in offered if "Lisbon" in one.content), None)
    return Extraction(
        [
            Candidate(
                content=f"{message.text}: {made}",
                action=Action.SUPERSEDE if "Porto" in message.text else Action.ADD,
                target=home if "Porto" in message.text else None,
            )
            for message in messages
        ]
    )


@pytest.mark.parametrize(("fault", "is_done", "elsewhere"), crossed(FAULTS, INSTEAD_OR_AFTER, ONE_OR_TWO))
def test_after_a_fault_at_any_effect_nothing_is_lost_and_nothing_twice(
    fault: BaseException, is_done: bool, elsewhere: bool, full: bool
) -> None:
    came = [True]
    for at in waits(MOST_WAITS, TURNS[fault], full=full):
        clock = FrozenClock()
        with open_store("memory://", embeddings=None) as store, open_store("memory://", embeddings=None) as other:
            service = service_on(store, clock)
            service.sync.save_memory("ada", "Lives in Lisbon", "facts", memory_id="home")
            outbox = Outbox((other if elsewhere else store).engine, clock)
            pipeline = Pipeline(service.scope, Scripted(fickle), outbox=outbox)
            put(outbox, *(said(text) for text in TEXTS))
            came.append(with_fault(pipeline.process(ADA), at, fault, is_done=is_done))
            for _ in range(4):
                clock._moment = clock.now().replace(year=clock.now().year + 1)
                Worker(pipeline).drain()
            made = [content.partition(":")[0] for content in contents(store)]
            assert sorted(made) == sorted([*TEXTS, "Lives in Lisbon"])
            home = service.sync.get_memory("ada", "home")
            assert home is not None
            assert home.value["superseded_by"]
            assert len({row.value["session"] for row in run(jobs(service.scope, "ada"))}) == 1
            found = run(queue.status(outbox.engine, clock))
            assert (found.partitions, found.waiting, found.dead) == (0, 0, 0)
        if not came[-1]:
            break
    assert len(came) > (8 if full else 4)
    assert not came[-1]


def everything_said(checkpoints: str) -> list[str]:
    """The markers of all messages that the agent's thread holds."""
    saver = open_checkpointer(checkpoints)
    found = saver.get_tuple({"configurable": {"thread_id": "one"}})
    assert found is not None
    messages = found.checkpoint["channel_values"]["messages"]
    saver.close()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return [mark for message in messages for mark in MARKER.findall(message.text)]


def one_more_turn(url: str, checkpoints: str, name: str) -> None:
    """A turn that is not killed, with which what was not captured yet is captured."""
    assert Forked(talk, url, checkpoints, name, 1).end()[0] == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_after_kill_9_of_agents_and_workers_each_message_has_one_effect(kind: str, tmp_path: Path, full: bool) -> None:
    checkpoints = f"sqlite:///{tmp_path / 'checkpoints.db'}"
    chance = random.Random(7)
    rounds = 100 if full else 8
    with database(kind, tmp_path) as url:
        with open_store(url, embeddings=None):
            pass
        speaker = Forked(talk, url, checkpoints, "0")
        workers = [Forked(work, url) for _ in range(2)]
        for number in range(1, rounds + 1):
            victim = workers[number % 2]
            victim.said.readline()
            time.sleep(chance.uniform(0.0, 0.1))
            victim.kill()
            victim.end()
            workers[number % 2] = Forked(work, url)
            if number % 4 == 0:
                for _ in ("started", "said", "said"):
                    speaker.said.readline()
                time.sleep(chance.uniform(0.1, 0.5))
                speaker.kill()
                speaker.end()
                speaker = Forked(talk, url, checkpoints, str(number))
        for process in (speaker, *workers):
            process.kill()
            process.end()
        one_more_turn(url, checkpoints, "last")
        expected = everything_said(checkpoints)
        with open_store(url, embeddings=None) as store:
            time.sleep(LIMITS.lease_s)
            pipeline = Pipeline(service_on(store).scope, Forgetful(), limits=LIMITS)
            end = time.monotonic() + 20
            while run(pipeline.outbox.partitions()) and time.monotonic() < end:
                Worker(pipeline).drain()
                time.sleep(0.05)
            effects = Counter(MARKER.findall(content)[0] for content in contents(store))
            left = run(queue.status(pipeline.outbox.engine, pipeline.scope.clock))
    assert len(expected) > rounds
    assert (left.waiting, left.dead) == (0, 0)
    assert effects == Counter(expected)


def test_poison_neither_stops_nor_harms_the_others(tmp_path: Path, full: bool) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    jobs_in_all, failing, hanging, killing = (1_000, 20, 5, 5) if full else (80, 6, 2, 2)
    kinds = ["fails"] * failing + ["hangs"] * hanging + ["kills"] * killing
    bad = {at * 37 % jobs_in_all: kind for at, kind in enumerate(kinds)}
    texts = [f"job {at} {bad.get(at, 'good')}" for at in range(jobs_in_all)]
    with open_store(url, embeddings=None) as store:
        outbox = Outbox(store.engine, service_on(store).scope.clock, POISON_LIMITS)
        for at, text in enumerate(texts):
            put(outbox, said(text), partition=Partition(f"user{at}"))
    started = time.time()
    tried: list[str] = []
    code = None
    while code != 0:
        assert time.time() - started < 200
        code, lines = Forked(work_on_poison, url).end()
        assert code in (0, 9), lines
        tried += [line for line in lines if line.startswith("tried ")]
    tries = Counter(line.removeprefix("tried ").rpartition(" ")[0] for line in tried)
    last_good = max(float(line.rpartition(" ")[2]) for line in tried if "good" in line)
    with open_store(url, embeddings=None) as store:
        letters = run(queue.dead_letters(store.engine))
        done = [contents(store, f"user{at}") for at in range(jobs_in_all)]
    assert len(bad) == len(kinds)
    assert done == [[] if at in bad else [text] for at, text in enumerate(texts)]
    assert sorted(letter.text for letter in letters) == sorted(texts[at] for at in bad)
    assert max(tries.values()) == 3
    assert {letter.tries for letter in letters} == {3}
    reasons = Counter((letter.text.split()[-1], letter.reason.split()[0]) for letter in letters)
    assert reasons == {("fails", "ValueError:"): failing, ("hangs", "ModelError:"): hanging, ("kills", "The"): killing}
    assert last_good - started < 60


def test_an_outage_of_the_model_costs_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "_LONGEST_PAUSE_S", 0.002)
    tries: Counter[str] = Counter()

    def out(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        tries.update(message.text for message in messages)
        if sum(tries.values()) < 60:
            raise ModelError("503")
        return word_for_word(messages, offered)

    with open_store("memory://", embeddings=None) as store:
        pipeline = pipeline_on(store, out, backoff_s=0.001)
        users = [Partition(f"user{number}") for number in range(40)]
        for user in users:
            put(pipeline.outbox, said(f"hello from {user.user_id}"), partition=user)
        one = Worker(pipeline)
        end = time.monotonic() + 30
        while run(pipeline.outbox.partitions()) and time.monotonic() < end:
            one.drain()
            time.sleep(0.002)
        letters = run(queue.dead_letters(store.engine))
        done = [user for user in users if contents(store, user.user_id)]
        assert len(done) + len(letters) == len(users)
        assert all(letter.tries == tries[letter.text] == 3 for letter in letters)
        assert all(letter.reason == "ModelError: 503" for letter in letters)
        assert run(queue.retry(pipeline.outbox.engine, pipeline.scope.clock)) == len(letters) > 0
        one.drain()
        assert all(contents(store, user.user_id) for user in users)
