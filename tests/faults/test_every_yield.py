"""A fault at every point where an operation waits: it ends in an error, and the memory is as before or as after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flaky import run_with_fault

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import Operation
from inference_core.errors import DeadlineExceeded, StoreUnavailable, VersionConflict
from inference_core.services.operations.delete import delete, delete_all
from inference_core.services.operations.prompt_context import format_context
from inference_core.services.operations.recall import recall
from inference_core.services.operations.save import save, update
from inference_core.services.operations.scope import MemoryScope

OPERATIONS: dict[str, Callable[[MemoryScope], Operation[Any]]] = {
    "save": lambda scope: save(scope, "ada", "new", "facts"),
    "save again": lambda scope: save(scope, "ada", "new", "skill", memory_id="first"),
    "update": lambda scope: update(scope, "ada", "first", "new"),
    "move": lambda scope: update(scope, "ada", "first", memory_type="skill"),
    "delete": lambda scope: delete(scope, "ada", "first"),
    "delete all": lambda scope: delete_all(scope, "ada"),
    "recall": lambda scope: recall(scope, "ada", "first"),
    "context": lambda scope: format_context(scope, "ada", "first"),
}
FAULTS = [StoreUnavailable("down"), DeadlineExceeded("late"), VersionConflict("changed"), KeyboardInterrupt()]


def contents(service: AgentMemoryStoreService) -> list[tuple[str, str | None, int]]:
    documents, _ = service.sync.list_memories("ada")
    return sorted((one.content, one.memory_type, len(one.id)) for one in documents)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_leaves_the_memory_as_before_or_as_after(operation: str, full: bool) -> None:
    """A fault of each kind at each wait; in the short run of one kind, in turn."""
    states: list[list[tuple[str, str | None, int]]] = []
    outcomes: list[bool] = []
    before = [("first", "facts", len("first"))]
    ways = [(at, FAULTS[(at + turn) % len(FAULTS)]) for at in range(12) for turn in range(len(FAULTS) if full else 1)]
    for at, fault in ((-1, FAULTS[0]), *ways):
        with open_store("memory://", embeddings=None) as store:
            service = AgentMemoryStoreService(store, timeout=None)
            service.sync.save_memory("ada", "first", "facts", memory_id="first")
            try:
                run_with_fault(OPERATIONS[operation](service.scope), at, fault)
                outcomes.append(True)
            except (StoreUnavailable, VersionConflict, KeyboardInterrupt):
                outcomes.append(False)
            states.append(contents(service))
    after = states[0]
    assert outcomes[0]
    assert False in outcomes
    assert all(state in (before, after) for state in states)
    assert all(state == after for state, succeeded in zip(states, outcomes, strict=True) if succeeded)
