"""A cache of the indexes of the users that were searched last, and of their rows, within one bound of bytes.

Readers take views, which never change. A reader that finds newer writes first brings the index up to date; of each
user, one thread at a time does so.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import ERASED, Namespace
from inference_core.retrieval.documents import Change, Epoch, Term
from inference_core.retrieval.index import ScopeIndex, ScopeView
from inference_core.retrieval.ranking import Pool
from inference_core.stores.backend import Backend, Head, Key, Row
from inference_core.stores.governance.fence import fences_of
from inference_core.telemetry import record, step

_SECONDS_A_WRITE: Final = 60e-6
"""Building an index takes about that long for each write, in a process that is busy starting."""
_SCANNED: Final = 300
"""A scan gives this many documents: all others wait for the thread that builds the index, for each of them."""
_WINDOW: Final = 4_000
"""A scan begins with this many of the last writes: about 10 milliseconds of a database's time."""
_PORTION: Final = 1_024
"""This many changes are read at once, so that the rows of a large scope are never all in memory."""
_FOLLOW_S: Final = 0.1
"""Indexes follow this long after a write, so that a burst of writes is read at once. Seconds."""
_MANY_WRITES: Final = 1_000
_SCOPES_COUNTED: Final = 10_000
_POOLS: Final = 4
"""Of this many combinations of a user's scopes a pool is kept; an agent uses one, or one and its parts."""
_ROWS_SHARE: Final = 8
"""Of the bound of bytes, parsed rows get an eighth: few rows are read again and again."""
_BYTES_PER_ROW: Final = 2_500
"""The objects of a parsed row and its record, besides its text."""
_IN_USE_S: Final = 600.0
"""An index larger than the bound is kept this long after its last use: the user's next turn may take minutes."""
_MEGABYTE: Final = 1024 * 1024
_LOG = logging.getLogger(__name__)


