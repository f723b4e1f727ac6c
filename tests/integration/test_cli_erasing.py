"""erase and erasures from the command line: conversations too, a receipt, a ledger, and its replay."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cli_support import Capture, answer, text
from databases import database
from langchain.agents import create_agent
from outbox_support import Scripted, said, word_for_word
from postgres_server import PARTITIONED

from inference_core import AgentMemoryStoreService, CaptureMiddleware, MemoryMiddleware, Space, open_store
from inference_core.agents.checkpoints import CheckpointThreads, open_checkpointer
from inference_core.agents.fenced_checkpoints import OnWorkers
from inference_core.agents.identity import thread_label
from inference_core.cli import main
from inference_core.cli.protection import show_receipt
from inference_core.effects import run
from inference_core.lifecycle.ledger import ErasureReceipt, PlaceCounts
from inference_core.memory.trust import MemorySource
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.stores.backend import Row
from inference_core.stores.store import MemoryStore
from inference_core.testing import FrozenClock, ScriptedChatModel, call_tool

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


def rows_of(store: MemoryStore) -> list[Row]:
    return [row for row in store.engine.backend.inspect() if isinstance(row, Row)]


def talk(checkpoints: str, thread: str, text: str) -> None:
    """A turn of a conversation that is kept under ``thread``."""
    saver = open_checkpointer(checkpoints)
    agent: Any = create_agent(ScriptedChatModel(turns=["yes"]), checkpointer=saver)
    agent.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}})
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
    assert "Erased 7 rows, 0 left, searched 4 files. Receipt:\n" in shown
    assert "Not erased: 1 conversation that memories of other users also name: everybody's" in shown
    receipt = json.loads(Path("receipt.json").read_text())
    assert receipt["files"] == dict.fromkeys(receipt["files"], 0)
    assert stat.S_IMODE(Path("receipt.json").stat().st_mode) == 0o600
    with closing(CheckpointThreads(kept)) as threads:
        assert sorted(threads.there()) == ["everybody's", "trip of " + BOB]
    assert CANARY.encode() not in Path("c.db").read_bytes() + Path("m.db").read_bytes()
    assert answer(capsys, "erasures")["erasures"] == [receipt]
    assert receipt["id"] in text(capsys, "erasures")


def test_regression_erase_takes_no_rows_of_others_from_partitions(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On hash partitions, "Erased 21 rows, 0 left" was true, and 7 other users had lost memories too."""
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    monkeypatch.chdir(tmp_path)
    with database(PARTITIONED, tmp_path) as url:
        monkeypatch.setenv("AGENT_MEMORY_STORE_URL", url)
        with open_store(url, embeddings=None) as store:
            service = AgentMemoryStoreService(store).sync
            for user in range(12):
                for at in range(10):
                    service.save_memory(f"user{user}", f"fact {at} of user{user}")
            before = {one.namespace: store.engine.backend.count([one.namespace]) for one in rows_of(store)}
            shown = text(capsys, "erase", "--user", "user7", "--yes", "--receipt", str(tmp_path / "receipt.json"))
            assert "Erased 21 rows, 0 left" in shown
            left = {name: store.engine.backend.count([name]) for name in before}
            assert left == {name: 0 if name[0] == "user7" else count for name, count in before.items()}


def test_regression_a_thread_that_stays_does_not_name_its_user(url: str, capsys: Capture) -> None:
    """The ledger held the ids of threads that others name too, which may begin with a user's label."""
    kept, threads = "sqlite:///c.db", (thread_label("carol@example.com", "trip"), f"with {ADA}")
    for thread in threads:
        talk(kept, thread, "tea")
        with open_store(url, embeddings=None) as store:
            for user in (ADA, BOB):
                source = MemorySource(thread_id=thread)
                AgentMemoryStoreService(store).sync.save_memory(user, f"met {thread[:3]}", source=source)
    receipt = answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept)
    assert "2 conversations that memories of other users also name: with …, trip" in receipt["remains"]
    kept_for_good = Path("m.db.erasures.jsonl").read_text()
    # The name alone, without what follows it, may stand in a hash: its letters are hexadecimal digits.
    assert not [name for name in ("carol", ADA, "ada~", "ada@") if name in kept_for_good]


