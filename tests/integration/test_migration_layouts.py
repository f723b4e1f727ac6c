"""All layouts move from any LangGraph store, whatever package wrote them, with ids, times and unknown fields.

Guards against users of the documented layout, of langmem or of deepagents finding an empty memory after they moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cli_support import answer
from databases import database
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStoreDocument, migrate_memories, open_store
from inference_core.embeddings.embedder import Passage
from inference_core.errors import ConfigurationError, InvalidInput, StoreUnavailable
from inference_core.stores import factory
from inference_core.transfer import migrate
from inference_core.transfer.migration_report import MigrationReport

DOCUMENTED: dict[str, Any] = {
    "memory_type": "preferences",
    "memory_category": "semantic",
    "session_id": None,
    "topic": "answers",
    "agent_name": "planner",
    "extra_metadata": {},
    "created_at": "2025-01-15T10:30:00+00:00",
}


def fill(store: BaseStore) -> None:
    """What the documented application, langmem and deepagents store."""
    store.put(("ada", "semantic"), "m1", DOCUMENTED | {"content": "Prefers bullet points", "mood": "calm"})
    store.put(("ada", "memories"), "m1", DOCUMENTED | {"content": "Prefers long answers"})
    store.put(("ada", "memories"), "m2", {"content": "Lives in Lisbon", "memory_type": "fact"})
    for agent in ("planner", "browser"):
        value = {"content": f"{agent} met Ada", "memory_type": "session_summary"}
        store.put(("ada", "episodic", agent), "last", value)
    store.put(("ada", "procedural"), "m4", {"content": "Always run the tests", "memory_type": "skill"})
    store.put(("memories", "ada"), "l1", {"content": "Prefers Python"})
    store.put(("memories", "ada"), "l2", {"kind": "Memory", "content": {"content": "Has a cat"}})
    triple = {"subject": "Ada", "predicate": "knows", "object": "Bob", "context": None}
    store.put(("memories", "ada"), "l3", {"kind": "Triple", "content": triple})
    store.put(("memories", "bob"), "l1", {"content": "Bob likes tea"})
    lines = {"created_at": "2025-01-15T10:30:00+00:00", "modified_at": "2025-02-15T10:30:00+00:00"}
    store.put(("ada", "filesystem"), "/memories/AGENTS.md", lines | {"content": ["# Ada", "Short answers"]})
    store.put(("ada", "filesystem"), "/logo.png", lines | {"content": "aGk=", "encoding": "base64"})
    store.put(("ada", "filesystem"), "/long.md", lines | {"content": "word " * 2_000, "encoding": "utf-8"})
    store.put(("notes", "ada"), "n1", {"content": "A note"})


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | BaseStore]:
    """A store of LangGraph's: the URL of its database, or the object."""
    if request.param == "memory":
        store = InMemoryStore()
        fill(store)
        yield store
    elif request.param == "sqlite":
        path = str(tmp_path / "theirs.db")
        with SqliteStore.from_conn_string(path) as sqlite_store:
            sqlite_store.setup()
            fill(sqlite_store)
        yield f"sqlite:///{path}"
    else:
        with database("postgres", tmp_path, is_new=True) as url:
            with PostgresStore.from_conn_string(url) as postgres_store:
                postgres_store.setup()
                fill(postgres_store)
            yield url


def memories(url: str, user: str = "ada", agent: str | None = None) -> dict[str, MemoryStoreDocument]:
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, agent_name=agent).sync
        return {one.id: one for one in service.list_memories(user, limit=None)[0]}


