"""What a row was before the events that an undo reverts, with the later changes by others applied on top.

A memory that was moved into another category has been in several rows. They are one line: its changes are reverted, or
stay, wherever it was when they were made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from inference_core.ingestion.consolidation import REINFORCED
from inference_core.memory.audit import AuditEvent, Changed
from inference_core.memory.namespaces import PENDING, USAGE, holds_memories, holds_pending
from inference_core.memory.text import text_field
from inference_core.stores.backend import Key, Row
from inference_core.stores.governance.versions import State, is_versioned, place_of, states_in, versions_key

_MOVES: Final = frozenset({"forget", "restore"})
_MISSING: Final = object()
Step = tuple[AuditEvent, Changed, Changed]
"""An event, what it took from a row and what it put into one: the same change, unless it moved a memory."""


@dataclass(slots=True)
class Reverted:
    """The rows of the user with the ``label`` as they are without the ``chosen`` events.

    ``touched`` are the rows that these have changed, ``places`` also those where the same memories have been.
    `find` fills in the others: the ``targets``, which operation was the ``last`` to change each, and the ids of those
    whose earlier states are ``lost``.
    """

    label: str
    events: Sequence[AuditEvent]
    chosen: Collection[str]
    passed_over: Collection[str]
    touched: set[Key] = field(init=False)
    places: list[Key] = field(init=False)
    targets: dict[Key, State | None] = field(default_factory=dict[Key, State | None])
    last: dict[Key, str] = field(default_factory=dict[Key, str])
    lost: list[str] = field(default_factory=list[str])
    _moved: list[set[Key]] = field(init=False)

    def __post_init__(self) -> None:
        changes = (one for event in self.events if event.id in self.chosen for one in event.changes)
        self.touched = {key for key in (_key(self.label, one) for one in changes) if is_versioned(key[0])}
        self._moved = [keys for keys in _moved(self.events, self.label).values() if keys & self.touched]
        self.places = sorted(self.touched.union(*self._moved))

    def find(
        self,
        current: Mapping[Key, Row | None],
        kept: Mapping[Key, Row | None],
        holds: Callable[[Key, State], bool],
        now: datetime,
    ) -> None:
        """Finds the targets from the ``current`` rows and the ``kept`` versions; gone is what no longer ``holds``."""
        # One line for each row, or for all where a memory has been, unless there are several memories of its id.
        together = [sorted(keys) for keys in self._moved if sum(current[key] is not None for key in keys) <= 1]
        alone = [[key] for key in sorted(self.touched.difference(*together))]
        for line in [*together, *alone]:
            steps = _steps(self.events, self.label, line)
            self.last |= dict.fromkeys(line, steps[-1][0].operation)
            found = ((key, one) for key in line for one in states_in(kept[versions_key(key)], now))
            states = {(key, one.place, one.version): one for key, one in found}
            there = next((row for key in line if (row := current[key])), None)
            try:
                place, target = _target(self.label, steps, self.chosen, self.passed_over, states, there)
            except LookupError:
                self.lost += [] if holds_pending(line[0][0]) else [line[0][1]]  # if it waited, the decision stands
                continue
            self.targets |= dict.fromkeys(line)
            self.targets[place] = target if target and holds(place, target) else None


def _key(label: str, change: Changed) -> Key:
    return (label, *change.place), change.key


def _moved(events: Sequence[AuditEvent], label: str) -> dict[str, set[Key]]:
    """Where the memories have been that an event has moved into another category, by id."""
    found, unclear = dict[str, set[Key]](), set[str]()
    for event in events:
        own = defaultdict[str, list[Changed]](list)
        for one in event.changes:
            if holds_memories(_key(label, one)[0]):
                own[one.key].append(one)
        for name, changes in own.items():
            if sorted((bool(one.before), one.after != 0) for one in changes) == [(False, True), (True, False)]:
                found.setdefault(name, set()).update(_key(label, one) for one in changes)
            elif len(changes) > 1:  # there were several memories with this id
                unclear.add(name)
    return {name: keys for name, keys in found.items() if name not in unclear}


def _steps(events: Sequence[AuditEvent], label: str, line: Collection[Key]) -> list[Step]:
    """The changes of the rows in ``line``, the oldest first."""
    steps: list[Step] = []
    for event in events:
        if own := [one for one in event.changes if _key(label, one) in line]:
            own.sort(key=lambda one: one.after == 0, reverse=True)
            steps.append((event, own[0], own[-1]))
    return steps


def _target(
    label: str,
    history: Sequence[Step],
    chosen: Collection[str],
    passed_over: Collection[str],
    states: Mapping[tuple[Key, str, int], State],
    row: Row | None,
) -> tuple[Key, State | None]:
    """What a line, now in ``row``, is without the undone events, and where. Raises LookupError if that is lost."""
    place = place_of(_key(label, history[0][1])[0])
    ids = [event.id for event, _, _ in history]
    skipped = {one for one in ids if one in chosen or one in passed_over}
    start = min(at for at, one in enumerate(ids) if one in chosen)
    for at in range(len(ids) - 1, -1, -1):
        undone = [ids.index(one) for one in history[at][0].undone if one in ids]
        if at > start and undone and ids[at] not in skipped:
            # An undo came later and stays: what it has undone may be earlier.
            start = min(start, *undone)
            skipped.add(ids[at])

    def before(at: int) -> State | None:
        change = history[at][1]
        if change.before == 0 or (change.before is None and place == PENDING):
            return None
        # KeyError: no state is kept of what has expired
        return states[_key(label, change), place, -1 if change.before is None else change.before]

    target, home = before(start), _key(label, history[start][1])
    if place == USAGE:  # recalls are counted without events
        return home, target
    # A move to the archive, followed by the move back, changes nothing: both are passed over.
    leaves = {
        index
        for at in range(start, len(history) - 1)
        if history[at][0].operation in _MOVES and history[at][1].after == 0 and history[at + 1][0].operation in _MOVES
        for index in (at, at + 1)
    }
    for at in range(start, len(history)):
        if ids[at] in skipped or at in leaves:
            continue
        # Somebody else has made this change, so it stays.
        new = before(at + 1) if at + 1 < len(history) else State.of(row) if row else None
        old = new and before(at)
        if new is None or old is None or place == PENDING:  # of what waits, the last decision counts
            target, home = new, _key(label, history[at][2])
        elif target is not None:  # else it did not exist before, and goes even if it was changed since
            value = _merged(target.value, old.value, new.value)
            target = replace(new, value=value, kind=text_field(value, "memory_type") or new.kind)
            home = _key(label, history[at][2]) if history[at][1] != history[at][2] else home
    return home, target


def _merged(target: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``target`` with the differences from ``old`` to ``new`` applied, field by field."""
    merged = dict(target)
    for name in {**old, **new}:
        was, is_now = old.get(name, _MISSING), new.get(name, _MISSING)
        has = target.get(name, _MISSING)
        if was == is_now:
            continue
        if is_now is _MISSING:
            merged.pop(name, None)
        elif all(isinstance(one, dict) for one in (has, was, is_now)):
            merged[name] = _merged(target[name], old[name], new[name])
        elif all(isinstance(one, list) for one in (has, was, is_now)):
            left = [one for one in target[name] if one not in old[name] or one in new[name]]
            merged[name] = [*left, *(one for one in new[name] if one not in old[name] and one not in left)]
        elif name == REINFORCED and isinstance(is_now, int):
            counts = [one if isinstance(one, int) else 0 for one in (has, was)]
            merged[name] = counts[0] + is_now - counts[1]
        else:
            merged[name] = is_now
    return merged
