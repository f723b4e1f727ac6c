"""A full disk: nothing is called saved that is not, memories can be read, and saves work again once there is room."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from full_disk_process import fill
from processes import Forked

from inference_core import AgentMemoryStoreService, open_store


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_what_was_acknowledged_is_there_and_what_was_refused_is_not(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:///{tmp_path / 'memories'}"
    code, lines = Forked(fill, url).end()
    saved = [line for line in lines if len(line) == 32]
    assert code == 0, lines
    with closing(open_store(url, embeddings=None)) as store:
        found, _ = AgentMemoryStoreService(store).sync.list_memories("ada", limit=None)
    assert sorted(memory.id for memory in found) == sorted(saved)
    assert {"Plays the violin", "Has room again"} <= {memory.content for memory in found}