def test_every_usual_layout_arrives_once(theirs: str | BaseStore, sqlite_url: str):
    dry = migrate_memories(sqlite_url, source=theirs, dry_run=True)
    report = migrate_memories(sqlite_url, source=theirs)
    assert dry.by_category == report.by_category == {"semantic": 6, "episodic": 2, "procedural": 1}
    assert dry.others == report.others == 4
    assert report.by_layout == {"coala": 4, "flat": 2, "langmem": 4}
    assert (report.users, report.already_there, report.failed, report.skipped.total()) == (2, 1, 0, 0)
    found = memories(sqlite_url)
    l3 = found.pop("l3")
    assert sorted(l3.content.split("; ")) == ["object: Bob", "predicate: knows", "subject: Ada"]
    assert l3.metadata["legacy"]["kind"] == "Triple"
    assert l3.metadata["legacy"]["fields"]["object"] == "Bob"
    assert {key: one.content for key, one in found.items()} == {
        "m1": "Prefers bullet points",  # not the flat original, which an earlier migration had moved
        "m2": "Lives in Lisbon",
        "m4": "Always run the tests",
        "l1": "Prefers Python",
        "l2": "Has a cat",
    }
    m1 = found["m1"]
    assert (m1.created_at_iso, m1.topic, m1.value["agent_name"]) == ("2025-01-15T10:30:00+00:00", "answers", "planner")
    assert m1.metadata["legacy"] == {"mood": "calm"}
    assert [one.content for one in memories(sqlite_url, "bob").values()] == ["Bob likes tea"]
    again = migrate_memories(sqlite_url, source=theirs)
    assert (again.written, again.already_there) == (0, report.found)


