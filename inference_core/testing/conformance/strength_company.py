"""Beyond the contract: many callers at once, several store objects, several processes, and a death."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar, Final

from langgraph.store.base import GetOp, PutOp

from inference_core.testing.conformance.processes import started
from inference_core.testing.conformance.promises import Promises, expect, expect_equal, expect_same, strength
from inference_core.testing.conformance.subject import NS, Call, Subject, call

_EMBEDDING_S: Final = 0.8


class CompanyStrength(Promises):
    """A store that is shared."""

    processes: ClassVar[int] = 2
    writes: ClassVar[int] = 40
    """Puts of each of several processes."""

    @strength
    def test_a_bad_call_fails_alone(self, subject: Subject) -> None:
        """A call that is refused does not fail the calls beside it.

        LangGraph's async stores run all calls of one turn of the event loop as one batch: one user's bad filter or
        value fails every other user's get and put, which are then not stored.
        """
        subject.put(("bob",), "tea", {"n": 1})
        good = [call("put", ("bob",), f"k{n}", {"n": n}) for n in range(4)]
        bad = [call("search", NS, filter={"n": {"$bad": 1}}), call("put", NS, "bad", {"n": object(), "s": "\ud800"})]
        for one in bad:
            answers = subject.together(*good[:2], one, *good[2:], call("get", ("bob",), "tea"))
            failed = [type(answer).__name__ for at, answer in enumerate(answers) if at != 2 and _is_error(answer)]
            expect_equal(failed, [], f"calls that failed beside a bad {one.name}")
            expect_equal(len(subject.keys(("bob",))), 5, f"items of the other user after a bad {one.name}")
            for key in range(4):
                subject.delete(("bob",), f"k{key}")

    @strength
    def test_embedding_holds_up_nobody(self, subject: Subject) -> None:
        """While one user's text is being embedded, another user's get does not wait.

        SqliteStore, PostgresStore and the async stores embed inside their lock or batch: a slow embedding server stops
        everybody.
        """
        subject.embedded().put(("bob",), "tea", {"n": 1})
        subject.embeddings.begun.clear()
        subject.embeddings.seconds = _EMBEDDING_S
        slow = subject.start(call("put", NS, "a", {"text": "tea"}))
        expect(subject.embeddings.begun.wait(10), "the put did not begin to embed")
        begun = time.monotonic()
        subject.get(("bob",), "tea")
        waited = time.monotonic() - begun
        slow.result(60)
        subject.embeddings.seconds = 0
        expect(waited < _EMBEDDING_S / 2, f"waited {waited:.2f} s for an embedding of {_EMBEDDING_S} s")

    @strength
    def test_many_callers(self, subject: Subject) -> None:
        """Callers that write, read, search and list at once get what they asked for, without an error.

        InMemoryStore raises "dictionary changed size during iteration" in threads.
        """
        with _restless():
            for turn in range(6):
                calls: list[Call] = []
                for user in range(8):
                    name = (f"u{user}", f"t{turn}")
                    calls += [call("put", name, f"k{n}", {"text": f"tea {n}"}) for n in range(3)]
                    calls += [call("search", (), limit=50), call("list_namespaces", limit=500)]
                errors = [repr(answer) for answer in subject.together(*calls) if _is_error(answer)]
                expect_equal(errors[:1], [], f"errors in {len(calls)} calls at once")
        for user in range(8):
            expect_equal(len(subject.search((f"u{user}",), limit=100)), 18, f"items of user {user}")

    @strength
    def test_a_batch_reads_its_own_writes(self, subject: Subject) -> None:
        """A batch takes effect in its order: what it put before, it gets.

        LangGraph's stores do all gets before all puts.
        """
        found = subject.batch([PutOp(NS, "a", {"n": 1}), GetOp(NS, "a"), PutOp(NS, "a", None), GetOp(NS, "a")])
        expect_equal(
            [found[at] and found[at].value for at in (1, 3)], [{"n": 1}, None], "got after the put, the delete"
        )

    @strength
    def test_results_are_not_shared(self, subject: Subject) -> None:
        """Two callers who ask the same at once can each change what they got.

        The async stores answer equal calls of one turn with the very same list and items.
        """
        subject.put(NS, "a", {"tags": ["x"]})
        one, other = subject.together(call("search", NS), call("search", NS))
        one[0].value["tags"].append("y")
        one.clear()
        expect_equal([item.value for item in other], [{"tags": ["x"]}], "what the other caller has")

    @strength
    def test_two_stores_on_the_same_data(self, subject: Subject) -> None:
        """What one store object has acknowledged, another one on the same data sees at once."""
        with subject.again() as other:
            for turn in range(3):
                subject.put(NS, "a", {"text": f"tea {turn}"})
                expect_equal(other.value(NS, "a"), {"text": f"tea {turn}"}, "get through the other store")
                expect_equal(
                    [item.value for item in other.search(NS, query="tea")], [{"text": f"tea {turn}"}], "search"
                )
                other.delete(NS, "a")
                expect_equal(subject.value(NS, "a"), None, "get after the other store deleted it")
                expect_equal(subject.keys(NS, query="tea"), [], "search after the other store deleted it")

    @strength
    def test_several_processes_write_at_once(self, subject: Subject) -> None:
        """Processes that write to the same data at once lose nothing and fail nowhere.

        SqliteStore as it opens its file fails with "database is locked" under load.
        """
        with started(subject, self.processes, self.writes) as writers:
            for writer in writers:
                expect_equal(writer.finished(), "", f"errors of process {writer.number}")
        for writer in writers:
            found = subject.keys((f"p{writer.number}",), limit=self.writes + 1)
            expect_same(found, writer.acknowledged, f"keys of process {writer.number}")

    @strength
    def test_a_killed_process_loses_nothing(self, subject: Subject) -> None:
        """Whatever put has acknowledged is there after kill -9, whole, and the store opens again."""
        with started(subject, 1, 1_000_000) as (writer,):
            writer.kill(after=25)
        with subject.again() as other:
            for key in writer.acknowledged:
                expect_equal(other.value(("p0",), key), {"text": f"tea {key}", "n": int(key)}, f"item {key}")
            beyond = int(writer.acknowledged[-1]) + 2
            found = other.keys(("p0",), limit=10_000)
            expect(len(found) <= beyond, f"{len(found)} items after {beyond - 1} puts")


def _is_error(answer: object) -> bool:
    return isinstance(answer, BaseException)


@contextmanager
def _restless() -> Generator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
