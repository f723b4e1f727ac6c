"""The background work of a store: one thread that runs its chores in turn, and deferred writes.

A chore does a bounded portion of its work at a time and then lets the others have their turn. Whatever one of them
raises is counted and logged, and ends neither the thread nor another chore. Logs name the type of an error and not its
message, which may quote what is stored.

Access counts are such work: how often memories are recalled, and when last. The figures of a memory are a row of their
own, in a namespace beside the memory's. So noting a recall changes neither the memory nor its version nor any index,
and never blocks a writer of the memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple

from inference_core.errors import ConfigurationError, InferenceCoreError, UserErased, VersionConflict, only_warned
from inference_core.memory.audit import Actor, Cause
from inference_core.memory.namespaces import FORGOTTEN, USAGE, holds_memories, sidecar_namespace
from inference_core.memory.text import encode_json, moment_field
from inference_core.stores.backend import (
    Backend,
    Check,
    Expire,
    Key,
    Put,
    Remove,
    Row,
    States,
    Touch,
    Write,
    WriteRule,
    part_of,
)
from inference_core.stores.rules.audit_log import AuditLog
from inference_core.stores.rules.erasure_epoch import Fences, fences_of, roots_of
from inference_core.stores.rules.versions import is_audited
from inference_core.stores.writer import GroupWriter

_LOG = logging.getLogger(__name__)
_PATIENCE_S: Final = (0.5, 2.0, 10.0, 60.0)
"""How long a chore rests after its first failure in a row, its second, and so on."""
_PARTING_S: Final = 10.0
_NEVER: Final = float("inf")
_EXPIRED_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class ChoreReport:
    """How often a chore has run and failed; ``last_error`` is the type of its last failure."""

    name: str
    runs: int
    failures: int
    last_error: str | None


@dataclass(slots=True)
class _Chore:
    name: str
    work: Callable[[], object]
    interval: float | None
    is_flushed: bool
    due: float
    not_before: float = 0.0
    in_a_row: int = 0
    runs: int = 0
    failures: int = 0
    last_error: str | None = None


class Maintenance:
    """One daemon thread for all chores of a store. Only `close` waits for them."""

    def __init__(self) -> None:
        self._chores: dict[str, _Chore] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(
        self, name: str, work: Callable[[], object], interval: float | None = None, *, is_flushed: bool = False
    ) -> None:
        """Runs ``work`` every ``interval`` seconds (None: only when woken), and whenever ``name`` is woken.

        One call does a portion, and returns whether there is more to do at once. It returns None if it only started
        something whose outcome a later call reports; its count of failures in a row then stays. ``is_flushed``: `close`
        also calls it until nothing is left. Raises ConfigurationError if there is such a chore.
        """
        with self._changed:
            if name in self._chores:
                raise ConfigurationError(f"There is a chore {name!r} already")
            due = _NEVER if interval is None else time.monotonic() + interval
            self._chores[name] = _Chore(name, work, interval, is_flushed, due)
            if self._thread is None:  # not before: a store that cannot be opened would leave its thread behind
                thread = threading.Thread(target=self._run, name="memory-maintenance", daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify()

    def wake(self, name: str, after: float = 0.0) -> None:
        """Makes the chore due in ``after`` seconds at the latest, or once it has rested if it has just failed."""
        with self._changed:
            chore = self._chores[name]
            due = max(time.monotonic() + after, chore.not_before)
            if due < chore.due:  # else the thread wakes soon enough by itself; callers wake it with every turn
                chore.due = due
                self._changed.notify()

    def report(self) -> list[ChoreReport]:
        """What the chores have done so far."""
        with self._changed:
            return [
                ChoreReport(chore.name, chore.runs, chore.failures, chore.last_error) for chore in self._chores.values()
            ]

    def close(self, timeout: float = _PARTING_S) -> None:
        """Ends the thread after its current portion and what has to be flushed; waits ``timeout`` seconds for that."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    break
                chore = min(self._chores.values(), key=lambda chore: chore.due, default=None)
                left = _NEVER if chore is None else chore.due - time.monotonic()
                if chore is None or left > 0:
                    self._changed.wait(None if left == _NEVER else left)
                    continue
                # Set before the work begins, so that a wake-up during it is not lost.
                chore.due = _NEVER if chore.interval is None else time.monotonic() + chore.interval
            self._do(chore)
        for chore in list(self._chores.values()):
            while chore.is_flushed and self._do(chore):
                pass

    def _do(self, chore: _Chore) -> bool:
        """Runs ``chore`` for a portion. Returns whether there is more to do; False if it failed."""
        done, fault = None, None
        try:
            done = chore.work()
        except Exception as error:  # noqa: BLE001 - a fault in one chore must not end the others
            fault = error
        with self._changed:
            chore.runs += 1
            if done:
                chore.due = time.monotonic()
            if fault is None:
                if done is not None:
                    chore.in_a_row, chore.not_before = 0, 0.0
                return bool(done)
            pause = _PATIENCE_S[min(chore.in_a_row, len(_PATIENCE_S) - 1)]
            chore.in_a_row += 1
            chore.failures += 1
            chore.last_error = type(fault).__name__
            chore.due = chore.not_before = time.monotonic() + pause
        level = logging.INFO if isinstance(fault, InferenceCoreError) else logging.ERROR
        _LOG.log(level, "Chore %r failed (%s); it is tried again in %g s", chore.name, chore.last_error, pause)
        return False


