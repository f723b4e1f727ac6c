"""Pages by cursor and counts, on every database: nothing is missing, nothing comes twice."""

from __future__ import annotations

import random
import sqlite3
import string
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from databases import CLUSTER, KINDS, database
from langgraph.store.base import BaseStore
from test_backend_contract import FOREIGN, OWN, START, USER, done, keys, make, put

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import InvalidInput
from inference_core.memory.namespaces import Namespace
from inference_core.services.agent_memory_service import list_user_memories
from inference_core.stores import engine
from inference_core.stores.backend import Backend, Cursor, Expiry, PageRequest, Remove, Row, Tally
from inference_core.stores.backends.sql.sqlite import SqliteBackend
from inference_core.testing import FrozenClock

OTHER: Namespace = ("u", "semantic", "x")
CURSORS = ("", "x", "bm9wZQ", "WzEsMl0", "W10", "WyJhIiwiYiIsImMiXQ", "!" * 20_000, "\ud800", None, 7)


@pytest.fixture(params=(*OWN, *FOREIGN))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield from make(request.param, tmp_path)


@pytest.fixture(params=OWN)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    yield from make(request.param, tmp_path)


def pages(backend: Backend, namespaces: list[Namespace], size: int, kinds: frozenset[str] | None = None) -> list[Row]:
    found: list[Row] = []
    after: Cursor | None = None
    while page := backend.page(PageRequest(namespaces, kinds=kinds, limit=size, after=after)):
        assert len(page) <= size
        found += page
        after = Cursor.decode(Cursor.of(page[-1]).encode())
    return found


@pytest.mark.parametrize("size", [1, 3, 50])
def test_pages_by_cursor_are_the_list(backend: Backend, size: int):
    entries = [(f"k{number % 7}", number % 4, namespace) for number in range(28) for namespace in (USER, OTHER)]
    writes = {
        (namespace, key): put(key, namespace=namespace, at=at, kind="abc"[at % 3]) for key, at, namespace in entries
    }
    done(backend, *writes.values())
    whole = backend.page(PageRequest([OTHER, USER], limit=99))
    assert len(whole) == 14
    order = [(-row.created_at.timestamp(), row.key, row.namespace != OTHER) for row in whole]
    assert order == sorted(order)  # the packed namespace of the longer one comes first
    assert pages(backend, [USER, OTHER], size) == whole
    some = [row for row in whole if row.value["memory_type"] in "ab"]
    assert pages(backend, [USER, OTHER], size, frozenset("ab")) == some
    assert pages(backend, [USER, OTHER], size, frozenset("z")) == pages(backend, [("x",)], size) == []


def test_a_page_begins_after_a_row_that_is_gone(backend: Backend):
    done(backend, *(put(f"k{at}", at=at) for at in range(6)))
    last = Cursor.of(backend.page(PageRequest([USER], limit=3))[-1])
    done(backend, Remove(namespace=USER, key="k3"), Remove(namespace=USER, key="k1"), put("new", at=9))
    assert keys(backend.page(PageRequest([USER], limit=9, after=last))) == ["k2", "k0"]


def test_a_row_that_is_over_is_on_no_page_and_in_no_count(own: Backend):
    over = Expiry(START, timedelta(days=1))
    entries = [put(f"k{at}", at=at, kind="facts") for at in range(6)]
    done(own, *(replace(one, expiry=over if at % 2 else None) for at, one in enumerate(entries)))
    assert keys(pages(own, [USER], 1)) == keys(pages(own, [USER], 2, frozenset({"facts"}))) == ["k4", "k2", "k0"]
    assert (own.count([USER]), own.count([USER], kinds=frozenset({"facts"}))) == (3, 3)
    assert own.tally([USER]) == [Tally(USER, "facts", 3, START)]


def test_a_count_of_kinds(backend: Backend):
    done(backend, *(put(f"k{at}", at=at, kind="abc"[at % 3], namespace=OTHER if at % 2 else USER) for at in range(10)))
    assert [backend.count([USER, OTHER], kinds=frozenset(kinds)) for kinds in ("a", "bc", "z", "")] == [4, 6, 0, 0]
    assert backend.count([USER], kinds=frozenset("ab")) == 3


