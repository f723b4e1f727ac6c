"""What is particular to a store in Redis: a shared server, its rights and settings, URLs, and races."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import socket
from typing import Any, cast

import pytest
from redis import Redis
from redis_server import PERSISTENT, RedisServer, fresh_database, redis_server
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import (
    ConfigurationError,
    MissingExtra,
    StoreError,
    StoreUnavailable,
    UnsupportedSchema,
    VersionConflict,
    WriteUnknown,
)
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.lifecycle.repairs import find_damage, mend
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Backend, Expire, Expiry, PageRequest, Put, Remove, SetVector, Touch
from inference_core.stores.backends.redis.address import parse_address
from inference_core.stores.factory import open_backend
from inference_core.testing import FrozenClock

START = datetime(2026, 1, 1, tzinfo=UTC)
USER: Namespace = ("u", "semantic")


def put(key: str, *, namespace: Namespace = USER, expected: int | None = None, text: str = "tea", **value: Any) -> Put:
    stored, document = json.dumps(value), Document.of(text)
    return Put(namespace=namespace, key=key, value=stored, document=document, updated_at=START, expected=expected)


def keys(backend: Backend) -> list[str]:
    return [row.key for row in backend.page(PageRequest([USER], limit=99))]


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with closing(open_backend(url)) as backend:
        yield backend


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server whose settings and users the tests change."""
    with redis_server() as server:
        yield server


def raw(url: str) -> Any:
    from redis import Redis

    return Redis.from_url(url)


class TestSharedServer:
    def test_stores_and_other_programs_keep_apart(self, url: str) -> None:
        client = raw(url)
        client.set("inference_core:", "another program's")
        client.hset("cells", "a", "another program's")
        prefixes = ["", "inference_core:", "inference_core:cells:", "cells:", 'cells:["u","semantic"]', "\u00e4 %&?:"]
        with ExitStack() as opened:
            stores = [opened.enter_context(closing(with_prefix(url, prefix))) for prefix in prefixes]
            for number, store in enumerate(stores):
                assert store.apply([[put("a", n=number), put(f"own{number}")]]) == [[1, 1]]
            for number, store in enumerate(stores):
                assert sorted(keys(store)) == ["a", f"own{number}"]
                assert [row and row.value for row in store.get([(USER, "a")])] == [{"n": number}]
                assert store.heads([USER]) == [2]
            assert stores[0].apply([[Remove(namespace=USER, key="a")]]) == [[0]]
            assert [store.count([USER]) for store in stores] == [1, 2, 2, 2, 2, 2]
        assert client.get("inference_core:") == client.hget("cells", "a") == b"another program's"
        client.close()

    def test_what_is_gone_leaves_only_its_version_behind(self, url: str, backend: Backend) -> None:
        expiry = Expiry(START, timedelta(minutes=1))
        backend.apply([[replace(put("a"), kind="facts", expiry=expiry), put("b"), put("c", namespace=("v",))]])
        backend.apply([[SetVector(namespace=USER, key="b", version=1, model="m", vector=b"v", tokens=b"t")]])
        removals = [Expire(namespace=USER, key="a"), Remove(namespace=USER, key="b"), Remove(namespace=("v",), key="c")]
        assert backend.apply([removals]) == [[0, 0, 0]]
        client = raw(url)
        left = {key.decode().removeprefix("inference_core:").partition(":")[0] for key in client.scan_iter()}
        client.close()
        assert left == {"meta", "heads", "cells", "feed"}


def with_prefix(url: str, prefix: str) -> Backend:
    from urllib.parse import quote

    return open_backend(f"{url}&prefix={quote(prefix)}")


