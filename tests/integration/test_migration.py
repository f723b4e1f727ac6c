"""Migration of flat memories, end to end: what arrives, what stays, and what a second run leaves alone."""

from __future__ import annotations

import hashlib
import json
import runpy
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore
from migration_support import ROW_TIME, UNUSABLE, USERS, Expected, legacy_file, originals, state
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import ConfigurationError, InvalidInput, StoreUnavailable
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import AUDIT, MIGRATED, MemoryNamespaceBuilder, encode_label
from inference_core.services.user_memories import count_user_memories, purge_user_memories
from inference_core.transfer.legacy import LegacyItem
from inference_core.transfer.migrate import import_items, migrate_memories

Script = Callable[..., tuple[int, str, str]]
SCRIPT = Path(__file__).parents[2] / "scripts" / "migrate_memory_to_coala.py"
COUNT = 60


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few memories make two of them."""
    monkeypatch.setattr("inference_core.transfer.migrate.BATCH", 50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Expected]]:
    path = tmp_path_factory.mktemp("legacy") / "memory.db"
    return path, legacy_file(path, COUNT)


@pytest.fixture
def expected(path: Path, legacy: tuple[Path, list[Expected]]) -> list[Expected]:
    """A file of LangGraph's with memories and odd rows."""
    shutil.copy(legacy[0], path)
    return list(legacy[1])


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> Script:
    """The script's main function; its exit code and what it printed."""
    main: Callable[[list[str]], int] = runpy.run_path(str(SCRIPT))["main"]

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def put_flat(path: Path, *rows: tuple[str, str, dict[str, Any]]) -> None:
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        store.batch([PutOp((user, "memories"), key, value) for user, key, value in rows])


def rows_of(path: Path) -> Iterator[tuple[list[str], str, int, dict[str, Any]]]:
    query = (
        "SELECT s.namespace, r.key, r.created, r.value FROM memory_rows r JOIN memory_scopes s ON s.id = r.scope "
        "WHERE r.value IS NOT NULL"
    )
    with closing(sqlite3.connect(path)) as connection:
        for namespace, key, created, value in connection.execute(query):
            if json.loads(namespace) != list(MIGRATED) and json.loads(namespace)[1] != AUDIT:
                yield json.loads(namespace), key, created, json.loads(value)


def test_thousands_of_flat_memories_arrive_once_and_as_they_were(path: Path, url: str, full: bool):
    count = 5_000 if full else 600
    expected = legacy_file(path, count)
    before = originals(path)
    heard: list[tuple[int, int]] = []
    report = migrate_memories(url, progress=lambda done, total: heard.append((done, total)))
    found = {
        (tuple(name), key): (created, value["content"].partition(" said ")[0])
        for name, key, created, value in rows_of(path)
    }
    wanted = {
        ((encode_label(one.user), one.category), one.key): (round(one.created_at.timestamp() * 1e6), one.user)
        for one in expected
    }
    assert len(expected) == count
    assert found == wanted
    assert report.written == sum(1 for _ in rows_of(path)) == count
    assert report.by_category == Counter(one.category for one in expected)
    assert (report.users, report.already_there, report.failed) == (len(USERS), 0, 0)
    assert report.skipped.total() == len(UNUSABLE) + 2
    assert heard[-1] == (report.found, report.found)
    assert originals(path) == before


def test_a_second_run_writes_nothing(path: Path, url: str, expected: list[Expected]):
    migrate_memories(url)
    before = state(path)
    report = migrate_memories(url)
    assert (report.written, report.already_there) == (0, COUNT)
    assert state(path) == before


def test_a_dry_run_changes_not_a_byte_and_counts_what_a_run_does(path: Path, url: str, expected: list[Expected]):
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    dry = migrate_memories(url, dry_run=True)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("user-1", "of another origin", memory_id=expected[1].key)
    stored = state(path)
    again = migrate_memories(url, dry_run=True)
    assert state(path) == stored
    real = migrate_memories(url)
    assert (dry.by_category, dry.users, dry.skipped) == (Counter(one.category for one in expected), 5, real.skipped)
    assert (again.by_category, again.already_there) == (real.by_category, 1)
    assert (real.already_there, real.written) == (1, COUNT - 1)


