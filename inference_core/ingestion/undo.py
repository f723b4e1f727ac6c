"""Undo: reverts what a session, a job or an agent has changed, or all changes of a period, whatever operation did them.

The audit events say which rows were changed, the kept versions what they held. A row is rebuilt from its state before
the first change that is undone, with the later changes by others applied on top, field by field. A memory that was
moved into another category has been in several rows. They are one line: its changes are reverted, or stay, wherever it
was when they were made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.ingestion.consolidation import REINFORCED
from inference_core.lifecycle.archive import restore_archived
from inference_core.memory.audit import AuditEvent, Cause, Changed
from inference_core.memory.namespaces import (
    FORGOTTEN,
    PENDING,
    USAGE,
    encode_label,
    holds_memories,
    holds_pending,
    sidecar_namespace,
)
from inference_core.memory.record import JOB, WOULD_END, MemoryRecord
from inference_core.memory.text import encode_json, mapping_field, moment_field, text_field
from inference_core.services.operations.audit import events_of
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, put_of, record_of, retried
from inference_core.stores.backend import Check, Key, Put, Remove, Row, Write
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
        # Of what waits, the last decision counts; what somebody has saved since in the same words stays.
        if new is None or old is None or place == PENDING or (target is None and _job_of(old) and not _job_of(new)):
            target, home = new, _key(label, history[at][2])
        elif target is not None:  # else it did not exist before, and goes even if it was changed since
            value = _merged(target.value, old.value, new.value)
            target = replace(new, value=value, kind=text_field(value, "memory_type") or new.kind)
            home = _key(label, history[at][2]) if history[at][1] != history[at][2] else home
    return home, target


def _job_of(state: State) -> str | None:
    """The job that made the memory in ``state``; None if it is somebody's own."""
    return text_field(mapping_field(state.value, "extra_metadata"), JOB)


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


UNDO: Final = "undo"


@dataclass(slots=True)
class UndoReport:
    """Ids of memories. ``removed`` did not exist before; ``restored`` were brought back or changed back.

    ``kept`` did not exist before either, but are pinned and stay. ``lost`` stay as they are, because their earlier
    state is no longer kept. ``waiting`` wait for the user's confirmation again, since the decision about them was
    undone.
    """

    removed: list[str] = field(default_factory=list[str])
    restored: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    waiting: list[str] = field(default_factory=list[str])


def undo_events(
    scope: MemoryScope,
    user_id: UserId,
    is_chosen: Callable[[AuditEvent], bool],
    *,
    drops: Callable[[MemoryRecord], bool],
    dry_run: bool = False,
    also: Sequence[Write] = (),
) -> Operation[UndoReport]:
    """Undoes the chosen events (changes, decisions and earlier undos) in one transaction with the writes ``also``.

    Events that an undo outside of the choice has already undone are skipped. A memory is removed, too, if ``drops`` is
    true of the state to which it would return. ``dry_run`` only reports. Raises VersionConflict if others keep changing
    the memories, StoreError.
    """
    return retried(partial(_undone, scope, user_id, is_chosen, drops, dry_run=dry_run, also=also))


