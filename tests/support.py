"""What several tests need: a small real embedding, ones that fail, and the test data."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from inference_core.retrieval.analysis import analyze

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parent / "golden"


class HashingEmbeddings(Embeddings):
    """Feature hashing of the text's stems into 64 dimensions: quick, deterministic, without a model file."""

    dimensions = 64

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector = np.full(self.dimensions, 1e-3)
        for term in analyze(text):
            digest = hashlib.sha256(term.encode()).digest()
            vector[digest[0] % self.dimensions] += 1 if digest[1] % 2 else -1
        return vector.tolist()


class FailingEmbeddings(HashingEmbeddings):
    """Raises while ``broken``, works otherwise."""

    def __init__(self, *, broken: bool = True) -> None:
        self.broken = broken
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        if self.broken:
            raise ConnectionError("the embedding server is down")
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0] if self.broken else super().embed_query(text)


class HangingEmbeddings(HashingEmbeddings):
    """Answers after ``seconds``, or once its outage is ``over``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over = threading.Event()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.over.wait(self.seconds)
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        self.over.wait(self.seconds)
        return super().embed_query(text)


def expanded(value: Any) -> Any:
    """A value of the test data: ``{"repeat": [text, n]}`` stands for a long text, ``{"join": [...]}`` for its parts."""
    if isinstance(value, dict) and list(value) == ["join"]:
        return "".join(expanded(part) for part in value["join"])
    if isinstance(value, dict) and list(value) == ["repeat"]:
        text, times = value["repeat"]
        return text * times
    return value


@contextmanager
def case(name: str) -> Generator[None]:
    """Names the case of a loop in its failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case: {name}")
        raise


def each(cases: Sequence[Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """One test of a function of a case, for all of many small ``cases``; its failure names each case that fails.

    As tests of their own, cases that take a tenth of a millisecond take several milliseconds each.
    """

    def decorated(test: Callable[[Any], None]) -> Callable[[], None]:
        def run() -> None:
            failures: list[Exception] = []
            for given in cases:
                try:
                    test(given)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - as pytest itself does
                    failures.append(
                        AssertionError(f"{ascii(given)[:200]}: {error!r}").with_traceback(error.__traceback__)
                    )
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases", failures)

        assert cases, "no case is no test"
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorated


def load(name: str) -> list[dict[str, Any]]:
    """The entries of a file in tests/data."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))
