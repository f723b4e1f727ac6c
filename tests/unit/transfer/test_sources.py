"""Where flat memories lie and how they are read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from inference_core import MemoryStore
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import MemoryNamespaceBuilder
from inference_core.transfer import sources
from inference_core.transfer.legacy import UNCLEAR_USER, Layouts, LegacyItem
from inference_core.transfer.migrate import located
from inference_core.transfer.migration_report import MigrationReport
from inference_core.transfer.sources import (
    NOT_JSON,
    NOT_UNICODE,
    PAGE,
    TOO_LARGE,
    GraphStore,
    LangGraphTable,
    MigrationSource,
    OwnScopes,
    read_only,
)

MANY = PAGE * 2 + 1


def items(source: MigrationSource, *user_ids: str) -> list[LegacyItem]:
    return list(located([source], Layouts(user_ids=user_ids or None), MigrationReport("x")))


def found(source: MigrationSource, *user_ids: str) -> list[tuple[str, str]]:
    return [(one.user_id, one.key) for one in items(source, *user_ids)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "langgraph.db"


@pytest.fixture
def table(path: Path) -> Iterator[LangGraphTable]:
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
    with closing(read_only(path)) as connection:
        yield LangGraphTable(connection)


def insert(path: Path, prefix: object, key: object, value: object = '{"content": "x"}', when: object = None) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        query = "INSERT INTO store (prefix, key, value, created_at) VALUES (CAST(? AS TEXT), CAST(? AS TEXT), ?, ?)"
        connection.execute(query, (prefix, key, value, when))


def test_own_scopes_are_found_under_encoded_and_plain_labels(own_store: BaseStore):
    assert isinstance(own_store, MemoryStore)
    encoded = MemoryNamespaceBuilder().legacy_namespace("ada@example.com")
    for namespace in [encoded, ("x@host", "memories"), ("~no", "memories"), ("u1", "memories"), ("memories", "u2")]:
        own_store.put(namespace, "k", {"content": "x"})
    for namespace in [("u1", "notes"), ("memories",), ("u1", "episodic", "memories"), ("memories", "ingested")]:
        own_store.put(namespace, "other", {"content": "x"})
    source = OwnScopes(own_store.engine.backend)
    users = [("ada@example.com", "k"), ("u2", "k"), ("u1", "k"), ("x@host", "k"), ("~no", "k")]
    assert found(source) == users
    assert found(source, "x@host", "nobody", "ada@example.com") == [("ada@example.com", "k"), ("x@host", "k")]
    assert found(source, encoded[0]) == []


def test_own_scopes_are_read_by_pages_without_what_was_deleted(own_store: BaseStore):
    assert isinstance(own_store, MemoryStore)
    own_store.batch(
        [PutOp(("u1", "memories"), f"k{at}", {"content": "x"}, False if at % 2 else None) for at in range(MANY)]
    )
    own_store.delete(("u1", "memories"), "k7")
    keys = [key for _, key in found(OwnScopes(own_store.engine.backend))]
    assert sorted(keys) == sorted(f"k{at}" for at in range(MANY) if at != 7)


def test_langgraphs_rows_are_read_by_pages(path: Path, table: LangGraphTable):
    with SqliteStore.from_conn_string(str(path)) as store:
        for user in ("b", "a"):
            puts = [PutOp((user, "memories"), f"k{at:04}", {"content": "x"}) for at in range(MANY)]
            store.batch([*puts, PutOp((user, "memoriesx"), "other", {"content": "x"})])
    keys = [f"k{at:04}" for at in range(MANY)]
    assert found(table) == [("a", key) for key in keys] + [("b", key) for key in keys]
    assert found(table, "b", "nobody") == [("b", key) for key in keys]
    assert next((space.labels, space.rows) for space in table.spaces()) == (("a", "memories"), MANY)


def test_a_store_object_is_read_by_pages_and_exact_namespace():
    store = InMemoryStore()
    puts = [PutOp(("a", "semantic"), f"k{at:04}", {"content": "x"}) for at in range(MANY)]
    store.batch([*puts, PutOp(("a", "semantic", "x", "y"), "other", {"content": "x"}), PutOp(("n",), "n", {"x": 1})])
    report = MigrationReport("x")
    items = list(located([GraphStore(store)], Layouts(), report))
    assert [one.key for one in items] == [f"k{at:04}" for at in range(MANY)]
    assert {(one.layout, one.category) for one in items} == {("coala", "semantic")}
    assert (report.others, report.other_places) == (2, ["a.semantic.x.y", "n"])


def test_times_and_expiry_are_read(path: Path, table: LangGraphTable):
    insert(path, "a.memories", "k", when="2025-01-15 10:30:00")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE store SET expires_at = '2025-02-01T00:00:00', updated_at = 'never'")
    (one,) = items(table)
    assert one.created_at is not None
    assert one.expires_at is not None
    assert (one.created_at.isoformat(), one.updated_at) == ("2025-01-15T10:30:00+00:00", None)
    assert one.expires_at.isoformat() == "2025-02-01T00:00:00+00:00"


def test_a_dot_leaves_open_whose_memories_these_are_unless_the_user_is_named(path: Path, table: LangGraphTable):
    insert(path, "team.ada.memories", "k")
    assert [one.fault for one in items(table)] == [UNCLEAR_USER]
    assert [(one.user_id, one.fault) for one in items(table, "team.ada")] == [("team.ada", None)]


@pytest.mark.parametrize(
    ("prefix", "key", "value", "fault"),
    [
        (b"\xff.memories", b"k", "{}", NOT_UNICODE),
        (b"a.memories", b"\xff", "{}", NOT_UNICODE),
        (b"a.memories", b"k", "{", NOT_JSON),
        (b"a.memories", b"k", "[" * 100_000, NOT_JSON),
        (b"a.memories", b"k", 7.5, None),
        (b"a.memories", b"k", json.dumps("x" * 1024 * 1024), TOO_LARGE),
        (b"a.memories", b"nul \0 inside", "{}", None),
        (b"a.memories", b"", "{}", None),
    ],
)
def test_hostile_rows_come_with_their_fault(
    path: Path,
    table: LangGraphTable,
    prefix: bytes,
    key: bytes,
    value: object,
    fault: str | None,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sources, "MAX_VALUE_BYTES", 1024 * 1024)
    insert(path, prefix, key, value)
    insert(path, b"m.memories", b"k")
    assert {one.user_id == "m": one.fault for one in items(table)} == {False: fault, True: None}


def test_a_file_without_langgraphs_table_holds_nothing(path: Path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE store (key TEXT, price REAL)")
    with closing(read_only(path)) as connection:
        assert found(LangGraphTable(connection)) == []


def test_a_table_of_an_older_langgraph_has_no_expiry(path: Path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE store (prefix text, key text, value text, created_at text, updated_at text)")
    insert(path, "a.memories", "k")
    with closing(read_only(path)) as connection:
        assert [one.expires_at for one in items(LangGraphTable(connection))] == [None]


def test_files_that_cannot_be_read_are_store_errors(tmp_path: Path):
    (tmp_path / "text.db").write_text("This is not a database at all. " * 100)
    connection = read_only(tmp_path / "text.db")
    with closing(connection), pytest.raises(StoreUnavailable, match="not a database"):
        LangGraphTable(connection)
    with pytest.raises(StoreUnavailable, match=r"none\.db"):
        read_only(tmp_path / "none.db")


def test_the_connection_cannot_write(path: Path, table: LangGraphTable):
    with closing(read_only(path)) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM store")
