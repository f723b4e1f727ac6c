"""Rows sealed with a key for each user: nothing readable is left on disk, and no seal opens for another place."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import postgres_server
import pytest
from databases import database
from langchain.agents import create_agent
from outbox_support import Scripted
from redis_server import PERSISTENT, redis_server
from support import HashingEmbeddings

from inference_core import AgentMemoryStoreService, MemoryMiddleware, MemorySource, MemoryStore, Worker, open_store
from inference_core.errors import ConfigurationError, SealError, StoreError, StoreUnavailable
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.lifecycle.repairs import find_damage, mend, rotate
from inference_core.stores.backend import Expiry, PageRequest, Put, Rewrite, Row, Unreadable
from inference_core.stores.encryption.encrypted import GRACE_S, EncryptedBackend
from inference_core.stores.encryption.keyring import KeyRing, open_keys
from inference_core.stores.factory import open_backend
from inference_core.stores.rules.audit_log import Sealer
from inference_core.testing import ScriptedChatModel
from inference_core.transfer.copying import copy_store
from inference_core.transfer.json_lines import export_store

MASTER = bytes(range(32))
OTHER = bytes(32)
TEXTS = [f"Drinks {what} at {at}" for what in ("tea", "coffee", "mate", "juice") for at in range(1, 9)]


def keyed(url: Any, folder: Path, **options: Any) -> MemoryStore:
    """The store at ``url`` with its key store in ``folder``."""
    options = {"keys": f"sqlite:///{folder / 'keys.db'}", "encryption_key": MASTER, "embeddings": None} | options
    return open_store(url, **options)


def sealed_backend(url: str, folder: Path) -> EncryptedBackend:
    backend = open_backend(url, keys=f"sqlite:///{folder / 'keys.db'}", encryption_key=MASTER)
    assert isinstance(backend, EncryptedBackend)
    return backend


def contents(store: MemoryStore, user: str = "ada") -> list[str]:
    return [one.content for one in AgentMemoryStoreService(store).sync.list_memories(user)[0]]


def files_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "keys.db")


SERVERS = [pytest.param(kind, marks=pytest.mark.full) for kind in ("redis", "postgres")]
"""In the short run, what lies above all databases is tested without these."""

# Nothing readable is left.

CANARIES = ("canarytext", "canarytag", "canarytopic", "canarysession", "canarymeta", "canarymessage", "canaryitem")


def fill(store: MemoryStore) -> bytes:
    """Takes every path on which texts are stored; the packed vector of one of them."""
    service = AgentMemoryStoreService(store)
    memory_id = service.sync.save_memory(
        "ada",
        "Canarytext lives in Rome",
        topic="canarytopic",
        tags=["canarytag"],
        extra_metadata={"canarymeta": "canarymeta"},
        source=MemorySource(thread_id="canarysession", message_ids=("canarymessage",)),
    )
    service.sync.update_memory("ada", memory_id, "Canarytext lives in Oslo")
    gone = service.sync.save_memory("ada", "Canarytext is gone")
    service.sync.delete_memory("ada", gone)
    service.sync.add_messages("ada", [("user", "Canarytext was said")], session_id="canarysession")
    Worker.of(service, Scripted()).drain()
    service.sync.add_messages("ada", [("user", "Canarytext waits")], session_id="canarysession")
    agent = create_agent(ScriptedChatModel(turns=["Fine"]), store=store, middleware=[MemoryMiddleware(user_id="ada")])
    asked: Any = {"messages": ["Where does canarytext live?"]}
    agent.invoke(asked, {"configurable": {"thread_id": "canarysession"}})
    store.put(("ada", "notes"), "n1", {"text": "canaryitem"})
    assert store.wait_ready(10)
    service.sync.recall_memories("ada", "canarytext")
    store.engine.flush()
    (change,) = [one for one in store.engine.backend.changes(("ada", "semantic"), 0) if one.key == memory_id]
    assert change.document
    assert change.document.vector
    return change.document.vector[8:]


@contextmanager
def watched(kind: str, folder: Path) -> Generator[tuple[Any, Callable[[], bytes]]]:
    """A database of ``kind``, and what gives all bytes that it has written: logs and journals too."""
    if kind == "redis":
        with redis_server(*PERSISTENT) as server:
            yield server.url, lambda: files_in(server.folder)
    elif kind == "postgres":
        with database(kind, folder) as url:
            server = postgres_server.server(kind)

            def written() -> bytes:
                server.execute("CHECKPOINT")
                return files_in(server.folder)

            yield url, written
    elif kind == "mapping":
        mapping: dict[str, Any] = {}
        yield mapping, lambda: repr(mapping).encode()
    else:
        with database(kind, folder) as url:
            yield url, lambda: files_in(folder)


@pytest.mark.parametrize("kind", ["sqlite", "file", "mapping", *SERVERS])
def test_no_text_term_session_tag_or_vector_is_readable_in_what_a_database_has_written(
    kind: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    with watched(kind, tmp_path) as (url, written), keyed(url, keys, embeddings=HashingEmbeddings()) as store:
        vector = fill(store)
        while_open = written()
        assert contents(store), "it can be read by who has the keys"
        store.close()
        for found in (while_open, written()):
            assert found
            assert [one for one in CANARIES if one.encode() in found.lower()] == []
            assert vector not in found
            assert vector.hex().encode() not in found


def test_without_keys_all_of_it_is_found(tmp_path: Path) -> None:
    """The test above sees what is there."""
    with open_store(f"sqlite:///{tmp_path / 'm.db'}", embeddings=HashingEmbeddings()) as store:
        vector = fill(store)
        found = files_in(tmp_path)
    assert [one for one in CANARIES if one.encode() not in found.lower()] == []
    assert vector in found


def test_errors_and_logs_name_no_user_and_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with closing(sealed_backend("memory://", tmp_path)) as backend:
        one, _ = two_rows(backend)
        backend.inner.apply([[cut(raw(backend, one))]])
        with pytest.raises(SealError) as caught:
            backend.get([one])
    assert not [word for word in ("ada", "tea", MASTER.hex()) if word in str(caught.value) + caplog.text]


# No seal opens for another place.


def two_rows(backend: EncryptedBackend) -> tuple[tuple[tuple[str, ...], str], tuple[tuple[str, ...], str]]:
    with open_store("memory://", embeddings=HashingEmbeddings()) as plain:
        service = AgentMemoryStoreService(plain).sync
        service.save_memory("ada", "Drinks tea", memory_id="one")
        service.save_memory("ada", "Drinks coffee", memory_id="two")
        assert plain.wait_ready(10)
        copy_store(plain.engine.backend, backend)
    return (("ada", "semantic"), "one"), (("ada", "semantic"), "two")


def raw(backend: EncryptedBackend, key: tuple[tuple[str, ...], str]) -> Put:
    """The row of ``key`` as a put of what lies in the database."""
    (row,), (tokens,) = backend.inner.get([key]), backend.inner.tokens([key])
    (change,) = [one for one in backend.inner.changes(key[0], 0) if one.key == key[1]]
    assert row
    assert change.document
    return Put(
        namespace=row.namespace,
        key=row.key,
        value='{"sealed":"' + row.value["sealed"] + '"}',
        document=change.document._replace(tokens=tokens),
        kind=change.kind,
        updated_at=row.updated_at,
    )


def moved(put: Put) -> Put:
    return replace(put, key="two")


def swapped(put: Put) -> Put:
    assert put.document
    return replace(put, value='{"sealed":"' + put.document.text + '"}')


def swapped_vector(put: Put) -> Put:
    assert put.document
    return replace(put, document=put.document._replace(tokens=put.document.vector, vector=put.document.vector))


def cut(put: Put) -> Put:
    return replace(put, value=put.value[:-12] + '"}')


def changed(put: Put) -> Put:
    at = len(put.value) // 2
    return replace(put, value=put.value[:at] + ("B" if put.value[at] == "A" else "A") + put.value[at + 1 :])


def in_clear(put: Put) -> Put:
    return replace(put, value='{"content":"planted"}')


KINDS = ("sqlite", "file", "memory", "redis", "postgres")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "damage", [moved, swapped, swapped_vector, cut, changed, in_clear], ids=lambda one: one.__name__
)
def test_a_row_that_was_tampered_with_is_named_and_not_returned(
    damage: Callable[[Put], Put], kind: str, tmp_path: Path
) -> None:
    with database(kind, tmp_path) as url, closing(sealed_backend(url, tmp_path)) as backend:
        one, two = two_rows(backend)
        planted = damage(raw(backend, one))
        backend.inner.apply([[planted]])
        key = (planted.namespace, planted.key)
        reads: list[Callable[[], Any]] = [
            lambda: backend.get([key]),
            lambda: backend.page(PageRequest([one[0]], limit=9)),
            lambda: list(backend.changes(one[0], 0)),
            lambda: backend.tokens([key]),
        ]
        named = 0
        for read in reads:
            try:
                found = read()
            except SealError as error:
                named += repr(planted.key) in str(error)
            else:
                assert "planted" not in repr(found)
        assert named >= 1
        damages = list(find_damage(backend))
        assert [one.key for one in damages] == [planted.key]
        assert mend(backend, damages) == 1
        assert list(find_damage(backend)) == []
        left = [row.value["content"] for row in backend.page(PageRequest([one[0]], limit=9))]
        untouched = "Drinks tea" if planted.key == two[1] else "Drinks coffee"
        assert untouched in left


def test_an_index_entry_that_was_tampered_with_is_made_anew_and_its_memory_kept(tmp_path: Path) -> None:
    with closing(sealed_backend("memory://", tmp_path)) as backend:
        one, two = two_rows(backend)
        planted, other = raw(backend, one), raw(backend, two)
        backend.inner.apply([[replace(planted, document=other.document)]])
        with pytest.raises(SealError, match="The text of 'one' in 'semantic'"):
            list(backend.changes(one[0], 0))
        damages = list(find_damage(backend))
        assert [(found.key, found.keeps_row) for found in damages] == [("one", True)]
        assert mend(backend, damages) == 1
        texts = {change.document.text for change in backend.changes(one[0], 0) if change.document}
        assert texts == {"Drinks tea", "Drinks coffee"}


# Keys that do not fit.


def test_the_master_key_is_missing_malformed_or_anothers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    with keyed(url, tmp_path) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks tea")
    for key, message in (
        (None, "set AGENT_MEMORY_ENCRYPTION_KEY"),
        (b"short", "must be 32 random bytes"),
        ("not hex", "must be 32 random bytes"),
        (OTHER, "made with another master key"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            keyed(url, tmp_path, encryption_key=key)
    with keyed(url, tmp_path, encryption_key=MASTER.hex()) as store:
        assert contents(store) == ["Drinks tea"]


def test_a_lost_key_store_is_an_error_and_not_a_new_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    with keyed(url, tmp_path) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks tea")
    (tmp_path / "keys.db").rename(tmp_path / "kept.db")
    with pytest.raises(ConfigurationError, match="keys of another key store, or they were lost"):
        keyed(url, tmp_path)
    (tmp_path / "kept.db").rename(tmp_path / "keys.db")
    with keyed(url, tmp_path) as store:
        assert contents(store) == ["Drinks tea"]


def test_keys_of_one_user_that_are_lost_are_an_error_too(tmp_path: Path) -> None:
    """A key store from a backup does not know who came later; their recall was empty without a word."""
    url = f"sqlite:///{tmp_path / 'm.db'}"
    keyed(url, tmp_path).close()
    shutil.copy(tmp_path / "keys.db", tmp_path / "old.db")
    with keyed(url, tmp_path) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks tea")
    shutil.copy(tmp_path / "old.db", tmp_path / "keys.db")
    with keyed(url, tmp_path) as store:
        for read in (
            lambda: contents(store),
            lambda: AgentMemoryStoreService(store).sync.recall_memories("ada", "tea"),
        ):
            with pytest.raises(SealError, match="the key store does not have its key"):
                read()


def test_a_store_that_was_written_without_keys_is_not_mixed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    with open_store(url, embeddings=None) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks tea")
    with pytest.raises(ConfigurationError, match=r"was written without keys.*inference-core copy"):
        keyed(url, tmp_path)
    with open_store(url, embeddings=None) as store:
        assert contents(store) == ["Drinks tea"]


def test_a_sealed_store_does_not_open_without_keys(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    keyed(url, tmp_path).close()
    with pytest.raises(ConfigurationError, match="set AGENT_MEMORY_KEYS and AGENT_MEMORY_ENCRYPTION_KEY"):
        open_store(url, embeddings=None)
    mapping: dict[str, Any] = {}
    with open_store(mapping, embeddings=None), pytest.raises(ConfigurationError, match="open already, without keys"):
        keyed(mapping, tmp_path)


@pytest.mark.parametrize(
    ("url", "keys", "message"),
    [
        ("sqlite:///{}/m.db", "sqlite:///{}/m.db", "a file of its own"),
        ("file:///{}/m", "file:///{}/m/keys.json", "a file of its own"),
        ("memory://", "redis://localhost", "not a redis URL"),
        ("memory://", "memory://", "not a memory URL"),
        ("memory://", "sqlite:///{}/none/keys.db", "Cannot open the key store"),
        ("memory://", "sqlite:///{}/text", "Cannot open the key store"),
        ("memory://", "file:///{}/text", "Cannot open the key store"),
    ],
)
def test_a_key_store_that_cannot_be(url: str, keys: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("This is a text and no key store. " * 9)
    with pytest.raises(ConfigurationError, match=message):
        open_store(url.format(tmp_path), keys=keys.format(tmp_path), encryption_key=MASTER, embeddings=None)


# Destroyed keys.


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_destroyed_key_reaches_an_old_backup_and_nobody_else(kind: str, tmp_path: Path) -> None:
    url, old = f"{kind}:///{tmp_path / 'm'}", f"{kind}:///{tmp_path / 'old'}"
    with keyed(url, tmp_path, embeddings=HashingEmbeddings()) as store:
        service = AgentMemoryStoreService(store).sync
        for user in ("ada", "bob"):
            for text in TEXTS:
                service.save_memory(user, text)
        assert store.wait_ready(10)
    (shutil.copytree if kind == "file" else shutil.copy)(tmp_path / "m", tmp_path / "old")
    ring = open_keys(f"sqlite:///{tmp_path / 'keys.db'}", MASTER)
    assert ring.destroy("ada") == 1
    ring.close()
    for place in (old, url):
        with keyed(place, tmp_path, embeddings=HashingEmbeddings()) as store:
            service = AgentMemoryStoreService(store).sync
            assert (contents(store), service.recall_memories("ada", "tea")) == ([], [])
            assert sorted(contents(store, "bob")) == sorted(TEXTS)
            assert len(service.recall_memories("bob", "tea")) > 3
            backend = store.engine.backend
            report = export_store(backend, tmp_path / "export.jsonl")
            assert report.unreadable == 2 * len(TEXTS) + 1  # with audit events and their key
            assert b'"ada"' not in (tmp_path / "export.jsonl").read_bytes()
            service.save_memory("ada", "Drinks water", memory_id="new")  # who comes back is remembered
            assert contents(store) == ["Drinks water"]
            assert [one.content for one in service.recall_memories("ada", "drinks")] == ["Drinks water"]
            service.delete_memory("ada", "new")
            gone = [one for one in backend.inspect("ada") if isinstance(one, Unreadable)]
            assert {one.reason for one in gone} == {"its key was destroyed"}
            assert backend.discard([one for one in gone if not one.only_index]) == 2 * len(TEXTS)
            assert backend.pending("another model", 9) != []


def test_a_warm_index_forgets_a_user_whose_key_was_destroyed(tmp_path: Path) -> None:
    with keyed("memory://", tmp_path) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory("ada", "Drinks tea")
        assert len(service.recall_memories("ada", "tea")) == 1
        ring = open_keys(f"sqlite:///{tmp_path / 'keys.db'}", MASTER)  # another process's
        ring.destroy("ada")
        ring.close()
        assert service.recall_memories("ada", "tea") == []


def test_a_page_goes_on_behind_rows_whose_keys_were_destroyed(tmp_path: Path) -> None:
    """A short page is taken for the last one."""
    with closing(sealed_backend("memory://", tmp_path)) as backend:
        one, _ = two_rows(backend)
        backend.keyring.destroy("ada")
        rows = [raw_put(at) for at in range(4)]
        backend.apply([[put] for put in rows])
        found = [row.key for row in backend.page(PageRequest([one[0]], limit=3))]
        assert found == ["k0", "k1", "k2"]
        assert len(backend.pending("m", 3)) == 3


def raw_put(at: int) -> Put:
    from datetime import UTC, datetime, timedelta

    from inference_core.retrieval.documents import Document

    made = datetime(2020, 1, 1, tzinfo=UTC) - timedelta(seconds=at)
    return Put(
        namespace=("ada", "semantic"), key=f"k{at}", value="{}", document=Document.of(f"tea {at}"), updated_at=made
    )


def test_a_save_that_outlasts_its_key_is_not_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that hung until a rotation had ended was reported as saved, and nobody could ever read it."""
    monkeypatch.setattr("inference_core.stores.encryption.encrypted.GRACE_S", 0.0)
    with closing(sealed_backend("memory://", tmp_path)) as backend:
        two_rows(backend)
        apply = backend.inner.apply

        def slowly(batches: Any) -> Any:
            backend.keyring.destroy("ada")
            return apply(batches)

        backend.inner.apply = slowly
        mine, bobs = raw_put(1), replace(raw_put(2), namespace=("bob", "semantic"))
        outcomes = backend.apply([[mine], [bobs]])
        assert isinstance(outcomes[0], StoreError)
        assert outcomes[1] == [1]


