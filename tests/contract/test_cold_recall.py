"""Recall while an index is still missing: a scan answers by words, and the index follows in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import HashingEmbeddings

from inference_core.effects import run
from inference_core.embeddings.embedder import Embedder
from inference_core.errors import StoreUnavailable
from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Change, Document
from inference_core.stores.backend import Backend, Put, Remove
from inference_core.stores.backends.sql.postgres import PostgresBackend
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import open_backend
from inference_core.stores.indexing.indexes import IndexCache
from inference_core.stores.indexing.search import RecallMode, Search, SearchResult

USER: Namespace = ("u", "semantic")
OTHER: Namespace = ("v", "semantic")
START = datetime(2026, 1, 1, tzinfo=UTC)
MANY = 2_100
IMPATIENT = 0.03
on_one_database = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what an index does, whichever database its rows are from."""


def put(number: int, text: str, namespace: Namespace = USER, kind: str = "facts") -> Put:
    value = f'{{"content": "{text}"}}'
    at = START + timedelta(minutes=number)
    return Put(namespace=namespace, key=f"k{number}", value=value, document=Document.of(text), kind=kind, updated_at=at)


@pytest.fixture
def backend(database_url: str) -> Iterator[Backend]:
    with closing(open_backend(database_url)) as made:
        yield made


@pytest.fixture
def full(backend: Backend) -> Backend:
    """A user with so many memories that an index takes a while, and another user's."""
    texts = [f"note {number} of harbour {number % 7}" for number in range(MANY)]
    texts[7] = "the spare key hangs behind the barometer"
    backend.apply([[*(put(number, text) for number, text in enumerate(texts))]])
    backend.apply([[put(1, "the key of another user", OTHER)]])
    return backend


def asked(engine: StoreEngine, text: str = "where is the spare key?", **options: object) -> SearchResult:
    return run(
        engine.search(
            replace(Search(groups=[[USER], [("u", "other")]], text=text, limit=3, wait_seconds=IMPATIENT), **options)
        )
    )


def _ignored(seconds: float) -> None:
    """Wakes nobody, as the test itself follows."""


def keys(found: list[Change]) -> list[str]:
    return [change.key for change in found]


def test_a_scan_finds_what_holds_the_most_words(backend: Backend):
    backend.apply([[put(1, "green tea"), put(2, "black tea"), put(3, "coffee"), put(4, "tea, green and hot")]])
    backend.apply([[put(5, "green tea", OTHER), Remove(namespace=USER, key="k2")]])
    assert keys(list(backend.holding(USER, ["green", "tea"], 9))) == ["k4", "k1"]
    assert keys(list(backend.holding(USER, ["green", "tea"], 1))) == ["k4"]
    assert keys(list(backend.holding(USER, [("coffe", "tee"), "hot"], 9))) == ["k4", "k3"]
    assert list(backend.holding(USER, [], 9)) == []
    assert list(backend.holding(USER, ["gree", "te", "%", "'"], 9)) == []
    (found,) = backend.holding(USER, ["coffe"], 9)
    stored = next(change for change in backend.changes(USER, 0) if change.key == "k3")
    assert found == stored._replace(epoch=found.epoch)


def test_a_scan_looks_for_a_bounded_number_of_words(backend: Backend):
    backend.apply([[put(1, "green tea")]])
    words = [f"w{number}" for number in range(5_000)]
    assert keys(list(backend.holding(USER, ["tea", *words], 9))) == ["k1"]
    assert list(backend.holding(USER, [*words, "tea"], 9)) == []


@pytest.mark.parametrize("embeddings", [None, HashingEmbeddings()])
def test_the_first_recall_scans_and_a_later_one_has_the_index(full: Backend, embeddings: HashingEmbeddings | None):
    engine = StoreEngine(full, embeddings and Embedder(embeddings, "hashing"))
    first = asked(engine)
    assert [found.row.key for found in first.groups[0]] == ["k7"]
    assert (first.groups[1], first.mode, first.reason) == ([], RecallMode.LEXICAL, "the index is being built")
    deadline = time.monotonic() + 30
    mode = RecallMode.LEXICAL if embeddings is None else RecallMode.HYBRID
    # On a busy machine, an impatient call may end before the model has been asked.
    while (
        (later := asked(engine)).reason == first.reason or later.mode is not mode or not later.groups[0]
    ) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert later.groups[0][0].row.key == "k7"
    assert later.mode is mode
    engine.close()


def test_a_scan_is_filled_up_with_the_newest_of_a_kind(full: Backend):
    full.apply([[put(MANY, "a goal", kind="goals"), put(MANY + 1, "another goal", kind="goals")]])
    engine = StoreEngine(full)
    found = asked(engine, backfill=True, groups=[[USER]]).groups[0]
    assert [one.row.key for one in found] == ["k7", f"k{MANY + 1}", f"k{MANY}"]
    engine.close()


