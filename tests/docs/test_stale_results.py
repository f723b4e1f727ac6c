"""A committed result is known to be older than the code that it measures: `sh scripts/bench stale`."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("stale")


def test_every_result_says_which_code_it_measures(stale: Any):
    results = {file.stem for file in stale.RESULTS.glob("*.json")}
    assert results <= set(stale.MEASURED["results"])
    assert set(stale.MEASURED["accepted"]) <= results
    paths = {path for name in stale.MEASURED["results"] for path in stale.paths_of(name)}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    kept = [json.loads(file.read_text(encoding="utf-8"))["code"] for file in stale.RESULTS.glob("*.json")]
    assert all(kept)


def test_what_code_does_counts_and_not_where_it_stands(stale: Any, tmp_path: Path):
    """Dates of files and commits would call a result stale after every comment and every move."""
    one, two, three, four = (tmp_path / name for name in ("one", "two", "three", "four"))
    for folder in (one, two, three, four):
        folder.mkdir()
    (one / "all.py").write_text('"""Both."""\nimport os\ndef f():\n    """Says."""\n    return os.name\nX = 1\n')
    (two / "f.py").write_text("from os import path\nimport os  # for f\ndef f(): return os.name\n")
    (two / "x.py").write_text('X = 1\n"""One."""\n')
    (three / "all.py").write_text("import os\n\n\ndef f():\n    return os.sep\n\n\nX = 1\n")
    shutil.copytree(one, four, dirs_exist_ok=True)
    (four / "words.toml").write_text("a = 1")
    assert stale.digest(one) == stale.digest(two)
    assert len({stale.digest(folder) for folder in (one, three, four)}) == 3


def test_a_stale_result_fails_and_is_accepted_only_with_a_reason_and_for_that_code(tmp_path: Path, quick_python: str):
    for name in ("stale.py", "report.py"):
        (tmp_path / "benchmarks").mkdir(exist_ok=True)
        shutil.copy(ROOT / "benchmarks" / name, tmp_path / "benchmarks" / name)
    (tmp_path / "benchmarks" / "results").mkdir()
    (tmp_path / "inference_core").mkdir()
    (tmp_path / "inference_core" / "code.py").write_text("X = 1")
    (tmp_path / "benchmarks" / "speed.py").write_text("")
    measured = '[code]\n[results]\nspeed = { also = ["code.py"] }\n[accepted]\n'
    (tmp_path / "benchmarks" / "measured.toml").write_text(measured)
    (tmp_path / "README.md").write_text("[figures](benchmarks/results/speed.md)")

    def run(command: str) -> tuple[int, str]:
        done = subprocess.run(
            [quick_python, "-c", command], cwd=tmp_path / "benchmarks", capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    written = run("import report; report.write('speed', [('a recall', '1 ms', '', None)], {})")
    assert written == (0, "")
    checked = "import sys, stale; sys.exit(stale.main())"
    assert "0 of 1 results are stale" in run(checked)[1]
    (tmp_path / "inference_core" / "code.py").write_text("X = 2")
    code, printed = run(checked)
    assert code == 1
    assert "1 of 1 results are stale: speed" in printed
    assert "code.py" in printed
    assert "README.md" in printed
    mark = run("import stale; print(stale.mark_of('speed'))")[1].strip()
    assert f"STALE at {mark}" in printed
    accepted = f'{measured}speed = {{ code = "{mark}", why = "only its name has changed" }}\n'
    (tmp_path / "benchmarks" / "measured.toml").write_text(accepted)
    assert run(checked)[0] == 0
    (tmp_path / "inference_core" / "code.py").write_text("X = 3")
    assert run(checked)[0] == 1  # what was accepted was another change
    (tmp_path / "inference_core" / "code.py").write_text("X = 2")
    (tmp_path / "README.md").write_text("[figures](benchmarks/results/size.md)")
    code, printed = run(checked)
    assert (code, "README.md: no result of 'size' is committed" in printed) == (1, True)
