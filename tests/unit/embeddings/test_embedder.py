"""Embedder: checked vectors, deadlines, outages and loading."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from support import FailingEmbeddings, HangingEmbeddings, HashingEmbeddings

from inference_core.effects import Operation, WorkerPool, arun, run
from inference_core.embeddings import embedder as module
from inference_core.embeddings.embedder import Embedder, Encodings, JoinedCalls, Passage, TextEncoding
from inference_core.errors import DeadlineExceeded, EmbeddingError, StoreUnavailable

Driver = Callable[[Operation[Any]], Any]
LATE = 10.0


def _arun(plan: Operation[Any]) -> Any:
    return asyncio.run(arun(plan))


@pytest.fixture(params=[run, _arun], ids=["run", "arun"])
def drive(request: pytest.FixtureRequest) -> Driver:
    return request.param


class FixedEmbeddings(Embeddings):
    """Answers with what it was given, whatever it is asked; notes in which threads."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.threads: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.threads.append(threading.current_thread().name)
        return self.answer

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class NativeEmbeddings(FixedEmbeddings):
    """Has coroutines of its own; its blocking methods fail."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError("blocking call")

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def aembed_query(self, text: str) -> list[float]:
        return (await self.aembed_documents([text]))[0]


class TokenModel(FixedEmbeddings):
    """Gives encodings; its methods for plain vectors fail."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError("plain call")

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        return self.answer

    def encode_query(self, text: str) -> TextEncoding:
        return self.answer[0]._replace(pieces=("query",))


def _numbers(encodings: Encodings) -> list[list[float]]:
    assert all(encoding.vector.dtype == np.float32 for encoding in encodings)
    return [encoding.vector.tolist() for encoding in encodings]


def _fail(embedder: Embedder, times: int) -> None:
    for _ in range(times):
        with pytest.raises(EmbeddingError):
            run(embedder.documents([Passage("x")]))


@pytest.mark.parametrize("timeout", [None, LATE])
def test_vectors_have_unit_length_and_the_order_of_the_texts(drive: Driver, timeout: float | None):
    embedder = Embedder(FixedEmbeddings([[3, 4], [0, -2.5]]), "f")
    encodings = drive(embedder.documents([Passage("a"), Passage("b")], timeout))
    assert _numbers(encodings) == [pytest.approx([0.6, 0.8]), pytest.approx([0, -1])]
    assert [encoding[1:] for encoding in encodings] == [(None, (), 0, None), (None, (), 0, None)]
    assert _numbers(embedder.embed_now([Passage("a"), Passage("b")])) == _numbers(
        drive(embedder.documents([Passage("a"), Passage("b")]))
    )
    assert embedder.dimensions == 2
    embedder.close()


@pytest.mark.parametrize("timeout", [None, LATE])
def test_a_query_has_the_vector_of_the_same_text(drive: Driver, timeout: float | None):
    embedder = Embedder(HashingEmbeddings(), "f")
    query = _numbers(drive(embedder.query("green tea", timeout)))
    assert query == _numbers(drive(embedder.documents([Passage("green tea")], timeout)))
    assert query == _numbers(embedder.embed_now([Passage("green tea")]))
    embedder.close()


@pytest.mark.parametrize("timeout", [None, LATE])
def test_a_model_with_tokens_is_asked_for_encodings(drive: Driver, timeout: float | None):
    tokens = np.eye(2, dtype=np.float32)
    encoding = TextEncoding(np.array([0.6, 0.8], np.float32), tokens, ("green", "tea"))
    embedder = Embedder(TokenModel([encoding]), "f")
    (document,) = drive(embedder.documents([Passage("green tea")], timeout))
    (query,) = drive(embedder.query("green tea", timeout))
    assert _numbers([document, query]) == [pytest.approx([0.6, 0.8])] * 2
    assert document.tokens is query.tokens is tokens
    assert (document.pieces, query.pieces) == (("green", "tea"), ("query",))
    assert embedder.embed_now([Passage("green tea")])[0].tokens is tokens
    assert embedder.dimensions == 2
    embedder.close()


