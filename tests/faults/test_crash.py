"""Kill -9 while eight tasks write: what was acknowledged is there, nothing is half-written."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from writer_process import checked

from inference_core import AgentMemoryStoreService, open_store

WRITER = Path(__file__).parent / "writer_process.py"


def killed_writer(url: str, seed: int, seconds: float) -> list[list[str]]:
    """Starts a writer, kills it after ``seconds`` of writing; what it said."""
    with subprocess.Popen([sys.executable, WRITER, url, str(seed)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first: list[bytes] = []
        while not first or not first[-1].startswith(b"ack"):
            first.append(process.stdout.readline())
        time.sleep(seconds)
        process.kill()
        said = b"".join([*first, process.stdout.read()]).decode()
    return [line.split("\t") for line in said.splitlines() if line.count("\t") == 2]


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 10), ("file", 5)])
def test_acknowledged_writes_survive_kill_9(kind: str, kills: int, tmp_path: Path, full: bool) -> None:
    path = tmp_path / "memory"
    url = f"{kind}:///{path}"
    chance = random.Random(7)
    said = [
        event for seed in range(100 if full else kills) for event in killed_writer(url, seed, chance.uniform(0.05, 0.6))
    ]
    acknowledged = {memory_id: content for word, memory_id, content in said if word == "ack"}
    tried = {memory_id: content for word, memory_id, content in said if word == "try"}
    with open_store(url, embeddings=None) as store:
        documents, total = AgentMemoryStoreService(store).sync.list_memories("crash", limit=None)
        stored = {document.id: document.content for document in documents}
        index_finds = store.search(("crash",), query="task0", limit=5)
    lost = {
        memory_id
        for memory_id, content in acknowledged.items()
        if stored.get(memory_id, "") not in (content, tried[memory_id])
    }
    invented = {
        memory_id
        for memory_id, content in stored.items()
        if content not in (acknowledged.get(memory_id), tried[memory_id])
    }
    half_written = {
        memory_id for memory_id, content in stored.items() if checked(content.rpartition(" #")[0]) != content
    }
    assert len(acknowledged) > 100
    assert (lost, invented, half_written) == (set(), set(), set())
    assert len(stored) == total
    assert index_finds
    if kind == "sqlite":
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
