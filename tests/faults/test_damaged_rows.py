"""Damage stays where it is: a row that cannot be read stops no other row, user or export, and nobody reads its text.

The cause: one text that is not UTF-8 ended the whole statement that read it, so that a user's list, delete and purge
failed for good, and so did the export of all users; the message quoted the text.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from databases import CLUSTER, database
from langgraph.store.memory import InMemoryStore
from mongo_support import mongodb
from support import HashingEmbeddings

from inference_core import (
    AgentMemoryStoreService,
    ForgettingPolicy,
    MemoryLifecycle,
    MemoryStore,
    get_memory_tools,
    open_store,
)
from inference_core.cli import main
from inference_core.errors import InferenceCoreError, UnsupportedSchema
from inference_core.lifecycle.repairs import Damage, find_damage, mend
from inference_core.services.agent_memory_service import purge_user_memories
from inference_core.stores.backend import Backend, Unreadable
from inference_core.stores.backends.redis.backend import RedisBackend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import open_backend
from inference_core.transfer.json_lines import export_store

CANARY = "PRIVATE"
TEXT = f"{CANARY} CONTENT of the tea"
BAD = "k-bad"
SCOPE = ("ada", "episodic")
LATE = b'[1,"context",%d,0,null,null]' % 10**18
Break = Callable[[Any], None]


def of_sqlite(assignment: str, table: str = "memory_rows", where: str = f"key = '{BAD}'") -> Break:
    def damage(path: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            assert connection.execute(f"UPDATE {table} SET {assignment} WHERE {where}").rowcount == 1

    return damage


def of_postgres(assignment: str, table: str = "memory_rows", where: str = f"key = '{BAD}'") -> Break:
    def damage(url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            assert connection.execute(f"UPDATE {table} SET {assignment} WHERE {where}".encode()).rowcount == 1

    return damage


def of_redis(change: Callable[[bytes], bytes], what: str = "cells") -> Break:
    def damage(url: str) -> None:
        with closing(RedisBackend(url)) as backend:
            name = backend._at(SCOPE).of(what, *SCOPE)
            (packed,) = backend._server.ask([("HGET", name, BAD)])
            assert change(packed) != packed
            backend._server.ask([("HSET", name, BAD, change(packed))])

    return damage


def of_mongodb(changes: dict[str, Any]) -> Break:
    def damage(backend: Any) -> None:
        rows = backend._rows
        assert rows.update_one({"key": BAD}, {"$set": changes}).matched_count == 1

    return damage


DAMAGES: dict[str, dict[str, Break]] = {
    "sqlite": {
        "value not UTF-8": of_sqlite("value = CAST(CAST(value AS BLOB) || x'ff' AS TEXT)"),
        "key not UTF-8": of_sqlite("key = CAST(x'6bff' AS TEXT)"),
        "broken JSON": of_sqlite("value = substr(value, 1, 40)"),
        "no object": of_sqlite("value = '[1]'"),
        "nested": of_sqlite(f"value = '{'[' * 100_000}'"),
        "version": of_sqlite("version = 'x'"),
        "number": of_sqlite("seq = 'x'"),
        "created": of_sqlite(f"created = {10**18}"),
        "created of a wrong type": of_sqlite("created = 'x'"),
        "expiry": of_sqlite(f"expires = {10**18}, ttl = 1"),
        "namespace": of_sqlite("namespace = '[broken'", "memory_scopes", "namespace LIKE '%episodic%'"),
        "namespace of numbers": of_sqlite("namespace = '[1]'", "memory_scopes", "namespace LIKE '%episodic%'"),
        "namespace not UTF-8": of_sqlite("namespace = CAST(x'ff' AS TEXT)", "memory_scopes", "namespace LIKE '%epis%'"),
    },
    "postgres": {
        "broken JSON": of_postgres("value = left(value, 40)"),
        "no object": of_postgres("value = '[1]'"),
        "created": of_postgres(f"created = {10**18}"),
        "expiry": of_postgres(f"expires = {10**18}, ttl = 1"),
        "namespace": of_postgres("namespace = '[broken'", "memory_scopes", "namespace LIKE '%%episodic%%'"),
    },
    "redis": {
        "value not UTF-8": of_redis(lambda packed: packed + b"\xff"),
        "broken JSON": of_redis(lambda packed: packed[:-10]),
        "no object": of_redis(lambda packed: packed[: packed.rindex(b"\n") + 1] + b"[1]"),
        "first line": of_redis(lambda packed: packed[:12] + b"x" + packed[13:]),
        "second line": of_redis(lambda packed: packed.replace(b"\n[", b"\n{", 1)),
        "no lines": of_redis(lambda packed: packed[:12]),
        "created": of_redis(
            lambda packed: packed[:12] + b'[1,"context",%d,0,null,null]' % 10**18 + packed[packed.index(b"\n") :]
        ),
    },
    "mongodb": {
        "broken JSON": of_mongodb({"value": '{"content":'}),
        "value of a wrong type": of_mongodb({"value": 7}),
        "created": of_mongodb({"created": 10**18}),
        "version": of_mongodb({"version": "x"}),
        "namespace": of_mongodb({"scope": "[broken"}),
    },
}
INDEX_DAMAGES: dict[str, dict[str, Break]] = {
    "sqlite": {
        "text not UTF-8": of_sqlite("text = CAST(CAST(text AS BLOB) || x'ff' AS TEXT)"),
        "terms": of_sqlite("terms = x'00'"),
        "kind": of_sqlite("kind = x'00'"),
        "happened": of_sqlite("happened = 9e999"),
        "vector": of_sqlite("vector = x'0102'"),
        "vector of a wrong type": of_sqlite("vector = 'x'"),
    },
    "postgres": {
        "happened": of_postgres("happened = 'NaN'"),
        "vector": of_postgres("vector = '\\x0102'"),
    },
    "redis": {"vector": of_redis(lambda _: b"x", "vectors")},
}
for damages in (DAMAGES, INDEX_DAMAGES):
    damages[CLUSTER] = damages["redis"]
CASES = [(kind, damage) for kind, known in DAMAGES.items() for damage in known]
NEWER = "newer"


class Place:
    """An empty database of a kind, which can be opened any number of times and damaged in between."""

    def __init__(self, kind: str, folder: Path, opened: ExitStack) -> None:
        self.kind = kind
        self.path = folder / "memory.db"
        self._backend = opened.enter_context(mongodb()) if kind == "mongodb" else None
        self.url = "" if self._backend else opened.enter_context(database(kind, folder))

    @contextmanager
    def backend(self) -> Generator[Backend]:
        if self._backend:
            yield self._backend
        else:
            with closing(open_backend(self.url)) as backend:
                yield backend

    @contextmanager
    def store(self) -> Generator[MemoryStore]:
        if self._backend:
            self._backend.close = lambda: None  # pyright: ignore[reportAttributeAccessIssue] - the substitute is one
            with closing(StoreEngine(self._backend)) as engine:
                yield MemoryStore(engine)
        else:
            with open_store(self.url, embeddings=None) as store:
                yield store

    def damage(self, what: str) -> None:
        target = {"sqlite": str(self.path), "mongodb": self._backend}.get(self.kind, self.url)
        DAMAGES[self.kind][what](target)

    def found(self, *users: str) -> list[Damage]:
        with self.backend() as backend:
            return list(find_damage(backend, users))


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing that is logged or printed holds the text of the damaged row."""
    caplog.set_level(logging.DEBUG)
    yield
    printed = capsys.readouterr()
    assert CANARY not in caplog.text + printed.out + printed.err


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, quiet: None) -> Iterator[Place]:
    kind, what = request.param
    with ExitStack() as opened:
        place = Place(kind, tmp_path, opened)
        with place.store() as store:
            service = AgentMemoryStoreService(store).sync
            for number in range(3):
                service.save_memory("ada", f"likes tea {number}", memory_id=f"k{number}")
                service.save_memory("bob", f"likes tea {number}", memory_id=f"k{number}")
            service.save_memory("ada", TEXT, "context", memory_id=BAD)
        place.damage(what)
        yield place


