"""A database file that is deleted, replaced or not writable under a running store: nothing is saved into the void."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import ConfigurationError, ReadOnlyStore, StoreUnavailable
from inference_core.stores.backends.sql.sqlite import SqliteBackend

CHANGED = "was deleted, replaced or changed"


def total(url: str) -> int:
    with open_store(url, embeddings=None) as store:
        return AgentMemoryStoreService(store).sync.count_memories("ada")["total"]


def save(url: str, memory_id: str = "a") -> None:
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "likes tea", memory_id=memory_id)


def test_a_save_after_the_file_was_deleted_is_not_saved(sqlite_url: str, tmp_path: Path):
    """The cause: a deleted file takes writes as long as it is open, and nobody looked whether it still has a name."""
    with open_store(sqlite_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "likes tea")
        for file in tmp_path.iterdir():
            file.unlink()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=CHANGED):
                service.save_memory("ada", "likes coffee")
            with pytest.raises(StoreUnavailable):
                service.list_memories("ada")
        assert list(tmp_path.iterdir()) == []
    assert total(sqlite_url) == 0


def test_a_file_that_was_replaced_is_not_written(sqlite_url: str, tmp_path: Path):
    file, backup = tmp_path / "memory.db", tmp_path / "backup.db"
    save(sqlite_url)
    shutil.copy(file, backup)
    with open_store(sqlite_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "likes coffee", memory_id="b")
        backup.replace(file)
        with pytest.raises(StoreUnavailable, match=CHANGED):
            service.save_memory("ada", "likes cocoa", memory_id="c")
    for rest in ("-wal", "-shm"):
        Path(f"{file}{rest}").unlink(missing_ok=True)
    assert total(sqlite_url) == 1


def test_a_file_that_is_moved_back_is_used_again(sqlite_url: str, tmp_path: Path):
    file = tmp_path / "memory.db"
    with open_store(sqlite_url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "likes tea")
        file.rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreUnavailable, match=CHANGED):
            service.save_memory("ada", "likes coffee")
        (tmp_path / "elsewhere.db").rename(file)
        service.save_memory("ada", "likes cocoa")
        assert service.count_memories("ada")["total"] == 2


@pytest.mark.parametrize("gone", ["folder", "store.json", "replaced"])
def test_a_folder_that_is_gone_takes_no_save(tmp_path: Path, gone: str):
    folder = tmp_path / "memories"
    url = f"file:///{folder}"
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "likes tea")
        if gone == "store.json":
            (folder / "store.json").unlink()
        else:
            folder.rename(tmp_path / "elsewhere")
        if gone == "replaced":
            shutil.copytree(tmp_path / "elsewhere", folder)
        with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
            service.save_memory("ada", "likes coffee")
        with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
            service.list_memories("ada")
        assert gone != "folder" or not folder.exists()


def test_a_program_that_changes_its_folder_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///memory.db", embeddings=None) as store:
        monkeypatch.chdir(tmp_path / "other")
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "likes tea")
        assert service.count_memories("ada")["total"] == 1
    assert list((tmp_path / "other").iterdir()) == []


def test_a_file_can_be_opened_for_reading_alone(sqlite_url: str):
    save(sqlite_url)
    with open_store(f"{sqlite_url}?mode=ro", embeddings=None) as reading:
        service = AgentMemoryStoreService(reading).sync
        assert [hit.content for hit in service.recall_memories("ada", "tea")] == ["likes tea"]
        with pytest.raises(ReadOnlyStore):
            service.save_memory("ada", "likes coffee")
        save(sqlite_url, "b")
        assert service.count_memories("ada")["total"] == 2
        assert reading.engine.backend.capabilities.writable is False
    assert [one.failures for one in reading.engine.maintenance.report()] == [0] * 3


def test_a_file_in_a_folder_that_is_read_only_can_be_read(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whoever runs the tests may be root, who may write everywhere: what the system would say is said for it."""
    save(sqlite_url)
    real = sqlite3.connect

    def connect(database: str, **options: object) -> sqlite3.Connection:
        if "immutable" not in database:
            raise sqlite3.OperationalError("unable to open database file")
        return real(database, **options)  # pyright: ignore[reportArgumentType, reportCallIssue] - as they came

    def access(_path: object, _mode: int) -> bool:
        return False

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(sqlite3, "connect", connect)
    before = sorted(tmp_path.iterdir())
    with closing(SqliteBackend(tmp_path / "memory.db")) as backend:
        assert backend.count([("ada", "semantic")]) == 1
        with pytest.raises(ReadOnlyStore):
            backend.set_meta("x", "y")
        assert sorted(tmp_path.iterdir()) == before
        monkeypatch.undo()
        save(sqlite_url, "b")
        with pytest.raises(StoreUnavailable, match=CHANGED):
            backend.count([("ada", "semantic")])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_without_the_permission_to_write_it_is_read(sqlite_url: str, tmp_path: Path):
    save(sqlite_url)
    (tmp_path / "memory.db").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with open_store(sqlite_url, embeddings=None) as store:
            service = AgentMemoryStoreService(store).sync
            assert service.count_memories("ada")["total"] == 1
            with pytest.raises(ReadOnlyStore):
                service.save_memory("ada", "likes coffee")
    finally:
        tmp_path.chmod(0o755)


def test_what_cannot_be_read_without_writing_says_so(sqlite_url: str, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no such file"):
        open_store(f"{sqlite_url}?mode=ro")
    assert list(tmp_path.iterdir()) == []
    with closing(sqlite3.connect(tmp_path / "memory.db")) as other, other:
        other.execute("CREATE TABLE notes (text)")
    with pytest.raises(ConfigurationError, match="There is no store"):
        open_store(f"{sqlite_url}?mode=ro")
    with pytest.raises(ConfigurationError, match="mode of a sqlite URL"):
        open_store(f"{sqlite_url}?mode=readonly")
