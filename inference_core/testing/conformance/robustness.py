"""Beyond the contract: concurrent callers, store objects and processes; complete searches, also in large tables."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ClassVar, Final, cast

from langgraph.store.base import GetOp, PutOp

from inference_core.testing.conformance.subject import (
    NS,
    Factory,
    Location,
    Robustness,
    StoreCall,
    Subject,
    WatchedEmbeddings,
    call,
    expect,
    expect_equal,
    expect_same,
    is_refused,
    trying,
)

_EMBEDDING_S: Final = 0.8
_MANY: Final = 500
"""Namespaces that are there while many callers come."""
_BATCH: Final = 500
_FINISH_S: Final = 120.0
_READY: Final = "ready"


class SharedRobustness(Robustness):
    """A store that several callers, store objects and processes share."""

    processes: ClassVar[int] = 2
    writes: ClassVar[int] = 40
    """The number of puts by each of several processes."""

    def test_a_bad_call_fails_alone(self, subject: Subject) -> None:
        """A rejected call does not make concurrent calls fail.

        LangGraph's async stores run all calls of one turn of the event loop as one batch: one user's bad filter or
        value makes every other user's get and put fail, and those puts are not stored.
        """
        subject.put(("bob",), "tea", {"n": 1})
        good = [call("put", ("bob",), f"k{n}", {"n": n}) for n in range(4)]
        bad = [call("search", NS, filter={"n": {"$bad": 1}}), call("put", NS, "bad", {"n": object(), "s": "\ud800"})]
        for one in bad:
            answers = subject.together(*good[:2], one, *good[2:], call("get", ("bob",), "tea"))
            beside = answers[:2] + answers[3:]
            failed = [type(answer).__name__ for answer in beside if isinstance(answer, BaseException)]
            expect_equal(failed, [], f"calls that failed beside a bad {one.name}")
            expect_equal(len(subject.keys(("bob",))), 5, f"items of the other user after a bad {one.name}")
            for key in range(4):
                subject.delete(("bob",), f"k{key}")

    def test_embedding_holds_up_nobody(self, subject: Subject) -> None:
        """While one user's text is being embedded, another user's get does not wait.

        SqliteStore, PostgresStore and the async stores embed inside their lock or batch: a slow embedding server blocks
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

    def test_many_callers(self, subject: Subject) -> None:
        """Concurrent puts, searches and namespace listings all succeed, and no item is lost.

        InMemoryStore raises "dictionary changed size during iteration" when several threads use it.
        """
        # A search or listing of many namespaces takes long enough for a put to come in between.
        subject.batch([PutOp(("many", f"n{n}"), "k", {"n": n}, index=False) for n in range(_MANY)])
        interval = sys.getswitchinterval()
        for turn in range(5):
            calls: list[StoreCall] = []
            for user in range(8):
                name = (f"u{user}", f"t{turn}")
                calls += [call("put", name, f"k{n}", {"text": f"tea {n}"}) for n in range(3)]
                calls += [call("search", (), limit=50), call("list_namespaces", limit=2 * _MANY)]
            sys.setswitchinterval(1e-5)  # threads take turns as often as they can
            try:
                answers = subject.together(*calls)
            finally:
                sys.setswitchinterval(interval)
            errors = [repr(answer) for answer in answers if isinstance(answer, BaseException)]
            expect_equal(errors[:1], [], f"errors in {len(calls)} calls at once")
        for user in range(8):
            expect_equal(len(subject.search((f"u{user}",), limit=100)), 15, f"items of user {user}")

    def test_a_batch_reads_its_own_writes(self, subject: Subject) -> None:
        """A batch runs in order: a get sees the puts and deletes before it in the same batch.

        LangGraph's stores run all gets before all puts.
        """
        found = subject.batch([PutOp(NS, "a", {"n": 1}), GetOp(NS, "a"), PutOp(NS, "a", None), GetOp(NS, "a")])
        got = [found[at] and found[at].value for at in (1, 3)]
        expect_equal(got, [{"n": 1}, None], "gets after the put and after the delete")

    def test_results_are_not_shared(self, subject: Subject) -> None:
        """Concurrent callers get independent copies.

        The async stores answer equal calls of one turn of the event loop with the very same list and items: if one
        caller changes them, the other sees it.
        """
        subject.put(NS, "a", {"tags": ["x"]})
        one, other = subject.together(call("search", NS), call("search", NS))
        one[0].value["tags"].append("y")
        one.clear()
        expect_equal([item.value for item in other], [{"tags": ["x"]}], "what the other caller has")

    def test_two_stores_on_the_same_data(self, subject: Subject) -> None:
        """A write that one store object has acknowledged is visible at once in another one on the same data."""
        with subject.again() as other:
            for turn in range(3):
                subject.put(NS, "a", {"text": f"tea {turn}"})
                expect_equal(other.value(NS, "a"), {"text": f"tea {turn}"}, "get through the other store")
                found = [item.value for item in other.search(NS, query="tea")]
                expect_equal(found, [{"text": f"tea {turn}"}], "search")
                other.delete(NS, "a")
                expect_equal(subject.value(NS, "a"), None, "get after the other store deleted it")
                expect_equal(subject.keys(NS, query="tea"), [], "search after the other store deleted it")

    def test_several_processes_write_at_once(self, subject: Subject) -> None:
        """Several processes can write to the same data at once without errors or lost writes.

        With the connection that it opens itself, SqliteStore fails with "database is locked" under load.
        """
        with started(subject, self.processes, self.writes) as writers:
            for writer in writers:
                expect_equal(writer.finished(), "", f"errors of process {writer.number}")
        for writer in writers:
            found = subject.keys((f"p{writer.number}",), limit=self.writes + 1)
            expect_same(found, writer.acknowledged, f"keys of process {writer.number}")

    def test_a_killed_process_loses_nothing(self, subject: Subject) -> None:
        """After kill -9, the store opens again and has every acknowledged put in full."""
        with started(subject, 1, 1_000_000) as (writer,):
            writer.kill(after=25)
        with subject.again() as other:
            for key in writer.acknowledged:
                expect_equal(other.value(("p0",), key), {"text": f"tea {key}", "n": int(key)}, f"item {key}")
            beyond = int(writer.acknowledged[-1]) + 2
            found = other.keys(("p0",), limit=10_000)
            expect(len(found) <= beyond, f"{len(found)} items after {beyond - 1} puts")


