"""`sh scripts/bench peers` measures what is installed, on data that it has never seen, and names what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import DATA

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_what_is_installed_is_measured_and_what_is_not_is_named(tmp_path: Path):
    data = tmp_path / "unseen"
    data.mkdir()
    (data / "mine.json").write_bytes((DATA / "evaluation" / "own_in_locomo_format.json").read_bytes())
    (data / "saved.json").write_bytes((DATA / "evaluation" / "atomic.json").read_bytes())
    systems = ("inference_core", "LangGraph InMemoryStore", "mem0", "langmem", "deepagents files", "plain vectors")
    chosen = [part for name in systems for part in ("--system", name)]
    command = [sys.executable, "benchmarks/peers.py", "--data", str(data), "--sizes", "50", "--unpublished", *chosen]
    wide = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(command, cwd=ROOT, env=wide, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [" ".join(line.strip("│ ").split()) for line in done.stdout.splitlines()]
    assert sum(row.startswith("inference_core: R@10") for row in rows) == 2
    assert [row for row in rows if row.startswith("inference_core: isolation of 7 pairs │ leaks: none")]
    assert [row for row in rows if row.startswith("inference_core: lost by kill -9 │ 0 of ")]
    assert "inference-core-memory" in json.loads(done.stdout.splitlines()[-1])
    for package in ("mem0", "langmem"):
        is_here = any(row.startswith(f"{package}: search among 50") for row in rows)
        assert is_here or f"{package} is left out: " in done.stderr