# New keys.


@pytest.mark.parametrize("kind", ["sqlite", "file", "memory", *SERVERS])
def test_rows_sealed_with_a_new_key_are_as_they_were(kind: str, tmp_path: Path) -> None:
    with database(kind, tmp_path) as url, keyed(url, tmp_path, embeddings=HashingEmbeddings()) as store:
        fill(store)
        backend: Any = store.engine.backend
        assert isinstance(backend, EncryptedBackend)
        namespaces = backend.namespaces(("ada",))

        def told() -> Any:
            rows = backend.page(PageRequest(namespaces, limit=99))
            texts = {
                (namespace, one.key): one.document for namespace in namespaces for one in backend.changes(namespace, 0)
            }
            keys = [(row.namespace, row.key) for row in rows]
            return [replace(row, seq=0) for row in rows], texts, backend.tokens(keys)

        before, ring = told(), backend.keyring
        found = AgentMemoryStoreService(store).sync.recall_memories("ada", "canarytext")
        for label in ("ada", "#store"):
            ring.rotate(label)
            assert backend.encrypt_anew(label) == (len(before[0]) if label == "ada" else 0)
            assert backend.encrypt_anew(label) == 0
            assert ring.destroy(label, keep=1) == 1
        assert told() == before
        assert AgentMemoryStoreService(store).sync.recall_memories("ada", "canarytext") == found
        with keyed(url if kind != "memory" else {}, tmp_path) as again:
            assert kind == "memory" or contents(again) == contents(store)


