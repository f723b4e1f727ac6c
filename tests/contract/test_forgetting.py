"""Forgetting and restoring, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from support import HashingEmbeddings, expanded, load

from inference_core import AgentMemoryStoreService, ForgettingPolicy, MemoryLifecycle, open_store
from inference_core.effects import Operation, run
from inference_core.errors import InvalidId, InvalidInput
from inference_core.lifecycle import forgetting
from inference_core.lifecycle.forgetting import (
    ForgettingReport,
    ForgettingRounds,
    SyncMemoryLifecycle,
    documents,
    users_of,
)
from inference_core.retrieval.documents import Document
from inference_core.services.operations.scope import put_of, record_of
from inference_core.services.user_memories import count_user_memories, purge_user_memories
from inference_core.stores.backend import Key, PageRequest, Put, Row, Write
from inference_core.stores.engine import StoreEngine
from inference_core.stores.store import MemoryStore
from inference_core.testing import FrozenClock
from inference_core.transfer.json_lines import export_store, import_store

NONE = ForgettingPolicy(max_memories={"all": 0})
YEAR = timedelta(days=365)
HOSTILE = [expanded(entry["id"]) for entry in load("hostile_ids.json")]


def names(report: ForgettingReport) -> list[str]:
    return [one.record.id for one in report.forgotten]


def lifecycle(store: BaseStore, clock: FrozenClock, agent: str | None = None) -> SyncMemoryLifecycle:
    return MemoryLifecycle(AgentMemoryStoreService(store, agent_name=agent, clock=clock)).sync


def rows(service: AgentMemoryStoreService, user: str = "ada") -> dict[str, tuple[Any, ...]]:
    """All that is stored of the user's memories but versions, and what a foreign store says of its own writes."""
    namespaces = service.ns_builder.read_scopes(user)
    found: list[Row] = service.scope.engine.backend.page(PageRequest(namespaces, limit=1_000))
    own = isinstance(service.store, MemoryStore)
    return {
        row.key: (
            row.namespace,
            {name: part for name, part in row.value.items() if name != "_inference_core"},
            *((row.created_at, row.updated_at) if own else ()),
        )
        for row in found
    }


@pytest.fixture
def filled(service: AgentMemoryStoreService) -> AgentMemoryStoreService:
    """One memory a category of the agent "planner", one of "coder", one of bob's."""
    other = AgentMemoryStoreService(service.store, agent_name="coder", clock=service.scope.clock)
    for number, kind in enumerate(["facts", "context", "instructions"]):
        service.sync.save_memory("ada", f"tea {kind}", kind, memory_id=f"m{number}", extra_metadata={"n": [number]})
    other.sync.save_memory("ada", "coder's", "skill", memory_id="m2")
    other.sync.save_memory("bob", "bob's", memory_id="m0")
    return service


def test_what_is_forgotten_is_found_by_nobody_and_comes_back_as_it_was(
    filled: AgentMemoryStoreService, clock: FrozenClock
) -> None:
    face, before = MemoryLifecycle(filled).sync, rows(filled)
    filled.sync.recall_memories("ada", "tea facts", 1)
    clock.advance(timedelta(days=1))
    dry = face.forget("ada", NONE, dry_run=True)
    assert rows(filled) == before
    done = face.forget("ada", NONE)
    assert (done.forgotten, done.remaining, done.kept) == (dry.forgotten, 0, [])
    assert sorted(names(done)) == ["m0", "m1", "m2", "m2"]
    assert rows(filled) == {}
    assert filled.sync.recall_memories("ada", "tea", 100) == filled.sync.recall_memories("ada", "", 100) == []
    assert filled.sync.format_context_for_prompt("ada", "tea") == ""
    assert filled.sync.get_memory("ada", "m0") is None
    assert count_user_memories(filled.store, "ada")["total"] == 0
    assert count_user_memories(filled.store, "bob")["total"] == 1
    assert sorted((one.document.id, one.reason, one.forgotten_at) for one in face.forgotten("ada")) == [
        (name, "budget", clock.now()) for name in ("m0", "m1", "m2", "m2")
    ]
    assert sorted(face.restore("ada").restored) == ["m0", "m1", "m2", "m2"]
    assert rows(filled) == before
    assert face.forgotten("ada") == []
    assert {hit.id for hit in filled.sync.recall_memories("ada", "tea", 100)} == {"m0", "m1", "m2"}
    usage = {one.document.id: (one.count, one.last) for one in face.usage("ada")}
    assert usage == {"m0": (2, clock.now()), "m1": (1, clock.now()), "m2": (1, clock.now())}
    assert face.forget("ada", ForgettingPolicy(half_life_days=0.01, below=1)).forgotten == []