@on_one_database
def test_the_fill_keeps_to_the_kinds(full: Backend):
    full.apply([[put(MANY, "a goal", kind="goals"), put(MANY + 1, "a spare key", kind="goals")]])
    engine = StoreEngine(full)
    search: dict[str, Any] = {"backfill": True, "groups": [[USER]], "kinds": frozenset({"goals"})}
    for _ in range(2):
        found = asked(engine, **search).groups[0]
        assert [one.row.key for one in found] == [f"k{MANY + 1}", f"k{MANY}"]
        engine._indexes.views([USER])
    engine.close()


@on_one_database
def test_a_user_whose_index_has_no_place_is_told_so(full: Backend):
    """Each of its recalls built the index, for seconds, and dropped it."""
    full.apply([[*(put(number, f"note {number}", ("w", "semantic")) for number in range(MANY))]])
    engine = StoreEngine(full, index_bytes=1)
    engine._indexes.views([("w", "semantic")])
    engine._indexes.views([USER])
    found = asked(engine)
    assert [one.row.key for one in found.groups[0]] == ["k7"]
    assert (found.mode, found.reason) == (RecallMode.LEXICAL, "the index is too large for AGENT_MEMORY_INDEX_MB")
    assert not engine._indexes.needs_build([OTHER], IMPATIENT)
    assert not engine._indexes.needs_build([("w", "semantic")], IMPATIENT)
    assert not engine._indexes._building
    engine.close()


@on_one_database
def test_a_build_that_fails_is_tried_again(full: Backend, monkeypatch: pytest.MonkeyPatch):
    cache = IndexCache(full, "", max_bytes=10**9, wake=_ignored)
    cache.build([USER])
    assert cache._building

    def fails(*_: object) -> list[int]:
        raise StoreUnavailable("Away")

    with monkeypatch.context() as patched:
        patched.setattr(full, "heads", fails)
        with pytest.raises(StoreUnavailable):
            cache.follow()
    assert not cache._building
    assert cache.needs_build([USER], IMPATIENT)
    cache.build([USER])
    assert cache.follow()
    assert not cache.needs_build([USER], IMPATIENT)
    assert not cache.follow()


@on_one_database
def test_an_index_is_built_once_at_a_time(full: Backend):
    woken: list[float] = []
    cache = IndexCache(full, "", max_bytes=10**9, wake=woken.append)
    cache.build([USER])
    cache.build([USER, ("u", "procedural")])
    assert woken == [0.0]
    assert (cache.follow(), cache.follow()) == (True, False)
    cache.build([USER])
    assert woken == [0.0, 0.0]


@on_one_database
def test_who_is_patient_waits_for_the_index(full: Backend):
    engine = StoreEngine(full, Embedder(HashingEmbeddings(), "hashing"))
    found = asked(engine, wait_seconds=2)
    assert found.mode is RecallMode.HYBRID
    assert found.groups[0][0].row.key == "k7"
    engine.close()


@on_one_database
def test_patience_counts_only_what_is_missing(full: Backend):
    cache = IndexCache(full, "", max_bytes=10**9, wake=_ignored)
    assert not cache.needs_build([USER, OTHER], 10)
    assert not cache.needs_build([OTHER], IMPATIENT)
    cache.views([USER])
    assert not cache.needs_build([USER, OTHER], IMPATIENT)


@pytest.mark.parametrize("embeddings", [None, HashingEmbeddings()])
def test_while_an_index_is_built_every_recall_is_answered(
    full: Backend, embeddings: HashingEmbeddings | None, monkeypatch: pytest.MonkeyPatch
):
    """The building waits until the recalls are over: none of them waits for it, fails, or finds less for it."""
    may_build, changes, caller = threading.Event(), full.changes, threading.current_thread()

    def held_up(namespace: Namespace, since: int, **options: bool) -> Iterator[Change]:
        assert threading.current_thread() is caller or may_build.wait(60)  # some databases scan by this, too
        yield from changes(namespace, since, **options)

    with monkeypatch.context() as patched:
        patched.setattr(full, "changes", held_up)
        engine = StoreEngine(full, embeddings and Embedder(embeddings, "hashing"))
        try:
            for _ in range(20):
                found = asked(engine, backfill=True, groups=[[USER]])
                assert (found.mode, found.reason) == (RecallMode.LEXICAL, "the index is being built")
                assert [one.row.key for one in found.groups[0]] == ["k7", f"k{MANY - 1}", f"k{MANY - 2}"]
        finally:
            may_build.set()
        assert asked(engine, wait_seconds=60).reason != "the index is being built"
        engine.close()


@pytest.mark.parametrize("database_url", ["postgres", "postgres-debian"], indirect=True)
def test_regression_postgres_sorts_no_scope_for_a_portion_of_its_changes(
    full: Backend, monkeypatch: pytest.MonkeyPatch
):
    """Without statistics it sorted all changes for each portion: building an index took quadratic time."""
    plans: list[str] = []
    assert isinstance(full, PostgresBackend)
    select = full._select

    def explained(query: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        plans.append("\n".join(line for (line,) in select(f"EXPLAIN {query}", given)))
        return select(query, given)

    monkeypatch.setattr(full, "_select", explained)
    assert len(list(full.changes(USER, 0))) == MANY
    assert len(plans) == 2
    assert "memory_rows_by_seq" in plans[0]
    assert "Sort" not in plans[0]
