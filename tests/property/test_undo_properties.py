"""Whatever was done to memories by any operation, undoing it leaves them as they were, byte for byte.

By a session, decisions about what waited and earlier undos included; or by anybody since a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core import AgentMemoryStoreService, ForgettingPolicy, MemoryLifecycle, MemoryStore, open_store
from inference_core.effects import run
from inference_core.errors import ConfirmationNeeded, InvalidInput, UntrustedWrite
from inference_core.ingestion.undo import UndoReport, undo_changes
from inference_core.memory.audit import Actor
from inference_core.memory.namespaces import encode_label
from inference_core.memory.trust import MemorySource, Origin
from inference_core.stores.backend import Row
from inference_core.stores.rules.versions import is_versioned
from inference_core.testing import FrozenClock

IDS = [f"m{at}" for at in range(4)]
TEXTS = ["green tea", "black tea", "coffee", "a short answer"]
KINDS = ["facts", "preferences", "interaction", "skill"]


class History:
    """What two sessions do to the memories of users, each user for a run of its own."""

    def __init__(self, store: MemoryStore, clock: FrozenClock, user: str) -> None:
        self.clock, self.user = clock, user
        self.service = AgentMemoryStoreService(store, agent_name="planner", clock=clock)
        self.lifecycle = MemoryLifecycle(self.service).sync
        self.scopes = {
            thread: replace(self.service.scope, actor=Actor(kind="agent", agent="planner", thread_id=thread))
            for thread in ("first", "second")
        }

    def decide(self, chance: random.Random, thread: str, decision: Callable[..., list[str]]) -> None:
        """The user approves or rejects what the session ``thread`` has offered; who decides is not in the session."""
        if waiting := self.service.sync.list_pending(self.user, session_id=thread):
            decision(self.user, chance.choice(waiting).id)

    def step(self, chance: random.Random, thread: str, *, undoes: bool) -> None:
        """One operation of the session ``thread``."""
        self.clock.advance(timedelta(seconds=chance.choice([0, 1, 60])))
        page = MemorySource(origin=Origin.WEB, thread_id=thread)
        service = AgentMemoryStoreService(
            self.service.store, agent_name="planner", clock=self.clock, actor=self.scopes[thread].actor
        )
        memory, lifecycle = service.sync, MemoryLifecycle(service).sync
        key, text, kind = chance.choice(IDS), chance.choice(TEXTS), chance.choice(KINDS)
        pinned = chance.choice([None, True, False]) if thread == "first" else None
        acts: list[Callable[[], Any]] = [
            lambda: memory.save_memory(self.user, text, kind, memory_id=key, pinned=bool(pinned)),
            lambda: memory.save_memory(self.user, text, kind, tags=[key]),
            lambda: memory.update_memory(self.user, key, text, pinned=pinned),
            lambda: memory.update_memory(self.user, key, memory_type=kind),
            lambda: memory.update_memory(self.user, key, tags=[text], importance=chance.random()),
            # A forgotten memory is deleted for ever, so it is not here.
            lambda: memory.get_memory(self.user, key) and memory.delete_memory(self.user, key),
            lambda: lifecycle.restore(self.user, [key]),
            lambda: lifecycle.forget(self.user, ForgettingPolicy(max_memories={"all": chance.randrange(6)})),
            lambda: memory.save_memory(self.user, f"always {text}", "instructions", source=page),
            lambda: memory.update_memory(self.user, key, f"never {text}", source=page),
            lambda: self.decide(chance, thread, memory.approve_pending),
            lambda: self.decide(chance, thread, memory.reject_pending),
            lambda: undoes and run(undo_changes(service.scope, self.user, session_id=thread)),
        ]
        # The id is taken where the memory would move to; or the text waits, or was rejected.
        with suppress(InvalidInput, ConfirmationNeeded, UntrustedWrite):
            chance.choice(acts)()

    def state(
        self, leave_out: Sequence[str] = (), *, rejections: bool = True
    ) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """All rows of memories, of the archive, of counts and of what waits, but for their versions."""
        rows = self.service.scope.engine.backend.inspect(encode_label(self.user))
        return {
            (row.namespace, row.key): (repr(row.value), row.created_at, row.updated_at, row.expiry)
            for row in rows
            if isinstance(row, Row) and is_versioned(row.namespace) and row.key not in leave_out
            if rejections or "rejected" not in row.value.get("_pending", {})
        }


def check(store: MemoryStore, clock: FrozenClock, seed: int, steps: int) -> None:
    """Runs a history, and another one in the second session or in both, which is then undone by session or by time."""
    chance = random.Random(seed)
    history = History(store, clock, f"user {seed}")
    is_by_time = chance.random() < 0.5
    threads = ["first", "second"] if is_by_time else ["second"]
    for _ in range(chance.randrange(steps)):
        history.step(chance, chance.choice(["first", *threads[:-1]]), undoes=True)
    clock.advance(timedelta(seconds=1))
    before, since = history.state(rejections=is_by_time), clock.now()
    for _ in range(chance.randrange(1, steps)):
        history.step(chance, chance.choice(threads), undoes=is_by_time)
    after = history.state()
    chosen: dict[str, Any] = {"since": since} if is_by_time else {"session_id": "second"}

    def undo(*, dry_run: bool = False) -> UndoReport:
        return run(undo_changes(history.service.scope, history.user, **chosen, dry_run=dry_run))

    foreseen = undo(dry_run=True)
    assert history.state() == after, seed
    report = undo()
    # The user is in no session: what they have rejected stays so.
    assert history.state(report.kept, rejections=is_by_time) == {
        key: row for key, row in before.items() if key[1] not in report.kept
    }, seed
    assert not report.lost
    pinned = {one.id for one in history.service.sync.list_memories(history.user)[0] if one.value.get("pinned")}
    assert {*report.kept} <= pinned
    assert sorted(report.removed) == sorted(foreseen.removed), seed
    assert sorted(report.waiting) == sorted(foreseen.waiting), seed
    done = history.state()
    again = undo()
    assert again == UndoReport(kept=again.kept), seed
    assert {*again.kept} <= {*report.kept}, "pinned ones that are still there may be named again"
    assert history.state() == done, seed


@examples(40)
@given(seed=st.integers(0, 10**9))
def test_what_a_session_did_is_undone_exactly(seed: int) -> None:
    clock = FrozenClock()
    with open_store("memory://", embeddings=None, clock=clock) as store:
        check(store, clock, seed, 12)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/m.db", "file:///{}/m"])
def test_long_histories_are_undone_exactly(url: str, tmp_path: Path, full: bool) -> None:
    """With ``--full`` 2,000 histories of 40 steps on each store."""
    clock = FrozenClock()
    for first in range(0, 2_000 if full else 1, 100):  # a store of its own for some: a user's rows stay
        folder = tmp_path / str(first)
        folder.mkdir()
        with open_store(url.format(folder), embeddings=None, clock=clock) as store:
            for seed in range(first, first + (100 if full else 1)):
                check(store, clock, seed, 40)
