"""Undoing what was made of messages: by job and by session, in any order, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from outbox_support import (
    ADA,
    Scripted,
    candidates,
    contents,
    pipeline_on,
    put,
    said,
    service_on,
    step,
    undone,
    word_for_word,
)

from inference_core import ForgettingPolicy, MemoryLifecycle, MemoryStore, open_store
from inference_core.effects import Operation, run
from inference_core.errors import InvalidInput, ModelError, VersionConflict
from inference_core.ingestion.undo import jobs, undo_changes
from inference_core.ingestion.worker import Pipeline
from inference_core.memory.record import MemoryStoreDocument
from inference_core.outbox.messages import Action, Candidate, ConversationMessage, Extraction, KnownMemory
from inference_core.outbox.outbox import Limits, Outbox, retry
from inference_core.short_term.blocks.memory import UserSession
from inference_core.short_term.blocks.vector import VectorMemory
from inference_core.testing import FrozenClock

LISBON, PORTO, FARO, CAT = "Lives in Lisbon", "Lives in Porto", "Lives in Faro", "Has a cat"


class Book:
    """Ada's memory, and the jobs that write in it, one a day."""

    def __init__(self, store: MemoryStore, clock: FrozenClock) -> None:
        self.store, self.clock = store, clock
        self.service = service_on(store, clock)
        self.extractor = Scripted()
        self.pipeline = pipeline_on(store, self.extractor, clock)
        self.turns = 0

    def job(self, *given: Candidate, session: str = "s") -> str:
        self.clock.advance(timedelta(days=1))
        self.turns += 1
        self.extractor.script = candidates(*given)
        put(self.pipeline.outbox, said(f"turn {self.turns}", session=session))
        assert step(self.pipeline).messages == 1
        return run(jobs(self.service.scope, "ada"))[0].key

    def undo(self, **given: Any) -> int:
        return undone(self.service.scope, "ada", **given)

    def all(self) -> list[MemoryStoreDocument]:
        documents, _ = self.service.sync.list_memories("ada", limit=None)
        return sorted(documents, key=lambda one: one.content)

    def state(self) -> list[tuple[str, dict[str, Any]]]:
        """All that is stored of memories, but for when they were written last."""
        return [(one.id, one.value) for one in self.all()]

    def id_of(self, content: str) -> str:
        return next(one.id for one in self.all() if one.content == content)

    def chain(self) -> list[str]:
        """Lisbon, then Porto, then Faro; the ids of the jobs."""
        found = [self.job(Candidate(content=LISBON))]
        for before, after in ((LISBON, PORTO), (PORTO, FARO)):
            found.append(self.job(ends(after, self.id_of(before))))
        return found


@pytest.fixture
def book(clock: FrozenClock) -> Iterator[Book]:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        yield Book(store, clock)


def ends(content: str, target: str) -> Candidate:
    return Candidate(content=content, action=Action.SUPERSEDE, target=target)


def test_a_job_is_undone_as_a_whole_and_exactly(book: Book) -> None:
    book.job(Candidate(content=LISBON), Candidate(content=CAT))
    before = book.state()
    job = book.job(ends(PORTO, book.id_of(LISBON)), Candidate(content=CAT), Candidate(content="Likes tea"))
    assert len(book.state()) == 4
    assert book.undo(job_id=job) == 2
    assert book.state() == before
    assert book.undo(job_id=job) == book.undo(job_id="unknown") == 0


def test_regression_the_end_that_a_memory_had_before_comes_back(book: Book) -> None:
    book.job(Candidate(content=LISBON, valid_to=book.clock.now() + timedelta(days=90)))
    before = book.state()
    job = book.job(ends(PORTO, book.id_of(LISBON)))
    assert book.state() != before
    book.undo(job_id=job)
    assert book.state() == before


