"""What we are compared with: LangGraph's own stores, and the floors, the least work that SQLite and numpy can do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from corpus import Turn
from hashing import HashingEmbeddings
from langgraph.store.base import BaseStore, IndexConfig, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.base import SqliteIndexConfig
from numpy.typing import NDArray
from ours import BATCH, portioned
from timing import watched

from inference_core.memory.namespaces import MemoryNamespaceBuilder, Namespace
from inference_core.memory.types import MemoryCategory
from inference_core.retrieval.analysis import analyze, query_alternatives
from inference_core.retrieval.documents import Change, Document
from inference_core.retrieval.index import CollectionStatistics, ScopeIndex

Search = Callable[[str], object]
LIMIT: Final = 10
_EMBEDDINGS: Final = HashingEmbeddings()
_FIELDS: Final = ["content"]


def namespace(user: str) -> Namespace:
    """Where the memories of ``user`` are, in our store and in the others."""
    return MemoryNamespaceBuilder().namespace_for(user, MemoryCategory.SEMANTIC)


def why_no_vectors() -> str | None:
    """Why SqliteStore cannot have vectors here; None if it can."""
    with closing(sqlite3.connect(":memory:")) as connection:
        if hasattr(connection, "enable_load_extension"):
            return None
    return "this Python's sqlite3 cannot load extensions"


def in_memory() -> InMemoryStore:
    """LangGraph's store in memory, with vectors."""
    return InMemoryStore(index=IndexConfig(dims=_EMBEDDINGS.dimensions, embed=_EMBEDDINGS, fields=_FIELDS))


@contextmanager
def sqlite_store(path: Path) -> Generator[SqliteStore]:
    """LangGraph's store on SQLite, with vectors where that is possible."""
    index = SqliteIndexConfig(dims=_EMBEDDINGS.dimensions, embed=_EMBEDDINGS, fields=list(_FIELDS))
    with closing(sqlite3.connect(path, check_same_thread=False, isolation_level=None)) as connection:
        store = SqliteStore(connection, index=None if why_no_vectors() else index)
        store.setup()
        yield store


def fill(store: BaseStore, turns: Iterable[Turn], count: int) -> None:
    """Puts ``turns`` into ``store``, with the values that our store holds."""
    portions = portioned(turns, BATCH)
    for portion in watched(portions, f"filling {type(store).__name__}", -(-count // BATCH)):
        store.batch([put_op(turn) for turn in portion])


def put_op(turn: Turn) -> PutOp:
    """The put of a turn under its own key."""
    record = turn.record()
    return PutOp(record.namespace, record.id, record.to_value())


def searching(store: BaseStore, user: str) -> Search:
    """The search of a store for a text among what ``user`` has."""
    owned = namespace(user)
    return lambda query: store.search(owned, query=query, limit=LIMIT)


class Floor:
    """One product of a float32 matrix with the query's vector, and one full-text search by BM25: ten best of each.

    It holds one user's texts, analysed as ours are, and gives row numbers only.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        texts = [turn.text for turn in turns]
        self._nearest = _Nearest(texts)
        self._words = sqlite3.connect(":memory:")
        self._words.execute("CREATE VIRTUAL TABLE texts USING fts5 (terms, content = '', tokenize = 'unicode61')")
        self._words.executemany(
            "INSERT INTO texts (rowid, terms) VALUES (?, ?)",
            ((at, " ".join(analyze(text))) for at, text in enumerate(texts, 1)),
        )
        self._words.execute("INSERT INTO texts (texts) VALUES ('optimize')")

    def search(self, query: str) -> tuple[list[int], list[int]]:
        """The rows that are best by meaning, and those that are best by words."""
        wanted = " OR ".join(f'"{term}"' for term in analyze(query))
        select = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT ?"
        return self._nearest.best(query), [row for (row,) in self._words.execute(select, (wanted, LIMIT))]


class QuickFloor:
    """The same with the BM25 of our own index, which takes a tenth of the time of FTS5."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._nearest = _Nearest([turn.text for turn in turns])
        documents = [Document.of(turn.text) for turn in turns]
        changes = [Change(at, str(at), "", 0.0, document) for at, document in enumerate(documents, 1)]
        self._words = ScopeIndex("").update(changes)

    def search(self, query: str) -> tuple[list[int], list[int]]:
        """The rows that are best by meaning, and those that are best by words."""
        terms = query_alternatives(query)
        scores, _ = self._words.bm25(terms, CollectionStatistics.of([self._words], terms))
        return self._nearest.best(query), _best(scores)


class _Nearest:
    """The vectors of texts, in one matrix."""

    def __init__(self, texts: Sequence[str]) -> None:
        vectors = np.array([_EMBEDDINGS.embed_query(text) for text in texts], np.float32)
        self._matrix = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def best(self, query: str) -> list[int]:
        """The rows whose product with the query's vector is largest."""
        return _best(self._matrix @ np.array(_EMBEDDINGS.embed_query(query), np.float32))


def _best(scores: NDArray[np.float32]) -> list[int]:
    top = min(LIMIT, len(scores))
    return np.argpartition(-scores, top - 1)[:top].tolist()


class BareCommits:
    """The least that a durable save on SQLite can cost: one row, one commit (WAL, synchronous FULL)."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS saved (id TEXT PRIMARY KEY, value TEXT, vector BLOB)")

    def save(self, key: str, value: str, vector: bytes | None) -> None:
        """Writes a row, in the place of the one with the same key."""
        self._connection.execute("INSERT OR REPLACE INTO saved VALUES (?, ?, ?)", (key, value, vector))

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()