class _Shard:
    """The indexes of one user's scopes. ``lock`` guards changes of them; the cache's lock guards ``pools``.

    ``erasures`` is the head of the user's fence that they were made with. ``used`` is when they were last asked for.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.used = time.monotonic()
        self.erasures = 0
        self.indexes: dict[Namespace, ScopeIndex] = {}
        self.pools: OrderedDict[tuple[Namespace, ...], Pool] = OrderedDict()

    def views(self, scopes: Sequence[Namespace], heads: Sequence[Head]) -> list[ScopeView] | None:
        """The views of ``scopes``, if all of them show just what was written up to ``heads``."""
        found = [self.indexes.get(scope) for scope in scopes]
        views = [index.view for index in found if index is not None]
        # A view ahead of its head is not current: the database was restored to an earlier state, or the view is newer
        # than the heads.
        is_current = len(views) == len(scopes) and all(
            view.seq == head and view.epoch == head.epoch for view, head in zip(views, heads, strict=True)
        )
        return views if is_current else None

    @property
    def nbytes(self) -> int:
        return sum(index.view.nbytes for index in self.indexes.values())


class IndexCache:
    """Indexes by user (the first label of a namespace), the least recently used dropped beyond ``max_bytes``.

    A user whose index alone is larger evicts nobody. One such index is kept besides, while it is in use: the memory of
    all is bounded by ``max_bytes`` and the largest user's index. A log says so, once for each such user. ``wake`` has
    `follow` called after so many seconds.
    """

    def __init__(self, backend: Backend, model: str, max_bytes: int, wake: Callable[[float], None]) -> None:
        self._fences = fences_of(backend)
        self.rows = RowCache(backend, max_bytes // _ROWS_SHARE)
        self._backend = backend
        self._model = model
        self._max_bytes = share_of_indexes(max_bytes)
        self._lock = threading.Lock()
        self._shards: OrderedDict[str, _Shard] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._building: dict[str, Sequence[Namespace]] = {}
        self._written: Counter[Namespace] = Counter()
        self._is_woken = False
        self._wake = wake
        self._large: str | None = None
        """The user whose index is kept although it is larger than the bound."""
        self._oversized: set[str] = set()
        self._warned: set[str] = set()
        self._scanning: set[Namespace] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes and rows, about, as of each one's last use."""
        return self._total + self.rows.nbytes

    def views(self, scopes: Sequence[Namespace]) -> list[ScopeView]:
        """The views of ``scopes``, of a user and of spaces, with all that was written before.

        Costs one read of the heads if nothing was written since the last call. Raises StoreError if the backend fails;
        the last views then stay as they were.
        """
        if not scopes:
            return []
        found: dict[Namespace, ScopeView] = {}
        for root, own in _by_owner(scopes).items():
            with self._lock:
                shard = self._shards.setdefault(root, _Shard())
                self._shards.move_to_end(root)
                shard.used = time.monotonic()
            heads = self._heads(shard, own)
            views = shard.views(own, heads)
            if views is None:
                began = time.perf_counter()
                with step("index_refresh"):
                    views = self._refreshed(shard, own, heads)
                record("inference_core.index.duration", time.perf_counter() - began)
            found.update(zip(own, views, strict=True))
        return [found[scope] for scope in scopes]

    def _heads(self, shard: _Shard, scopes: Sequence[Namespace]) -> Sequence[Head]:
        """The heads of ``scopes``. If the user was erased since the last call, drops everything that was read before.

        The heads alone do not show an erasure, as scopes that are made anew count from 1.
        """
        if not self._backend.capabilities.change_feed:
            return self._backend.heads(scopes)
        root = scopes[0][0]
        fence = self._fences.scope(root)
        *heads, erasures = self._backend.heads([*scopes, fence])
        is_first = erasures != shard.erasures and fence == (ERASED,)  # erasure in this store, of whomever
        if is_first or self._fences.is_outlived(erasures.epoch):
            self._fences.read([root], anew=True)
            *heads, erasures = self._backend.heads([*scopes, self._fences.scope(root)])
        if erasures != shard.erasures:
            self._fences.read([root])  # so that notes of this recall, which read nothing, know of the erasure
            with shard.lock, self._lock:
                shard.erasures = erasures
                shard.indexes = {}
                shard.pools.clear()
            self.rows.drop_all_of(root)
        return heads

    def pool(self, scopes: Sequence[Namespace], views: Sequence[ScopeView]) -> Pool:
        """The texts of ``views`` of ``scopes``, one collection; kept as long as none of these changes."""
        key = tuple(scopes)
        with self._lock:
            shard = self._shards.get(scopes[0][0])
            known = shard.pools.get(key) if shard else None
            if shard and known is not None and all(own is given for own, given in zip(known.views, views, strict=True)):
                shard.pools.move_to_end(key)
                return known
        pool = Pool(views)
        with self._lock:
            # Else the pool of a user who was dropped would live on uncounted.
            if shard and self._shards.get(scopes[0][0]) is shard:
                shard.pools[key] = pool
                while len(shard.pools) > _POOLS:
                    shard.pools.popitem(last=False)
        return pool

    def needs_build(self, scopes: Sequence[Namespace], wait_seconds: float) -> bool:
        """Whether the indexes of ``scopes`` must be built first, and that takes more than ``wait_seconds``."""
        if not self._backend.capabilities.change_feed:
            return False  # its `heads` reads all rows, and only in the caller's thread: see `note_written`
        missing: list[Namespace] = []
        with self._lock:
            for root, own in _by_owner(scopes).items():
                shard = None if root in self._building else self._shards.get(root)
                missing += [scope for scope in own if shard is None or scope not in shard.indexes]
        return bool(missing) and sum(self._backend.heads(missing)) * _SECONDS_A_WRITE > wait_seconds

    def scanned(self, scopes: Sequence[Namespace], words: Sequence[Term], until: float) -> tuple[list[ScopeView], bool]:
        """Throw-away views of those documents of ``scopes`` that hold the most of ``words``, without vectors.

        Also returns whether all documents were looked through. The last writes always are; the others only if that ends
        before ``until`` (`time.monotonic`), as far as can be told.
        """
        views: list[ScopeView] = []
        is_whole = True
        for scope, head in zip(scopes, self._backend.heads(scopes), strict=True):
            found, is_all = self._holding(scope, words, head, until) if head else ((), True)
            views.append(ScopeIndex(self._model).update(found))
            is_whole = is_whole and is_all
        return views, is_whole

    def _holding(
        self, scope: Namespace, words: Sequence[Term], head: int, until: float
    ) -> tuple[Iterable[Change], bool]:
        """What `scanned` finds in one scope.

        The first window tells how many writes the database looks through in a second. The wider one has as many as take
        half of the time that is left. Of each scope, one caller at a time has a wider one: all of them together would
        hold up the building of the index.
        """
        began = time.monotonic()
        found = self._backend.holding(scope, words, _SCANNED, max(head - _WINDOW, 0))
        now = time.monotonic()
        wider = int(_WINDOW * (until - now) / max(now - began, 1e-6)) // 2
        if head <= _WINDOW or wider < min(head, 2 * _WINDOW):
            return found, head <= _WINDOW
        with self._lock:
            if scope in self._scanning:
                return found, False
            self._scanning.add(scope)
        try:
            with suppress(StoreUnavailable):  # it took longer than the database lets a statement run
                return self._backend.holding(scope, words, _SCANNED, max(head - wider, 0)), head <= wider
        finally:
            with self._lock:
                self._scanning.discard(scope)
        return found, False

    def build(self, scopes: Sequence[Namespace]) -> bool:
        """Has the indexes of ``scopes`` built in the background, unless that is being done.

        Returns False if one of them would not be kept, as it is too large, and that of another such user is in use: it
        is not built then.
        """
        with self._lock:
            owners = _by_owner(scopes)
            fitting = {root: own for root, own in owners.items() if not self._has_no_place(root)}
            for root, own in fitting.items():
                if self._building.setdefault(root, own) is own:
                    self._wake(0.0)
        return len(fitting) == len(owners)

    def note_written(self, scopes: Iterable[Namespace]) -> None:
        """Notes writes of texts to ``scopes``: indexes that are there, or soon needed, follow in the background.

        Not those of another library's store, which its owner may close at any time: to read from a LangGraph
        SqliteStore in one thread while another closes it ends the process.
        """
        if not self._backend.capabilities.change_feed:
            return
        with self._lock:
            self._written.update(scopes)
            if not self._is_woken:
                self._is_woken = True
                self._wake(_FOLLOW_S)

    def follow(self) -> bool:
        """Chore: brings an index up to date. Returns whether there was one to do. Raises StoreError.

        First come those that `build` was called for; then those that are there, and those of scopes to which so much
        was written that the next search would have to wait.
        """
        with self._lock:
            self._is_woken = False
            root, scopes = next(iter(self._building.items()), ("", ()))
            if not scopes:
                for scope, count in self._written.items():
                    shard = self._shards.get(scope[0])
                    is_wanted = count >= _MANY_WRITES and not self._has_no_place(scope[0])
                    if is_wanted or (shard and scope in shard.indexes):
                        del self._written[scope]
                        scopes = [scope]
                        break
                else:
                    if len(self._written) > _SCOPES_COUNTED:
                        self._written.clear()
        try:
            self.views(scopes)
        finally:
            with self._lock:
                self._building.pop(root, None)
        return bool(scopes)

    def _refreshed(self, shard: _Shard, scopes: Sequence[Namespace], heads: Sequence[Head]) -> list[ScopeView]:
        views: list[ScopeView] = []
        with shard.lock:
            for scope, known in zip(scopes, heads, strict=True):
                index, head = shard.indexes.get(scope), known
                if index is not None and (head < index.head or head.epoch != index.epoch):
                    # Another thread has seen more meanwhile, or the database was restored to an earlier state.
                    (head,) = self._backend.heads([scope])
                if index is None or head < index.head or head.epoch != index.epoch or index.is_sparse:
                    index = ScopeIndex(self._model, head.epoch)
                is_mixed = False
                changes = iter(self._backend.changes(scope, index.head) if head > index.head else ())
                # Whatever fails here fails before `publish`: the index goes on from where it is, or is made anew, and
                # readers keep the last view.
                while portion := list(islice(changes, _PORTION)):
                    index.apply(portion)
                    is_mixed |= any(change.epoch != head.epoch for change in portion)
                    self.rows.drop([(scope, change.key) for change in portion if not change.is_there])
                if index.head != index.view.seq or scope not in shard.indexes:
                    index.publish()
                views.append(index.view)
                shard.indexes[scope] = index
                if is_mixed:  # the server that answered has changed since the heads were read
                    del shard.indexes[scope]
            root, size = scopes[0][0], shard.nbytes
        with self._lock:
            dropped = self._sized(root, size) if root in self._shards else []
        for user in dropped:  # without the lock, as the backend may hold its own during a long read
            self._backend.forget(user)
        return views

    def _sized(self, root: str, size: int) -> list[str]:
        """Notes that the indexes of ``root`` have ``size`` bytes. Returns the users whose indexes it drops for that."""
        self._total += size - self._sizes.get(root, 0)
        self._sizes[root] = size
        dropped: list[str] = []

        def drop(user: str) -> None:
            del self._shards[user]
            self._total -= self._sizes.pop(user, 0)
            dropped.append(user)

        large = self._large
        if size <= self._max_bytes:
            self._oversized.discard(root)
            if root == large:  # it has shrunk
                self._large = large = None
        else:
            self._oversized.add(root)
            if root not in self._warned:
                self._warned.add(root)
                _LOG.warning(
                    "The search index of a user takes %d MB, more than all users together may have: set "
                    "AGENT_MEMORY_INDEX_MB to at least %d. Until then, a process keeps only one such index; other "
                    "users with so many memories are searched by words only. inference-core doctor names the user",
                    -(-size // _MEGABYTE),
                    needed_megabytes(size),
                )
        if large is not None and large != root and not self._is_large_in_use():
            drop(large)
            self._large = large = None
        if size > self._max_bytes and large is None:
            self._large = large = root
        elif size > self._max_bytes and large != root:
            drop(root)
        while self._total - self._sizes.get(large or "", 0) > self._max_bytes:
            drop(next(user for user in self._shards if user != large))
        return dropped

    def _has_no_place(self, root: str) -> bool:
        """Whether the index of ``root`` is too large, and another such index is in use."""
        return root in self._oversized and root != self._large and self._is_large_in_use()

    def _is_large_in_use(self) -> bool:
        return self._large is not None and self._shards[self._large].used > time.monotonic() - _IN_USE_S


def share_of_indexes(max_bytes: int) -> int:
    """Of the bound ``max_bytes``, what the indexes may have; parsed rows have the rest."""
    return max_bytes - max_bytes // _ROWS_SHARE


def needed_megabytes(size: int) -> int:
    """The smallest AGENT_MEMORY_INDEX_MB with which an index of ``size`` bytes is within the bound."""
    return -(-size * _ROWS_SHARE // ((_ROWS_SHARE - 1) * _MEGABYTE))


def index_size(backend: Backend, model: str, scopes: Sequence[Namespace]) -> int:
    """Bytes of the indexes of ``scopes``. Builds them, and keeps none: seconds for each 100,000 memories."""
    sizes: list[int] = []
    for scope in scopes:
        index, changes = ScopeIndex(model), iter(backend.changes(scope, 0))
        while portion := list(islice(changes, _PORTION)):
            index.apply(portion)
        sizes.append(index.publish().nbytes)
    return sum(sizes)


def _by_owner(scopes: Iterable[Namespace]) -> dict[str, list[Namespace]]:
    """``scopes`` by the user or space that they belong to."""
    owners: dict[str, list[Namespace]] = {}
    for scope in scopes:
        owners.setdefault(scope[0], []).append(scope)
    return owners


class RowCache:
    """Rows as they were read and parsed, by key; beyond ``max_bytes`` the least recently used are dropped."""

    def __init__(self, backend: Backend, max_bytes: int) -> None:
        self.nbytes = 0
        self._backend = backend
        self._max_bytes = max_bytes
        self._rows: OrderedDict[Key, tuple[Row, int]] = OrderedDict()
        self._drops = 0
        self._lock = threading.Lock()

    def get(self, wanted: Sequence[tuple[Key, int, int, Epoch]]) -> list[Row | None]:
        """The row of each key, None if it is gone.

        With each key come two numbers and their epoch: a cached row whose ``seq`` lies between them will do, else the
        row is read.
        """
        found: dict[Key, Row | None] = {}
        with self._lock:
            drops = self._drops
            for key, since, until, epoch in wanted:
                row, _ = self._rows.get(key, (None, 0))
                if row is not None and row.epoch == epoch and since <= row.seq <= until:
                    self._rows.move_to_end(key)
                    found[key] = row
        missing = [key for key, *_ in wanted if key not in found]
        if missing:
            read = self._backend.get(missing)
            found |= zip(missing, read, strict=True)
            with self._lock:
                for row in filter(None, read if drops == self._drops else ()):  # else it may be of an erased user
                    if row.expiry or not row.seq:
                        continue  # a Touch moves its expiry without a new number, or the store numbers no writes
                    size = _BYTES_PER_ROW + 2 * sum(sys.getsizeof(value) for value in row.value.values())
                    _, before = self._rows.pop((row.namespace, row.key), (None, 0))
                    self._rows[row.namespace, row.key] = (row, size)
                    self.nbytes += size - before
                while self.nbytes > self._max_bytes and self._rows:
                    _, (_, size) = self._rows.popitem(last=False)
                    self.nbytes -= size
        return [found[key] for key, *_ in wanted]

    def drop(self, keys: Iterable[Key]) -> None:
        """Drops the rows of ``keys``, which were deleted: nobody asks for them again, so they would stay for long."""
        with self._lock:
            for key in keys:
                self.nbytes -= self._rows.pop(key, (None, 0))[1]

    def drop_all_of(self, root: str) -> None:
        """Drops the rows of the user with the label ``root``; reads under way do not bring them back."""
        with self._lock:
            self._drops += 1
            for key in [key for key in self._rows if key[0][0] == root]:
                self.nbytes -= self._rows.pop(key)[1]