def test_restoring_by_id(filled: AgentMemoryStoreService) -> None:
    face = MemoryLifecycle(filled).sync
    face.forget("ada", NONE)
    filled.sync.save_memory("ada", "another", memory_id="m0")
    report = face.restore("ada", ["m1", "m0", "nothing", "m1"])
    assert (report.restored, report.taken, report.missing) == (["m1"], ["m0"], ["nothing"])
    assert [hit.content for hit in filled.sync.recall_memories("ada", "another", 1)] == ["another"]
    assert {one.document.content for one in face.forgotten("ada")} == {"tea facts", "tea instructions", "coder's"}
    assert face.restore("bob", ["m2"]).missing == ["m2"]
    with pytest.raises(InvalidInput):
        face.restore("ada", ["no id"])
    assert face.forget("ada").erased == ["m0"]
    assert {one.document.content for one in face.forgotten("ada")} == {"tea instructions", "coder's"}


def test_the_archive_is_erased_in_time_and_goes_with_deletions(
    filled: AgentMemoryStoreService, clock: FrozenClock
) -> None:
    face, keeping = MemoryLifecycle(filled).sync, ForgettingPolicy(keep_days=30)
    face.forget("ada", NONE)
    clock.advance(timedelta(days=29))
    filled.sync.save_memory("ada", "new", memory_id="new")
    face.forget("ada", NONE)
    assert face.forget("ada", keeping).erased == []
    clock.advance(timedelta(days=1))
    assert len(face.forget("ada", keeping, dry_run=True).erased) == 4
    assert len(face.forgotten("ada")) == 5
    assert sorted(face.forget("ada", keeping).erased) == ["m0", "m1", "m2", "m2"]
    assert [one.document.id for one in face.forgotten("ada")] == ["new"]
    assert filled.sync.delete_memory("ada", "new")
    assert not filled.sync.delete_memory("ada", "new")
    for removed in (lambda: filled.sync.delete_user_memories("ada"), lambda: purge_user_memories(filled.store, "ada")):
        filled.sync.save_memory("ada", "new")
        face.forget("ada", NONE)
        removed()
        assert face.forgotten("ada") == []
    filled.sync.save_memory("ada", "fact")
    filled.sync.save_memory("ada", "rule", "instructions")
    face.forget("ada", NONE)
    assert purge_user_memories(filled.store, "ada", "procedural") == 1
    assert [one.document.content for one in face.forgotten("ada")] == ["fact"]


