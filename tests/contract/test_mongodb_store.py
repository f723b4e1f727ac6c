"""What is special to the MongoDB backend: its feed without transactions, its scopes in turn, and how it opens.

Run against the server of MONGODB_URL if there is one, else against mongomock, which has neither sessions nor replicas.
"""

from __future__ import annotations

import importlib
import json
import struct
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from bson import encode
from mongo_support import mongodb
from pymongo import MongoClient

from inference_core import AgentMemory, AgentMemoryStoreService, MemoryStore, open_store
from inference_core.errors import (
    ConfigurationError,
    MissingExtra,
    StoreError,
    StoreUnavailable,
    VersionConflict,
    WriteUnknown,
)
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Check, Outcome, Put, pack_namespace
from inference_core.stores.backends import mongodb as mongodb_module
from inference_core.stores.backends.mongodb import MongoBackend, shown
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import open_backend

USER: Namespace = ("u", "semantic")
NAME = pack_namespace(USER)


@pytest.fixture
def backend() -> Iterator[MongoBackend]:
    with mongodb() as backend:
        yield backend


def put(key: str, namespace: Namespace = USER) -> Put:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return Put(namespace=namespace, key=key, value=json.dumps({}), document=Document.of("tea"), updated_at=moment)


def heard(backend: MongoBackend, since: int = 0) -> list[tuple[int, str]]:
    return [(change.seq, change.key) for change in backend.changes(USER, since)]


def only(outcomes: list[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


def test_what_a_dead_writer_left_is_heard_of_with_the_next_write(backend: MongoBackend):
    assert only(backend.apply([[put("a")]])) == [1]
    left = backend._rows.find_one({"key": "a"})
    backend._rows.insert_one(left | {"_id": pack_namespace((*USER, "left")), "key": "left", "seq": 2})
    assert (heard(backend), backend.heads([USER])) == ([(1, "a")], [1])
    assert only(backend.apply([[put("b")]])) == [1]
    assert (heard(backend, since=1), backend.heads([USER])) == ([(2, "left"), (3, "b")], [3])


def test_a_scope_is_taken_by_one_writer_at_a_time(backend: MongoBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mongodb_module, "_WAIT_S", 0.05)
    only(backend.apply([[put("a")]]))
    with backend._scopes.taken([NAME], None):
        outcomes = backend.apply([[put("b")], [put("b", ("v", "semantic"))]])
    assert isinstance(outcomes[0], StoreUnavailable)
    assert "keeps this scope" in str(outcomes[0])
    assert outcomes[1] == [1]
    assert only(backend.apply([[put("b")]])) == [1]


def test_regression_a_refused_write_leaves_no_name_of_its_user(backend: MongoBackend):
    """The document of the scope stayed, which names the user, also one who was erased."""
    refused = [Check(namespace=("v", "other"), key="a", expected=7), put("a")]
    assert isinstance(only(backend.apply([refused])), VersionConflict)
    assert list(backend._scopes._scopes.find({})) == []
    assert only(backend.apply([[put("a")]])) == [1]


def test_a_scope_that_was_dropped_meanwhile_is_made_again(backend: MongoBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend._scopes, "_known", {NAME})
    assert only(backend.apply([[put("a")]])) == [1]


def test_a_writer_that_does_not_come_back_loses_its_scope(backend: MongoBackend):
    only(backend.apply([[put("a")]]))
    with pytest.raises(WriteUnknown, match="taken over"), backend._scopes.taken([NAME], None):  # noqa: PT012
        changes = {"$set": {"until": time.time() - 1}}
        backend._scopes._scopes.update_one({"_id": NAME}, changes)
        assert only(backend.apply([[put("b")]])) == [1]
    assert heard(backend) == [(1, "a"), (2, "b")]


def test_a_row_that_another_writer_changed_meanwhile_is_not_overwritten(
    backend: MongoBackend, monkeypatch: pytest.MonkeyPatch
):
    only(backend.apply([[put("a")]]))
    real = mongodb_module.encode

    def late(fields: dict[str, Any]) -> bytes:
        backend._rows.update_one({"key": "a"}, {"$set": {"seq": 9, "version": 9}})
        return real(fields)

    monkeypatch.setattr(mongodb_module, "encode", late)
    assert isinstance(only(backend.apply([[put("a")]])), WriteUnknown)
    assert [row and row.version for row in backend.get([(USER, "a")])] == [9]


def test_what_cannot_be_stored_fails_alone(backend: MongoBackend):
    outcomes = backend.apply([[put("a")], [put("x"), put("\ud800")], [put("x", ("\ud800",))], [put("c")]])
    assert (outcomes[0], outcomes[3]) == ([1], [1])
    assert all(isinstance(one, StoreError) for one in outcomes[1:3])
    assert [change[1] for change in heard(backend)] == ["a", "c"]


def test_the_service_works_on_it(backend: MongoBackend):
    engine = StoreEngine(backend)
    service = AgentMemoryStoreService(MemoryStore(engine)).sync
    memory_id = service.save_memory("ada@example.com", "Prefers green tea", "preferences")
    assert service.recall_memories("ada@example.com", "tea")[0].id == memory_id
    assert service.update_memory("ada@example.com", memory_id, "Prefers black tea")
    assert service.recall_memories("ada@example.com", "black")[0].content == "Prefers black tea"
    assert service.recall_memories("bob", "tea") == []
    assert service.delete_memory("ada@example.com", memory_id)
    assert service.list_memories("ada@example.com") == ([], 0)


def test_a_newer_schema_is_refused(backend: MongoBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mongodb_module, "VERSION", 0)
    with pytest.raises(StoreError, match=r"version 1; .* Update the package"):
        MongoBackend(backend.name, client=backend._client)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("mongodb://ada:secret@host:27017/db?authSource=secret", "mongodb://host:27017/db"),
        ("mongodb+srv://ada:s@cret@host", "mongodb+srv://host"),
        ("mongodb://host", "mongodb://host"),
    ],
)
def test_a_name_holds_no_password(url: str, name: str):
    assert shown(url) == name


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://ada:secret@127.0.0.1:1/db",
        "mongodb://ada:sec:ret@127.0.0.1",
        "mongodb://ada:secret@:x/?authSource=secret",
    ],
)
def test_a_server_that_is_not_there(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mongodb_module, "_CONNECT_MS", 50)
    with pytest.raises(ConfigurationError, match="Is the server there") as raised:
        open_backend(url)
    assert "ret" not in str(raised.value).partition("Is the server")[0]
    assert raised.value.__cause__ is None


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pymongo", None)
    monkeypatch.delitem(sys.modules, "inference_core.stores.backends.mongodb")
    with pytest.raises(MissingExtra, match=r"\[mongodb\]"):
        importlib.import_module("inference_core.stores.backends.mongodb")