class SearchRobustness(Robustness):
    """Searches in cases where stores are known to fall short."""

    crowd: ClassVar[int] = 2_000
    """The number of other users' items in a table where a user with a tenth as many must still find all its own."""

    def settle(self, subject: Subject) -> None:
        """Called once the other users' items are stored; override it to make a database gather planner statistics."""

    def test_pages_with_a_query_reach_everything(self, subject: Subject) -> None:
        """Paging through a search with a query returns every item exactly once.

        In pages of 10, SqliteStore 3.1.2 reaches 20 of 50 items and PostgresStore 3.2.0 reaches 21; RedisStore repeats
        the first page.
        """
        subject.ranking().batch([PutOp(NS, f"k{n:02}", {"text": f"tea number {n}"}) for n in range(50)])
        pages = [subject.keys(NS, query="tea number", limit=10, offset=at) for at in range(0, 60, 10)]
        found = [key for page in pages for key in page]
        expect_equal(
            (len(set(found)), len(found)),
            (50, 50),
            f"distinct items, and items in all, in pages of {[*map(len, pages)]}",
        )

    def test_a_query_with_a_filter_fills_the_page(self, subject: Subject) -> None:
        """A search with a query and a filter returns all matching items, up to the limit.

        A store that ranks first and then filters only the best few loses the rest.
        """
        values = [{"text": f"tea number {n}", "rare": n % 10 == 0} for n in range(60)]
        subject.ranking().batch([PutOp(NS, f"k{n:02}", value) for n, value in enumerate(values)])
        found = subject.keys(NS, query="tea number 7", filter={"rare": True}, limit=10)
        expect_same(found, [f"k{n:02}" for n in range(0, 60, 10)], "the rare ones")

    def test_a_small_user_is_not_starved(self, subject: Subject) -> None:
        """A user with few items in a large table finds them, even if other users' items match the query better.

        PostgresStore's default HNSW index looks at the 40 nearest items of all users and drops the other users' items
        afterwards: once the table has statistics, a user with 3 to 30 % of the table gets few results or none, without
        an error.
        """
        share = self.crowd // 10
        subject.ranking()
        ops = [PutOp((f"big{n % 4}",), f"k{n}", {"text": f"tea ceremony in kyoto {n}"}) for n in range(self.crowd)]
        ops += [PutOp(("small",), f"k{n}", {"text": f"tea bicycle mountain {n}"}) for n in range(share)]
        for at in range(0, len(ops), _BATCH):
            subject.batch(ops[at : at + _BATCH])
        self.settle(subject)
        items = subject.search(("small",), query="tea ceremony in kyoto", limit=10)
        expect_equal(len(items), 10, f"results for a user with {share} items beside {self.crowd}")
        expect({item.namespace[0] for item in items} == {"small"}, "items of other users are among the results")

    def test_identical_texts_in_one_batch(self, subject: Subject) -> None:
        """A batch may contain the same text several times.

        InMemoryStore raises ValueError (langgraph#8822).
        """
        subject.ranking().batch([PutOp(NS, key, {"text": "the same tea"}) for key in "abc"])
        expect_same(subject.keys(NS, query="tea"), "abc", "keys")

    def test_filters_with_missing_fields(self, subject: Subject) -> None:
        """A missing field matches no comparison and raises no error.

        InMemoryStore 4.3.2 raises TypeError if one item lacks the field.
        """
        subject.put(NS, "with", {"n": 5, "x": None})
        subject.put(NS, "without", {"m": 5})
        for conditions in ({"$gt": 1}, {"$lte": 9}, 5, {"$eq": 5}):
            expect_equal(subject.keys(NS, filter={"n": conditions}), ["with"], f"n: {conditions}")

    def test_what_is_missing_is_not_equal(self, subject: Subject) -> None:
        """$ne also finds items that lack the field.

        SqliteStore and PostgresStore leave them out, as SQL does with NULL; InMemoryStore finds them.
        """
        subject.put(NS, "five", {"n": 5})
        subject.put(NS, "six", {"n": 6})
        subject.put(NS, "none", {"m": 5})
        expect_same(subject.keys(NS, filter={"n": {"$ne": 5}}), ["six", "none"], "n: {'$ne': 5}")

    def test_filters_know_null(self, subject: Subject) -> None:
        """A filter for null (None) finds the items whose field is null.

        Whether a missing field counts as null differs between LangGraph's stores and is left open here.
        """
        subject.put(NS, "null", {"x": None})
        subject.put(NS, "zero", {"x": 0})
        subject.put(NS, "empty", {"x": ""})
        expect_equal(subject.keys(NS, filter={"x": None}), ["null"], "x: None")

    def test_filters_keep_types_apart(self, subject: Subject) -> None:
        """Filters distinguish types: true does not match 1, and "1" does not match 1."""
        for key, value in {"true": True, "one": 1, "text": "1", "yes": "true"}.items():
            subject.put(NS, key, {"x": value})
        for value, wanted in ((True, "true"), (1, "one"), ("1", "text"), ("true", "yes")):
            expect_equal(subject.keys(NS, filter={"x": value}), [wanted], f"x: {value!r}")

    def test_filters_compare_whole_values(self, subject: Subject) -> None:
        """A filter can compare a field with a dict or a list.

        SqliteStore and PostgresStore raise ValueError for a dict.
        """
        subject.put(NS, "a", {"place": {"city": "Oslo"}, "tags": ["x", "y"]})
        subject.put(NS, "b", {"place": {"city": "Rome"}, "tags": ["x"]})
        expect_equal(subject.keys(NS, filter={"place": {"city": "Oslo"}}), ["a"], "a map")
        expect_equal(subject.keys(NS, filter={"tags": ["x"]}), ["b"], "a list")

    def test_unknown_operators_are_refused(self, subject: Subject) -> None:
        """A filter with an unknown operator or condition raises an error instead of returning no items.

        A misspelt operator must not look like an empty memory.
        """
        subject.put(NS, "a", {"n": 1})
        questions: list[dict[str, Any]] = [{"n": {"$regex": "."}}, {"n": {"$gtt": 0}}, {"$nor": [{"n": 1}]}]
        for conditions in questions:
            expect(is_refused(subject.keys, NS, filter=conditions), f"{conditions} was accepted")