UNSTORABLE: dict[str, Put] = {
    "key": put("\ud800"),
    "label": put("a", namespace=("\ud800", "semantic")),
    "kind": replace(put("b"), kind="\ud800"),
    "text": replace(put("b"), document=Document("\ud800", "", "")),
    "value": replace(put("b"), value='{"a": "\ud800"}'),
    "type": replace(put("b"), value=cast("Any", 2**70)),
}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_write_that_cannot_be_stored_fails_alone(backend: Backend, name: str) -> None:
    first, refused, last = backend.apply([[put("a")], [put("x"), UNSTORABLE[name]], [put("c")]])
    assert isinstance(refused, StoreError)
    assert (first, last, sorted(keys(backend))) == ([1], [1], ["a", "c"])
    for question in (backend.get, backend.tokens):
        with pytest.raises(StoreError, match="cannot hold"):
            question([(USER, "\ud800")])


def test_a_batch_of_thousands_is_one(backend: Backend) -> None:
    count = 5_000
    batch = [put(f"k{number:04}", n=number) for number in range(count)]
    assert backend.apply([[*batch, put("k0000", expected=7)]])[0].__class__ is VersionConflict
    assert backend.count([USER]) == 0
    assert backend.apply([batch]) == [[1] * count]
    assert backend.heads([USER]) == [count]
    assert [change.key for change in backend.changes(USER, 0)] == [write.key for write in batch]


class TestRaces:
    def test_exactly_one_of_two_stores_wins(self, url: str) -> None:
        rounds = 60
        start = threading.Barrier(2)

        def racing(name: int) -> list[bool]:
            with closing(open_backend(url)) as store:
                wins: list[bool] = []
                for number in range(rounds):
                    start.wait(30)
                    (outcome,) = store.apply(
                        [[put("side", namespace=(f"s{name}",)), put(f"k{number}", expected=0, n=name)]]
                    )
                    assert outcome == [number + 1 - wins.count(False), 1] or isinstance(outcome, VersionConflict)
                    wins.append(isinstance(outcome, list))
                return wins

        with ThreadPoolExecutor(2) as pool, closing(open_backend(url)) as store:
            first, second = pool.map(racing, range(2))
            assert [one ^ other for one, other in zip(first, second, strict=True)] == [True] * rounds
            rows = store.get([(USER, f"k{number}") for number in range(rounds)])
            assert [row and row.value["n"] for row in rows] == [0 if won else 1 for won in first]
            assert store.heads([USER, ("s0",), ("s1",)]) == [rounds, sum(first), sum(second)]

    def test_writes_without_a_condition_all_count(self, url: str) -> None:
        def writing(name: int) -> None:
            with closing(open_backend(url)) as store:
                for _ in range(50):
                    (outcome,) = store.apply([[put("k", n=name), put(f"own{name}")]])
                    assert isinstance(outcome, list)

        with ThreadPoolExecutor(3) as pool, closing(open_backend(url)) as store:
            list(pool.map(writing, range(3)))
            (row,) = store.get([(USER, "k")])
            assert row is not None
            assert (row.version, store.heads([USER]), store.count([USER])) == (150, [300], 4)
            assert [change.seq for change in store.changes(USER, 0)][-1] == 300

    def test_a_page_is_full_while_rows_come_and_go(self, url: str) -> None:
        stopped = threading.Event()

        def changing(store: Backend) -> None:
            number = 0
            while not stopped.is_set():
                number = (number + 1) % 4
                store.apply([[replace(put(f"k{number}"), created_at=START + timedelta(days=1))]])
                store.apply([[Remove(namespace=USER, key=f"k{number}")]])

        with closing(open_backend(url)) as one, closing(open_backend(url)) as other:
            one.apply([[put(f"kept{number}") for number in range(9)]])
            thread = threading.Thread(target=changing, args=(other,))
            thread.start()
            pages = [keys(one)[:9] for _ in range(5)] + [one.page(PageRequest([USER], limit=5)) for _ in range(200)]
            stopped.set()
            thread.join()
            assert {len(page) for page in pages} == {9, 5}
            assert keys(one) == [f"kept{number}" for number in range(9)]

    def test_a_touch_does_not_bring_an_older_text_back(self, url: str, clock: FrozenClock) -> None:
        expiry = Expiry(clock.now() + timedelta(hours=1), timedelta(hours=1))

        def touching(store: Backend) -> None:
            for minutes in range(60):
                at = clock.now() + timedelta(hours=1, minutes=minutes)
                for version in (1, 2):
                    store.apply([[Touch(namespace=USER, key="a", version=version, at=at)]])

        with closing(open_backend(url, clock=clock)) as one, closing(open_backend(url, clock=clock)) as other:
            one.apply([[replace(put("a", n=1), expiry=expiry)]])
            thread = threading.Thread(target=touching, args=(other,))
            thread.start()
            one.apply([[SetVector(namespace=USER, key="a", version=1, model="m", vector=b"v")]])
            one.apply([[replace(put("a", text="mate", n=2), expiry=expiry)]])
            one.apply([[SetVector(namespace=USER, key="a", version=2, model="m", vector=b"w")]])
            thread.join()
            (row,) = one.get([(USER, "a")])
            assert row is not None
            assert row.value == {"n": 2}
            (change,) = one.changes(USER, 0)
            assert change.document is not None
            assert (change.document.text, change.document.vector, one.pending("m", 9)) == ("mate", b"w", [])


