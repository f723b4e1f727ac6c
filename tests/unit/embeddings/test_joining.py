"""Callers that wait at the same time share calls of the model, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from inference_core.effects import WorkerPool
from inference_core.embeddings.embedder import JoinedCalls, TextEncoding
from inference_core.errors import EmbeddingError, StoreUnavailable


class Model:
    """Notes its batches; waits for ``gate``; refuses texts that hold "bad"."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = threading.Event()
        self.gate = threading.Event()

    def __call__(self, texts: list[str]) -> list[TextEncoding]:
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
    first = joined.submit(["x"])
    assert model.started.wait(10)
    others = [joined.submit(["y" * n, "z" * n]) for n in range(1, 40)]
    model.gate.set()
    assert first.result(10)[0].vector == [1]
    assert [[found.vector[0] for found in other.result(10)] for other in others] == [[n, n] for n in range(1, 40)]
    assert [len(batch) for batch in model.batches] == [1, 32, 32, 14]


def test_a_text_that_the_model_refuses_harms_nobody_else(pool: WorkerPool):
    model = Model()
    joined = JoinedCalls(pool, model)
    blocked = joined.submit(["first"])
    assert model.started.wait(10)
    good, bad, fine = (joined.submit([text]) for text in ("good", "bad text", "fine"))
    model.gate.set()
    assert blocked.result(10)
    assert (good.result(10)[0].vector, fine.result(10)[0].vector) == ([4], [4])
    with pytest.raises(EmbeddingError, match="a bad text"):
        bad.result(10)


def test_what_nobody_waits_for_any_more_is_not_embedded(pool: WorkerPool):
    model = Model()
    joined = JoinedCalls(pool, model)
    blocked = joined.submit(["first"])
    assert model.started.wait(10)
    gone, stays = joined.submit(["gone"]), joined.submit(["stays"])
    assert gone.cancel()
    model.gate.set()
    assert blocked.result(10)
    assert stays.result(10)
    assert "gone" not in [text for batch in model.batches for text in batch]


def test_a_model_that_hangs_is_asked_for_no_more_until_it_answers():
    pool = WorkerPool(1, "model", hang_s=0.05)
    model = Model()
    joined = JoinedCalls(pool, model)
    hanging = joined.submit(["a"])
    assert model.started.wait(10)
    time.sleep(0.1)
    with pytest.raises(StoreUnavailable, match="all 1 workers"):
        joined.submit(["c"])
    model.gate.set()
    assert hanging.result(10)
    while pool.hangs:
        time.sleep(0.001)
    assert joined.submit(["c"]).result(10)
    pool.close()
