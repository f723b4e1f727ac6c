"""Each change of a memory leaves an event that says who made it, in the same transaction; never what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, ForgettingPolicy, MemoryLifecycle, open_store
from inference_core.agents.tools import get_memory_tools
from inference_core.effects import run
from inference_core.errors import InvalidInput, StoreError
from inference_core.memory.audit import Actor, AuditEvent
from inference_core.memory.namespaces import AUDIT
from inference_core.services.user_memories import delete_user_memory_entry, purge_user_memories
from inference_core.stores.backend import Key, Outcome, Write
from inference_core.stores.factory import engine_of
from inference_core.stores.maintenance import remove_expired
from inference_core.stores.writer import GroupWriter
from inference_core.testing import FrozenClock
from inference_core.transfer.copying import copy_store
from inference_core.transfer.json_lines import export_store, import_store

CANARY = "xyzzy-canary"


def told(events: list[AuditEvent]) -> list[tuple[str, list[tuple[str, str, int | None, int | None]]]]:
    """What was done to which rows, the oldest first."""
    return [
        (event.operation, [("/".join(one.place), one.key, one.before, one.after) for one in event.changes])
        for event in reversed(events)
    ]


def test_every_operation_leaves_its_event(database_url: str, clock: FrozenClock, tmp_path: Path) -> None:
    with open_store(database_url, embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        memory, lifecycle = service.sync, MemoryLifecycle(service).sync

        def done(act: Callable[[], Any]) -> list[Any]:
            before = len(memory.audit("ada", limit=None))
            act()
            clock.advance(timedelta(seconds=1))
            return told(memory.audit("ada", limit=None))[before:]

        home = ("semantic", "tea")
        assert done(lambda: memory.save_memory("ada", f"{CANARY} 1", memory_id="tea")) == [("save", [(*home, 0, None)])]
        assert done(lambda: memory.save_memory("ada", f"{CANARY} 2", memory_id="tea")) == [("replace", [(*home, 1, 2)])]
        assert done(lambda: memory.update_memory("ada", "tea", topic=CANARY)) == [("update", [(*home, 2, 3)])]
        assert done(lambda: memory.delete_memory("ada", "tea")) == [
            ("delete", [("forgotten/semantic", "tea", 0, None), (*home, 3, 0)])
        ]
        restored = done(lambda: lifecycle.restore("ada", ["tea"]))
        assert [(name, min(changes)) for name, changes in restored] == [
            ("restore", ("forgotten/semantic", "tea", 1, 0))
        ]
        nothing = ForgettingPolicy(max_memories={"all": 0})
        assert [name for name, _ in done(lambda: lifecycle.forget("ada", nothing))] == ["forget"]
        assert [name for name, _ in done(lambda: memory.delete_memory("ada", "tea", erase=True))] == ["erase"]
        key = memory.save_memory("ada", f"{CANARY} 3")
        assert [name for name, _ in done(lambda: delete_user_memory_entry(store, "ada", ("ada", "semantic"), key))] == [
            "erase"
        ]
        assert done(lambda: store.put(("ada", "semantic"), "raw", {"content": CANARY})) == [
            ("write", [("semantic", "raw", 0, None)])
        ]
        assert done(lambda: store.put(("ada", "mine"), "raw", {"content": CANARY})) == []
        export_store(store.engine.backend, tmp_path / "all.jsonl")
        assert CANARY not in json.dumps([event.to_value() for event in memory.audit("ada", limit=None)])
        assert [name for name, _ in done(lambda: memory.delete_user_memories("ada"))] == ["delete all"]
        assert done(lambda: import_store(tmp_path / "all.jsonl", store.engine.backend)) == [
            ("import", [("semantic", "raw", 0, None)])
        ]
        with open_store("memory://", embeddings=None) as other:
            copy_store(store.engine.backend, other.engine.backend)
            assert [name for name, _ in told(AgentMemoryStoreService(other).sync.audit("ada"))] == ["copy"]
        assert purge_user_memories(store, "ada") == 2  # what an application has put there, too
        assert memory.audit("ada") == []
        assert not [name for name in store.engine.backend.namespaces() if name[0] == "ada"]
        assert len(done(lambda: memory.save_memory("ada", "again"))) == 1


def test_an_event_says_who(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, agent_name="planner", clock=clock)
        tools = {tool.name: tool for tool in get_memory_tools(service, "ada")}
        config: Any = {"configurable": {"thread_id": "t1"}, "run_id": "5b1e4c6e-0000-4000-8000-000000000000"}
        tools["save_memory_store"].invoke({"content": "Likes tea", "memory_type": "facts"}, config)
        clock.advance(timedelta(days=1))
        service.sync.save_memory("ada", "Likes coffee")
        clock.advance(timedelta(days=1))
        admin = AgentMemoryStoreService(store, clock=clock, actor=Actor(kind="admin", id="root"))
        admin.sync.save_memory("ada", "Likes cocoa")
        newest, second, oldest = service.sync.audit("ada")
        assert (oldest.actor.kind, oldest.actor.agent, oldest.actor.tool) == ("agent", "planner", "save_memory_store")
        assert oldest.actor.thread_id == "t1"
        assert (second.actor.kind, newest.actor.kind, newest.actor.id) == ("application", "admin", "root")
        audit = service.sync.audit
        assert audit("ada", thread_id="t1") == audit("ada", actor="save_memory_store") == [oldest]
        assert audit("ada", actor="root") == audit("ada", since=clock.now()) == [newest]
        assert audit("ada", until=second.at) == [oldest]
        assert audit("ada", memory_id=second.changes[0].key, limit=5) == [second]
        assert audit("ada", limit=1) == [newest]
        assert audit("bob") == []
        with pytest.raises(InvalidInput):
            audit("ada", limit=-1)


@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_it_can_be_switched_off(kind: str) -> None:
    store = open_store("memory://", embeddings=None, audit=False) if kind == "own" else InMemoryStore()
    memory = AgentMemoryStoreService(store, audit=False).sync
    memory.save_memory("ada", "Likes tea", memory_id="tea")
    memory.update_memory("ada", "tea", "Likes coffee")
    assert memory.audit("ada") == []
    assert [one.content for one in memory.get_memory_history("ada", "tea")] == ["Likes tea", "Likes coffee"]
    assert engine_of(InMemoryStore()).audit_log.audit


def test_stores_of_others_keep_events_as_well(clock: FrozenClock) -> None:
    memory = AgentMemoryStoreService(InMemoryStore(), clock=clock).sync
    memory.save_memory("ada", "Likes tea", memory_id="tea")
    clock.advance(timedelta(seconds=1))
    memory.delete_memory("ada", "tea")
    assert [name for name, _ in told(memory.audit("ada"))] == ["save", "delete"]


def test_regression_two_sweepers_tell_of_an_expiry_once(
    database_url: str, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one took a row that the first had removed for an expired one, and told of it again."""
    with open_store(database_url, embeddings=None, clock=clock) as store:
        backend, audit_log = store.engine.backend, store.engine.audit_log
        store.put(("ada", "semantic"), "tea", {"content": "Likes tea"}, ttl=1)
        clock.advance(timedelta(minutes=1))
        found = backend.expired(9)

        def expired(limit: int) -> list[Key]:  # as both saw it, before either removed it
            return found[:limit]

        monkeypatch.setattr(backend, "expired", expired)
        for _ in range(2):
            assert remove_expired(GroupWriter(backend), audit_log)
        assert [name for name, _ in told(AgentMemoryStoreService(store).sync.audit("ada"))] == ["write", "expire"]


