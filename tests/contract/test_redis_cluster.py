"""What is particular to a store in a Redis Cluster: where its rows lie, and what follows from that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from databases import CLUSTER, database
from langgraph.store.base import PutOp
from outbox_support import is_listed, pipeline_on, said, word_for_word
from outbox_support import put as put_in
from redis import RedisCluster
from redis.crc import key_slot
from redis_cluster import PRIMARIES, free_ports, shared_cluster, wait_until
from redis_server import fresh_database, redis_server
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryStore, Space, open_store
from inference_core.effects import run
from inference_core.errors import ConfigurationError, SeveralOwners, StoreBusy, StoreUnavailable, UserErased
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import MIGRATED, encode_label
from inference_core.outbox.outbox import Outbox, Partition, dead_letters, drop, status
from inference_core.stores.backend import BUCKETS, Expiry, PageRequest, Put, Remove, Touch, bucket_of
from inference_core.stores.backends.redis.backend import RedisBackend
from inference_core.stores.factory import open_backend
from inference_core.testing import FrozenClock
from inference_core.transfer.backup import back_up, restore
from inference_core.transfer.copying import copy_store
from inference_core.transfer.legacy import LegacyItem
from inference_core.transfer.migrate import import_items

USERS = [f"user{number}@example.com" for number in range(12)]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with database(CLUSTER, tmp_path) as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[MemoryStore]:
    with open_store(url, embeddings=None) as store:
        yield store


def keys_of(store: MemoryStore) -> dict[bytes, list[str]]:
    """The keys of ``store`` on each primary of the cluster, without their prefix."""
    prefix = store.engine.backend.name.partition("prefix=")[2].replace("%3A", ":")
    found: dict[bytes, list[str]] = {}
    for client in shared_cluster().clients():
        with client:
            if client.info("replication")["role"] == "master":
                names = [name.decode().removeprefix(prefix) for name in client.scan_iter(f"{prefix}*")]
                found[client.execute_command("CLUSTER", "MYID")] = names
    return found


def put(label: str, key: str = "k") -> Put:
    return Put(namespace=(label, "semantic"), key=key, value="{}", updated_at=FrozenClock().now())


def test_all_that_is_a_users_lies_in_one_bucket_and_users_are_spread(store: MemoryStore, tmp_path: Path) -> None:
    service = AgentMemoryStoreService(store, agent_name="planner").sync
    for user in USERS:
        service.save_memory(user, "Likes tea", "facts", memory_id="a")
        service.update_memory(user, "a", "Likes mate")
        service.save_memory(user, "Met Bob", "context")
    erase([store.engine.backend], USERS[0], Ledger(tmp_path / "ledger.jsonl"))
    service.save_memory(USERS[0], "Is back")
    store.engine.flush()
    found = keys_of(store)
    assert all(found.values())
    names = [name for names in found.values() for name in names if name != "meta"]
    for user in USERS:
        label = encode_label(user)
        buckets = {name[: name.index("}") + 1] for name in names if f'"{label}"' in name}
        assert buckets == {f"{{{bucket_of((label,))}}}"}
    assert {name[0] for name in names} == {"{"}


def test_buckets_are_even_and_never_change() -> None:
    labels = ("ada", "bob", "~ada~40example~2ecom", "#team")
    assert [bucket_of((label, "semantic")) for label in labels] == [990, 730, 648, 318]
    assert bucket_of(("~outbox", "05", "@990")) == bucket_of(("~erased", "@990")) == 990
    sizes = Counter(bucket_of((f"user{number}",)) for number in range(100 * BUCKETS))
    assert (len(sizes), min(sizes.values()) > 50, max(sizes.values()) < 150) == (BUCKETS, True, True)


def test_a_batch_for_two_users_is_refused_and_one_of_langgraph_is_split(store: MemoryStore) -> None:
    backend = store.engine.backend
    refused, other = backend.apply([[put("ada"), put("bob")], [put("eve")]])
    assert isinstance(refused, SeveralOwners)
    assert "'ada', 'bob' at once" in str(refused)
    assert other == [1]
    assert backend.get([(("ada", "semantic"), "k"), (("bob", "semantic"), "k")]) == [None, None]
    store.batch([PutOp((user, "notes"), "k", {"text": "tea"}) for user in ("ada", "bob", "ada")])
    assert [store.get((user, "notes"), "k") is not None for user in ("ada", "bob")] == [True, True]


def test_what_concerns_all_users_is_found_in_few_round_trips(
    store: MemoryStore, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = store.engine.backend
    assert isinstance(backend, RedisBackend)
    service = AgentMemoryStoreService(store).sync
    ended = Expiry(FrozenClock().now(), timedelta(minutes=1))
    for user in USERS:
        service.save_memory(user, "Likes tea")
        assert backend.apply([[replace(put(encode_label(user), "old"), expiry=ended)]]) == [[1]]
    trips: list[int] = []
    original = type(backend._server)._run_on

    def counting(*given: Any, **how: Any) -> Any:
        trips.append(len(given[2]))
        return original(*given, **how)

    monkeypatch.setattr(type(backend._server), "_run_on", counting)
    labels = {encode_label(user) for user in USERS}
    assert {name[0] for name in backend.namespaces()} >= labels
    assert {row.namespace[0] for row in backend.pending("m", 99)} == labels
    assert {namespace[0] for namespace, _ in backend.expired(99)} == labels
    assert len(backend.expired(5)) == 5
    assert len(trips) <= 12 * PRIMARIES * 3
    trips.clear()
    assert service.recall_memories(USERS[0], "tea")
    assert len(trips) <= 6


def test_messages_of_all_users_wait_and_are_worked_on(store: MemoryStore, clock: FrozenClock) -> None:
    def failing(*given: object) -> Any:
        raise ValueError("no")

    outbox = Outbox(store.engine, clock)
    partitions = [Partition(user) for user in USERS]
    for partition in partitions:
        assert put_in(outbox, said(f"I am {partition.user_id}"), partition=partition) == 1
    assert set(run(outbox.partitions())) == set(partitions)
    assert run(status(store.engine, clock)).waiting == len(USERS)
    pipeline = pipeline_on(store, failing, clock, max_tries=1)
    run(pipeline.process(partitions[0]))
    assert [letter.partition for letter in run(dead_letters(store.engine))] == partitions[:1]
    assert (run(drop(store.engine)), run(dead_letters(store.engine))) == (1, [])
    working = pipeline_on(store, word_for_word, clock)
    for partition in partitions:
        run(working.process(partition))
    assert run(outbox.partitions()) == []
    for user in USERS[1:]:
        assert len(AgentMemoryStoreService(store).sync.recall_memories(user, f"I am {user}")) == 1


def test_spaces_and_their_roles(store: MemoryStore) -> None:
    service = AgentMemoryStoreService(store).sync
    for user in USERS[:4]:
        service.grant(Space("team"), "read", user=user)
    assert service.revoke(Space("team"), user=USERS[0])
    assert sorted(service.list_grants(Space("team"))) == [f"user:{user}" for user in sorted(USERS[1:4])]
    assert [event.operation for event in service.audit(Space("team"))].count("grant") == 4


def test_a_store_moves_into_a_cluster_and_out_with_what_waits(
    store: MemoryStore, clock: FrozenClock, tmp_path: Path
) -> None:
    with fresh_database() as first, fresh_database() as last, open_store(first, embeddings=None) as source:
        for user in USERS[:3]:
            AgentMemoryStoreService(source).sync.save_memory(user, "Likes tea")
            put_in(Outbox(source.engine, clock), said("I like mate"), partition=Partition(user))
        seen: list[tuple[int, int]] = []
        for _ in range(2):  # repeated, it copies nothing twice
            copy_store(source.engine.backend, store.engine.backend, progress=lambda done, of: seen.append((done, of)))
        assert seen[-1][0] == seen[-1][1] > 0
        again = f"{store.engine.backend.name}restored:"
        back_up(source.engine.backend, tmp_path / "backup")
        restore(tmp_path / "backup", again)
        with open_store(last, embeddings=None) as target, open_store(again, embeddings=None) as restored:
            copy_store(store.engine.backend, target.engine.backend)
            for one in (store, target, restored):
                outbox = Outbox(one.engine, clock)
                assert {partition.user_id for partition in run(outbox.partitions())} == set(USERS[:3])
                for user in USERS[:3]:
                    run(pipeline_on(one, word_for_word, clock).process(Partition(user)))
                    found = AgentMemoryStoreService(one).sync.recall_memories(user, "tea mate")
                    assert sorted(memory.content for memory in found) == ["I like mate", "Likes tea"]
                assert not is_listed(outbox, Partition(USERS[0]))


def test_memories_of_other_applications_are_taken_over_once(store: MemoryStore) -> None:
    """Their marks are nobody's, so they are written after the memories; without some, these count as written before."""
    items = [LegacyItem(user_id=user, key="a", value={"content": "Likes tea"}) for user in USERS]
    assert import_items(store, lambda: items).by_category == {"semantic": len(USERS)}
    marks = store.engine.backend.page(PageRequest([MIGRATED], limit=99))
    assert len(marks) == len(USERS)
    store.engine.backend.apply([[Remove(namespace=MIGRATED, key=mark.key)] for mark in marks[:3]])
    service = AgentMemoryStoreService(store).sync
    service.delete_memory(USERS[0], service.list_memories(USERS[0])[0][0].id)
    again = import_items(store, lambda: items)
    assert (again.already_there + sum(again.by_category.values()), again.failed) == (len(USERS), 0)
    assert store.engine.backend.count([MIGRATED]) == len(USERS)


