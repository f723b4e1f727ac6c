"""Undo: what a session, a job, an agent or a time has changed is as it was before, whatever operation did it.

The audit events say which rows were changed, the versions what they were. A row's state is built anew from before the
first change that is undone, with the later changes of others on top, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.ingestion.consolidation import REINFORCED
from inference_core.lifecycle.archive import restore_archived
from inference_core.memory.audit import AuditEvent, Cause, Changed
from inference_core.memory.namespaces import (
    FORGOTTEN,
    USAGE,
    encode_label,
    holds_memories,
    holds_pending,
    sidecar_namespace,
)
from inference_core.memory.record import WOULD_END, MemoryRecord
from inference_core.memory.text import encode_json, moment_field
from inference_core.services.operations.audit import events_of
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, put_of, record_of, retried
from inference_core.stores.backend import Check, Delete, Key, Put, Row, Write
from inference_core.stores.governance.versions import State, is_versioned, place_of, states_in, versions_key

UNDO: Final = "undo"
_MOVES: Final = frozenset({"forget", "restore"})
_MISSING: Final = object()


@dataclass(slots=True)
class UndoReport:
    """Ids of memories: removed, since they were not there before; brought back or changed back.

    ``kept`` are pinned ones that were not there before and stay. ``lost`` are those whose earlier state is not kept
    any more; they stay as they are. ``decided`` are those that the user has approved or rejected meanwhile, or that an
    earlier undo has changed: neither the decision nor that undo is taken back.
    """

    removed: list[str] = field(default_factory=list[str])
    restored: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    decided: list[str] = field(default_factory=list[str])


def undo_events(
    scope: MemoryScope,
    user_id: UserId,
    is_chosen: Callable[[AuditEvent], bool],
    *,
    drops: Callable[[MemoryRecord], bool],
    dry_run: bool = False,
    also: Sequence[Write] = (),
) -> Operation[UndoReport]:
    """Takes back the chosen events, in one transaction with the writes ``also``; what was undone before is passed over.

    A memory goes as well if ``drops`` is true of what it would be again. ``dry_run`` only reports. Raises
    VersionConflict if others keep changing the memories, StoreError.
    """
    return retried(partial(_undone, scope, user_id, is_chosen, drops, dry_run=dry_run, also=also))


def _undone(
    scope: MemoryScope,
    user_id: UserId,
    is_chosen: Callable[[AuditEvent], bool],
    drops: Callable[[MemoryRecord], bool],
    *,
    dry_run: bool,
    also: Sequence[Write],
) -> Operation[UndoReport]:
    events = yield from events_of(scope.engine, user_id)
    before = {one for event in events for one in event.undone}
    chosen = {event.id for event in events if event.operation != UNDO and event.id not in before and is_chosen(event)}
    label = encode_label(user_id)
    touched = {_key(label, one) for event in events if event.id in chosen for one in event.changes}
    touched = {key for key in touched if is_versioned(key[0])}  # what waits is not undone, but decided
    if not dry_run and (yield from _unforgotten(scope, user_id, events, chosen, {key for _, key in touched})):
        events = yield from events_of(scope.engine, user_id)
    histories = _histories(events, label, sorted(touched))
    homes = list(dict.fromkeys(map(versions_key, histories)))
    rows = yield from scope.engine.get([*histories, *homes])
    current = dict(zip(histories, rows, strict=False))
    kept = dict(zip(homes, rows[len(histories) :], strict=True))
    report = UndoReport(decided=_decided(label, (one for one in events if one.id not in before and is_chosen(one))))
    staying: dict[Key, Row] = {}
    targets: dict[Key, State | None] = {}
    for key, history in histories.items():
        states = {(one.place, one.version): one for one in states_in(kept[versions_key(key)], scope.clock.now())}
        try:
            target = _target(key, history, chosen | before, chosen, states, current[key])
        except LookupError:
            report.lost.append(key[1])
            continue
        if target and holds_memories(key[0]) and is_known(again := _row(key, target)) and drops(record_of(again)):
            target = None
        targets[key] = target
    there = {key for (place, key), target in targets.items() if target and holds_memories(place)}
    for (place, key), target in targets.items():
        row = current[place, key]
        is_removed = target is None and row is not None and holds_memories(place) and key not in there
        if is_removed and row and row.value.get("pinned") is True:
            report.kept.append(key)
            staying[place, key] = row
    lost = {*report.lost, *report.kept}
    targets = {key: target for key, target in targets.items() if key[1] not in lost}
    writes = [write for key, target in targets.items() if (write := _write(key, target, current[key]))]
    changed = {(write.namespace, write.key) for write in writes if holds_memories(write.namespace)}
    report.removed = [key for place, key in sorted(changed) if targets[place, key] is None]
    report.restored = [key for place, key in sorted(changed) if targets[place, key] is not None]
    report.lost, report.kept = list(dict.fromkeys(report.lost)), list(dict.fromkeys(report.kept))
    if dry_run or not (writes or also or chosen):
        return report
    gone = [row for key, row in current.items() if row and key in changed and targets[key] is None]
    links = yield from relinked(scope, user_id, gone, changed)
    named = {(link.namespace, link.key) for link in links}
    # Where pinned memories stay and nothing else is left to do, their checks alone carry the event of the undo.
    checks = [Check(namespace=key[0], key=key[1], expected=row.version) for key, row in staying.items()]
    batch: list[Write] = [*checks, *(one for one in writes if (one.namespace, one.key) not in named), *links, *also]
    # What was deleted before under the ids of the memories that go stays in the archive.
    aside = [(sidecar_namespace(row.namespace, FORGOTTEN), row.key) for row in gone]
    archived = yield from scope.engine.get([key for key in aside if key not in targets])
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
        yield from scope.engine.write(batch, cause=cause, ages=False)
    return report


def _decided(label: str, events: Iterable[AuditEvent]) -> list[str]:
    """What these events have decided of what waited, and what those of them that undid something have changed."""
    changes = ((event.operation, change) for event in events for change in event.changes)
    return sorted(
        {one.key for done, one in changes if done == UNDO or (one.before != 0 and holds_pending(_key(label, one)[0]))}
    )


def _histories(
    events: Sequence[AuditEvent], label: str, keys: Sequence[Key]
) -> dict[Key, list[tuple[AuditEvent, Changed]]]:
    """The changes of each row in ``keys``, the oldest first."""
    histories: dict[Key, list[tuple[AuditEvent, Changed]]] = {key: [] for key in keys}
    for event in events:
        for change in event.changes:
            if (key := _key(label, change)) in histories:
                histories[key].append((event, change))
    return histories


def _unforgotten(
    scope: MemoryScope, user_id: UserId, events: Sequence[AuditEvent], chosen: Collection[str], keys: Collection[str]
) -> Operation[bool]:
    """Restores what a policy has forgotten after the first of the ``chosen`` events; whether there was any.

    Of the memories ``keys``, and of those linked with them.
    """
    first = next((at for at, event in enumerate(events) if event.id in chosen), len(events))
    gone = [event for event in events[first:] if event.operation == "forget" and event.id not in chosen]
    since = {change.key for event in gone for change in event.changes if change.after == 0}
    found = False
    waiting = {*keys} & since
    done: set[str] = set()
    while waiting:
        report = yield from restore_archived(scope, user_id, sorted(waiting), deleted=False)
        found = found or bool(report.restored)
        done |= waiting
        records = yield from _records(scope, user_id, waiting)
        links = {key for one in records.values() for key in (*one.supersedes, one.superseded_by) if key}
        waiting = (links & since) - done
    return found


def _records(scope: MemoryScope, user_id: UserId, keys: Collection[str]) -> Operation[dict[str, MemoryRecord]]:
    """The user's memories with these ids, of all agents."""
    names = yield from scope.engine.namespaces((encode_label(user_id),))
    homes = [name for name in names if holds_memories(name)]
    rows = yield from scope.engine.get([(name, key) for key in sorted(keys) for name in homes])
    return {row.key: record_of(row) for row in rows if row and is_known(row)}


