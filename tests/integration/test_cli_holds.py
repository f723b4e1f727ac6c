"""``inference-core hold``: legal holds on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli.app import run


def test_holds_begin_are_listed_and_released(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Likes tea", memory_id="tea")
    where = ["--user", "ada", "--url", url]

    def answer(*words: str) -> Any:
        assert run(["hold", *words, *where, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    made = answer("add", "--reason", "case 7", "--memory", "tea", "--until", "2100-01-01")["hold"]
    assert (made["reason"], made["memory_id"], made["until"][:10]) == ("case 7", "tea", "2100-01-01")
    assert run(["delete", "tea", "--yes", *where]) == 1
    assert "a legal hold keeps it" in capsys.readouterr().err
    assert run(["update", "tea", "--content", "Likes milk", *where]) == 0
    capsys.readouterr()
    assert answer("list")["holds"] == [made]
    assert run(["hold", "list", *where]) == 0
    shown = capsys.readouterr().out
    assert "case 7" in shown
    assert "memory tea" in shown
    assert "until 2100-01-01" in shown
    with open_store(url, embeddings=None) as store:  # keeps no earlier texts
        AgentMemoryStoreService(store, deleted_days=0).sync.update_memory("ada", "tea", "Likes juice")
    (copy,) = answer("copies")["copies"]
    assert copy["value"]["content"] == "Likes milk"
    assert run(["hold", "copies", *where]) == 0
    assert "Likes milk" in capsys.readouterr().out
    assert answer("release", made["id"]) == {"released": made["id"]}
    assert run(["hold", "release", made["id"], *where]) == 3
    assert "no hold" in capsys.readouterr().err
    assert run(["hold", "list", *where]) == 0
    assert "No hold" in capsys.readouterr().err
    assert run(["hold", "add", "--reason", "case 8", *where]) == 0
    (made_now,) = capsys.readouterr().out.splitlines()  # alone, for hold release
    assert run(["hold", "release", made_now, *where]) == 0
    assert run(["delete", "tea", "--yes", *where]) == 0
    assert run(["hold", *where]) == 0  # alone, it lists
    assert run(["hold", "release", *where]) == run(["hold", "add", *where]) == 2