# Processes that write to the data of the store under test: they run this module.


class WriterProcess:
    """A process that puts items 0, 1, … into ("p<number>",) and reports each; ``acknowledged`` has those keys."""

    def __init__(self, subject: Subject, number: int, writes: int) -> None:
        self.number = number
        self.acknowledged: list[str] = []
        arguments = [subject.factory().address, str(subject.place.folder), subject.mode, str(number), str(writes)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)

    def wait_ready(self) -> None:
        """Waits until it has opened the store."""
        self._output.readline()

    def go(self) -> None:
        """Makes it start to write."""
        with suppress(BrokenPipeError):  # it has ended; `finished` says why
            self._input.write("go\n")
            self._input.flush()

    def finished(self) -> str:
        """Waits until it ends; returns the last line of its error output if it failed, else an empty text."""
        output, errors = self._process.communicate(timeout=_FINISH_S)
        self.acknowledged += output.split()
        return (errors.strip().splitlines() or ["it ended"])[-1] if self._process.returncode else ""

    def kill(self, after: int) -> None:
        """Kills it once ``after`` items were acknowledged. Raises AssertionError if it ended before."""
        for line in self._output:
            self.acknowledged.append(line.strip())
            if len(self.acknowledged) >= after:
                break
        self._process.kill()
        self.acknowledged += self._output.read().split("\n")[:-1]
        _, errors = self._process.communicate(timeout=_FINISH_S)
        if len(self.acknowledged) < after:
            raise AssertionError(f"it ended by itself: {errors.strip()[-300:]}")

    def end(self) -> None:
        """Kills it if it is still running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def started(subject: Subject, count: int, writes: int) -> Generator[list[WriterProcess]]:
    """``count`` processes that start writing together, ``writes`` puts each; ended afterwards. Raises NotApplicable."""
    subject.factory()
    writers = [WriterProcess(subject, number, writes) for number in range(count)]
    try:
        for writer in writers:
            writer.wait_ready()
        for writer in writers:
            writer.go()
        yield writers
    finally:
        for writer in writers:
            writer.end()


def main(address: str, folder: str, mode: str, number: str, writes: str) -> None:
    """The process of a `WriterProcess`: prints ``ready``, waits for a line, then prints each key after its put."""
    embeddings = WatchedEmbeddings()
    factory = Factory(address)
    place = Location(Path(folder), factory)
    chosen = "async" if mode == "async" else "sync"
    with trying(factory.make(place.folder, embeddings), chosen, embeddings, place) as subject:
        print(_READY, flush=True)
        sys.stdin.readline()
        for n in range(int(writes)):
            subject.put((f"p{number}",), str(n), {"text": f"tea {n}", "n": n})
            print(n, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
