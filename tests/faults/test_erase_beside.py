"""erase() beside processes that write, extract and read: nothing is left, nothing comes back, nobody else loses any.

The large version erases 10,000 memories, on every store, watches for a minute, and kills an erasure before each line.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from databases import database
from erase_process import AFTER, BEFORE, KEPT, SESSION, Place, Signs, erase_and_die, read, say_to, work, write
from erasing_support import ADA, BOB, CANARY, content_of, digest, hits, left_of, put_everywhere
from langchain.agents import create_agent
from langgraph.store.memory import InMemoryStore
from outbox_support import said
from processes import Forked
from redis_server import PERSISTENT, redis_server

from inference_core import AgentMemoryStoreService, open_store
from inference_core.agents.checkpoints import CheckpointThreads, open_checkpointer
from inference_core.agents.fenced_checkpoints import OnWorkers
from inference_core.agents.identity import thread_label
from inference_core.effects import run
from inference_core.errors import UserErased
from inference_core.lifecycle.erasing import erase
from inference_core.lifecycle.ledger import Ledger
from inference_core.memory.namespaces import encode_label
from inference_core.outbox.outbox import Outbox, Partition
from inference_core.retrieval.documents import Document
from inference_core.stores.backend import Backend, Put
from inference_core.stores.factory import any_engine_of
from inference_core.testing import FrozenClock, ScriptedChatModel

LARGE = pytest.mark.full
PATIENCE_S = 60.0
ROLES = (write, write, work, work, read)
"""What runs at the same time, each in a process of its own."""


@dataclass
class Beside:
    """The processes of all ROLES, or threads where the store is one of this process."""

    place: Place
    folder: Path
    signs: Signs = field(default_factory=Signs)
    _running: list[Any] = field(default_factory=list[Any])

    @property
    def said(self) -> list[str]:
        """What they have said, those that were killed, too."""
        return (self.folder / "said").read_text().splitlines()

    def start(self, **options: Any) -> None:
        """Starts them, and waits until they have opened the store and the reader's index is warm."""
        given = self.place, self.signs, partial(say_to, self.folder / "said")
        for role in ROLES:
            task = partial(role, **options) if role is write else role
            if isinstance(self.place.store, InMemoryStore):
                thread = threading.Thread(target=task, args=given)
                thread.start()
                self._running.append(thread)
            else:
                self._running.append(Forked(task, *given))
        assert all(self.signs.started.acquire(timeout=PATIENCE_S) for _ in ROLES), "one has not started"

    def end(self) -> None:
        """Ends one of them by kill -9, the others by themselves, so that they write what they have kept back."""
        running, self._running = self._running, []
        if isinstance(running[0], Forked):
            running[0].kill()
            running.pop(0).end()
        self.signs.over.set()
        ends = [one.end() if isinstance(one, Forked) else one.join() or (0, []) for one in running]
        self.signs.over.clear()
        assert [code for code, _ in ends] == [0] * len(running), ends

    def close(self) -> None:
        """Kills those that still run."""
        self.signs.over.set()
        for one in self._running:
            if isinstance(one, Forked):
                one.kill()
                print(one.end())

    def refused(self) -> None:
        """Waits until both writers were refused."""
        assert all(self.signs.refused.acquire(timeout=PATIENCE_S) for role in ROLES if role is write)


class Gate:
    """A place among those of conversations that holds the erasure until everybody beside it has met the fence."""

    name = "gate"

    def __init__(self, beside: Beside) -> None:
        self._beside = beside

    def there(self) -> dict[str, float]:
        return {}

    def erase(self, threads: object) -> list[str]:
        self._beside.signs.under_way.set()
        self._beside.refused()
        return []

    def files(self) -> list[Path]:
        return []


@contextmanager
def placed(kind: str, folder: Path) -> Generator[tuple[Place, Callable[[], bytes]]]:
    """An empty place of ``kind``, and what gives the bytes that its server has written."""
    elsewhere = f"sqlite:///{folder / 'outbox.db'}"
    if kind == "redis":
        with redis_server(*PERSISTENT) as server:
            yield (
                Place(server.url),
                lambda: b"".join(path.read_bytes() for path in server.folder.rglob("*") if path.is_file()),
            )
    elif kind == "postgres":
        with database(kind, folder) as url:
            yield Place(url), partial(_bytes_of_postgres, url)
    elif kind == "langgraph-memory":
        yield Place(InMemoryStore(), elsewhere), bytes
    elif kind == "langgraph-sqlite":
        yield Place(f"langgraph:{folder / 'langgraph.db'}", elsewhere), bytes
    else:
        with database(kind.removesuffix("-plain"), folder) as url:
            if kind == "sqlite-plain":
                _without_secure_delete(url)
            yield Place(url), bytes


