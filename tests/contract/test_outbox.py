"""The outbox on every kind of database: in once, out once, fenced, tried again, and given up in sight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from outbox_support import ADA, Scripted, claiming, contents, is_listed, pipeline_on, put, said, step, word_for_word

from inference_core import open_store
from inference_core.effects import Operation, run
from inference_core.errors import ModelError, StoreError, StoreUnavailable, VersionConflict
from inference_core.ingestion.consolidation import MemoryChanges
from inference_core.ingestion.worker import BatchOutcome, MessageWork
from inference_core.memory.types import MemoryType
from inference_core.outbox import outbox as queue
from inference_core.outbox.messages import Candidate, ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Claim, Limits, Outbox, Partition
from inference_core.services.operations.scope import MemoryScope
from inference_core.stores.factory import engine_of
from inference_core.testing import FrozenClock

SECOND = timedelta(seconds=1)
LONG_SESSION = "s" * 5_000


@pytest.fixture
def store(own_store: BaseStore) -> BaseStore:
    return own_store


def outbox_on(store: BaseStore, clock: FrozenClock, **limits: float) -> Outbox:
    return Outbox(engine_of(store), clock, Limits(**limits))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def claimed(outbox: Outbox, partition: Partition = ADA) -> Claim:
    claim = run(claiming(outbox, partition))
    assert claim is not None
    return claim


def texts(claim: Claim | None) -> list[str]:
    return [] if claim is None else [waiting.message.text for waiting in claim.batch]


async def before(plan: Operation[Any], at: int, act: Callable[[], object]) -> Any:
    """``plan``, but before its effect number ``at`` comes ``act``."""
    advance: Callable[[], Any] = partial(plan.send, None)
    for number in count():
        try:
            effect = advance()
        except StopIteration as stop:
            return stop.value
        if number == at:
            act()
        try:
            advance = partial(plan.send, await effect)
        except StoreError as error:
            advance = partial(plan.throw, error)
    return None


def settle(outbox: Outbox, claim: Claim) -> None:
    run(outbox.engine.write(outbox.completion_writes(claim)))


def refuse(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
    """Fails as long as a bad message is among them."""
    if any("bad" in message.text for message in messages):
        raise ModelError("no answer")
    return word_for_word(messages, offered)


def test_a_message_goes_in_once_from_however_many_threads(store: BaseStore, clock: FrozenClock) -> None:
    outbox = outbox_on(store, clock, batch_messages=100)
    messages = [said(f"message {number}") for number in range(20)]
    counts: list[int] = []

    def writer(at: int) -> None:
        counts.extend(put(outbox, *messages[start : start + 5], messages[at]) for start in range(0, 20, 5))

    threads = [threading.Thread(target=writer, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 20
    assert put(outbox, *messages) == put(outbox) == 0
    claim = claimed(outbox)
    assert sorted(texts(claim)) == sorted(message.text for message in messages)
    settle(outbox, claim)
    assert put(outbox, *messages, messages[0]) == 0


def test_messages_are_told_apart_by_session_id_position_text_and_agent(store: BaseStore, clock: FrozenClock) -> None:
    outbox = outbox_on(store, clock)
    plain = said("hello", name="1")
    nameless = ConversationMessage(session_id="s", role=plain.role, text="hello")
    others = [
        said("hello", session="t", name="1"),
        said("hello", name="2"),
        said("hello again", name="1"),
        nameless,
        ConversationMessage(session_id="s", role=plain.role, text="hello", position=1),
    ]
    assert put(outbox, plain, plain) == 1
    assert put(outbox, *others, plain) == 5
    assert put(outbox, plain, partition=Partition("ada", "planner")) == 1
    assert put(outbox, plain, partition=Partition("bob")) == 1


def test_batches_are_bounded_by_count_tokens_and_session(store: BaseStore, clock: FrozenClock) -> None:
    outbox = outbox_on(store, clock, batch_messages=3, batch_tokens=100)
    for text, session in [
        ("a", "1"),
        ("b", "1"),
        ("c", "1"),
        ("d", "1"),
        ("e", "2"),
        ("f" * 240, "2"),
        ("g" * 240, "2"),
    ]:
        put(outbox, said(text, session=session))
        clock.advance(SECOND)
    put(outbox, said("h" * 4_000, session="2"))
    batches: list[list[str]] = []
    while claim := run(claiming(outbox)):
        batches.append([text[0] for text in texts(claim)])
        settle(outbox, claim)
    assert batches == [["a", "b", "c"], ["d"], ["e", "f"], ["g"], ["h"]]
    assert run(outbox.partitions()) == []


def test_a_worker_whose_lease_ran_out_can_neither_keep_nor_settle_nor_fail(
    store: BaseStore, clock: FrozenClock
) -> None:
    outbox = outbox_on(store, clock, lease_s=60)
    put(outbox, said("hello"))
    slow = claimed(outbox)
    assert run(claiming(outbox)) is None
    clock.advance(timedelta(seconds=59))
    assert run(claiming(outbox)) is None
    clock.advance(timedelta(seconds=60))
    second = claimed(outbox)
    assert texts(second) == ["hello"]
    for late in (
        outbox.keep(slow, Extraction([])),
        outbox.engine.write(outbox.completion_writes(slow)),
        outbox.failed(slow, ""),
    ):
        with pytest.raises(VersionConflict):
            run(late)
    run(outbox.release(slow))
    kept = run(outbox.keep(second, Extraction([Candidate(content="kept")])))
    with pytest.raises(VersionConflict):
        settle(outbox, second)
    settle(outbox, kept)
    assert run(queue.status(outbox.engine, clock)).waiting == 0


def test_a_kept_extraction_is_applied_without_asking_again(store: BaseStore, clock: FrozenClock) -> None:
    extractor = Scripted()
    pipeline = pipeline_on(store, extractor, clock)
    put(pipeline.outbox, said("hello"), said("there"))
    claim = claimed(pipeline.outbox)
    run(pipeline.outbox.keep(claim, Extraction([Candidate(content="from before")])))
    clock.advance(timedelta(seconds=200))
    put(pipeline.outbox, said("later"))
    assert step(pipeline).messages == 2
    assert (extractor.asked, contents(store)) == ([], ["from before"])
    assert step(pipeline).messages == 1
    assert extractor.asked == [["later"]]


def test_a_batch_that_fails_is_tried_message_by_message_until_the_bad_one_dies(
    store: BaseStore, clock: FrozenClock
) -> None:
    extractor = Scripted(refuse)
    pipeline = pipeline_on(store, extractor, clock, backoff_s=10)
    put(pipeline.outbox, said("good one"), said("bad one"), said("good two"))
    assert step(pipeline).outcome is BatchOutcome.MODEL_FAILED
    assert [step(pipeline).outcome for _ in range(4)] == [
        *(BatchOutcome.DONE, BatchOutcome.MODEL_FAILED, BatchOutcome.DONE),
        BatchOutcome.NOTHING,
    ]
    assert extractor.asked == [["good one", "bad one", "good two"], ["good one"], ["bad one"], ["good two"]]
    clock.advance(timedelta(seconds=59))
    assert step(pipeline).outcome is BatchOutcome.NOTHING
    clock.advance(2 * SECOND)
    assert step(pipeline).dead == 1
    assert step(pipeline).outcome is BatchOutcome.NOTHING
    (letter,) = run(queue.dead_letters(pipeline.outbox.engine))
    assert (letter.text, letter.reason, letter.tries) == ("bad one", "ModelError: no answer", 3)
    assert letter.partition == ADA
    assert contents(store) == ["good one", "good two"]
    assert run(pipeline.outbox.partitions()) == []


def test_dead_messages_are_put_back_or_dropped(store: BaseStore, clock: FrozenClock) -> None:
    extractor = Scripted(refuse)
    pipeline = pipeline_on(store, extractor, clock, max_tries=1, batch_messages=1)
    outbox = pipeline.outbox
    put(outbox, said("bad one"), said("bad two"), said("bad three"))
    assert [step(pipeline).dead for _ in range(3)] == [1, 1, 1]
    assert step(pipeline).outcome is BatchOutcome.NOTHING
    letters = {letter.text: letter.key for letter in run(queue.dead_letters(outbox.engine))}
    assert run(queue.retry(outbox.engine, clock, [letters["bad one"], "unknown"])) == 1
    assert run(queue.drop(outbox.engine, [letters["bad two"]])) == 1
    found = run(queue.status(outbox.engine, clock))
    assert (found.partitions, found.waiting, found.dead) == (1, 1, 1)
    extractor.script = word_for_word
    assert step(pipeline).messages == 1
    assert run(queue.retry(outbox.engine, clock)) == 1
    assert run(queue.retry(outbox.engine, clock)) == run(queue.drop(outbox.engine)) == 0
    assert step(pipeline).messages == 1
    assert contents(store) == ["bad one", "bad three"]
    assert put(outbox, said("bad one"), said("bad two")) == 0


def test_a_partition_leaves_the_list_when_it_is_done_unless_a_message_comes_in_between(
    store: BaseStore, clock: FrozenClock
) -> None:
    outbox, elsewhere = outbox_on(store, clock), outbox_on(store, clock)
    came: list[int] = []

    async def emptied() -> None:
        """Settles a batch as the worker does, and looks for another."""
        claim = await claiming(outbox)
        if claim is not None:
            try:
                await outbox.engine.write(outbox.completion_writes(claim))
            except VersionConflict:
                await outbox.engine.write(outbox.completion_writes(replace(claim, listed=0)))
        await outbox.next_batch(ADA)

    for writer in (outbox, elsewhere):
        for at in count():
            put(outbox, said(f"first {len(came)}"))
            late, known = said(f"late {len(came)}", session=str(id(writer))), len(came)
            run(before(emptied(), at, lambda: came.append(put(writer, late))))  # noqa: B023
            # Off the list with a message in it, that message would lie there until the next one came.
            assert is_listed(outbox) or not run(outbox.engine.count([ADA.messages]))
            while is_listed(outbox):
                run(emptied())
            if len(came) == known:
                break
            assert put(writer, late) == 0
        assert run(outbox.engine.count([ADA.messages])) == 0
    assert came == [1] * len(came)
    assert len(came) >= 2 * 10


def test_two_agents_of_a_user_are_apart(store: BaseStore, clock: FrozenClock) -> None:
    pipeline = pipeline_on(
        store, lambda _, offered: Extraction([Candidate(content="rule", memory_type=MemoryType.SKILL)]), clock
    )
    planner, coder = Partition("ada", "planner"), Partition("ada", "coder", agent_scope_enabled=True)
    put(pipeline.outbox, said("hello"), partition=planner)
    put(pipeline.outbox, said("hello"), partition=coder)
    held = claimed(pipeline.outbox, planner)
    assert step(pipeline, coder).messages == 1
    assert (contents(store, agent="coder"), contents(store, agent="planner"), contents(store)) == (["rule"], [], [])
    settle(pipeline.outbox, held)
    assert contents(store, agent="planner") == []


def test_the_longest_waiting_partition_comes_first(store: BaseStore, clock: FrozenClock) -> None:
    outbox = outbox_on(store, clock)
    users = [f"user{number}" for number in range(12)]
    for user in users:
        put(outbox, said("hello"), partition=Partition(user))
        clock.advance(SECOND)
    put(outbox, said("again"), partition=Partition("user0"))
    assert [partition.user_id for partition in run(outbox.partitions())] == users
    found = run(queue.status(outbox.engine, clock))
    assert (found.partitions, found.waiting, found.oldest_s, found.dead) == (12, 13, 12.0, 0)


@pytest.mark.parametrize("user", ["a@b.com", "~outbox", "dead", "../x", "Ünï ☃", "langgraph", "u" * 512])
def test_any_user_and_agent_id_works_apart_from_others(user: str, store: BaseStore, clock: FrozenClock) -> None:
    pipeline = pipeline_on(store, word_for_word, clock)
    for partition in (Partition(user), Partition(user, user), Partition("ada")):
        put(pipeline.outbox, said("hello"), partition=partition)
        assert step(pipeline, partition).messages == 1
    assert contents(store, user) == contents(store) == ["hello"]


HOSTILE = {
    "nul": ("a\x00b", "s\x00t"),
    "surrogate": ("a\ud800b", "s\udfff"),
    "long": ("long text " * 6_554, LONG_SESSION),
    "controls": ("a\x1b[31m\u202eb", " \n"),
    "empty session": ("hello", ""),
    "no session": ("hello", None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sessions_and_texts_become_memories(name: str, store: BaseStore, clock: FrozenClock) -> None:
    text, session = HOSTILE[name]
    pipeline = pipeline_on(store, lambda messages, _: Extraction([Candidate(content=messages[0].text[:9])]), clock)
    message = said(text, session=session)
    assert put(pipeline.outbox, message) == 1
    assert put(pipeline.outbox, message) == 0
    report = step(pipeline)
    assert (report.outcome, report.dead) == (BatchOutcome.DONE, 0)
    assert len(contents(store)) == 1


def test_regression_a_message_that_ends_its_worker_each_time_dies_with_the_reason(
    store: BaseStore, clock: FrozenClock
) -> None:
    pipeline = pipeline_on(store, word_for_word, clock)
    put(pipeline.outbox, said("deadly"), said("harmless"))
    assert texts(claimed(pipeline.outbox)) == ["deadly", "harmless"]
    clock.advance(timedelta(seconds=61))
    for _ in range(2):
        assert texts(claimed(pipeline.outbox)) == ["deadly"]
        clock.advance(timedelta(seconds=61))
        if contents(store) == []:
            assert step(pipeline).messages == 1, "the others go first after a worker ended"
        clock.advance(timedelta(seconds=600))
    report = step(pipeline)
    assert (report.messages, report.dead) == (1, 1)
    (letter,) = run(queue.dead_letters(pipeline.outbox.engine))
    assert (letter.text, letter.tries) == ("deadly", 3)
    assert letter.reason.startswith("The worker ended")
    assert contents(store) == ["harmless"]


def test_regression_after_an_interruption_messages_ask_to_be_worked_on_alone(
    store: BaseStore, clock: FrozenClock
) -> None:
    pipeline = pipeline_on(store, word_for_word, clock)
    put(pipeline.outbox, said("hello"))
    claimed(pipeline.outbox)
    clock.advance(timedelta(seconds=600))
    assert run(pipeline.process(ADA, alone=False)).outcome is BatchOutcome.ALONE
    assert run(pipeline.process(ADA, alone=False)).outcome is BatchOutcome.ALONE
    assert run(pipeline.process(ADA)).outcome is BatchOutcome.DONE


def test_regression_an_outage_of_the_store_is_no_try(store: BaseStore, clock: FrozenClock) -> None:
    def down(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        raise StoreUnavailable("the memories' database is down")

    extractor = Scripted(down)
    pipeline = pipeline_on(store, extractor, clock)
    put(pipeline.outbox, said("hello"), said("there"))
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            step(pipeline)
    extractor.script = word_for_word
    assert step(pipeline).messages == 2
    assert extractor.asked[-1] == ["hello", "there"]


def test_regression_an_extractor_that_breaks_its_contract_ends_in_the_dead_letters(
    store: BaseStore, clock: FrozenClock
) -> None:
    def broken(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
        raise KeyError("\ud800\x00 no such thing")

    pipeline = pipeline_on(store, broken, clock, max_tries=1)
    put(pipeline.outbox, said("hello"))
    assert step(pipeline).dead == 1
    assert run(queue.dead_letters(pipeline.outbox.engine))[0].reason.startswith("KeyError: ")


def test_regression_a_kept_extraction_that_cannot_be_applied_takes_no_other_message_along(
    store: BaseStore, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_on(store, word_for_word, clock)
    changes = MessageWork.changes

    def failing(
        self: MessageWork, scope: MemoryScope, claim: Claim, extraction: Extraction
    ) -> Operation[MemoryChanges]:
        if any("bad" in waiting.message.text for waiting in claim.batch):
            raise ValueError("cannot be applied")
        return changes(self, scope, claim, extraction)

    monkeypatch.setattr(MessageWork, "changes", failing)
    put(pipeline.outbox, said("good one"), said("bad one"), said("good two"))
    for _ in range(8):
        step(pipeline)
        clock.advance(timedelta(seconds=100))
    assert contents(store) == ["good one", "good two"]
    assert [letter.text for letter in run(queue.dead_letters(pipeline.outbox.engine))] == ["bad one"]


def test_a_kept_extraction_over_which_two_workers_ended_is_asked_for_again_message_by_message(
    clock: FrozenClock,
) -> None:
    with open_store("memory://", embeddings=None) as store:
        extractor = Scripted()
        pipeline = pipeline_on(store, extractor, clock)
        put(pipeline.outbox, said("one"), said("two"))
        run(pipeline.outbox.keep(claimed(pipeline.outbox), Extraction([])))
        clock.advance(timedelta(seconds=600))
        assert texts(claimed(pipeline.outbox)) == ["one", "two"]
        clock.advance(timedelta(seconds=600))
        while step(pipeline).outcome is BatchOutcome.DONE:
            pass
        assert extractor.asked == [["one"], ["two"]]


def test_regression_pauses_do_not_grow_without_end(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None) as store:
        pipeline = pipeline_on(store, refuse, clock, backoff_s=10, max_tries=1_000)
        put(pipeline.outbox, said("bad"))
        for pause in (10, 60, 360, *[360] * 20):
            assert step(pipeline).outcome is BatchOutcome.MODEL_FAILED
            clock.advance(timedelta(seconds=pause - 1))
            assert step(pipeline).outcome is BatchOutcome.NOTHING
            clock.advance(SECOND)


def test_order_is_kept_while_messages_come_in(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store("memory://", embeddings=None) as store:
        outbox = outbox_on(store, clock, batch_messages=2)
        for number in range(250):
            put(outbox, said(str(number)))
            clock.advance(SECOND)
        count = outbox.engine.count

        async def slow_count(namespaces: Sequence[tuple[str, ...]]) -> object:
            found = await count(namespaces)
            put(outbox, *(said(f"new {number}") for number in range(20)))
            return found

        monkeypatch.setattr(outbox.engine, "count", slow_count)
        assert texts(claimed(outbox)) == ["0", "1"]