def test_regression_a_rotation_seals_the_other_stores_with_these_keys_too(tmp_path: Path) -> None:
    """It destroyed the keys of what waited in an outbox of its own: the messages were lost."""
    urls = [f"sqlite:///{tmp_path / name}" for name in ("m.db", "outbox.db")]
    for url in urls:
        with keyed(url, tmp_path) as store:
            AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks tea")
    stores = [sealed_backend(url, tmp_path) for url in urls]
    rotate(stores[0], wait=lambda _: None, beside=stores[1:])
    for store in stores:
        store.close()
    for url in urls:
        with keyed(url, tmp_path) as store:
            assert contents(store) == ["Drinks tea"]


def test_regression_a_row_whose_time_has_come_is_sealed_with_the_new_key_too(tmp_path: Path) -> None:
    """A legal hold kept it, and the rotation destroyed the only key that opened it."""
    now = datetime.now(UTC)
    ended = Expiry(now, timedelta(days=1))
    put = Put(namespace=("ada", "semantic"), key="m", value='{"content": "evidence"}', updated_at=now, expiry=ended)
    with keyed(f"sqlite:///{tmp_path / 'm.db'}", tmp_path) as store:
        backend: Any = store.engine.backend
        backend.apply([[put]])
        assert rotate(backend, ["ada"], wait=lambda _: None).rows == 1
        assert [row.value["content"] for row in backend.inspect("ada") if isinstance(row, Row)] == ["evidence"]


