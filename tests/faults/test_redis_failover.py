"""A primary is killed and its replica takes over: what was confirmed is there, and others do not notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count

import pytest
from redis.sentinel import Sentinel
from redis_cluster import RedisCluster, redis_cluster, sentinel, wait_until

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.errors import StoreUnavailable, WriteUnknown
from inference_core.stores.backend import bucket_of
from inference_core.stores.factory import open_backend

FEW = 20
MOST = 1_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Servers that go on if others do not."""
    with redis_cluster("--cluster-require-full-coverage", "no") as cluster:
        yield cluster


class Saver(threading.Thread):
    """Saves memories of one user until it is stopped."""

    def __init__(self, store: MemoryStore, user: str) -> None:
        super().__init__(daemon=True)
        self.service, self.user = AgentMemoryStoreService(store, timeout=30).sync, user
        self.confirmed: list[str] = []
        self.tried: set[str] = set()
        self.unknown: set[str] = set()
        self.stopped = threading.Event()

    def run(self) -> None:
        for number in count():
            if self.stopped.is_set():
                return
            text = f"{self.user} fact {number}"
            self.tried.add(text)
            try:
                self.service.save_memory(self.user, text, memory_id=f"{number}")
                self.confirmed.append(text)
                time.sleep(0.01)  # so that they are not too many for a recall
            except WriteUnknown:
                self.unknown.add(text)
            except StoreUnavailable:
                time.sleep(0.02)


def _nothing() -> None:
    pass


def check_nothing_is_lost(
    url: str,
    users: list[str],
    kill: Callable[[], None],
    others: Sequence[str] = (),
    bring_back: Callable[[], None] = _nothing,
) -> None:
    """Savers go on while ``kill`` ends a primary, those of ``others`` also before ``bring_back`` brings it back."""
    with ExitStack() as opened:
        store, reader = (opened.enter_context(open_store(url, embeddings=None)) for _ in range(2))
        savers = [Saver(store, user) for user in users]
        for saver in savers:
            saver.start()
        wait_until(lambda: all(len(saver.confirmed) >= FEW for saver in savers))
        for user in users:  # an index that the next primary has to fit
            assert AgentMemoryStoreService(reader, timeout=30).sync.recall_memories(user, "fact", k=99)
        before = {saver.user: len(saver.confirmed) for saver in savers}
        kill()
        wait_until(lambda: all(len(one.confirmed) > before[one.user] + 2 for one in savers if one.user in others))
        bring_back()
        wait_until(lambda: all(len(saver.confirmed) > before[saver.user] + FEW for saver in savers))
        for saver in savers:
            saver.stopped.set()
            saver.join()
        fresh = opened.enter_context(open_store(url, embeddings=None))
        for saver in savers:
            found = {
                one.content for one in AgentMemoryStoreService(fresh).sync.list_memories(saver.user, limit=None)[0]
            }
            assert set(saver.confirmed) - found == set()
            assert found <= saver.tried
            for one in (reader, store):
                hits = AgentMemoryStoreService(one, timeout=30).sync.recall_memories(saver.user, "fact", k=MOST)
                assert {hit.content for hit in hits} == found or len(found) > MOST


def test_no_confirmed_save_is_lost_with_a_primary_of_a_cluster(cluster: RedisCluster) -> None:
    primary, users = cluster.holder_of("{0}"), [f"user{number}" for number in range(6)]
    others = [user for user in users if cluster.holder_of(f"{{{bucket_of((user,))}}}") is not primary]
    assert 0 < len(others) < len(users)

    def bring_back() -> None:
        """As a replica: before another has taken over, it would be a primary that has lost all."""
        wait_until(lambda: cluster.has_primary_of("{0}"))
        primary.start()  # until then the next primary has no replica, so its saves are not confirmed

    check_nothing_is_lost(f"{cluster.url}?wait=1", users, primary.kill, others, bring_back)


def test_with_fewer_replicas_a_save_is_not_known(cluster: RedisCluster) -> None:
    with closing(open_backend(cluster.url)), open_store(f"{cluster.url}?wait=2", embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        with pytest.raises(WriteUnknown, match="1 of 2 replicas"):
            service.save_memory("ada", "Likes tea", memory_id="a")
        assert [hit.content for hit in service.recall_memories("ada", "tea")] == ["Likes tea"]


def test_sentinels_name_the_next_primary() -> None:
    with sentinel() as (url, primary, port):
        check_nothing_is_lost(f"{url}/3?wait=1&prefix=a:", ["ada", "bob"], primary.kill)
        client = Sentinel([("127.0.0.1", port)]).master_for("main", db=3)
        with open_store(client, embeddings=None) as store:
            assert store.engine.backend.name == f"redis+sentinel://127.0.0.1:{port}/main/3"
        with closing(open_backend(f"{url}/3?prefix=a:")) as backend:
            assert backend.name == f"{url}/3?prefix=a%3A"
            assert backend.count([("ada", "semantic")]) > FEW
