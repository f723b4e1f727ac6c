"""Whatever the memories and the policy: pins hold, budgets are kept, a dry run tells the truth, restoring undoes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core import (
    AgentMemoryStoreService,
    ForgettingPolicy,
    MemoryLifecycle,
    MemoryRecord,
    MemoryType,
    open_store,
)
from inference_core.effects import run
from inference_core.memory.text import text_tokens
from inference_core.memory.types import get_category_for_type
from inference_core.services.operations.scope import put_of, record_of
from inference_core.stores.backend import PageRequest, Row
from inference_core.testing import FrozenClock

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
KINDS = ["facts", "context", "skill"]
IDS = [f"m{at}" for at in range(8)]
days = st.integers(-2, 300)


@st.composite
def memories(draw: st.DrawFn) -> list[MemoryRecord]:
    found: list[MemoryRecord] = []
    for name in draw(st.lists(st.sampled_from(IDS), unique=True)):
        kind = MemoryType(draw(st.sampled_from(KINDS)))
        category = get_category_for_type(kind)
        owner = () if kind is MemoryType.FACTS else draw(st.sampled_from([(), ("planner",), ("coder",)]))
        written = NOW - timedelta(days=draw(days))
        expiry: int | None = draw(st.none() | days)
        found.append(
            MemoryRecord(
                id=name,
                content=draw(st.sampled_from(["x", "y" * 50])),
                memory_type=kind,
                category=category,
                namespace=("ada", category.value, *owner),
                created_at=written,
                updated_at=written,
                importance=draw(st.sampled_from([0.0, 0.5, 1.0])),
                pinned=draw(st.booleans()),
                expires_at=None if expiry is None else NOW + timedelta(days=expiry),
                superseded_by=draw(st.none() | st.sampled_from(IDS)),
            )
        )
    return found


budgets = st.dictionaries(st.sampled_from(["all", *KINDS]), st.integers(0, 6), max_size=2)
policies = st.builds(
    ForgettingPolicy,
    expired=st.booleans(),
    half_life_days=st.none() | st.sampled_from([1.0, 30.0]),
    max_memories=budgets,
    max_tokens=budgets.map(lambda found: {kind: limit * 10 for kind, limit in found.items()}),
)


def rows(service: AgentMemoryStoreService) -> dict[Any, Row]:
    engine = service.scope.engine
    namespaces = [
        name for name in engine.backend.namespaces(("ada",)) if name[1] not in ("usage", "forgotten", "~audit")
    ]
    return {(row.namespace, row.key): row for row in engine.backend.page(PageRequest(namespaces, limit=100))}


def is_kept(left: list[MemoryRecord], budget: dict[str, int], *, tokens: bool) -> bool:
    for kind, limit in budget.items():
        group = [one for one in left if kind in ("all", one.memory_type.value)]
        size = sum(text_tokens(one.content) if tokens else 1 for one in group)
        if size > limit and not all(one.pinned for one in group):
            return False
    return True


@given(records=memories(), policy=policies, recalled=st.sets(st.sampled_from(IDS)))
@examples(60)
def test_forgetting_and_restoring(records: list[MemoryRecord], policy: Any, recalled: set[str]) -> None:
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, clock=FrozenClock(NOW))
        face = MemoryLifecycle(service).sync
        if records:
            run(store.engine.write([put_of(one) for one in records]))
        store.engine.accesses.note([(one.namespace, one.id) for one in records if one.id in recalled], NOW)
        before = rows(service)
        dry = face.forget("ada", policy, dry_run=True)
        assert rows(service) == before
        done = face.forget("ada", policy)
        assert (done.forgotten, done.kept, done.remaining) == (dry.forgotten, [], dry.remaining)
        gone = {one.key for one in done.forgotten}
        left = rows(service)
        assert set(left) == set(before) - gone
        assert all(left[key] == before[key] for key in left)
        assert not any(one.record.pinned for one in done.forgotten)
        kept = [record_of(row) for row in left.values()]
        assert is_kept(kept, policy.max_memories, tokens=False)
        assert is_kept(kept, policy.max_tokens, tokens=True)
        assert face.forget("ada", policy).forgotten == []
        assert len(face.restore("ada").restored) == len(gone)
        after = rows(service)
        assert {key: (row.value, row.created_at, row.updated_at) for key, row in after.items()} == {
            key: (row.value, row.created_at, row.updated_at) for key, row in before.items()
        }