def test_a_tally_counts_by_namespace_and_kind(backend: Backend):
    before_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    done(backend, *(put(f"k{at}", kind="facts", created_at=moment) for at, moment in enumerate((START, before_1970))))
    done(
        backend,
        put("k", namespace=OTHER, kind="goals", created_at=START),
        put("gone", namespace=OTHER),
        put("k", kind=""),
    )
    done(backend, Remove(namespace=OTHER, key="gone"))
    wanted = [(USER, "", 1, START), (USER, "facts", 2, before_1970), (OTHER, "goals", 1, START)]
    assert sorted(backend.tally([USER, OTHER, ("x",)])) == wanted


def test_pages_and_counts_of_more_scopes_than_are_merged(tmp_path: Path):
    namespaces: list[Namespace] = [(f"u{number:04}", "semantic") for number in range(1_100)]
    with closing(SqliteBackend(tmp_path / "memory.db")) as backend:
        done(
            backend,
            *(
                put(f"k{at % 5}", namespace=namespace, at=at % 3, kind="facts")
                for at, namespace in enumerate(namespaces)
            ),
        )
        found = pages(backend, namespaces, 400)
        assert sorted(row.namespace for row in found) == namespaces
        assert found == pages(backend, namespaces, 1_000, frozenset({"facts"}))
        assert found[:10] == pages(backend, [row.namespace for row in found[:10]], 3)
        assert backend.count(namespaces) == sum(one.rows for one in backend.tally(namespaces)) == len(namespaces)


@pytest.mark.parametrize("text", CURSORS)
def test_what_is_no_cursor_is_refused(text: Any):
    with pytest.raises(InvalidInput, match="Not the cursor"):
        Cursor.decode(text)


