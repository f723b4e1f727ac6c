"""Backups and exports that an erasure names, and what their notes tell of a user afterwards."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from inference_core import AgentMemoryStoreService, MemoryStore
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import COPIES_META, Ledger, copies_with, masked, note_copy
from inference_core.stores.backend import Backend
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.engine import StoreEngine, content_key_of
from inference_core.stores.factory import open_backend
from inference_core.transfer.backup import back_up
from inference_core.transfer.copying import copy_store
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


@pytest.mark.parametrize("has_other_key", [False, True])
def test_regression_a_copied_store_knows_the_backups_and_exports_of_its_users(tmp_path: Path, has_other_key: bool):
    """An erasure in it named none of them, although they hold the user."""
    with closing(filled(f"sqlite:///{tmp_path}/m.db")) as store:
        back_up(store, tmp_path / "backup")
        for users, name in (((ADA,), "ada.jsonl"), ((BOB,), "bob.jsonl")):
            export_store(store, tmp_path / name, user_ids=users)
        for users, of_ada, of_bob in (
            ((), ["backup", "ada.jsonl"], ["backup", "bob.jsonl"]),
            ((BOB,), [], ["backup", "bob.jsonl"]),
        ):
            with closing(InMemoryBackend()) as copy:
                if has_other_key:
                    content_key_of(copy)
                for _ in range(2):
                    copy_store(store, copy, user_ids=users)
                assert [one.rpartition("/")[2] for one in copies_with(copy, ADA)] == of_ada
                assert [one.rpartition("/")[2] for one in copies_with(copy, BOB)] == of_bob
                erase([copy], BOB, Ledger(tmp_path / "erasures.jsonl"))
                assert [one.rpartition("/")[2] for one in copies_with(copy, ADA)] == of_ada


def test_a_store_without_copies_gets_no_note(tmp_path: Path):
    with closing(filled(f"sqlite:///{tmp_path}/m.db")) as store:
        assert erase([store], ADA, Ledger(tmp_path / "erasures.jsonl")).copies == ()
        assert store.get_meta(COPIES_META) is None


@pytest.mark.parametrize(
    ("path", "user", "expected"),
    [
        ("/srv/v1/backup-2025-01-11", "1", "/srv/v1/backup-2025-01-11"),
        ("/srv/backup-2025-01-11", "11", "/srv/backup-2025-01-11"),
        ("/srv/backup-2025-01-11", "2025", "/srv/backup-2025-01-11"),
        ("/srv/1/export-1_2025-01-11.jsonl", "1", "/srv/…/export-…_2025-01-11.jsonl"),
        ("/srv/backups/ada.jsonl", "a", "/srv/backups/ada.jsonl"),
        ("/srv/ada/Bob-ada.jsonl", "ada", "/srv/…/Bob-….jsonl"),
        ("/srv/январь/ян.jsonl", "ян", "/srv/январь/….jsonl"),
        ("/srv/李明的备份", "李明", "/srv/…的备份"),
        ("/srv/x~a~40b.co", "a@b", "/srv/x~a~40b.co"),
        ("/srv/of~a~40b~2eco/a@b.co", "a@b.co", "/srv/of…/…"),
        (f"/srv/x{ADA}x", ADA, "/srv/x…x"),
    ],
)
def test_regression_a_short_id_is_masked_only_where_it_stands_alone(path: str, user: str, expected: str):
    """Each "1" in the notes of all copies became "…" when the user "1" was erased."""
    assert masked(path, user) == expected


def test_regression_copies_that_were_deleted_are_forgotten_also_after_an_erasure(tmp_path: Path):
    """A note in which an id was masked stayed for good, as its path exists nowhere."""
    with closing(filled(f"sqlite:///{tmp_path}/m.db")) as store:
        dated, of_both = tmp_path / "backup-2025-01-11", tmp_path / f"{ADA}-both.jsonl"
        back_up(store, dated)
        export_store(store, of_both, user_ids=(ADA, BOB))
        for user in ("2025", "01", ADA):
            erase([store], user, Ledger(tmp_path / "erasures.jsonl"))
        assert [copy.rpartition("/")[2] for copy in copies_with(store, BOB)] == [dated.name, "…-both.jsonl"]
        shutil.rmtree(dated)
        assert [copy.rpartition("/")[2] for copy in copies_with(store, BOB)] == ["…-both.jsonl"]
        of_both.unlink()
        assert copies_with(store, BOB) == []


def test_a_masked_note_stays_while_its_folder_may_be_elsewhere(tmp_path: Path):
    with closing(filled(f"sqlite:///{tmp_path}/m.db")) as store:
        (tmp_path / ADA).mkdir()
        export_store(store, tmp_path / ADA / "both.jsonl", user_ids=(ADA, BOB))
        erase([store], ADA, Ledger(tmp_path / "erasures.jsonl"))
        shutil.rmtree(tmp_path / ADA)
        assert len(copies_with(store, BOB)) == 1