def test_it_asks_first(url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "Permanently erase all data of ada@example.com? [y/N]" in text(capsys, "erase", "--user", ADA, code=1)
    assert answer(capsys, "list", "--user", ADA)["memories"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert answer(capsys, "erase", "--user", ADA)["found"] == 5


def test_what_is_left_is_an_error(url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_core.stores.backends.sql.sqlite._BUSY_TIMEOUT_MS", 1)
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


def turn(url: str, checkpoints: str, thread: str, turns: list[Any], *middleware: Any, text: str = CANARY) -> None:
    """A turn of an agent with a memory, in a thread with an id of the application's own."""
    saver = open_checkpointer(checkpoints)
    with open_store(url, embeddings=None) as store:
        agent: Any = create_agent(
            ScriptedChatModel(turns=turns), checkpointer=saver, store=store, middleware=list(middleware)
        )
        agent.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}})
        store.engine.flush()
    assert isinstance(saver, OnWorkers)
    saver.close()


def copies() -> int:
    return sum(path.read_bytes().count(CANARY.encode()) for path in Path().glob("c.db*"))


def test_regression_an_outbox_elsewhere_is_named(url: str, capsys: Capture) -> None:
    """Messages that waited in another database stayed there, and the receipt was silent about them."""
    elsewhere = "sqlite:///outbox.db"
    with open_store(elsewhere, embeddings=None) as other:
        run(Outbox(other.engine, FrozenClock()).put(Partition(ADA), [said(CANARY)]))
    assert any("--outbox" in one for one in answer(capsys, "erase", "--user", ADA, "--yes")["not_ours"])
    receipt = answer(capsys, "erase", "--user", ADA, "--yes", "--outbox", elsewhere)
    assert not any("--outbox" in one for one in receipt["not_ours"])
    assert sum(path.read_bytes().count(CANARY.encode()) for path in Path().glob("outbox.db*")) == 0


def test_regression_a_conversation_whose_messages_wait_is_erased(url: str, capsys: Capture) -> None:
    """Messages name their thread as a session; it was looked for nowhere, and a second run knew nothing of it."""
    kept = "sqlite:///c.db"
    turn(url, kept, "t-77", ["yes"], CaptureMiddleware(Scripted(word_for_word), user_id=ADA, works=False))
    assert copies()
    assert answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept)["left"] == copies() == 0


SAVES = call_tool("save_memory_store", content=CANARY, memory_type="facts")


def test_regression_conversations_are_found_once_their_database_is_named(url: str, capsys: Capture) -> None:
    """An erasure without --checkpoints removed all that named the threads: one with it, as advised, found none."""
    kept = "sqlite:///c.db"
    turn(url, kept, "t-77", [SAVES, "yes"], MemoryMiddleware(user_id=ADA))
    turn(url, kept, "t-78", [SAVES, "yes"], MemoryMiddleware(user_id=BOB))
    first = answer(capsys, "erase", "--user", ADA, "--yes")
    assert "t-77" not in json.dumps(first)
    assert any("--checkpoints" in one for one in first["not_ours"])
    receipt = answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept)
    assert (receipt["places"][f"checkpoints at {kept}"], receipt["left"]) == ({"threads": {"found": 1, "left": 0}}, 0)
    with closing(CheckpointThreads(kept)) as threads:
        assert [*threads.there()] == ["t-78"]


def test_regression_the_thread_of_a_memory_that_was_deleted_for_good_is_erased(url: str, capsys: Capture) -> None:
    """Only an audit event still named it, and those were not asked."""
    kept = "sqlite:///c.db"
    turn(url, kept, "t-77", [SAVES, "yes"], MemoryMiddleware(user_id=ADA, receipts=False))
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        for one in service.list_memories(ADA)[0]:
            service.delete_memory(ADA, one.id, erase=True)
    assert answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept)["left"] == copies() == 0


def test_regression_a_space_does_not_keep_the_conversation_of_a_member(url: str, capsys: Capture) -> None:
    """A memory of a space that named the thread counted as that of another user, and the conversation stayed."""
    kept = "sqlite:///c.db"
    turn(url, kept, "t-77", [SAVES, "yes"], MemoryMiddleware(user_id=ADA))
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory(Space("team"), "Deploys are on Friday", source=MemorySource(thread_id="t-77"))
    assert answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept)["left"] == copies() == 0


