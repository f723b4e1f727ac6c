"""What a quota costs a save, and what a noisy user costs another: saves on SQLite, alone and beside a loop that saves.

Rounds take turns, so that both see the same machine.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from inference_core import AgentMemoryStoreService, Quota, open_store
from inference_core.errors import QuotaExceeded

SAVES = 60
ROUNDS = 5
NOISY_THREADS = 4
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


def shown(name: str, times: list[float], than: list[float]) -> str:
    """A row of the table."""
    p95 = quantiles(times, n=20)[-1]
    return f"| {name} | {median(times):.2f} | {p95:.2f} | {median(times) / median(than):.2f} |"


def main() -> None:
    """Prints a table."""
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
        for store in stores.values():
            store.close()
    sys.stdout.write(
        "| a save | median ms | p95 ms | ratio of medians |\n|---|---|---|---|\n"
        + "\n".join(
            [
                shown("without a quota", found["without"], found["without"]),
                shown("with a quota", found["with"], found["without"]),
                shown(
                    f"beside {NOISY_THREADS} threads of another user, without a brake", found["beside"], found["with"]
                ),
                shown("beside them, with 600 writes a minute", found["braked"], found["with"]),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