INDEXES = ("memory_rows_by_age (scope=?", "memory_rows_by_kind (scope=?", "memory_rows_by_expiry (expires<?")
BEHIND = Cursor(START, "k", USER)
QUESTIONS: dict[str, Callable[[Backend], object]] = {
    "page": lambda backend: backend.page(PageRequest([USER, OTHER], limit=5)),
    "page after": lambda backend: backend.page(PageRequest([USER, OTHER], limit=5, after=BEHIND)),
    "page of kinds": lambda backend: backend.page(
        PageRequest([USER], kinds=frozenset("ab"), limit=5, after=Cursor(START, "k", USER))
    ),
    "count": lambda backend: backend.count([USER, OTHER]),
    "count of kinds": lambda backend: backend.count([USER], kinds=frozenset("ab")),
    "tally": lambda backend: backend.tally([USER]),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_sqlite_reads_a_range_of_an_index(tmp_path: Path, name: str):
    """Regression: a page of three scopes sorted every row of the user, as SQLite took another index for ``IN``."""
    said: list[str] = []
    with closing(SqliteBackend(tmp_path / "memory.db")) as backend:
        done(backend, put("k", kind="a"), put("k", namespace=OTHER))
        with backend.connections.reader() as connection:
            connection.set_trace_callback(said.append)  # it is the one that is used next, too
        QUESTIONS[name](backend)
        connection.set_trace_callback(None)
        for statement in [one for one in said if one.startswith("SELECT")]:
            assert statement.count("?") == 0
            plan = [str(step[3]) for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            indexes = (
                "memory_rows_by_age (scope=?",
                "memory_rows_by_kind (scope=?",
                "memory_rows_by_expiry (expires<?",
            )
            assert any(index in step for index in indexes for step in plan)
            assert not any("SCAN" in step or "ORDER BY" in step for step in plan)


@pytest.mark.parametrize("scopes", [1, 100])
def test_a_page_is_full_beside_rows_that_cannot_be_read(tmp_path: Path, scopes: int):
    """A page that is not full is the last one for whoever reads on, so what is left out must not shorten it."""
    path = tmp_path / "memory.db"
    with closing(SqliteBackend(path)) as backend:
        done(backend, *(put(f"k{at}", at=at, namespace=("u", str(at % scopes))) for at in range(100)))
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE memory_rows SET value = '{' WHERE CAST(substr(key, 2) AS INTEGER) % 10 > 1")
        every: list[Namespace] = [("u", str(at)) for at in range(scopes)]
        assert len(backend.page(PageRequest(every, limit=5))) == 5
        assert len(pages(backend, every, 5)) == 20


@pytest.mark.parametrize("kind", [*KINDS, CLUSTER])
def test_a_filtered_search_beside_writers_finds_each_item_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Regression: a search with a filter went on at an offset, which moved whenever others put or deleted."""
    monkeypatch.setattr(engine, "_FIRST_PAGE", 50)
    stop = threading.Event()
    with database(kind, tmp_path) as url, open_store(url, embeddings=None) as store:
        for number in range(130):
            store.put(("n",), f"old{number:04}", {"t": "x"})

        def write() -> None:
            for number in count():
                if stop.is_set():
                    return
                store.put(("n",), f"new{number}", {"t": "y"})
                if number % 3:
                    store.delete(("n",), f"new{number - 1}")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(8):
                found = [item.key for item in store.search(("n",), filter={"t": "x"}, limit=2_000)]
                assert len(found) == len(set(found)) == 130
        finally:
            stop.set()
            writer.join()


@pytest.mark.parametrize("narrowed", [{}, {"search": "tea"}, {"memory_type": "preferences"}])
def test_a_list_goes_on_where_it_ended(any_store: BaseStore, narrowed: dict[str, Any]):
    """Regression: pages of a list shifted when something was saved or deleted between them."""
    clock = FrozenClock(START)
    service = AgentMemoryStoreService(any_store, clock=clock).sync
    saved: list[str] = []
    for number in range(7):
        clock.advance(timedelta(seconds=number % 2))
        saved.append(service.save_memory("ada", f"tea {number}", "preferences"))
    service.save_memory("ada", "coffee", "facts")
    found: list[str] = []
    after: str | None = None
    for _ in range(9):
        page, total = service.list_memories("ada", limit=2, after=after, **narrowed)
        entries, same = list_user_memories(any_store, "ada", limit=2, after=after, **narrowed)
        assert [one["key"] for one in entries] == [one.id for one in page]
        assert (entries.next_cursor, same) == (page.next_cursor, total)
        assert total == service.list_memories("ada", limit=1, **narrowed)[1]
        found += [one.id for one in page]
        after = page.next_cursor
        if after is None:
            break
        service.save_memory("ada", f"tea at {len(found)}", "preferences", memory_id=f"new{len(found)}")
        service.delete_memory("ada", found[-1])
    assert sorted(one for one in found if one in saved) == sorted(saved)
    assert len(found) == len(set(found))
    with pytest.raises(InvalidInput, match="not at both"):
        service.list_memories("ada", after=after or Cursor(START, "k", USER).encode(), offset=1)


def test_a_cursor_of_another_user_shows_nothing_of_theirs(any_store: BaseStore):
    service = AgentMemoryStoreService(any_store).sync
    for user in ("ada", "bob"):
        for number in range(3):
            service.save_memory(user, f"{user} {number}", "facts")
    theirs, _ = service.list_memories("ada", limit=1)
    page, total = service.list_memories("bob", after=theirs.next_cursor)
    assert (total, [one.content for one in page if "ada" in one.content]) == (3, [])


def test_a_long_text_under_the_name_of_the_type(any_store: BaseStore):
    """Regression: PostgreSQL refused a value whose ``memory_type`` was too long for an index."""
    text = "".join(random.Random(1).choices(string.ascii_letters, k=20_000))
    any_store.put(("ada", "notes"), "k", {"memory_type": text})
    assert [item.value["memory_type"] for item in any_store.search(("ada", "notes"))] == [text]