def test_an_interrupted_run_is_resumed(theirs: str | BaseStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(migrate, "BATCH", 2)

    def stop(done: int, total: int) -> None:
        assert total == 10
        if done >= 6:
            raise StoreUnavailable("the disk is full")

    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            migrate_memories(sqlite_url, source=theirs, progress=stop)
    report = migrate_memories(sqlite_url, source=theirs)
    assert (report.found, report.written, report.already_there) == (10, 4, 6)
    assert len(memories(sqlite_url)) == 6
    assert migrate_memories(sqlite_url, source=theirs).written == 0


def test_two_agents_memories_of_one_id_both_arrive(theirs: str | BaseStore, sqlite_url: str):
    migrate_memories(sqlite_url, source=theirs)
    kept = {"planner": memories(sqlite_url, agent="planner"), "browser": memories(sqlite_url, agent="browser")}
    texts = {agent: [one for one in found.values() if "met Ada" in one.content] for agent, found in kept.items()}
    assert {agent: [one.content for one in found] for agent, found in texts.items()} == {
        "planner": ["planner met Ada"],
        "browser": ["browser met Ada"],
    }
    (renamed,) = [one for found in texts.values() for one in found if one.id != "last"]
    assert renamed.metadata["legacy"]["id"] == "last"


def test_files_and_own_labels_move_on_request(theirs: str | BaseStore, sqlite_url: str):
    report = migrate_memories(sqlite_url, source=theirs, layouts=["files", "notes.{user}"])
    assert (report.written, report.skipped.total()) == (4, 1)
    assert report.left_out[0].reason == "the file holds no text"
    found = memories(sqlite_url)
    assert found["n1"].content == "A note"
    agents = found["/memories/AGENTS.md"]
    assert (agents.content, agents.topic) == ("# Ada\nShort answers", "/memories/AGENTS.md")
    assert (agents.created_at_iso, agents.updated_at_iso) == ("2025-01-15T10:30:00+00:00", "2025-02-15T10:30:00+00:00")
    parts = [found["/long.md"].content, found["/long.md#2"].content]
    assert " ".join(parts).split() == ["word"] * 2_000


def test_a_namespace_of_nobody_moves_to_the_one_user_who_is_named(sqlite_url: str):
    theirs = InMemoryStore()
    theirs.put(("filesystem",), "/a.md", {"content": "Short answers", "encoding": "utf-8", "modified_at": "2025-01-01"})
    assert migrate_memories(sqlite_url, source=theirs, layouts=["filesystem"], user_ids=["ada"]).written == 1
    assert memories(sqlite_url)["/a.md"].content == "Short answers"


def test_only_named_users_move(theirs: str | BaseStore, sqlite_url: str):
    report = migrate_memories(sqlite_url, source=theirs, user_ids=["bob"])
    assert (report.found, report.written, report.others) == (1, 1, 0)
    assert memories(sqlite_url) == {}


def test_an_open_store_takes_them_with_vectors():
    theirs = InMemoryStore(index={"embed": HashingEmbeddings(), "dims": 64})
    fill(theirs)
    with open_store("memory://", embeddings=HashingEmbeddings()) as store:
        assert store.wait_ready(10)
        assert migrate_memories(store, source=theirs).written == 9
        service = AgentMemoryStoreService(store).sync
        assert service.recall_memories("ada", "Where does she live? Lisbon?")[0].id == "m2"
        assert migrate_memories(store).found == 0
        embedder = store.engine.embedder
        assert embedder is not None
        for _ in range(500):
            if not store.engine.backend.pending(embedder.fingerprint, 1):
                break
            embedder.embed_now([Passage("wait")])
        assert not store.engine.backend.pending(embedder.fingerprint, 1)


def test_what_this_package_stored_elsewhere_keeps_everything(sqlite_url: str):
    theirs = InMemoryStore()
    old = AgentMemoryStoreService(theirs, agent_name="v1.5").sync
    memory_id = old.save_memory("ada@example.com", "Met Noor", "interaction", tags=["people"], importance=0.9)
    old.save_memory("ada@example.com", "Lives in Lisbon", "facts")
    old.recall_memories("ada@example.com", "Noor")
    report = migrate_memories(sqlite_url, source=theirs)
    assert (report.found, report.written) == (2, 2)
    moved = memories(sqlite_url, "ada@example.com", "v1.5")[memory_id]
    (before,) = [one for one in old.list_memories("ada@example.com")[0] if one.id == memory_id]
    assert moved.value == before.value


def test_a_layout_that_makes_no_sense_is_refused(sqlite_url: str, tmp_path: Path):
    for layout, message in [
        ("langmen", "did you mean langmem"),
        ("notes.x", "needs exactly one user"),
        ("a..{user}", "known: coala"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            migrate_memories(sqlite_url, layouts=[layout])
    with pytest.raises(ConfigurationError, match="There is no store at"):
        migrate_memories(sqlite_url, source=f"sqlite:///{tmp_path / 'none.db'}")


def test_the_command_moves_from_another_database(
    theirs: str | BaseStore, sqlite_url: str, capsys: pytest.CaptureFixture[str]
):
    if not isinstance(theirs, str):
        return
    arguments = ["migrate", "--from", theirs, "--url", sqlite_url]
    assert answer(capsys, *arguments, "--dry-run")["written"] == 9
    found = answer(capsys, *arguments)
    assert (found["written"], found["by_layout"]) == (9, {"coala": 4, "flat": 2, "langmem": 4})
    assert answer(capsys, *arguments, "--layout", "notes.*", "--user", "ada")["written"] == 1


def test_doctor_counts_what_lies_in_a_foreign_table(theirs: str | BaseStore, capsys: pytest.CaptureFixture[str]):
    if not isinstance(theirs, str):
        return
    found = answer(capsys, "doctor", "--url", theirs, "--embeddings", "none")
    assert found["store"]["layouts"] == {"coala": 4, "flat": 2, "langmem": 4}
    assert found["store"]["others"] == 4
    (hint,) = [one for one in found["hints"] if "inference-core migrate" in one and "layouts" in one]
    assert hint.startswith("9 memories are in other layouts (4 coala, 2 flat, 4 langmem)")
    assert migrate_memories(theirs).written == 9
    assert answer(capsys, "doctor", "--url", theirs, "--embeddings", "none")["store"]["flat_memories"] == 0


def test_reports_of_nothing_name_what_else_is_there():
    report = MigrationReport("x")
    report.count_other(("docs", "a"), 2)
    assert "2 other items are in no known layout" in report.to_text()


def test_opening_a_database_of_langgraphs_store_names_the_command(
    theirs: str | BaseStore, caplog: pytest.LogCaptureFixture
):
    """Guards against an empty memory beside full tables, without a word."""
    if not isinstance(theirs, str):
        return
    open_store(theirs, embeddings=None).close()
    open_store(theirs, embeddings=None).close()
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "inference-core migrate --dry-run" in said
    migrate_memories(theirs)
    factory._pointed_at.clear()
    caplog.clear()
    open_store(theirs, embeddings=None).close()
    assert caplog.records == []


def test_a_table_of_that_name_may_be_anything(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Guards against a store that does not open because another program has a table called ``store``."""
    with database("postgres", tmp_path, is_new=True) as url:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE store (prefix integer, key integer)")
        with open_store(url, embeddings=None) as store:
            AgentMemoryStoreService(store).sync.save_memory("ada", "Likes tea")
        assert migrate_memories(url).found == 0
    assert caplog.records == []
