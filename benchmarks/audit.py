"""What the audit trail costs a durable save on SQLite: alone and with 16 threads, against none in the same run.

Both stores are open at once and take turns in short rounds, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from report import Row, publish
from timing import scratch

from inference_core import AgentMemoryStoreService, open_store
from inference_core.services.agent_memory_service import SyncMemoryService

THREADS = 16
ROUNDS = 40
SAVES = {1: 50, THREADS: 12}
"""Of each thread in a round."""
BARS = {1: 1.10, THREADS: 1.25}
_WARM_UP = 3


def round_of(memory: SyncMemoryService, pool: ThreadPoolExecutor, threads: int, at: int) -> float:
    """Seconds that a save takes with so many ``threads``, in round ``at``."""
    gate = threading.Barrier(threads + 1)

    def saver(number: int) -> None:
        gate.wait()
        for turn in range(SAVES[threads]):
            memory.save_memory(f"user{number}", f"Fact number {turn} of round {at} by {number} of {threads}", "facts")

    waiting = [pool.submit(saver, number) for number in range(threads)]
    gate.wait()
    started = time.perf_counter()
    for one in waiting:
        one.result()
    return (time.perf_counter() - started) / (threads * SAVES[threads])


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Milliseconds with events and without, and the median ratio of neighbouring rounds."""
    found: list[Row] = []
    with (
        scratch() as folder,
        open_store(f"sqlite:///{folder / 'with.db'}", embeddings=None) as audited,
        open_store(f"sqlite:///{folder / 'without.db'}", embeddings=None, audit=False) as plain,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        both = [AgentMemoryStoreService(store, timeout=None).sync for store in (audited, plain)]
        for threads, bar in BARS.items():
            times: list[Sequence[float]] = []
            for at in range(rounds + _WARM_UP):
                order = 1 if at % 2 else -1
                times.append([round_of(memory, pool, threads, at) for memory in both[::order]][::order])
            kept = times[_WARM_UP:]
            ratio = statistics.median(on / off for on, off in kept)
            on, off = (statistics.median(column) * 1_000 for column in zip(*kept, strict=True))
            what = "a save alone" if threads == 1 else f"a save with {threads} threads"
            found += [
                (f"{what}, without events", f"{off:.2f} ms", "", None),
                (f"{what}, with them", f"{on:.2f} ms ({ratio:.2f} times as long)", f"≤ {bar:.2f} times", ratio <= bar),
            ]
    return found


if __name__ == "__main__":
    sys.exit(not publish("audit", rows()))