class GreetingServer(StreamRequestHandler):
    """Answers the greeting of a client and nothing else."""

    def handle(self) -> None:
        """Reads messages until the client closes the connection."""
        hello = {"ok": 1, "isWritablePrimary": True, "maxWireVersion": 21, "minWireVersion": 0, "setName": "r"}
        while header := self.rfile.read(16):
            length, number, _, code = struct.unpack("<4i", header)
            asked = self.rfile.read(length - 16)
            if b"hello" in asked or b"ismaster" in asked:
                host, port = self.connection.getsockname()
                place = f"{host}:{port}"
                body = encode(hello | {"hosts": [place], "me": place})
                # To an old kind of question, an old kind of answer.
                start = struct.pack("<iqii", 8, 0, 0, 1) if code == 2004 else struct.pack("<ib", 0, 0)
                kind = 1 if code == 2004 else 2013
                self.wfile.write(struct.pack("<4i", 16 + len(start) + len(body), 0, number, kind) + start + body)


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """A call waited for it forever, and with it a thread of the store."""
    monkeypatch.setattr(mongodb_module, "MongoClient", MongoClient)
    monkeypatch.setattr(mongodb_module, "_SILENCE_MS", 300)
    with ThreadingTCPServer(("127.0.0.1", 0), GreetingServer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ConfigurationError, match="NetworkTimeout"):
            MongoBackend(f"mongodb://127.0.0.1:{server.server_address[1]}/?directConnection=true")
        server.shutdown()


def memory_on(client: Any) -> AgentMemory:
    return AgentMemory(client, user_id="ada")


@pytest.mark.parametrize("opens", [open_store, memory_on])
def test_a_client_is_answered_with_what_to_use(opens: Any):
    """It has any attribute that is asked for, so it was taken for an engine of SQLAlchemy."""
    with MongoClient("mongodb://localhost:1", connect=False) as client:
        for given in (client, client["memory"], client["memory"]["rows"]):
            with pytest.raises(ConfigurationError, match="pass its URL, such as 'mongodb://localhost/memory'"):
                opens(given)
