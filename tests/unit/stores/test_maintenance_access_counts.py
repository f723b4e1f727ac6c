"""Counting recalls: in batches, in nobody's way, and gone with the memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from flaky import FlakyBackend

from inference_core import AgentMemoryStoreService, MemoryLifecycle, MemoryStore, open_store
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import SEALS
from inference_core.services.user_memories import purge_user_memories
from inference_core.stores import maintenance as accesses
from inference_core.stores.backend import PageRequest, Put, Remove
from inference_core.stores.engine import StoreEngine
from inference_core.testing import FrozenClock

PATIENCE_S = 20.0
HOME, FIGURES = ("ada", "semantic"), ("ada", "usage", "semantic")


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with open_store("memory://", embeddings=None, access_interval_s=600) as opened:
        yield opened


def service_on(store: MemoryStore, clock: FrozenClock | None = None, **options: Any) -> AgentMemoryStoreService:
    service = AgentMemoryStoreService(store, clock=clock or FrozenClock(), **options)
    service.sync.save_memory("ada", "likes tea", memory_id="tea")
    service.sync.save_memory("ada", "likes cars", memory_id="cars")
    return service


def counts(store: MemoryStore) -> dict[str, int]:
    return {row.key: row.value["count"] for row in store.engine.backend.page(PageRequest([FIGURES], limit=100))}


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def test_a_recall_writes_nothing_and_is_counted_later(store: MemoryStore, clock: FrozenClock) -> None:
    service = service_on(store, clock)
    heads = store.engine.backend.heads([HOME])
    before = service.sync.get_memory("ada", "tea")
    clock.advance(timedelta(days=1))
    service.sync.recall_memories("ada", "tea", 1)
    service.sync.recall_memories("ada", "", 1)
    service.sync.format_context_for_prompt("ada", "tea", max_memories=3)
    service.sync.get_user_context("ada", ["general"])
    for query in ("tea", ""):
        service.sync.recall_memories("ada", query, 1, ignore_session=True)
    assert counts(store) == {}
    found = MemoryLifecycle(service).sync.usage("ada")
    assert [(one.document.id, one.count, one.last) for one in found] == [
        ("tea", 3, clock.now()),
        ("cars", 2, clock.now()),
    ]
    assert service.sync.get_memory("ada", "tea") == before
    assert store.engine.backend.heads([HOME]) == heads


def test_notes_are_written_when_many_wait_from_time_to_time_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    monkeypatch.setattr(accesses, "MEMORIES_AT_ONCE", 2)
    with open_store(sqlite_url, embeddings=None, access_interval_s=600) as store:
        service = service_on(store)
        service.sync.recall_memories("ada", "", 2)
        # Not only until they are written: what is noted before the portion has ended is written with it.
        until(lambda: [one.runs for one in store.engine.maintenance.report() if one.name == "access counts"] == [1])
        assert counts(store) == {"tea": 1, "cars": 1}
        service.sync.recall_memories("ada", "tea", 1)
        assert counts(store) == {"tea": 1, "cars": 1}
    with open_store(sqlite_url, embeddings=None, access_interval_s=0.01) as store:
        assert counts(store) == {"tea": 2, "cars": 1}
        service = AgentMemoryStoreService(store)
        service.sync.recall_memories("ada", "tea", 1)
        until(lambda: counts(store) == {"tea": 3, "cars": 1})
    store.engine.accesses.note([(HOME, "tea")], FrozenClock().now())


def test_it_can_be_switched_off(store: MemoryStore) -> None:
    service_on(store, counts_access=False).sync.recall_memories("ada", "tea")
    store.engine.accesses.flush()
    assert counts(store) == {}


def test_figures_go_with_the_memory(store: MemoryStore) -> None:
    service = service_on(store)
    service.sync.recall_memories("ada", "", 2)
    store.engine.accesses.flush()
    service.sync.recall_memories("ada", "", 2)
    service.sync.delete_memory("ada", "tea")
    assert list(counts(store)) == ["cars"]
    store.engine.accesses.flush()
    assert counts(store) == {"cars": 2}
    service.sync.update_memory("ada", "cars", memory_type="skill")
    assert counts(store) == {}
    service.sync.recall_memories("ada", "", 2)
    store.engine.accesses.flush()
    assert purge_user_memories(store, "ada") == 1
    assert [name for name in store.engine.backend.namespaces() if name[0] != SEALS] == []


def test_many_processes_lose_no_count(store: MemoryStore) -> None:
    service_on(store)
    now = FrozenClock().now()
    engine = store.engine
    others = [accesses.AccessCounts(engine.backend, engine._writer) for _ in range(4)]

    def count(one: accesses.AccessCounts) -> None:
        for _ in range(10):
            one.note([(HOME, "tea")], now)
            one.flush()

    threads = [threading.Thread(target=count, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in others:
        one.flush()
    assert counts(store) == {"tea": 40}


def test_figures_that_others_write_meanwhile_are_added_to(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were read before the transaction, and five lost races put the figures off."""
    service_on(store)
    backend = store.engine.backend
    apply = backend.apply

    def outrun(batches: Any) -> Any:
        put = Put(namespace=FIGURES, key="tea", value='{"count": 7, "last": 3}', updated_at=FrozenClock().now())
        apply([[put]])
        return apply(batches)

    with monkeypatch.context() as patched:
        patched.setattr(backend, "apply", outrun)
        store.engine.accesses.note([(HOME, "tea")], FrozenClock().now())
        store.engine.accesses.flush()
    assert counts(store) == {"tea": 8}


def test_while_the_database_is_away_notes_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    backend = FlakyBackend()
    store = MemoryStore(StoreEngine(backend, access_interval_s=0.01))
    with store:
        service = service_on(store)
        service.sync.recall_memories("ada", "tea", 1)
        until(lambda: counts(store) == {"tea": 1})
        backend.fault = "down"
        store.engine.accesses.note([(HOME, "tea"), (("bob", "semantic"), "x")], FrozenClock().now())
        with pytest.raises(StoreUnavailable):
            store.engine.accesses.flush()
        until(lambda: "'access counts' failed (StoreUnavailable)" in caplog.text)
        backend.heal()
        until(lambda: counts(store) == {"tea": 2})


def test_notes_are_bounded_and_of_memories_only(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesses, "_MOST_NOTED", 2)
    now = FrozenClock().now()
    noted = store.engine.accesses
    noted.note(
        [(("ada", "jobs"), "j"), (("semantic",), "x"), (HOME, "tea"), (HOME, "cars"), (HOME, "more"), (HOME, "tea")],
        now,
    )
    assert {key: usage.count for (_, key), usage in noted._noted["ada"].items()} == {"tea": 2, "cars": 1}


def test_the_versions_of_a_write_are_those_of_its_own_rows(store: MemoryStore) -> None:
    batch = [Remove(namespace=HOME, key="x"), Remove(namespace=FIGURES, key="x"), Remove(namespace=HOME, key="y")]
    archive = ("ada", "forgotten", "semantic")
    added = [(one.namespace, one.key) for one in accesses.with_sidecars(batch)[3:]]
    assert added == [(archive, "x"), (FIGURES, "y"), (archive, "y")]