def _target(
    key: Key,
    history: Sequence[tuple[AuditEvent, Changed]],
    skipped: Collection[str],
    chosen: Collection[str],
    states: Mapping[tuple[str, int], State],
    row: Row | None,
) -> State | None:
    """What the row at ``key`` is without the events that are undone. Raises LookupError if its state is not kept."""
    place = place_of(key[0])
    ids = [event.id for event, _ in history]
    start = min(at for at, one in enumerate(ids) if one in chosen)
    for at in range(len(ids) - 1, -1, -1):  # an undo that came later has taken back what may be earlier
        if at > start and history[at][0].operation == UNDO:
            start = min([start, *(ids.index(one) for one in history[at][0].undone if one in ids)])

    def before(at: int) -> State | None:
        version = history[at][1].before
        if version == 0:
            return None
        return states[place, -1 if version is None else version]  # of what has expired no state is kept

    if place == USAGE:  # recalls are counted without events
        return before(start)
    target = before(start)
    leaves = {
        index
        for at in range(start, len(history) - 1)
        if history[at][0].operation in _MOVES and history[at][1].after == 0 and history[at + 1][0].operation in _MOVES
        for index in (at, at + 1)
    }
    for at in range(start, len(history)):
        if ids[at] in skipped or history[at][0].operation == UNDO or at in leaves:
            continue
        # Somebody else has made this change, so it stays.
        new = before(at + 1) if at + 1 < len(history) else State.of(row) if row else None
        old = new and before(at)
        if new is None or old is None:
            target = new
        elif target is not None:  # else what was not there before goes, also if it was changed since
            target = replace(new, value=_merged(target.value, old.value, new.value))
    return target


