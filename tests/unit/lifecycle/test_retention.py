"""Retention removes exactly what a dry run lists, whatever lies beside it."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from cli_support import Capture, answer, text

from inference_core import AgentMemoryStoreService, Space, open_store
from inference_core.effects import run
from inference_core.errors import InvalidInput
from inference_core.lifecycle.retention import RetentionPolicy, RetentionRounds, retain
from inference_core.services.operations.receipts import RECEIPTS
from inference_core.stores.backend import Put
from inference_core.testing import FrozenClock

DAY = timedelta(days=1)


def test_a_policy_is_checked() -> None:
    assert RetentionPolicy.parse("interaction=365, archive=30,").days == {"interaction": 365, "archive": 30}
    for wrong in ("secrets=3", "facts=-1", "facts", "facts=soon", "facts=nan"):
        with pytest.raises(InvalidInput):
            RetentionPolicy.parse(wrong)
    with pytest.raises(InvalidInput, match="basis is one of created, last_used, valid_to"):
        RetentionPolicy(basis="age")  # pyright: ignore[reportArgumentType]


def keys(found: Any) -> set[str]:
    return {one.key for one in found}


def test_a_type_counts_before_its_category_and_that_before_all(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        for kind in ("facts", "goals", "interaction"):
            service.sync.save_memory("ada", f"About {kind}", kind, memory_id=kind, pinned=True)
        clock.advance(10 * DAY)
        policy = RetentionPolicy(days={"facts": 20, "semantic": 5, "all": 30})
        assert keys(run(retain(service.scope, "ada", policy))) == {"goals"}
        assert run(retain(service.scope, "ada", RetentionPolicy())) == []
        assert run(retain(service.scope, "bob", policy)) == []


def test_memories_count_from_storing_from_use_or_from_their_end(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        end = clock.now() + DAY
        service.sync.save_memory("ada", "Parks the car at the station", memory_id="used")
        service.sync.save_memory("ada", "Ticket number 7", memory_id="over", expires_at=end)
        service.sync.save_memory("ada", "Likes tea", memory_id="idle")
        clock.advance(9 * DAY)
        assert service.sync.recall_memories("ada", "car station", k=1)[0].id == "used"
        clock.advance(3 * DAY)
        for basis, expected in (
            ("created", {"used", "over", "idle"}),
            ("last_used", {"over", "idle"}),
            ("valid_to", {"over"}),
        ):
            policy = RetentionPolicy.parse("all=10", basis)  # pyright: ignore[reportArgumentType]
            assert keys(run(retain(service.scope, "ada", policy, dry_run=True))) == expected


def test_a_dry_run_lists_what_a_run_removes(clock: FrozenClock) -> None:
    """Over random histories: what is listed goes, and nothing else; a memory takes with it what lies beside it."""
    choices = random.Random(7)
    kinds = ("facts", "interaction", "preferences")
    for _ in range(12):
        with open_store("memory://", embeddings=None) as store:
            service = AgentMemoryStoreService(store, clock=clock, deleted_days=90)
            for number in range(12):
                key = f"m{choices.randrange(8)}"
                match choices.randrange(4):
                    case 0:
                        service.sync.delete_memory("ada", key)
                    case 1:
                        service.sync.update_memory("ada", key, f"Text {number}")
                    case _:
                        service.sync.save_memory("ada", f"Said {number}", choices.choice(kinds), memory_id=key)
                clock.advance(choices.randrange(5) * DAY)
            engine = service.scope.engine

            def rows(engine: Any = engine) -> set[tuple[Any, str]]:
                return {(row.namespace, row.key) for row in run(engine.scan(run(engine.namespaces(("ada",)))))}

            chosen = choices.sample((*kinds, "semantic", "archive", "versions"), 3)
            policy = RetentionPolicy(days={kind: choices.randrange(20) for kind in chosen})
            before = rows()
            listed = run(retain(service.scope, "ada", policy, dry_run=True))
            assert rows() == before
            assert [one.to_json() for one in run(retain(service.scope, "ada", policy))] == [
                one.to_json() for one in listed
            ]
            assert not rows() & {(one.namespace, one.key) for one in listed}
            assert run(retain(service.scope, "ada", policy)) == []
            gone = {one.key for one in listed}
            assert {key for _, key in before - rows()} <= gone


def test_the_command_lists_and_removes(sqlite_url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(sqlite_url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Old", "facts", memory_id="m0")
    assert "Would permanently remove 1 row" in text(capsys, "retention", "--days", "facts=0", "--dry-run")
    done = answer(capsys, "retention", "--days", "facts=0")
    assert [(one["user_id"], one["key"], one["kind"]) for one in done["removed"]] == [("ada", "m0", "facts")]
    assert "Permanently removed 0 rows" in text(capsys, "retention", "--days", "facts=0", "--user", "ada")


def test_the_worker_removes_what_is_older_than_the_setting_allows(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    """Retention had to be run by hand."""
    monkeypatch.setenv("AGENT_MEMORY_STORE_URL", sqlite_url)
    monkeypatch.setenv("AGENT_MEMORY_EMBEDDINGS", "none")
    with open_store(sqlite_url, embeddings=None) as store:
        old = AgentMemoryStoreService(store, clock=FrozenClock(datetime(2020, 1, 1, tzinfo=UTC))).sync
        old.save_memory("ada", "Asked for trains", "interaction", memory_id="old")
        old.save_memory("ada", "Lives in Rome", "facts", memory_id="fact")
    text(capsys, "worker", "--once")
    monkeypatch.setenv("AGENT_MEMORY_RETENTION", "interaction=365")
    assert [one["key"] for one in answer(capsys, "retention", "--dry-run")["removed"]] == ["old"]
    assert len(answer(capsys, "list", "--user", "ada")["memories"]) == 2
    text(capsys, "worker", "--once")
    assert [one["id"] for one in answer(capsys, "list", "--user", "ada")["memories"]] == ["fact"]
    monkeypatch.setenv("AGENT_MEMORY_RETENTION", "interaction")
    assert "does not say how many days" in text(capsys, "worker", "--once", code=1)
    assert "does not say how many days" in text(capsys, "retention", code=1)  # a setting is no wrong usage
    monkeypatch.delenv("AGENT_MEMORY_RETENTION")
    assert "AGENT_MEMORY_RETENTION" in text(capsys, "retention", code=2)


def test_rounds_reach_spaces_and_users_with_other_rows_alone_and_tell_what_went(clock: FrozenClock) -> None:
    """A user with nothing but receipts or conversations was never looked at, nor was a space."""
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        service.sync.save_memory(Space("team"), "Deploys on Thursday", memory_id="deploys")
        put = [
            Put(namespace=(user, RECEIPTS), key=f"r{number}", value='{"told": []}', updated_at=clock.now())
            for user in ("bob", "cid")
            for number in range(2)
        ]
        run(store.engine.write([*put, Put(namespace=("own", "items"), key="i", value="{}", updated_at=clock.now())]))
        service.sync.hold("cid", "case 7")
        clock.advance(40 * DAY)
        rounds = RetentionRounds(service.scope, RetentionPolicy(days={"all": 30, "receipts": 30}))
        assert rounds.run_if_due() == 3
        assert rounds.run_if_due() == 0, "not before the next day"
        assert RetentionRounds(service.scope, RetentionPolicy()).run_if_due() == 0
        (event,) = service.sync.audit("bob")
        assert (event.operation, event.changes) == ("retention", ())
        assert re.fullmatch("2 receipts; [0-9a-f]{32}", event.reason or "")
        (event, *_) = service.sync.audit(Space("team"))
        assert (event.operation, event.changes[0].key) == ("retention", "deploys")
        assert len(run(store.engine.scan([("cid", RECEIPTS)]))) == 2


def test_regression_a_memory_that_is_updated_just_before_its_removal_stays(clock: FrozenClock) -> None:
    """Its version was compared when it was read, and not by the removal: what the user had just written was gone."""
    with open_store("memory://", embeddings=None, clock=clock) as store:
        service = AgentMemoryStoreService(store, clock=clock)
        for key in ("renewed", "old"):
            service.sync.save_memory("ada", f"The {key} text", memory_id=key)
        clock.advance(40 * DAY)
        engine = service.scope.engine
        write, is_first = type(engine).write, [True]

        async def meanwhile(engine: Any, batch: Any, cause: Any = None, **options: Any) -> Any:
            if is_first and cause and cause.operation == "retention":
                is_first.clear()
                service.sync.update_memory("ada", "renewed", "What the user has just written")
            return await write(engine, batch, cause, **options)

        policy = RetentionPolicy(days={"all": 30}, basis="last_used")
        with patch.object(type(engine), "write", meanwhile):
            assert keys(run(retain(service.scope, "ada", policy))) == {"old"}
        assert not is_first
        assert [one.content for one in service.sync.list_memories("ada")[0]] == ["What the user has just written"]
