"""backup, verify and recover from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import Capture, answer, text

from inference_core import open_store


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", "sqlite:///m.db")
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store("sqlite:///m.db", embeddings=None) as store:
        store.memory("ada").add("likes tea", "preferences")
        store.memory("bob").add("likes coffee", "preferences")


def test_a_store_is_saved_verified_rehearsed_and_brought_back(capsys: Capture) -> None:
    shown = text(capsys, "backup", "saved")
    assert "Backed up 8 rows (2 users) from sqlite:///m.db to saved.\n" in shown
    assert "saved already exists" in text(capsys, "backup", "saved", code=1)
    for words, expected in (("verify", "is intact"), ("recover --drill", "can be restored")):
        shown = text(capsys, *words.split(), "saved")
        assert f"saved {expected}: 8 rows (2 users).\n" in shown
    assert "already exists" in text(capsys, "recover", "saved", code=1)
    shown = text(capsys, "recover", "saved", "--url", "sqlite:///new.db")
    assert "Restored 8 rows (2 users) to sqlite:///new.db, without a ledger of erasures." in shown
    answer(capsys, "erase", "--user", "ada", "--yes")
    assert "There is no ledger at nowhere" in text(capsys, "recover", "saved", "--ledger", "nowhere", code=1)
    found = answer(capsys, "recover", "saved", "--url", "file:///newer", "--ledger", "m.db.erasures.jsonl")
    assert (found["rows"], found["users"], found["erased_again"]) == (8, 2, 1)
    assert answer(capsys, "list", "--user", "ada", "--url", "file:///newer")["memories"] == []
    assert len(answer(capsys, "list", "--user", "bob", "--url", "file:///newer")["memories"]) == 1


def test_regression_a_backup_that_is_not_encrypted_is_said_to_be_restored_so(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(capsys, "backup", "saved")
    monkeypatch.setenv("AGENT_MEMORY_KEYS", "sqlite:///keys.db")
    monkeypatch.setenv("AGENT_MEMORY_ENCRYPTION_KEY", "11" * 32)
    for url in ("sqlite:///new.db", "file:///new"):
        shown = text(capsys, "recover", "saved", "--url", url)
        told = f"{url} is not encrypted, because the backup is not. To encrypt it: inference-core copy --from {url}"
        assert told in shown
        assert answer(capsys, "copy", "--from", url, "--to", f"{url}-sealed")["written"] > 0
        assert len(answer(capsys, "list", "--user", "ada", "--url", f"{url}-sealed")["memories"]) == 1


def test_what_is_damaged_is_named(capsys: Capture) -> None:
    answer(capsys, "backup", "saved")
    Path("saved/store").write_bytes(Path("saved/store").read_bytes() + b"x")
    for command in ("verify", "recover --drill", "recover --url sqlite:///new.db"):
        assert "saved/store is damaged" in text(capsys, *command.split(), "saved", code=1)
    assert "is not a backup" in text(capsys, "verify", "nothing", code=1)


def test_regression_a_log_of_a_store_that_is_gone_does_not_get_into_the_restored_one(capsys: Capture) -> None:
    """Who had moved a damaged store out of the way, but not its log, restored a database that SQLite then damaged."""
    answer(capsys, "backup", "saved")
    with open_store("sqlite:///m.db", embeddings=None) as store:
        store.memory("cyd").add("likes water", "preferences")
        Path("log").write_bytes(Path("m.db-wal").read_bytes())
    Path("m.db").rename("damaged.db")
    Path("log").rename("m.db-wal")
    assert "m.db-wal is left from a store that is gone" in text(capsys, "recover", "saved", code=1)
    Path("m.db-wal").rename("damaged.db-wal")
    answer(capsys, "recover", "saved")
    assert answer(capsys, "list", "--user", "cyd")["memories"] == []
    assert len(answer(capsys, "list", "--user", "ada")["memories"]) == 1