def _merged(target: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``target`` with what differs between ``old`` and ``new``."""
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


def _write(key: Key, target: State | None, row: Row | None) -> Put | Delete | None:
    """The write that makes ``target`` of the row at ``key``; None if it is so."""
    if target is None:
        return Delete(namespace=key[0], key=key[1], expected=row.version) if row else None
    if row and replace(target, version=0, kind="") == replace(State.of(row), version=0, kind=""):
        return None
    found = _row(key, target)
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


def relinked(
    scope: MemoryScope, user_id: UserId, gone: Sequence[Row], changed: Collection[Key] = ()
) -> Operation[list[Put]]:
    """The writes that close the gap that the rows ``gone`` leave in chains of memories that superseded each other.

    What they superseded is superseded by what came later, or holds again.
    """
    removed = {record.id: record for record in (record_of(row) for row in gone if is_known(row))}
    linked = {key for one in removed.values() for key in (*one.supersedes, one.superseded_by) if key}
    ends = {one.superseded_by for one in removed.values() if one.superseded_by}
    there = yield from _records(scope, user_id, (linked | ends) - removed.keys())
    now = dict(there)
    for one in removed.values():
        last = one
        while last.superseded_by in removed:
            last = removed[last.superseded_by]
        successor = now.get(last.superseded_by or "")
        freed = [key for key in one.supersedes if key in now and there[key].superseded_by == one.id]
        for key in freed:
            if successor is not None:
                now[key] = replace(there[key], superseded_by=successor.id, valid_to=last.valid_to)
            elif (there[key].namespace, key) not in changed:
                was = there[key]  # it is as it was before it was superseded
                metadata = {name: value for name, value in was.extra_metadata.items() if name != WOULD_END}
                end = moment_field(was.extra_metadata, WOULD_END)
                now[key] = replace(was, superseded_by=None, valid_to=end, extra_metadata=metadata)
        if successor is not None:
            others = [key for key in successor.supersedes if key != last.id]
            now[successor.id] = replace(successor, supersedes=tuple(dict.fromkeys([*others, *freed])))
    return [put_of(one, expected=one.version) for key, one in now.items() if one is not there[key]]


def _key(label: str, change: Changed) -> Key:
    return (label, *change.place), change.key


def _row(key: Key, state: State) -> Row:
    """The row at ``key`` in ``state``."""
    return Row(
        namespace=key[0],
        key=key[1],
        value=dict(state.value),
        version=state.version,
        seq=0,
        created_at=state.created_at,
        updated_at=state.updated_at,
    )
