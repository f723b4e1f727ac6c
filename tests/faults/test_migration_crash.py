"""Kill -9 during a migration, and two at once: the state at the end is that of one undisturbed run."""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from migration_process import migrate_and_tell
from migration_support import legacy_file, originals, state
from processes import Forked

from inference_core.transfer.migrate import migrate_memories


class Prepared:
    """A file before its migration, and what the migration makes of it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.source = folder / "legacy.db"
        self.count = len(legacy_file(self.source, count))
        self.before = originals(self.source)
        self.after = state(self._migrated(self.copy(folder / "whole.db")))

    def copy(self, path: Path) -> Path:
        return Path(shutil.copyfile(self.source, path))

    @staticmethod
    def _migrated(path: Path) -> Path:
        migrate_memories(f"sqlite:///{path}")
        return path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Prepared:
    count = 5_000 if request.config.getoption("--full") else 1_000
    return Prepared(tmp_path_factory.mktemp("legacy"), count)


def migrator(path: Path, batch: int) -> Forked:
    return Forked(migrate_and_tell, f"sqlite:///{path}", batch)


def killed(path: Path, batch: int, lines: int, seconds: float) -> bool:
    """Kills a migration ``seconds`` after it has said so many lines; whether it was still at it."""
    process = migrator(path, batch)
    for _ in range(lines):
        process.said.readline()
    time.sleep(seconds)
    process.kill()
    return not any(line.startswith("written") for line in process.end()[1])


def test_a_migration_that_is_killed_ends_like_an_undisturbed_one(prepared: Prepared, tmp_path: Path, full: bool):
    path = prepared.copy(tmp_path / "memory.db")
    chance = random.Random(11)
    kills = 50 if full else 3
    batch = max(prepared.count // (kills * 8), 5)
    interrupted = sum(killed(path, batch, chance.randint(1, 5), chance.uniform(0, 0.01)) for _ in range(kills))
    report = migrate_memories(f"sqlite:///{path}")
    assert interrupted == kills
    assert report.already_there > 0
    assert report.written + report.already_there == prepared.count
    assert state(path) == prepared.after
    assert originals(path) == prepared.before
    assert migrate_memories(f"sqlite:///{path}").written == 0
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_migrations_at_once_write_each_memory_once(prepared: Prepared, tmp_path: Path):
    path = prepared.copy(tmp_path / "memory.db")
    migrators = [migrator(path, 50), migrator(path, 50)]
    said = [process.end()[1][-1] for process in migrators]
    written = [int(line.removeprefix("written ")) for line in said]
    assert sum(written) == prepared.count
    assert state(path) == prepared.after
