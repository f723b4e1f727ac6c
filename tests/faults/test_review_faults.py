"""A decision that fails or dies at any point: what waited waits, or is decided; never both, never neither."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flaky import crossed, effects_of, run_with_fault

from inference_core import AgentMemoryStoreService, MemorySource, Origin, open_store
from inference_core.effects import Operation
from inference_core.errors import ConfirmationNeeded, DeadlineExceeded, StoreUnavailable, VersionConflict
from inference_core.services.operations.review import approve_pending, reject_pending
from inference_core.services.operations.save import save
from inference_core.services.operations.scope import MemoryScope

U = "ada"
WEB = MemorySource(origin=Origin.WEB)
FAULTS = [StoreUnavailable("down"), DeadlineExceeded("late"), VersionConflict("changed"), KeyboardInterrupt()]
OPERATIONS: dict[str, Callable[[MemoryScope, str], Operation[Any]]] = {
    "approve": lambda scope, key: approve_pending(scope, U, key),
    "approve edited": lambda scope, key: approve_pending(scope, U, key, "rather this"),
    "approve a session": lambda scope, _: approve_pending(scope, U, session_id="s"),
    "reject": lambda scope, key: reject_pending(scope, U, key),
}


def offered(service: AgentMemoryStoreService) -> str:
    service.sync.save_memory(U, "old", "instructions", memory_id="old")
    with pytest.raises(ConfirmationNeeded) as error:
        service.sync.save_memory(U, "new", "instructions", "s", memory_id="old", source=WEB)
    return error.value.pending_id


def places(service: AgentMemoryStoreService, key: str) -> tuple[bool, bool, bool, bool]:
    """Whether it waits, is a memory, was rejected, and whether the old one has ended."""
    old = service.sync.get_memory(U, "old")
    assert old is not None
    is_rejected = not service.sync.list_pending(U) and service.sync.reject_pending(U, key) == [key]
    memory = service.sync.get_memory(U, key)
    return bool(service.sync.list_pending(U)), memory is not None, is_rejected, "superseded_by" in old.value


@pytest.mark.parametrize(
    ("name", "fault", "after"),
    crossed(list(OPERATIONS), {type(one).__name__: one for one in FAULTS}, {"before": False, "after": True}),
)
def test_a_fault_at_any_yield_leaves_one_of_both(name: str, fault: BaseException, after: bool) -> None:
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store, timeout=None)
        yields = effects_of(OPERATIONS[name](service.scope, offered(service)))
    for at in range(yields):
        with open_store("memory://", embeddings=None) as store:
            service = AgentMemoryStoreService(store, timeout=None)
            key = offered(service)
            try:
                run_with_fault(OPERATIONS[name](service.scope, key), at, fault, after=after)
                is_done = True
            except (StoreUnavailable, VersionConflict, KeyboardInterrupt):
                is_done = False
            found = places(service, key)
            decided = (False, False, True, False) if name == "reject" else (False, True, False, True)
            assert found in ((True, False, False, False), decided)
            assert not is_done or found == decided
            again = run_with_fault(OPERATIONS[name](service.scope, key), -1, fault)
            assert again == [key] or name == "approve a session"
            assert places(service, key) == decided


def test_a_save_that_fails_leaves_nothing_or_what_waits() -> None:
    for at in range(12):
        with open_store("memory://", embeddings=None) as store:
            service = AgentMemoryStoreService(store, timeout=None)
            plan = save(service.scope, U, "new", "instructions", source=WEB)
            with pytest.raises((StoreUnavailable, ConfirmationNeeded)) as error:
                run_with_fault(plan, at, StoreUnavailable("down"))
            assert len(service.sync.list_pending(U)) == (error.type is ConfirmationNeeded)
            assert service.sync.list_memories(U)[1] == 0


@pytest.mark.parametrize("name", ["approve", "reject"])
def test_a_killed_process_leaves_one_of_both(name: str, tmp_path: Path) -> None:
    """Each process dies by kill -9 one effect later than the one before, on a database on disk."""
    url = f"sqlite:///{tmp_path}/m.db"
    with open_store(url, embeddings=None) as store:
        key = offered(AgentMemoryStoreService(store))
    waits, at = True, 0
    while waits:
        at += 1
        process = os.fork()
        if not process:
            _die_at(at, url, OPERATIONS[name], key)
        os.waitpid(process, 0)
        with open_store(url, embeddings=None) as store:
            service = AgentMemoryStoreService(store, timeout=None)
            waits = bool(service.sync.list_pending(U))
            is_memory = service.sync.get_memory(U, key) is not None
            if name == "approve":
                assert waits is not is_memory
            else:
                assert not is_memory
                assert waits or service.sync.reject_pending(U, key) == [key]
    assert at > 2


def _die_at(at: int, url: str, make: Callable[[MemoryScope, str], Operation[Any]], key: str) -> None:
    with open_store(url, embeddings=None) as store:
        plan, sent = make(AgentMemoryStoreService(store, timeout=None).scope, key), None
        try:
            for _ in range(at):
                sent = plan.send(sent).start().result()
        except StopIteration:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
def test_of_two_reviewers_one_decides(url: str, tmp_path: Path) -> None:
    """Eight reviewers at once: one text is stored, and exactly those who wanted it are told that it is approved."""
    with open_store(f"sqlite:///{tmp_path}/m.db" if url == "sqlite" else url, embeddings=None) as store:
        service = AgentMemoryStoreService(store)
        for round_ in range(5):
            with pytest.raises(ConfirmationNeeded) as error:
                service.sync.save_memory(U, f"rule {round_}", "instructions", source=WEB)
            key = error.value.pending_id
            edits = [None, "this", "that", "this"]
            decide: list[Callable[[], list[str]]] = [
                *(partial(service.sync.approve_pending, U, key, edit and f"{edit} {round_}") for edit in edits),
                *(partial(service.sync.reject_pending, U, key) for _ in range(4)),
            ]
            with ThreadPoolExecutor(8) as pool:
                told = [bool(one.result()) for one in [pool.submit(one) for one in decide]]
            memory = service.sync.get_memory(U, key)
            if memory is None:
                assert told == [False] * 4 + [True] * 4
            else:
                said = [(edit and f"{edit} {round_}") or f"rule {round_}" for edit in edits]
                assert told == [one == memory.content for one in said] + [False] * 4
            assert service.sync.list_pending(U) == []


def test_regression_what_two_agents_have_offered_is_decided_by_one_reviewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent's was approved by itself: a rejection in between succeeded, and the first agent had the rule."""
    with open_store("memory://", embeddings=None) as store:
        services = [AgentMemoryStoreService(store, agent_name=name) for name in ("planner", "travel")]
        for service in services:
            with pytest.raises(ConfirmationNeeded):
                service.sync.save_memory(U, "new", "instructions", source=WEB)
        key, write = services[0].sync.list_pending(U)[0].id, MemoryScope.write
        batches, told = list[str](), list[list[str]]()

        def write_late(scope: MemoryScope, batch: Any, operation: str, **given: Any) -> Operation[list[int]]:
            batches.append(operation)
            if batches == ["approve", "approve"]:  # of the second agent's
                told.append(services[0].sync.reject_pending(U, key))
            return write(scope, batch, operation, **given)

        monkeypatch.setattr(MemoryScope, "write", write_late)
        told.append(services[0].sync.approve_pending(U, key))
        has = [bool(service.sync.get_memory(U, key)) for service in services]
        assert (told, has) == ([[key]], [True, True])
