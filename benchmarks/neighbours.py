"""What a quota costs a save, and what a noisy user costs another: saves on SQLite, alone and beside a loop that saves.

Rounds take turns, so that both see the same machine.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from report import Row, publish

from inference_core import AgentMemoryStoreService, Quota, open_store
from inference_core.errors import QuotaExceeded

SAVES = 60
ROUNDS = 5
NOISY_THREADS = 4
FLOOD = 5_000
QUOTA = Quota(max_memories=100_000, max_bytes=10**9)
BRAKED = Quota(max_memories=100_000, writes_per_minute=600)


def timed(save: Callable[[], object], saves: int = SAVES) -> list[float]:
    """Milliseconds of each of so many saves."""
    found: list[float] = []
    for _ in range(saves):
        start = time.perf_counter()
        save()
        found.append(1000 * (time.perf_counter() - start))
    return found


def saver(service: AgentMemoryStoreService, user: str) -> Callable[[], object]:
    """Saves another memory of ``user`` each time."""
    numbers = count()
    return lambda: service.sync.save_memory(user, f"The number {next(numbers)} of {user} is a fact", "facts")


def beside_noise(service: AgentMemoryStoreService, save: Callable[[], object]) -> list[float]:
    """The times of ``save`` while another user saves in a loop, as a model does that is told to wait: 1 ms between."""
    ended, noise = threading.Event(), saver(service, "noisy")

    def loop() -> None:
        while not ended.wait(0.001):
            with suppress(QuotaExceeded):
                noise()

    threads = [threading.Thread(target=loop) for _ in range(NOISY_THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    try:
        return timed(save)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


async def beside_flood(service: AgentMemoryStoreService) -> list[float]:
    """The times of saves while `FLOOD` of another user wait in the same event loop, after half a second."""

    async def save(user: str, number: int) -> None:
        await service.save_memory(user, f"The number {number} of {user} is a fact", "facts")

    flood = asyncio.gather(*(save("flood", number) for number in range(FLOOD)))
    await asyncio.sleep(0.5)
    found: list[float] = []
    while not flood.done():
        start = time.perf_counter()
        await save("calm", len(found))
        found.append(1000 * (time.perf_counter() - start))
    await flood
    return found


def row(name: str, times: list[float], than: list[float]) -> Row:
    """A row of the report, with the ratio of medians."""
    p95, ratio = quantiles(times, n=20)[-1], median(times) / median(than)
    return f"a save {name}", f"{ratio:.2f} times as long: median {median(times):.2f} ms, p95 {p95:.2f} ms", "", None


def main() -> None:
    """Measures, and publishes the table."""
    found: dict[str, list[float]] = {"without": [], "with": [], "beside": [], "braked": []}
    with TemporaryDirectory() as folder:
        stores = {
            name: open_store(f"sqlite:///{Path(folder) / name}.db", embeddings=None, quota=quota)
            for name, quota in (("free", None), ("bounded", QUOTA), ("braked", BRAKED))
        }
        services = {name: AgentMemoryStoreService(store, timeout=None) for name, store in stores.items()}
        saves = {name: saver(service, "quiet") for name, service in services.items()}
        for _ in range(ROUNDS):
            for _ in range(SAVES):
                found["without"] += timed(saves["free"], 1)
                found["with"] += timed(saves["bounded"], 1)
            found["beside"] += beside_noise(services["bounded"], saves["bounded"])
            # The user who is measured is braked too, so a service without that limit saves in the same database.
            with closing(open_store(f"sqlite:///{Path(folder) / 'braked'}.db", embeddings=None)) as quiet:
                found["braked"] += beside_noise(
                    services["braked"], saver(AgentMemoryStoreService(quiet, timeout=None), f"quiet-{time.time()}")
                )
        found["flood"] = asyncio.run(beside_flood(services["free"]))
        for store in stores.values():
            store.close()
    beside = f"beside {NOISY_THREADS} threads of another user"
    rows = [
        row("without a quota", found["without"], found["without"]),
        row("with a quota", found["with"], found["without"]),
        row(f"{beside}, without a brake", found["beside"], found["with"]),
        row(f"{beside}, with 600 writes a minute", found["braked"], found["with"]),
        row(f"while {FLOOD:,} saves of another user wait", found["flood"], found["without"]),
    ]
    publish("neighbours", rows)


if __name__ == "__main__":
    main()
