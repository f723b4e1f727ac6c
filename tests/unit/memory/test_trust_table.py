"""The one table that says whether a memory is stored at once, waits, or is refused."""

from __future__ import annotations

import itertools

import pytest

from inference_core.memory.trust import Decision, MemorySource, Origin, Trust, decide
from inference_core.memory.types import GUIDING_TYPES, MemoryCategory, MemoryType


@pytest.mark.parametrize("origin", list(Origin))
@pytest.mark.parametrize("confirm", [(), ("procedural",), ("semantic", "episodic")])
def test_the_table(origin: Origin, confirm: tuple[str, ...]) -> None:
    source = MemorySource(origin=origin)
    for category, kind in itertools.product(MemoryCategory, [None, *MemoryType]):
        guides = category is MemoryCategory.PROCEDURAL or (kind is not None and kind.value in GUIDING_TYPES)
        waits = source.trust is Trust.EXTERNAL and guides
        waits = waits or (source.trust is not Trust.STATED and category.value in confirm)
        assert decide(source, category, kind, confirm) is (Decision.PENDING if waits else Decision.YES)