def test_what_changes_meanwhile_stays(
    filled: AgentMemoryStoreService, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = MemoryLifecycle(filled).sync
    for number in range(6):
        filled.sync.save_memory("ada", f"more {number}", memory_id=f"n{number}")
    changes = [
        lambda: filled.sync.update_memory("ada", "n0", "changed"),
        lambda: filled.sync.update_memory("ada", "n1", pinned=True),
        lambda: filled.sync.recall_memories("ada", "more 2", 1),
        lambda: filled.sync.delete_memory("ada", "n3"),
    ]
    clock.advance(timedelta(seconds=1))

    def late(engine: StoreEngine, keys: Collection[Key]) -> Operation[dict[Key, Document]]:
        for change in changes:
            change()
        return documents(engine, keys)

    monkeypatch.setattr(forgetting, "documents", late)
    report = face.forget("ada", NONE)
    assert set(report.kept) == {"n0", "n1", "n2", "n3"}
    assert set(rows(filled)) == {"n0", "n1", "n2"}


def test_history_stays_with_what_stays(
    own_store: MemoryStore, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = AgentMemoryStoreService(own_store, clock=clock)
    face = MemoryLifecycle(service).sync
    service.sync.save_memory("ada", "Lives in Lisbon", memory_id="old")
    service.sync.save_memory("ada", "Lives in Porto", memory_id="new", expires_at=clock.now())
    (row,) = own_store.engine.backend.get([(("ada", "semantic"), "old")])
    assert row is not None
    run(own_store.engine.write([put_of(replace(record_of(row), superseded_by="new"))]))
    assert names(face.forget("ada", dry_run=True)) == ["new", "old"]

    def late(engine: StoreEngine, keys: Collection[Key]) -> Operation[dict[Key, Document]]:
        service.sync.update_memory("ada", "new", pinned=True)
        return documents(engine, keys)

    monkeypatch.setattr(forgetting, "documents", late)
    report = face.forget("ada")
    assert (names(report), report.kept, report.remaining) == ([], ["new", "old"], 2)


def test_a_change_in_the_last_moment_is_not_lost(
    own_store: MemoryStore, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = AgentMemoryStoreService(own_store, clock=clock)
    face, engine, write = MemoryLifecycle(service).sync, own_store.engine, own_store.engine.write

    def before_the_write(change: Callable[[], object]) -> None:
        def late(batch: Sequence[Write], **options: Any) -> Operation[list[int]]:
            monkeypatch.setattr(engine, "write", write)
            change()
            return write(batch, **options)

        monkeypatch.setattr(engine, "write", late)

    for name in ("m0", "m1"):
        service.sync.save_memory("ada", "tea", memory_id=name)
    before_the_write(lambda: service.sync.update_memory("ada", "m0", "changed"))
    report = face.forget("ada", NONE)
    assert (names(report), report.kept) == (["m1"], ["m0"])
    clock.advance(timedelta(days=100))
    before_the_write(lambda: face.restore("ada", ["m1"]))
    assert face.forget("ada").erased == []
    assert set(rows(service)) == {"m0", "m1"}


def test_pins_protect_until_they_are_taken_off(filled: AgentMemoryStoreService) -> None:
    face = MemoryLifecycle(filled).sync
    assert filled.sync.update_memory("ada", "m0", pinned=True)
    assert filled.sync.recall_memories("ada", "tea facts")[0].value["pinned"]
    assert "m0" not in names(face.forget("ada", NONE))
    assert filled.sync.update_memory("ada", "m0", pinned=False)
    assert names(face.forget("ada", NONE)) == ["m0"]


def test_vectors_go_along_and_exports_hold_all(own_store: MemoryStore, tmp_path: Path, clock: FrozenClock) -> None:
    own_store.close()
    with (
        open_store("memory://", embeddings=HashingEmbeddings()) as store,
        open_store("memory://", embeddings=None) as to,
    ):
        service = AgentMemoryStoreService(store, clock=clock)
        service.sync.save_memory("ada", "green tea", memory_id="tea")
        service.sync.recall_memories("ada", "tea")
        backend, face = store.engine.backend, MemoryLifecycle(service).sync

        def state() -> list[Any]:
            return [
                (change[1:], backend.tokens([(("ada", "semantic"), change.key)]))
                for change in backend.changes(("ada", "semantic"), 0)
            ]

        before = state()
        assert before[0][0][3].vector
        face.forget("ada", NONE)
        assert store.engine.embedder is not None
        assert backend.pending(store.engine.embedder.fingerprint, 10) == []
        export_store(backend, tmp_path / "all.jsonl", user_ids=["ada"], with_vectors=True)
        face.restore("ada")
        assert state() == before
        import_store(tmp_path / "all.jsonl", to.engine.backend)
        copied = MemoryLifecycle(AgentMemoryStoreService(to, clock=clock)).sync
        assert copied.restore("ada").restored == ["tea"]
        assert copied.usage("ada")[0].count == 1


class TestUsers:
    def test_hostile_ids_are_kept_apart(self, own_store: BaseStore, clock: FrozenClock) -> None:
        service = AgentMemoryStoreService(own_store, clock=clock)
        face = MemoryLifecycle(service).sync
        owners: list[str] = []
        for user in HOSTILE[::4]:
            try:
                service.sync.save_memory(user, "own", memory_id="same")
            except InvalidId:
                for refused in (face.forget, face.restore, face.forgotten, face.usage):
                    with pytest.raises(InvalidId):
                        refused(user)
            else:
                service.sync.recall_memories(user, "")
                owners.append(str(user))
        assert len(owners) > 15
        for done, user in enumerate(owners, 1):
            assert [one.count for one in face.usage(user)] == [1]
            assert names(face.forget(user, NONE)) == ["same"]
            left = [count_user_memories(own_store, other)["total"] for other in owners]
            assert left == [0] * done + [1] * (len(owners) - done)
        for user in owners[::2]:
            assert face.restore(user, ["same"]).restored == ["same"]
        assert [len(face.forgotten(user)) for user in owners] == [at % 2 for at in range(len(owners))]
        assert sorted(run(users_of(service.scope))) == sorted(owners)

    def test_no_agent_sees_how_another_one_uses_its_own(self, own_store: BaseStore, clock: FrozenClock) -> None:
        for agent in ("planner", "coder"):
            service = AgentMemoryStoreService(own_store, agent_name=agent, clock=clock)
            service.sync.save_memory("ada", agent, "skill", memory_id="same")
            for _ in agent:
                service.sync.recall_memories("ada", "", 5)
        usage = [lifecycle(own_store, clock, agent).usage("ada") for agent in ("planner", "coder", None)]
        assert [[(one.document.content, one.count) for one in found] for found in usage] == [
            [("planner", 7)],
            [("coder", 5)],
            [],
        ]


def test_rounds_forget_for_all_users_when_it_is_time(own_store: MemoryStore, clock: FrozenClock) -> None:
    service = AgentMemoryStoreService(own_store, clock=clock)
    for user in ("ada", "bob@example.com"):
        service.sync.save_memory(user, "tea", expires_at=clock.now())
    odd = Put(namespace=("~odd!", "semantic"), key="x", value="{}", updated_at=clock.now())
    newer = Put(
        namespace=("eve", "semantic"), key="x", value='{"content": "x", "schema_version": 99}', updated_at=clock.now()
    )
    run(service.scope.engine.write([odd, newer]))
    rounds = ForgettingRounds(service.scope, ForgettingPolicy(), 24)
    assert (rounds.run_if_due(), rounds.run_if_due()) == (2, 0)
    assert ForgettingRounds(service.scope, NONE, None).run_if_due() == 0
    own_store.close()
    assert ForgettingRounds(service.scope, NONE, 24).run_if_due() == 0


def test_an_applications_own_values_are_left_alone(own_store: MemoryStore, clock: FrozenClock) -> None:
    service = AgentMemoryStoreService(own_store, clock=clock)
    own_store.put(("ada", "semantic"), "mine", {"colour": "red"})
    own_store.put(("ada", "usage", "semantic"), "orphan", {"count": "many", "last": 1})
    assert lifecycle(own_store, clock).forget("ada", NONE).forgotten == []
    assert own_store.get(("ada", "semantic"), "mine") is not None
    assert own_store.get(("ada", "usage", "semantic"), "orphan") is None
    assert service.sync.save_memory("ada", "tea")


async def test_many_at_once_with_progress_and_without_waiting(own_store: MemoryStore, clock: FrozenClock) -> None:
    service = AgentMemoryStoreService(own_store, clock=clock)
    over = clock.now() - YEAR
    await asyncio.gather(*(service.save_memory("ada", f"memory {number}", expires_at=over) for number in range(230)))
    seen: list[tuple[int, int]] = []
    report = await MemoryLifecycle(service).forget("ada", progress=lambda done, total: seen.append((done, total)))
    assert (len(report.forgotten), seen) == (230, [(100, 230), (200, 230), (230, 230)])
    assert len((await MemoryLifecycle(service).restore("ada")).restored) == 230