def test_what_is_written_later_for_several_users_is_written(url: str) -> None:
    """Vectors, counts of recalls and times to live wait for each other, and are batches of each user's own."""
    with open_store(url, embeddings=HashingEmbeddings(), ttl={"default_ttl": 60, "refresh_on_read": True}) as store:
        service = AgentMemoryStoreService(store).sync
        for user in USERS:
            store.put((encode_label(user), "notes"), "k", {"text": "tea"})
            service.save_memory(user, "Likes tea")
        for user in USERS:
            assert service.recall_memories(user, "tea")
        store.engine.later.put(
            *(
                Touch(namespace=(encode_label(user), "notes"), key="k", version=1, at=datetime.now(UTC))
                for user in USERS[:6]
            ),
            *(Remove(namespace=(encode_label(user), "notes"), key="k") for user in USERS[6:]),
        )
        store.engine.flush()
        model = store.engine.embedder
        assert model is not None
        wait_until(lambda: store.engine.backend.pending(model.fingerprint, 99) == [])
        usage = [(encode_label(user), "usage", "semantic") for user in USERS]
        assert store.engine.backend.count(usage) == len(USERS)
        assert [store.get((encode_label(user), "notes"), "k") for user in USERS] == [None] * len(USERS)
        assert len(store.search(())) == 10


