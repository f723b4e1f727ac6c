"""Flat memories in the tables of LangGraph's PostgresStore arrive in the store in the same database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from databases import database
from langgraph.store.base import PutOp
from langgraph.store.postgres import PostgresStore
from migration_support import ROW_TIME, Expected, flat_rows

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import AUDIT, MIGRATED, SEALS, decode_label
from inference_core.stores.backend import PageRequest
from inference_core.stores.factory import open_backend
from inference_core.transfer.migrate import migrate_memories

COUNT = 60


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few memories make two of them."""
    monkeypatch.setattr("inference_core.transfer.migrate.BATCH", 50)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with database("postgres", tmp_path, is_new=True) as url:
        yield url


@pytest.fixture
def expected(url: str) -> list[Expected]:
    rows = list(flat_rows(COUNT))
    with PostgresStore.from_conn_string(url) as store:
        store.setup()
        store.put(("ada", "notes"), "n1", {"content": "not a memory"})
        store.put(("team", "ada", "memories"), "n2", {"content": "whose is it?"})
        store.put(("odd", "memories"), "empty", {"content": " "})
        store.put(("odd", "memories"), "large", {"content": "x" * 1_100_000})
        store.batch(
            [PutOp((one.user, "memories"), one.key.replace(".", "-"), json.loads(value)) for one, value in rows]
        )
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE store SET created_at = %s, updated_at = %s", (ROW_TIME, ROW_TIME))
    return [one._replace(key=_key(one)) for one, _ in rows]


def _key(one: Expected) -> str:
    return one.key.replace(".", "-")


def originals(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT * FROM store ORDER BY prefix, key").fetchall()


def stored(url: str) -> set[Expected]:
    with closing(open_backend(url)) as backend:
        names = [name for name in backend.namespaces() if name != MIGRATED and AUDIT not in name and SEALS not in name]
        rows = [row for name in names for row in backend.page(PageRequest([name], limit=COUNT))]
    return {Expected(decode_label(row.namespace[0]), row.key, row.namespace[1], row.created_at) for row in rows}


def test_they_arrive_once_and_the_originals_stay(url: str, expected: list[Expected]) -> None:
    before = originals(url)
    foreseen = migrate_memories(url, dry_run=True)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('memory_meta')").fetchone() == (None,)
    report = migrate_memories(url)
    assert (report.written, report.users, report.failed) == (COUNT, len({one.user for one in expected}), 0)
    assert (foreseen.written, foreseen.by_category) == (report.written, report.by_category)
    assert report.skipped.total() == 3
    assert "secret" not in report.store
    assert stored(url) == set(expected)
    again = migrate_memories(url)
    assert (again.written, again.already_there) == (0, COUNT)
    assert originals(url) == before


def test_a_second_run_neither_reverts_nor_resurrects(url: str, expected: list[Expected]) -> None:
    migrate_memories(url)
    edited, deleted = (one for one in expected if one.user == "ada" and one.key in ("id-1", "id-2"))
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        assert service.update_memory("ada", edited.key, "edited")
        assert service.delete_memory("ada", deleted.key)
    assert migrate_memories(url).written == 0
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        found = service.get_memory("ada", edited.key)
        assert found is not None
        assert found.content == "edited"
        assert service.get_memory("ada", deleted.key) is None


def test_only_named_users_and_a_dotted_one_has_to_be_named(url: str, expected: list[Expected]) -> None:
    assert migrate_memories(url, user_ids=["user-1", "nobody", "nul\x01"]).written == COUNT // 5
    assert {one.user for one in stored(url)} == {"user-1"}
    assert migrate_memories(url, user_ids=["team.ada"]).written == 1
    assert {one.user for one in stored(url)} == {"user-1", "team.ada"}


def test_a_database_without_that_table_has_nothing_to_migrate(url: str) -> None:
    assert migrate_memories(url).found == 0


def test_a_server_that_is_away_is_told() -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
        migrate_memories("postgresql://ada:secret@127.0.0.1:1/db?connect_timeout=1")


def test_regression_an_empty_key_is_migrated_too(url: str) -> None:
    """It was counted, and never read."""
    with PostgresStore.from_conn_string(url) as store:
        store.setup()
        store.batch([PutOp(("ada", "memories"), key, {"content": f"Likes {key or 'tea'}"}) for key in ("", "mate")])
    report = migrate_memories(url)
    assert (report.found, report.written) == (2, 2)
