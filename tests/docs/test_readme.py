"""README's examples run word for word, with warnings as errors, against a chat model on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server

from inference_core import AgentMemoryStoreService, open_store
from inference_core.settings import AgentSettings, MemorySettings

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def run_example(code: str, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """What the example printed, and the requests that its model got."""
    with chat_server() as (url, requests):
        settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "LANGSMITH_TRACING": "false"}
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=folder,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout, requests


def prompt_of(request: dict[str, Any]) -> str:
    return str(request["messages"][0]["content"])


OWN_SCHEMA = "from dataclasses import dataclass\n@dataclass\nclass Own:\n    user_id: str\n"


@pytest.mark.parametrize(
    "code",
    [
        EXAMPLES[0],
        EXAMPLES[0].replace(", context_schema=MemoryContext", ""),
        OWN_SCHEMA + EXAMPLES[0].replace("context_schema=MemoryContext", "context_schema=Own"),
    ],
    ids=["as it stands", "without a schema", "a dataclass"],
)
def test_the_first_example_knows_the_user_with_any_schema(code: str, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada@example.com", "Keeps falcons", "facts")
    _, requests = run_example(code, tmp_path)
    assert "Keeps falcons (type: facts)" in prompt_of(requests[0])


def test_the_second_example_reports_the_status(tmp_path: Path) -> None:
    printed, requests = run_example(EXAMPLES[1], tmp_path)
    assert printed.split()[0] in ("recalled", "lexical")
    assert len(requests) == 1


def test_the_third_example_runs(tmp_path: Path) -> None:
    run_example(EXAMPLES[2], tmp_path)
    assert len(EXAMPLES) == 3


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_settings_are_documented_as_they_are() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "settings_reference.py"), "--check"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_env_example_holds_every_setting_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    defaults = MemorySettings(), AgentSettings()
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert (MemorySettings(), AgentSettings()) == defaults
