"""A cache of the indexes of the users that were searched last, and of their rows, within one bound of bytes; snapshots.

Readers take views, which never change. A reader that finds newer writes first brings the index up to date; of each
user, one thread at a time does so. A snapshot is a user's scopes as they were at one moment, which answers all reads of
a turn: it puts their texts into the order in which they answer a question, and lets links change it. Cache and snapshot
stand together, as each is half of how a search reads, which makes the module a long one.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any, Final, TypeVar
from weakref import ref

from inference_core.embeddings.embedder import Embedder
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.memory.record import neighbours_of, tags_of
from inference_core.retrieval.documents import Change, Epoch, Term
from inference_core.retrieval.index import ScopeIndex, ScopeView
from inference_core.retrieval.pool import Place, Pool
from inference_core.retrieval.query import Named, Query, asks_something, by_canonical
from inference_core.retrieval.ranking import (
    DECIMALS,
    SHARED,
    Bridges,
    Hit,
    LazyRanking,
    Ranking,
    RankingCandidate,
    bridges_of,
    link_to_best,
    link_to_query,
    necessity_among,
    rank,
    shared_marks,
)
from inference_core.retrieval.vectors import give_memory_back
from inference_core.stores.backend import Backend, Cursor, Head, Key, PageRequest, Row
from inference_core.stores.indexing.embedding import LateQuestion, Visit
from inference_core.stores.indexing.search import (
    FoundRow,
    QuestionVectors,
    RecallMode,
    Reranker,
    Search,
    SearchResult,
    Selection,
    by_owner,
    joined,
    reordered,
    traits_of,
)
from inference_core.stores.rules.erasure_epoch import fences_of
from inference_core.stores.writer import Breaker
from inference_core.telemetry import brief_step, record, step

_SECONDS_A_WRITE: Final = 20e-6
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
_MADE: Final = 100
"""For this many users, or combinations of their scopes, is kept what was made of their rows."""
_BYTES_PER_ROW: Final = 2_500
"""The objects of a parsed row and its record, besides its text."""
_IN_USE_S: Final = 600.0
"""An index larger than the bound is kept this long after its last use: the user's next turn may take minutes."""
_LARGE_BUILD: Final = 10_000
"""So many writes, read into an index at once, leave megabytes of freed memory behind."""
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

    def views(self, namespaces: Sequence[Namespace], heads: Sequence[Head]) -> list[ScopeView] | None:
        """The views of ``namespaces``, if all of them show just what was written up to ``heads``."""
        found = [self.indexes.get(namespace) for namespace in namespaces]
        views = [index.view for index in found if index is not None]
        # A view ahead of its head is not current: the database was restored to an earlier state, or the view is newer
        # than the heads.
        is_current = len(views) == len(namespaces) and all(
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
        self._unmeasured: set[Namespace] = set()
        """The scopes whose vectors are to be measured."""

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes and rows, about, as of each one's last use."""
        return self._total + self.rows.nbytes

    def views(self, namespaces: Sequence[Namespace]) -> list[ScopeView]:
        """The views of ``namespaces``, of a user and of spaces, with all that was written before.

        Costs one read of the heads if nothing was written since the last call. Raises StoreError if the backend fails;
        the last views then stay as they were.
        """
        if not namespaces:
            return []
        found: dict[Namespace, ScopeView] = {}
        for root, own in _by_owner(namespaces).items():
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
        return [found[namespace] for namespace in namespaces]

    def _heads(self, shard: _Shard, namespaces: Sequence[Namespace]) -> Sequence[Head]:
        """The heads of ``namespaces``. If the user was erased since the last call, drops all that was read before.

        The heads alone do not show an erasure, as scopes that are made anew count from 1.
        """
        if not self._backend.capabilities.change_feed:
            return self._backend.heads(namespaces)
        root = namespaces[0][0]
        fence = self._fences.scope(root)
        *heads, erasures = self._backend.heads([*namespaces, fence])
        is_first = erasures != shard.erasures and fence == self._fences.home(root)  # erasure in this store, of whomever
        if is_first or self._fences.is_outlived(root, erasures.epoch):
            self._fences.read([root], anew=True)
            *heads, erasures = self._backend.heads([*namespaces, self._fences.scope(root)])
        if erasures != shard.erasures:
            self._fences.read([root])  # so that notes of this recall, which read nothing, know of the erasure
            with shard.lock, self._lock:
                shard.erasures = erasures
                shard.indexes = {}
                shard.pools.clear()
            self.rows.drop_all_of(root)
        return heads

    def pool(self, namespaces: Sequence[Namespace], views: Sequence[ScopeView]) -> Pool:
        """The texts of ``views`` of ``namespaces``, one collection; kept as long as none of these changes."""
        key = tuple(namespaces)
        with self._lock:
            shard = self._shards.get(namespaces[0][0])
            known = shard.pools.get(key) if shard else None
            if shard and known is not None and all(own is given for own, given in zip(known.views, views, strict=True)):
                shard.pools.move_to_end(key)
                return known
        pool = Pool(views)
        with self._lock:
            # Else the pool of a user who was dropped would live on uncounted.
            if shard and self._shards.get(namespaces[0][0]) is shard:
                shard.pools[key] = pool
                while len(shard.pools) > _POOLS:
                    shard.pools.popitem(last=False)
        return pool

    def needs_build(self, namespaces: Sequence[Namespace], wait_seconds: float) -> bool:
        """Whether the indexes of ``namespaces`` must be built first, and that takes more than ``wait_seconds``."""
        if not self._backend.capabilities.change_feed:
            return False  # its `heads` reads all rows, and only in the caller's thread: see `note_written`
        missing: list[Namespace] = []
        with self._lock:
            for root, own in _by_owner(namespaces).items():
                shard = None if root in self._building else self._shards.get(root)
                missing += [namespace for namespace in own if shard is None or namespace not in shard.indexes]
        return bool(missing) and sum(self._backend.heads(missing)) * _SECONDS_A_WRITE > wait_seconds

    def scanned(
        self, namespaces: Sequence[Namespace], words: Sequence[Term], until: float
    ) -> tuple[list[ScopeView], bool]:
        """Throw-away views of those documents of ``namespaces`` that hold the most of ``words``, without vectors.

        Also returns whether all documents were looked through. The last writes always are; the others only if that ends
        before ``until`` (`time.monotonic`), as far as can be told.
        """
        views: list[ScopeView] = []
        is_whole = True
        for namespace, head in zip(namespaces, self._backend.heads(namespaces), strict=True):
            found, is_all = self._holding(namespace, words, head, until) if head else ((), True)
            views.append(ScopeIndex(self._model).update(found))
            is_whole = is_whole and is_all
        return views, is_whole

    def _holding(
        self, namespace: Namespace, words: Sequence[Term], head: int, until: float
    ) -> tuple[Iterable[Change], bool]:
        """What `scanned` finds in one scope.

        The first window tells how many writes the database looks through in a second. The wider one has as many as take
        half of the time that is left. Of each scope, one caller at a time has a wider one: all of them together would
        hold up the building of the index.
        """
        began = time.monotonic()
        found = self._backend.holding(namespace, words, _SCANNED, max(head - _WINDOW, 0))
        now = time.monotonic()
        wider = int(_WINDOW * (until - now) / max(now - began, 1e-6)) // 2
        if head <= _WINDOW or wider < min(head, 2 * _WINDOW):
            return found, head <= _WINDOW
        with self._lock:
            if namespace in self._scanning:
                return found, False
            self._scanning.add(namespace)
        try:
            with suppress(StoreUnavailable):  # it took longer than the database lets a statement run
                return self._backend.holding(namespace, words, _SCANNED, max(head - wider, 0)), head <= wider
        finally:
            with self._lock:
                self._scanning.discard(namespace)
        return found, False

    def build(self, namespaces: Sequence[Namespace]) -> bool:
        """Has the indexes of ``namespaces`` built in the background, unless that is being done.

        Returns False if one of them would not be kept, as it is too large, and that of another such user is in use: it
        is not built then.
        """
        with self._lock:
            owners = _by_owner(namespaces)
            fitting = {root: own for root, own in owners.items() if not self._has_no_place(root)}
            for root, own in fitting.items():
                if self._building.setdefault(root, own) is own:
                    self._wake(0.0)
        return len(fitting) == len(owners)

    def note_written(self, namespaces: Iterable[Namespace]) -> None:
        """Notes writes of texts to ``namespaces``: indexes that are there, or soon needed, follow in the background.

        Not those of another library's store, which its owner may close at any time: to read from a LangGraph
        SqliteStore in one thread while another closes it ends the process.
        """
        if not self._backend.capabilities.change_feed:
            return
        with self._lock:
            self._written.update(namespaces)
            if not self._is_woken:
                self._is_woken = True
                self._wake(_FOLLOW_S)

    def follow(self) -> bool:
        """Chore: brings an index up to date. Returns whether there was one to do. Raises StoreError.

        First come those that `build` was called for; then those that are there, and those of scopes to which so much
        was written that the next search would have to wait. Last, the vectors of those that are large are measured.
        """
        with self._lock:
            self._is_woken = False
            root, namespaces = next(iter(self._building.items()), ("", ()))
            if not namespaces:
                for namespace, count in self._written.items():
                    shard = self._shards.get(namespace[0])
                    is_wanted = count >= _MANY_WRITES and not self._has_no_place(namespace[0])
                    if is_wanted or (shard and namespace in shard.indexes):
                        del self._written[namespace]
                        namespaces = [namespace]
                        break
                else:
                    if len(self._written) > _SCOPES_COUNTED:
                        self._written.clear()
        try:
            self.views(namespaces)
        finally:
            with self._lock:
                self._building.pop(root, None)
        return bool(namespaces) or self._measured()

    def _measured(self) -> bool:
        """Measures the vectors of an index that has become large; whether there was one."""
        with self._lock:
            if not self._unmeasured:
                return False
            namespace = self._unmeasured.pop()
            shard = self._shards.get(namespace[0])
        if shard is not None:
            with shard.lock:
                index = shard.indexes.get(namespace)
                if index is not None:
                    index.measure()
            give_memory_back()
        return True

    def _refreshed(self, shard: _Shard, namespaces: Sequence[Namespace], heads: Sequence[Head]) -> list[ScopeView]:
        views: list[ScopeView] = []
        count = 0
        with shard.lock:
            for namespace, known in zip(namespaces, heads, strict=True):
                index, head = shard.indexes.get(namespace), known
                if index is not None and (head < index.head or head.epoch != index.epoch):
                    # Another thread has seen more meanwhile, or the database was restored to an earlier state.
                    (head,) = self._backend.heads([namespace])
                if index is None or head < index.head or head.epoch != index.epoch or index.is_sparse:
                    index = ScopeIndex(self._model, head.epoch)
                is_mixed = False
                changes = iter(self._backend.changes(namespace, index.head) if head > index.head else ())
                # Whatever fails here fails before `publish`: the index goes on from where it is, or is made anew, and
                # readers keep the last view.
                while portion := list(islice(changes, _PORTION)):
                    index.apply(portion)
                    count += len(portion)
                    is_mixed |= any(change.epoch != head.epoch for change in portion)
                    self.rows.drop([(namespace, change.key) for change in portion if not change.is_there])
                if index.head != index.view.seq or namespace not in shard.indexes:
                    index.publish()
                views.append(index.view)
                shard.indexes[namespace] = index
                if is_mixed:  # the server that answered has changed since the heads were read
                    del shard.indexes[namespace]
            root, size = namespaces[0][0], shard.nbytes
            unmeasured = [name for name, index in shard.indexes.items() if index.is_unmeasured]
        with self._lock:
            dropped = self._sized(root, size) if root in self._shards else []
            self._unmeasured.update(unmeasured)
        if unmeasured:
            self._wake(_FOLLOW_S)
        for user in dropped:  # without the lock, as the backend may hold its own during a long read
            self._backend.forget(user)
        if count >= _LARGE_BUILD:
            give_memory_back()
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


def index_size(backend: Backend, model: str, namespaces: Sequence[Namespace]) -> int:
    """Bytes of the indexes of ``namespaces``. Builds them, and keeps none: seconds for each 100,000 memories."""
    sizes: list[int] = []
    for namespace in namespaces:
        index, changes = ScopeIndex(model), iter(backend.changes(namespace, 0))
        while portion := list(islice(changes, _PORTION)):
            index.apply(portion)
        sizes.append(index.publish().nbytes)
    return sum(sizes)


def _by_owner(namespaces: Iterable[Namespace]) -> dict[str, list[Namespace]]:
    """``namespaces`` by the user or space that they belong to."""
    owners: dict[str, list[Namespace]] = {}
    for namespace in namespaces:
        owners.setdefault(namespace[0], []).append(namespace)
    return owners


class RowCache:
    """Rows as they were read and parsed, by key; beyond ``max_bytes`` the least recently used are dropped."""

    def __init__(self, backend: Backend, max_bytes: int) -> None:
        self.nbytes = 0
        self._backend = backend
        self._max_bytes = max_bytes
        self._rows: OrderedDict[Key, tuple[Row, int]] = OrderedDict()
        self._made: OrderedDict[tuple[Namespace, ...], tuple[list[ref[ScopeView]], dict[type, Any]]] = OrderedDict()
        self._drops = 0
        self._lock = threading.Lock()

    def get(self, wanted: Sequence[tuple[Key, int, int, Epoch]]) -> list[Row | None]:
        """The row of each key, None if it is gone.

        With each key come two numbers and their epoch: a cached row whose ``seq`` lies between them will do, else the
        row is read.
        """
        rows: dict[Key, Row | None] = {}
        with self._lock:
            drops = self._drops
            for key, since, until, epoch in wanted:
                row, _ = self._rows.get(key, (None, 0))
                if row is not None and row.epoch == epoch and since <= row.seq <= until:
                    self._rows.move_to_end(key)
                    rows[key] = row
        missing = [key for key, *_ in wanted if key not in rows]
        if missing:
            read = self._backend.get(missing)
            rows |= zip(missing, read, strict=True)
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
        return [rows[key] for key, *_ in wanted]

    def made_of(self, namespaces: Sequence[Namespace], views: Iterable[ScopeView]) -> dict[type, Any]:
        """What was made of the rows that ``views`` of ``namespaces`` show, to be added to; empty for other views."""
        key, shown = tuple(namespaces), list(map(ref, views))
        with self._lock:
            known, made = self._made.pop(key, ([], {}))
            if len(known) != len(shown) or not all(map(is_, known, shown)):  # a view has one reference
                made = {}
            self._made[key] = shown, made
            if len(self._made) > _MADE:
                self._made.popitem(last=False)
        return made

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
            for namespaces in [key for key in self._made if any(name[0] == root for name in key)]:
                del self._made[namespaces]


# What a turn reads.

NAMED: Final = 8
"""This many rows more are read if one of the best is about somebody whom the text names: they may take its place."""
CANDIDATES: Final = 60
"""This many of the best rows are read if links between rows are followed."""
SOURCES: Final = 3
"""Links are followed from this many of them."""
REACHED: Final = 50
"""At most this many linked rows are added."""
K = TypeVar("K")
T = TypeVar("T")


class Ranked:
    """The texts of some views in the order in which they answer a question."""

    def __init__(self, namespaces: Sequence[Namespace], pool: Pool, ranking: Ranking | LazyRanking) -> None:
        self.scopes = namespaces
        self.pool = pool
        self._ranking = ranking

    def owners(self, group: Sequence[Namespace]) -> list[int]:
        """Which of the views are those of ``group``."""
        return [owner for owner, namespace in enumerate(self.scopes) if namespace in group]

    def key(self, place: Place) -> Key:
        """Where the text at ``place`` is stored."""
        return self.scopes[place.owner], self.pool.views[place.owner].keys[place.slot]

    def hits(self, search: Search, owners: Collection[int]) -> Iterator[Hit]:
        """The hits in the views of ``owners``, the best first; with ``backfill``, all other texts follow."""
        if not owners:
            return iter(())
        hits = self._ranking.of(owners, search.kinds)
        return chain(hits, self._ranking.others(owners, search.kinds)) if search.backfill else hits


def are_named(hits: Sequence[FoundRow], text: str) -> bool:
    """Whether one of ``hits`` is about somebody whom ``text`` names."""
    subjects = [found for hit in hits if (found := traits_of(hit.row).subjects)]
    return bool(subjects) and any(map(Named(text).is_any, subjects))


def by_name(search: Search, hits: Sequence[FoundRow], named: Named) -> list[FoundRow]:
    """``hits``, the best first, once what is about somebody who is ``named`` has gained by it."""
    given = dict(enumerate(hits))
    candidates = _candidates(search, given)
    link_to_query(list(candidates.values()), named)
    return _gained(search, given, candidates)


def _gained(search: Search, hits: Mapping[K, FoundRow], candidates: Mapping[K, RankingCandidate]) -> list[FoundRow]:
    """``hits`` with what the ``candidates`` among them gained, the best first."""
    given = dict(hits)
    for place, candidate in candidates.items():
        if candidate.links:
            hit, share = given[place], round(candidate.share, DECIMALS)
            shares = {**hit.shares, "links": share} if search.explains else hit.shares
            score = round(hit.score + share, DECIMALS)
            given[place] = replace(hit, score=score, shares=shares, links=tuple(candidate.links))
    return sorted(given.values(), key=attrgetter("score"), reverse=True)


def _candidates(search: Search, hits: Mapping[K, FoundRow]) -> dict[K, RankingCandidate]:
    """The rows of ``hits`` that the search does not reject, as candidates for links."""
    candidates: dict[K, RankingCandidate] = {}
    for place, hit in hits.items():
        if search.reject is None or search.reject(hit.row) is None:
            traits = traits_of(hit.row)
            marks = traits.subjects | by_canonical(tags_of(hit.row.value))
            is_question = asks_something(traits.content)
            candidates[place] = RankingCandidate(hit.row.key, hit.score, traits.subjects, marks, is_question)
    return candidates


_SPARE: Final = 2
_LARGEST_PORTION: Final = 500
RERANKED: Final = 30
"""A re-ranker sees at least this many of the best memories of a group."""
_FIRST_PINNED: Final = 500
"""While an index is being built, pinned rows are found only among this many of the newest."""
_SCAN_SHARE: Final = 0.5
"""The share of the time left in which words are looked for without an index; the rest is for reading what was found."""
_BUILDING: Final = "the index is being built"
_TOO_LARGE: Final = "the index is too large for AGENT_MEMORY_INDEX_MB"
_NEWEST: Final = "; only the newest memories were searched"
Reject = Callable[[Row], str | None]
"""Why a row is left out; None if it is not."""


@dataclass(slots=True)
class Snapshots:
    """Takes snapshots, on a worker. ``breaker`` counts how the calls of the database end."""

    backend: Backend
    indexes: IndexCache
    embedder: Embedder | None
    rerank: Reranker | None
    breaker: Breaker
    are_warm: bool = False
    """Whether one was taken after the model had been loaded."""

    def answered(self, body: Callable[[Snapshot], T], namespaces: Sequence[Namespace], visit: Visit) -> T:
        """What ``body`` makes of a snapshot of ``namespaces``. Raises StoreError."""
        with self.breaker:
            return body(self._taken(namespaces, visit))

    def searched(self, searches: Sequence[Search], visit: Visit) -> list[SearchResult]:
        """The results of ``searches``: of one owner's scopes after the other's, unless the first says ``together``."""
        with self.breaker:
            parts = [self._taken(namespaces, visit).search_together(own) for namespaces, own in by_owner(searches)]
        return joined(searches, parts)

    def _taken(self, namespaces: Sequence[Namespace], visit: Visit) -> Snapshot:
        taken = (self.backend, self.indexes, namespaces, visit.question, visit.wait_seconds, self.rerank, visit.until)
        snapshot = Snapshot(*taken)
        if visit.backfill and visit.backfill.fill_few(snapshot.count_unembedded, snapshot.unembedded):
            snapshot = Snapshot(*taken)
        self.are_warm = self.embedder is None or not self.embedder.is_loading
        return snapshot


class Snapshot:
    """Answers from exactly ``scopes``, a user's and those of spaces, as they are when it is made. For one thread.

    Where an index would take longer than ``wait_seconds`` to build, it is built in the background; until then the
    database answers, and searches are by words only. They look through the newest memories, and through as many others
    as take half of the time until ``until`` (`time.monotonic`; None: ``wait_seconds`` from now). Methods block and
    raise StoreError.
    """

    def __init__(
        self,
        backend: Backend,
        indexes: IndexCache,
        namespaces: Sequence[Namespace],
        question: QuestionVectors | LateQuestion,
        wait_seconds: float,
        rerank: Reranker | None = None,
        until: float | None = None,
    ) -> None:
        self._backend = backend
        self._indexes = indexes
        self._question = question
        self._rerank = rerank
        self._scopes = list(dict.fromkeys(namespaces))
        now = time.monotonic()
        self._scan_until = now + _SCAN_SHARE * (wait_seconds if until is None else until - now)
        self._is_cold = bool(namespaces) and indexes.needs_build(self._scopes, wait_seconds)
        self._views = {} if self._is_cold else dict(zip(self._scopes, indexes.views(self._scopes), strict=True))
        self._problem = ""
        if self._is_cold:
            self._problem = _BUILDING if indexes.build(self._scopes) else _TOO_LARGE

    @property
    def count_unembedded(self) -> int:
        """How many of its texts have no vector of the store's model; 0 while it is without an index."""
        return sum(len(view.unembedded) for view in self._views.values())

    def unembedded(self) -> list[Key]:
        """The keys of these texts."""
        return [
            (namespace, view.keys[slot]) for namespace, view in self._views.items() for slot in view.unembedded.tolist()
        ]

    def made(self) -> dict[type, Any]:
        """What was made of what is in its scopes, to be added to; nothing is kept while it is without an index."""
        return self._indexes.rows.made_of(self._scopes, self._views.values()) if self._views else {}

    def search(self, search: Search) -> SearchResult:
        """The best rows for a text; for a blank text, the newest with ``backfill``, else none."""
        return self.search_together([search])[0]

    def search_together(self, searches: Sequence[Search]) -> list[SearchResult]:
        """Like `search` for each of ``searches``. All have the same text, which is ranked once.

        Statistics are those of all their groups.
        """
        if not searches[0].text.strip():
            return [
                SearchResult(
                    [
                        [
                            FoundRow(row, 0.0)
                            for row in self.newest(group, kinds=one.kinds, limit=one.limit, reject=one.reject)
                        ]
                        if one.backfill
                        else []
                        for group in one.groups
                    ],
                    RecallMode.HYBRID,
                )
                for one in searches
            ]
        if self._is_cold:
            question = QuestionVectors()
        else:  # the question has vectors only where a text is compared with them
            spaces = (view.vectors.held_spaces for view in self._views.values())
            question = self._question.vectors_in(frozenset[int]().union(*spaces))
        with brief_step("rank"):
            ranked, query, is_whole = self._ranked(searches, question)
        if self._is_cold:
            question = QuestionVectors(problem=self._problem if is_whole else self._problem + _NEWEST)
        return [self._result(search, ranked, query, question) for search in searches]

    def newest(
        self,
        namespaces: Sequence[Namespace],
        *,
        kinds: frozenset[str] | None = None,
        limit: int,
        reject: Reject | None = None,
    ) -> list[Row]:
        """The newest rows of ``namespaces`` (and of ``kinds``) that are not rejected, the newest creation first."""
        rows: list[Row] = []
        for portion in self._by_age(namespaces, kinds, max(limit, 1)):
            rows += [row for row in portion if reject is None or reject(row) is None]
            if len(rows) >= limit:
                break
        return rows[:limit]

    def pinned(self, namespaces: Sequence[Namespace]) -> list[Row]:
        """All rows of ``namespaces`` that are pinned, the newest first."""
        if self._is_cold:
            rows = self._backend.page(PageRequest(namespaces, limit=_FIRST_PINNED))
            return [row for row in rows if row.value.get("pinned") is True]
        places: list[tuple[float, str, Namespace, int]] = []
        for namespace in namespaces:
            view = self._views[namespace]
            # Pinned memories have the highest importance; whether a memory with it is pinned, only its row says.
            places += [(-view.columns.created.item(slot), view.keys[slot], namespace, slot) for slot in view.important]
        rows = self._rows([(namespace, slot) for _, _, namespace, slot in sorted(places)])
        return [row for row in rows if row is not None and row.value.get("pinned") is True]

    def get(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key in the snapshot's scopes."""
        if self._is_cold:
            return self._backend.get(keys)
        slots = [(namespace, self._views[namespace].slot_of(key)) for namespace, key in keys]
        rows = iter(self._rows([(namespace, slot) for namespace, slot in slots if slot is not None]))
        return [None if slot is None else next(rows) for _, slot in slots]

    def beside(self, keys: Sequence[Key]) -> list[Row | None]:
        """The rows at ``keys`` outside of its scopes, as they are now."""
        return self._backend.get(keys)

    def _by_age(self, namespaces: Sequence[Namespace], kinds: frozenset[str] | None, size: int) -> Iterator[list[Row]]:
        """Rows in portions, the newest first; ties by key."""
        if self._is_cold:
            after: Cursor | None = None
            while page := self._backend.page(PageRequest(namespaces, kinds=kinds, limit=size + _SPARE, after=after)):
                yield page
                after = Cursor.of(page[-1])
            return

        places = merge(*(self._places_by_age(namespace, kinds) for namespace in dict.fromkeys(namespaces)))
        while portion := list(islice(places, size + _SPARE)):
            rows = self._rows([(namespace, slot) for _, _, namespace, slot in portion])
            yield [row for row in rows if row is not None]

    def _places_by_age(
        self, namespace: Namespace, kinds: frozenset[str] | None
    ) -> Iterator[tuple[float, str, Namespace, int]]:
        """The slots of a scope's rows, each behind what it is ordered by."""
        view = self._views[namespace]
        for slot in view.newest_of(kinds):
            yield -view.columns.created.item(slot), view.keys[slot], namespace, int(slot)

    def _ranked(self, searches: Sequence[Search], question: QuestionVectors) -> tuple[Ranked, Query, bool]:
        """The texts in the groups of ``searches``, ranked, the query that ranked them, and whether these are all."""
        first = searches[0]
        query = Query.of(first.text, first.now, question.vectors, ignore_session=first.ignore_session)
        asked = dict.fromkeys(namespace for search in searches for group in search.groups for namespace in group)
        namespaces = [namespace for namespace in self._scopes if namespace in asked]
        if self._is_cold:
            views, is_whole = self._indexes.scanned(namespaces, query.terms, self._scan_until)
        else:
            views, is_whole = [self._views[namespace] for namespace in namespaces], True
        held = [(namespace, view) for namespace, view in zip(namespaces, views, strict=True) if len(view)]
        namespaces, views = [namespace for namespace, _ in held], [view for _, view in held]
        pool = Pool(views) if self._is_cold or not views else self._indexes.pool(namespaces, views)

        def tokens_of(places: Sequence[Place]) -> list[bytes | None]:
            return self._backend.tokens([(namespaces[owner], views[owner].keys[slot]) for owner, slot in places])

        groups = {
            tuple(owner for owner, namespace in enumerate(namespaces) if namespace in group): None
            for search in searches
            for group in search.groups
        }
        ranking = rank(pool, query, tokens_of, [group for group in groups if group])
        return Ranked(namespaces, pool, ranking), query, is_whole

    def _result(self, search: Search, ranked: Ranked, query: Query, question: QuestionVectors) -> SearchResult:
        wanted = replace(search, limit=max(search.limit, RERANKED)) if self._rerank else search
        hits = [ranked.hits(wanted, ranked.owners(group)) for group in search.groups]
        # One read for all groups puts the rows that each of them asks for first into the cache.
        spare = _SPARE + NAMED if len(hits) > 1 and search.links is None else _SPARE
        firsts = [list(islice(one, wanted.limit + spare)) for one in hits]
        if len(firsts) > 1 and not self._is_cold:
            self._rows_at(ranked, [hit.place for first in firsts for hit in first])
        selections = [
            self._selected(wanted, ranked, query, group, chain(first, rest))
            for group, first, rest in zip(search.groups, firsts, hits, strict=True)
        ]
        groups = [selection.rows() for selection in selections]
        left_out = [row for selection in selections for row in selection.left_out]
        problem = question.problem
        mode = RecallMode.LEXICAL if question.vectors is None else RecallMode.HYBRID
        record("inference_core.search.mode", 1, {"mode": mode.value})
        if self._rerank:
            with step("rerank"):
                groups, failure = reranked(self._rerank, search, groups)
            problem = failure or problem
        necessity = question.necessity
        if necessity is not None:
            necessity = necessity_among(necessity, len(ranked.pool))
        return SearchResult(groups, mode, problem, left_out, necessity)

    def _selected(
        self, search: Search, ranked: Ranked, query: Query, group: Sequence[Namespace], hits: Iterator[Hit]
    ) -> Selection:
        """The best rows of ``hits`` that the search takes, fetched in small portions until there are enough."""
        selection = Selection(search, ranked.pool.alike if query.vectors else None)
        owners = ranked.owners(group)
        if search.links and owners:
            for found in self._linked(search, query, ranked, owners):
                selection.offer(found)
        offered = selection.keys()
        hits = (hit for hit in hits if not offered or ranked.key(hit.place) not in offered)
        size = 0
        while selection.missing > 0 and (portion := list(islice(hits, max(size, selection.missing + _SPARE)))):
            best = list(self._found_at(search, ranked, portion).values())
            if search.links is None and not size and are_named(best, search.text):
                others = self._found_at(search, ranked, list(islice(hits, NAMED)))
                best = by_name(search, [*best, *others.values()], Named(search.text))
            for found in best:
                selection.offer(found)
            size = min(2 * len(portion), _LARGEST_PORTION)  # larger and larger, as a search may reject nearly all
        if self._is_cold and search.backfill and selection.missing > 0:
            # The scan that stands in for the index knows only rows that hold a word of the question.
            seen = selection.keys()
            for row in self._backend.page(PageRequest(group, kinds=search.kinds, limit=len(seen) + search.limit)):
                if (row.namespace, row.key) not in seen:
                    selection.offer(FoundRow(row, 0.0, 0.0))
        return selection

    def _linked(self, search: Search, query: Query, ranked: Ranked, owners: Collection[int]) -> list[FoundRow]:
        """The best hits in the views of ``owners``, and rows there that links lead to, the best first.

        Rows that the search rejects lead nowhere.
        """
        hits = list(islice(ranked.hits(search, owners), CANDIDATES))
        direct = self._found_at(search, ranked, hits)
        candidates = _candidates(search, direct)
        strength = link_to_query(list(candidates.values()), Named(search.text))
        best = sorted(candidates, key=lambda place: -candidates[place].score - candidates[place].share)[:SOURCES]
        terms = set(chain.from_iterable((term,) if isinstance(term, str) else term for term in query.terms))
        bridges: dict[Place, Bridges] = {}
        for place in best if strength else ():
            row = direct[place].row
            text, neighbours = traits_of(row).content, neighbours_of(row.value)
            bridges[place] = bridges_of(text, terms, neighbours, ranked.pool.views, owners)
        # Rows that only bridges lead to come after the direct hits; nothing says that they are relevant.
        reached = [
            (mass, place) for found in bridges.values() for place, (mass, _) in found.items() if place not in direct
        ]
        kinds, views = search.kinds, ranked.pool.views
        wanted = {
            place: mass
            for mass, place in sorted(reached)
            if kinds is None or views[place.owner].kind(place.slot) in kinds
        }
        places = sorted(wanted, key=lambda place: (-wanted[place], ranked.key(place)))[:REACHED]
        start = round(min((hit.score for hit in direct.values()), default=0.0) - SHARED, DECIMALS)
        shares = {"reached": start} if search.explains else {}
        rows = zip(places, self._rows_at(ranked, places), strict=True)
        further = {place: FoundRow(row, start, 0.0, shares, place=place) for place, row in rows if row is not None}
        candidates |= _candidates(search, further)
        # What records say goes before what texts share.
        ends: dict[Place, dict[str, tuple[float, str]]] = {place: {} for place in candidates}
        for source, found in bridges.items():
            for place, bridge in (found | shared_marks(candidates[source], candidates)).items():
                if place in candidates and place != source:
                    ends[place][candidates[source].key] = bridge
        for place, candidate in candidates.items():
            link_to_best(candidate, ends[place], strength)
        return _gained(search, direct | further, candidates)

    def _found_at(self, search: Search, ranked: Ranked, hits: Sequence[Hit]) -> dict[Place, FoundRow]:
        """The rows of ``hits`` that are there."""
        rows = self._rows_at(ranked, [hit.place for hit in hits])
        return {
            hit.place: FoundRow(row, hit.score, hit.relevance, hit.shares if search.explains else {}, place=hit.place)
            for hit, row in zip(hits, rows, strict=True)
            if row is not None
        }

    def _rows_at(self, ranked: Ranked, places: Sequence[Place]) -> list[Row | None]:
        """The rows of the texts at ``places``; None for one that has expired, or was removed since."""
        if self._is_cold:
            return self._backend.get([ranked.key(place) for place in places])
        return self._rows([(ranked.scopes[place.owner], place.slot) for place in places])

    def _rows(self, places: Sequence[tuple[Namespace, int]]) -> list[Row | None]:
        """The rows in slots; None for one that has expired, or was removed since."""
        wanted: list[tuple[Key, int, int, Epoch]] = []
        for namespace, slot in places:
            view = self._views[namespace]
            wanted.append(((namespace, view.keys[slot]), view.columns.written.item(slot), view.seq, view.epoch))
        return self._indexes.rows.get(wanted) if wanted else []


def reranked(
    reranker: Reranker, search: Search, groups: Sequence[Sequence[FoundRow]]
) -> tuple[list[list[FoundRow]], str | None]:
    """The rows of each group as ``reranker`` orders them, cut to the limit; if it fails, as they were, and why."""
    try:
        texts = [[str(hit.row.value.get("content", hit.row.value)) for hit in group] for group in groups]
        orders = [reordered(reranker, search.text, group) if group else [] for group in texts]
    except Exception as error:  # noqa: BLE001 - whatever it raises, the first order is there
        return [list(group[: search.limit]) for group in groups], f"The re-ranker failed: {type(error).__name__}"
    return [[group[at] for at in order[: search.limit]] for group, order in zip(groups, orders, strict=True)], None
