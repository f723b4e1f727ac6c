"""Indexes and rows of many users within one bound of bytes, beside writers and backends that fail."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.memory.text import encode_json
from inference_core.retrieval import vectors
from inference_core.retrieval.documents import NO_EPOCH, Change, Document, Term
from inference_core.retrieval.ranking import FEW
from inference_core.stores.backend import Backend, Expiry, Key, Put, Remove, Row
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.backends.rows import Table
from inference_core.stores.engine import StoreEngine
from inference_core.stores.indexing import indexes
from inference_core.stores.indexing.indexes import IndexCache, RowCache, needed_megabytes
from inference_core.stores.indexing.search import Search

USER: Namespace = ("ada", "semantic")
LARGE: Namespace = ("large", "semantic")
START = datetime(2026, 1, 1, tzinfo=UTC)


def put(key: str, text: str = "tea", namespace: Namespace = USER, **value: Any) -> Put:
    return Put(
        namespace=namespace,
        key=key,
        value=encode_json({"content": text, **value}, what="value"),
        document=Document.of(text),
        kind="facts",
        updated_at=START,
    )


def cache_of(backend: Backend, max_bytes: int = 10**9, woken: list[float] | None = None) -> IndexCache:
    return IndexCache(backend, "", max_bytes, ([] if woken is None else woken).append)


class Failing(InMemoryBackend):
    """Gives as many changes as it may, then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.gives: int | None = None

    def changes(self, namespace: Namespace, since: int) -> Iterator[Change]:
        for given, change in enumerate(super().changes(namespace, since)):
            if given == self.gives:
                raise StoreUnavailable("Away")
            yield change


def shown(cache: IndexCache) -> tuple[int, int, int, list[str]]:
    (view,) = cache.views([USER])
    return len(view), view.document_frequency("tea"), view.length, sorted(view.keys[slot] for slot in view.by_age)


@pytest.mark.parametrize("fails_after", range(7))
def test_a_load_that_fails_in_its_midst_leaves_the_last_view_and_the_next_is_complete(
    fails_after: int, monkeypatch: pytest.MonkeyPatch
):
    """Half of a load was left in an index that later loads took for whole."""
    monkeypatch.setattr(indexes, "_PORTION", 2)
    backend = Failing()
    cache = cache_of(backend)
    backend.gives = fails_after
    backend.apply([[put(f"k{at}") for at in range(7)]])
    with pytest.raises(StoreUnavailable):
        cache.views([USER])
    backend.gives = None
    assert shown(cache) == shown(cache_of(backend))
    (before,) = cache.views([USER])
    backend.apply([[put(f"k{at}", f"tea car {at}") for at in range(2, 6)], [Remove(namespace=USER, key="k0")]])
    backend.apply([[put("k7"), put("k6", "car")]])
    backend.gives = min(fails_after, 5)
    with pytest.raises(StoreUnavailable):
        cache.views([USER])
    assert cache._shards["ada"].indexes[USER].view is before
    assert (before.seq, len(before), before.length, before.document_frequency("car")) == (7, 7, 7, 0)
    backend.gives = None
    assert shown(cache) == shown(cache_of(backend))
    assert (len(before), before.document_frequency("tea"), before.document_frequency("car")) == (7, 7, 0)


def test_many_read_while_one_writes():
    """Views of more texts than are ranked whole; each gives as many rows as there were when it was taken."""
    backend = InMemoryBackend()
    backend.apply([[put(f"k{at}", "kettle" if at % 900 else f"tea {at}") for at in range(FEW + 200)]])
    engine = StoreEngine(backend)
    is_over = threading.Event()

    def write() -> None:
        for at in range(60):
            key = f"k{at * 60}"
            backend.apply([[put(key, f"tea {at}"), Remove(namespace=USER, key=f"k{at * 60 + 1}"), put(f"new{at}")]])
            if at % 3 == 0:
                backend.apply([[put(f"k{at * 60 + 1}", "boat")]])

    def read(text: str) -> int:
        rounds = 0
        search = Search(groups=[[USER]], text=text, limit=30, backfill=True, wait_seconds=60)
        while not is_over.is_set() or not rounds:
            (found,) = run(engine.search(search)).groups
            assert len({hit.row.key for hit in found}) == 30
            assert len(run(engine.read([USER], lambda one: one.newest([USER], limit=50), wait_seconds=60))) == 50
            rounds += 1
        return rounds

    run(engine.search(Search(groups=[[USER]], text="tea", limit=1, wait_seconds=60)))
    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read, text) for text in ("tea", "boat", "kettle tea")]
        try:
            write()
        finally:
            is_over.set()
        assert all(reader.result(60) for reader in readers)
    grown, afresh = engine._indexes, cache_of(backend)
    assert shown(grown) == shown(afresh)
    engine.close()


