"""The conversation of the background memory example: captured, worked on, and recalled in a process of its own."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest
from example_support import EXAMPLES, environment, load

from inference_core import AgentMemoryStoreService, open_store

BY_WORDS = """
import functools, runpy, sys
import inference_core
inference_core.open_store = functools.partial(inference_core.open_store, embeddings=None)
runpy.run_path(sys.argv.pop(), run_name="__main__")
"""
CHANGED = {
    "21 June": "Mara and Jonas leave for the bike tour on 14 June",
    "60 km": "Mara can ride at most 80 km a day because of her left knee",
    "1,200 euros": "The budget of the bike tour is 900 euros for both",
}


def test_what_was_said_is_recalled_by_an_agent_in_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quick_python: str
) -> None:
    for name in ("AGENT_MODEL", "AGENT_MEMORY_MODEL"):
        monkeypatch.delenv(name, raising=False)
    example = load("background_memory", EXAMPLES, monkeypatch)
    monkeypatch.setattr(example, "open_store", partial(open_store, embeddings=None))
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    example.talk(url)
    assert capsys.readouterr().out.splitlines() == ["36 messages were captured.", "13 memories were made of them."]
    done = subprocess.run(
        [quick_python, "-c", BY_WORDS, url, str(EXAMPLES / "background_memory.py")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer = done.stdout.splitlines()[-1]
    assert all(now in answer and before not in answer for now, before in CHANGED.items())
    assert "Always give Mara distances in kilometres" in answer
    with open_store(url, embeddings=None) as store:
        memory = AgentMemoryStoreService(store).sync
        for now, before in CHANGED.items():
            (found,) = [one for one in memory.list_memories("mara", limit=None)[0] if now in one.content]
            assert [one.content for one in memory.get_memory_history("mara", found.id)] == [before, found.content]
