"""The demonstration of `sh scripts/demo`: it remembers in another process, and says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from example_support import EXAMPLES, load
from support import DATA

FOLDER = EXAMPLES / "demo"
CONVERSATION = str(DATA / "evaluation" / "own_in_locomo_format.json")


def shown(python: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the demonstration prints in a process of its own."""
    command = [python, str(FOLDER / "demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_MODEL", raising=False)


def test_the_demonstration_remembers_in_another_process(quick_python: str) -> None:
    done = shown(quick_python, "--data", CONVERSATION, AGENT_MEMORY_EMBEDDINGS="local")
    assert done.returncode == 0, done.stderr
    assert "Ada is allergic to hazelnuts" in done.stdout.split("Tuesday")[1]
    assert "All evidence found for" in done.stdout


def test_the_demonstration_as_data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    demo = load("demo", FOLDER, monkeypatch)
    monkeypatch.setattr(demo.sessions, "in_a_new_process", demo.sessions.talk)
    demo.demo(data=Path(CONVERSATION), json=True)
    told = json.loads(capsys.readouterr().out)
    first, second = told["sessions"]
    assert first["prompt_block"] == ""
    assert [step[0] for step in first["steps"]] == ["calls", "tool"] * 3 + ["reply"]
    assert "Ada lives in Lisbon" in second["prompt_block"]
    assert "• Ada lives in Lisbon" in second["steps"][-1][1]
    assert all(answers for answers in told["conversations"].values())


@pytest.mark.parametrize(
    ("arguments", "model", "code", "message"),
    [
        (["--json"], "nonsense", 1, "nonsense"),
        (["--data", "none.json"], "", 2, "Cannot read none.json"),
        (["--bogus"], "", 2, "Usage: sh scripts/demo"),
    ],
)
def test_the_demonstration_says_what_is_wrong(
    arguments: list[str],
    model: str,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    if model:
        monkeypatch.setenv("AGENT_MODEL", model)
    demo = load("demo", FOLDER, monkeypatch)
    monkeypatch.setattr(demo.sessions, "in_a_new_process", demo.sessions.talk)
    assert demo.main(arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