def test_a_second_run_neither_reverts_edits_nor_resurrects_deletions_and_ages_stay(
    path: Path, url: str, expected: list[Expected]
):
    ids = [one.key for one in expected if one.user == "ada" and one.category == "semantic"][:3]
    migrate_memories(url)
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, agent_name="planner").sync
        assert service.update_memory("ada", ids[0], content="edited")
        assert service.update_memory("ada", ids[1], memory_type="skill", content="moved")
        assert service.delete_memory("ada", ids[2])
        assert purge_user_memories(store, "user-12") > 0
    before = state(path)
    assert migrate_memories(url).written == 0
    assert state(path) == before
    with open_store(url, embeddings=None) as store:
        found = {
            one.id: one
            for one in AgentMemoryStoreService(store, agent_name="planner").sync.list_memories("ada", limit=None)[0]
        }
        assert found[ids[0]].content == "edited"
        assert found[ids[1]].content == "moved"
        assert ids[2] not in found
        assert count_user_memories(store, "user-12")["total"] == 0
        assert found[ids[0]].created_at == next(one.created_at for one in expected if one.key == ids[0])


def test_any_number_of_users_and_memories_is_migrated(path: Path, url: str):
    put_flat(path, *((f"u{at}", "k", {"content": f"fact {at}"}) for at in range(150)))
    put_flat(path, *(("big", f"k{at}", {"content": f"fact {at}"}) for at in range(1_001)))
    report = migrate_memories(url)
    assert (report.users, report.written) == (151, 1_151)


@pytest.mark.parametrize(("agent", "readers"), [(None, {"planner", "browser"}), ("planner", {"planner"})])
def test_named_agents_see_what_was_migrated_for_them(path: Path, url: str, agent: str | None, readers: set[str]):
    put_flat(path, ("ada", "m1", {"content": "Always run the tests", "memory_type": "instructions"}))
    migrate_memories(url, agent_name=agent)
    with open_store(url, embeddings=None) as store:
        for name in ("planner", "browser"):
            found = AgentMemoryStoreService(store, agent_name=name).sync.recall_memories("ada", "run the tests")
            assert [one.id for one in found] == (["m1"] if name in readers else [])


def test_another_agents_name_does_not_migrate_anything_twice(path: Path, url: str, expected: list[Expected]):
    migrate_memories(url, agent_name="planner")
    before = state(path)
    assert migrate_memories(url, agent_name="browser").written == 0
    assert migrate_memories(url).written == 0
    assert state(path) == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_id_that_stands_in_any_scope_of_the_user_is_left_alone(path: Path, url: str, dry_run: bool):
    put_flat(path, ("ada", "m1", {"content": "the original"}))
    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, agent_name="planner").sync
        service.save_memory("ada", "moved and edited", "skill", memory_id="m1")
        report = migrate_memories(url, dry_run=dry_run)
        assert (report.written, report.already_there) == (0, 1)
        assert [one.content for one in service.list_memories("ada")[0]] == ["moved and edited"]
        assert service.delete_memory("ada", "m1")
        assert migrate_memories(url, dry_run=True).written == int(dry_run)


def test_our_own_flat_scopes_are_migrated_and_stay(path: Path, url: str):
    mail = MemoryNamespaceBuilder().legacy_namespace("ada@example.com")
    with open_store(url, embeddings=None) as store:
        store.put(("user-1", "memories"), "m1", {"content": "likes tea", "memory_type": "preference"})
        store.put(mail, "m1", {"content": "likes coffee", "created_at": "2025-01-15T10:30:00"})
        report = migrate_memories(url)
        service = AgentMemoryStoreService(store).sync
        assert (report.users, report.written) == (2, 2)
        assert service.recall_memories("user-1", "tea")[0].content == "likes tea"
        created = service.recall_memories("ada@example.com", "coffee")[0].created_at
        assert created == datetime(2025, 1, 15, 10, 30, tzinfo=UTC)
        old = store.get(mail, "m1")
        assert old is not None
        assert old.value == {"content": "likes coffee", "created_at": "2025-01-15T10:30:00"}


def test_of_two_originals_with_one_id_our_own_counts(path: Path, url: str):
    put_flat(path, ("ada", "m1", {"content": "old"}), ("ada", "m2", {"content": "only there"}))
    with open_store(url, embeddings=None) as store:
        store.put(("ada", "memories"), "m1", {"content": "new"})
        report = migrate_memories(url)
        assert (report.users, report.found, report.written, report.already_there) == (1, 3, 2, 1)
        found = AgentMemoryStoreService(store).sync.list_memories("ada")[0]
        assert {one.content for one in found} == {"new", "only there"}