def test_no_texts_have_no_vectors(drive: Driver):
    assert drive(Embedder(HashingEmbeddings(), "f").documents([])) == []


async def test_an_async_caller_awaits_the_models_own_coroutine():
    embedder = Embedder(NativeEmbeddings([[3, 4]]), "f")
    assert _numbers(await arun(embedder.documents([Passage("a")]))) == [pytest.approx([0.6, 0.8])]
    assert _numbers(await arun(embedder.query("a", LATE))) == [pytest.approx([0.6, 0.8])]


def test_a_second_event_loop_does_not_meet_the_connections_of_the_first():
    """Each asyncio.run but the first met "Event loop is closed": its recall was lexical, and saves had no vectors."""

    class Connected(FixedEmbeddings):
        loop: asyncio.AbstractEventLoop | None = None

        async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
            self.loop = self.loop or asyncio.get_running_loop()
            if self.loop.is_closed():
                raise RuntimeError("Event loop is closed")
            return self.answer

        async def aembed_query(self, text: str) -> list[float]:
            return (await self.aembed_documents([text]))[0]

    model = Connected([[0.0, 1.0]])
    embedder = Embedder(model, "f")
    for threads in ([], ["embedder-question-1"], ["embedder-question-1"] * 2):
        assert _numbers(asyncio.run(arun(embedder.query("a", LATE)))) == [[0.0, 1.0]]
        assert model.threads == threads
    embedder.close()


def test_langchains_default_coroutine_is_not_used():
    model = FixedEmbeddings([[1.0]])
    embedder = Embedder(model, "f")
    asyncio.run(arun(embedder.documents([Passage("a")])))
    asyncio.run(arun(embedder.query("a")))
    assert [name.rpartition("-")[0] for name in model.threads] == ["embedder", "embedder-question"]
    embedder.close()


def test_a_sync_caller_without_a_deadline_does_the_work():
    model = FixedEmbeddings([[1.0]])
    run(Embedder(model, "f").query("a"))
    assert model.threads == [threading.current_thread().name]


@pytest.mark.parametrize(
    "answer",
    [
        [[]],
        [[0, 0]],
        [[float("nan"), 1]],
        [[float("inf"), 1]],
        [[[1.0]]],
        [1.0],
        [None],
        None,
        5,
        [["word"]],
        [[1.0, [2.0]]],
        [{"embedding": [1.0]}],
        [],
        [[1.0], [1.0]],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [FixedEmbeddings, NativeEmbeddings, TokenModel])
def test_what_is_not_a_vector_for_each_text_is_an_embedding_error(kind: type[FixedEmbeddings], answer: Any):
    embedder = Embedder(kind(answer), "f")
    with pytest.raises(EmbeddingError):
        asyncio.run(arun(embedder.documents([Passage("a")])))
    embedder.close()


def test_a_model_must_not_change_its_dimensions():
    model = FixedEmbeddings([[1.0, 0.0]])
    embedder = Embedder(model, "f")
    run(embedder.documents([Passage("a")]))
    model.answer = [[1.0, 0.0, 0.0]]
    with pytest.raises(EmbeddingError, match="returned 3 dimensions, not 2"):
        run(embedder.documents([Passage("a")]))


def test_the_error_of_a_model_is_an_embedding_error(drive: Driver):
    embedder = Embedder(FailingEmbeddings(), "f")
    for plan in (embedder.documents([Passage("a")]), embedder.query("a", LATE)):
        with pytest.raises(EmbeddingError, match="the embedding server is down") as raised:
            drive(plan)
        assert isinstance(raised.value.__cause__, ConnectionError)
    with pytest.raises(EmbeddingError, match="the embedding server is down"):
        embedder.embed_now([Passage("a")])
    embedder.close()


def test_the_error_of_a_coroutine_is_an_embedding_error():
    embedder = Embedder(NativeEmbeddings(TimeoutError("the server's own")), "f")
    with pytest.raises(EmbeddingError, match="the server's own"):
        asyncio.run(arun(embedder.query("a", LATE)))


def test_a_slow_model_is_given_up_at_the_deadline(drive: Driver):
    model = HangingEmbeddings(5)
    embedder = Embedder(model, "f")
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        drive(embedder.query("a", 0.02))
    assert time.monotonic() - started < 4
    model.over.set()
    embedder.close()


def test_after_three_failures_the_model_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.5)
    model = FailingEmbeddings()
    embedder = Embedder(model, "f")
    _fail(embedder, 2)
    assert embedder.is_ready
    _fail(embedder, 1)
    assert not embedder.is_ready
    with pytest.raises(EmbeddingError, match="the embedding server is down"):
        run(embedder.query("a"))
    assert model.calls == 3
    model.broken = False
    time.sleep(0.51)
    assert embedder.is_ready
    assert run(embedder.query("a"))


