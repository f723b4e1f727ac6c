"""SQLite keeps new events in a log and brings them to their rows later: all who read events find them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import VersionConflict
from inference_core.memory.namespaces import AUDIT, Namespace
from inference_core.stores.backend import Check, Expiry, PageRequest, Put, Remove, Row
from inference_core.stores.backends.sql import sqlite
from inference_core.stores.backends.sql.sqlite import SqliteBackend
from inference_core.testing import FrozenClock

EVENTS: Namespace = ("ada", AUDIT)
NOW = datetime(2026, 1, 15, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    with closing(SqliteBackend(path, clock=FrozenClock(NOW))) as backend:
        yield backend


def event(key: str, namespace: Namespace = EVENTS, days: int = 9) -> Put:
    end = Expiry(NOW + timedelta(days=days), timedelta(days=days))
    return Put(namespace=namespace, key=key, value='{"n":1}', kind="event", updated_at=NOW, is_new=True, expiry=end)


def in_log(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM memory_log").fetchone()[0]


def test_events_are_logged_and_found_by_every_read(backend: SqliteBackend, path: Path) -> None:
    other = ("bob", AUDIT)
    reads = {
        "get": lambda: [bool(row) for row in backend.get([(EVENTS, "a"), (EVENTS, "b"), (EVENTS, "c")])] == [True] * 3,
        "page": lambda: [row.key for row in backend.page(PageRequest([EVENTS], limit=9))] == ["a", "b", "c"],
        "count": lambda: backend.count([EVENTS]) == 3,
        "tally": lambda: backend.tally([EVENTS])[0].rows == 3,
        "heads": lambda: backend.heads([EVENTS, other]) == [3, 1],
        "changes": lambda: [change.seq for change in backend.changes(EVENTS, 0)] == [1, 2, 3],
        "inspect": lambda: len([*backend.inspect("ada")]) == 3,
    }
    for name, finds_all in reads.items():
        batches = [[event("a"), event("b")], [event("a", other), event("c")]]
        assert backend.apply(batches) == [[1, 1], [1, 1]]
        assert in_log(path) == 4, name
        assert finds_all(), name
        assert in_log(path) == 0, name
        backend.erase("ada")
        backend.erase("bob")


def test_a_write_finds_what_is_in_the_log(backend: SqliteBackend, path: Path) -> None:
    backend.apply([[event("a"), event("b")]])
    absent = Check(namespace=EVENTS, key="a", expected=0)
    (refused,) = backend.apply([[event("c"), absent, Remove(namespace=EVENTS, key="b", expected=9)]])
    assert isinstance(refused, VersionConflict)
    assert backend.apply([[Remove(namespace=EVENTS, key="a"), event("c")]]) == [[0, 1]]
    assert [row.key for row in backend.page(PageRequest([EVENTS], limit=9))] == ["b", "c"]


def test_an_event_of_the_log_replaces_a_row_of_its_name(backend: SqliteBackend) -> None:
    """As a write of it does on every other store: its name is random, so it is a copy of it."""
    backend.apply([[event("a")]])
    first = backend.get([(EVENTS, "a")])[0]
    backend.apply([[event("a")]])
    second = backend.get([(EVENTS, "a")])[0]
    assert first
    assert second
    assert (second.version, second.seq) == (first.version + 1, first.seq + 1)


def test_events_end_in_the_log_too(backend: SqliteBackend) -> None:
    backend.apply([[event("a", days=-1), event("b")]])
    assert backend.expired(9) == [(EVENTS, "a")]
    assert [row.key for row in backend.page(PageRequest([EVENTS], limit=9))] == ["b"]


def test_many_events_come_to_their_rows_in_portions(
    backend: SqliteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_MOVE_UNTIL", "SELECT id FROM memory_log ORDER BY id LIMIT 1 OFFSET 50")
    keys = [f"{at:03d}" for at in range(120)]
    assert backend.apply([[event(key) for key in keys]]) == [[1] * 120]
    rows = backend.page(PageRequest([EVENTS], limit=200))
    assert [(row.key, row.seq) for row in rows] == [(key, at + 1) for at, key in enumerate(keys)]
    assert in_log(path) == 0


def test_an_erased_user_is_in_no_log(backend: SqliteBackend, path: Path) -> None:
    backend.apply([[event("a"), event("b", ("bob", AUDIT))]])
    backend.erase("ada")
    assert in_log(path) == 0
    assert [row.namespace[0] for row in backend.inspect() if isinstance(row, Row)] == ["bob"]


def test_events_in_the_log_of_a_store_that_cannot_be_written(path: Path) -> None:
    """A process that was killed leaves events in the log; who may only read sees them all the same."""
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        memory = AgentMemoryStoreService(store).sync
        memory.save_memory("ada", "Likes tea", memory_id="tea")
        assert memory.verify_audit("ada").events == 1
        memory.update_memory("ada", "tea", "Likes green tea")
        assert in_log(path) == 1
        with open_store(f"sqlite:///{path}?mode=ro", embeddings=None) as reader:
            seen = AgentMemoryStoreService(reader).sync
            assert [one.operation for one in seen.audit("ada")] == ["update", "save"]
            assert (seen.verify_audit("ada").events, seen.verify_audit("ada").problems) == (2, ())
            assert [one.content for one in seen.recall_memories("ada", "green tea")] == ["Likes green tea"]
            assert len(list(reader.engine.backend.inspect("ada"))) == 5
        assert in_log(path) == 1