def test_events_end(sqlite_url: str, clock: FrozenClock) -> None:
    with open_store(sqlite_url, embeddings=None, clock=clock, audit_days=2) as store:
        memory = AgentMemoryStoreService(store, clock=clock).sync
        memory.save_memory("ada", "Likes tea")
        clock.advance(timedelta(days=2))
        assert memory.audit("ada") == []


def test_another_process_purges_the_user(sqlite_url: str) -> None:
    """The next change, however soon, is written under a new key, not under the one that was erased."""
    with open_store(sqlite_url, embeddings=None) as store, open_store(sqlite_url, embeddings=None) as other:
        memory = AgentMemoryStoreService(store).sync
        memory.save_memory("ada", "Likes tea")
        old = store.engine.audit_log.key_of("ada")
        purge_user_memories(other, "ada")
        assert store.engine.audit_log.key_of("ada") is None
        memory.save_memory("ada", "Likes coffee")
        assert store.engine.audit_log.key_of("ada") not in (None, old)


def test_regression_every_expiry_after_a_purge_by_another_process_is_told(sqlite_url: str, clock: FrozenClock) -> None:
    """Only the first row's batch was tried again under the new key; the other rows went without an event."""
    with (
        open_store(sqlite_url, embeddings=None, clock=clock) as store,
        open_store(sqlite_url, embeddings=None, clock=clock) as other,
    ):
        AgentMemoryStoreService(store).sync.save_memory("ada", "Likes tea")
        purge_user_memories(other, "ada")
        for key in ("a", "b"):
            other.put(("ada", "semantic"), key, {"content": key}, ttl=1)
        clock.advance(timedelta(minutes=1))
        run(store.engine.remove_expired())
        assert [name for name, _ in told(AgentMemoryStoreService(other).sync.audit("ada"))] == [
            *["write"] * 2,
            *["expire"] * 2,
        ]


@pytest.mark.parametrize("fails_at", range(4))
def test_there_is_an_event_if_and_only_if_something_changed(
    sqlite_url: str, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that fails at any write leaves neither an event without a change nor a change without one."""
    with open_store(sqlite_url, embeddings=None) as store:
        memory, backend = AgentMemoryStoreService(store).sync, store.engine.backend
        apply, calls = backend.apply, [0]

        def failing(batches: list[list[Write]]) -> list[Outcome]:
            calls[0] += 1
            if calls[0] == fails_at:
                raise StoreError("the disk is full")
            return apply(batches)

        monkeypatch.setattr(backend, "apply", failing)
        done = 0
        for act in (
            lambda: memory.save_memory("ada", "one", memory_id="m"),
            lambda: memory.update_memory("ada", "m", "two"),
            lambda: memory.delete_memory("ada", "m"),
        ):
            with suppress(StoreError):
                done += bool(act())
        assert len(memory.audit("ada")) == done
    with open_store(sqlite_url, embeddings=None) as store:
        rows = [row for row in store.engine.backend.inspect("ada") if getattr(row, "namespace", ())[1:] == (AUDIT,)]
        assert len(rows) == done + 1 if done else not rows


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from inference_core.cli import main

    url = f"sqlite:///{tmp_path / 'm.db'}"
    monkeypatch.setenv("USER", "root")
    assert main(["save", "Likes tea", "--user", "ada", "--url", url, "--id", "tea"]) == 0
    assert main(["delete", "tea", "--yes", "--user", "ada", "--url", url]) == 0
    capsys.readouterr()
    assert main(["audit", "--user", "ada", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "delete by admin root" in shown
    assert "semantic tea: version 1 → gone" in shown
    assert "Likes" not in shown
    assert main(["audit", "--user", "ada", "--url", url, "--json", "--actor", "root", "--limit", "1"]) == 0
    (event,) = json.loads(capsys.readouterr().out)["events"]
    assert (event["operation"], event["actor"]) == ("delete", {"id": "root", "kind": "admin"})