def test_the_least_recently_used_users_go_first():
    backend = InMemoryBackend()
    scopes = [(f"u{at}", "semantic") for at in range(4)]
    backend.apply([[put(f"k{at}", namespace=scope) for at in range(20)] for scope in scopes])
    cache = cache_of(backend)
    (first,) = cache.views(scopes[:1])
    room = 3 * first.nbytes + first.nbytes // 2
    cache = cache_of(backend, room * 8 // 7 + 8)
    for scope in (*scopes[:3], scopes[0], scopes[3]):
        cache.views([scope])
        assert cache.nbytes <= room
    assert list(cache._shards) == ["u2", "u0", "u3"]
    assert cache.nbytes == 3 * first.nbytes
    assert not cache.needs_build([scopes[2]], -1.0)
    assert cache.needs_build([scopes[1]], -1.0)


def test_indexes_follow_what_was_written_where_they_are_there_or_soon_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(indexes, "_MANY_WRITES", 3)
    monkeypatch.setattr(indexes, "_SCOPES_COUNTED", 5)
    backend, woken = InMemoryBackend(), list[float]()
    cache = cache_of(backend, woken=woken)
    others: list[Namespace] = [(f"u{at}", "semantic") for at in range(6)]
    backend.apply([[put("a"), *(put("a", namespace=namespace) for namespace in others)]])
    assert not cache.follow()
    cache.views([USER])
    backend.apply([[put("b")]])
    cache.note_written([USER])
    cache.note_written([others[0]])
    assert woken == [indexes._FOLLOW_S]
    assert (cache.follow(), cache.follow()) == (True, False)
    assert cache._shards["ada"].indexes[USER].view.seq == 2
    cache.note_written([others[0]] * 2)
    assert woken == [indexes._FOLLOW_S] * 2
    assert (cache.follow(), list(cache._shards)) == (True, ["ada", "u0"])
    cache.note_written(others)
    assert (cache.follow(), cache.follow(), dict(cache._written)) == (True, False, dict.fromkeys(others[1:], 1))
    cache.note_written([*others[1:], ("v", "semantic")])
    assert (cache.follow(), dict(cache._written)) == (False, {})


def test_the_vectors_of_large_indexes_are_measured_in_the_background(monkeypatch: pytest.MonkeyPatch):
    """But not those of an index that is gone meanwhile."""
    monkeypatch.setattr(vectors, "multiply_codes", vectors._multiply_by_numpy)
    monkeypatch.setattr(vectors, "LARGE", 0)
    monkeypatch.setattr(vectors, "_FEW", vectors._BLOCK)
    monkeypatch.setattr(indexes, "_LARGE_BUILD", 1)
    backend, woken = InMemoryBackend(), list[float]()
    scopes: list[Namespace] = [USER, ("ada", "episodic"), ("other", "semantic")]
    vector = vectors.pack_vectors(np.eye(1, 4, dtype=np.float32))
    for namespace in scopes:
        document = Document.of("tea")._replace(vector=vector)
        backend.apply([[replace(put("a", namespace=namespace), document=document)]])
    cache = cache_of(backend, woken=woken)
    assert not any(view.vectors.moments for view in cache.views(scopes))
    assert woken == [indexes._FOLLOW_S] * 2
    del cache._shards["ada"].indexes[scopes[1]], cache._shards["other"]
    assert [cache.follow() for _ in range(4)] == [True, True, True, False]
    assert [bool(view.vectors.moments) for view in cache.views(scopes)] == [True, False, False]


def test_a_pool_is_kept_while_its_views_are_the_same():
    backend = InMemoryBackend()
    namespaces = [USER, ("ada", "procedural")]
    backend.apply([[put("a"), put("b", namespace=namespaces[1])]])
    cache = cache_of(backend)
    views = cache.views(namespaces)
    pool = cache.pool(namespaces, views)
    assert cache.pool(namespaces, cache.views(namespaces)) is pool
    backend.apply([[put("c")]])
    later = cache.pool(namespaces, cache.views(namespaces))
    assert (len(pool), len(later)) == (2, 3)
    for _ in range(indexes._POOLS):
        for chosen in (namespaces[:1], namespaces[1:], namespaces[::-1], namespaces, [USER, USER]):
            cache.pool(chosen, cache.views(chosen))
    assert len(cache._shards["ada"].pools) == indexes._POOLS


def test_what_was_made_of_rows_is_kept_while_their_views_are_the_same():
    backend = InMemoryBackend()
    namespaces = [USER, ("ada", "procedural")]
    backend.apply([[put("a"), put("b", namespace=namespaces[1])]])
    cache = cache_of(backend)

    def made(chosen: Sequence[Namespace] = namespaces) -> dict[type, Any]:
        return cache.rows.made_of(chosen, cache.views(chosen))

    made()[str] = "first"
    assert (made(), made(namespaces[:1])) == ({str: "first"}, {})
    backend.apply([[put("c")]])
    assert made() == {}
    made()[str] = "second"
    cache.rows.drop_all_of("bob")
    assert made() == {str: "second"}
    cache.rows.drop_all_of("ada")
    assert made() == {}
    made()[str] = "third"
    for number in range(indexes._MADE):
        made([(f"u{number}", "semantic")])
    assert made() == {}


def test_the_pool_of_a_user_whose_index_has_no_place_is_not_kept():
    """It lived on, though the index was dropped, and nobody counted it."""
    backend = InMemoryBackend()
    backend.apply([[put("a"), put("a", namespace=LARGE)]])
    cache = cache_of(backend, 1)
    (first,) = cache.views([LARGE])
    views = cache.views([USER])
    assert len(cache.pool([USER], views)) == 1
    assert (cache.nbytes, list(cache._shards)) == (first.nbytes, [LARGE[0]])


class Counting(InMemoryBackend):
    """Counts how often an index was read from the start, by user."""

    def __init__(self) -> None:
        super().__init__()
        self.built: Counter[str] = Counter()

    def changes(self, namespace: Namespace, since: int) -> Iterable[Change]:
        self.built[namespace[0]] += not since
        return super().changes(namespace, since)


def with_users(sizes: Mapping[str, int]) -> Counting:
    """A database in which each user has so many memories."""
    backend = Counting()
    for user, size in sizes.items():
        for start in range(0, size, 1_000):
            scope, numbers = (user, "semantic"), range(start, min(start + 1_000, size))
            backend.apply([[put(f"k{at}", f"tea {at} and boat {at % 9}", scope) for at in numbers]])
    return backend


def test_a_user_beyond_the_bound_evicts_nobody_and_is_built_once(full: bool, caplog: pytest.LogCaptureFixture):
    """All others were evicted first, then the large index itself: each recall of it rebuilt it and all others."""
    bound, users = (16 << 20, 40) if full else (2 << 20, 20)
    small = {f"u{at}": 100 for at in range(users)}
    backend = with_users({"large": bound // 200, **small})
    cache = cache_of(backend, bound)
    for user in small:
        cache.views([(user, "semantic")])
    (view,) = cache.views([LARGE])
    assert view.nbytes > bound
    for _ in range(10):
        assert cache.views([LARGE]) == [view]
        for user in small:
            cache.views([(user, "semantic")])
    assert backend.built == dict.fromkeys(("large", *small), 1)
    assert not cache.needs_build([LARGE, *((user, "semantic") for user in small)], 0.0)
    assert cache.nbytes <= bound + view.nbytes
    (told,) = caplog.messages
    assert f"AGENT_MEMORY_INDEX_MB to at least {needed_megabytes(view.nbytes)}" in told
    assert "large" not in told.partition("inference-core doctor")[0].split()
    large_enough = cache_of(backend, needed_megabytes(view.nbytes) << 20)
    large_enough.views([LARGE])
    assert large_enough._large is None
    assert cache_of(backend, (needed_megabytes(view.nbytes) - 1) << 20)._max_bytes < view.nbytes


def test_of_users_beyond_the_bound_the_one_in_use_is_kept(monkeypatch: pytest.MonkeyPatch):
    """Recalled in turn, they would evict each other, and each recall would build an index."""
    backend = with_users({"large": 200, "other": 200, "third": 200})
    other, third = ("other", "semantic"), ("third", "semantic")
    woken: list[float] = []
    cache = cache_of(backend, 1, woken)
    assert cache.build([LARGE])
    assert cache.build([other])
    while cache.follow():
        pass
    del woken[:]
    for _ in range(3):
        assert not cache.needs_build([LARGE], 0.0)
        cache.views([LARGE])
        for scope in (other, third):
            assert cache.needs_build([scope], 0.0)
        assert not cache.build([other])
    cache.note_written([other] * indexes._MANY_WRITES)
    assert not cache.follow()
    assert (backend.built, cache._building, list(cache._shards)) == ({"large": 1, "other": 1}, {}, ["large"])
    monkeypatch.setattr(indexes, "_IN_USE_S", 0.0)  # the first user has left
    assert cache.build([other])
    assert cache.follow()
    assert (list(cache._shards), cache.nbytes) == (["other"], cache._shards["other"].nbytes)


def test_a_large_index_that_nobody_uses_goes_with_the_next_build(monkeypatch: pytest.MonkeyPatch):
    backend = with_users({"large": 2_000, "small": 10})
    cache = cache_of(backend, 100_000)
    cache.views([LARGE])
    monkeypatch.setattr(indexes, "_IN_USE_S", 0.0)
    (small,) = cache.views([("small", "semantic")])
    assert (list(cache._shards), cache.nbytes, cache._large) == (["small"], small.nbytes, None)


def test_an_index_that_has_shrunk_has_a_place_among_the_others():
    backend = with_users({"large": 2_000, "other": 10})
    cache = cache_of(backend, 100_000)
    cache.views([LARGE])
    for start in range(0, 1_995, 1_000):
        numbers = range(start, min(start + 1_000, 1_995))
        backend.apply([[Remove(namespace=LARGE, key=f"k{at}") for at in numbers]])
    cache.views([LARGE])  # most of its slots are dead now
    backend.apply([[put("k0", namespace=LARGE)]])
    cache.views([LARGE])
    assert (cache._large, cache._oversized, list(cache._shards)) == (None, set(), ["large"])
    assert cache.nbytes <= cache._max_bytes


class Scanned(InMemoryBackend):
    """Takes ``pace`` seconds of its own clock for each write that it looks through; fails beyond ``most`` of them."""

    def __init__(self, pace: float = 0.0, most: int = 10**9) -> None:
        super().__init__()
        self.now, self.pace, self.most = 0.0, pace, most
        self.looked: list[int] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.is_wide = threading.Event()

    def monotonic(self) -> float:
        return self.now

    def holding(self, namespace: Namespace, words: Sequence[Term], limit: int, since: int = 0) -> Iterable[Change]:
        (head,) = self.heads([namespace])
        self.looked.append(head - since)
        self.now += (head - since) * self.pace
        if head - since > self.most:
            raise StoreUnavailable("canceling statement due to statement timeout")
        if len(self.looked) > 1:
            self.is_wide.set()
            assert self.may_go.wait(60)
        return super().holding(namespace, words, limit, since)


def scanned(backend: Scanned, until: float = 1.0, cache: IndexCache | None = None) -> tuple[list[str], bool]:
    (view,), is_whole = (cache or cache_of(backend)).scanned([USER], ["key", "tea"], until)
    return sorted(view.keys), is_whole


@pytest.fixture
def hundred(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scanned]:
    """Makes a database of 100 writes, of which a scan begins with 10; its clock is that of scans."""

    def made(**options: Any) -> Scanned:
        backend = Scanned(**options)
        backend.apply([[put(f"k{at}", "the key" if at % 50 == 0 else f"note {at}") for at in range(100)]])
        backend.apply([[put("k99", "a key")]])
        monkeypatch.setattr(indexes, "time", backend)
        return backend

    monkeypatch.setattr(indexes, "_WINDOW", 10)
    return made


@pytest.mark.parametrize(
    ("pace", "looked"),
    [
        (0.0, [10, 101]),  # all of them, if that ends in time
        (0.001, [10, 101]),
        (0.01, [10, 45]),  # else as many as take half of the time that is left
        (0.02, [10, 20]),
        (0.04, [10]),  # not worth a second look
        (1.0, [10]),
    ],
)
def test_a_scan_keeps_to_its_time(hundred: Callable[..., Scanned], pace: float, looked: list[int]):
    """It looked through all memories, for seconds: recall failed until there was an index."""
    backend = hundred(pace=pace)
    keys, is_whole = scanned(backend)
    assert backend.looked == looked
    assert is_whole == (looked[-1] == 101)
    assert keys == [key for key, seq in (("k0", 1), ("k50", 51), ("k99", 101)) if seq > 101 - looked[-1]]
    assert backend.now <= max(1.0, 10 * pace)
    assert scanned(hundred(), until=-1.0) == (["k99"], False)  # the last writes are always looked through


def test_a_scan_that_the_database_ends_leaves_the_newest(hundred: Callable[..., Scanned]):
    """Recall raised StoreUnavailable when a scan met the statement timeout, and the breaker opened."""
    backend = hundred(most=50)
    assert scanned(backend) == (["k99"], False)
    assert scanned(hundred()) == (["k0", "k50", "k99"], True)


def test_one_caller_at_a_time_looks_through_all(hundred: Callable[..., Scanned]):
    """Constant recalls looked through all memories at once, so that the index was never built."""
    backend = hundred()
    cache = cache_of(backend)
    backend.may_go.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(scanned, backend, cache=cache)
        try:
            assert backend.is_wide.wait(60)
            backend.looked.clear()
            for _ in range(3):
                backend.looked.clear()
                assert scanned(backend, cache=cache) == (["k99"], False)
                assert backend.looked == [10]
        finally:
            backend.may_go.set()
        assert first.result(60) == (["k0", "k50", "k99"], True)
    backend.looked.clear()
    assert scanned(backend, cache=cache) == (["k0", "k50", "k99"], True)


def test_rows_are_kept_within_their_bound_the_last_used_longest():
    backend = InMemoryBackend()
    backend.apply([[put(f"k{at}", "x" * 1_000) for at in range(20)]])
    cache = RowCache(backend, 30_000)
    for at in range(20):
        cache.get([((USER, "k0"), 1, 20, NO_EPOCH), ((USER, f"k{at}"), 1, 20, NO_EPOCH)])
        assert 0 < cache.nbytes <= 30_000
    kept = [key for _, key in cache._rows]
    assert 3 < len(kept) < 10
    assert set(kept) == {"k0", *(f"k{20 - at}" for at in range(1, len(kept)))}
    assert cache.nbytes == sum(size for _, size in cache._rows.values())


def test_a_row_is_given_to_those_whose_view_shows_it(monkeypatch: pytest.MonkeyPatch):
    backend = InMemoryBackend()
    backend.apply([[put("a", topic=1)]])
    cache = RowCache(backend, 10**6)
    read: list[str] = []
    get = backend.get

    def counted(keys: Sequence[Key]) -> list[Row | None]:
        read.extend(key for _, key in keys)
        return get(keys)

    monkeypatch.setattr(backend, "get", counted)

    def topic(since: int, until: int) -> Any:
        (row,) = cache.get([((USER, "a"), since, until, NO_EPOCH)])
        return row and row.value["topic"]

    assert [topic(1, 1), topic(1, 1)] == [1, 1]
    backend.apply([[put("a", topic=2)]])
    assert [topic(1, 1), len(read)] == [1, 1]
    assert [topic(2, 2), topic(2, 3), len(read)] == [2, 2, 2]
    backend.apply([[Remove(namespace=USER, key="a")]])
    assert [topic(4, 4), topic(4, 4), len(read)] == [None, None, 4]
    assert cache.get([]) == []


def test_regression_a_row_of_another_epoch_is_read_anew():
    """A database that lost an update gives its number again, and the lost text was shown for the row as it is."""
    backend = InMemoryBackend()
    backend.apply([[put("a", topic=1)]])
    cache = RowCache(backend, 10**6)
    cache.get([((USER, "a"), 1, 2, NO_EPOCH)])
    lost, backend._rows = backend._rows, Table(epoch=1)
    backend.apply([[put("a", topic=2)]])
    for _ in range(2):
        (row,) = cache.get([((USER, "a"), 1, 2, 1)])
        assert (row and row.value["topic"], row and row.epoch) == (2, 1)
        backend._rows = lost  # the second time it is not read


def test_rows_that_expire_are_read_each_time():
    backend = InMemoryBackend()
    end = datetime.now(UTC) + timedelta(hours=1)
    backend.apply([[replace(put("a"), expiry=Expiry(end, timedelta(hours=1)))]])
    cache = RowCache(backend, 10**6)
    assert cache.get([((USER, "a"), 1, 1, NO_EPOCH)])[0] is not None
    assert (len(cache._rows), cache.nbytes) == (0, 0)


def test_regression_a_deleted_row_is_kept_no_longer_than_its_index_shows_it():
    """It was kept as long as there was room, with its text."""
    backend = InMemoryBackend()
    backend.apply([[put("a"), put("b")]])
    cache = cache_of(backend)
    cache.views([USER])
    cache.rows.get([((USER, key), 1, 2, NO_EPOCH) for key in "ab"])
    backend.apply([[Remove(namespace=USER, key="a")]])
    cache.views([USER])
    assert [key for _, key in cache.rows._rows] == ["b"]
    assert cache.rows.nbytes == sum(size for _, size in cache.rows._rows.values())


def test_what_a_caller_changes_no_other_caller_sees():
    """Rows were kept as they were read, and given to one caller after the other."""
    with open_store("memory://", embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "Likes green tea", extra_metadata={"deep": {"list": [1]}}, tags=["t"])
        store.put(("ada", "own"), "k", {"content": "green tea", "deep": {"list": [1]}})
        for _ in range(3):
            (found,) = store.search(("ada", "own"), query="tea")
            assert found.value == {"content": "green tea", "deep": {"list": [1]}}
            found.value["deep"]["list"].append(2)
            found.value["content"] = "changed"
            for one in (*service.recall_memories("ada", "green tea"), *service.list_memories("ada")[0]):
                assert one.metadata == one.value["extra_metadata"] == {"deep": {"list": [1]}}
                assert (one.content, one.value["tags"]) == ("Likes green tea", ["t"])
                one.metadata["deep"]["list"].append(3)
                one.value["extra_metadata"]["deep"]["list"].append(4)
                one.value["content"] = "changed"
                one.value["tags"].append("changed")


def test_regression_a_row_that_was_read_before_an_erasure_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    """The user's next memory under that id has the same number, and the erased text would be shown for it."""
    backend = InMemoryBackend()
    backend.apply([[put("a", topic=1)]])
    cache = RowCache(backend, 10**6)
    get = backend.get

    def erased_meanwhile(keys: Sequence[Key]) -> list[Row | None]:
        found = get(keys)
        cache.drop_all_of(USER[0])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(backend, "get", erased_meanwhile)
        cache.get([((USER, "a"), 1, 1, NO_EPOCH)])
    assert cache._rows == {}
    cache.get([((USER, "a"), 1, 1, NO_EPOCH)])
    assert len(cache._rows) == 1
