"""Undo: reverts what a session, a job or an agent has changed, or all changes of a period, whatever operation did them.

The audit events say which rows were changed, the kept versions what they held. A row is rebuilt from its state before
the first change that is undone, with the later changes by others applied on top, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from inference_core.effects import Operation
from inference_core.ingestion.reverting import Reverted
from inference_core.lifecycle.archive import restore_archived
from inference_core.memory.audit import AuditEvent, Cause
from inference_core.memory.namespaces import (
    FORGOTTEN,
    encode_label,
    holds_memories,
    holds_pending,
    sidecar_namespace,
)
from inference_core.memory.record import WOULD_END, MemoryRecord
from inference_core.memory.text import encode_json, moment_field
from inference_core.services.operations.audit import events_of
from inference_core.services.operations.scope import MemoryScope, UserId, is_known, put_of, record_of, retried
from inference_core.stores.backend import Check, Key, Put, Remove, Row, Write
from inference_core.stores.governance.versions import State, versions_key

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
    matching = {event.id for event in events if is_chosen(event)}
    passed_over = _taken_back(events, matching)
    chosen = matching - passed_over
    label = encode_label(user_id)
    undone = Reverted(label, events, chosen, passed_over)
    if not dry_run and (yield from _unforgotten(scope, user_id, events, chosen, {key for _, key in undone.touched})):
        events = yield from events_of(scope.engine, user_id)
        undone = Reverted(label, events, chosen, passed_over)
    homes = list(dict.fromkeys(map(versions_key, undone.places)))
    rows = yield from scope.engine.get([*undone.places, *homes])
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
    links = yield from relinked(scope, user_id, gone, again)
    named = {(link.namespace, link.key) for link in links}
    # Where pinned memories stay and nothing else is left to do, their checks alone carry the event of the undo.
    checks = [Check(namespace=key[0], key=key[1], expected=row.version) for key, row in staying.items()]
    batch: list[Write] = [*checks, *(one for one in writes if (one.namespace, one.key) not in named), *links, *also]
    # A removal takes the archived row of the same id along unless the batch names it, so these checks keep it.
    aside = [(sidecar_namespace(row.namespace, FORGOTTEN), row.key) for row in left]
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


def _taken_back(events: Sequence[AuditEvent], chosen: Collection[str]) -> set[str]:
    """The ids of events that undos have undone, except for undos that are ``chosen`` or were undone themselves."""
    found: set[str] = set()
    for event in reversed(events):
        if event.id not in chosen and event.id not in found:
            found.update(event.undone)
    return found


def _unforgotten(
    scope: MemoryScope, user_id: UserId, events: Sequence[AuditEvent], chosen: Collection[str], keys: Collection[str]
) -> Operation[bool]:
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


def relinked(
    scope: MemoryScope, user_id: UserId, gone: Sequence[Row], again: Sequence[Row] = ()
) -> Operation[list[Put]]:
    """The writes that close the gap that the rows ``gone`` leave in chains of memories that superseded each other.

    What they superseded is superseded by what came later, or holds again. ``again`` are restored rows in their new
    state.
    """
    removed = {record.id: record for record in (record_of(row) for row in gone if is_known(row))}
    linked = {key for one in removed.values() for key in (*one.supersedes, one.superseded_by) if key}
    ends = {one.superseded_by for one in removed.values() if one.superseded_by}
    current = yield from _records(scope, user_id, (linked | ends) - removed.keys())
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
