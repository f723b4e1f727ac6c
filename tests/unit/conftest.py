"""What unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference_core import MemoryStore, open_store


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """A store in memory, which finds by words only."""
    with open_store("memory://", embeddings=None) as opened:
        yield opened
