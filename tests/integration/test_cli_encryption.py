"""Encrypted stores from the command line: made, copied from a plain one, keys shown and replaced, a user erased."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_support import Capture, answer, text

from inference_core.cli import main

KEY, OTHER = "11" * 32, "22" * 32


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with a memory of ada's and one of bob's, encrypted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", "sqlite:///memory.db")
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    monkeypatch.setenv("AGENT_MEMORY_KEYS", "sqlite:///keys.db")
    monkeypatch.setenv("AGENT_MEMORY_ENCRYPTION_KEY", KEY)
    assert main(["save", "Drinks tea", "--user", "ada"]) == 0
    assert main(["save", "Drinks mate", "--user", "bob"]) == 0
    return "sqlite:///memory.db"


@pytest.mark.usefixtures("store")
def test_every_command_reads_and_writes_it(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    written = (tmp_path / "memory.db").read_bytes()
    assert not [word for word in (b"Drink", b"drink") if word in written]  # a shorter one may stand there by chance
    capsys.readouterr()
    assert "Drinks tea" in text(capsys, "recall", "tea", "--user", "ada")
    assert "Drinks tea" in text(capsys, "list", "--user", "ada")
    assert "Everything can be read." in text(capsys, "repair")
    assert "No secrets found." in text(capsys, "scan")
    assert answer(capsys, "migrate", "--dry-run")["written"] == 0
    assert answer(capsys, "export", "all.jsonl", "--user", "bob")["written"] == 1
    assert b"Drinks mate" in (tmp_path / "all.jsonl").read_bytes(), "an export is plain"
    monkeypatch.delenv("AGENT_MEMORY_KEYS")
    assert "(AGENT_MEMORY_KEYS)" in text(capsys, "list", "--user", "ada", code=1)
    monkeypatch.delenv("AGENT_MEMORY_ENCRYPTION_KEY")
    doctor = answer(capsys, "doctor", code=1)
    assert any("is encrypted with a key for each user" in problem for problem in doctor["problems"])


def test_a_plain_store_is_copied_into_an_encrypted_one(
    tmp_path: Path, store: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    """The error of a plain store that is opened with keys names the command."""
    with monkeypatch.context() as plainly:
        plainly.delenv("AGENT_MEMORY_KEYS")
        plainly.delenv("AGENT_MEMORY_ENCRYPTION_KEY")
        assert main(["save", "Drinks juice", "--user", "eve", "--url", "sqlite:///plain.db"]) == 0
    capsys.readouterr()
    refused = text(capsys, "list", "--user", "eve", "--url", "sqlite:///plain.db", code=1)
    assert "inference-core copy --from sqlite:///plain.db --to URL" in refused
    assert answer(capsys, "copy", "--from", "sqlite:///plain.db", "--to", "sqlite:///new.db")["written"] == 1
    assert answer(capsys, "copy", "--from", store, "--to", "sqlite:///new.db")["written"] == 2
    assert "Drinks juice" in text(capsys, "list", "--user", "eve", "--url", "sqlite:///new.db")
    assert b"juice" not in (tmp_path / "new.db").read_bytes()
    assert b"juice" in (tmp_path / "plain.db").read_bytes()


@pytest.mark.usefixtures("store")
def test_keys_are_shown_and_replaced(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inference_core.lifecycle.repairs.GRACE_S", 0.0)
    capsys.readouterr()
    assert text(capsys, "encryption") == "2 users, 0 without a key, 0 with two; key store sqlite:///keys.db\n"
    assert answer(capsys, "encryption", "rotate")["rows"] >= 2
    assert "under 1 new keys" in text(capsys, "encryption", "rotate", "--user", "ada")
    (tmp_path / "new").write_text(OTHER + "\n")
    assert "Pass the file" in text(capsys, "encryption", "rewrap", code=2)
    assert "is not one of status, rotate, rewrap" in text(capsys, "encryption", "destroy", code=2)
    assert "set AGENT_MEMORY_ENCRYPTION_KEY" in text(capsys, "encryption", "rewrap", "--new-key", "new")
    assert "another master key" in text(capsys, "encryption", code=1)
    monkeypatch.setenv("AGENT_MEMORY_ENCRYPTION_KEY", OTHER)
    assert "Drinks tea" in text(capsys, "list", "--user", "ada")
    monkeypatch.delenv("AGENT_MEMORY_KEYS")
    monkeypatch.delenv("AGENT_MEMORY_ENCRYPTION_KEY")
    assert main(["save", "Drinks juice", "--user", "eve", "--url", "sqlite:///plain.db"]) == 0
    capsys.readouterr()
    assert "is not encrypted" in text(capsys, "encryption", "--url", "sqlite:///plain.db", code=1)


@pytest.mark.usefixtures("store")
def test_who_was_erased_cannot_be_read_in_an_old_backup(tmp_path: Path, capsys: Capture):
    shutil.copy(tmp_path / "memory.db", tmp_path / "old.db")
    assert main(["erase", "--user", "ada", "--yes", "--ledger", "ledger.jsonl"]) == 0
    capsys.readouterr()
    for user, found in (("ada", 0), ("bob", 1)):
        assert len(answer(capsys, "list", "--user", user, "--url", "sqlite:///old.db")["memories"]) == found