def said(call: Callable[[], Any]) -> str:
    """What a call's error says, and its causes; "" if there is none."""
    try:
        call()
    except InferenceCoreError as error:
        causes = [error, error.__cause__, None if error.__suppress_context__ else error.__context__]
        return " ".join(str(one) for one in causes if one)
    return ""


every_damage = pytest.mark.parametrize("place", CASES, indirect=True, ids=[f"{kind}-{what}" for kind, what in CASES])


@every_damage
def test_a_damaged_row_stops_no_other(place: Place, tmp_path: Path):
    with place.store() as store:
        service = AgentMemoryStoreService(store).sync
        for user in ("ada", "bob"):
            listed, _ = service.list_memories(user)
            assert sorted(one.id for one in listed) == ["k0", "k1", "k2"], user
            assert sorted(one.id for one in service.list_memories(user, search="tea")[0]) == ["k0", "k1", "k2"]
            assert {hit.id for hit in service.recall_memories(user, "likes tea", k=9)} == {"k0", "k1", "k2"}
            assert len(service.recall_memories(user, "", k=9)) == 3
            assert service.count_memories(user)["semantic"] == 3
            service.save_memory(user, "likes coffee", memory_id="k3")
            assert service.delete_memory(user, "k3")
        if place.kind != "mongodb":  # which finds a row by its id, whatever its scope says
            assert service.get_memory("ada", BAD) is None
            assert CANARY not in said(lambda: service.update_memory("ada", BAD, "likes cocoa"))
    with place.backend() as backend:
        assert export_store(backend, tmp_path / "all.jsonl").unreadable == 1
        assert export_store(backend, tmp_path / "bob.jsonl", user_ids=["bob"]).unreadable == 0
    exported = (tmp_path / "all.jsonl").read_text(encoding="utf-8")
    assert CANARY not in exported
    assert exported.count('"content": "likes tea') == 6
    (found,) = place.found()
    assert CANARY not in str(found)
    assert isinstance(found.found, Unreadable)
    assert place.found("bob") == []
    if found.found.namespace:
        assert (found.user_id, found.place) == ("ada", "episodic")