def test_regression_reinforcements_are_counted_down_exactly(book: Book) -> None:
    book.job(Candidate(content=CAT))
    states = [book.state()]
    made: list[str] = []
    for _ in range(3):
        made.append(book.job(Candidate(content=CAT)))
        states.append(book.state())
    for job, state in zip(reversed(made), reversed(states[:-1]), strict=True):
        book.undo(job_id=job)
        assert book.state() == state
    first, second = (book.job(Candidate(content=CAT)) for _ in range(2))
    last = book.all()[0].metadata
    book.undo(job_id=first)
    assert book.all()[0].metadata == {**last, "reinforced": 1}
    book.undo(job_id=second)
    assert book.state() == states[0]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_regression_a_chain_is_undone_in_any_order(book: Book, order: tuple[int, ...]) -> None:
    made = book.chain()
    whole = {one.content: one for one in book.all()}
    left = [LISBON, PORTO, FARO]
    names = list(left)
    for at in order:
        assert book.undo(job_id=made[at]) == 1
        left.remove(names[at])
        assert contents(book.store) == sorted(left)
        held = [one.content for one in book.all() if not one.value.get("superseded_by")]
        assert held == left[-1:]
        if left:
            history = [one.content for one in book.service.sync.get_memory_history("ada", book.id_of(left[0]))]
            assert history == left
            assert history == [one.content for one in book.service.sync.get_memory_history("ada", book.id_of(left[-1]))]
        if left == [LISBON, FARO]:
            ended = book.all()[1].value
            assert ended["valid_to"] == whole[PORTO].value["valid_to"]
    assert book.all() == []


def test_regression_what_is_undone_stays_so_if_what_came_later_was_deleted(book: Book) -> None:
    made = book.chain()
    book.service.sync.delete_memory("ada", book.id_of(FARO))
    assert book.undo(job_id=made[1]) == 1
    assert [(one.content, one.value.get("superseded_by")) for one in book.all()] == [(LISBON, None)]


def test_regression_a_memory_that_was_there_gives_back_what_it_took_the_place_of(book: Book) -> None:
    book.job(Candidate(content=LISBON), Candidate(content=PORTO))
    before = book.state()
    job = book.job(ends(PORTO, book.id_of(LISBON)))
    assert book.state() != before
    assert book.undo(job_id=job) == 0
    assert book.state() == before


def test_what_was_changed_or_deleted_since_is_undone_all_the_same(book: Book) -> None:
    book.job(Candidate(content=CAT))
    job = book.job(Candidate(content=CAT), ends(PORTO, book.id_of(CAT)), Candidate(content=FARO))
    memory = book.service.sync
    memory.update_memory("ada", book.id_of(PORTO), "Lives in Braga")
    memory.delete_memory("ada", book.id_of(FARO))
    memory.update_memory("ada", book.id_of(CAT), extra_metadata={"reinforced": "many"})
    assert book.undo(job_id=job) == 1
    assert [one.content for one in book.all()] == [CAT]


def test_what_was_forgotten_since_is_undone_all_the_same(book: Book) -> None:
    _, porto, _ = book.chain()
    face = MemoryLifecycle(book.service).sync
    face.forget("ada", ForgettingPolicy(max_memories={"all": 0}))
    assert (book.all(), len(face.forgotten("ada"))) == ([], 3)
    assert book.undo(job_id=porto) == 1
    history = book.service.sync.get_memory_history("ada", book.id_of(FARO))
    assert [one.content for one in history] == [LISBON, FARO]
    assert face.forgotten("ada") == []


def test_a_session_is_undone_with_all_its_jobs(book: Book) -> None:
    book.job(Candidate(content=LISBON), session="first")
    before = book.state()
    book.job(Candidate(content=LISBON), Candidate(content=CAT), session="second")
    book.job(ends(PORTO, book.id_of(LISBON)), session="second")
    book.job(Candidate(content=CAT), Candidate(content=FARO), session="first")
    book.job(ends("Has a dog", book.id_of(CAT)), session="second")
    assert book.undo(session_id="second") == 3
    assert [one.content for one in book.all()] == [FARO, LISBON]
    assert [state for state in book.state() if state[1]["content"] == LISBON] == before
    assert [row.value["session"] for row in run(jobs(book.service.scope, "ada"))] == ["first", "first"]
    assert run(jobs(book.service.scope, "bob")) == []


