"""The memory of a process with many memories, and its first recall after a bulk save.

One process opens a store with n memories, their vectors and their token vectors, and recalls. Another one, which has
already recalled for the user, saves n memories and recalls at once. The figures include what such a process imports and
a trivial embedding, but no model.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import baselines
import ours
from command import Options, Result, bar, plain, run
from corpus import ASKER, SEED, queries, turns
from hashing import HashingTokenEmbeddings
from report import Row
from timing import milliseconds, quantile, resident_bytes, scratch

from inference_core import AgentMemoryStoreService, MemoryStore
from inference_core.effects import run as run_plan
from inference_core.services.operations.scope import put_of

N: Final = 50_000
ASKED: Final = 20
MEMORY_BAR_MB: Final = 200
FIRST_BAR_MS: Final = 50
KNOWN: Final = 100
WANTED: Final = "The spare key of the boathouse hangs behind the barometer"
_MB: Final = 1024 * 1024


def footprint(path: Path) -> Result:
    """Opens the store and recalls by its index, with late interaction; the memory that the process takes then."""
    before = resident_bytes()
    with ours.opened(path, HashingTokenEmbeddings(), late=True) as store:
        ours.index(store)
        recall = _recalling(store)
        taken = [milliseconds(recall, text) for text in queries(ASKED)]
        gc.collect()
        return {
            "resident_mb": resident_bytes() / _MB,
            "highest_mb": resident_bytes("VmHWM") / _MB,
            "imported_mb": before / _MB,
            "recall_ms": quantile(taken),
        }


def after_saving(path: Path, count: int) -> Result:
    """Saves ``count`` memories of a user whose index is there, and recalls one of them; what that took."""
    with ours.opened(path) as store:
        recall = _recalling(store)
        ours.fill(store, turns(KNOWN, seed=SEED + 5), KNOWN)
        ours.index(store)
        recall(queries(1)[0])
        wanted = [turn._replace(number=KNOWN + turn.number) for turn in turns(count)]
        wanted[count // 2] = wanted[count // 2]._replace(text=WANTED)
        started = time.perf_counter()
        for portion in ours.portioned(wanted, ours.BATCH):
            run_plan(store.engine.write([put_of(turn.record()) for turn in portion]))
        saved = time.perf_counter()
        found = recall("Where is the key of the boathouse?")
        answered = time.perf_counter()
        return {
            "saved_s": saved - started,
            "first_ms": (answered - saved) * 1000,
            "is_right": found[0].content == WANTED,
            "second_ms": milliseconds(recall, queries(2)[1]),
        }


def _recalling(store: MemoryStore) -> Callable[[str], Any]:
    service = AgentMemoryStoreService(store).sync
    return lambda text: service.recall_memories(ASKER, text, k=baselines.LIMIT)


def measured(options: Options) -> Result:
    """What a process of its own says of either."""
    with scratch() as folder:
        with ours.filled_late(folder / "late.db", options):
            pass
        found = _apart(footprint, folder / "late.db") | _apart(after_saving, folder / "saved.db", options.n)
    return {"n": options.n, **found}


def _apart(call: Callable[..., Result], *arguments: Any) -> Result:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    count = f"{result['n']:,} memories"
    return [
        bar(f"a process with {count} and token vectors", result["resident_mb"], MEMORY_BAR_MB, "MB"),
        plain("its highest", result["highest_mb"], "MB"),
        plain("before it opened the store", result["imported_mb"], "MB"),
        plain("its recalls, median", result["recall_ms"]),
        plain(f"a bulk save of {count}", result["saved_s"], "s"),
        bar("the first recall after it", result["first_ms"], FIRST_BAR_MS),
        ("it gives the right memory first", str(result["is_right"]), "True", result["is_right"]),
        plain("the second recall", result["second_ms"]),
    ]


if __name__ == "__main__":
    sys.exit(run("footprint", measured, table, __doc__, N))
