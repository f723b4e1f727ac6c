"""Our own store, opened and filled for a benchmark."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from corpus import Turn
from hashing import HashingEmbeddings
from timing import watched

from inference_core import MemoryStore, open_store
from inference_core.drivers import run
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.errors import ConfigurationError
from inference_core.services.operations.scope import put_of

T = TypeVar("T")
BATCH: Final = 500


def url(path: Path) -> str:
    """The URL of the SQLite store at ``path``."""
    return f"sqlite:///{path}"


@contextmanager
def opened(path: Path, embeddings: EmbeddingsSpec = "hashing", **options: Any) -> Generator[MemoryStore]:
    """The store at ``path``, without late interaction unless ``options`` say otherwise."""
    spec = HashingEmbeddings() if embeddings == "hashing" else embeddings
    try:
        store = open_store(url(path), embeddings=spec, **{"late_interaction": False, **options})
    except (ConfigurationError, TypeError):
        if options.get("late_interaction"):
            raise
        store = open_store(url(path), embeddings=spec, **options)
    with store:
        yield store


@contextmanager
def opened_late(path: Path, embeddings: EmbeddingsSpec = "hashing") -> Generator[MemoryStore | None]:
    """The store at ``path`` with late interaction; None where that does not apply."""
    with ExitStack() as stack:
        try:
            store = stack.enter_context(opened(path, embeddings, late_interaction=True))
        except (ConfigurationError, TypeError):
            store = None
        yield store


def fill(store: MemoryStore, turns: Iterable[Turn], count: int) -> None:
    """Saves ``turns`` as memories, ``BATCH`` in a commit; their vectors are there when it returns."""
    portions = portioned(turns, BATCH)
    for portion in watched(portions, f"saving {count} memories", -(-count // BATCH)):
        run(store.engine.write([put_of(turn.record()) for turn in portion]))


def stored_vector(path: Path) -> bytes:
    """A vector as the store at ``path`` keeps it."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT vector FROM memory_rows WHERE vector IS NOT NULL").fetchone()[0]


def portioned(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """``items`` in lists of ``size``."""
    left = iter(items)
    while portion := list(islice(left, size)):
        yield portion


def disk_bytes(path: Path) -> int:
    """How much the store at ``path`` takes on disk, its journal included."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
