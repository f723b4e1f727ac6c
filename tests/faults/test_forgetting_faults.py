"""A process that dies at any point of forgetting, restoring or erasing loses nothing, and the next run finishes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from flaky import effects_of, run_with_fault
from langgraph.store.base import BaseStore, Op, PutOp
from langgraph.store.memory import InMemoryStore

from inference_core import AgentMemoryStoreService, ForgettingPolicy, MemoryLifecycle, open_store
from inference_core.errors import StoreUnavailable
from inference_core.lifecycle.forgetting import forget, restore
from inference_core.testing import FrozenClock

ALL = {"m0", "m1", "m2"}
NONE = ForgettingPolicy(max_memories={"all": 0})


class TornStore(InMemoryStore):
    """A store without transactions, which dies after ``left`` of the writes that it is asked for."""

    left: int | None = None

    def batch(self, ops: Iterable[Op]) -> list[Any]:
        done: list[Any] = []
        for op in ops:
            if isinstance(op, PutOp) and self.left is not None:
                if self.left == 0:
                    raise StoreUnavailable("died")
                self.left -= 1
            done += super().batch([op])
        return done


def filled(store: BaseStore, clock: FrozenClock) -> AgentMemoryStoreService:
    service = AgentMemoryStoreService(store, clock=clock, timeout=None)
    for name in sorted(ALL):
        service.sync.save_memory("ada", f"tea {name}", memory_id=name)
    service.sync.recall_memories("ada", "tea", 2)
    return service


def living(service: AgentMemoryStoreService) -> list[str]:
    return sorted(one.id for one in service.sync.list_memories("ada")[0])


def archived(service: AgentMemoryStoreService) -> list[str]:
    return sorted(one.document.id for one in MemoryLifecycle(service).sync.forgotten("ada"))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_fault_at_any_wait(*, after: bool) -> None:
    clock = FrozenClock()
    with open_store("memory://", embeddings=None) as store:
        total = effects_of(forget(filled(store, clock).scope, "ada", NONE))
    assert total > 5
    for at in range(total):
        with open_store("memory://", embeddings=None) as store:
            service = filled(store, clock)
            with pytest.raises(KeyboardInterrupt):
                run_with_fault(forget(service.scope, "ada", NONE), at, KeyboardInterrupt(), after=after)
            assert sorted([*living(service), *archived(service)]) == sorted(ALL)
            MemoryLifecycle(service).sync.forget("ada", NONE)
            assert (living(service), archived(service)) == ([], sorted(ALL))
            waits = 0
            while living(service) != sorted(ALL):
                try:
                    run_with_fault(restore(service.scope, "ada"), waits, KeyboardInterrupt(), after=after)
                except KeyboardInterrupt:
                    assert sorted([*living(service), *archived(service)]) == sorted(ALL)
                waits += 1
            assert archived(service) == []


def test_a_store_without_transactions_torn_after_any_write() -> None:
    for writes in range(12):
        clock, store = FrozenClock(), TornStore()
        service = filled(store, clock)
        face = MemoryLifecycle(service).sync
        before = {one.id: one.value for one in service.sync.list_memories("ada")[0]}
        service.scope.engine.accesses.flush()
        for torn in (partial(face.forget, "ada", NONE), partial(face.restore, "ada")):
            store.left = writes
            try:
                torn()
            except StoreUnavailable:
                assert {*living(service), *archived(service)} == ALL
            store.left = None
        service.sync.save_memory("ada", "other", memory_id="other")
        face.forget("ada")
        both = {*living(service)} & {*archived(service)}
        assert both == set()
        clock.advance(timedelta(seconds=1))
        face.restore("ada")
        after = {one.id: one.value for one in service.sync.list_memories("ada")[0] if one.id != "other"}
        assert after == before
