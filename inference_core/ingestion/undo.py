"""Undo: reverts what a session, a job or an agent has changed, or all changes of a period, whatever operation did them.

Work on messages, a job, leaves a note of how it changed a user's memories. The audit events say which rows were
changed, the kept versions what they held. A row is rebuilt from its state before the first change that is undone, with
the later changes by others applied on top, field by field. A memory that was moved into another category has been in
several rows. They are one line: its changes are reverted, or stay, wherever it was when they were made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from inference_core.effects import Operation
from inference_core.errors import InvalidInput, VersionConflict
from inference_core.ingestion.consolidation import REINFORCED, MemoryChanges
from inference_core.lifecycle.forgetting import restore_archived
from inference_core.memory.audit import AuditEvent, Cause, Changed
from inference_core.memory.namespaces import (
    FORGOTTEN,
    PENDING,
    USAGE,
    Namespace,
    encode_label,
    holds_memories,
    holds_pending,
    sidecar_namespace,
)
from inference_core.memory.record import JOB, WOULD_END, MemoryRecord
from inference_core.memory.text import encode_json, mapping_field, moment_field, text_field
from inference_core.outbox.messages import Extraction, marks_of, mended, session_label, session_name
from inference_core.outbox.outbox import DEAD, DEAD_LIST, KEPT, OUTBOX, RESULT, STATE
from inference_core.services.operations.audit import events_of
from inference_core.services.operations.review import pending_rows
from inference_core.services.operations.scope import (
    MemoryScope,
    UserId,
    checked_moment,
    is_known,
    put_of,
    record_of,
    records_of,
    retried,
)
from inference_core.stores.backend import Check, Key, Put, Remove, Row, Write, beside
from inference_core.stores.engine import StoreEngine
from inference_core.stores.rules.versions import State, is_versioned, place_of, states_in, versions_key

JOBS: Final = "jobs"
"""Second label of the namespace, below the user, that holds the notes."""
UNDO: Final = "undo"
_MAX_PROBLEMS: Final = 200
_OF_MESSAGES: Final = 3
"""How many labels the namespace of a partition's messages has; tasks, leases and sources of summaries have more."""
_MOVES: Final = frozenset({"forget", "restore"})
_MISSING: Final = object()
Step = tuple[AuditEvent, Changed, Changed]
"""An event, what it took from a row and what it put into one: the same change, unless it moved a memory."""


def job_put(
    scope: MemoryScope, user_id: UserId, session_id: str | None, changes: MemoryChanges, extraction: Extraction
) -> Put:
    """The write that notes what a job did; it fails if the job has a note already."""
    places = {record.id: list(record.namespace) for record in changes.changed.values()}
    value: dict[str, Any] = {
        "session": session_name(session_id),
        "places": places,
        "added": changes.added,
        "reinforced": changes.reinforced,
        "superseded": changes.superseded,
        "before": changes.before,
        "problems": [mended(problem) for problem in (*extraction.problems, *changes.problems)][:_MAX_PROBLEMS],
        "model_calls": extraction.model_calls,
        "input_tokens": extraction.input_tokens,
        "output_tokens": extraction.output_tokens,
    }
    now = scope.clock.now()
    text = encode_json(value, what="job")
    return Put(namespace=_jobs(user_id), key=changes.job_id, value=text, updated_at=now, expected=0)


async def is_done(scope: MemoryScope, user_id: UserId, job_id: str) -> bool:
    """Whether the job has a note, so its changes are written. Raises StoreError."""
    (row,) = await scope.engine.get([(_jobs(user_id), job_id)])
    return row is not None


def jobs(
    scope: MemoryScope, user_id: UserId, session_id: str | None = None, limit: int | None = None
) -> Operation[list[Row]]:
    """The jobs on the user's messages (of one session, if given), the newest first; at most ``limit``, if given."""
    name = session_name(session_id)
    return scope.engine.scan(
        [_jobs(user_id)], accepts=lambda row: name is None or row.value["session"] == name, limit=limit
    )