async def _undone(
    scope: MemoryScope,
    user_id: UserId,
    is_chosen: Callable[[AuditEvent], bool],
    drops: Callable[[MemoryRecord], bool],
    *,
    dry_run: bool,
    also: Sequence[Write],
) -> UndoReport:
    events = await events_of(scope.engine, user_id)
    matching = {event.id for event in events if is_chosen(event)}
    passed_over = _taken_back(events, matching)
    chosen = matching - passed_over
    label = encode_label(user_id)
    undone = Reverted(label, events, chosen, passed_over)
    if not dry_run and await _unforgotten(scope, user_id, events, chosen, {key for _, key in undone.touched}):
        events = await events_of(scope.engine, user_id)
        undone = Reverted(label, events, chosen, passed_over)
    homes = list(dict.fromkeys(map(versions_key, undone.places)))
    rows = await scope.engine.get([*undone.places, *homes])
    current = dict(zip(undone.places, rows, strict=False))
    kept = dict(zip(homes, rows[len(undone.places) :], strict=True))
    undone.find(
        current, kept, lambda key, state: _holds(_row(key, state, current[key]), scope, drops), scope.clock.now()
    )
    report = UndoReport(lost=list(dict.fromkeys(undone.lost)))
    targets = undone.targets
    staying = _staying(targets, current, undone.last)
    report.kept = [key for _, key in staying]
    lost = {*report.lost, *report.kept}
    targets = {key: target for key, target in targets.items() if key[1] not in lost}
    writes = [write for key, target in targets.items() if (write := _write(key, target, current[key]))]
    changed = {(write.namespace, write.key) for write in writes if holds_memories(write.namespace)}
    report.restored = [key for place, key in sorted(changed) if targets[place, key] is not None]
    report.removed = [key for _, key in sorted(changed) if key not in report.restored]
    report.waiting = sorted(
        write.key for write in writes if isinstance(write, Put) and holds_pending(write.namespace) and write.kind
    )
    # If a period includes an earlier undo of itself, undoing it again finds nothing left to do.
    is_new = not chosen <= _taken_back(events, ()) | {event.id for event in events if event.operation == UNDO}
    if dry_run or not (writes or also or is_new):
        return report
    left = [row for key, row in current.items() if row and key in changed and targets[key] is None]
    gone = [row for row in left if row.key in report.removed]
    again = [_row(key, target, current[key]) for key, target in targets.items() if target and key in changed]
    links = await relinked(scope, user_id, gone, again)
    named = {(link.namespace, link.key) for link in links}
    # Where pinned memories stay and nothing else is left to do, their checks alone carry the event of the undo.
    checks = [Check(namespace=key[0], key=key[1], expected=row.version) for key, row in staying.items()]
    batch: list[Write] = [*checks, *(one for one in writes if (one.namespace, one.key) not in named), *links, *also]
    # A removal takes the archived row of the same id along unless the batch names it, so these checks keep it.
    aside = [(sidecar_namespace(row.namespace, FORGOTTEN), row.key) for row in left]
    archived = await scope.engine.get([key for key in aside if key not in targets])
    batch += [Check(namespace=row.namespace, key=row.key, expected=row.version) for row in archived if row]
    cause = Cause(
        at=scope.clock.now(),
        operation=UNDO,
        actor=scope.actor,
        keep_until=scope.kept_until,
        undone=tuple(sorted(chosen)),
        is_told=True,
    )
    if batch:
        await scope.engine.write(batch, cause=cause, ages=False)
    return report


def _taken_back(events: Sequence[AuditEvent], chosen: Collection[str]) -> set[str]:
    """The ids of events that undos have undone, except for undos that are ``chosen`` or were undone themselves."""
    found: set[str] = set()
    for event in reversed(events):
        if event.id not in chosen and event.id not in found:
            found.update(event.undone)
    return found


async def _unforgotten(
    scope: MemoryScope, user_id: UserId, events: Sequence[AuditEvent], chosen: Collection[str], keys: Collection[str]
) -> bool:
    """Restores what a policy has forgotten of the memories ``keys``, and of those linked with them.

    Only what was forgotten after the first of the ``chosen`` events. Returns whether anything was restored.
    """
    first = next((at for at, event in enumerate(events) if event.id in chosen), len(events))
    gone = [event for event in events[first:] if event.operation == "forget" and event.id not in chosen]
    since = {change.key for event in gone for change in event.changes if change.after == 0}
    found = False
    waiting = {*keys} & since
    done: set[str] = set()
    while waiting:
        report = await restore_archived(scope, user_id, sorted(waiting), deleted=False)
        found = found or bool(report.restored)
        done |= waiting
        records = await _records(scope, user_id, waiting)
        links = {key for one in records.values() for key in (*one.supersedes, one.superseded_by) if key}
        waiting = (links & since) - done
    return found


async def _records(scope: MemoryScope, user_id: UserId, keys: Collection[str]) -> dict[str, MemoryRecord]:
    """The user's memories with these ids, of all agents."""
    names = await scope.engine.namespaces((encode_label(user_id),))
    homes = [name for name in names if holds_memories(name)]
    rows = await scope.engine.get([(name, key) for key in sorted(keys) for name in homes])
    return {row.key: record_of(row) for row in rows if row and is_known(row)}


