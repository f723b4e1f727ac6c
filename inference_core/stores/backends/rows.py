"""What the databases have in common: the state of a row, and the state after a write.

`WriteSet` computes what a batch changes. `TableBackend` answers queries from tables of rows in this process; the
backends for ``memory://`` and files derive from it.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice
from typing import Final, TypeGuard

from inference_core.clock import Clock, SystemClock, aware
from inference_core.errors import StoreError, VersionConflict
from inference_core.memory.namespaces import AUDIT, Namespace
from inference_core.retrieval.documents import NO_EPOCH, Change, Epoch, Term
from inference_core.stores.backend import (
    LOST,
    Batch,
    Check,
    Cursor,
    Expire,
    Head,
    Key,
    PageRequest,
    Place,
    Put,
    Remove,
    Rewrite,
    Row,
    RowState,
    SetVector,
    Tally,
    Touch,
    UnembeddedRow,
    Write,
    WriteRule,
    keys_of,
    pack_namespace,
    to_micros,
)

_EXPECTING: Final = (Put, Remove, Check)
_SAME: Final = (SetVector, Rewrite)
"""Writes that leave the version as it is."""
MAX_WORDS: Final = 64
"""A scan for words looks for at most this many words of a query."""


@lru_cache(maxsize=256, typed=True)
def lost(seq: object, version: object) -> RowState:
    """The state of an unreadable row, which may still be replaced and deleted; keeps its numbers if they are sound."""
    epoch = datetime.fromtimestamp(0, UTC)
    known = seq if type(seq) is int else 0
    return RowState(known, version if type(version) is int else 1, "", epoch, epoch, LOST)


class WriteSet:
    """Applies a batch in memory, and stores nothing. ``find`` returns a row's state, ``head`` a scope's last number.

    Afterwards, ``states`` and ``heads`` hold what to store, and ``checked`` the keys that a Check or a rule has read.
    ``has_log``: the database has a log for new audit events, which are then in ``logged``.
    """

    def __init__(
        self,
        find: Callable[[Key], RowState | None],
        head: Callable[[Namespace], int],
        now: datetime,
        *,
        has_log: bool = False,
    ) -> None:
        self._find = find
        self._head = head
        self._now = now
        self.states: dict[Key, RowState] = {}
        self.checked: set[Key] = set()
        self.heads: dict[Namespace, int] = {}
        self.logged: list[Put] = []
        self._has_log = has_log

    def apply(self, batch: Batch) -> list[int]:
        """The version after each write, 0 for a row that is gone. Raises VersionConflict, StoreError."""
        versions: list[int] = []
        before: dict[Key, RowState] | None = None
        try:
            for write in batch:
                if not isinstance(write, WriteRule):
                    versions.append(self._apply(write))
                    continue
                if before is None:
                    places = keys_of([batch])
                    self.checked.update(places)
                    before = {place: state for place in places if (state := self._find(place))}
                for added in write.check(before, self.states, self._now):
                    self._apply(added)
                versions.append(0)
        except OverflowError as error:
            raise StoreError(f"An instant lies outside of the calendar: {error}") from error
        return versions

    def _apply(self, write: Write) -> int:
        if self._has_log and is_event(write):
            self.logged.append(write)
            return 1
        address = (write.namespace, write.key)
        state = self.states.get(address) or self._find(address)
        alive = state if state and state.is_alive(self._now) else None
        version = alive.version if alive else 0
        if isinstance(write, _EXPECTING) and write.expected not in (None, version):
            raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
        if isinstance(write, Check):
            self.checked.add(address)
            return version
        if isinstance(write, Touch):
            if alive and alive.expiry and version == write.version:
                self.states[address] = replace(alive, expiry=alive.expiry._replace(at=aware(write.at)))
            return version
        head = self.heads.get(write.namespace)
        seq = (self._head(write.namespace) if head is None else head) + 1
        changed = _changed(write, state, self._now, seq)
        if changed is None:
            if isinstance(write, Expire) and write.is_strict:
                raise VersionConflict(f"{write.key!r} has not expired, or is gone")
            return version
        self.heads[write.namespace], self.states[address] = seq, changed
        return version if isinstance(write, _SAME) else changed.version if isinstance(write, Put) else 0


def is_event(write: Write | WriteRule) -> TypeGuard[Put]:
    """Whether ``write`` puts a new audit event, on which nothing else in its batch depends."""
    return isinstance(write, Put) and write.is_new and write.namespace[1:] == (AUDIT,)


def _changed(
    write: Put | Remove | SetVector | Rewrite | Expire, state: RowState | None, now: datetime, seq: int
) -> RowState | None:
    """The state after ``write``, which has the number ``seq``; None if nothing changes."""
    if isinstance(write, Put):
        updated = aware(write.updated_at)
        first = state.created_at if state and state.is_alive(now) else updated
        return RowState(
            seq=seq,
            version=max(state.version if state else 0, write.above) + 1,
            kind=write.kind,
            created_at=aware(write.created_at) if write.created_at else first,
            updated_at=updated,
            value=write.value,
            document=write.document,
            expiry=write.expiry,
        )
    if state is None or state.value is None:
        return None
    # The database found the rows to expire; a state that cannot be read does not say itself that it has expired.
    if isinstance(write, Remove) or (isinstance(write, Expire) and (state.is_expired(now) or state.value == LOST)):
        return state.deleted(seq)
    if isinstance(write, Expire) or state.version != write.version:
        return None
    if isinstance(write, Rewrite):
        return replace(state, seq=seq, value=write.value, document=write.document)
    if state.document is None:
        return None
    embedded = state.document._replace(model=write.model, vector=write.vector, tokens=write.tokens)
    return replace(state, seq=seq, document=embedded)


def holding_most(changes: Iterable[Change], words: Sequence[Term], limit: int) -> list[Change]:
    """At most ``limit`` of ``changes``, those that hold the most of ``words``; the last written win ties."""
    wanted = [forms_of(word) for word in words[:MAX_WORDS]]
    found: list[tuple[int, int, Change]] = []
    for change in changes:
        if change.document:
            terms = set(change.document.terms.split())
            if count := sum(not terms.isdisjoint(forms) for forms in wanted):
                found.append((count, change.seq, change))
    return [change for _, _, change in heapq.nlargest(limit, found, key=lambda one: one[:2])]


def forms_of(word: Term) -> tuple[str, ...]:
    """Every form in which a document may hold ``word``."""
    return (word,) if isinstance(word, str) else word


def tally(rows: Iterable[tuple[Namespace, str, datetime]]) -> list[Tally]:
    """How many ``rows`` there are, each given by its namespace, kind and creation, by namespace and kind."""
    found: dict[tuple[Namespace, str], tuple[int, datetime]] = {}
    for namespace, kind, created in rows:
        group = namespace, kind
        count, oldest = found.get(group, (0, created))
        found[group] = count + 1, min(oldest, created)
    return [Tally(*group, count, oldest) for group, (count, oldest) in found.items()]


class Table:
    """The newest state of each key, deleted and expired ones included. Not safe to read while a thread writes."""

    def __init__(self, epoch: Epoch = NO_EPOCH) -> None:
        self.epoch = epoch
        self._scopes: dict[Namespace, dict[str, RowState]] = {}
        self._heads: dict[Namespace, int] = {}
        self._orders: dict[Namespace, list[tuple[int, str]]] = {}
        """Ages and keys of the rows of a scope in the order of a page, for scopes of which a page was read."""

    def copy(self) -> Table:
        """A table with the same states that changes independently."""
        other = Table(self.epoch)
        other._scopes = {namespace: dict(states) for namespace, states in self._scopes.items()}
        other._heads = dict(self._heads)
        return other

    def set(self, key: Key, state: RowState) -> None:
        """Stores the newest state of ``key`` and advances the head of its scope."""
        namespace, name = key
        states = self._scopes.setdefault(namespace, {})
        if (order := self._orders.get(namespace)) is not None:  # kept sorted: a large scope is slow to sort
            old = states.get(name)
            if old and old.value is not None:
                del order[bisect_left(order, (_age(old), name))]
            if state.value is not None:
                insort(order, (_age(state), name))
        states[name] = state
        self._heads[namespace] = max(self.head(namespace), state.seq)

    def erase(self, root: str, also: Sequence[Key]) -> None:
        """Removes the rows of all namespaces that begin with ``root``, and the rows ``also``, without tombstones."""
        for namespace in [namespace for namespace in self._heads if namespace[0] == root]:
            for of_scope in (self._scopes, self._heads, self._orders):
                of_scope.pop(namespace, None)
        for namespace, key in also:
            self._scopes.get(namespace, {}).pop(key, None)
            self._orders.pop(namespace, None)

    def state(self, key: Key) -> RowState | None:
        """The state of ``key``."""
        return self._scopes.get(key[0], {}).get(key[1])

    def head(self, namespace: Namespace) -> int:
        """The sequence number of the last write of ``namespace``; 0 if it was never written."""
        return self._heads.get(namespace, 0)

    def states(self) -> Iterator[tuple[Key, RowState]]:
        """All states, including those of deleted keys."""
        return (
            ((namespace, key), state) for namespace, states in self._scopes.items() for key, state in states.items()
        )

    def alive(self, namespace: Namespace, now: datetime) -> Iterator[tuple[str, RowState]]:
        """The states of ``namespace`` that are neither deleted nor expired."""
        return ((key, state) for key, state in self._scopes.get(namespace, {}).items() if state.is_alive(now))

    def ordered(self, namespace: Namespace, after: Cursor | None) -> Iterator[tuple[Place, Namespace, RowState]]:
        """The states of ``namespace`` that are not deleted, after the cursor, newest first."""
        states, name = self._scopes.get(namespace, {}), pack_namespace(namespace)
        order = self._orders.get(namespace)
        if order is None:
            order = sorted((_age(state), key) for key, state in states.items() if state.value is not None)
            self._orders[namespace] = order
        start = 0
        if after is not None:
            created, last, of = after.place
            # A row of the same age and key comes after the cursor's if its namespace does.
            start = (bisect_left if name > of else bisect_right)(order, (created, last))
        return (((created, key, name), namespace, states[key]) for created, key in islice(order, start, None))

    def namespaces(self, prefix: Namespace, now: datetime) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        names = [name for name in self._scopes if name[: len(prefix)] == prefix]
        return [name for name in names if any(self.alive(name, now))]

    def follows(self, other: Table) -> bool:
        """Whether this may be a later state of ``other``: nothing that it holds is missing or another write."""

        def is_later(state: RowState | None, before: RowState) -> bool:
            if state is None or state.seq <= before.seq:
                return state is not None and (state.seq, state.value) == (before.seq, before.value)
            return True

        return all(is_later(self.state(key), before) for key, before in other.states())

    def changes(self, namespace: Namespace, since: int) -> list[Change]:
        """The newest state of every key written after ``since``, in the order of the writes."""
        states = [(key, state) for key, state in self._scopes.get(namespace, {}).items() if state.seq > since]
        return [state.change(key, self.epoch) for key, state in sorted(states, key=lambda found: found[1].seq)]

    def rows(self, root: str | None) -> Iterator[Row]:
        """The rows of one user or of all, including expired ones."""
        found = (state.row(*key) for key, state in self.states() if root in (None, key[0][0]))
        return (row for row in found if row)


class TableBackend(ABC):
    """Answers a Backend's queries from tables. A subclass finds the tables and implements everything that writes."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()

    @abstractmethod
    def _table(self, root: str) -> AbstractContextManager[Table]:
        """The table of the namespaces that begin with ``root``; it does not change within the context."""

    @abstractmethod
    def _tables(self) -> Generator[Table]:
        """Every table that can be read."""

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        now = self._clock.now()
        with self._reading(namespace for namespace, _ in keys) as tables:
            found = [(key, tables[key[0][0]]) for key in keys]
            states = [(key, table.state(key), table.epoch) for key, table in found]
        return [state.row(*key, epoch) if state and state.is_alive(now) else None for key, state, epoch in states]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        return [state.document.tokens if state and state.document else None for state in self._states(keys)]

    def page(self, request: PageRequest) -> list[Row]:
        now, kinds = self._clock.now(), request.kinds
        with self._reading(request.scopes) as tables:
            ordered = (tables[namespace[0]].ordered(namespace, request.after) for namespace in set(request.scopes))
            alive = (
                (namespace, key, state)
                for (_, key, _), namespace, state in heapq.merge(*ordered, key=lambda one: one[0])
                if state.is_alive(now) and (kinds is None or state.kind in kinds)
            )
            rows = filter(
                None, (state.row(namespace, key) for namespace, key, state in islice(alive, request.offset, None))
            )
            return list(islice(rows, request.limit))

    def count(self, namespaces: Sequence[Namespace], *, kinds: frozenset[str] | None = None) -> int:
        return sum(kinds is None or kind in kinds for _, kind, _ in self._kinds(namespaces))

    def tally(self, namespaces: Sequence[Namespace]) -> list[Tally]:
        return tally(self._kinds(namespaces))

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``; an empty one reads every table."""
        now = self._clock.now()
        if prefix:
            with self._table(prefix[0]) as table:
                return sorted(table.namespaces(prefix, now))
        return sorted(chain.from_iterable(table.namespaces((), now) for table in self._tables()))

    def heads(self, namespaces: Sequence[Namespace]) -> list[Head]:
        with self._reading(namespaces) as tables:
            found = [(namespace, tables[namespace[0]]) for namespace in namespaces]
            return [Head(table.head(namespace), table.epoch) for namespace, table in found]

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        with self._table(namespace[0]) as table:
            return table.changes(namespace, since)

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        return holding_most(self.changes(namespace, since), words, limit)

    def pending(self, model: str, limit: int, keys: Sequence[Key] | None = None) -> list[UnembeddedRow]:
        if keys is not None:
            named = zip(keys, self._states(keys), strict=True)
            found = (state.pending(*key, model) for key, state in named if state)
            return list(islice(filter(None, found), limit))
        with closing(self._tables()) as tables:
            states = chain.from_iterable(table.states() for table in tables)
            return list(islice(filter(None, (state.pending(*key, model) for key, state in states)), limit))

    def expired(self, limit: int) -> list[Key]:
        now = self._clock.now()
        with closing(self._tables()) as tables:
            states = chain.from_iterable(table.states() for table in tables)
            return list(islice((key for key, state in states if state.is_expired(now)), limit))

    def forget(self, user: str) -> None:
        """Does nothing: no reader of changes is remembered."""
        del user

    @contextmanager
    def _reading(self, namespaces: Iterable[Namespace]) -> Generator[dict[str, Table]]:
        """The tables of ``namespaces`` by their first labels."""
        with ExitStack() as opened:
            yield {root: opened.enter_context(self._table(root)) for root in {name[0] for name in namespaces}}

    def _states(self, keys: Sequence[Key]) -> list[RowState | None]:
        with self._reading(namespace for namespace, _ in keys) as tables:
            return [tables[key[0][0]].state(key) for key in keys]

    def _kinds(self, namespaces: Sequence[Namespace]) -> Iterator[tuple[Namespace, str, datetime]]:
        """Namespace, kind and creation of each row of exactly ``namespaces``."""
        now = self._clock.now()
        with self._reading(namespaces) as tables:
            for namespace in set(namespaces):
                yield from (
                    (namespace, state.kind, state.created_at) for _, state in tables[namespace[0]].alive(namespace, now)
                )


def _age(state: RowState) -> int:
    return -to_micros(state.created_at)
