"""Limits of what a user may store hold exactly on every store, and what does not grow is always possible."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from databases import database
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from outbox_support import Scripted, contents, is_listed, pipeline_on, put, said, step

from inference_core import AgentMemoryStoreService, MemoryLifecycle, Quota, get_memory_tools, open_store
from inference_core.agents.identity import MemoryBinding
from inference_core.effects import run
from inference_core.errors import QuotaExceeded, StoreError, VersionConflict
from inference_core.ingestion.worker import BatchOutcome
from inference_core.memory.namespaces import QUOTA
from inference_core.memory.quota import counts_of, counts_place
from inference_core.services.user_memories import purge_user_memories
from inference_core.stores.backend import Put
from inference_core.stores.factory import open_backend
from inference_core.stores.rules import quotas
from inference_core.stores.rules.write_rules import rules_of
from inference_core.testing import FrozenClock
from inference_core.transfer.copying import copy_store
from inference_core.transfer.json_lines import export_store, import_store

SIZES = Quota(max_memories="6,agent=3")
STORES = ("sqlite", "postgres", "redis", "file", "memory", "sealed", "langgraph")


@pytest.fixture(params=STORES)
def limits(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[BaseStore, dict[str, Any]]]:
    """A store of each kind with a quota, and what a service on it is given."""
    if request.param == "langgraph":
        yield InMemoryStore(), {"quota": SIZES}
        return
    is_sealed = request.param == "sealed"
    given: dict[str, Any] = {"keys": f"file:///{tmp_path}/keys.json", "encryption_key": bytes(32)} if is_sealed else {}
    with (
        database("sqlite" if is_sealed else request.param, tmp_path) as url,
        open_store(url, embeddings=None, quota=SIZES, **given) as store,
    ):
        yield store, {}


def counted(store: BaseStore, user: str = "ada", **given: Any) -> dict[str, int]:
    """How many memories are counted, by agent."""
    engine = AgentMemoryStoreService(store, **given).scope.engine
    (row,) = run(engine.get([counts_place(user)]))
    return {agent: memories for agent, (memories, _) in counts_of(row.value).items()} if row else {}


def test_users_and_their_agents_have_as_many_as_they_may(limits: tuple[BaseStore, dict[str, Any]]) -> None:
    """Nothing bounded what a loop could store."""
    store, given = limits
    work, home = (AgentMemoryStoreService(store, agent_name=name, **given) for name in ("work", "home"))
    ids = [work.sync.save_memory("ada", f"Fact {number}", "facts") for number in range(3)]
    with pytest.raises(QuotaExceeded, match="3 of 3 memories of this agent; update or forget memories; do not retry"):
        work.sync.save_memory("ada", "Fact 3", "facts")
    for number in range(3):
        home.sync.save_memory("ada", f"Note {number}", "interaction")
    with pytest.raises(QuotaExceeded):
        home.sync.save_memory("ada", "Note 3", "interaction")
    assert counted(store, **given) == {"": 6, "work": 3, "home": 3}

    # What does not make more of it stays possible.
    assert work.sync.save_memory("ada", "Fact 0", "facts", tags=["x"]).was_stored
    assert work.sync.update_memory("ada", ids[0], "Another fact")
    assert work.sync.save_memory("ada", "A new text", "facts", memory_id=ids[0]) == ids[0]
    assert len(work.sync.recall_memories("ada", "fact")) == 2
    work.sync.save_memory("bob", "Fact of another user", "facts")
    assert work.sync.delete_memory("ada", ids[1])
    assert work.sync.save_memory("ada", "There is room now", "facts")
    assert counted(store, **given)[""] == 6
    with pytest.raises(QuotaExceeded):
        MemoryLifecycle(work).sync.restore("ada")
    assert purge_user_memories(store, "ada") >= 6
    assert counted(store, **given) == {}
    assert work.sync.save_memory("ada", "Begins anew", "facts")
    assert counted(store, **given) == {"": 1, "work": 1}


def test_bytes_count_text_tags_and_metadata_as_stored() -> None:
    with open_store("memory://", embeddings=None, quota=Quota(max_bytes=1500)) as store:
        service = AgentMemoryStoreService(store).sync
        memory_id = service.save_memory("ada", "x" * 800)
        with pytest.raises(QuotaExceeded, match=r"of 1,500 bytes"):
            service.save_memory("ada", "y" * 800)
        with pytest.raises(QuotaExceeded):
            service.update_memory("ada", memory_id, extra_metadata={"note": "z" * 900})
        assert service.update_memory("ada", memory_id, "x" * 799)


def test_counts_are_verified_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without limits, or an import, does not count what it writes."""
    url = f"sqlite:///{tmp_path}/memory.db"
    quota = Quota(max_memories=4)
    with (
        open_store(url, embeddings=None) as free,
        open_store(url, embeddings=None, quota=quota, tells=False) as bounded,
    ):
        uncounted, service = AgentMemoryStoreService(free).sync, AgentMemoryStoreService(bounded).sync
        first = service.save_memory("ada", "First")
        for number in range(3):
            uncounted.save_memory("ada", f"Note {number}")
        assert counted(bounded) == {"": 1}
        monkeypatch.setattr(quotas, "_VERIFIED_S", 0.0)
        with pytest.raises(QuotaExceeded, match="4 of 4"):
            service.save_memory("ada", "One too many")
        assert counted(bounded) == {"": 4}
        monkeypatch.undo()
        uncounted.delete_memory("ada", first)
        monkeypatch.setattr(quotas, "_REFUSED_S", 0.0)
        assert service.save_memory("ada", "There is room, which a look at the rows shows")
        monkeypatch.setattr(quotas, "_MOST_KNOWN", 0)
        service.save_memory("bob", "Somebody else's")