def test_an_answer_in_between_starts_the_count_again():
    model = FailingEmbeddings()
    embedder = Embedder(model, "f")
    _fail(embedder, 2)
    model.broken = False
    run(embedder.documents([Passage("a")]))
    model.broken = True
    _fail(embedder, 2)
    assert embedder.is_ready


def test_an_answer_in_the_background_ends_the_pause():
    model = FailingEmbeddings()
    embedder = Embedder(model, "f")
    _fail(embedder, 3)
    model.broken = False
    embedder.embed_now([Passage("a")])
    assert embedder.is_ready


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture):
    embedder = Embedder(FailingEmbeddings(), "f")
    with caplog.at_level(logging.WARNING):
        _fail(embedder, 3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "recall is lexical until it answers" in caplog.text


def test_a_closed_embedder_refuses_calls_for_its_workers():
    embedder = Embedder(HashingEmbeddings(), "f")
    embedder.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        run(embedder.query("a", LATE))


def test_a_model_without_a_load_is_ready_at_once():
    embedder = Embedder(HashingEmbeddings(), "f")
    threads = threading.active_count()
    embedder.warm()
    assert embedder.is_ready
    assert embedder.wait_ready(0)
    assert threading.active_count() == threads


def test_a_model_is_loaded_in_the_background():
    gate = threading.Event()
    loads: list[str] = []

    def load() -> None:
        gate.wait(LATE)
        loads.append(threading.current_thread().name)

    embedder = Embedder(HashingEmbeddings(), "f", load)
    assert not embedder.wait_ready(0)
    embedder.warm()
    assert not embedder.is_ready
    with pytest.raises(EmbeddingError, match="is being loaded"):
        run(embedder.query("a"))
    gate.set()
    assert embedder.wait_ready(LATE)
    embedder.warm()
    assert run(embedder.query("a"))
    assert loads == ["embedder-load"]


def test_a_model_that_cannot_be_loaded_says_so(caplog: pytest.LogCaptureFixture):
    def load() -> None:
        raise OSError("no such model")

    embedder = Embedder(HashingEmbeddings(), "f", load)
    with caplog.at_level(logging.WARNING):
        embedder.warm()
        assert not embedder.wait_ready(LATE)
    assert not embedder.is_ready
    with pytest.raises(EmbeddingError, match="could not be loaded: no such model"):
        run(embedder.query("a"))
    assert "recall is lexical only" in caplog.text


def test_the_end_of_the_process_waits_for_a_native_call_that_nobody_waits_for(quick_python: str):
    program = """
import threading, time
from inference_core.effects import run
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.embedder import Passage
from langchain_core.embeddings import Embeddings
started = threading.Event()
class Slow(Embeddings):
    def embed_documents(self, texts):
        started.set(); time.sleep(0.3); print("finished", flush=True); return [[1.0]]
    def embed_query(self, text):
        return self.embed_documents([text])[0]
embedder = Embedder(Slow(), "slow", load=lambda: None)
embedder.warm(); embedder.wait_ready()
threading.Thread(target=embedder.embed_now, args=([Passage("x")],), daemon=True).start()
started.wait()
"""
    done = subprocess.run([quick_python, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "finished\n", "")


class Model:
    """Notes its batches; waits for ``gate``; refuses texts that hold "bad"."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = threading.Event()
        self.gate = threading.Event()

    def __call__(self, passages: list[Passage]) -> list[TextEncoding]:
        texts = [passage.text for passage in passages]
        self.batches.append(texts)
        self.started.set()
        assert self.gate.wait(10)
        if any("bad" in text for text in texts):
            raise EmbeddingError("a bad text")
        return [TextEncoding(np.array([len(text)], np.float32)) for text in texts]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(1, "model")
    yield pool
    pool.close()


def test_those_that_wait_share_a_call_and_each_gets_its_own(pool: WorkerPool):
    model = Model()
    joined = JoinedCalls(pool, model)
    first = joined.submit([Passage("x")])
    assert model.started.wait(10)
    others = [joined.submit([Passage("y" * n), Passage("z" * n)]) for n in range(1, 40)]
    model.gate.set()
    assert first.result(10)[0].vector == [1]
    assert [[found.vector[0] for found in other.result(10)] for other in others] == [[n, n] for n in range(1, 40)]
    assert [len(batch) for batch in model.batches] == [1, 32, 32, 14]


def test_a_text_that_the_model_refuses_harms_nobody_else(pool: WorkerPool):
    model = Model()
    joined = JoinedCalls(pool, model)
    blocked = joined.submit([Passage("first")])
    assert model.started.wait(10)
    good, bad, fine = (joined.submit([Passage(text)]) for text in ("good", "bad text", "fine"))
    model.gate.set()
    assert blocked.result(10)
    assert (good.result(10)[0].vector, fine.result(10)[0].vector) == ([4], [4])
    with pytest.raises(EmbeddingError, match="a bad text"):
        bad.result(10)


def test_what_nobody_waits_for_any_more_is_not_embedded(pool: WorkerPool):
    model = Model()
    joined = JoinedCalls(pool, model)
    blocked = joined.submit([Passage("first")])
    assert model.started.wait(10)
    gone, stays = joined.submit([Passage("gone")]), joined.submit([Passage("stays")])
    assert gone.cancel()
    model.gate.set()
    assert blocked.result(10)
    assert stays.result(10)
    assert "gone" not in [text for batch in model.batches for text in batch]


def test_a_model_that_hangs_is_asked_for_no_more_until_it_answers():
    pool = WorkerPool(1, "model", hang_s=0.05)
    model = Model()
    joined = JoinedCalls(pool, model)
    hanging = joined.submit([Passage("a")])
    assert model.started.wait(10)
    while not pool.hangs:
        time.sleep(0.001)
    with pytest.raises(StoreUnavailable, match="all 1 workers"):
        joined.submit([Passage("c")])
    model.gate.set()
    assert hanging.result(10)
    while pool.hangs:
        time.sleep(0.001)
    assert joined.submit([Passage("c")]).result(10)
    pool.close()


# Queries of callers at the same time.


class QueryModel(TokenModel):
    """Encodes queries together; notes how many each time. The first call waits until ``more`` have come."""

    def __init__(self, more: threading.Event) -> None:
        super().__init__([])
        self.more = more
        self.sizes: list[int] = []

    def encode_queries(self, texts: list[str]) -> list[TextEncoding]:
        self.sizes.append(len(texts))
        if len(self.sizes) == 1:
            assert self.more.wait(LATE)
        if "refused" in texts:
            raise ValueError("too long")
        return [TextEncoding(np.array([len(text), 1], np.float32)) for text in texts]


class SpacedQueryModel(FixedEmbeddings):
    """Encodes queries together, in several vector spaces."""

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        raise AssertionError("no documents here")

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        raise AssertionError("not one by one")

    def encode_queries_in(self, texts: list[str], spaces: frozenset[int]) -> list[list[TextEncoding]]:
        vectors = [np.array([len(text), 1], np.float32) for text in texts]
        return [[TextEncoding(vector, space=space) for space in sorted(spaces)] for vector in vectors]


def _asked_at_once(embedder: Embedder, model: QueryModel, texts: list[str]) -> list[Any]:
    """What each of ``texts`` gets, if all are asked while the model embeds another one."""
    results: dict[str, Any] = {}

    def ask(text: str) -> None:
        try:
            (results[text],) = run(embedder.query(text))
        except EmbeddingError as error:
            results[text] = error

    first = threading.Thread(target=ask, args=("first",))
    first.start()
    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    while not model.sizes:
        time.sleep(0.001)
    for thread in threads:
        thread.start()
    while len(embedder._shared._waiting) < len(texts):
        time.sleep(0.001)
    model.more.set()
    for thread in (first, *threads):
        thread.join()
    return [results[text] for text in texts]


def test_queries_of_callers_at_the_same_time_share_a_call():
    model = QueryModel(threading.Event())
    embedder = Embedder(model, "f")
    texts = ["x" * size for size in range(1, 41)]
    found = _asked_at_once(embedder, model, texts)
    assert model.sizes == [1, 32, 8]
    assert [one.vector.tolist() for one in found] == [[len(text), 1] for text in texts]
    embedder.close()


def test_a_query_that_the_model_refuses_fails_no_other():
    model = QueryModel(threading.Event())
    embedder = Embedder(model, "f")
    refused, found = _asked_at_once(embedder, model, ["refused", "xx"])
    assert isinstance(refused, EmbeddingError)
    assert found.vector.tolist() == [2, 1]
    embedder.close()


def test_an_interrupted_caller_leaves_nobody_waiting():
    """Whoever embeds for the others is interrupted: they get the interruption as well, and the next query works."""

    class Interrupted(QueryModel):
        def encode_queries(self, texts: list[str]) -> list[TextEncoding]:
            if not self.sizes:
                self.sizes.append(len(texts))
                raise KeyboardInterrupt
            return super().encode_queries(texts)

    more = threading.Event()
    more.set()
    embedder = Embedder(Interrupted(more), "f")
    with pytest.raises(KeyboardInterrupt):
        run(embedder.query("tea"))
    assert len(run(embedder.query("tea"))) == 1
    embedder.close()


def test_queries_are_encoded_in_the_spaces_that_each_asks_for():
    embedder = Embedder(SpacedQueryModel(None), "f")
    assert [one.space for one in run(embedder.query("tea", None, frozenset({0, 1})))] == [0, 1]
    assert [one.space for one in run(embedder.query("tea", None, frozenset({1})))] == [1]
    assert run(embedder.query("tea", None, frozenset())) == []
    embedder.close()


def test_who_waits_for_a_model_goes_on_when_it_is_loaded_or_has_failed(drive: Driver):
    for error in (None, OSError("gone")):
        gate = threading.Event()

        def load(gate: threading.Event = gate, error: Exception | None = error) -> None:
            assert gate.wait(LATE)
            if error:
                raise error

        embedder = Embedder(HashingEmbeddings(), "f", load)
        embedder.warm()
        drive(embedder.loaded(0.01))
        assert embedder.is_loading
        threading.Timer(0.05, gate.set).start()
        drive(embedder.loaded(LATE))
        assert (embedder.is_loading, embedder.is_loaded) == (False, error is None)
        drive(embedder.loaded(LATE))
        embedder.close()
