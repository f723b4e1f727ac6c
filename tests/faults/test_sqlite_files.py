"""A SQLite file with a second name, and one whose journal or index is removed while it is open: nothing is lost."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from processes import Forked

from inference_core import MemoryStore, open_store
from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.stores.encryption.keyring import SqliteKeyRing
from inference_core.stores.factory import open_backend
from inference_core.transfer.backup import back_up

PATIENCE_S = 60.0
NAMESPACE = ("ada", "notes")
BESIDE = ["-wal", "-shm"]
NOTE = re.compile(r"note-\w+-\d+")


def opened(path: Path, how: str = "") -> MemoryStore:
    return open_store(f"sqlite:///{path}{how}", embeddings=None)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def save(store: MemoryStore, key: str) -> bool:
    """Whether it was acknowledged."""
    with suppress(StoreUnavailable):
        store.put(NAMESPACE, key, {"text": key})
        return True
    return False


def missing(path: Path, acknowledged: list[str]) -> list[str]:
    """The acknowledged notes that are not there."""
    with opened(path) as store:
        return [key for key in acknowledged if store.get(NAMESPACE, key) is None]


def noted(process: Forked) -> str:
    """The next note of ``process`` that was acknowledged."""
    while line := process.said.readline().decode().strip():
        if NOTE.fullmatch(line):
            return line
    pytest.fail("it has ended")


def until(condition: Callable[[], bool]) -> None:
    over = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        over.wait(0.01)
    pytest.fail("it does not happen")


def test_a_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    """Two programs that opened it by different names each overwrote what the other had saved: 60 of 120 were lost."""
    path, other = tmp_path / "memory.db", tmp_path / "other.db"
    with opened(path) as store:
        assert save(store, "before")
        os.link(path, other)
        for name in (path, other):
            for how in ("", "?mode=ro"):
                with pytest.raises(ConfigurationError, match=r"hard link.*Remove the other name"):
                    open_backend(f"sqlite:///{name}{how}")
        with pytest.raises(StoreUnavailable, match=r"hard link.*Nothing was saved"):
            store.put(NAMESPACE, "meanwhile", {})
        assert store.get(NAMESPACE, "before"), "it can be read"
        assert store.get(NAMESPACE, "meanwhile") is None
        other.unlink()
        assert save(store, "after")
    assert missing(path, ["before", "after"]) == []
    keys = tmp_path / "keys.db"
    SqliteKeyRing(keys, bytes(32)).close()
    os.link(keys, other)
    with pytest.raises(ConfigurationError, match="hard link"):
        SqliteKeyRing(keys, bytes(32))


def saved_by_name(path: Path, name: str) -> None:
    """Saves 60 notes, and says which were acknowledged."""
    try:
        store = opened(path)
    except ConfigurationError:
        return
    with store:
        for number in range(60):
            if save(store, key := f"note-{name}-{number}"):
                print(key, flush=True)


@pytest.mark.parametrize("is_first", [True, False], ids=["a name from before", "a name from meanwhile"])
def test_two_processes_that_use_two_names_lose_nothing(is_first: bool, tmp_path: Path) -> None:
    """Of 120 saves all that were acknowledged are there."""
    path, other = tmp_path / "memory.db", tmp_path / "other.db"
    opened(path).close()
    if is_first:
        os.link(path, other)
    one, acknowledged = Forked(saved_by_name, path, "one"), list[str]()
    if not is_first:
        acknowledged.append(noted(one))
        os.link(path, other)
    for writer in (one, Forked(saved_by_name, other, "other")):
        code, lines = writer.end()
        assert code == 0, lines
        acknowledged += filter(NOTE.fullmatch, lines)
    other.unlink()
    assert missing(path, acknowledged) == []


def saving(path: Path) -> None:
    """Saves one note after the other, and says which were acknowledged, until it is killed."""
    with opened(path) as store:
        for number in range(100_000):
            if save(store, key := f"note-{os.getpid()}-{number}"):
                print(key, flush=True)


@pytest.mark.parametrize("writers", [1, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("suffix", BESIDE)
def test_a_kill_after_the_journal_was_removed_loses_nothing(suffix: str, writers: int, tmp_path: Path) -> None:
    """It went on acknowledging what it wrote to the removed journal, and a kill lost all since the last checkpoint."""
    path, acknowledged = tmp_path / "memory.db", list[str]()
    opened(path).close()
    running = [Forked(saving, path) for _ in range(writers)]
    for is_removed in (False, True, True, True):
        if is_removed:
            beside(path, suffix).unlink(missing_ok=True)
        acknowledged += [noted(one) for _ in range(20) for one in running]
    for one in running:
        one.kill()
        _, lines = one.end()
        acknowledged += filter(NOTE.fullmatch, lines)
    assert missing(path, acknowledged) == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("suffix", BESIDE)
def test_two_stores_find_their_way_back(suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each moves what it has to the file and lets go; then a new journal begins. Until then nobody else may open it."""
    path = tmp_path / "memory.db"
    with opened(path) as one, opened(path) as other:
        assert all(save(store, key) for store, key in ((one, "a"), (other, "b")))
        beside(path, suffix).unlink()
        for how in ("", "?mode=ro") if suffix == "-wal" else ("",):
            with pytest.raises(ConfigurationError, match="was removed while a program has it open"):
                open_backend(f"sqlite:///{path}{how}")
        until(lambda: all([save(one, "c"), save(other, "d")]))
        assert [store.get(NAMESPACE, key) is not None for store in (one, other) for key in "abcd"] == [True] * 8
        with opened(path) as third:
            assert save(third, "e")
        assert "was removed" in caplog.text
    assert missing(path, list("abcde")) == []


