"""Durable saves per second of 8 processes x 20 savers: joined into transactions, and each in its own.

The ratio is the disk's, as a slow one makes it large. So there is also the processor's time for a save of 20 savers in
one process, beside bare transactions of the same rows, 20 in each.

The baseline does the same work on the same kind of file with the standard library: every save is its own transaction
(WAL, synchronous FULL, busy timeout), with one connection per process and twenty threads.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import physical
from command import bar, plain
from report import Row, publish
from timing import scratch

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import StoreError
from inference_core.services.user_memories import count_user_memories

PROCESSES = 8
SAVERS = 20
BAR = 5
CPU_BAR_MS = 0.2
SAVES = 100
TaskHandler = Callable[[str, Any, int, Any], None]
"""What a process does: in which store, after which barrier, how many saves of each saver, and who counts the errors."""


class Rate(NamedTuple):
    """Saves a second of all processes together, and how many of them failed."""

    a_second: float
    errors: int


def joined(url: str, start: Any, saves: int, errors: Any, *, own_users: bool = False) -> None:
    """This package: asynchronous saves through the service, for the same users in all processes or for its own."""
    owner = f"process{os.getpid()}-user" if own_users else "user"
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)

        async def saver(at: int) -> None:
            for number in range(saves):
                try:
                    text = f"Fact number {number} of saver {at} in process {os.getpid()}"
                    await service.save_memory(f"{owner}{at}", text, "facts")
                except StoreError:
                    with errors:
                        errors.value += 1

        async def main() -> None:
            await asyncio.gather(*(saver(at) for at in range(SAVERS)))

        start.wait()
        asyncio.run(main())


def alone(path: str, start: Any, saves: int, _: Any) -> None:
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


def rate(work: TaskHandler, saves: int, place: str) -> Rate:
    """How fast all processes together save into ``place``; one that ends by an error counts as an error."""
    context = multiprocessing.get_context("spawn")
    start, errors = context.Barrier(PROCESSES + 1), context.Value("i", 0)
    processes = [context.Process(target=work, args=(place, start, saves, errors)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    start.wait()
    began = time.perf_counter()
    for process in processes:
        process.join()
    took = time.perf_counter() - began
    return Rate(PROCESSES * SAVERS * saves / took, errors.value + sum(process.exitcode != 0 for process in processes))


def processor() -> physical.Cost:
    """What a save of 20 savers in one process costs."""
    with scratch() as folder, open_store(f"sqlite:///{folder / 'one.db'}", embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)

        async def together(texts: Sequence[str]) -> None:
            await asyncio.gather(*(service.save_memory(f"user{at}", text, "facts") for at, text in enumerate(texts)))

        def save(texts: Sequence[str]) -> None:
            asyncio.run(together(texts))

        texts = [f"Fact number {number} of saver {at}" for number in range(SAVES) for at in range(SAVERS)]
        save(texts[:SAVERS])
        return physical.cost(store, folder / "one.db", save, texts[SAVERS:], at_once=SAVERS)


def rows() -> list[Row]:
    """The rates and their ratio, and the processor's time."""
    with scratch() as folder:
        url = f"sqlite:///{folder / 'joined.db'}"
        single = rate(alone, 10, str(folder / "alone.db")).a_second
        together, errors = rate(joined, SAVES, url)
        with open_store(url, embeddings=None) as store:
            stored = sum(count_user_memories(store, f"user{at}")["total"] for at in range(SAVERS))
    one = processor()
    expected = PROCESSES * SAVERS * SAVES
    return [
        ("saves a second, one commit each (bare sqlite3)", f"{single:.0f}", "", None),
        ("saves a second, group commit (service)", f"{together:.0f}", "", None),
        ("ratio", f"{together / single:.1f}", f"≥ {BAR}", together / single >= BAR),
        bar("processor time of a save, 20 savers in one process", one.ours_ms, CPU_BAR_MS),
        plain("of a bare transaction of 20 such saves, for each", one.bare_ms),
        ("lost", str(expected - stored), "0", expected == stored),
        ("errors", str(errors), "0", errors == 0),
    ]


if __name__ == "__main__":
    sys.exit(not publish("group_commit", rows()))
