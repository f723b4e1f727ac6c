"""What the databases have in common: the state of a row, and what a write makes of it.

`WriteSet` decides a batch of writes for every database that does not do so in SQL.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from inference_core.clock import aware
from inference_core.errors import StoreError, VersionConflict
from inference_core.memory.namespaces import Namespace, holds_memories
from inference_core.memory.quota import counts_of, counts_to_json
from inference_core.retrieval.documents import NO_EPOCH, Change, Document, Epoch, Term
from inference_core.stores.backend import (
    Check,
    Expire,
    Expiry,
    Key,
    Measure,
    Put,
    Remove,
    Rewrite,
    Row,
    SetVector,
    Tally,
    Touch,
    UnembeddedRow,
    Write,
)
from inference_core.stores.codec import UNREADABLE, unpack_value

LOST: Final = ""
"""The value of a row that is there and cannot be read."""
_EXPECTING: Final = (Put, Remove, Check)
_SAME: Final = (SetVector, Rewrite)
"""Writes that leave the version as it is."""
MAX_WORDS: Final = 64
"""A scan for words looks for at most this many words of a query."""


@dataclass(frozen=True, slots=True)
class RowState:
    """What is stored under a key. After a delete ``value`` is None, and ``version`` and ``seq`` are the delete's."""

    seq: int
    version: int
    kind: str
    created_at: datetime
    updated_at: datetime
    value: str | None
    document: Document | None = None
    expiry: Expiry | None = None

    def is_alive(self, now: datetime) -> bool:
        """Whether there is a value that has not expired."""
        return self.value is not None and not self.is_expired(now)

    def is_expired(self, now: datetime) -> bool:
        """Whether its expiry lies at or before ``now``."""
        return self.expiry is not None and self.expiry.at <= now

    def deleted(self) -> RowState:
        """The state after a delete, but for its sequence number."""
        return replace(self, version=self.version + 1, kind="", value=None, document=None, expiry=None)

    def row(self, namespace: Namespace, key: str, epoch: Epoch = NO_EPOCH) -> Row | None:
        """The row, or None if it was deleted or cannot be read."""
        try:
            return Row(
                namespace=namespace,
                key=key,
                value=unpack_value(self.value or LOST),
                version=self.version,
                seq=self.seq,
                created_at=self.created_at,
                updated_at=self.updated_at,
                expiry=self.expiry,
                epoch=epoch,
            )
        except UNREADABLE:
            return None

    def change(self, key: str, epoch: Epoch = NO_EPOCH) -> Change:
        """The change that an index reads."""
        document = self.document and self.document._replace(tokens=None)
        return Change(self.seq, key, self.kind, self.created_at.timestamp(), document, bool(self.value), epoch)

    def pending(self, namespace: Namespace, key: str, model: str) -> UnembeddedRow | None:
        """The text, if it waits for a vector of ``model``."""
        if self.document is None or self.document.model == model:
            return None
        return UnembeddedRow(namespace, key, self.version, self.document.text)


@lru_cache(maxsize=256, typed=True)
def lost(seq: object, version: object) -> RowState:
    """The state of an unreadable row, which may still be replaced and deleted; keeps its numbers if they are sound."""
    epoch = datetime.fromtimestamp(0, UTC)
    known = seq if type(seq) is int else 0
    return RowState(known, version if type(version) is int else 1, "", epoch, epoch, LOST)


class WriteSet:
    """Applies a batch in memory to the states that ``find`` and the numbers that ``head`` returns; it stores nothing.

    Afterwards ``states`` and ``heads`` hold what to store, and ``checked`` the keys whose version a Check has compared.
    """

    def __init__(self, find: Callable[[Key], RowState | None], head: Callable[[Namespace], int], now: datetime) -> None:
        self._find = find
        self._head = head
        self._now = now
        self.states: dict[Key, RowState] = {}
        self.checked: set[Key] = set()
        self.heads: dict[Namespace, int] = {}

    def apply(self, batch: Sequence[Write]) -> list[int]:
        """The version after each write, 0 for a row that is gone. Raises VersionConflict, StoreError."""
        try:
            return [self._apply(write) for write in batch]
        except OverflowError as error:
            raise StoreError(f"An instant lies outside of the calendar: {error}") from error

    def _apply(self, write: Write) -> int:
        address = (write.namespace, write.key)
        state = self.states.get(address) or self._find(address)
        alive = state if state and state.is_alive(self._now) else None
        version = alive.version if alive else 0
        if isinstance(write, _EXPECTING) and write.expected not in (None, version):
            raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
        if isinstance(write, Check):
            self.checked.add(address)
            return version
        if isinstance(write, Measure):
            changes = [
                (old.value if (old := self._find(place)) else None, new.value)
                for place, new in self.states.items()
                if place[0][0] == write.namespace[0] and holds_memories(place[0])
            ]
            counts = write.counted(changes, counts_of(json.loads(alive.value or "")) if alive else None)
            if counts is None or alive is None:
                return 0
            self.heads[write.namespace] = head = self.heads.get(write.namespace, self._head(write.namespace)) + 1
            version, value = alive.version + 1, counts_to_json(counts)
            self.states[address] = replace(alive, seq=head, version=version, value=value, updated_at=self._now)
            return version
        if isinstance(write, Touch):
            if alive and alive.expiry and version == write.version:
                self.states[address] = replace(alive, expiry=alive.expiry._replace(at=aware(write.at)))
            return version
        changed = _changed(write, state, self._now)
        if changed is None:
            if isinstance(write, Expire) and write.is_strict:
                raise VersionConflict(f"{write.key!r} has not expired, or is gone")
            return version
        head = self.heads.get(write.namespace)
        self.heads[write.namespace] = head = (self._head(write.namespace) if head is None else head) + 1
        self.states[address] = replace(changed, seq=head)
        return version if isinstance(write, _SAME) else changed.version if isinstance(write, Put) else 0


def _changed(
    write: Put | Remove | SetVector | Rewrite | Expire, state: RowState | None, now: datetime
) -> RowState | None:
    """The state after ``write``, but for its sequence number; None if nothing changes."""
    if isinstance(write, Put):
        updated = aware(write.updated_at)
        first = state.created_at if state and state.is_alive(now) else updated
        return RowState(
            seq=0,
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
        return state.deleted()
    if isinstance(write, Expire) or state.version != write.version:
        return None
    if isinstance(write, Rewrite):
        return replace(state, value=write.value, document=write.document)
    if state.document is None:
        return None
    return replace(state, document=state.document._replace(model=write.model, vector=write.vector, tokens=write.tokens))


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
