"""forget, restore, pin, unpin and the worker's rounds from the command line."""

from __future__ import annotations

from typing import Any

import pytest
from cli_support import Capture, answer, text

from inference_core import AgentMemoryStoreService, open_store
from inference_core.cli import main

ADA = ("--user", "ada")


@pytest.fixture(autouse=True)
def url(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(sqlite_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for name in ("m0", "m1", "m2"):
            service.save_memory("ada", f"likes {name} \x1b[31m", memory_id=name)
    return sqlite_url


def ids(found: Any) -> list[str]:
    return sorted(one["id"] for one in found)


def test_a_dry_run_a_real_one_and_back(capsys: Capture) -> None:
    assert answer(capsys, "pin", "m2", *ADA) == {"id": "m2", "pinned": True}
    dry = answer(capsys, "forget", *ADA, "--max", "general=0", "--dry-run")
    assert (ids(dry["forgotten"]), dry["remaining"], dry["dry_run"]) == (["m0", "m1"], 1, True)
    assert "Would forget 2, 1 remain" in text(capsys, "forget", *ADA, "--max-tokens", "0", "--dry-run")
    done = answer(capsys, "forget", *ADA, "--max", "general=0")
    assert (done["forgotten"], done["dry_run"]) == (dry["forgotten"], False)
    assert ids(answer(capsys, "list", *ADA)["memories"]) == ["m2"]
    shown = text(capsys, "restore", *ADA)
    assert "budget, forgotten 20" in shown
    assert "2 can be restored" in shown
    assert ids(answer(capsys, "restore", *ADA)["forgotten"]) == ["m0", "m1"]
    assert answer(capsys, "restore", "m1", *ADA) == {"restored": ["m1"], "taken": [], "missing": []}
    assert "m1 is neither forgotten nor deleted" in text(capsys, "restore", "m1", *ADA)
    assert "Pass memory IDs, or --all" in text(capsys, "restore", "m0", "--all", *ADA, code=2)
    text(capsys, "save", "again", *ADA, "--id", "m0")
    assert "1 stay forgotten" in text(capsys, "restore", "--all", *ADA)
    assert "1 erased" in text(capsys, "forget", *ADA)
    assert "Nothing can be restored" in text(capsys, "restore", *ADA)


def test_pins(capsys: Capture) -> None:
    assert "Pinned m0" in text(capsys, "pin", "m0", *ADA)
    assert "Unpinned m0" in text(capsys, "unpin", "m0", *ADA)
    assert ids(answer(capsys, "forget", *ADA, "--half-life", "1", "--below", "1", "--max", "0")["forgotten"]) == [
        *("m0", "m1", "m2")
    ]
    assert main(["pin", "nothing", *ADA]) == 3


def test_what_is_used_is_shown(capsys: Capture) -> None:
    answer(capsys, "recall", "likes m1", *ADA, "-k", "1")
    found = answer(capsys, "stats", *ADA)
    assert (found["used"], found["never_used"], found["most_used"][0]["id"]) == (1, 2, "m1")
    assert ids(found["oldest_unused"]) == ["m0", "m2"]
    assert "(1)" in text(capsys, "stats", *ADA)


@pytest.mark.parametrize(("option", "value"), [("--max", "few"), ("--max-tokens", "moods=1"), ("--half-life", "0")])
def test_nonsense_is_refused(capsys: Capture, option: str, value: str) -> None:
    assert "What to forget is not clear" in text(capsys, "forget", *ADA, option, value, code=2)


def test_the_worker_forgets_only_if_it_is_told_to(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MEMORY_FORGET_MAX_MEMORIES", "1")
    text(capsys, "worker", "--once")
    assert len(answer(capsys, "list", *ADA)["memories"]) == 3
    monkeypatch.setenv("AGENT_MEMORY_FORGET_HOURS", "24")
    text(capsys, "worker", "--once")
    assert len(answer(capsys, "list", *ADA)["memories"]) == 1