def test_regression_what_was_left_is_looked_for_again(
    url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code said to run it again; the second run no longer knew what to search for, and said that all is well.

    As a program leaves it that goes on reading an old state.
    """
    kept = "sqlite:///c.db"
    turn(url, kept, "t-77", [SAVES, "yes"], MemoryMiddleware(user_id=ADA))
    with closing(sqlite3.connect("c.db")) as reader:
        reader.execute("PRAGMA busy_timeout = 1")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM checkpoints").fetchall()
        monkeypatch.setattr("inference_core.agents.checkpoints._BUSY_TIMEOUT_S", 0.2)  # this reader never ends
        first = answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept, code=1)
        second = answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept, code=1)
    assert first["left"] == second["left"] > 0
    plans = [path.read_text() for path in Path().glob("*.erasures.jsonl.*")]
    assert len(plans) == 1
    assert ADA not in plans[0]
    assert answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept)["left"] == copies() == 0
    assert not [*Path().glob("*.erasures.jsonl.*")]


@pytest.mark.parametrize("by_recover", [True, False])
@pytest.mark.parametrize("thread", ["t-77", thread_label(ADA, "trip")])
def test_regression_restored_conversations_are_erased_again(
    url: str, capsys: Capture, thread: str, by_recover: bool
) -> None:
    """`recover` erased the user in the store, whose fence then told a replay that the conversations are new, too."""
    kept = "sqlite:///c.db"
    turn(url, kept, thread, [SAVES, "yes"], MemoryMiddleware(user_id=ADA))
    turn(url, kept, "t-78", ["yes"], MemoryMiddleware(user_id=BOB), text="tea")
    answer(capsys, "backup", "bk")
    shutil.copy("c.db", "c.bak")
    assert answer(capsys, "erase", "--user", ADA, "--yes", "--checkpoints", kept)["left"] == 0
    shutil.copy("c.bak", "c.db")
    assert copies()
    restored = ["--url", "sqlite:///new.db"]
    more = ["--checkpoints", kept] if by_recover else []
    assert answer(capsys, "recover", "bk", *restored, "--ledger", "m.db.erasures.jsonl", *more)["erased_again"] == 1
    replayed = ["erasures", "--replay", "m.db.erasures.jsonl", "--checkpoints", kept, *restored]
    if not by_recover:
        assert "Erased 1 user again" in text(capsys, *replayed)
    with closing(CheckpointThreads(kept)) as threads:
        assert [*threads.there()] == ["t-78"]
    assert answer(capsys, *replayed) == {"erasures": []}
    turn("sqlite:///new.db", kept, thread, ["yes"], MemoryMiddleware(user_id=ADA))
    assert answer(capsys, *replayed) == {"erasures": []}, "who comes back keeps what is new"
    assert thread in CheckpointThreads(kept).there()


def test_a_replay_leaves_conversations_of_others_and_those_under_a_hold(url: str, capsys: Capture) -> None:
    kept = "sqlite:///c.db"
    for thread in ("t-77", "everybody's", thread_label(ADA, "trip")):
        talk(kept, thread, CANARY)
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory(ADA, "x", source=MemorySource(thread_id="t-77"))
    shutil.copy("m.db", "m.bak")
    answer(capsys, "erase", "--user", ADA, "--yes")
    replayed = ["erasures", "--replay", "m.db.erasures.jsonl", "--checkpoints", kept]
    with open_store(url, embeddings=None) as store:
        hold = AgentMemoryStoreService(store).sync.hold(ADA, "a case")
    assert hold.id in text(capsys, *replayed, code=1)
    with closing(CheckpointThreads(kept)) as threads:
        assert len(threads.there()) == 3
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.release_hold(ADA, hold.id)
    (receipt,) = answer(capsys, *replayed)["erasures"]
    assert (receipt["found"], receipt["left"]) == (2, 0)
    with closing(CheckpointThreads(kept)) as threads:
        assert [*threads.there()] == ["everybody's"]


def test_threads_of_postgres_and_of_memory(tmp_path: Path) -> None:
    with database("postgres", tmp_path) as kept:
        began = time.time()
        talk(kept, "~ada:hello", CANARY)
        talk(kept, "other", "tea")
        with closing(CheckpointThreads(kept)) as threads:
            there = threads.there()
            assert all(began - 0.1 <= there[thread] <= time.time() for thread in ("other", "~ada:hello"))
            assert "write-ahead log" in threads.erase(["~ada:hello"])[0]
            assert threads.there().keys() == there.keys() - {"~ada:hello"}
            assert threads.files() == []
    with closing(CheckpointThreads("memory://")) as threads:
        assert threads.there() == {}


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


@pytest.mark.parametrize(
    ("several", "one"),
    [
        ("memories", "memory"),
        ("memories that wait for confirmation", "memory that waits for confirmation"),
        ("receipts of recalls", "receipt of recalls"),
        ("copies under a hold", "copy under a hold"),
        ("archive", "archive"),
        ("what jobs of the server take in and give", "what jobs of the server take in and give"),
    ],
)
def test_regression_what_is_there_once_is_counted_in_the_singular(several: str, one: str, capsys: Capture) -> None:
    """A receipt said "1 memories"."""
    places = {"sqlite:///m.db": {several: PlaceCounts(found=1)}}
    show_receipt(
        ErasureReceipt(id="r1", subject="ada", began="", ended="", by="", reason="", places=places), is_done=True
    )
    assert f"sqlite:///m.db: 1 {one}\n" in capsys.readouterr().err
