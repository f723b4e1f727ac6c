"""A real backend with a fault injected in front of it, and a fault at any point where an operation waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, product
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from inference_core.effects import Operation
from inference_core.errors import StoreUnavailable
from inference_core.stores.backends.memory import InMemoryBackend

CALLS = ("apply", "get", "page", "count", "namespaces", "heads", "changes", "pending")


class FlakyBackend(InMemoryBackend):
    """Works until ``fault`` is set: "down" raises at every one of ``calls``, "hang" waits until it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: str | None = None
        self.calls: Sequence[str] = CALLS
        self.healed = threading.Event()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._guarded(found) if name in CALLS and name in self.calls else found

    def _guarded(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.fault == "down":
                raise StoreUnavailable("the database is down")
            if self.fault == "hang":
                self.healed.wait(30)
            return method(*args, **kwargs)

        return call

    def heal(self) -> None:
        """Ends the fault."""
        self.fault = None
        self.healed.set()


def crossed(*groups: Mapping[str, object] | Sequence[str]) -> list[ParameterSet]:
    """All combinations of one value of each group, most of which belong to the full run alone.

    Those of the short run have each value of each group, in as few as that takes.
    """
    named = [list(group.items() if isinstance(group, Mapping) else zip(group, group, strict=True)) for group in groups]
    ways = [*product(*(range(len(group)) for group in named))]
    missing = {place for way in ways for place in enumerate(way)}
    short: set[tuple[int, ...]] = set()
    while missing:
        best = max(ways, key=lambda way: len(missing.intersection(enumerate(way))))
        short.add(best)
        missing -= {*enumerate(best)}
    return [
        pytest.param(
            *(group[at][1] for group, at in zip(named, places, strict=True)),
            id="-".join(group[at][0] for group, at in zip(named, places, strict=True)),
            marks=[] if places in short else [pytest.mark.full],
        )
        for places in ways
    ]


def waits(number: int, turn: int, *, full: bool) -> range:
    """At which of the ``number`` waits of an operation to fail: with ``full`` all; else each second one, from the first
    or the second on by the ``turn`` of the case, so that two cases of like operations fail at all of them."""
    return range(number) if full else range(turn % 2, number, 2)


def run_with_fault(plan: Operation[Any], at: int, fault: BaseException, *, after: bool = False) -> Any:
    """Runs ``plan``, but its effect number ``at`` raises ``fault``; ``after`` it was done all the same."""
    advance: Callable[[], Any] = partial(plan.send, None)
    for number in count():
        try:
            effect = advance()
        except StopIteration as stop:
            return stop.value
        try:
            if number == at and not after:
                raise fault
            result = effect.start().result()
            if number == at:
                raise fault
            advance = partial(plan.send, result)
        except BaseException as error:  # noqa: BLE001 - a driver hands every error to the plan
            advance = partial(plan.throw, error)
    return None


def effects_of(plan: Operation[Any]) -> int:
    """How often ``plan`` waits."""
    number = 0
    send: Any = None
    while True:
        try:
            send = plan.send(send).start().result()
        except StopIteration:
            return number
        number += 1