def _without_secure_delete(url: str) -> None:
    """Leaves what SQLite's own builds leave: deleted texts of the user in freed pages."""
    with open_store(url, embeddings=None) as store:
        (path, *_) = store.engine.backend.files()
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA secure_delete = OFF")
        plain.execute("CREATE TABLE old (text)")
        plain.executemany("INSERT INTO old VALUES (?)", [(f"{CANARY} {at} {'x' * 200}",) for at in range(500)])
        plain.execute("DELETE FROM old")
        plain.execute("DELETE FROM memory_meta WHERE name = 'secure_delete'")
        plain.commit()
    assert CANARY.encode() in path.read_bytes()


def _bytes_of_postgres(url: str) -> bytes:
    """The files of the tables: the write-ahead log is recycled in its own time, as the receipt says."""
    import psycopg

    server = postgres_server.server("postgres")
    server.execute("CHECKPOINT")
    with psycopg.connect(url) as connection:
        (found,) = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchall()
    return b"".join(path.read_bytes() for path in server.folder.rglob(f"base/{found[0]}/*"))


def until_nobody_sees_old_rows(url: str) -> None:
    """VACUUM FULL keeps what an open transaction sees: an ANALYZE, or a client whose end the server has not noticed."""
    import psycopg

    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    until = time.monotonic() + PATIENCE_S
    with psycopg.connect(url, autocommit=True) as connection:
        # A transaction between two statements has no snapshot, but holds rows back, too.
        open_ones = f"{others} AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"
        while connection.execute(open_ones).fetchall() != [(0,)]:
            assert time.monotonic() < until, "a transaction stays open"
            time.sleep(0.05)


def fill(store: Any, outbox: Any, count: int) -> None:
    """A row in every registered place, ``count`` memories, and messages for both workers; the same of other users."""
    engine = any_engine_of(store)
    for one in {engine: None, any_engine_of(outbox): None}:
        put_everywhere(one, ADA, CANARY)
        put_everywhere(one, BOB, "bob drinks coffee")
    for start in range(0, count, 500):
        run(engine.write([memory(at) for at in range(start, min(start + 500, count))]))
    service = AgentMemoryStoreService(store, timeout=None).sync
    for number in range(3):
        service.save_memory(BOB, f"bob likes tea {number}", memory_id=f"bob-{number}")
    box = Outbox(any_engine_of(outbox), FrozenClock())
    run(box.put(Partition(ADA), [said(f"{CANARY} {BEFORE}", session=SESSION)]))
    run(box.put(Partition(ADA, "planner"), [said(f"{CANARY} {AFTER}", session=SESSION)]))


def memory(number: int) -> Put:
    text = f"{CANARY} {number}"
    value = f'{{"content": "{text}", "session_id": "{SESSION}"}}'
    place = (encode_label(ADA), "semantic")
    return Put(
        namespace=place, key=f"m{number}", value=value, document=Document.of(text), updated_at=FrozenClock().now()
    )