def _staying(
    targets: Mapping[Key, State | None],
    current: Mapping[Key, Row | None],
    last: Mapping[Key, str],
) -> dict[Key, Row]:
    """The pinned memories that would be removed: no undo removes what somebody has pinned. ``last``: what changed them.

    Except for one that was approved and not changed since: it is pinned only because the memory that it replaced was,
    and that one is back now.
    """
    there = {key for (place, key), target in targets.items() if target and holds_memories(place)}
    going = {key: current[key] for key, target in targets.items() if not target and key[1] not in there}
    return {
        key: row
        for key, row in going.items()
        if row and holds_memories(key[0]) and row.value.get("pinned") is True
        if last[key] != "approve"
    }


def _holds(row: Row, scope: MemoryScope, drops: Callable[[MemoryRecord], bool]) -> bool:
    """Whether ``row`` may be there again: it has not expired, and holds no memory that ``drops`` removes."""
    if row.expiry and row.expiry.at <= scope.clock.now():
        return False
    return not (holds_memories(row.namespace) and is_known(row) and drops(record_of(row)))


def _write(key: Key, target: State | None, row: Row | None) -> Put | Remove | None:
    """The write that turns the row at ``key`` into ``target``; None if the row is that already."""
    if target is None:
        return Remove(namespace=key[0], key=key[1], expected=row.version) if row else None
    if row and replace(target, version=0, kind="") == replace(State.of(row), version=0, kind=""):
        return None
    found = _row(key, target, row)
    is_memory = holds_memories(key[0]) and is_known(found) and bool(target.value.get("content"))
    return Put(
        namespace=key[0],
        key=key[1],
        value=encode_json(target.value, what="memory"),
        document=put_of(record_of(found)).document if is_memory else None,
        kind=target.kind,
        created_at=target.created_at,
        updated_at=target.updated_at,
        expected=row.version if row else 0,
        expiry=target.expiry,
    )


async def relinked(scope: MemoryScope, user_id: UserId, gone: Sequence[Row], again: Sequence[Row] = ()) -> list[Put]:
    """The writes that close the gap that the rows ``gone`` leave in chains of memories that superseded each other.

    What they superseded is superseded by what came later, or holds again. ``again`` are restored rows in their new
    state.
    """
    removed = {record.id: record for record in (record_of(row) for row in gone if is_known(row))}
    linked = {key for one in removed.values() for key in (*one.supersedes, one.superseded_by) if key}
    ends = {one.superseded_by for one in removed.values() if one.superseded_by}
    current = await _records(scope, user_id, (linked | ends) - removed.keys())
    there = current | {row.key: record_of(row) for row in again if row.key in current and is_known(row)}
    now = dict(there)
    for one in removed.values():
        last = one
        while last.superseded_by in removed:
            last = removed[last.superseded_by]
        successor = now.get(last.superseded_by or "")
        if successor is not None and last.id not in there[successor.id].supersedes:
            successor = None  # it was restored to before it superseded any of these
        freed = [key for key in one.supersedes if key in current and current[key].superseded_by == one.id]
        for key in freed:
            was = there[key]
            if successor is not None:
                now[key] = replace(was, superseded_by=successor.id, valid_to=last.valid_to)
            elif was.superseded_by == one.id:  # it becomes what it was before it was superseded
                metadata = {name: value for name, value in was.extra_metadata.items() if name != WOULD_END}
                end = moment_field(was.extra_metadata, WOULD_END)
                now[key] = replace(was, superseded_by=None, valid_to=end, extra_metadata=metadata)
        if successor is not None:
            others = [key for key in successor.supersedes if key != last.id]
            now[successor.id] = replace(successor, supersedes=tuple(dict.fromkeys([*others, *freed])))
    return [put_of(one, expected=one.version) for key, one in now.items() if one is not there[key]]


def _row(key: Key, state: State, current: Row | None) -> Row:
    """The row at ``key`` in ``state``, with the version of the ``current`` one."""
    return Row(
        namespace=key[0],
        key=key[1],
        value=dict(state.value),
        version=current.version if current else 0,
        seq=0,
        created_at=state.created_at,
        updated_at=state.updated_at,
        expiry=state.expiry,
    )
