"""erase and erasures from the command line: conversations too, a receipt, a ledger, and its replay."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_support import Capture, answer, text
from databases import database
from langchain.agents import create_agent

from inference_core import AgentMemoryStoreService, open_store
from inference_core.agents.checkpoints import CheckpointThreads, OnWorkers, open_checkpointer
from inference_core.agents.identity import thread_label
from inference_core.cli import main
from inference_core.memory.trust import MemorySource
from inference_core.testing import ScriptedChatModel

ADA, BOB = "ada@example.com", "bob@example.com"
CANARY = "zqcanary7 of Ada"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for user in (ADA, BOB):
            service.save_memory(
                user, f"{CANARY if user == ADA else 'tea'}", source=MemorySource(thread_id=f"trip of {user}")
            )
            service.save_memory(user, "shared", source=MemorySource(thread_id="everybody's"))
    return url


def talk(checkpoints: str, thread: str, said: str) -> None:
    """A turn of a conversation that is kept under ``thread``."""
    saver = open_checkpointer(checkpoints)
    agent: Any = create_agent(ScriptedChatModel(turns=["yes"]), checkpointer=saver)
    agent.invoke({"messages": [("user", said)]}, {"configurable": {"thread_id": thread}})
    if isinstance(saver, OnWorkers):
        saver.close()


def test_regression_conversations_are_erased_with_their_user(tmp_path: Path, url: str, capsys: Capture) -> None:
    """The checkpoints kept every message and every recalled memory, and nobody knew whose they were."""
    kept = f"sqlite:///{tmp_path / 'c.db'}"
    for thread in ("trip of " + ADA, thread_label(ADA, "hello"), "trip of " + BOB, "everybody's"):
        talk(kept, thread, CANARY if "da" in thread else "tea")
    looked = text(capsys, "erase", "--user", ADA, "--dry-run", "--checkpoints", kept)
    assert "2 memories, 3 audit events" in looked
    assert "2 threads" in looked
    assert "Would erase 7 rows." in looked
    assert "left" not in looked
    shown = text(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept, "--receipt", "receipt.json")
    assert "Erased 7 rows, 0 left, searched 4 files. Receipt " in shown
    assert "Not erased: 1 conversations that memories of other users name too: everybody's" in shown
    receipt = json.loads(Path("receipt.json").read_text())
    assert receipt["files"] == dict.fromkeys(receipt["files"], 0)
    assert stat.S_IMODE(Path("receipt.json").stat().st_mode) == 0o600
    with closing(CheckpointThreads(kept)) as threads:
        assert threads.of("", ["trip of " + BOB, "trip of " + ADA, "everybody's"]) == ["everybody's", "trip of " + BOB]
    assert CANARY.encode() not in Path("c.db").read_bytes() + Path("m.db").read_bytes()
    assert answer(capsys, "erasures")["erasures"] == [receipt]
    assert receipt["id"] in text(capsys, "erasures")


def test_it_asks_first(url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "Erase everything of ada@example.com, for good? [y/N]" in text(capsys, "erase", "--user", ADA, code=1)
    assert answer(capsys, "list", "--user", ADA)["memories"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert answer(capsys, "erase", "--user", ADA)["found"] == 5


def test_what_is_left_is_an_error(url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.stores.backends.sqlite_connections._BUSY_TIMEOUT_MS", 1)
    with closing(sqlite3.connect("m.db")) as reader, closing(sqlite3.connect("m.db")) as writer:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM memory_rows").fetchall()
        shown = text(capsys, "erase", "--user", ADA, "--yes", code=1)
        del writer
    assert "traces left" in shown
    assert "still reads an old state" in shown
    assert "Erased" in text(capsys, "erase", "--user", ADA, "--yes")


def test_a_restored_backup_is_erased_again(url: str, capsys: Capture) -> None:
    shutil.copy("m.db", "kept.db")
    answer(capsys, "erase", "--user", ADA, "--yes", "--ledger", "ledger.jsonl")
    shutil.copy("kept.db", "m.db")
    assert "Erased 1 user again" in text(capsys, "erasures", "--replay", "ledger.jsonl")
    assert answer(capsys, "list", "--user", ADA)["memories"] == []
    assert len(answer(capsys, "list", "--user", BOB)["memories"]) == 2
    assert answer(capsys, "erasures", "--replay", "ledger.jsonl") == {"erasures": []}


def test_threads_of_postgres_and_of_memory(tmp_path: Path) -> None:
    with database("postgres", tmp_path) as kept:
        talk(kept, "~ada:hello", CANARY)
        talk(kept, "other", "tea")
        with closing(CheckpointThreads(kept)) as threads:
            found = threads.of("~ada", [])
            assert found == ["~ada:hello"]
            assert "write-ahead log" in threads.erase(found)[0]
            assert threads.of("~ada", ["other", "~ada:hello"]) == ["other"]
            assert threads.files() == []
    with closing(CheckpointThreads("memory://")) as threads:
        assert threads.of("ada", ["x"]) == []


def test_a_receipt_overwrites_nothing(url: str, capsys: Capture) -> None:
    Path("receipt.json").write_text("mine")
    assert main(["erase", "--user", ADA, "--yes", "--receipt", "receipt.json"]) == 1
    assert Path("receipt.json").read_text() == "mine"
    assert answer(capsys, "list", "--user", ADA)["memories"], "before anything was erased"
    del capsys


def test_without_files_the_ledger_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(capsys, "erase", "--user", ADA, "--yes", "--url", "memory://")["found"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["inference-core-erasures.jsonl"]
