"""The stores that `benchmarks/conformance.py` tries, as factories: LangGraph's with vectors as documented, and ours."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from baselines import why_no_vectors
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import AsyncPostgresStore, PostgresStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

from inference_core import MemoryStore, open_store
from inference_core.testing.conformance.subject import WatchedEmbeddings

POSTGRES: Final = "CONFORMANCE_POSTGRES"
"""The variable that holds the address of a PostgreSQL with pgvector, also for the processes that a promise starts."""
_POOL: Final[Any] = {"min_size": 1, "max_size": 6}


def in_memory(index: Any) -> InMemoryStore:
    """LangGraph's InMemoryStore."""
    return InMemoryStore(index=index)


@contextmanager
def sqlite(place: Path, index: Any) -> Generator[SqliteStore]:
    """LangGraph's SqliteStore, with vectors where SQLite can load extensions."""
    with SqliteStore.from_conn_string(str(place / "store.db"), index=_sqlite(index)) as store:
        store.setup()
        yield store


@asynccontextmanager
async def async_sqlite(place: Path, index: Any) -> AsyncGenerator[AsyncSqliteStore]:
    """LangGraph's AsyncSqliteStore."""
    async with AsyncSqliteStore.from_conn_string(str(place / "store.db"), index=_sqlite(index)) as store:
        await store.setup()
        yield store


@contextmanager
def postgres(place: Path, index: Any) -> Generator[PostgresStore]:
    """LangGraph's PostgresStore with a pool and its default index."""
    with PostgresStore.from_conn_string(schema(place), pool_config=_POOL, index=index) as store:
        store.setup()
        yield store


@asynccontextmanager
async def async_postgres(place: Path, index: Any) -> AsyncGenerator[AsyncPostgresStore]:
    """LangGraph's AsyncPostgresStore with a pool and its default index."""
    async with AsyncPostgresStore.from_conn_string(schema(place), pool_config=_POOL, index=index) as store:
        await store.setup()
        yield store


def our_sqlite(place: Path, embeddings: WatchedEmbeddings) -> MemoryStore:
    """Ours, in a file."""
    return _ready(open_store(f"sqlite:///{place / 'store.db'}", embeddings=embeddings))


def our_memory(embeddings: WatchedEmbeddings) -> MemoryStore:
    """Ours, in memory."""
    return _ready(open_store("memory://", embeddings=embeddings))


def _ready(store: MemoryStore) -> MemoryStore:
    store.wait_ready(30)
    return store


def _sqlite(index: Any) -> Any:
    return None if why_no_vectors() else index


def schema(place: Path) -> str:
    """The address of a schema of its own for ``place``."""
    server = os.environ[POSTGRES]
    name = re.sub(r"\W", "_", place.name.lower())
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())
    separator = "&" if "?" in server else "?"
    return f"{server}{separator}options=-csearch_path%3D{name},public"
