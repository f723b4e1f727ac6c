"""From opening a store with n memories to the first recall from its index; and the size of the index and the file.

Every run is a process of its own that has imported everything before the clock starts.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import baselines
import ours
from command import Options, Result, bar, described, plain, run
from corpus import ASKER, own_turns, queries
from report import Row
from timing import quantile, resident_bytes, scratch, watched

from inference_core import effects as drivers
from inference_core.stores.indexing.search import RecallMode, Search

RUNS: Final = 5
PATIENCE_S: Final = 60
HURRY_S: Final = 0.2
"""How long a turn waits for the index."""
BAR_MS: Final = 400
FIRST_BAR_MS: Final = 300
BAR_SIZE: Final = 10_000
MEMORY_BAR_MB: Final = 60
_MB: Final = 1024 * 1024
_IMPORTED: Final = ("inference_core.stores.backends.sql.sqlite", "inference_core.stores.indexing.indexes")


class Probe(NamedTuple):
    """What one process saw: milliseconds, and how much its memory grew."""

    first_ms: float
    indexed_ms: float
    grown_bytes: int


def probe(path: Path, *, traced: bool) -> Probe:
    """Opens the store and asks, in a hurry and then by its index; ``traced`` counts allocations, which is slow."""
    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    if traced:
        tracemalloc.start()
    before = _memory(traced=traced)
    started = time.perf_counter()
    with ours.opened(path) as store:
        hurried = Search(
            groups=[[baselines.namespace(ASKER)]], text=queries(1)[0], limit=baselines.LIMIT, wait_seconds=HURRY_S
        )
        seen: list[float] = []
        for search in (hurried, replace(hurried, wait_seconds=PATIENCE_S)):
            mode = drivers.run(store.engine.search(search)).mode
            seen.append((time.perf_counter() - started) * 1000)
        if mode is not RecallMode.HYBRID:
            raise RuntimeError("the index did not answer")
        gc.collect()
        return Probe(seen[0], seen[-1], _memory(traced=traced) - before)


def _memory(*, traced: bool) -> int:
    """Bytes that Python and numpy have allocated, or that the process has in memory."""
    return tracemalloc.get_traced_memory()[0] if traced else resident_bytes()


def measured(options: Options) -> Result:
    """Medians over several processes."""
    with scratch() as folder:
        path = folder / "memory.db"
        with ours.filled(path, options):
            pass
        disk = ours.disk_bytes(path)
        probes = [_apart(path) for _ in watched(range(RUNS), "opening")]
        traced = _apart(path, traced=True)
    indexed = len(own_turns(options.n, options.users))
    return {
        "n": options.n,
        "users": options.users,
        "ours_ms": quantile([one.indexed_ms for one in probes]),
        "first_answer_ms": quantile([one.first_ms for one in probes]),
        "indexed": indexed,
        "index_mb": traced.grown_bytes / _MB,
        "index_mb_per_10k": traced.grown_bytes / _MB / indexed * BAR_SIZE,
        "resident_mb": quantile([one.grown_bytes for one in probes]) / _MB,
        "disk_bytes_per_memory": disk / options.n,
    }


def _apart(path: Path, *, traced: bool = False) -> Probe:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(partial(probe, path, traced=traced))


def table(result: Result) -> list[Row]:
    """The report's rows; the time has a bar for up to 10,000 memories, the index from there on."""
    what, first = f"open and recall by the index {described(result)}", "the first answer of any kind"
    small, per_10k = result["indexed"] <= BAR_SIZE, "memory of the index per 10,000 memories"
    size = result["index_mb_per_10k"]
    return [
        bar(what, result["ours_ms"], BAR_MS) if small else plain(what, result["ours_ms"]),
        bar(first, result["first_answer_ms"], FIRST_BAR_MS) if small else plain(first, result["first_answer_ms"]),
        plain("memory of the index", result["index_mb"], "MB"),
        bar(per_10k, size, MEMORY_BAR_MB, "MB") if result["indexed"] >= BAR_SIZE else plain(per_10k, size, "MB"),
        plain("the process grew by", result["resident_mb"], "MB"),
        plain("disk", result["disk_bytes_per_memory"], "bytes a memory"),
    ]


if __name__ == "__main__":
    sys.exit(run("cold", measured, table, __doc__))