def test_what_was_decided_on_a_batch_that_failed_is_decided_again(server: RedisServer) -> None:
    """A refusal and an answer that only hold if the batch before them is applied, on a server that refuses that."""
    with closing(open_backend(server.url + "?prefix=again:")) as backend, raw(server.url) as client:
        backend.apply([[put("a")]])
        client.config_set("maxmemory", 1)
        outcomes = backend.apply(
            [[put("a")], [put("a", expected=1)], [Touch(namespace=USER, key="a", version=9, at=START)]]
        )
        client.config_set("maxmemory", 0)
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable, StoreUnavailable, list]
        assert outcomes[2] == [1]


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "redis+nothing://localhost:7000",
            "unix+cluster:///redis.sock",
            "redis+sentinel://localhost:26379",
            "redis+sentinel://localhost:port/primary",
            "redis://localhost/?sentinel_password=secret",
            "redis://localhost/?wait=secret",
            "redis://localhost/?wait=-1",
            "redis://h:secret@host:port/0",
            "redis://localhost/?nonsense=secret",
            "redis://localhost/?decode_responses=true",
            "redis://localhost/?db=secret",
            "redis://[::1",
        ],
    )
    def test_a_url_that_cannot_be_right(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="A Redis URL looks like") as caught:
            open_backend(url)
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize(
        ("url", "name"),
        [
            ("redis://h", "redis://h:6379/0"),
            ("rediss://ada:secret@h:1/2?wait=1", "rediss://h:1/2"),
            ("rediss+cluster://:secret@h,[::1]:7?prefix=a:", "rediss+cluster://h:6379,[::1]:7?prefix=a%3A"),
            ("redis+sentinel://h,g:7/main/3?sentinel_password=secret", "redis+sentinel://h:26379,g:7/main/3"),
            ("rediss+sentinel://h/the%20one?db=3", "rediss+sentinel://h:26379/the%20one/3"),
        ],
    )
    def test_the_name_is_the_url_without_the_login(self, url: str, name: str) -> None:
        address = parse_address(url)
        assert (address.name, parse_address(address.name).name) == (name, name)
        assert address.wait == ("wait" in url)

    def test_nobody_answers(self, server: RedisServer) -> None:
        for url in ("redis://:secret@127.0.0.1:1/0?socket_timeout=2", f"unix://{server.folder}/none.sock"):
            with pytest.raises(StoreUnavailable) as caught:
                open_store(url, embeddings=None)
            assert "secret" not in str(caught.value)

    def test_the_name_opens_the_store_again(self, url: str) -> None:
        for given in (url, f"{url}&prefix=a%20%26b:&socket_timeout=3"):
            with closing(open_backend(given)) as one, closing(open_backend(one.name)) as other:
                one.apply([[put("a")]])
                assert keys(other) == ["a"]
                assert other.name == one.name

    def test_without_the_client_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        for module in [name for name in sys.modules if name == "redis" or "backends.redis" in name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "redis", cast("Any", None))
        with pytest.raises(MissingExtra, match=r"inference-core-memory\[redis\]"):
            open_backend("redis://localhost")


