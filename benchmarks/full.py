"""The tests at full size and all benchmarks with a bar, as one table in benchmarks/results/full.md."""

from __future__ import annotations

import subprocess
import sys
import time

import cold
import cold_start
import footprint
import group_commit
import import_time
import ingest
import listing
import middleware
import migration
import models
import mutation
import postgres_saves
import recall
import responsiveness
import save
import starvation
import turn
import update
from report import Row, publish

SUITES = {
    "kill -9, 100 times": "tests/faults/test_crash.py",
    "kill -9 at every step of 1,000 messages": "tests/faults/test_outbox_steps.py",
    "kill -9 of agents and workers, 100 times; 1,000 jobs with 30 bad ones": "tests/faults/test_outbox_crash.py",
    "8 processes x 20 savers x 100 saves": "tests/faults/test_concurrent_writers.py",
    "20,000 turns of 200 users on one agent": "tests/security/test_concurrent_users.py",
    "30 callers of 5 users, ten minutes on each database": "tests/faults/test_stress.py",
    "50 kills of a migration of 5,000 memories": "tests/faults/test_migration_crash.py",
    "20,000 instants in 12 time zones": "tests/property/test_time_zones.py",
    "1,250 runs of 50 steps against a model, for each store, sync and async": "tests/property/test_service_model.py",
    "everything else": "tests",
}


def tested() -> list[Row]:
    """Each suite at full size; whether it passed, and how long it took."""
    found: list[Row] = []
    for what, path in SUITES.items():
        started = time.perf_counter()
        ignored = [f"--ignore={other}" for other in SUITES.values() if path == "tests" and other != path]
        code = subprocess.run([sys.executable, "-m", "pytest", path, *ignored, "--full"], check=False).returncode
        took = time.perf_counter() - started
        found.append((what, f"{'passed' if code == 0 else 'FAILED'} in {took:.0f} s", "passed", code == 0))
    return [*found, *mutation.rows()]


if __name__ == "__main__":
    modules = (
        import_time,
        cold_start,
        responsiveness,
        group_commit,
        postgres_saves,
        recall,
        save,
        update,
        cold,
        footprint,
        models,
        middleware,
        turn,
        ingest,
        listing,
        migration,
        starvation,
    )
    measured = [row for module in modules for row in module.rows()]
    tests = [] if "--no-tests" in sys.argv else tested()
    sys.exit(not publish("full", [*tests, *measured]))