def remove_expired(writer: GroupWriter, audit_log: AuditLog) -> bool:
    """Chore: removes expired rows, so that they take no room. Returns whether there may be more."""
    cause = Cause(at=datetime.now(UTC), operation="expire", actor=Actor(kind="worker"))
    removals: list[Future[list[int]]] = []
    for namespace, key in audit_log.rules.holds.expired(_EXPIRED_AT_ONCE):
        # A row that was extended, or removed by another sweeper, in this moment leaves no event.
        batch: list[Write] = [Expire(namespace=namespace, key=key, is_strict=is_audited(namespace))]
        if holds_memories(namespace):
            batch.append(Remove(namespace=sidecar_namespace(namespace, USAGE), key=key))
        removals.append(writer.submit(audit_log.recorded(batch, cause)))
    for removal in removals:
        with suppress(VersionConflict):
            removal.result()
    return bool(removals)


# Deferred writes: kept in memory for a moment, then written together.

DEFERRED_INTERVAL_S: Final = 1.0
"""How long deferred writes wait for others to join them."""
MOST_DEFERRED: Final = 1_000
"""At most this many writes wait; then the oldest are dropped."""
_DEFERRED_BATCH: Final = 100
_TIMEOUT_S: Final = 5.0


class DeferredWriter:
    """Keeps what is put here until `write_portion` is called; ``wake`` asks for that call.

    A crash loses what still waits, and so does a database that is away for long. Rows on a database that does not
    expire them itself are removed by whoever put them.
    """

    def __init__(self, writer: GroupWriter, wake: Callable[[], None], fences: Fences) -> None:
        self._writer = writer
        self._wake = wake
        self._fences = fences
        self._waiting: deque[_Deferred] = deque(maxlen=MOST_DEFERRED)
        self._flushing = threading.Lock()

    def put(self, *writes: Put | Remove | Touch) -> None:
        """Has ``writes`` written soon, unless the store is read-only; never waits and never raises."""
        if writes and self._writer.writable:
            for one in writes:
                roots = roots_of([one])
                self._waiting.append(_Deferred(one, self._fences.checks(roots) if roots else []))
            self._wake()

    def put_made(self, root: str, make: Callable[[], Put]) -> None:
        """Like `put` of the write of the user ``root`` that ``make`` returns, called just before it is written.

        A write that cannot be made is dropped and logged.
        """
        if self._writer.writable:
            self._waiting.append(_Deferred(make, self._fences.checks([root])))
            self._wake()

    def flush(self) -> None:
        """Writes what waits."""
        while self.write_portion():
            pass

    def write_portion(self) -> bool:
        """Writes a portion of what waits. Returns whether there is more. Writes that fail are dropped and logged."""
        # One call at a time: two at once would mix up the order of writes to the same row.
        with self._flushing:
            portion = [self._waiting.popleft() for _ in range(min(_DEFERRED_BATCH, len(self._waiting)))]
            made = [
                (write, (deferred.fence, part_of(self._writer.backend, write)))
                for deferred in portion
                if (write := deferred.made())
            ]
            for (fence, _), some in groupby(made, itemgetter(1)):  # one user's, once anybody was erased
                self._write([write for write, _ in some], fence)
            return bool(self._waiting)

    def _write(self, batch: Sequence[Write], fence: Sequence[Check]) -> None:
        """Writes ``batch`` with the checks ``fence``; if one user was erased meanwhile, what is of the others."""
        roots = roots_of(batch)
        try:
            try:
                self._writer.submit([*batch, self._fences.rule(roots, fence)]).result(_TIMEOUT_S)
            except UserErased:
                if len(roots) < 2:  # noqa: PLR2004 - it is that one
                    raise
                for root in roots:
                    self._write([write for write in batch if write.namespace[0] == root], fence)
        except (InferenceCoreError, TimeoutError) as error:
            why = str(error) or f"not written within {_TIMEOUT_S:g} s"
            _LOG.warning("Dropped %d deferred writes (access counts, receipts): %s", len(batch), why)


class _Deferred(NamedTuple):
    """A write or what makes it, and the fence checks to write with it, as they were known when it was put."""

    write: Put | Remove | Touch | Callable[[], Put]
    fence: list[Check]

    def made(self) -> Put | Remove | Touch | None:
        """The write; None if it cannot be made."""
        if not callable(self.write):
            return self.write
        time.sleep(0)  # a reply goes first: many writes that are made in a row would hold it up
        with only_warned(_LOG, "Dropped a deferred write (access counts, receipts): %s"):
            return self.write()
        return None