def test_what_is_read_meanwhile_does_not_change(tmp_path: Path) -> None:
    """A reader in the midst of its work keeps its state; the save waits, is refused at worst, and then goes through."""
    path = tmp_path / "memory.db"
    with closing(open_backend(f"sqlite:///{path}")) as backend, opened(path) as store:
        assert save(store, "a")
        with backend.connections.reader() as reader:  # type: ignore[attr-defined]
            reader.execute("BEGIN")
            count = "SELECT count(*) FROM memory_rows WHERE value IS NOT NULL"
            before = reader.execute(count).fetchone()
            beside(path, "-wal").unlink()
            assert not save(store, "b"), "another connection has the removed journal open"
            assert reader.execute(count).fetchone() == before
            reader.execute("ROLLBACK")
        assert not save(store, "b")
        assert backend.get([(NAMESPACE, "a")])[0], "which makes it let go"
        until(lambda: save(store, "b"))
    assert missing(path, ["a", "b"]) == []


def test_what_sqlite_does_itself_is_not_mistaken_for_a_removal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checkpoints, a VACUUM, backups, other programs that come and go, and a journal that was truncated."""
    path, link = tmp_path / "memory.db", tmp_path / "link.db"
    link.symlink_to(path)
    caplog.set_level(logging.WARNING)
    with opened(path) as store, opened(link) as linked:
        for number, between in enumerate[Callable[[], object]](
            (
                store.engine.backend.reclaim,
                lambda: back_up(store.engine.backend, tmp_path / "backup"),
                lambda: opened(path).close(),
                lambda: opened(path, "?mode=ro").close(),
                lambda: commanded(path, "PRAGMA wal_checkpoint(TRUNCATE)"),
                lambda: commanded(path, "VACUUM"),
            )
        ):
            between()
            assert save(store, f"{number}")
            assert save(linked, f"{number}-linked")
        assert "removed" not in caplog.text
        beside(path, "-wal").unlink()
        until(lambda: any(save(one, "by its link") for one in (linked, store)))
    assert missing(path, ["by its link", *(f"{number}-linked" for number in range(6))]) == []


def commanded(path: Path, command: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(command)


def test_a_copy_with_its_journal_alone_is_opened(tmp_path: Path) -> None:
    """A file and its journal that were copied without the index, and leftovers of a program that was killed."""
    path = tmp_path / "memory.db"
    with opened(path) as store:
        assert save(store, "a")
        for name in ("copy", "killed"):
            for suffix in ("", "-wal", "-shm"):
                (tmp_path / f"{name}.db{suffix}").write_bytes(beside(path, suffix).read_bytes())
    (tmp_path / "copy.db-shm").unlink()
    assert missing(tmp_path / "copy.db", ["a"]) == []
    (tmp_path / "killed.db-wal").unlink()
    opened(tmp_path / "killed.db").close()
