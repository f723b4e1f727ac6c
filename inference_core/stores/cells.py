"""What each kind of write makes of a key: written once for the databases that do not say it in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from inference_core.clock import aware
from inference_core.errors import StoreError, VersionConflict
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document
from inference_core.stores.backend import (
    Check,
    Delete,
    Expire,
    Expiry,
    Key,
    Outcome,
    Pending,
    Put,
    Row,
    SetVector,
    Touch,
    Write,
)
from inference_core.stores.codec import UNREADABLE, from_micros, unpack_value

LOST: Final = ""
"""The value of a cell that is there and cannot be read."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The state of a key. ``value`` None: it was deleted, and ``version`` and ``seq`` tell when."""

    seq: int
    version: int
    kind: str
    created_at: datetime
    updated_at: datetime
    value: str | None
    document: Document | None = None
    expiry: Expiry | None = None

    def is_alive(self, now: datetime) -> bool:
        """Whether there is a value, and its time has not come."""
        return self.value is not None and not self.is_expired(now)

    def is_expired(self, now: datetime) -> bool:
        """Whether its time has come."""
        return self.expiry is not None and self.expiry.at <= now

    def row(self, namespace: Namespace, key: str) -> Row | None:
        """It as a row; None if there is no value, or none that can be read."""
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
            )
        except UNREADABLE:
            return None

    def change(self, key: str) -> Change:
        """It as what an index hears of it."""
        document = self.document and self.document._replace(tokens=None)
        return Change(self.seq, key, self.kind, self.created_at.timestamp(), document, bool(self.value))

    def pending(self, namespace: Namespace, key: str, model: str) -> Pending | None:
        """It as a text that waits for a vector of ``model``, if it does."""
        if self.document is None or self.document.model == model:
            return None
        return Pending(namespace, key, self.version, self.document.text)


def lost(seq: object, version: object) -> Cell:
    """A cell that cannot be read, which may be replaced and deleted all the same; of its numbers those that are."""
    epoch = from_micros(0)
    known = seq if type(seq) is int else 0
    return Cell(known, version if type(version) is int else 1, "", epoch, epoch, LOST)


class Staging:
    """What a batch makes of the cells that ``find`` gives, and of its scopes' heads; nothing is stored by it.

    ``checked`` are the cells whose version was asked for by a Check.
    """

    def __init__(self, find: Callable[[Key], Cell | None], head: Callable[[Namespace], int], now: datetime) -> None:
        self._find = find
        self._head = head
        self._now = now
        self.cells: dict[Key, Cell] = {}
        self.checked: set[Key] = set()
        self.heads: dict[Namespace, int] = {}

    def apply(self, batch: Sequence[Write]) -> list[int]:
        """The version after each write, 0 where nothing is there. Raises VersionConflict, StoreError."""
        try:
            return [self._apply(write) for write in batch]
        except OverflowError as error:
            raise StoreError(f"An instant lies outside of the calendar: {error}") from error

    def _apply(self, write: Write) -> int:
        address = (write.namespace, write.key)
        cell = self.cells.get(address) or self._find(address)
        alive = cell if cell and cell.is_alive(self._now) else None
        version = alive.version if alive else 0
        if isinstance(write, Put | Delete | Check) and write.expected not in (None, version):
            raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
        if isinstance(write, Check):
            self.checked.add(address)
            return version
        if isinstance(write, Touch):
            if alive and alive.expiry and version == write.version:
                self.cells[address] = replace(alive, expiry=alive.expiry._replace(at=aware(write.at)))
            return version
        changed = _changed(write, cell, self._now)
        if changed is None:
            return version
        head = self.heads.get(write.namespace)
        self.heads[write.namespace] = head = (self._head(write.namespace) if head is None else head) + 1
        self.cells[address] = replace(changed, seq=head)
        return version if isinstance(write, SetVector) else changed.version if isinstance(write, Put) else 0


def staged(
    batches: Sequence[Sequence[Write]], cells: dict[Key, Cell], heads: dict[Namespace, int], now: datetime
) -> list[Outcome]:
    """Applies ``batches`` in turn to ``cells`` and ``heads``: each as a whole or, if it is refused, not at all."""
    outcomes: list[Outcome] = []
    for batch in batches:
        staging = Staging(cells.get, lambda scope: heads.get(scope, 0), now)
        try:
            outcomes.append(staging.apply(batch))
        except StoreError as error:
            outcomes.append(error)
        else:
            cells.update(staging.cells)
            heads.update(staging.heads)
    return outcomes


def _changed(write: Put | Delete | SetVector | Expire, cell: Cell | None, now: datetime) -> Cell | None:
    """The cell after ``write``, but for its sequence number; None if nothing changes."""
    if isinstance(write, Put):
        updated = aware(write.updated_at)
        first = cell.created_at if cell and cell.is_alive(now) else updated
        return Cell(
            seq=0,
            version=max(cell.version if cell else 0, write.above) + 1,
            kind=write.kind,
            created_at=aware(write.created_at) if write.created_at else first,
            updated_at=updated,
            value=write.value,
            document=write.document,
            expiry=write.expiry,
        )
    if cell is None or cell.value is None:
        return None
    # Whoever sends an Expire has been told by the database that the time has come; a lost cell does not tell itself.
    if isinstance(write, Delete) or (isinstance(write, Expire) and (cell.is_expired(now) or cell.value == LOST)):
        return replace(cell, version=cell.version + 1, kind="", value=None, document=None, expiry=None)
    if isinstance(write, Expire) or cell.document is None or cell.version != write.version:
        return None
    return replace(cell, document=cell.document._replace(model=write.model, vector=write.vector, tokens=write.tokens))
