"""Items that expire: gone when their time has come, extended by reads, swept away, and put again as new ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from retrieval_support import packed

from inference_core import MemoryStore, open_store
from inference_core.effects import run
from inference_core.errors import InvalidInput, StoreUnavailable, VersionConflict
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Expire, Expiry, PageRequest, Put, Remove, SetVector, Touch
from inference_core.stores.factory import open_backend
from inference_core.testing import FrozenClock

NS = ("u", "notes")


@pytest.fixture
def store(database_url: str, clock: FrozenClock) -> Iterator[MemoryStore]:
    with open_store(database_url, embeddings=None, clock=clock) as store:
        yield store


def later(clock: FrozenClock, minutes: float) -> None:
    clock.advance(timedelta(minutes=minutes))


def keys(items: Any) -> list[str]:
    return sorted(item.key for item in items)


def test_an_item_is_gone_when_its_time_has_come(store: MemoryStore, clock: FrozenClock):
    store.put(NS, "short", {"text": "tea"}, ttl=10)
    store.put(NS, "long", {"text": "tea"}, ttl=60)
    store.put(NS, "ever", {"text": "tea"})
    later(clock, 9.99)
    assert store.get(NS, "short", refresh_ttl=False)
    later(clock, 0.01)
    assert store.get(NS, "short") is None
    assert keys(store.search(NS)) == keys(store.search(NS, query="tea")) == ["ever", "long"]
    assert keys(store.search(NS, filter={"text": "tea"})) == ["ever", "long"]
    assert run(store.engine.count([NS])) == 2


def test_a_namespace_of_expired_items_is_gone(store: MemoryStore, clock: FrozenClock):
    store.put(NS, "a", {"n": 1}, ttl=1)
    store.put(("v", "notes"), "a", {"n": 1})
    later(clock, 1)
    assert store.list_namespaces() == [("v", "notes")]
    assert store.list_namespaces(prefix=("u",)) == []


async def test_reads_extend_it_if_they_should(store: MemoryStore, clock: FrozenClock):
    for key in ("get", "aget", "search", "query", "left"):
        store.put(NS, key, {"text": f"tea {key}"}, ttl=10)
    later(clock, 6)
    store.get(NS, "get")
    await store.aget(NS, "aget", refresh_ttl=True)
    store.search(NS, filter={"text": "tea search"})
    await store.asearch(NS, query="query", filter={"text": "tea query"})
    store.get(NS, "left", refresh_ttl=False)
    store.search(NS, query="left", refresh_ttl=False)
    later(clock, 6)
    assert keys(store.search(NS, refresh_ttl=False)) == ["aget", "get", "query", "search"]
    later(clock, 4)
    assert store.search(NS) == []


def test_an_update_starts_it_anew_or_ends_it(store: MemoryStore, clock: FrozenClock):
    for key in ("again", "never"):
        store.put(NS, key, {"n": 1}, ttl=10)
    later(clock, 9)
    store.put(NS, "again", {"n": 2}, ttl=10)
    store.put(NS, "never", {"n": 2})
    later(clock, 9)
    assert keys(store.search(NS, refresh_ttl=False)) == ["again", "never"]
    later(clock, 9)
    assert keys(store.search(NS)) == ["never"]


def test_what_is_put_over_an_expired_item_is_new(store: MemoryStore, clock: FrozenClock):
    store.put(NS, "a", {"text": "green tea"}, ttl=1)
    later(clock, 5)
    store.put(NS, "a", {"text": "black coffee"})
    item = store.get(NS, "a")
    assert item is not None
    assert item.created_at == item.updated_at == clock.now()
    assert item.value == {"text": "black coffee"}


def test_the_store_has_defaults(database_url: str, clock: FrozenClock):
    with open_store(
        database_url, embeddings=None, clock=clock, ttl={"default_ttl": 5, "refresh_on_read": False}
    ) as store:
        store.put(NS, "a", {"n": 1})
        store.put(NS, "b", {"n": 1}, ttl=None)
        later(clock, 4)
        store.get(NS, "a")
        later(clock, 1)
        assert keys(store.search(NS)) == ["b"]


def test_the_sweeper_removes_what_has_expired(database_url: str, clock: FrozenClock):
    with open_store(database_url, embeddings=None, clock=clock, sweep_interval_s=0.01) as store:
        store.put(NS, "a", {"n": 1}, ttl=1)
        store.put(NS, "b", {"n": 1}, ttl=100)
        later(clock, 1)
        backend = store.engine.backend
        deadline = time.monotonic() + 10
        while backend.expired(10) and time.monotonic() < deadline:
            time.sleep(0.01)
        (deleted,) = list(backend.changes(NS, 2))
        assert (deleted.key, deleted.document, deleted.seq) == ("a", None, 3)
        assert keys(store.search(NS)) == ["b"]


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf, True, 1e300, "5"])
def test_a_time_to_live_is_a_number_of_minutes(store: MemoryStore, minutes: Any):
    with pytest.raises(InvalidInput, match="minutes"):
        store.batch([PutOp(NS, "a", {"n": 1}, ttl=minutes)])
    assert store.get(NS, "a") is None


def test_a_read_does_not_fail_if_it_cannot_extend(
    store: MemoryStore, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
):
    store.put(NS, "a", {"text": "tea"}, ttl=10)
    later(clock, 5)

    def fail(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(store.engine.backend, "apply", fail)
    found: list[Any] = store.batch([GetOp(NS, "a"), SearchOp(NS), SearchOp(NS, query="tea")])
    assert found[0].value == found[1][0].value == found[2][0].value == {"text": "tea"}


class TestBackends:
    """The writes below it."""

    def put(self, clock: FrozenClock, **changes: Any) -> Put:
        ttl = timedelta(minutes=1)
        expiry = Expiry(clock.now() + ttl, ttl)
        put = Put(namespace=NS, key="a", value="{}", updated_at=clock.now(), expiry=expiry)
        return replace(put, **changes)

    def test_rows_tell_their_expiry(self, database_url: str, clock: FrozenClock):
        with closing(open_backend(database_url, clock=clock)) as backend:
            backend.apply([[self.put(clock), self.put(clock, key="b", expiry=None)]])
            rows = backend.get([(NS, "a"), (NS, "b")])
            newest = backend.page(PageRequest([NS], limit=5))
        expiry = Expiry(clock.now() + timedelta(minutes=1), timedelta(minutes=1))
        assert [row and row.expiry for row in rows] == [row.expiry for row in newest] == [expiry, None]

    def test_an_expired_row_is_not_expected(self, database_url: str, clock: FrozenClock):
        with closing(open_backend(database_url, clock=clock)) as backend:
            backend.apply([[self.put(clock)]])
            later(clock, 1)
            (refused,) = backend.apply([[Remove(namespace=NS, key="a", expected=1)]])
            assert isinstance(refused, VersionConflict)
            assert backend.apply([[self.put(clock, expected=0)]]) == [[2]]

    def test_only_what_has_expired_is_removed(self, database_url: str, clock: FrozenClock):
        with closing(open_backend(database_url, clock=clock)) as backend:
            backend.apply([[self.put(clock), self.put(clock, key="b", expiry=None)]])
            expire = [Expire(namespace=NS, key=key) for key in ("a", "b", "missing")]
            assert (backend.apply([expire]), backend.expired(9), backend.heads([NS])) == ([[1, 1, 0]], [], [2])
            later(clock, 1)
            assert backend.expired(9) == [(NS, "a")]
            assert backend.apply([expire]) == [[0, 1, 0]]
            assert (backend.expired(9), backend.heads([NS])) == ([], [3])

    def test_what_has_expired_does_not_stay_pending(self, database_url: str, clock: FrozenClock):
        with closing(open_backend(database_url, clock=clock)) as backend:
            backend.apply([[self.put(clock, document=Document.of("tea"))]])
            later(clock, 1)
            (pending,) = backend.pending("model", 9)
            vector = SetVector(namespace=NS, key="a", version=pending.version, model="model", vector=packed((1, 0)))
            assert (backend.apply([[vector]]), backend.pending("model", 9)) == ([[0]], [])
            assert (backend.get([(NS, "a")]), backend.expired(9)) == ([None], [(NS, "a")])

    def test_a_touch_moves_the_end_of_the_same_version(self, database_url: str, clock: FrozenClock):
        with closing(open_backend(database_url, clock=clock)) as backend:
            backend.apply([[self.put(clock), self.put(clock, key="b", expiry=None)]])
            end = clock.now() + timedelta(hours=1)

            def touch(key: str, version: int) -> Touch:
                return Touch(namespace=NS, key=key, version=version, at=end)

            assert backend.apply([[touch("a", 9), touch("a", 1), touch("b", 1), touch("c", 1)]]) == [[1, 1, 1, 0]]
            rows = backend.get([(NS, "a"), (NS, "b")])
            assert [row and row.expiry for row in rows] == [Expiry(end, timedelta(minutes=1)), None]
            assert backend.heads([NS]) == [2]