def test_regression_an_erasure_ends_the_trails_of_all_stores_with_these_keys(tmp_path: Path) -> None:
    """Once the first one had destroyed the keys, the second trail got no sealed end: it seemed tampered with."""
    urls = [f"sqlite:///{tmp_path / name}" for name in ("m.db", "outbox.db")]
    for url in urls:
        with keyed(url, tmp_path) as store:
            AgentMemoryStoreService(store).sync.save_memory("ada", "Drinks tea")
            store.engine.flush()
            Sealer(store.engine.audit_log).seal("ada")
    stores = [sealed_backend(url, tmp_path) for url in urls]
    erase(stores, "ada", Ledger(tmp_path / "ledger.jsonl"))
    for store in stores:
        store.close()
    for url in urls:
        with keyed(url, tmp_path) as store:
            assert AgentMemoryStoreService(store).sync.verify_audit("ada").problems == ()


def test_regression_an_erasure_that_breaks_off_notes_no_text_of_an_encrypted_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginnings of the user's memories lay in clear beside the ledger until somebody erased again."""

    def failing(*_: object) -> None:
        raise StoreUnavailable("killed")

    with keyed(f"sqlite:///{tmp_path / 'm.db'}", tmp_path) as store:
        AgentMemoryStoreService(store).sync.save_memory("ada", "canarytext is the PIN of my debit card")
        with monkeypatch.context() as patched:
            patched.setattr("inference_core.lifecycle.erasing._remove", failing)
            with pytest.raises(StoreUnavailable):
                erase([store.engine.backend], "ada", Ledger(tmp_path / "ledger"))
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"canarytext" in path.read_bytes()]
        assert erase([store.engine.backend], "ada", Ledger(tmp_path / "ledger")).left == 0