def talk(url: str) -> None:
    """A turn of the user's in a conversation that a checkpointer keeps."""
    saver = open_checkpointer(url)
    agent: Any = create_agent(ScriptedChatModel(turns=["yes"]), checkpointer=saver)
    agent.invoke({"messages": [("user", CANARY)]}, {"configurable": {"thread_id": thread_label(ADA, "trip")}})
    assert isinstance(saver, OnWorkers)
    saver.close()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sqlite", marks=LARGE),
        "sqlite-plain",
        "postgres",
        pytest.param("redis", marks=LARGE),
        pytest.param("file", marks=LARGE),
        pytest.param("langgraph-sqlite", marks=LARGE),
        pytest.param("langgraph-memory", marks=LARGE),
    ],
)
def test_nothing_is_left_and_nothing_comes_back_beside_other_processes(kind: str, tmp_path: Path, full: bool) -> None:
    """Writers, workers in mid-extraction and a reader with a warm index go on; then all of them start anew."""
    names = (CANARY, ADA, encode_label(ADA), SESSION)
    kept = f"sqlite:///{tmp_path / 'threads.db'}"
    talk(kept)
    with placed(kind, tmp_path) as (place, written), place.opened() as (store, outbox), ExitStack() as opened:
        backends = list(dict.fromkeys(any_engine_of(one).backend for one in (store, outbox)))
        # More than 10,000 rows of one scope are not searched in LangGraph's stores.
        fill(store, outbox, (2_000 if kind.startswith("langgraph") else 10_000) if full else 200)
        others = [digest(backend, BOB) for backend in backends]
        threads = opened.enter_context(closing(CheckpointThreads(kept)))
        beside = opened.enter_context(closing(Beside(place, tmp_path)))
        beside.start()
        assert all(beside.signs.asked.acquire(timeout=PATIENCE_S) for role in ROLES if role is work)

        began = time.monotonic()
        ledger = Ledger(tmp_path / "erasures.jsonl")
        receipt = erase(backends, ADA, ledger, threads=[threads, Gate(beside)], fully=kind == "postgres")
        took = time.monotonic() - began
        beside.signs.erased.value = time.time()
        check = partial(nothing_of, names, backends, threads)
        check("after it")
        assert receipt.left == 0, receipt
        assert receipt.places[threads.name]["threads"].found == 1
        until = time.monotonic() + (60 if full else 0.5)
        while time.monotonic() < until:
            check("while they go on")
            time.sleep(0.2)
        beside.end()
        check("after they ended")
        beside.start(writes_for_ada=False)
        time.sleep(1 if full else 0.1)
        beside.end()
        check("after they started anew")
        if kind == "postgres":
            until_nobody_sees_old_rows(str(place.store))
        backends[0].reclaim(fully=kind == "postgres")  # of writes that were refused after the erasure
        found = written()
        assert [name for name in names if name.encode() in found] == []
        assert [digest(backend, BOB) for backend in backends] == others
        assert [line for line in beside.said if not line.startswith(("kept-", "failures "))] == []
        stored = {
            one.id for one in AgentMemoryStoreService(store, timeout=None).sync.list_memories(KEPT, limit=None)[0]
        }
        assert {line for line in beside.said if line.startswith("kept-")} - stored == set()
        print(f"{kind}: {receipt.found} rows in {took:.1f} s; {len(stored)} kept of another user")


def nothing_of(names: tuple[str, ...], backends: list[Backend], threads: CheckpointThreads, when: str) -> None:
    for backend in backends:
        assert left_of(backend, *names) == [], when
        assert hits(backend, *names) == 0, when
    assert sum(content_of(path).count(name.encode()) for path in threads.files() for name in names) == 0, when


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=LARGE) for kind in ("postgres", "redis", "file"))]
)
def test_an_erasure_that_is_killed_is_completed_with_the_same_receipt(kind: str, tmp_path: Path, full: bool) -> None:
    """kill -9 before lines of all that makes an erasure, then again: one receipt, with the counts of an undisturbed."""
    with database(kind, tmp_path) as url, open_store(url, embeddings=None) as store:
        backend = store.engine.backend
        put_everywhere(store.engine, BOB, "bob drinks coffee")
        others = digest(backend, BOB)
        erase([backend], ADA, Ledger(tmp_path / "first"))  # the first one of a store also makes the key of its fences
        put_everywhere(store.engine, ADA, CANARY)
        other = Forked(erase_and_die, url, tmp_path / "whole", 0, partial(print, flush=True))
        code, (lines,) = other.end()
        assert code == 0
        (whole,) = Ledger(tmp_path / "whole").entries
        killed = 0
        for step in range(1, int(lines) + 1, 1 if full else int(lines) // 5):
            path = tmp_path / f"erasures-{step}"
            try:
                put_everywhere(store.engine, ADA, CANARY)
            except UserErased:  # on a busy machine the first write after an erasure may be refused
                put_everywhere(store.engine, ADA, CANARY)
            if (ended := Forked(erase_and_die, url, path, step, partial(print, flush=True)).end())[0] == 0:
                assert step > int(ended[1][0]) > 0, "it had fewer lines than the undisturbed one, which waited more"
                break
            assert ended[0] == -9
            killed += 1
            again = erase([backend], ADA, Ledger(path))
            assert again.left == 0, step
            assert not left_of(backend, CANARY, ADA), step
            assert hits(backend, CANARY, ADA) == 0, step
            entries = [entry for entry in Ledger(path).entries if entry["found"]]
            assert [entry["places"] for entry in entries] == [whole["places"]], step
            assert not Ledger(path).plan(ADA).exists(), "no plan is left"
        assert killed > 3
        assert digest(backend, BOB) == others
