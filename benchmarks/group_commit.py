"""Durable saves per second of 8 processes x 20 savers: joined into transactions, and each in its own.

The baseline is the same work on the same kind of file by the standard library alone: every save its own transaction
(WAL, synchronous FULL, busy timeout), one connection a process, twenty threads.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Row, publish
from timing import scratch

from inference_core import AgentMemoryStoreService, open_store
from inference_core.services.user_memories import count_user_memories

PROCESSES = 8
SAVERS = 20
BAR = 10
Work = Callable[[str, Any, int], None]


def joined(path: str, start: Any, saves: int) -> None:
    """This package: asynchronous saves through the service."""
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)

        async def saver(at: int) -> None:
            for number in range(saves):
                await service.save_memory(f"user{at}", f"Fact number {number} of saver {at}", "facts")

        async def main() -> None:
            await asyncio.gather(*(saver(at) for at in range(SAVERS)))

        start.wait()
        asyncio.run(main())


def alone(path: str, start: Any, saves: int) -> None:
    """The standard library: each save its own transaction."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS saved (user TEXT, content TEXT)")
    lock = threading.Lock()

    def saver(at: int) -> None:
        for number in range(saves):
            with lock:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO saved VALUES (?, ?)", (f"user{at}", f"Fact number {number} of {at}"))
                connection.execute("COMMIT")

    threads = [threading.Thread(target=saver, args=(at,)) for at in range(SAVERS)]
    start.wait()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()


def rate(work: Work, saves: int, path: Path) -> float:
    """Saves per second of all processes together into the file at ``path``."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES + 1)
    processes = [context.Process(target=work, args=(str(path), start, saves)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    start.wait()
    began = time.perf_counter()
    for process in processes:
        process.join()
    return PROCESSES * SAVERS * saves / (time.perf_counter() - began)


def rows() -> list[Row]:
    """Both rates and their ratio."""
    with scratch() as folder:
        single = rate(alone, 10, folder / "alone.db")
        together = rate(joined, 100, folder / "joined.db")
        with open_store(f"sqlite:///{folder / 'joined.db'}", embeddings=None) as store:
            stored = sum(count_user_memories(store, f"user{at}")["total"] for at in range(SAVERS))
    expected = PROCESSES * SAVERS * 100
    return [
        ("saves a second, one commit each (bare sqlite3)", f"{single:.0f}", "", None),
        ("saves a second, group commit (service)", f"{together:.0f}", "", None),
        ("ratio", f"{together / single:.1f}", f"≥ {BAR}", together / single >= BAR),
        ("lost", str(expected - stored), "0", expected == stored),
    ]


if __name__ == "__main__":
    sys.exit(not publish("group_commit", rows()))
