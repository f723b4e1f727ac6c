"""Kill -9 while eight tasks write: what was acknowledged is there, nothing is half-written."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Sequence

from processes import Forked
from writer_process import checked, write

from inference_core import AgentMemoryStoreService, open_store
from inference_core.memory.audit import AuditEvent


def killed_writer(url: str, seed: int, seconds: float) -> list[list[str]]:
    """Starts a writer, kills it after ``seconds`` of writing; what it said."""
    process = Forked(write, url, seed)
    said: list[str] = []
    while not said or not said[-1].startswith("ack"):
        said.append(process.said.readline().decode().rstrip("\n"))
    time.sleep(seconds)
    process.kill()
    said += process.end()[1]
    return [line.split("\t") for line in said if line.count("\t") == 2]


def versions_in(newest_first: Sequence[AuditEvent]) -> dict[str, int]:
    """The version of each memory as the audit events tell it; each of them goes on where the one before has ended."""
    versions: dict[str, int] = {}
    changes = [change for event in reversed(newest_first) for change in event.changes]
    for change in (one for one in changes if one.place == ("semantic",)):
        before = versions.pop(change.key, 0)
        assert change.before == before
        if change.after != 0:
            versions[change.key] = before + 1
    return versions


def test_acknowledged_writes_survive_kill_9(shared_url: str, full: bool) -> None:
    url = shared_url
    kills = (200 if full else 10) if url.startswith("sqlite") else (50 if full else 4)
    chance = random.Random(7)
    longest = 0.6 if full else 0.3
    said = [event for seed in range(kills) for event in killed_writer(url, seed, chance.uniform(0.05, longest))]
    acknowledged = {memory_id: content for word, memory_id, content in said if word == "ack"}
    tried = {memory_id: content for word, memory_id, content in said if word == "try"}
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None).sync
        documents, total = service.list_memories("crash", limit=None)
        while len(documents) != total:  # a server may still be at what a killed process has sent it
            documents, total = service.list_memories("crash", limit=None)
        trail = versions_in(service.audit("crash", limit=None))
        problems = service.verify_audit("crash").problems
        stored = {document.id: document.content for document in documents}
        index_finds = store.search(("crash",), query=documents[0].content[:40], limit=5)
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
    assert trail == {document.id: document.version for document in documents}, "an event if and only if a change"
    assert problems == ()
    assert len(acknowledged) >= 5 * kills
    assert (lost, invented, half_written) == (set(), set(), set())
    assert len(stored) == total
    assert index_finds
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
