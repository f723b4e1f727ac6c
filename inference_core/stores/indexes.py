"""The indexes of the users that were asked about last, bounded by bytes and brought up to date before each search."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from inference_core.errors import StoreError
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Term
from inference_core.retrieval.index import ScopeIndex
from inference_core.stores.backend import Backend

_LOG = logging.getLogger(__name__)
_SECONDS_A_WRITE: Final = 60e-6
"""Building an index takes about that long for each write, in a process that is busy starting."""
_SCANNED: Final = 1_000
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
        self._building: set[str] = set()
        self._oversized: set[str] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes, about, as of each one's last use."""
        return self._total

    @property
    def is_building(self) -> bool:
        """Whether an index is being built in the background."""
        return bool(self._building)

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

    def are_far(self, scopes: Sequence[Namespace], patience: float) -> bool:
        """Whether the indexes of ``scopes`` must be built first, and that takes more than ``patience`` seconds."""
        root = scopes[0][0]
        with self._lock:
            shard = None if root in self._building else self._shards.get(root)
            known = set(shard.scopes) if shard else set[Namespace]()
            if root in self._oversized or known.issuperset(scopes):
                return False
        missing = [scope for scope in scopes if scope not in known]
        return sum(self._backend.heads(missing)) * _SECONDS_A_WRITE > patience

    def scanned(self, scopes: Sequence[Namespace], words: Sequence[Term]) -> list[ScopeIndex]:
        """Throw-away indexes of those documents of ``scopes`` that hold the most of ``words``, without vectors."""
        return [self._scanned(scope, words) for scope in scopes]

    def build(self, scopes: Sequence[Namespace]) -> None:
        """Builds the indexes of ``scopes`` in the background, unless that is being done."""
        root = scopes[0][0]
        with self._lock:
            if root in self._building:
                return
            self._building.add(root)
        threading.Thread(target=self._build, args=(root, scopes), name="memory-index", daemon=True).start()

    def _build(self, root: str, scopes: Sequence[Namespace]) -> None:
        try:
            self.use(scopes, list)
        except StoreError as error:
            _LOG.warning("An index could not be built; the next search tries again: %s", error)
        finally:
            with self._lock:
                self._building.discard(root)

    def _scanned(self, scope: Namespace, words: Sequence[Term]) -> ScopeIndex:
        index = ScopeIndex(self._model)
        index.update(self._backend.holding(scope, words, _SCANNED))
        return index

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
                (self._oversized.add if size > self._max_bytes else self._oversized.discard)(root)
            while self._total > self._max_bytes and self._shards:
                dropped, _ = self._shards.popitem(last=False)
                self._total -= self._sizes.pop(dropped, 0)


def one_user_at_a_time(scopes: Iterable[Namespace]) -> list[list[Namespace]]:
    """``scopes`` grouped by user, so that each group can be asked of an IndexCache."""
    groups: dict[str, list[Namespace]] = {}
    for scope in scopes:
        groups.setdefault(scope[0], []).append(scope)
    return list(groups.values())
