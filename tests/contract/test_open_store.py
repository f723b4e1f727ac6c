"""open_store: URLs, what goes wrong while opening, and how a store lives with its embedding model."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from retrieval_support import packed
from support import FailingEmbeddings, HangingEmbeddings, HashingEmbeddings

from inference_core import AgentMemory, AgentMemoryStoreService, Embedder, MemoryStore, open_store
from inference_core.effects import run
from inference_core.errors import (
    ConfigurationError,
    EmbeddingError,
    EmbeddingMismatch,
    StoreUnavailable,
    UnsupportedSchema,
)
from inference_core.retrieval.documents import Document
from inference_core.stores import factory
from inference_core.stores.backend import (
    Check,
    Expire,
    Put,
    Remove,
    Rewrite,
    SetVector,
    Touch,
    UnembeddedRow,
    Write,
    WriteRule,
    waits_for_disk,
)
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.backends.sql.sqlite import MAX_IDLE, SqliteBackend
from inference_core.stores.factory import engine_of
from inference_core.stores.indexing.embedding import fill
from inference_core.stores.indexing.search import RecallMode, Search
from inference_core.transfer.copying import reembed

NS = ("u", "semantic")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened(url: str, **options: Any) -> MemoryStore:
    return open_store(url, embeddings=None, **options)


def mode_of(store: MemoryStore, text: str = "tea") -> tuple[RecallMode, int]:
    result = run(store.engine.search(Search(groups=[[NS]], text=text, limit=9)))
    return result.mode, len(result.groups[0])


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def pending(store: MemoryStore) -> list[str]:
    assert store.engine.embedder is not None
    return [row.text for row in store.engine.backend.pending(store.engine.embedder.fingerprint, 99)]


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///memory.db", "memory.db"),
        ("sqlite+aiosqlite:///./memory.db", "memory.db"),
        ("sqlite+pysqlite:///memory.db", "memory.db"),
        ("sqlite:///new/folders/memory.db", "new/folders/memory.db"),
        ("sqlite:///with%20space%25%3F.db", "with space%?.db"),
        ("sqlite:///memory.db?timeout=5", "memory.db"),
        ("sqlite:///caf%C3%A9.db", "caf\u00e9.db"),
        ("sqlite:///{folder}/absolute.db", "absolute.db"),
    ],
)
def test_a_sqlite_url_names_a_file(here: Path, url: str, file: str):
    for turn in range(2):
        with opened(url.format(folder=here)) as store:
            assert (store.get(NS, "a") is not None) is (turn == 1)
            store.put(NS, "a", {"n": 1})
    assert (here / file).read_bytes().startswith(b"SQLite format 3")


@pytest.mark.parametrize("url", ["memory://", "sqlite://", "sqlite:///:memory:", "memory://anything"])
def test_a_memory_url_leaves_nothing(here: Path, url: str):
    with opened(url) as store:
        store.put(NS, "a", {"n": 1})
        assert store.get(NS, "a") is not None
    with opened(url) as store:
        assert store.get(NS, "a") is None
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/db", "known: sqlite, postgresql, redis, mongodb, file, memory"),
        ("http://host", "known: sqlite, postgresql, redis, mongodb, file, memory"),
        ("memory.db", "looks like"),
        ("/tmp/memory.db", "looks like"),
        ("", "looks like"),
        ("://x", "looks like"),
        (None, "looks like"),
        (Path("memory.db"), "looks like"),
        ("sqlite://memory.db", "three slashes"),
        ("sqlite:///", "three slashes"),
    ],
)
def test_a_url_that_names_no_store(here: Path, url: Any, message: str):
    with pytest.raises(ConfigurationError, match=message):
        opened(url)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("url", ["sqlite:////", "sqlite:///.", "sqlite:///..", "sqlite:///?mode=ro", "sqlite:///a%00b"])
def test_a_path_that_names_no_file(here: Path, url: str):
    with pytest.raises(ConfigurationError):
        opened(url)


def test_a_path_below_a_file(here: Path):
    (here / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="writable"):
        opened("sqlite:///file/memory.db")


def test_a_path_that_is_a_folder(here: Path):
    with pytest.raises(ConfigurationError, match="Cannot open the store"):
        opened(f"sqlite:///{here}")


def test_a_file_that_is_no_database(here: Path):
    (here / "memory.db").write_text("this is not a database, it is a text about one " * 50)
    with pytest.raises(ConfigurationError, match="not a database"):
        opened("sqlite:///memory.db")
    assert (here / "memory.db").read_text().startswith("this is not")


def test_an_unknown_option(here: Path):
    with pytest.raises(TypeError, match="colour"):
        opened("sqlite:///memory.db", colour="red")


def test_only_a_store_has_an_engine():
    with pytest.raises(ConfigurationError, match="must be a LangGraph BaseStore, not dict"):
        engine_of({})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="must be a LangGraph BaseStore, not str"):
        AgentMemoryStoreService(store="memory://")  # pyright: ignore[reportArgumentType]
    with opened("memory://") as store:
        assert engine_of(store) is store.engine
    assert engine_of(InMemoryStore()).backend.name == "InMemoryStore"


def test_another_model_is_refused(sqlite_url: str):
    with open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model one")) as store:
        store.put(NS, "a", {"t": "tea"})
    with pytest.raises(EmbeddingMismatch, match="python -m inference_core reembed") as raised:
        open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model two"))
    assert "model one" in str(raised.value)
    assert "model two" in str(raised.value)
    with opened(sqlite_url) as store:
        assert store.get(NS, "a") is not None
        assert mode_of(store) == (RecallMode.LEXICAL, 1)
    with open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model one")) as store:
        assert mode_of(store, "zeppelin") == (RecallMode.HYBRID, 1)


def test_a_store_can_be_given_another_model(sqlite_url: str):
    with open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model one"), audit=False) as store:
        for number in range(40):
            store.put(NS, f"k{number}", {"t": f"tea {number}"})
        store.put(NS, "unindexed", {"t": "tea"}, index=False)
    heard: list[tuple[int, int]] = []
    assert (
        reembed(sqlite_url, Embedder(HashingEmbeddings(), "model two"), lambda done, total: heard.append((done, total)))
        == 40
    )
    assert heard[-1] == (40, 41)
    assert reembed(sqlite_url, Embedder(HashingEmbeddings(), "model two")) == 0
    assert reembed(sqlite_url, Embedder(HashingEmbeddings(), "model three")) == 40
    assert reembed(sqlite_url, Embedder(HashingEmbeddings(), "model two")) == 40
    with open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model two")) as store:
        assert pending(store) == []
        assert mode_of(store, "zeppelin") == (RecallMode.HYBRID, 9)
    with pytest.raises(EmbeddingMismatch):
        open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model one"))


def test_a_model_that_is_down_is_not_made_the_stores(sqlite_url: str):
    opened(sqlite_url).close()
    for spec, error in ((Embedder(FailingEmbeddings(), "down"), EmbeddingError), (None, ConfigurationError)):
        with pytest.raises(error):
            reembed(sqlite_url, spec)
    open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "up")).close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection that is made to a SQLite file."""
    connect, made = sqlite3.connect, list[sqlite3.Connection]()

    def connected(*args: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*args, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    return made


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


def test_a_connection_to_what_is_no_database_is_closed(tmp_path: Path, made: list[sqlite3.Connection]):
    """Regression: it was left to the garbage collector, of which Python 3.13 warns."""
    path = tmp_path / "memory.db"
    path.write_text("this is not a database " * 100)
    with pytest.raises(ConfigurationError, match="not a database"):
        opened(f"sqlite:///{path}")
    assert made
    assert not any(map(is_open, made))


def test_after_many_reads_at_once_few_connections_stay_open(tmp_path: Path, made: list[sqlite3.Connection]):
    """Regression: as many as ever read at once were kept, and each of them kept what it had read."""
    backend = SqliteBackend(tmp_path / "memory.db", durable=True)
    with ExitStack() as reads:
        for _ in range(3 * MAX_IDLE):
            assert is_open(reads.enter_context(backend.connections.reader()))
    assert sum(map(is_open, made)) == MAX_IDLE + 1  # the writer's
    backend.close()
    assert not any(map(is_open, made))


def test_a_newer_schema_is_refused(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    opened(url).close()
    with sqlite3.connect(tmp_path / "memory.db") as connection:
        connection.execute("UPDATE memory_meta SET value = '99' WHERE name = 'schema_version'")
    connection.close()
    with pytest.raises(UnsupportedSchema, match=r"version 99.*Update the package"):
        opened(url)


def test_the_database_is_safe_against_power_loss_unless_told_otherwise(tmp_path: Path):
    for durable, level in ((True, 2), (False, 1)):
        backend = SqliteBackend(tmp_path / "memory.db", durable=durable)
        with backend.connections.transaction() as writer:
            assert writer.execute("PRAGMA synchronous").fetchone() == (level,)
            assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        backend.close()


def test_only_a_transaction_of_writes_that_need_not_wait_does_not_wait_for_the_disk(tmp_path: Path):
    lease = Put(namespace=("ada", "x"), key="lease", value="{}", updated_at=datetime.now(UTC), waits_for_disk=False)
    levels: list[str] = []
    backend = SqliteBackend(tmp_path / "memory.db")
    with backend.connections.transaction() as writer:
        writer.set_trace_callback(levels.append)
    for batches in ([[lease]], [[lease], [replace(lease, key="memory", waits_for_disk=True)]]):
        levels.clear()
        assert [len(outcome) for outcome in backend.apply(batches) if isinstance(outcome, list)] == [1] * len(batches)
        found = [level for level in levels if "synchronous" in level or level == "COMMIT"]
        waits = len(batches) > 1
        assert found == (
            ["COMMIT"] if waits else ["PRAGMA synchronous = NORMAL", "COMMIT", "PRAGMA synchronous = FULL"]
        )
    backend.close()


class Counter(TypedDict):
    count: int


def test_a_file_may_be_shared_with_a_checkpointer(tmp_path: Path):
    path = tmp_path / "app.db"

    def node(state: Counter) -> Counter:
        store.put(NS, f"k{state['count']}", {"t": f"tea {state['count']}"})
        return {"count": state["count"] + 1}

    builder = StateGraph(Counter)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    with opened(f"sqlite:///{path}") as store, SqliteSaver.from_conn_string(str(path)) as saver:
        graph = builder.compile(checkpointer=saver)
        for turn in range(5):
            assert graph.invoke({"count": turn}, {"configurable": {"thread_id": "t"}})["count"] == turn + 1
        assert len(list(saver.list({"configurable": {"thread_id": "t"}}))) >= 5
        assert len(store.search(NS, query="tea", limit=9)) == 5


def test_a_text_saved_while_the_model_is_down_gets_its_vector_later(sqlite_url: str):
    model = FailingEmbeddings()
    with open_store(sqlite_url, embeddings=model) as store:
        memory_id = AgentMemoryStoreService(store=store).sync.save_memory("u", "green tea")
        assert store.get(NS, memory_id) is not None
        assert mode_of(store) == (RecallMode.LEXICAL, 1)
        assert pending(store) == ["green tea"]
        model.broken = False
        assert eventually(lambda: not pending(store))
        assert eventually(lambda: mode_of(store, "zeppelin") == (RecallMode.HYBRID, 1))


def test_texts_saved_without_a_model_get_their_vectors_when_there_is_one(sqlite_url: str):
    with opened(sqlite_url) as store:
        for number in range(70):
            store.put(NS, f"k{number}", {"t": f"tea {number}"}, index=["t"])
    with open_store(sqlite_url, embeddings=HashingEmbeddings()) as store:
        assert eventually(lambda: not pending(store))
        assert mode_of(store, "zeppelin") == (RecallMode.HYBRID, 9)


def test_a_foreign_store_gets_its_vectors_too():
    model = FailingEmbeddings()
    service = AgentMemoryStoreService(store=InMemoryStore(), embeddings=model)
    service.sync.save_memory("u", "green tea")
    (found,) = service.sync.recall_memories("u", "tea")
    assert found.content == "green tea"
    model.broken = False

    def is_found_by_meaning() -> bool:
        return len(service.sync.recall_memories("u", "zeppelin")) == 1

    assert eventually(is_found_by_meaning, 5)
    service.scope.engine.close()


def test_a_foreign_store_is_searched_by_meaning():
    service = AgentMemoryStoreService(store=InMemoryStore(), embeddings=HashingEmbeddings())
    service.sync.save_memory("u", "green tea")
    (found,) = service.sync.recall_memories("u", "zeppelin")
    assert found.content == "green tea"
    service.scope.engine.close()


class Picky(FailingEmbeddings):
    """Never embeds a text with a certain word in it."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if any("poison" in text for text in texts):
            raise ValueError("this text cannot be embedded")
        return super().embed_documents(texts)


def test_a_text_that_cannot_be_embedded_does_not_hold_up_others():
    model = Picky(broken=False)
    with open_store("memory://", embeddings=model) as store:
        store.put(NS, "bad", {"t": "poison"})
        model.broken = True
        store.put(NS, "good", {"t": "green tea"})
        model.broken = False
        assert eventually(lambda: all("poison" in text for text in pending(store)), 5)


class Limited(FailingEmbeddings):
    """Answers every second call only, as a server does that limits its callers."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        if self.broken or self.calls % 2:
            raise ConnectionError("too many requests")
        return [self.embed_query(text) for text in texts]


def test_a_model_that_fails_now_and_then_gets_to_every_text():
    model = Limited()
    with open_store("memory://", embeddings=model) as store:
        store.batch([PutOp(NS, f"k{number}", {"t": f"tea {number}"}) for number in range(6)])
        assert len(pending(store)) == 6
        model.calls = 0
        model.broken = False
        assert eventually(lambda: not pending(store), 60)


def test_a_text_that_comes_while_others_are_looked_for_gets_its_vector(monkeypatch: pytest.MonkeyPatch):
    looked, stored = threading.Event(), threading.Event()
    read = InMemoryBackend.pending

    def read_before_it_is_stored(self: InMemoryBackend, model: str, limit: int) -> list[UnembeddedRow]:
        found = read(self, model, limit)
        if not looked.is_set():
            looked.set()
            stored.wait(60)
        return found

    model = FailingEmbeddings()
    with open_store("memory://", embeddings=model) as store:
        monkeypatch.setattr(InMemoryBackend, "pending", read_before_it_is_stored)
        store.engine.embed_later()
        assert looked.wait(60)
        store.put(NS, "a", {"t": "green tea"})
        model.broken = False
        stored.set()
        assert eventually(lambda: not pending(store))


class Lossy(HashingEmbeddings):
    """Gives no vector for the last text."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return super().embed_documents(texts)[:-1]


def test_a_model_that_loses_vectors_loses_no_texts(sqlite_url: str):
    with open_store(sqlite_url, embeddings=Lossy()) as store:
        store.put(NS, "a", {"t": "green tea"}, index=["t"])
        assert store.get(NS, "a") is not None
        assert pending(store) == ["green tea"]


def test_a_model_that_loses_vectors_gives_none_to_the_wrong_text():
    backend = InMemoryBackend()
    texts = [UnembeddedRow(NS, "a", 1, "tea"), UnembeddedRow(NS, "b", 1, "mate")]
    written: list[Sequence[Write]] = []
    with pytest.raises(EmbeddingError, match="vectors"):
        fill(backend, written.append, Embedder(Lossy(), "lossy"), texts, with_tokens=True)
    assert not written


def test_recall_survives_vectors_of_another_length_under_the_same_name(sqlite_url: str):
    with open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "the same name")) as store:
        store.put(NS, "64", {"t": "tea 64"}, index=["t"])
        short = Document.of("tea 32")._replace(model="the same name", vector=packed([1.0] * 32))
        now = datetime.now(UTC)
        put = Put(namespace=NS, key="32", value='{"t": "tea 32"}', document=short, updated_at=now)
        assert store.engine.backend.apply([[put]]) == [[1]]
        assert mode_of(store)[1] == 2


def test_a_model_that_is_loading_is_not_waited_for():
    loaded = threading.Event()

    def load() -> None:
        loaded.wait(60)

    with open_store("memory://", embeddings=Embedder(HashingEmbeddings(), "slow", load)) as store:
        assert not store.wait_ready(0)
        started = time.monotonic()
        store.put(NS, "a", {"t": "tea"})
        assert mode_of(store) == (RecallMode.LEXICAL, 1)
        assert time.monotonic() - started < 2
        loaded.set()
        assert store.wait_ready(5)
        assert eventually(lambda: mode_of(store, "zeppelin") == (RecallMode.HYBRID, 1))


def test_a_model_that_cannot_be_loaded_leaves_recall_by_words():
    def load() -> None:
        raise OSError("no model file")

    with open_store("memory://", embeddings=Embedder(HashingEmbeddings(), "lost", load)) as store:
        assert not store.wait_ready(5)
        store.put(NS, "a", {"t": "tea"})
        result = run(store.engine.search(Search(groups=[[NS]], text="tea", limit=9)))
        assert (result.mode, len(result.groups[0])) == (RecallMode.LEXICAL, 1)
        assert "no model file" in (result.reason or "")


def test_a_query_does_not_wait_longer_for_its_vector_than_it_may():
    model = HangingEmbeddings(120.0)
    with open_store("memory://", embeddings=model) as store:
        store.put(NS, "a", {"t": "tea"}, index=False)
        started = time.monotonic()
        search = Search(groups=[[NS]], text="tea", limit=9, wait_seconds=0.1)
        assert run(store.engine.search(search)).mode is RecallMode.LEXICAL
        assert time.monotonic() - started < 60
        model.over.set()


def test_a_store_that_was_not_closed_is_closed_at_exit(sqlite_url: str):
    store = opened(sqlite_url)
    factory._close_all()
    with pytest.raises(StoreUnavailable):
        store.get(NS, "a")


def test_a_store_that_nobody_has_any_more_is_closed_and_told_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Guards against stores opened anew for each request, whose connections and threads added up in silence."""
    monkeypatch.setattr(factory, "_said_open", threading.Event())
    with opened("sqlite:///closed.db"):
        opened("memory://")
    AgentMemory("sqlite:///own.db", user_id="ada").update("1", "Hello")  # whoever gives a URL has nothing to close
    memory = opened("sqlite:///kept.db").memory("ada")
    gc.collect()
    assert caplog.messages == []
    memory.add("Ada lives in Lisbon")
    lost = [memory.scope.engine.parts, opened("sqlite:///lost.db").engine.parts]
    del memory
    gc.collect()
    (said,) = caplog.messages
    assert "(sqlite:///lost.db) was given up without being closed. It is closed now" in said
    assert "use it as in 'with open_store(…) as store:'" in said
    assert eventually(lambda: all(one.is_closed for one in lost))
    with opened("sqlite:///kept.db") as again:
        assert [one.content for one in again.memory("ada").all()] == ["Ada lives in Lisbon"]


async def test_a_save_whose_caller_has_left_gets_its_vector_and_its_seal() -> None:
    model, gate, entered = FailingEmbeddings(), threading.Event(), threading.Event()
    apply = InMemoryBackend.apply

    def slow(self: InMemoryBackend, batches: Sequence[Sequence[Write]]) -> list[Any]:
        if any(isinstance(write, Put) and "mate" in write.value for batch in batches for write in batch):
            entered.set()
            gate.wait(60)
        return apply(self, batches)

    with open_store("memory://", embeddings=model) as store, pytest.MonkeyPatch.context() as patched:
        service = AgentMemoryStoreService(store)
        patched.setattr(InMemoryBackend, "apply", slow)
        saving = asyncio.create_task(service.save_memory("ada", "likes mate", "facts"))
        await asyncio.to_thread(entered.wait, 10)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        model.broken = False
        noted: list[str] = []
        patched.setattr(store.engine.audit_log, "wake", lambda: noted.append("an event"))
        gate.set()
        assert await asyncio.to_thread(eventually, lambda: noted == ["an event"])
        assert await asyncio.to_thread(eventually, lambda: not pending(store))
        assert len(await service.recall_memories("ada", "mate")) == 1


def test_regression_a_store_that_cannot_be_opened_leaves_no_thread(sqlite_url: str):
    with open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model one")):
        pass
    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(EmbeddingMismatch):
            open_store(sqlite_url, embeddings=Embedder(HashingEmbeddings(), "model two"))
    assert [one.name for one in set(threading.enumerate()) - before if one.name == "memory-maintenance"] == []


def test_only_what_says_so_does_not_wait_for_the_disk() -> None:
    """A rewritten text of a rotated key that a power loss undoes could not be read again: its old key is gone."""
    place, now = ("ada", "x"), datetime.now(UTC)
    lease = Put(namespace=place, key="k", value="{}", updated_at=now, waits_for_disk=False)
    waiting = [
        replace(lease, waits_for_disk=True),
        Rewrite(namespace=place, key="k", version=1, value="{}", document=None),
        Touch(namespace=place, key="k", version=1, at=now),
        SetVector(namespace=place, key="k", version=1, model="m", vector=b""),
        Remove(namespace=place, key="k"),
        Expire(namespace=place, key="k"),
    ]
    assert [waits_for_disk([[lease], [write]]) for write in waiting] == [True] * len(waiting)
    assert not waits_for_disk([[lease, Check(namespace=place, key="k", expected=0), WriteRule()]])
