"""Eight processes that open one new file at the same moment, twenty savers each: nothing lost, nothing locked."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from saver_process import SAVERS, SHARED_UPDATES

from inference_core import AgentMemoryStoreService, open_store
from inference_core.services.user_memories import count_user_memories

SAVER = Path(__file__).parent / "saver_process.py"
PROCESSES = 8


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_no_write_is_lost_or_locked_out_from_a_cold_start(kind: str, tmp_path: Path, full: bool) -> None:
    url = f"{kind}:///{tmp_path / 'memory'}"
    saves = 100 if full else 10
    start = str(time.time() + 4)
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("everyone", "shared", "facts", memory_id="shared")
        processes = [
            subprocess.Popen([sys.executable, SAVER, url, f"p{at}", str(saves), start], stderr=-1)
            for at in range(PROCESSES)
        ]
        said = [process.communicate()[1].decode() for process in processes]
        assert [(process.returncode, text) for process, text in zip(processes, said, strict=True)] == [
            (0, "")
        ] * PROCESSES
        counts = [count_user_memories(store, f"user{at}")["semantic"] for at in range(SAVERS)]
        shared = AgentMemoryStoreService(store).sync.get_memory("everyone", "shared")
    assert counts == [PROCESSES * saves] * SAVERS
    assert shared is not None
    assert len(shared.metadata) == PROCESSES * SHARED_UPDATES


def test_a_cold_start_makes_the_tables_once(sqlite_url: str) -> None:
    start = str(time.time() + 4)
    processes = [subprocess.Popen([sys.executable, "-c", OPEN, sqlite_url, start], stderr=-1) for _ in range(PROCESSES)]
    said = [process.communicate()[1].decode() for process in processes]
    assert [(process.returncode, text) for process, text in zip(processes, said, strict=True)] == [(0, "")] * PROCESSES


OPEN = """
import sys, time
from inference_core import open_store
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
open_store(sys.argv[1], embeddings=None).close()
"""
