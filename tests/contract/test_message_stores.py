"""What a caller has anyway serves as a store: a mapping, a SQLAlchemy engine, a Redis client."""

from __future__ import annotations

import shelve
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis_server import redis_server
from short_term_support import USER, dialogue, stored_texts, texts

from inference_core import AgentMemory, AgentMemoryStoreService, FlushToLongTerm, StaticMemory, VectorMemory, open_store
from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.stores.backend import Put

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class EngineUrl:
    """What the URL of a SQLAlchemy engine has, for environments without SQLAlchemy."""

    text: str

    def render_as_string(self, *, hide_password: bool) -> str:
        return "hidden" if hide_password else self.text


@dataclass
class Engine:
    url: EngineUrl


class Full(UserDict[str, Any]):
    """A mapping that may refuse a write."""

    is_full = False

    def __setitem__(self, key: str, item: Any) -> None:
        if self.is_full and key == "bob":
            raise OSError("no space left")
        super().__setitem__(key, item)


def talk(store: Any, user: str = USER, first: int = 0) -> AgentMemory:
    """A session on ``store`` of which a part has left for long-term memory on the same store."""
    memory = AgentMemory(store, overflow=FlushToLongTerm([VectorMemory(store)]), max_tokens=200, user_id=user)
    for message in dialogue(4, first=first):
        assert memory.update("s1", message) is None
    return memory


def check(given: Any) -> None:
    """Whether all that was said with ``given`` as the store is there, and nobody else's."""
    memory = talk(given)
    talk(given, "bob", first=100)
    everything = {*texts(memory.get("s1").messages), *stored_texts(open_store(given, embeddings=None))}
    assert everything == set(texts(dialogue(4)))


def test_a_dict_holds_sessions_and_what_left_them_as_plain_data() -> None:
    """A dict was refused as a message store, though the proposals start with one."""
    given: dict[str, Any] = {}
    with open_store(given, embeddings=None):
        check(given)
    assert {*given} >= {USER, "bob"}
    assert all(isinstance(entry["namespace"], list | tuple) for entry in given[USER])
    with open_store(given, embeddings=None) as again:  # it is all in the mapping, not in the store
        assert stored_texts(again) != []
        assert AgentMemory(again, user_id=USER).get("s1").messages != []


def test_a_shelf_outlives_the_process(tmp_path: Path) -> None:
    with shelve.open(str(tmp_path / "sessions")) as shelf, open_store(shelf, embeddings=None) as store:
        left = texts(talk(store).get("s1").messages)
        store.engine.backend.set_meta("name", "value")
    with shelve.open(str(tmp_path / "sessions")) as shelf, open_store(shelf, embeddings=None) as store:
        assert texts(AgentMemory(store, user_id=USER).get("s1").messages) == left
        assert store.engine.backend.get_meta("name") == "value"


def test_a_mapping_that_takes_no_write_refuses_it_as_a_whole() -> None:
    mapping = Full()
    with open_store(mapping, embeddings=None) as store:
        service = AgentMemoryStoreService(store).sync
        service.save_memory(USER, "keeps falcons", "facts")
        before = dict(mapping)
        mapping.is_full = True
        with pytest.raises(StoreUnavailable, match="no space left"):
            service.save_memory("bob", "keeps owls", "facts")
        assert dict(mapping) == before
        for first in ("ada", "dora"):  # what the batch has put in before the refusal is taken out again
            batch = [Put(namespace=(user, "x"), key="a", value="{}", updated_at=NOW) for user in (first, "bob", "carl")]
            with pytest.raises(StoreUnavailable, match="no space left"):
                store.engine.rules.apply([batch])
            assert dict(mapping) == before
        assert stored_texts(store) == ["keeps falcons"]


def test_the_same_object_is_the_same_store() -> None:
    """Two stores over one mapping would overwrite each other's rows."""
    given: dict[str, Any] = {}
    with open_store(given, embeddings=None) as store:
        assert open_store(given).engine is store.engine
        assert open_store({}, embeddings=None).engine is not store.engine
        block = StaticMemory(["Water is wet"], given)
        assert [one.content for one in block.get("s1")] == ["Water is wet"]


@pytest.mark.parametrize("driver", ["", "+aiosqlite"])
def test_the_database_of_an_engine_is_used(tmp_path: Path, driver: str) -> None:
    engine = Engine(EngineUrl(f"sqlite{driver}:///{tmp_path}/app.db"))
    with open_store(engine, embeddings=None) as store:
        check(engine)
        assert (tmp_path / "app.db").exists()
        assert store.engine.backend.name.endswith("app.db")


def test_an_engine_of_sqlalchemy(tmp_path: Path) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/app.db")
    with open_store(engine, embeddings=None):
        check(engine)
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM memory_rows")).scalar() > 0
    with pytest.raises(ConfigurationError, match="Unknown store scheme 'mysql'"):
        AgentMemory(Engine(EngineUrl("mysql://host/db")), user_id=USER)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with redis_server("--requirepass", "secret") as server:
        yield str(server.socket)


@pytest.mark.parametrize("decodes", [False, True])
def test_a_client_of_redis(address: str, decodes: bool) -> None:
    from redis import Redis

    client = Redis(unix_socket_path=address, db=2, password="secret", decode_responses=decodes)
    with open_store(client, embeddings=None) as store:
        check(client)
        assert client.dbsize() > 0  # in the database that the client has chosen
        assert "secret" not in store.engine.backend.name
        client.close()
        assert stored_texts(store) != []  # the store has connections of its own
    Redis(unix_socket_path=address, db=2, password="secret").flushdb()


def test_what_is_no_database_is_refused_with_what_is() -> None:
    from redis import ConnectionPool, Redis
    from redis.sentinel import Sentinel

    with pytest.raises(ConfigurationError, match=r"a redis\.Redis; not on a int"):
        open_store(3)
    with pytest.raises(ConfigurationError, match="Only file stores are encrypted"):
        open_store({}, encryption_key=b"0" * 32)
    with pytest.raises(StoreUnavailable, match="No master found for 'main'; no Sentinel that answers"):
        open_store(Sentinel([("127.0.0.1", 1)], password="secret").master_for("main"))
    pool = ConnectionPool(host="127.0.0.1", port=1)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        open_store(Redis(connection_pool=pool))