def test_a_slot_that_moves_to_another_server(store: MemoryStore) -> None:
    service, backend = AgentMemoryStoreService(store).sync, store.engine.backend
    service.save_memory("ada", "Likes tea")
    (before,) = backend.heads([("ada", "semantic")])
    prefix = backend.name.partition("prefix=")[2].replace("%3A", ":")
    slot = key_slot(f"{prefix}{{{bucket_of(('ada',))}}}".encode())
    ids: dict[bytes, Any] = {}
    for client in shared_cluster().clients():
        if client.info("replication")["role"] == "master":
            ids[client.execute_command("CLUSTER", "MYID")] = client
    source = next(name for name, client in ids.items() if client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = next(name for name in ids if name != source)
    ids[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
    ids[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
    with pytest.raises(StoreBusy, match="moves to another server"):
        service.save_memory("ada", "Likes mate")
    port = int(ids[target].config_get("port")["port"])
    while keys := ids[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 99):
        ids[source].execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5_000, "KEYS", *keys)
    for client in (ids[target], ids[source]):
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)
    service.save_memory("ada", "Likes mate")
    (after,) = backend.heads([("ada", "semantic")])
    assert (after > before, after.epoch != before.epoch) == (True, True)
    found = service.recall_memories("ada", "likes tea mate")
    assert sorted(memory.content for memory in found) == ["Likes mate", "Likes tea"]
    for client in ids.values():
        client.close()


def test_an_erasure_refuses_what_began_before_it(store: MemoryStore, tmp_path: Path) -> None:
    backend, fences = store.engine.backend, store.engine.fences
    for user in USERS[:2]:
        AgentMemoryStoreService(store).sync.save_memory(user, "Likes tea")
    labels = [encode_label(user) for user in USERS[:2]]
    known = {label: fences.read([label]) for label in labels}
    erase([backend], USERS[0], Ledger(tmp_path / "ledger.jsonl"))
    with pytest.raises(UserErased):
        fences.renewed(known[labels[0]], [labels[0]])
    assert fences.renewed(known[labels[1]], [labels[1]]) is None
    assert {name[0] for name in backend.namespaces()} >= {labels[1]}


class TestAddresses:
    def test_a_client_of_a_cluster(self, store: MemoryStore) -> None:
        client = RedisCluster("127.0.0.1", shared_cluster().ports[1])
        with open_store(client, embeddings=HashingEmbeddings()) as own, open_store(client) as same:
            assert own.engine is same.engine
            AgentMemoryStoreService(own).sync.save_memory("ada", "Likes tea")
            assert own.engine.backend.name.startswith("redis+cluster://127.0.0.1:")
        client.flushall(target_nodes=RedisCluster.PRIMARIES)
        client.close()

    @pytest.mark.parametrize(
        ("end", "why"),
        [("/1", "only database 0"), ("?prefix=a{b}:", "has no '{'"), ("?sentinel_password=x", "Unknown options")],
    )
    def test_what_a_cluster_does_not_have(self, end: str, why: str) -> None:
        with pytest.raises(ConfigurationError, match=why):
            open_backend(f"redis+cluster://127.0.0.1:1{end}")

    def test_an_earlier_client_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("redis.__version__", "7.4.0")
        with pytest.raises(ConfigurationError, match="needs redis-py 8"):
            open_backend("redis+cluster://127.0.0.1:1")

    def test_nobody_answers_or_it_is_no_cluster(self) -> None:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as caught:
            open_backend("redis+cluster://ada:secret@127.0.0.1:1")
        assert "secret" not in str(caught.value)
        with redis_server("--port", str(port := free_ports(1)[0])):
            with pytest.raises(ConfigurationError, match="It may be one server"):
                open_backend(f"redis+cluster://127.0.0.1:{port}")
            with closing(open_backend(f"redis://127.0.0.1:{port}")) as backend:
                assert not backend.capabilities.split
