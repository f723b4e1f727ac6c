"""Backups and exports that an erasure names, and what their notes tell of a user afterwards."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from inference_core import AgentMemoryStoreService, MemoryStore
from inference_core.lifecycle.copies import COPIES_META, copies_with, note_copy
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.stores.backend import Backend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.opening import open_backend
from inference_core.transfer.backup import back_up
from inference_core.transfer.json_lines import export_store

ADA, BOB = "ada@example.com", "bob@example.com"


def filled(url: str) -> Backend:
    store = MemoryStore(StoreEngine(open_backend(url)))
    for user in (ADA, BOB):
        AgentMemoryStoreService(store).sync.save_memory(user, f"Drinks tea with {user}", "facts")
    store.close()
    return open_backend(url)


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_an_erasure_names_the_copies_that_hold_the_user_and_keeps_no_id(tmp_path: Path, kind: str):
    url = f"sqlite:///{tmp_path}/m.db" if kind == "sqlite" else f"file:///{tmp_path}/m"
    with closing(filled(url)) as store:
        back_up(store, tmp_path / "backup")
        back_up(store, tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone")
        for users, name in (((ADA,), f"{ADA}.jsonl"), ((BOB,), "bob.jsonl"), ((ADA, BOB), f"{ADA}-both.jsonl")):
            export_store(store, tmp_path / name, user_ids=users)
        ledger = Ledger(tmp_path / "erasures.jsonl")
        planned = erase([store], ADA, ledger, dry_run=True)
        receipt = erase([store], ADA, ledger)
        assert planned.copies == receipt.copies
        shown = [copy.partition(" of ")[0] + copy.rpartition("/")[2] for copy in receipt.copies]
        assert shown == ["backupbackup", "export….jsonl", "export…-both.jsonl"]
        assert receipt.left == 0
        assert ADA not in (store.get_meta(COPIES_META) or "")
        assert len(copies_with(store, BOB)) == 3
        assert [copy.rpartition("/")[2] for copy in copies_with(store, ADA)] == ["backup"]
    assert ADA not in (tmp_path / "erasures.jsonl").read_text(encoding="utf-8")


def test_regression_all_copies_that_exist_are_known(tmp_path: Path):
    """From 201 on, the oldest were forgotten although they exist."""
    with closing(filled(f"sqlite:///{tmp_path}/m.db")) as store:
        for at in range(202):
            (tmp_path / f"backup{at}").mkdir()
            note_copy(store, "backup", tmp_path / f"backup{at}")
        assert len(copies_with(store, ADA)) == 202


def test_a_store_without_copies_gets_no_note(tmp_path: Path):
    with closing(filled(f"sqlite:///{tmp_path}/m.db")) as store:
        assert erase([store], ADA, Ledger(tmp_path / "erasures.jsonl")).copies == ()
        assert store.get_meta(COPIES_META) is None