def test_regression_the_grace_of_a_rotation_begins_when_the_last_key_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many users, making the keys took all of it, and the last old key was destroyed at once."""
    now = [0.0]
    monkeypatch.setattr("inference_core.lifecycle.repairs.time", SimpleNamespace(monotonic=lambda: now[0]))
    with closing(sealed_backend("memory://", tmp_path)) as backend:
        backend.apply([[replace(raw_put(1), namespace=(user, "semantic"))] for user in ("ada", "bob")])
        make, waited = backend.keyring.rotate, list[float]()

        def slowly(label: str) -> None:
            now[0] += GRACE_S
            make(label)

        monkeypatch.setattr(backend.keyring, "rotate", slowly)
        rotate(backend, wait=waited.append)
    assert waited == [GRACE_S]


def test_regression_what_was_read_beside_a_rotation_is_sound_and_a_repair_leaves_it(tmp_path: Path) -> None:
    """Reads that began before it took what was sealed anew for damaged, and a repair removed the rows."""
    with closing(sealed_backend(f"sqlite:///{tmp_path / 'm.db'}", tmp_path)) as backend:
        puts = [raw_put(at) for at in range(3_000)]
        assert all(isinstance(one, list) for one in backend.apply([[put] for put in puts]))
        inspected, changes = iter(backend.inspect()), iter(backend.changes(puts[0].namespace, 0))
        next(inspected)
        next(changes)
        rotate(backend, wait=lambda _: None)
        assert [one for one in inspected if isinstance(one, Unreadable)] == []
        assert {one.key for one in changes if one.document} >= {put.key for put in puts[1:]}


def test_regression_a_row_that_can_be_read_again_is_not_removed_as_damaged(tmp_path: Path) -> None:
    with closing(sealed_backend("memory://", tmp_path)) as backend:
        one, _ = two_rows(backend)
        sound = raw(backend, one)
        backend.inner.apply([[cut(sound)]])
        found = [each for each in backend.inspect() if isinstance(each, Unreadable)]
        (version,) = [row.version for row in backend.inner.get([one]) if row]
        # As a rotation does, this changes no version.
        backend.inner.apply(
            [[Rewrite(namespace=one[0], key=one[1], version=version, value=sound.value, document=sound.document)]]
        )
        assert backend.discard(found) == 0
        assert [row and row.value["content"] for row in backend.get([one])] == ["Drinks tea"]


# The same answers.


@pytest.mark.parametrize("kind", ["sqlite", *(pytest.param(one, marks=pytest.mark.full) for one in KINDS[1:])])
def test_recall_ranks_as_without_keys(kind: str, tmp_path: Path) -> None:
    found: list[Any] = []
    for folder in (tmp_path / "plain", tmp_path / "keyed"):
        folder.mkdir()
        with database(kind, folder) as url:
            given: dict[str, Any] = {"embeddings": HashingEmbeddings()}
            with open_store(url, **given) if folder.name == "plain" else keyed(url, folder, **given) as store:
                service = AgentMemoryStoreService(store).sync
                for at, text in enumerate(TEXTS):
                    service.save_memory("ada", text, memory_id=f"m{at}", tags=[f"t{at % 3}"])
                assert store.wait_ready(10)
                asked = [service.recall_memories("ada", f"Who drinks {what}?") for what in ("tea", "mate", "3")]
                asked.append(service.recall_memories("ada", "drinks", tags=["t1"]))
                found.append([[(hit.id, hit.content, hit.score, hit.relevance) for hit in hits] for hits in asked])
    assert found[0] == found[1]
    assert all(found[0])


# The key store.


@pytest.mark.parametrize("url", ["sqlite:///{}/keys.db", "file:///{}/keys.json"])
def test_a_key_store_keeps_no_label_and_no_destroyed_key(url: str, tmp_path: Path) -> None:
    place = url.format(tmp_path)
    with closing(open_keys(place, MASTER)) as ring:
        assert ring.get("user~40example") == []
        (first,) = ring.get("user~40example", makes=True)
        assert ring.get("user~40example", makes=True) == [first]
        ring.rotate("user~40example")
        second, known = ring.get("user~40example")
        assert known == first
        assert second.id != first.id
        wrapped = [one["wrapped"] for one in ring._read(ring._name("user~40example"))]
        path = next(path for path in tmp_path.iterdir() if path.suffix in (".db", ".json"))
        assert all(one and one.encode() in path.read_bytes() for one in wrapped)
        assert ring.destroy("user~40example", keep=1) == 1
        assert ring.get("user~40example") == [second, (first.id, None)]
        with closing(open_keys(place, MASTER)) as another:  # another process
            assert another.destroy("user~40example") == 1
        assert ring.get("user~40example") == [(second.id, None), (first.id, None)]
        assert ring.destroy("user~40example") == 0
        (fresh, *_) = ring.get("user~40example", makes=True)
        assert fresh.id not in (first.id, second.id)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [one for one in wrapped if one and one.encode() in stored]
    assert b"user~40example" not in stored
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("url", ["sqlite:///{}/keys.db", "file:///{}/keys.json"])
def test_a_new_master_key_opens_the_same_keys(url: str, tmp_path: Path) -> None:
    place = url.format(tmp_path)
    with closing(open_keys(place, MASTER)) as ring:
        keys = [ring.get(label, makes=True) for label in ("ada", "bob")]
        ring.destroy("bob")
        ring.rewrap(OTHER)
        assert ring.get("ada") == keys[0]
    with closing(open_keys(place, OTHER)) as ring:
        assert ring.get("ada") == keys[0]
        assert ring.get("bob") == [(keys[1][0].id, None)]
    with pytest.raises(ConfigurationError, match="another master key"):
        open_keys(place, MASTER)


@pytest.mark.parametrize("url", ["sqlite:///{}/keys.db", "file:///{}/keys.json"])
def test_regression_nobody_makes_keys_with_a_master_key_that_was_replaced(url: str, tmp_path: Path) -> None:
    """Who had the key store open went on making keys that the new master key did not open."""
    place = url.format(tmp_path)
    with closing(open_keys(place, MASTER)) as agent, closing(open_keys(place, MASTER)) as another:
        known = agent.get("bob", makes=True)
        another.rewrap(OTHER)
        for use in (
            lambda: agent.get("ada", makes=True),
            lambda: agent.rotate("bob"),
            lambda: agent.get("bob"),
            lambda: agent.rewrap(bytes(range(1, 33))),
        ):
            with pytest.raises(StoreUnavailable, match="another master key now: restart"):
                use()
        assert agent.destroy("eve") == 0, "to destroy a key takes no master key"
    with closing(open_keys(place, OTHER)) as ring:
        assert (ring.get("bob"), ring.get("ada")) == (known, [])


@pytest.mark.parametrize("url", ["sqlite:///{}/keys.db", "file:///{}/keys.json"])
def test_two_who_make_a_users_first_key_at_once_get_the_same(url: str, tmp_path: Path) -> None:
    """What one of two keys had sealed could not be read any more."""
    rings = [open_keys(url.format(tmp_path), MASTER) for _ in range(4)]
    found: list[Any] = []

    def make(ring: KeyRing) -> None:
        found.extend(ring.get(f"u{at}", makes=True) for at in range(5))

    threads = [threading.Thread(target=make, args=(ring,)) for ring in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert len({key.id for keys in found for key in keys}) == 5
    for ring in rings:
        ring.close()


def test_a_key_store_that_fails_says_so(tmp_path: Path) -> None:
    with closing(sealed_backend("memory://", tmp_path)) as backend:
        two_rows(backend)
        with closing(sqlite3.connect(tmp_path / "keys.db")) as database, database:
            database.execute("DROP TABLE keys")
        with pytest.raises(StoreError, match=r"The key store .* failed"):
            backend.get([(("ada", "semantic"), "one")])