ACCESS_INTERVAL_S: Final = 30.0
MEMORIES_AT_ONCE: Final = 500
"""Once this many memories are noted, they are written before the interval is over."""
_MOST_NOTED: Final = 20_000
_PORTION: Final = 200


@dataclass(frozen=True, slots=True)
class Usage:
    """How often a memory was recalled, and when last; ``last`` None: never."""

    count: int = 0
    last: datetime | None = None

    def joined(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(self.count + other.count, max(filter(None, (self.last, other.last)), default=None))

    @classmethod
    def of(cls, row: Row | None) -> Usage:
        """The figures in ``row``; without a row, no recalls."""
        if row is None:
            return cls()
        count = row.value.get("count")
        return cls(count if isinstance(count, int) else 0, moment_field(row.value, "last"))


class AccessCounts:
    """Notes recalls in this process until they are written; calls ``wake`` when many wait.

    What is not yet written when the process dies is lost. While the database is away, notes are kept up to a bound.
    """

    def __init__(self, backend: Backend, writer: GroupWriter, wake: Callable[[], None] = lambda: None) -> None:
        self._backend = backend
        self._writer = writer
        self._fences = fences_of(backend)
        self._wake = wake
        self._noted: dict[str, dict[Key, Usage]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    def note(self, keys: Iterable[Key], at: datetime) -> None:
        """Notes that the memories at ``keys`` were recalled ``at``; ignores other rows. Never waits for the database.

        A read-only store keeps no figures.
        """
        if not self._backend.capabilities.writable:
            return
        with self._lock:
            for key in keys:
                if holds_memories(key[0]):
                    self._add(key, Usage(1, at))
            waiting = self._count
        if waiting >= MEMORIES_AT_ONCE:
            self._wake()

    def flush(self) -> None:
        """Writes what was noted so far. Raises StoreError; what could not be written stays noted."""
        with self._lock:
            portions = sum(-(-len(noted) // _PORTION) for noted in self._noted.values())
        for _ in range(portions):
            self.write_portion()

    def write_portion(self) -> bool:
        """Writes a portion of one user's figures. Returns whether to go on at once.

        Raises StoreError. What could not be written stays noted.
        """
        # Two locks: `_flushing` admits one portion at a time, also while the database works; `_lock` is not held during
        # that, so that `note` does not wait for the database.
        with self._flushing:
            with self._lock:
                user = next(iter(self._noted), None)
                if user is None:
                    return False
                of_user = self._noted[user]
                noted = {key: of_user.pop(key) for key in list(islice(of_user, _PORTION))}
                if not of_user:
                    del self._noted[user]
                self._count -= len(noted)
            fence = self._fences.rule([user])
            try:
                with suppress(UserErased):  # whose memories are not there any more
                    self._writer.submit([UsageRule(noted), fence]).result()
            except BaseException:
                with self._lock:
                    for key, usage in noted.items():
                        self._add(key, usage)
                raise
            return self._count > 0

    def _add(self, key: Key, usage: Usage) -> None:
        of_user = self._noted.get(key[0][0], {})
        if key in of_user:
            of_user[key] = of_user[key].joined(usage)
        elif self._count < _MOST_NOTED:
            self._noted.setdefault(key[0][0], of_user)[key] = usage
            self._count += 1


class UsageRule(WriteRule):
    """Adds ``noted`` to the figures of memories that are still there. Figures that cannot be read begin anew."""

    def __init__(self, noted: Mapping[Key, Usage]) -> None:
        self._noted = noted
        figures = [_figures_of(key) for key in noted]
        self.reads, self.makes = [*noted, *figures], [place for place, _ in figures]

    def check(self, before: States, after: States, now: datetime) -> Sequence[Write]:
        """The new figures."""
        del after
        puts: list[Write] = []
        for key, usage in self._noted.items():
            memory, known = before.get(key), before.get(_figures_of(key))
            if memory and memory.is_alive(now):
                row = known.row(*_figures_of(key)) if known and known.is_alive(now) else None
                puts.append(usage_put(key, Usage.of(row).joined(usage)))
        return puts


def _figures_of(key: Key) -> Key:
    return sidecar_namespace(key[0], USAGE), key[1]


def usage_put(key: Key, usage: Usage) -> Put:
    """The write that makes ``usage`` the figures of the memory at ``key``."""
    namespace, name = _figures_of(key)
    value = {"count": usage.count, "last": usage.last and usage.last.isoformat()}
    return Put(
        namespace=namespace,
        key=name,
        value=encode_json(value, what="access count"),
        updated_at=usage.last or datetime.now(UTC),
    )


def with_sidecars(batch: Sequence[Write]) -> list[Write]:
    """``batch``, and behind it the writes that remove the figures and earlier texts of the memories that it removes."""
    gone = [
        (sidecar_namespace(write.namespace, place), write.key)
        for write in batch
        if isinstance(write, Remove) and holds_memories(write.namespace)
        for place in (USAGE, FORGOTTEN)
    ]
    named = {(write.namespace, write.key) for write in batch} if gone else set[Key]()
    return [*batch, *(Remove(namespace=place, key=key) for place, key in gone if (place, key) not in named)]
