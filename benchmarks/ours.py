"""Our own store, opened and filled for a benchmark."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from command import URL_VARIABLE, Options
from corpus import ASKER, Turn, queries, turns
from hashing import HashingEmbeddings, HashingTokenEmbeddings
from timing import watched

from inference_core import MemoryStore, open_store
from inference_core.effects import run
from inference_core.embeddings.factory import EmbeddingsSpec
from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.services.operations.scope import put_of
from inference_core.stores.indexing.search import Search

T = TypeVar("T")
BATCH: Final = 500
PATIENCE_S: Final = 600.0
HASHING: Final = HashingEmbeddings()


def url(path: Path) -> str:
    """The URL of the SQLite store at ``path``, or of the store that ``--url`` names, with the path's name."""
    return os.environ.get(URL_VARIABLE, "sqlite:///{path}").format(path=path, name=path.stem)


@contextmanager
def opened(path: Path, embeddings: EmbeddingsSpec = HASHING, *, late: bool = False) -> Generator[MemoryStore]:
    """The store at ``path``, with late interaction or without."""
    with open_store(url(path), embeddings=embeddings, late_interaction=late) as store:
        yield store


@contextmanager
def filled(path: Path, options: Options, embeddings: EmbeddingsSpec = HASHING) -> Generator[MemoryStore]:
    """A new store at ``path`` with all the memories that ``options`` ask for, without late interaction."""
    with opened(path, embeddings) as store:
        fill(store, turns(options.n, options.users), options.n)
        yield store


@contextmanager
def filled_late(path: Path, options: Options) -> Generator[MemoryStore]:
    """The same with token vectors and late interaction."""
    with opened(path, HashingTokenEmbeddings(), late=True) as store:
        fill(store, turns(options.n, options.users), options.n)
        yield store


def fill(store: MemoryStore, said: Iterable[Turn], count: int) -> None:
    """Saves what was ``said`` as memories, ``BATCH`` in a commit; their vectors are there when it returns."""
    portions = portioned(said, BATCH)
    for portion in watched(portions, f"saving {count} memories", -(-count // BATCH)):
        run(store.engine.write([put_of(turn.record()) for turn in portion]))


def index(store: MemoryStore) -> None:
    """Waits until the asking user's index is there: until then a scan answers, which is another benchmark."""
    owned = MemoryNamespaceBuilder().read_scopes(ASKER)
    run(store.engine.search(Search(groups=[owned], text=queries(1)[0], limit=1, wait_seconds=PATIENCE_S)))


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
