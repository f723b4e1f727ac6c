"""Shared fixtures: stores of every kind, a frozen clock, and the size of the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from inference_core import AgentMemoryStoreService, open_store
from inference_core.testing import FrozenClock

OWN_STORES = ("sqlite", "memory")
ALL_STORES = (*OWN_STORES, "langgraph-memory", "langgraph-sqlite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the large sizes")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the large sizes were asked for."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'memory.db'}"


@pytest.fixture(params=OWN_STORES)
def own_store(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[BaseStore]:
    """A store of this package, without embeddings."""
    with open_store(sqlite_url if request.param == "sqlite" else "memory://", embeddings=None) as store:
        yield store


@pytest.fixture(params=ALL_STORES)
def any_store(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[BaseStore]:
    """A store of this package or of LangGraph, without embeddings."""
    if request.param == "langgraph-memory":
        yield InMemoryStore()
    elif request.param == "langgraph-sqlite":
        with SqliteStore.from_conn_string(str(tmp_path / "langgraph.db")) as store:
            store.setup()
            yield store
    else:
        with open_store(sqlite_url if request.param == "sqlite" else "memory://", embeddings=None) as store:
            yield store


@pytest.fixture
def service(any_store: BaseStore, clock: FrozenClock) -> AgentMemoryStoreService:
    """A memory service of the agent "planner" on every kind of store."""
    return AgentMemoryStoreService(store=any_store, agent_name="planner", clock=clock)