def count_jobs(scope: MemoryScope, user_id: UserId) -> Operation[int]:
    """How many jobs there are on the user's messages."""
    return scope.engine.count([_jobs(user_id)])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What to undo: the changes that match all that is given. ``start`` is inclusive, ``end`` is not.

    ``added`` are the memories that the notes of the chosen jobs name.
    """

    job_id: str | None
    session_id: str | None
    agent: str | None
    start: datetime | None
    end: datetime | None
    added: frozenset[str]

    @property
    def is_whole(self) -> bool:
        """Whether all of a job or a session is undone, whichever agent did it and when."""
        return self.agent is self.start is self.end is None

    def matches(self, event: AuditEvent) -> bool:
        """Whether ``event`` is to be undone."""
        return (
            self.job_id in (None, event.job)
            and (self.session_id is None or event.actor.thread_id in self._sessions)
            and self.agent in (None, event.actor.agent)
            and (self.start is None or event.at >= self.start)
            and (self.end is None or event.at < self.end)
        )

    def drops(self, memory: MemoryRecord) -> bool:
        """Whether ``memory`` is to go though no event says that the session or the job added it.

        It was kept word for word outside a run, or by an earlier version of this package.
        """
        source = memory.source
        is_said = self.session_id is not None and bool(source.message_ids or source.thread_id)
        is_of_session = is_said and bool(self._sessions & {memory.session_id, source.thread_id})
        is_added = memory.id in self.added and JOB in memory.extra_metadata  # else it was saved since
        return self.is_whole and (is_added or is_of_session)

    @property
    def _sessions(self) -> set[str | None]:
        return {session_name(self.session_id), session_label(self.session_id), self.session_id}


async def undo_changes(
    scope: MemoryScope,
    user_id: UserId,
    *,
    job_id: str | None = None,
    session_id: str | None = None,
    agent: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    dry_run: bool = False,
    outboxes: Sequence[StoreEngine] = (),
) -> UndoReport:
    """Undoes the changes of the user's memories that match all given criteria: job, session, agent and time.

    The memories are then as they were: what was added is removed, even if it was changed or forgotten since; what was
    changed or deleted is restored, also where a tool did it; what was approved or rejected waits again. Later changes
    by others stay, and a pinned memory is never removed. ``since`` is inclusive, ``until`` is not. Events that another
    undo has already undone are skipped.

    With a session and neither an agent nor a time, the session's waiting and dead messages are removed too, also from
    the ``outboxes`` in other databases, and so are memories that hold its messages word for word. With a session or a
    job, and neither an agent nor a time, its memories that wait for confirmation are removed as well. ``dry_run`` only
    reports. Earlier states are kept for the service's ``deleted_days``. Raises InvalidInput if no criterion is given,
    Held if the user has a legal hold, VersionConflict if others keep changing the memories, StoreError.
    """
    if all(given is None for given in (job_id, session_id, agent, since, until)):
        raise InvalidInput("Say what to undo: a job, a session, an agent or a time")
    start, end = checked_moment(since, "since"), checked_moment(until, "until")
    label = encode_label(user_id)
    if not dry_run:
        await scope.engine.check_holds(label)
    notes = list[Row]()
    if job_id is not None or session_id is not None:
        notes = [row for row in await jobs(scope, user_id, session_id) if job_id in (None, row.key)]
    added = frozenset(key for row in notes for key in row.value["added"])
    choice = _Choice(job_id=job_id, session_id=session_id, agent=agent, start=start, end=end, added=added)
    if not choice.is_whole:
        return await retried(partial(_undone, scope, user_id, choice, dry_run=dry_run))
    if session_id is not None and not dry_run:
        # The outboxes first: a worker may still make memories of what waits there, and those are undone below.
        places = [replace(scope, engine=engine) for engine in (*outboxes, scope.engine)]
        await _drop_waiting(places, user_id, session_id)
    also = [Remove(namespace=row.namespace, key=row.key) for row in notes]
    report = await retried(partial(_undone, scope, user_id, choice, dry_run=dry_run, also=also))
    for row in await pending_rows(scope, user_id, session_id=session_id, job_id=job_id) if not dry_run else ():
        with suppress(VersionConflict):  # somebody has just decided
            await scope.write([Remove(namespace=row.namespace, key=row.key, expected=row.version)], UNDO)
    names = await scope.engine.namespaces((label,))
    rows = await scope.engine.scan([name for name in names if holds_memories(name)])
    done = {*report.removed, *report.restored, *report.kept, *report.lost}
    left = [record for record in records_of(rows) if record.id not in done and choice.drops(record)]
    gone = {(record.namespace, record.id) for record in left if not record.pinned}
    if gone and not dry_run:
        links = await _relinked(scope, user_id, [row for row in rows if (row.namespace, row.key) in gone])
        await scope.write([*(Remove(namespace=home, key=key) for home, key in gone), *links], UNDO)
        report.restored += [link.key for link in links]
    report.removed += [record.id for record in left if not record.pinned]
    report.kept += [record.id for record in left if record.pinned]
    return report


async def _drop_waiting(places: Sequence[MemoryScope], user_id: UserId, session_id: str) -> None:
    """Removes the session's messages and scheduled summary from the outbox, the dead letters and the kept messages.

    What waited leaves its mark, so that it is not taken in again. A worker that has claimed the messages finds them
    gone, and writes nothing; if the outbox is in another database, it may just have written memories. Raises
    StoreError.
    """
    session = session_name(session_id)
    for scope in places:
        names = await scope.engine.namespaces((encode_label(user_id),))
        for name in [name for name in names if len(name) > 1 and name[1] in (OUTBOX, DEAD, KEPT)]:
            rows = await scope.engine.scan([name])
            gone = [row for row in rows if row.value.get("session") == session]
            writes: list[Write] = [Remove(namespace=name, key=row.key) for row in gone]
            if len(name) == _OF_MESSAGES and name[1] == OUTBOX:  # else the thread's next run would put them in again
                now, marks = scope.clock.now(), marks_of(user_id)
                writes += [Put(namespace=marks, key=row.key, value="{}", updated_at=now) for row in gone]
            if name[1] == DEAD:
                listed = beside(scope.engine.backend, DEAD_LIST, name[0])
                writes += [Remove(namespace=listed, key=row.key) for row in gone]
            elif name[1] == OUTBOX and gone:
                writes.append(Remove(namespace=(*name, STATE), key=RESULT))
            if writes:
                await scope.write(writes, "undo")


async def _undone(
    scope: MemoryScope, user_id: UserId, choice: _Choice, *, dry_run: bool, also: Sequence[Write] = ()
) -> UndoReport:
    """Undoes the events that match, in one transaction with the writes ``also``. Raises VersionConflict, StoreError."""
    label = encode_label(user_id)
    events = await events_of(scope.engine, user_id)
    matching = {event.id for event in events if choice.matches(event)}
    passed_over = _taken_back(events, matching)
    history = _History(label, events, matching - passed_over, passed_over)
    if not dry_run and await _unforgotten(scope, user_id, history):
        history = replace(history, events=await events_of(scope.engine, user_id))
    homes = list(dict.fromkeys(map(versions_key, history.places)))
    rows = await scope.engine.get([*history.places, *homes])
    current = dict(zip(history.places, rows, strict=False))
    kept = dict(zip(homes, rows[len(history.places) :], strict=True))
    targets, last, unknown = history.targets(current, kept, scope.clock.now())
    targets = {
        key: target if target and _holds(_row(key, target, current[key]), scope, choice) else None
        for key, target in targets.items()
    }
    staying = _staying(targets, current, last)
    report = UndoReport(lost=list(dict.fromkeys(unknown)), kept=[key for _, key in staying])
    targets = {key: target for key, target in targets.items() if key[1] not in {*report.lost, *report.kept}}
    writes = [write for key, target in targets.items() if (write := _write(key, target, current[key]))]
    changed = {(write.namespace, write.key) for write in writes if holds_memories(write.namespace)}
    report.restored = [key for place, key in sorted(changed) if targets[place, key] is not None]
    report.removed = [key for _, key in sorted(changed) if key not in report.restored]
    report.waiting = sorted(
        write.key for write in writes if isinstance(write, Put) and holds_pending(write.namespace) and write.kind
    )
    # If a period includes an earlier undo of itself, undoing it again finds nothing left to do.
    is_new = not history.chosen <= _taken_back(events, ()) | {one.id for one in events if one.operation == UNDO}
    if dry_run or not (writes or also or is_new):
        return report
    left = [row for key, row in current.items() if row and key in changed and targets[key] is None]
    gone = [row for row in left if row.key in report.removed]
    again = [_row(key, target, current[key]) for key, target in targets.items() if target and key in changed]
    links = await _relinked(scope, user_id, gone, again)
    named = {(link.namespace, link.key) for link in links}
    # Where pinned memories stay and nothing else is left to do, their checks alone carry the event of the undo.
    checks = [Check(namespace=key[0], key=key[1], expected=row.version) for key, row in staying.items()]
    batch: list[Write] = [
        *checks,
        *(write for write in writes if (write.namespace, write.key) not in named),
        *links,
        *also,
    ]
    # A removal takes the archived row of the same id along unless the batch names it, so these checks keep it.
    aside = [(sidecar_namespace(row.namespace, FORGOTTEN), row.key) for row in left]
    archived = await scope.engine.get([key for key in aside if key not in targets])
    batch += [Check(namespace=row.namespace, key=row.key, expected=row.version) for row in archived if row]
    cause = Cause(
        at=scope.clock.now(),
        operation=UNDO,
        actor=scope.actor,
        keep_until=scope.kept_until,
        undone=tuple(sorted(history.chosen)),
        is_told=True,
    )
    if batch:
        await scope.engine.write(batch, cause=cause, ages=False)
    return report


@dataclass(slots=True)
class _History:
    """The ``events`` of the user with the ``label``, the oldest first, and the ids of the ``chosen`` ones to undo.

    ``passed_over`` are those that other undos have undone. ``touched`` are the rows that the chosen events have
    changed, ``places`` also those where the same memories have been.
    """

    label: str
    events: Sequence[AuditEvent]
    chosen: set[str]
    passed_over: set[str]
    touched: set[Key] = field(init=False)
    places: list[Key] = field(init=False)
    _moved: list[set[Key]] = field(init=False)

    def __post_init__(self) -> None:
        changes = (change for event in self.events if event.id in self.chosen for change in event.changes)
        self.touched = {key for key in map(self._key, changes) if is_versioned(key[0])}
        self._moved = [keys for keys in self._lines_of_moved().values() if keys & self.touched]
        self.places = sorted(self.touched.union(*self._moved))

    def targets(
        self, current: Mapping[Key, Row | None], kept: Mapping[Key, Row | None], now: datetime
    ) -> tuple[dict[Key, State | None], dict[Key, str], list[str]]:
        """The states without the chosen events, None where nothing is, from ``current`` rows and ``kept`` versions.

        Also which operation was the last to change each row, and the ids of those whose earlier states are lost.
        """
        targets, last, lost = dict[Key, State | None](), dict[Key, str](), list[str]()
        # One line for each row, or for all where a memory has been, unless there are several memories of its id.
        together = [sorted(keys) for keys in self._moved if sum(current[key] is not None for key in keys) <= 1]
        alone = [[key] for key in sorted(self.touched.difference(*together))]
        for line in [*together, *alone]:
            steps = self._steps(line)
            last |= dict.fromkeys(line, steps[-1][0].operation)
            found = ((key, state) for key in line for state in states_in(kept[versions_key(key)], now))
            states = {(key, state.place, state.version): state for key, state in found}
            there = next((row for key in line if (row := current[key])), None)
            try:
                place, target = self._target(steps, states, there)
            except LookupError:
                lost += [] if holds_pending(line[0][0]) else [line[0][1]]  # if it waited, the decision stands
                continue
            targets |= dict.fromkeys(line)
            targets[place] = target
        return targets, last, lost

    def _key(self, change: Changed) -> Key:
        return (self.label, *change.place), change.key

    def _lines_of_moved(self) -> dict[str, set[Key]]:
        """Where the memories have been that an event has moved into another category, by id."""
        found, unclear = dict[str, set[Key]](), set[str]()
        for event in self.events:
            own = defaultdict[str, list[Changed]](list)
            for change in event.changes:
                if holds_memories(self._key(change)[0]):
                    own[change.key].append(change)
            for name, changes in own.items():
                if sorted((bool(change.before), change.after != 0) for change in changes) == [
                    (False, True),
                    (True, False),
                ]:
                    found.setdefault(name, set()).update(self._key(change) for change in changes)
                elif len(changes) > 1:  # there were several memories with this id
                    unclear.add(name)
        return {name: keys for name, keys in found.items() if name not in unclear}

    def _steps(self, line: Collection[Key]) -> list[Step]:
        """The changes of the rows in ``line``, the oldest first."""
        steps: list[Step] = []
        for event in self.events:
            if own := [change for change in event.changes if self._key(change) in line]:
                own.sort(key=lambda change: change.after == 0, reverse=True)
                steps.append((event, own[0], own[-1]))
        return steps

    def _target(
        self,
        history: Sequence[Step],
        states: Mapping[tuple[Key, str, int], State],
        row: Row | None,
    ) -> tuple[Key, State | None]:
        """What a line, now in ``row``, is without the undone events, and where. Raises LookupError if that is lost."""
        place = place_of(self._key(history[0][1])[0])
        ids = [event.id for event, _, _ in history]
        skipped = {id_ for id_ in ids if id_ in self.chosen or id_ in self.passed_over}
        start = min(at for at, one in enumerate(ids) if one in self.chosen)
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
            return states[self._key(change), place, -1 if change.before is None else change.before]

        target, home = before(start), self._key(history[start][1])
        if place == USAGE:  # recalls are counted without events
            return home, target
        # A move to the archive, followed by the move back, changes nothing: both are passed over.
        leaves = {
            index
            for at in range(start, len(history) - 1)
            if history[at][0].operation in _MOVES
            and history[at][1].after == 0
            and history[at + 1][0].operation in _MOVES
            for index in (at, at + 1)
        }
        for at in range(start, len(history)):
            if ids[at] in skipped or at in leaves:
                continue
            # Somebody else has made this change, so it stays.
            new = before(at + 1) if at + 1 < len(history) else State.of(row) if row else None
            old = new and before(at)
            # Of what waits, the last decision counts; what somebody has saved since in the same words stays.
            is_saved_since = target is None and old is not None and _job_of(old) and new and not _job_of(new)
            if new is None or old is None or place == PENDING or is_saved_since:
                target, home = new, self._key(history[at][2])
            elif target is not None:  # else it did not exist before, and goes even if it was changed since
                value = _merged(target.value, old.value, new.value)
                target = replace(new, value=value, kind=text_field(value, "memory_type") or new.kind)
                home = self._key(history[at][2]) if history[at][1] != history[at][2] else home
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


def _taken_back(events: Sequence[AuditEvent], chosen: Collection[str]) -> set[str]:
    """The ids of events that undos have undone, except for undos that are ``chosen`` or were undone themselves."""
    found: set[str] = set()
    for event in reversed(events):
        if event.id not in chosen and event.id not in found:
            found.update(event.undone)
    return found


async def _unforgotten(scope: MemoryScope, user_id: UserId, history: _History) -> bool:
    """Restores what a policy has forgotten of the touched memories, and of those linked with them.

    Only what was forgotten after the first of the chosen events. Returns whether anything was restored.
    """
    events, chosen = history.events, history.chosen
    first = next((at for at, event in enumerate(events) if event.id in chosen), len(events))
    gone = [event for event in events[first:] if event.operation == "forget" and event.id not in chosen]
    since = {change.key for event in gone for change in event.changes if change.after == 0}
    found = False
    waiting = {key for _, key in history.touched} & since
    done: set[str] = set()
    while waiting:
        report = await restore_archived(scope, user_id, sorted(waiting), deleted=False)
        found = found or bool(report.restored)
        done |= waiting
        records = await _records(scope, user_id, waiting)
        links = {key for record in records.values() for key in (*record.supersedes, record.superseded_by) if key}
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


def _holds(row: Row, scope: MemoryScope, choice: _Choice) -> bool:
    """Whether ``row`` may be there again: it has not expired, and holds no memory that ``choice`` drops."""
    if row.expiry and row.expiry.at <= scope.clock.now():
        return False
    return not (holds_memories(row.namespace) and is_known(row) and choice.drops(record_of(row)))


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


async def _relinked(scope: MemoryScope, user_id: UserId, gone: Sequence[Row], again: Sequence[Row] = ()) -> list[Put]:
    """The writes that close the gap that the rows ``gone`` leave in chains of memories that superseded each other.

    What they superseded is superseded by what came later, or holds again. ``again`` are restored rows in their new
    state.
    """
    removed = {record.id: record for record in (record_of(row) for row in gone if is_known(row))}
    linked = {key for record in removed.values() for key in (*record.supersedes, record.superseded_by) if key}
    ends = {record.superseded_by for record in removed.values() if record.superseded_by}
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
    return [put_of(record, expected=record.version) for key, record in now.items() if record is not there[key]]


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


def _jobs(user_id: UserId) -> Namespace:
    return (encode_label(user_id), JOBS)
