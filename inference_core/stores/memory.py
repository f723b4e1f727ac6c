"""A Backend in the memory of this process: for tests, notebooks and throw-away agents. Nothing survives the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from inference_core.clock import aware
from inference_core.errors import StoreUnavailable, VersionConflict
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document, Term
from inference_core.stores.backend import (
    Capabilities,
    Delete,
    Key,
    Outcome,
    Pending,
    Put,
    Row,
    SetVector,
    Write,
)
from inference_core.stores.codec import unpack_value
from inference_core.stores.scan import holding_most


@dataclass(frozen=True, slots=True)
class _Cell:
    seq: int
    version: int
    kind: str
    created_at: datetime
    updated_at: datetime
    value: str | None
    document: Document | None


_Scope = dict[str, _Cell]


class InMemoryBackend:
    """A Backend over dictionaries, with the behaviour of the durable ones."""

    name = "memory://"
    capabilities = Capabilities(durable=False, atomic=True, compare_and_set=True, change_feed=True, single_writer=True)

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._scopes: dict[Namespace, _Scope] = {}
        self._heads: dict[Namespace, int] = {}
        self._meta: dict[str, str] = {}
        self._closed = False

    def apply(self, batches: Sequence[Sequence[Write]]) -> list[Outcome]:
        """Applies each batch as a whole or not at all."""
        with self._open():
            return [self._apply_batch(batch) for batch in batches]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key."""
        with self._open():
            return [self._row(namespace, key) for namespace, key in keys]

    def tokens(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The packed token vectors of each key."""
        with self._open():
            cells = [self._scopes.get(namespace, {}).get(key) for namespace, key in keys]
        return [cell.document.tokens if cell and cell.document else None for cell in cells]

    def newest(
        self, scopes: Sequence[Namespace], *, kinds: frozenset[str] | None = None, limit: int, offset: int = 0
    ) -> list[Row]:
        """Rows of exactly ``scopes``, the newest first."""
        with self._open():
            found = [
                (-cell.created_at.timestamp(), key, scope)
                for scope in set(scopes)
                for key, cell in self._scopes.get(scope, {}).items()
                if cell.value is not None and (kinds is None or cell.kind in kinds)
            ]
            page = sorted(found)[offset : offset + limit]
            return [row for _, key, scope in page if (row := self._row(scope, key))]

    def count(self, scopes: Sequence[Namespace]) -> int:
        """How many rows exactly ``scopes`` hold."""
        with self._open():
            cells = (cell for scope in set(scopes) for cell in self._scopes.get(scope, {}).values())
            return sum(cell.value is not None for cell in cells)

    def namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces that hold rows and start with ``prefix``."""
        with self._open():
            names = [name for name in self._scopes if name[: len(prefix)] == prefix]
            return sorted(name for name in names if self.count([name]))

    def heads(self, scopes: Sequence[Namespace]) -> list[int]:
        """The sequence number of each scope's last write."""
        with self._open():
            return [self._heads.get(scope, 0) for scope in scopes]

    def changes(self, scope: Namespace, since: int) -> Iterable[Change]:
        """The newest state of every key written after ``since``."""
        with self._open():
            cells = [(key, cell) for key, cell in self._scopes.get(scope, {}).items() if cell.seq > since]
        return [
            Change(cell.seq, key, cell.kind, cell.created_at.timestamp(), _without_tokens(cell.document))
            for key, cell in sorted(cells, key=lambda found: found[1].seq)
        ]

    def holding(self, scope: Namespace, words: Sequence[Term], limit: int) -> Iterable[Change]:
        """The keys whose terms hold the most of ``words``."""
        return holding_most(self.changes(scope, 0), words, limit)

    def pending(self, model: str, limit: int) -> list[Pending]:
        """Rows whose text has no vector of ``model`` yet."""
        with self._open():
            found = [
                Pending(scope, key, cell.version, cell.document.text)
                for scope, cells in self._scopes.items()
                for key, cell in cells.items()
                if cell.document and cell.document.model != model
            ]
        return found[:limit]

    def get_meta(self, name: str) -> str | None:
        """A setting of the store."""
        with self._open():
            return self._meta.get(name)

    def set_meta(self, name: str, value: str) -> None:
        """Stores a setting of the store."""
        with self._open():
            self._meta[name] = value

    def close(self) -> None:
        """Later calls are refused."""
        self._closed = True

    def _open(self) -> threading.RLock:
        if self._closed:
            raise StoreUnavailable("The store is closed")
        return self._lock

    def _row(self, namespace: Namespace, key: str) -> Row | None:
        cell = self._scopes.get(namespace, {}).get(key)
        if cell is None or cell.value is None:
            return None
        return Row(
            namespace=namespace,
            key=key,
            value=unpack_value(cell.value),
            version=cell.version,
            created_at=cell.created_at,
            updated_at=cell.updated_at,
        )

    def _apply_batch(self, batch: Sequence[Write]) -> Outcome:
        staged: dict[Key, _Cell] = {}
        heads = dict(self._heads)
        try:
            versions = [self._stage(write, staged, heads) for write in batch]
        except VersionConflict as error:
            return error
        for (namespace, key), cell in staged.items():
            self._scopes.setdefault(namespace, {})[key] = cell
        self._heads = heads
        return versions

    def _stage(self, write: Write, staged: dict[Key, _Cell], heads: dict[Namespace, int]) -> int:
        address = (write.namespace, write.key)
        cell = staged.get(address) or self._scopes.get(write.namespace, {}).get(write.key)
        alive = cell if cell and cell.value is not None else None
        version = alive.version if alive else 0
        if not isinstance(write, SetVector) and write.expected not in (None, version):
            raise VersionConflict(f"{write.key!r} is at version {version}, not {write.expected}")
        changed = _changed(write, cell, alive)
        if changed:
            heads[write.namespace] = heads.get(write.namespace, 0) + 1
            staged[address] = replace(changed, seq=heads[write.namespace])
            return changed.version if changed.value is not None else 0
        return version


def _without_tokens(document: Document | None) -> Document | None:
    return document and document._replace(tokens=None)


def _put(write: Put, old: _Cell | None) -> _Cell:
    updated = aware(write.updated_at)
    first = old.created_at if old and old.value is not None else updated
    return _Cell(
        seq=0,
        version=(old.version if old else 0) + 1,
        kind=write.kind,
        created_at=aware(write.created_at) if write.created_at else first,
        updated_at=updated,
        value=write.value,
        document=write.document,
    )


def _changed(write: Write, cell: _Cell | None, alive: _Cell | None) -> _Cell | None:
    if isinstance(write, Put):
        return _put(write, cell)
    if alive is None:
        return None
    if isinstance(write, Delete):
        return replace(alive, version=alive.version + 1, kind="", value=None, document=None)
    if alive.document is None or alive.version != write.version:
        return None
    return replace(alive, document=alive.document._replace(model=write.model, vector=write.vector, tokens=write.tokens))