@every_damage
def test_a_damaged_row_is_repaired_and_what_was_written_since_is_not_removed(place: Place):
    found = place.found()
    with place.backend() as backend:
        assert mend(backend, found) == 1
        assert place.found() == []
    with place.store() as store:
        service = AgentMemoryStoreService(store).sync
        assert service.save_memory("ada", "likes rum", "context", memory_id=BAD)
        assert [hit.id for hit in service.recall_memories("ada", "rum", k=1)] == [BAD]
        assert service.count_memories("ada")["total"] == 4
        assert service.count_memories("bob")["total"] == 3
    assert place.found() == []
    with place.backend() as backend:
        assert mend(backend, found) == 0
    with place.store() as store:
        assert AgentMemoryStoreService(store).sync.get_memory("ada", BAD) is not None


@every_damage
def test_a_damaged_row_is_deleted_and_purged(place: Place):
    (found,) = place.found()
    assert isinstance(found.found, Unreadable)
    is_named = found.found.namespace is not None and found.key == BAD
    with place.store() as store:
        service = AgentMemoryStoreService(store).sync
        assert service.delete_memory("ada", "no-such-id") is False
        is_deleted = service.delete_memory("ada", BAD)
        assert is_deleted or not is_named
        assert len(place.found()) == (0 if is_deleted else 1)
        purge_user_memories(store, "ada")
        assert service.count_memories("ada")["total"] == 0
        assert service.count_memories("bob")["total"] == 3
    assert place.found() == []


@every_damage
def test_regression_no_tool_deletes_a_damaged_row_that_it_cannot_read(place: Place):
    """A model's call removed for good what `repair` shows to people first."""
    with place.store() as store:
        (tool,) = get_memory_tools(AgentMemoryStoreService(store), "ada", include_tools=["delete_memory_store"])
        if place.kind != "mongodb":  # which finds a row by its id, whatever its scope says
            assert tool.invoke({"memory_id": BAD}).startswith("✗")
    assert len(place.found()) == 1