class TestServers:
    def test_a_login_that_is_refused(self, server: RedisServer) -> None:
        with raw(server.url) as client:
            client.acl_setuser("ada", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"])
        for login in ("ada:wrong", "eve:wrong"):
            with pytest.raises(ConfigurationError, match="check user and password") as caught:
                open_backend(server.url.replace("unix://", f"unix://{login.partition(':')[0]}@") + "?password=wrong")
            assert "wrong" not in str(caught.value)

    def test_a_user_with_the_least_rights(self, server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
        rights = ["+@read", "+@write", "+@connection", "+@transaction", "+evalsha", "+script|load", "-@dangerous"]
        with raw(server.url) as client:
            client.execute_command("ACL", "SETUSER", "bob", "on", ">secret", "~mine:*", *rights)
        address = server.url.replace("unix://", "unix://bob@") + "?password=secret&prefix="
        with closing(open_backend(address + "mine:")) as backend:
            assert backend.apply([[put("a")], [Remove(namespace=USER, key="a"), put("b", text="mate")]]) == [
                [1],
                [0, 1],
            ]
            assert (keys(backend), backend.count([USER]), len(backend.pending("m", 9))) == (["b"], 1, 1)
            assert [change.key for change in backend.changes(USER, 0)] == ["a", "b"]
            assert backend.capabilities.durable is False
            assert "secret" not in backend.name
            assert "bob" not in backend.name
            assert "a restart that lost writes goes unnoticed" in caplog.text
        with pytest.raises(StoreUnavailable, match="all keys with the store's prefix"):
            open_backend(address + "others:")

    def test_a_newer_store_is_refused(self, server: RedisServer) -> None:
        with raw(server.url) as client:
            client.hset("newer:meta", "schema_version", "99")
        with pytest.raises(UnsupportedSchema, match="Update the package"):
            open_backend(server.url + "?prefix=newer:")

    def test_a_full_server_refuses_and_changes_nothing(self, server: RedisServer, caplog: Any) -> None:
        with closing(open_backend(server.url)) as backend, raw(server.url) as client:
            backend.apply([[put("a", n=1), put("b", n=1)]])
            client.config_set("maxmemory", 1)
            before = client.dbsize()
            refused, other = backend.apply([[put("a", n=2), put("c")], [Remove(namespace=USER, key="b")]])
            assert isinstance(refused, StoreUnavailable)
            assert isinstance(other, StoreUnavailable)
            assert (client.dbsize(), backend.heads([USER]), sorted(keys(backend))) == (before, [2], ["a", "b"])
            client.config_set("maxmemory", 0)
            assert backend.apply([[put("a", n=2, expected=1)]]) == [[2]]
            client.config_set("maxmemory-policy", "allkeys-lru")
            with caplog.at_level(logging.WARNING):
                open_backend(server.url).close()
            client.config_set("maxmemory-policy", "noeviction")
        assert "may drop memories" in caplog.text

    def test_a_replica_takes_no_writes(self, server: RedisServer) -> None:
        with closing(open_backend(server.url + "?prefix=replica:")) as backend, raw(server.url) as client:
            client.replicaof("127.0.0.1", 1)
            try:
                (outcome,) = backend.apply([[put("a")]])
            finally:
                client.replicaof("NO", "ONE")
            assert isinstance(outcome, StoreUnavailable)
            assert "name the primary" in str(outcome)
            assert keys(backend) == []

    def test_a_write_that_no_replica_confirms_is_not_known(self, server: RedisServer) -> None:
        url = server.url + "?prefix=wait:"
        open_backend(url).close()
        with closing(open_backend(f"{url}&wait=1&socket_timeout=0.2")) as backend:
            assert backend.name == url.replace("?", "?db=0&").replace(":", "%3A").replace("unix%3A", "unix:")
            first, refused = backend.apply([[put("a")], [put("a", expected=7)]])
            assert isinstance(first, WriteUnknown)
            assert "0 of 1 replicas confirmed it; retry it under the same id" in str(first)
            assert isinstance(refused, VersionConflict)
            assert keys(backend) == ["a"]
            with pytest.raises(WriteUnknown):
                backend.set_meta("name", "value")
            with pytest.raises(StoreUnavailable):
                backend.erase("u")
            assert keys(backend) == []

    def test_a_server_on_a_port_with_a_password(self) -> None:
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with redis_server("--port", str(port), "--requirepass", "p@ss/word") as server:
            url = f"redis://:p%40ss%2Fword@127.0.0.1:{port}/3?prefix=x:"
            with open_store(url, embeddings=None) as store:
                service = AgentMemoryStoreService(store).sync
                assert service.save_memory("u", "likes tea")
                assert [hit.content for hit in service.recall_memories("u", "tea")] == ["likes tea"]
                assert store.engine.backend.name == f"redis://127.0.0.1:{port}/3?prefix=x%3A"
            for wrong in (server.url, url.replace("word", "wrong")):
                with pytest.raises(ConfigurationError, match="check user and password"):
                    open_backend(wrong)

    def test_a_server_of_a_cluster_is_not_one_by_itself(self) -> None:
        with (
            redis_server("--cluster-enabled", "yes", "--cluster-port", "0") as server,
            pytest.raises(ConfigurationError, match=r"open that: 'redis\+cluster://host:port'"),
        ):
            open_backend(server.url)

    def test_only_a_log_that_is_flushed_after_every_write_is_durable(self) -> None:
        with redis_server(*PERSISTENT) as server:
            with open_store(server.url, embeddings=None) as store:
                assert store.engine.backend.capabilities.durable
                AgentMemoryStoreService(store).sync.save_memory("u", "likes tea")
            with raw(server.url) as client:
                client.config_set("appendfsync", "everysec")
            with closing(open_backend(server.url)) as backend:
                assert not backend.capabilities.durable


def everything_in(client: Redis) -> list[bytes]:
    """The names of all keys, and the members of all sorted sets."""
    found: list[Any] = []
    for name in client.scan_iter():
        found += [name, *(client.zrange(name, 0, -1) if client.type(name) == b"zset" else ())]
    return found


def test_regression_an_erasure_leaves_no_trace_of_a_row_that_cannot_be_read(url: str, tmp_path: Path):
    """The row did not say which sorted sets name it, so they went on naming the user and the memory."""
    with open_store(url, embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store).sync
        end = datetime.now(UTC) + timedelta(days=1)
        for user in ("ada", "adam"):
            service.save_memory(user, "Likes tea", "facts", memory_id="k", expires_at=end)
        with Redis.from_url(url) as client:
            cells = b'inference_core:cells:["ada","semantic"]'
            client.hset(cells, "k", cast("bytes", client.hget(cells, "k"))[:12])
            assert sum(b'"ada"' in one for one in everything_in(client)) > 5
            erase([store.engine.backend], "ada", Ledger(tmp_path / "ledger.jsonl"))
            assert [one for one in everything_in(client) if b'"ada"' in one] == []
        assert [one.id for one in service.recall_memories("adam", "tea")] == ["k"]


def test_regression_a_repair_leaves_deeper_scopes_alone(url: str, backend: Backend):
    """It took the kinds of a deeper scope for those of the row's own, and a sound row left the pages of its kind."""
    namespaces: list[Namespace] = [("ada", "episodic"), ("ada", "episodic", "agent")]
    backend.apply([[replace(put("k", namespace=namespace), kind="context")] for namespace in namespaces])
    with Redis.from_url(url) as client:
        cells = b'inference_core:cells:["ada","episodic"]'
        client.hset(cells, "k", cast("bytes", client.hget(cells, "k"))[:12])
    assert mend(backend, list(find_damage(backend))) == 1
    left = backend.page(PageRequest(namespaces, kinds=frozenset({"context"}), limit=9))
    assert [row.namespace for row in left] == namespaces[1:]
