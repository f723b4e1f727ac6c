"""Stores and exports that earlier versions wrote are opened, found in, and written on."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from databases import database
from golden_support import DUMPS, LOADS, WRITTEN, made
from support import GOLDEN, HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.embeddings.embedder import Embedder
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import EMBEDDING_META, Put
from inference_core.stores.backends import file
from inference_core.stores.backends.sql import postgres, sqlite
from inference_core.stores.backends.sql.sqlite import SqliteBackend
from inference_core.stores.factory import open_backend
from inference_core.testing import FrozenClock
from inference_core.transfer.json_lines import import_store

# A batch that is decided twice, as when the server does not have the script yet, counts two stamps. The version of the
# analysis changes without the schema.
STAMP = re.compile(r"0000000000[0-9a-f]{2}(?=\[)|snowball-\d+")
NAMES = (
    "sqlite-1.sqlite",
    "sqlite-2.sqlite",
    "sqlite-3.sqlite",
    "sqlite-4.sqlite",
    "sqlite-5.sqlite",
    "sqlite-6.sqlite",
    "file-1",
    "export-1.jsonl",
    "postgres-1.sql",
    "postgres-2.sql",
    "redis-1.jsonl",
    "redis-2.jsonl",
    "redis-3.jsonl",
)
MODEL = "the application's model"
KEPT = [(kind, int(rest.partition(".")[0])) for kind, _, rest in (name.partition("-") for name in NAMES)]


@contextmanager
def opened(name: str, folder: Path) -> Generator[str]:
    """The URL of a copy."""
    kind = name.partition("-")[0]
    if kind in LOADS:
        with database(kind, folder, is_new=True) as url:
            kept = (GOLDEN / name).read_text(encoding="utf-8")
            LOADS[kind](url, kept)
            assert {*kept.splitlines()} <= {*DUMPS[kind](url).splitlines()}
            yield url
    elif kind == "export":
        url = f"sqlite:///{folder / 'imported.db'}"
        with closing(open_backend(url)) as backend:
            import_store(GOLDEN / name, backend)
        yield url
    else:
        copy = shutil.copytree if kind == "file" else shutil.copyfile
        yield f"{kind}:///{copy(GOLDEN / name, folder / name)}"


def test_every_file_is_tried() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir() if path.suffix != ".md") == sorted(NAMES)


def test_the_schemas_that_are_written_now_are_kept() -> None:
    """Regression: SQLite's fifth schema and PostgreSQL's second were written by no file, so nothing held them."""
    now = {"sqlite": sqlite.VERSION, "postgres": postgres.VERSION, "file": file.VERSION}
    newest = {kind: max(number for name, number in KEPT if name == kind) for kind in now}
    assert newest == now


def test_redis_is_still_written_as_it_was() -> None:
    """Regression: the script that writes golden files no longer ran, after a function that it replaces was renamed."""
    kept = (GOLDEN / "redis-3.jsonl").read_text(encoding="utf-8")
    assert STAMP.sub("stamp", made("redis")) == STAMP.sub("stamp", kept)


@pytest.mark.parametrize("name", NAMES)
def test_what_an_earlier_version_wrote_is_there(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as url, open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, agent_name="planner").sync
        found, total = service.list_memories("ada@example.com")
        assert total == 3
        assert {one.id: one.content for one in found} == {
            "tea": "Likes green tea \u2615",
            "bullets": "Answer in bullet points",
            "kyoto": "Talked about Kyoto",
        }
        assert {one.created_at for one in found} == {WRITTEN}
        tea = service.get_memory("ada@example.com", "tea")
        assert tea is not None
        assert (tea.topic, tea.metadata, tea.value["tags"]) == ("drinks", {"n": [1, None, "\u00fc"]}, ["a"])
        assert [hit.id for hit in service.recall_memories("ada@example.com", "green tea", 1)] == ["tea"]
        assert service.list_memories("bob")[0][0].content == "Likes black coffee"
        assert service.get_memory("ada@example.com", "gone") is None
        assert service.update_memory("ada@example.com", "tea", "Likes white tea")
        assert service.save_memory("bob", "Plays chess")
        assert service.save_memory("eve", "Has just come")
        assert [hit.content for hit in service.recall_memories("ada@example.com", "white tea", 1)] == [
            "Likes white tea"
        ]


def indexes_of(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index'"))


@pytest.mark.parametrize("version", range(1, sqlite.VERSION))
def test_an_updated_file_has_the_indexes_of_a_new_one(version: int, tmp_path: Path) -> None:
    new, old = tmp_path / "new.db", shutil.copyfile(GOLDEN / f"sqlite-{version}.sqlite", tmp_path / "old.db")
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("INSERT INTO memory_meta VALUES ('embedding', ?)", (MODEL,))
        connection.execute("UPDATE memory_rows SET model = ? WHERE key IN ('tea', 'coffee')", (MODEL,))
    for path in (new, old):
        with open_store(f"sqlite:///{path}", embeddings=Embedder(HashingEmbeddings(), MODEL)):
            pass
    found = indexes_of(old)
    assert found == indexes_of(new)
    assert "memory_rows_by_model" not in found
    assert f"model < '{MODEL}'" in found["memory_rows_pending"].replace("''", "'")


def test_what_waits_for_a_vector_is_found_by_an_index_of_nothing_else(tmp_path: Path) -> None:
    """Whatever the model of the store is, and after it was changed."""
    path = tmp_path / "m.db"
    now = datetime(2026, 1, 15, tzinfo=UTC)
    with closing(SqliteBackend(path)) as backend:
        for model in (MODEL, "another"):
            backend.set_meta(EMBEDDING_META, model)
            made = Document("tea", "tea", "1", model=MODEL, vector=b"x")
            rows = {"embedded": made, "waits": Document("tea", "tea", "1"), "none": None}
            puts = [
                Put(namespace=("u", "n"), key=key, value="{}", updated_at=now, document=document)
                for key, document in rows.items()
            ]
            backend.apply([puts])
            said: list[str] = []
            with backend.connections.reader() as connection:
                connection.set_trace_callback(said.append)  # it is the one that is used next, too
            found = backend.pending(model, 9)
            connection.set_trace_callback(None)
            assert [row.key for row in found] == (["waits"] if model == MODEL else ["embedded", "waits"])
            plan = [str(step[3]) for step in connection.execute(f"EXPLAIN QUERY PLAN {said[-1]}")]
            assert "SCAN r USING INDEX memory_rows_pending" in plan


@pytest.mark.parametrize("name", ["sqlite-4.sqlite", "sqlite-5.sqlite", "sqlite-6.sqlite"])
def test_events_of_earlier_versions_are_genuine(name: str, tmp_path: Path) -> None:
    """Those of schema 4 have HMACs as MACs, and were written into the rows themselves."""
    with (
        opened(name, tmp_path) as url,
        open_store(url, embeddings=None, clock=FrozenClock(WRITTEN)) as store,
    ):
        service = AgentMemoryStoreService(store, clock=FrozenClock(WRITTEN)).sync
        before = service.verify_audit("ada@example.com")
        assert (before.events, before.sealed, before.problems) == (5, 5, ())
        service.save_memory("ada@example.com", "Likes black tea")
        after = service.verify_audit("ada@example.com", before.head)
        assert (after.events, after.sealed, after.problems) == (6, 5, ())
