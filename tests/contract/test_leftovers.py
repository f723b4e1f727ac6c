"""Copies of a store that a killed process leaves: an erasure removes or names them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import closing
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest
from processes import Forked

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import InvalidInput
from inference_core.lifecycle import ledger
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.stores.factory import open_backend
from inference_core.transfer import backup
from inference_core.transfer.backup import back_up, drill, restore, verify
from inference_core.transfer.json_lines import export_store

CANARY = "zqcanary7 of Ada"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ensure_running()  # before its socket's path, which must be short, would lie in this folder
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    url = f"sqlite:///{tmp_path / 'm.db'}"
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", CANARY)
        back_up(store.engine.backend, tmp_path / "bk")
    return url


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(temporary: Path, run: Callable[..., Any], *arguments: Any) -> None:
    """Ends with the copy of the store in place."""
    tempfile.tempdir = str(temporary)
    backup.Manifest.compare = die  # pyright: ignore[reportAttributeAccessIssue] - of this process alone
    run(*arguments)


def copy(url: str, folder: Path) -> None:
    backup.digest_of = die  # pyright: ignore[reportAttributeAccessIssue] - of this process alone
    with closing(open_backend(url)) as store:
        back_up(store, folder)


def export(url: str, path: Path) -> None:
    Path.replace = die  # pyright: ignore[reportAttributeAccessIssue] - of this process alone
    with closing(open_backend(url)) as store:
        export_store(store, path)


def holders(folder: Path) -> set[str]:
    """The top of each path below ``folder`` whose files hold the canary."""
    held = (path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes())
    return {path.relative_to(folder).parts[0] for path in held}


def test_regression_copies_of_killed_processes_are_removed_or_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lay beside the store and among the temporary files, and the receipt of an erasure said nothing of them."""
    bk, new = tmp_path / "bk", f"sqlite:///{tmp_path / 'new.db'}"
    for arguments in (
        (verify, bk),
        (drill, bk),
        (restore, bk, new),
        (copy, url, tmp_path / "bk2"),
        (export, url, tmp_path / "out"),
    ):
        assert Forked(killed, tmp_path / "tmp", *arguments).end()[0] == -signal.SIGKILL
    assert {name.partition(".")[0] for name in holders(tmp_path)} == {"m", "bk", "bk2", "out", "new", "tmp"}
    monkeypatch.setattr(ledger, "_YOUNG_S", -1.0)
    with ledger.own_folder("x") as used, closing(open_backend(url)) as store:
        receipt = erase([store], "ada", Ledger(tmp_path / "ledger"))
        assert used.is_dir()
    named = {one.rpartition("/")[2].partition(".")[0] for one in receipt.copies}
    assert (receipt.left, named) == (0, {"bk", "bk2", "out"})
    assert {name.partition(".")[0] for name in holders(tmp_path)} == {"bk", "bk2", "out", "new"}
    restore(bk, new, Ledger(tmp_path / "ledger"))
    assert {name.partition(".")[0] for name in holders(tmp_path)} == {"bk", "bk2", "out"}
    assert not [*tmp_path.glob("new.db.*")]


def test_two_cannot_restore_to_one_place(url: str, tmp_path: Path) -> None:
    del url
    with ledger.alone_at(tmp_path / "new.db"), pytest.raises(InvalidInput, match="Another process is restoring"):
        restore(tmp_path / "bk", f"sqlite:///{tmp_path / 'new.db'}")


def test_folders_of_others_stay(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a lock is none of ours; one that was just made may not have its lock yet."""
    del url
    for name in ("inference-core-none", "inference-core-young"):
        (tmp_path / "tmp" / name).mkdir()
    (tmp_path / "tmp" / "inference-core-young" / "in-use").touch()
    ledger.sweep()
    assert len([*(tmp_path / "tmp").iterdir()]) == 2
    monkeypatch.setattr(ledger, "_YOUNG_S", -1.0)
    ledger.sweep()
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["inference-core-none"]