def test_users_are_never_mixed_up(path: Path, url: str):
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        AgentMemoryStoreService(store, agent_name="memories").sync.save_memory("ada", "private", "skill")
    put_flat(path, ("~x~40host", "m1", {"content": "not of x@host"}))
    report = migrate_memories(url)
    assert (report.written, report.skipped.total(), report.by_layout) == (2, 0, {"coala": 1, "flat": 1})
    with open_store(url, embeddings=None) as store:
        assert count_user_memories(store, "ada.procedural")["total"] == 0
        assert AgentMemoryStoreService(store).sync.list_memories("ada")[1] == 0
        assert AgentMemoryStoreService(store, agent_name="memories").sync.list_memories("ada")[1] == 1
        assert count_user_memories(store, "x@host")["total"] == 0
        assert count_user_memories(store, "~x~40host")["total"] == 1
    assert migrate_memories(url, user_ids=["user-1", "x@host"]).found == 0


def test_only_named_users_are_migrated_and_a_dotted_one_has_to_be_named(path: Path, url: str, expected: list[Expected]):
    report = migrate_memories(url, user_ids=["user-1", "team.ada", "nobody"])
    assert (report.users, report.written) == (2, COUNT // len(USERS) + 1)
    with open_store(url, embeddings=None) as store:
        assert count_user_memories(store, "user-12")["total"] == 0
        assert count_user_memories(store, "team.ada")["total"] == 1


def test_writers_lose_nothing_beside_a_migration(path: Path, url: str, expected: list[Expected]):
    saved: list[str] = []
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            saved.append(service.save_memory("ada", f"saved {len(saved)}", "facts"))

    with open_store(url, embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None).sync
        writer = threading.Thread(target=save)
        writer.start()
        try:
            assert migrate_memories(url).written == COUNT
        finally:
            done.set()
            writer.join()
        assert saved
        found = {one.id for one in service.list_memories("ada", limit=None)[0]}
        assert found == {*saved, *(one.key for one in expected if one.user == "ada")}


def test_what_the_store_refuses_is_named_and_the_rest_is_done(
    path: Path, url: str, expected: list[Expected], script: Script
):
    open_store(url, embeddings=None).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON memory_rows WHEN NEW.key = 'id.7' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    code, out, _ = script("--database-url", url)
    assert code == 1
    assert "FAILED: 5." in out
    assert "'ada' 'id.7': 'SQLite cannot hold this: refused'" in out
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TRIGGER refuse")
    code, out, _ = script("--database-url", url)
    assert (code, "Migrated 5:" in out) == (0, True)


def test_an_expiry_is_kept(path: Path, url: str):
    put_flat(path, ("ada", "m1", {"content": "until February"}))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE store SET expires_at = '2025-02-01 00:00:00'")
    migrate_memories(url)
    assert [value["expires_at"] for *_, value in rows_of(path)] == ["2025-02-01T00:00:00+00:00"]


def test_the_original_names_of_odd_things_are_kept(path: Path, url: str):
    put_flat(path, ("ada", "m1", {"content": "x", "memory_type": "mood"}))
    migrate_memories(url)
    assert [value["extra_metadata"] for *_, value in rows_of(path)] == [{"legacy": {"memory_type": "mood"}}]


def test_the_script_says_nothing_to_migrate_without_a_store_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Script
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENT_MEMORY_STORE_URL", raising=False)
    assert script()[:2] == (0, "Nothing to migrate in sqlite:///memory.db. There is no such file yet.\n")
    assert list(tmp_path.iterdir()) == []
    open_store("sqlite:///memory.db", embeddings=None).close()
    assert script()[:2] == (0, "Nothing to migrate in sqlite:///memory.db.\n")
    assert script("--database-url", "memory://")[0] == 0


def test_the_script_reads_the_env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Script):
    """Regression: it looked into memory.db, where an application that keeps its settings in `.env` has nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", "")  # and put back afterwards, without what the file sets
    monkeypatch.delenv("AGENT_MEMORY_STORE_URL")
    (tmp_path / ".env").write_text("AGENT_MEMORY_STORE_URL=sqlite:///app.db\n")
    assert script("--dry-run")[:2] == (0, "Nothing to migrate in sqlite:///app.db. There is no such file yet.\n")


def test_the_script_prints_one_json_object(url: str, expected: list[Expected], script: Script):
    code, out, _ = script("--database-url", url.replace("sqlite:", "sqlite+aiosqlite:"), "--json", "--user-ids", "ada")
    found = json.loads(out)
    assert (code, found["written"], found["users"], found["dry_run"]) == (0, COUNT // len(USERS), 1, False)
    assert found["store"] == url


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--database-url", "mysql://u:hunter2@host/db"], 2, "Unknown store scheme"),
        (["--database-url", "{url}?password=hunter2", "--legacy-namespace", "semantic"], 2, "cannot be called"),
        (["--database-url", "{folder}"], 2, "it is a folder"),
        (["--database-url", "{url}", "--user-ids", ""], 2, "user_id must have"),
        (["--database-url", "{url}", "--agent-name", "x" * 600], 2, "agent_name must have"),
        (["--database-url", "{text}?password=hunter2"], 1, "not a database"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    arguments: list[str], code: int, message: str, url: str, tmp_path: Path, script: Script
):
    (tmp_path / "text.db").write_text("no database " * 1_000)
    names = {"url": url, "folder": f"sqlite:///{tmp_path}", "text": f"sqlite:///{tmp_path / 'text.db'}"}
    found, out, err = script(*(one.format(**names) for one in arguments), "--dry-run")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err
    assert "hunter2" not in err


def test_a_password_in_the_url_is_not_printed(url: str, expected: list[Expected], script: Script):
    code, out, err = script("--database-url", f"{url}?password=hunter2")
    assert code == 0
    assert "hunter2" not in out + err


@pytest.mark.parametrize("is_missing", [True, False])
def test_without_rich_or_a_terminal_progress_is_lines(
    url: str, expected: list[Expected], monkeypatch: pytest.MonkeyPatch, script: Script, is_missing: bool
):
    if is_missing:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    code, _, err = script("--database-url", url)
    assert code == 0
    assert all(" of " in line for line in err.splitlines())
    assert 1 < len(err.splitlines()) <= 10


def test_on_a_terminal_progress_is_a_bar(
    url: str, expected: list[Expected], monkeypatch: pytest.MonkeyPatch, script: Script
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = script("--database-url", url)
    assert code == 0
    assert "Memories" in err
    assert "\x1b" not in out


def test_the_script_runs_from_a_shell(url: str, expected: list[Expected], quick_python: str):
    command = [quick_python, str(SCRIPT), "--database-url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"Migrated {COUNT}:" in done.stdout


def test_regression_the_script_heeds_the_settings_as_the_command_does(
    path: Path, script: Script, url: str, monkeypatch: pytest.MonkeyPatch
):
    """It stored redacted what was to be rejected, and at once what was to wait."""
    monkeypatch.setenv("AGENT_MEMORY_SECRETS", "reject")
    monkeypatch.setenv("AGENT_MEMORY_CONFIRM", "semantic")
    monkeypatch.setenv("AGENT_MEMORY_MAX_MEMORIES", "1")
    waits = {"content": "Lives in Rome", "memory_type": "facts"}
    secret = {"content": f"Key sk-ant-api03-{'a1B2c3D4' * 12}", "memory_type": "facts"}
    put_flat(path, ("ada", "1", waits), ("ada", "2", secret))
    put_flat(path, *(("ada", key, {"content": key, "memory_type": "context"}) for key in ("a", "b")))
    code, printed, _ = script("--database-url", url, "--json")
    report = json.loads(printed)
    assert (code, report["written"], report["waiting"], report["failed"]) == (1, 1, 1, 1)
    assert report["skipped_by_reason"] == {"contains a secret": 1}


def test_wrong_usage_is_code_two(script: Script):
    with pytest.raises(SystemExit) as refused:
        script("--user-ids")
    assert refused.value.code == 2


def test_bad_arguments_are_refused(url: str):
    with pytest.raises(InvalidInput, match="user_ids must be a list"):
        migrate_memories(url, user_ids="ada")
    with pytest.raises(InvalidInput):
        migrate_memories(url, legacy_namespace="")
    with pytest.raises(ConfigurationError):
        migrate_memories("nonsense")


def test_a_database_that_stops_answering_is_an_error_and_the_next_run_goes_on(
    path: Path, url: str, expected: list[Expected]
):
    def give_up(done: int, total: int) -> None:
        raise StoreUnavailable("the disk is full")

    with pytest.raises(StoreUnavailable):
        migrate_memories(url, progress=give_up)
    report = migrate_memories(url)
    assert 0 < report.already_there < COUNT
    assert report.written + report.already_there == COUNT


def test_vectors_are_added_when_the_store_is_opened_with_a_model(path: Path, url: str):
    from support import HashingEmbeddings

    put_flat(path, ("ada", "m1", {"content": "likes tea"}))
    migrate_memories(url)
    with open_store(url, embeddings=HashingEmbeddings()) as store:
        assert store.wait_ready(10)
        embedder = store.engine.embedder
        assert embedder is not None
        for _ in range(1_000):
            if not store.engine.backend.pending(embedder.fingerprint, 1):
                break
            threading.Event().wait(0.01)
        assert store.engine.backend.pending(embedder.fingerprint, 1) == []


def test_ages_that_a_row_alone_knows_are_kept(path: Path, url: str):
    put_flat(path, ("ada", "m1", {"content": "x"}))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE store SET created_at = '2025-06-01 12:00:00', updated_at = '2025-06-02 12:00:00'")
    migrate_memories(url)
    with open_store(url, embeddings=None) as store:
        (one,) = AgentMemoryStoreService(store).sync.list_memories("ada")[0]
        assert (one.created_at, one.updated_at) == (ROW_TIME, ROW_TIME + timedelta(days=1))


def test_regression_what_an_import_stored_before_it_failed_gets_its_vectors(sqlite_url: str):
    looks = iter(range(2))

    def items() -> Iterator[LegacyItem]:
        is_counting = next(looks) == 0
        for number in range(600):
            if number == 550 and not is_counting:
                raise OSError("the file is on a disk that is gone")
            yield LegacyItem(user_id="ada", key=str(number), value={"content": f"fact {number}"})

    with open_store(sqlite_url, embeddings=HashingEmbeddings()) as store:
        with pytest.raises(OSError, match="is gone"):
            import_items(store, items)
        backend, model = store.engine.backend, store.engine.embedder
        assert model is not None
        assert AgentMemoryStoreService(store).sync.count_memories("ada")["total"] == 550
        end = time.monotonic() + 10
        while backend.pending(model.fingerprint, 1) and time.monotonic() < end:
            time.sleep(0.02)
        assert backend.pending(model.fingerprint, 1) == []


def some(user: str, count: int = 60) -> list[LegacyItem]:
    return [LegacyItem(user_id=user, key=str(number), value={"content": f"fact {number}"}) for number in range(count)]


@pytest.mark.parametrize("by_url", [True, False])
def test_regression_whom_a_store_has_erased_keeps_nobody_out_of_a_migration(
    sqlite_url: str, tmp_path: Path, by_url: bool
):
    """In an open store where anybody had been erased, all memories counted as there already, and none was written."""
    with open_store(sqlite_url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("bob", "fact", "facts")
        erase([store.engine.backend], "bob", Ledger(tmp_path / "ledger.jsonl"))
    with open_store(sqlite_url, embeddings=None) as store:
        report = import_items(sqlite_url if by_url else store, lambda: some("ada") + some("bob"))
        assert (report.written, report.already_there, report.failed) == (120, 0, 0)
        counted = AgentMemoryStoreService(store).sync.count_memories
        assert (counted("ada")["total"], counted("bob")["total"]) == (60, 60)  # what comes later is written


@pytest.mark.parametrize("by_url", [True, False])
def test_regression_who_is_erased_during_a_migration_does_not_come_back(sqlite_url: str, tmp_path: Path, by_url: bool):
    """By URL, the rest of the user's memories was written after the erasure, though its receipt said: nothing left."""
    with open_store(sqlite_url, embeddings=None) as store:
        looks = iter(range(2))

        def items() -> Iterator[LegacyItem]:
            is_counting = next(looks) == 0
            yield from some("bob", 50)
            if not is_counting:
                erase([store.engine.backend], "bob", Ledger(tmp_path / "ledger.jsonl"))
            yield from some("ada")
            yield from (replace(one, key=f"late {one.key}") for one in some("bob", 50))

        report = import_items(sqlite_url if by_url else store, items)
        assert (report.written, report.failed) == (110, 50)
        assert "was erased" in report.failures[0].reason
        counted = AgentMemoryStoreService(store).sync.count_memories
        assert (counted("ada")["total"], counted("bob")["total"]) == (60, 0)


def test_regression_a_purge_during_a_migration_loses_nothing_of_what_follows(sqlite_url: str):
    """It ends the key of the user's audit trail: of each batch all memories but one counted as there already."""
    with open_store(sqlite_url, embeddings=None) as store:
        looks = iter(range(2))

        def items() -> Iterator[LegacyItem]:
            is_counting = next(looks) == 0
            yield from some("bob", 50)
            if not is_counting:
                purge_user_memories(store, "bob")
            yield from (replace(one, key=f"late {one.key}") for one in some("bob", 50))

        report = import_items(sqlite_url, items)
        assert (report.written, report.already_there, report.failed) == (100, 0, 0)
        assert count_user_memories(store, "bob")["total"] == 50