@every_damage
def test_all_of_a_user_is_deleted_with_what_is_damaged(place: Place):
    (found,) = place.found()
    assert isinstance(found.found, Unreadable)
    with place.store() as store:
        AgentMemoryStoreService(store).sync.delete_user_memories("ada")
    assert len(place.found()) == (0 if found.found.namespace else 1)


@every_damage
def test_an_index_that_was_there_before_goes_on(place: Place):
    """Rows that are damaged while a store is open: what it has read stays as it was, and nothing fails."""
    with place.store() as store:
        service = AgentMemoryStoreService(store).sync
        assert len(service.recall_memories("ada", "likes tea", k=9)) == 3
        service.save_memory("ada", "likes tea again", memory_id="k4")
        assert len(service.recall_memories("ada", "likes tea", k=9)) == 4


@pytest.mark.parametrize(("kind", "what"), [(kind, what) for kind, known in INDEX_DAMAGES.items() for what in known])
def test_damage_of_what_an_index_knows_takes_no_memory_with_it(kind: str, what: str, tmp_path: Path, quiet: None):
    with ExitStack() as opened:
        place = Place(kind, tmp_path, opened)
        with open_store(place.url, embeddings=HashingEmbeddings()) as store:
            service = AgentMemoryStoreService(store).sync
            service.save_memory("ada", TEXT, "context", memory_id=BAD)
            service.save_memory("ada", "likes tea", memory_id="k0")
        INDEX_DAMAGES[kind][what](str(place.path) if kind == "sqlite" else place.url)
        with open_store(place.url, embeddings=HashingEmbeddings()) as store:
            service = AgentMemoryStoreService(store).sync
            assert "k0" in [hit.id for hit in service.recall_memories("ada", "tea")]
            assert sorted(one.id for one in service.list_memories("ada")[0]) == [BAD, "k0"]
        (found,) = place.found()
        assert found.keeps_row
        with place.backend() as backend:
            assert mend(backend, [found]) == 1
            assert [one.key for one in backend.pending("any", 9)] != []
        assert place.found() == []
        with open_store(place.url, embeddings=HashingEmbeddings()) as store:
            service = AgentMemoryStoreService(store).sync
            assert {hit.id for hit in service.recall_memories("ada", "tea", memory_type="context")} == {BAD}


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis", "file", "memory", "foreign"])
def test_a_memory_of_a_newer_version_stops_no_other(kind: str, tmp_path: Path, quiet: None):
    with ExitStack() as opened:
        if kind == "foreign":
            store: Any = InMemoryStore()
        else:
            store = opened.enter_context(open_store(opened.enter_context(database(kind, tmp_path)), embeddings=None))
        service = AgentMemoryStoreService(store).sync
        for number in range(3):
            service.save_memory("ada", f"likes tea {number}", memory_id=f"k{number}")
        value = {"content": TEXT, "memory_type": "facts", "memory_category": "semantic", "schema_version": 99}
        store.put(("ada", "semantic"), BAD, value)
        assert sorted(one.id for one in service.list_memories("ada")[0]) == ["k0", "k1", "k2"]
        assert {hit.id for hit in service.recall_memories("ada", "tea", k=9)} == {"k0", "k1", "k2"}
        assert {hit.id for hit in service.recall_memories("ada", "tea", k=9, explain=True)} == {"k0", "k1", "k2"}
        assert "tea 0" in service.format_context_for_prompt("ada", "tea")
        with pytest.raises(UnsupportedSchema, match="version 99"):
            service.get_memory("ada", BAD)
        if kind != "foreign":
            found = [one for one in find_damage(store.engine.backend) if one.is_newer]
            assert [(one.user_id, one.key) for one in found] == [("ada", BAD)]
        assert service.delete_memory("ada", BAD)


