"""Migration of n flat memories from a file of LangGraph's SqliteStore: memories per second, and memory use by size.

Every size is a process of its own; its memory is its peak, less what it used before it began.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from command import Options, Result, bar, plain, run
from corpus import Turn, turns
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore
from ours import BATCH, portioned, url
from report import Row
from timing import scratch, watched

from inference_core.memory.namespaces import MEMORIES_STORE_NAME
from inference_core.transfer.migrate import migrate_memories

SIZES: Final = (5_000, 50_000)
RATE_BAR: Final = 1_000
GROWTH_BAR_MB: Final = 20
MEMORIES_OF_A_USER: Final = 1_000
_KILOBYTES_PER_MB: Final = 1024


def measured(options: Options) -> Result:
    """Each size, the smallest first; the last is what was asked for."""
    sizes = [*(size for size in SIZES if size < options.n), options.n]
    found = [_apart(size) for size in watched(sizes, "all sizes")]
    return {
        "n": options.n,
        "users": found[-1]["users"],
        "per_s": found[-1]["written"] / found[-1]["seconds"],
        "per_busy_s": found[-1]["written"] / found[-1]["busy_s"],
        "growth_mb": found[-1]["peak_mb"] - found[0]["peak_mb"],
        "sizes": found,
    }


def _apart(size: int) -> Result:
    with scratch() as folder:
        _fill(folder / "memory.db", size)
        command = [sys.executable, __file__, "--migrate", str(folder / "memory.db")]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _fill(path: Path, size: int) -> None:
    users = max(size // MEMORIES_OF_A_USER, 1)
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        for portion in portioned(turns(size, users), BATCH):
            store.batch([_put(turn) for turn in portion])


def _put(turn: Turn) -> PutOp:
    """The turn as it was saved before there were categories."""
    value = {
        "content": turn.text,
        "memory_type": turn.record().memory_type.value,
        "session_id": f"s{turn.session}",
        "topic": None,
        "extra_metadata": {},
        "created_at": turn.at.isoformat(),
    }
    return PutOp((turn.user, MEMORIES_STORE_NAME), f"m{turn.number}", value)


def migrated(path: Path) -> Result:
    """What one migration in this process took."""
    migrate_memories("memory://")  # everything is imported then
    before = _peak_mb()
    started, busy = time.perf_counter(), time.process_time()
    report = migrate_memories(url(path))
    return {
        "written": report.written,
        "users": report.users,
        "seconds": time.perf_counter() - started,
        "busy_s": time.process_time() - busy,
        "peak_mb": _peak_mb() - before,
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KILOBYTES_PER_MB


def table(result: Result) -> list[Row]:
    """The report's rows."""
    memory = [plain(f"memory while {one['written']:,} are migrated", one["peak_mb"], "MB") for one in result["sizes"]]
    return [
        bar(
            f"memories a second ({result['n']:,} of {result['users']} users)", result["per_s"], RATE_BAR, "", least=True
        ),
        plain("memories in a second of one processor", result["per_busy_s"], ""),
        *memory,
        bar("growth of memory from the smallest size to the largest", result["growth_mb"], GROWTH_BAR_MB, "MB"),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--migrate"]:
        print(json.dumps(migrated(Path(sys.argv[2]))))
    else:
        sys.exit(run("migration", measured, table, __doc__))