def test_regression_what_has_expired_leaves_room_on_encrypted_stores(tmp_path: Path, clock: FrozenClock) -> None:
    """An expired memory still counted once it was removed or replaced, so for a minute saves were refused."""
    given: dict[str, Any] = {"keys": f"file:///{tmp_path}/keys.json", "encryption_key": bytes(32), "clock": clock}
    url = f"sqlite:///{tmp_path}/memory.db"
    with open_store(url, embeddings=None, quota=Quota(max_memories=2), ttl={"default_ttl": 60}, **given) as store:
        memory = AgentMemoryStoreService(store, clock=clock).sync
        for name in ("rome", "oslo"):
            memory.save_memory("ada", f"Lived in {name}", "facts", memory_id=name)
        clock.advance(timedelta(hours=2))
        memory.save_memory("ada", "Lives in Rome", "facts", memory_id="rome")
        run(store.engine.remove_expired())
        assert counted(store) == {"": 1}
        memory.save_memory("ada", "Lives in Oslo", "facts")


def test_counts_that_others_keep_changing_are_left_to_them(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recount whose row is written by others meanwhile gives up; the write fails, and nothing is stored."""
    backend = open_backend("memory://")
    apply = backend.apply
    bounded = rules_of(backend, Quota(max_memories=4))

    def refused(batches: Any) -> list[Any]:
        is_count = [len(batch) == 1 and batch[0].namespace == ("ada", QUOTA) for batch in batches]
        return [VersionConflict("busy")] if all(is_count) else apply(batches)

    monkeypatch.setattr(backend, "apply", refused)
    put_one = Put(namespace=("ada", "semantic"), key="a", value="{}", updated_at=clock.now())
    (outcome,) = bounded.apply([[put_one]])
    assert isinstance(outcome, VersionConflict)
    backend.close()


def test_writes_a_minute_are_limited_and_deletes_and_reads_are_not(clock: FrozenClock) -> None:
    with open_store("memory://", embeddings=None, quota=Quota(writes_per_minute=3)) as store:
        service = AgentMemoryStoreService(store, clock=clock).sync
        ids = [service.save_memory("ada", f"Fact {number}") for number in range(2)]
        assert service.update_memory("ada", ids[0], "Changed")
        for refused in (lambda: service.save_memory("ada", "More"), lambda: service.update_memory("ada", ids[0], "x")):
            with pytest.raises(QuotaExceeded, match="the limit is 3 writes a minute; retry in a minute"):
                refused()
        assert service.delete_memory("ada", ids[1])
        assert service.save_memory("bob", "Another user")
        clock.advance(timedelta(seconds=20))
        assert service.save_memory("ada", "After 20 seconds there is one more")


def test_the_tool_answers_finally_and_warns_before(clock: FrozenClock) -> None:
    """A model retries a failure that does not say that it is final."""
    with open_store("memory://", embeddings=None, quota=Quota(max_memories=7)) as store:
        (save,) = get_memory_tools(
            AgentMemoryStoreService(store, clock=clock), "ada", include_tools=["save_memory_store"]
        )
        answers = [save.invoke({"content": f"Fact {number}"}) for number in range(8)]
        assert all("full" not in answer for answer in answers[:5])
        assert answers[5].endswith("Memory is nearly full (6 of 7 memories): update or delete what is no longer needed")
        assert answers[7] == (
            "✗ Failed to save memory: Memory is full: 7 of 7 memories; update or forget memories; do not retry"
        )


def test_messages_of_a_full_user_wait_without_asking_the_model_again(clock: FrozenClock) -> None:
    """They would have become dead letters, after three calls of the model for each."""
    with open_store("memory://", embeddings=None, quota=Quota(max_memories=2), clock=clock) as store:
        model = Scripted()
        pipeline = pipeline_on(store, model, clock, backoff_s=0.0)
        service = AgentMemoryStoreService(store, clock=clock).sync
        ids = [service.save_memory("ada", "First")]
        put(pipeline.outbox, said("one"), said("two"))
        assert step(pipeline).outcome is BatchOutcome.LATER
        assert step(pipeline).outcome is BatchOutcome.NOTHING
        clock.advance(timedelta(minutes=16))
        assert step(pipeline).outcome is BatchOutcome.LATER
        assert len(model.asked) == 1
        ids.append(service.save_memory("ada", "Second"))
        put(pipeline.outbox, said("three", session="t"))
        clock.advance(timedelta(minutes=16))
        for memory_id in ids:
            service.delete_memory("ada", memory_id)
        assert step(pipeline).outcome is BatchOutcome.DONE
        assert contents(store) == ["one", "two"]
        assert step(pipeline).outcome is BatchOutcome.LATER
        assert len(model.asked) == 1, "A user without any room costs no call of the model"
        assert is_listed(pipeline.outbox)


def test_an_import_and_a_copy_leave_out_what_has_no_room(tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    with open_store("memory://", embeddings=None, quota=Quota(max_memories=9)) as store:
        service = AgentMemoryStoreService(store).sync
        for user, number in [("ada", 5), ("bob", 2)]:
            for at in range(number):
                service.save_memory(user, f"Fact {at}")
        source = store.engine.backend
        assert export_store(source, file).written == 7, "counts are not exported"
        for at, fill_from in enumerate([partial(import_store, file), partial(copy_store, source)]):
            target = open_backend(f"sqlite:///{tmp_path}/{at}.db")
            rules_of(target, Quota(max_memories=3))
            for _ in range(2):
                report = fill_from(target)
                assert (report.full, report.written + report.already_there) == (2, 5)
            target.close()


def test_a_run_on_a_store_of_langgraph_takes_the_quota_of_its_middleware() -> None:
    binding = MemoryBinding(quota=Quota(max_memories=1), agent_name="work")
    store = InMemoryStore()
    service = AgentMemoryStoreService(store, quota=Quota(max_memories=1)).sync
    assert binding.scope(store).engine is service.scope.engine
    service.save_memory("ada", "First")
    with pytest.raises(StoreError):
        asyncio.run(AgentMemoryStoreService(store, quota=Quota(max_memories=1)).save_memory("ada", "Second"))
