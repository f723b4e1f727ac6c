"""Saving n turns with the local model, end to end through the service: turns per second, and the model's share.

The model's own time is measured with the same texts in the same batches and concurrency, embedded directly.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import ours
from command import Options, Result, bar, plain, run
from corpus import Turn, turns
from ours import portioned
from report import Row
from timing import scratch, seconds, watched

from inference_core import AgentMemoryStoreService
from inference_core.embeddings.embedder import Embedder, TextEncoding
from inference_core.embeddings.local import FINGERPRINT, LocalEmbeddings

WINDOW: Final = 32
PORTION: Final = 500
SHARE_BAR: Final = 0.9


class WatchedEmbeddings(LocalEmbeddings):
    """The local model, which remembers its batches and how many calls ran at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.at_once = 1
        self.busy_s = 0.0
        self._running = 0
        self._since = 0.0
        self._guard = threading.Lock()

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """What the model answers; ``busy_s`` is for how long at least one call was running."""
        with self._guard:
            self.batches.append(texts)
            self._since = self._since if self._running else time.perf_counter()
            self._running += 1
            self.at_once = max(self.at_once, self._running)
        try:
            return super().encode(texts)
        finally:
            with self._guard:
                self._running -= 1
                if not self._running:
                    self.busy_s += time.perf_counter() - self._since


def measured(options: Options) -> Result:
    """The rate, and the model's share of the time by either way of measuring it.

    Saving and embedding directly take turns, so that noise of the machine hits both alike.
    """
    model, alone = WatchedEmbeddings(), LocalEmbeddings()
    model.load()
    alone.load()
    saving_s = alone_s = 0.0
    with scratch() as folder, ours.opened(folder / "memory.db", Embedder(model, FINGERPRINT), late=True) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        portions = list(portioned(turns(options.n, options.users), PORTION))
        for portion in watched(portions, f"saving {options.n} turns"):
            known = len(model.batches)
            saving_s += seconds(lambda portion=portion: asyncio.run(_saved(service, portion)))
            batches = model.batches[known:]
            alone_s += seconds(lambda batches=batches: _embedded(alone, batches, model.at_once))
        pending = len(store.engine.backend.pending(FINGERPRINT, options.n))
    return {
        "n": options.n,
        "users": options.users,
        "turns_per_s": options.n / saving_s,
        "ours_ms": saving_s / options.n * 1000,
        "floor_ms": alone_s / options.n * 1000,
        "model_share": alone_s / saving_s,
        "model_busy_share": model.busy_s / saving_s,
        "texts_per_batch": sum(map(len, model.batches)) / len(model.batches),
        "without_vector": pending,
    }


async def _saved(service: AgentMemoryStoreService, portion: Iterable[Turn]) -> None:
    """Saves the turns, at most ``WINDOW`` at a time."""
    waiting = iter(portion)
    async with asyncio.TaskGroup() as group:
        for _ in range(WINDOW):
            group.create_task(_saver(service, waiting))


async def _saver(service: AgentMemoryStoreService, waiting: Iterator[Turn]) -> None:
    for turn in waiting:
        record = turn.record()
        await service.save_memory(turn.user, turn.text, record.memory_type.value, session_id=record.session_id)


def _embedded(model: LocalEmbeddings, batches: Sequence[list[str]], at_once: int) -> None:
    """The same calls of the model, as many at once."""
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(model.encode, batches))


def table(result: Result) -> list[Row]:
    """The report's rows."""
    return [
        plain(f"turns a second ({result['n']} turns, {WINDOW} at a time)", result["turns_per_s"], ""),
        plain("a turn", result["ours_ms"]),
        plain("the model alone, a turn", result["floor_ms"]),
        bar("the model's share of the time", result["model_share"], SHARE_BAR, "", least=True),
        plain("share of the time in which the model was running", result["model_busy_share"], ""),
        plain("texts in a batch", result["texts_per_batch"], ""),
        ("turns without a vector", str(result["without_vector"]), "0", result["without_vector"] == 0),
    ]


if __name__ == "__main__":
    sys.exit(run("ingest", measured, table, __doc__))
