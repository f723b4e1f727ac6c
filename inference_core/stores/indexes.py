"""The indexes of the users that were asked about last, bounded by bytes and brought up to date before each search."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.index import ScopeIndex
from inference_core.stores.backend import Backend

T = TypeVar("T")


class _Shard:
    """The indexes of one user's scopes, and the lock that guards them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.scopes: dict[Namespace, ScopeIndex] = {}

    @property
    def nbytes(self) -> int:
        return sum(index.nbytes for index in self.scopes.values())


class IndexCache:
    """Indexes by user (the first label of a namespace), the least recently used dropped beyond ``max_bytes``.

    A user whose index alone is larger is still served: it is built, used and dropped.
    """

    def __init__(self, backend: Backend, model: str, max_bytes: int) -> None:
        self._backend = backend
        self._model = model
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._shards: OrderedDict[str, _Shard] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._total = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes, about, as of each one's last use."""
        return self._total

    def use(self, scopes: Sequence[Namespace], reader: Callable[[list[ScopeIndex]], T]) -> T:
        """What ``reader`` makes of the up-to-date indexes of ``scopes``, all of which belong to one user.

        Raises StoreError if the backend fails.
        """
        if not scopes:
            return reader([])
        root = scopes[0][0]
        shard = self._shard(root)
        with shard.lock:
            indexes = self._refreshed(shard, scopes)
            result = reader(indexes)
            size = shard.nbytes
        self._settle(root, size)
        return result

    def _shard(self, root: str) -> _Shard:
        with self._lock:
            shard = self._shards.setdefault(root, _Shard())
            self._shards.move_to_end(root)
            return shard

    def _refreshed(self, shard: _Shard, scopes: Sequence[Namespace]) -> list[ScopeIndex]:
        for scope, head in zip(scopes, self._backend.heads(scopes), strict=True):
            index = shard.scopes.get(scope)
            if index is None or head < index.head or index.is_sparse:
                index = shard.scopes[scope] = ScopeIndex(self._model)
            if head > index.head:
                index.update(self._backend.changes(scope, index.head))
        return [shard.scopes[scope] for scope in scopes]

    def _settle(self, root: str, size: int) -> None:
        with self._lock:
            if root in self._shards:
                self._total += size - self._sizes.get(root, 0)
                self._sizes[root] = size
            while self._total > self._max_bytes and self._shards:
                dropped, _ = self._shards.popitem(last=False)
                self._total -= self._sizes.pop(dropped, 0)


def one_user_at_a_time(scopes: Iterable[Namespace]) -> list[list[Namespace]]:
    """``scopes`` grouped by user, so that each group can be asked of an IndexCache."""
    groups: dict[str, list[Namespace]] = {}
    for scope in scopes:
        groups.setdefault(scope[0], []).append(scope)
    return list(groups.values())
