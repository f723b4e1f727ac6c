"""All benchmarks that need no data, and the tests at full size, as one table in benchmarks/results/full.md.

Each benchmark also leaves results of its own. ``--no-tests`` leaves the tests and the mutants out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from report import RESULTS, Row, publish

SUITES: Final = {
    "kill -9, 200 times": "tests/faults/test_crash.py",
    "kill -9 at every step of 1,000 messages": "tests/faults/test_outbox_steps.py",
    "kill -9 of agents and workers, 100 times; 1,000 jobs with 30 bad ones": "tests/faults/test_outbox_crash.py",
    "8 processes x 20 savers x 100 saves": "tests/faults/test_concurrent_writers.py",
    "7,000 turns of 200 users on one agent, for each store": "tests/security/test_concurrent_users.py",
    "30 callers of 5 users, ten minutes on each database": "tests/faults/test_stress.py",
    "50 kills of a migration of 5,000 memories": "tests/faults/test_migration_crash.py",
    "20,000 instants in 12 time zones": "tests/property/test_time_zones.py",
    "1,250 runs of 50 steps against a model, for each store, sync and async": "tests/property/test_service_model.py",
    "everything else": "tests",
}
BENCHMARKS: Final = (
    *("import", "cold_start", "burst", "responsiveness", "group_commit", "postgres_saves", "recall", "save", "update"),
    *("cold", "footprint", "models", "middleware", "turn", "house", "ingest", "outbox", "listing", "migration"),
    *("serving", "audit", "backup", "encryption", "telemetry", "neighbours", "context_build", "capacity"),
)
"""Names of results; each is written by the script of its name."""
RECALL_SIZES: Final = ("1000", "100000")
"""Recall has bars at these sizes, too; the usual one comes after them, so that its result stays."""
_SCRIPTS: Final = {"import": "import_time"}


def tested() -> list[Row]:
    """Each suite at full size; whether it passed, and how long it took."""
    found: list[Row] = []
    for what, path in SUITES.items():
        started = time.perf_counter()
        ignored = [f"--ignore={other}" for other in SUITES.values() if path == "tests" and other != path]
        code = subprocess.run([sys.executable, "-m", "pytest", path, *ignored, "--full"], check=False).returncode
        took = time.perf_counter() - started
        found.append((what, f"{'passed' if code == 0 else 'FAILED'} in {took:.0f} s", "passed", code == 0))
    return found


def measured(name: str, *options: str) -> list[Row]:
    """The rows that the benchmark publishes, each with its name."""
    result, began = RESULTS / f"{name}.json", time.time()
    script = Path(__file__).with_name(f"{_SCRIPTS.get(name, name)}.py")
    subprocess.run([sys.executable, script, *options], check=False)
    if not result.exists() or result.stat().st_mtime < began:
        return [(name, "broke off", "", False)]
    return [(f"{name}: {what}", *others) for what, *others in json.loads(result.read_text(encoding="utf-8"))["rows"]]


if __name__ == "__main__":
    rows = [row for size in RECALL_SIZES for row in measured("recall", "--n", size)]
    rows += [row for name in BENCHMARKS for row in measured(name)]
    if "--no-tests" not in sys.argv:
        rows = [*tested(), *measured("mutation"), *rows]
    sys.exit(not publish("full", rows))