def test_regression_what_is_kept_word_for_word_goes_also_if_the_session_changed_it_since(book: Book) -> None:
    """No event of the session adds such a memory; an event that reinforced it had undo leave it, as it was before."""
    conversation = UserSession("ada", "s")
    run(VectorMemory().absorb(book.service.scope, conversation, [HumanMessage(FARO, id="1")]))
    book.job(Candidate(content=FARO, action=Action.REINFORCE, target=book.id_of(FARO)), session="s")
    assert [one.id for one in book.all()] == [book.id_of(FARO)]
    report = run(undo_changes(book.service.scope, "ada", session_id="s", dry_run=True))
    assert (report.removed, report.restored) == ([book.id_of(FARO)], [])
    assert book.undo(session_id="s") == 1
    assert book.all() == []


@pytest.mark.parametrize("session", ["x\x00\ud800", "s" * 5_000], ids=["broken", "long"])
def test_regression_a_session_with_a_hostile_id_can_be_undone(book: Book, session: str) -> None:
    book.job(Candidate(content=LISBON), session=session)
    assert book.undo(session_id=session) == 1


def test_undo_wants_to_know_what(book: Book) -> None:
    with pytest.raises(InvalidInput):
        book.undo()


@pytest.mark.parametrize("times", [1, 1_000], ids=["once", "always"])
def test_undoing_survives_a_change_in_between(book: Book, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = book.job(Candidate(content=LISBON))
    write = book.store.engine.write
    left = [times]

    def contended(batch: Any, **options: Any) -> Operation[list[int]]:
        left[0] -= 1
        if left[0] >= 0:
            raise VersionConflict("somebody was faster")
        return write(batch, **options)

    monkeypatch.setattr(book.store.engine, "write", contended)
    if times == 1:
        assert book.undo(job_id=job) == 1
        assert book.all() == []
    else:
        with pytest.raises(VersionConflict):
            book.undo(job_id=job)


def test_messages_that_were_undone_do_not_come_back(book: Book) -> None:
    job = book.job(Candidate(content=LISBON))
    book.undo(job_id=job)
    assert put(book.pipeline.outbox, said("turn 1"), partition=ADA) == 0


def test_regression_a_waiting_message_of_an_undone_session_does_not_come_back(book: Book) -> None:
    """Only messages that had been worked on left a mark; one that waited was taken in again with the next run."""
    put(book.pipeline.outbox, said("my secret plan", name="m1"), said("other", session="t"))
    book.undo(session_id="s")
    assert put(book.pipeline.outbox, said("my secret plan", name="m1")) == 0
    assert put(book.pipeline.outbox, said("other", session="t")) == 0
    book.extractor.script = word_for_word
    assert step(book.pipeline).messages == 1
    assert contents(book.store) == ["other"]


def test_regression_an_outbox_elsewhere_is_undone_too(book: Book, clock: FrozenClock) -> None:
    """What waited there, or was a dead letter that somebody retried, became memories of the undone session."""
    with open_store("memory://", embeddings=None, clock=clock) as elsewhere:
        outbox = Outbox(elsewhere.engine, clock, Limits(max_tries=1))
        pipeline = Pipeline(book.service.scope, book.extractor, outbox=outbox)
        book.extractor.script = refusing
        put(outbox, said("dies"))
        assert step(pipeline).dead == 1
        put(outbox, said("waits"), said("of another session", session="t"))
        run(undo_changes(book.service.scope, "ada", session_id="s", outboxes=[elsewhere.engine]))
        assert run(retry(elsewhere.engine, clock)) == 0
        assert put(outbox, said("dies"), said("waits")) == 0
        book.extractor.script = word_for_word
        assert step(pipeline).messages == 1
    assert contents(book.store) == ["of another session"]


def refusing(messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory]) -> Extraction:
    raise ModelError("refused")
