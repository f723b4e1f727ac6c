"""A store of 100,000 memories on SQLite: how long saving, verifying and rehearsing its backup take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import ours
from command import Options, Result, bar, plain, run
from report import Row
from timing import scratch

from inference_core.transfer.backup import Manifest, back_up, drill, verify

SIZE: Final = 100_000
MEMORIES_OF_A_USER: Final = 1_000
DRILL_BAR_S: Final = 60


def measured(options: Options) -> Result:
    """Seconds of each step, and of processor time in them."""
    options = replace(options, users=max(options.users, options.n // MEMORIES_OF_A_USER))
    with scratch() as folder:
        kept = folder / "kept"
        with ours.filled(folder / "memory.db", options) as store:
            backend = store.engine.backend
            taken = {"backup": _timed(lambda: back_up(backend, kept))}
        size = ours.disk_bytes(folder / "memory.db")
        taken |= {"verify": _timed(lambda: verify(kept)), "drill": _timed(lambda: drill(kept))}
    return {"n": options.n, "users": options.users, "size_mb": size / 1e6, "seconds": taken}


def _timed(step: Callable[[], Manifest]) -> tuple[float, float]:
    started, busy = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - started, time.process_time() - busy


def table(result: Result) -> list[Row]:
    """The report's rows."""
    taken: dict[str, tuple[float, float]] = result["seconds"]
    size = f"{result['n']:,} memories of {result['users']:,} users, {result['size_mb']:.0f} MB"
    return [
        plain(f"backup of {size}", taken["backup"][0], "s"),
        plain("verify", taken["verify"][0], "s"),
        bar("drill", taken["drill"][0], DRILL_BAR_S, "s"),
        *(plain(f"{name}, processor time", busy, "s") for name, (_, busy) in taken.items()),
    ]


if __name__ == "__main__":
    sys.exit(run("backup", measured, table, __doc__, SIZE))
