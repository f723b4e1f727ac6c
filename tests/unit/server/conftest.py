"""A server on a store in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_support import Served, served

from inference_core import AgentMemoryStoreService, open_store
from inference_core.testing import FrozenClock


@pytest.fixture
def server(clock: FrozenClock) -> Iterator[Served]:
    with open_store("memory://", embeddings=None) as store:
        yield served(AgentMemoryStoreService(store, clock=clock))