def test_the_command_line_names_and_repairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada@example.com", "likes tea", memory_id="good")
        service.save_memory("ada@example.com", TEXT, memory_id=BAD)
        value = {"content": TEXT, "memory_type": "facts", "schema_version": 99}
        store.put(("bob", "semantic"), "new", value)
    of_sqlite("value = CAST(CAST(value AS BLOB) || x'ff' AS TEXT)")(str(tmp_path / "memory.db"))

    def run(*arguments: str, code: int = 0) -> str:
        assert main(list(arguments)) == code
        printed = capsys.readouterr()
        assert CANARY not in printed.out + printed.err
        return printed.out + printed.err

    told = " ".join(run("doctor", code=1).split())
    assert "ada@example.com, semantic, k-bad: a text is not UTF-8" in told
    assert "inference-core repair" in told
    assert "1 memories were written by a newer version" in told
    assert "left out 1 that cannot be read" in run("export", str(tmp_path / "out.jsonl"))
    assert "1 of 2 would be removed" in run("repair")
    assert "Everything can be read" in run("repair", "--user", "carol")
    assert main(["repair", "--json"]) == 0
    assert [one["key"] for one in json.loads(capsys.readouterr().out)["found"]] == [BAD, "new"]
    assert "good" in run("list", "--user", "ada@example.com")
    assert "Removed 1 of 2" in run("repair", "--yes")
    assert "would be removed" in run("repair")
    assert "Removed 1 of 1" in run("repair", "--newer", "--yes")
    assert "No problems found" in run("doctor")


def test_a_damaged_journal_is_repaired_and_stops_no_other_user(tmp_path: Path, quiet: None):
    url = f"file:///{tmp_path / 'memories'}"
    with open_store(url, embeddings=None, audit=False) as store:
        service = AgentMemoryStoreService(store).sync
        for user in ("ada", "bob", "eve"):
            for number in range(3):
                service.save_memory(user, f"{TEXT} {number}", memory_id=f"k{number}")
    for user, at in (("ada", -40), ("eve", 5)):
        journal = tmp_path / "memories" / "users" / f"{user}.jsonl"
        content = bytearray(journal.read_bytes())
        content[at] ^= 1
        journal.write_bytes(content)
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        assert service.count_memories("bob")["total"] == 3
        error = said(lambda: service.list_memories("ada"))
        assert "ada.jsonl, line 4 is damaged" in error
        assert CANARY not in error
        backend = store.engine.backend
        report = export_store(backend, tmp_path / "all.jsonl")
        assert (report.written, report.unreadable) == (3, 2)
        assert {one.user_id for one in find_damage(backend)} == {"ada", None}
        assert mend(backend, list(find_damage(backend, ["ada"]))) == 1
        assert service.count_memories("ada")["total"] == 2
        purge_user_memories(store, "eve")
        assert list(find_damage(backend)) == []
        assert sorted(path.name for path in (tmp_path / "memories" / "users").iterdir()) == ["ada.jsonl", "bob.jsonl"]


def test_regression_a_damaged_recall_count_keeps_no_memory_from_going(tmp_path: Path, quiet: None):
    """Its memory could not be deleted or forgotten, and the counts of others were never written."""
    path = str(tmp_path / "memory.db")
    with open_store(f"sqlite:///{path}", embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=20)
        memory = service.sync
        keys = [memory.save_memory("ada", f"likes {drink}", "facts") for drink in ("tea", "mate", "coffee")]

        def recall() -> None:
            assert len(memory.recall_memories("ada", "likes")) == 3
            store.engine.accesses.flush()

        def damage(key: str) -> None:
            of_sqlite("value = '{broken'", where=f"key = '{key}' AND value LIKE '{{\"count\"%'")(path)

        recall()
        damage(keys[0])
        recall()
        (figures,) = store.engine.backend.get([(("ada", "usage", "semantic"), keys[1])])
        assert figures is not None
        assert figures.value["count"] == 2
        damage(keys[0])
        assert memory.delete_memory("ada", keys[0])
        damage(keys[1])
        assert (
            len(MemoryLifecycle(service).sync.forget("ada", ForgettingPolicy(max_memories={"all": 0})).forgotten) == 2
        )
        assert memory.count_memories("ada")["total"] == 0
