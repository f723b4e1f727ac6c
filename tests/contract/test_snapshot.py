"""A snapshot gives the same from the indexes as from the database, whatever was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from inference_core.effects import run
from inference_core.memory.namespaces import Namespace
from inference_core.memory.text import encode_json
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import Backend, Expiry, Key, PageRequest, Put, Remove, Row
from inference_core.stores.engine import StoreEngine
from inference_core.stores.factory import open_backend
from inference_core.stores.indexing.indexes import IndexCache, Snapshot
from inference_core.stores.indexing.search import QuestionVectors, Search

FACTS: Namespace = ("ada", "semantic")
RULES: Namespace = ("ada", "procedural")
EMPTY: Namespace = ("ada", "episodic")
OTHER: Namespace = ("eve", "semantic")
SCOPES = [FACTS, RULES, EMPTY]
NOW = datetime.now(UTC).replace(microsecond=0)
PATIENT, IMPATIENT = 1e9, -1.0


def written(
    key: str,
    text: str | None = "tea",
    *,
    namespace: Namespace = FACTS,
    at: float = 0,
    kind: str = "facts",
    **value: Any,
) -> Put:
    """A row that was created ``at`` seconds before now; without a ``text`` no query finds it."""
    moment = NOW - timedelta(seconds=at)
    situation = DocumentMetadata(importance=1.0 if value.get("pinned") else 0.5)
    return Put(
        namespace=namespace,
        key=key,
        value=encode_json({"content": text, **value}, what="value"),
        document=None if text is None else Document.of(text, situation),
        kind=kind,
        created_at=moment,
        updated_at=moment,
    )


@pytest.fixture
def backend(database_url: str) -> Iterator[Backend]:
    with closing(open_backend(database_url)) as made:
        yield made


@pytest.fixture
def indexes(backend: Backend) -> IndexCache:
    return _indexes(backend)


def _indexes(backend: Backend) -> IndexCache:
    return IndexCache(backend, "", 10**8, wake=lambda _: None)


def snapshot(indexes: IndexCache, namespaces: Sequence[Namespace] = SCOPES, wait_seconds: float = PATIENT) -> Snapshot:
    return Snapshot(indexes._backend, indexes, namespaces, QuestionVectors(), wait_seconds)


def kinds_of(at: Callable[[int], float]) -> list[Put]:
    """Rows of two scopes and three kinds."""
    places = list(product((FACTS, RULES), ("facts", "goals", "skill"), range(3)))
    return [
        written(f"k{number * 7 % 18:02}", namespace=namespace, kind=kind, at=at(number), number=number)
        for number, (namespace, kind, _) in enumerate(places)
    ]


CHANGES: list[list[Put | Remove]] = [
    [written("k00", None, at=3)],
    [Remove(namespace=FACTS, key="k07"), Remove(namespace=RULES, key="k09")],
    [written("k07", "tea again", at=1, kind="goals")],
    [written("k14", "tea", at=5, number=99)],
    [written("hidden", None, at=2), written("hidden", None, namespace=RULES, at=2.5, kind="goals")],
    [written("k00", "tea is back", at=3)],
]


def told(rows: Sequence[Row | None]) -> list[Any]:
    return [row and (row.namespace, row.key, row.value) for row in rows]


@pytest.mark.parametrize("step", [1, 100, 4], ids=["unequal", "equal", "some equal"])
def test_the_newest_are_those_of_the_database(backend: Backend, indexes: IndexCache, step: int):
    """Rows without a text too; by kind, of equal age by key, whatever was removed and put again since."""
    backend.apply([kinds_of(lambda n: n // step), [written("k1", namespace=OTHER)]])
    for change in [[], *CHANGES]:
        backend.apply([change])
        cold, warm = snapshot(_indexes(backend), wait_seconds=IMPATIENT), snapshot(indexes)
        assert (cold._is_cold, warm._is_cold) == (True, False)
        for namespaces, kinds, limit in product(
            ([FACTS], SCOPES), (None, frozenset({"facts"}), frozenset({"facts", "goals"})), (1, 4, 99)
        ):
            expected = told(backend.page(PageRequest(namespaces, kinds=kinds, limit=limit)))
            assert told(cold.newest(namespaces, kinds=kinds, limit=limit)) == expected
            assert told(warm.newest(namespaces, kinds=kinds, limit=limit)) == expected


@pytest.mark.parametrize("wait_seconds", [PATIENT, IMPATIENT], ids=["warm", "cold"])
def test_what_is_rejected_makes_room_for_older_rows(backend: Backend, indexes: IndexCache, wait_seconds: float):
    backend.apply([[written(f"k{at}", at=at, number=at) for at in range(30)]])
    found = snapshot(indexes, wait_seconds=wait_seconds).newest(
        SCOPES, limit=3, reject=lambda row: "odd" if row.value["number"] < 20 or row.value["number"] % 2 else None
    )
    assert [row.key for row in found] == ["k20", "k22", "k24"]


@pytest.mark.parametrize("wait_seconds", [PATIENT, IMPATIENT], ids=["warm", "cold"])
def test_pinned_rows_are_those_that_say_so_the_newest_first(backend: Backend, indexes: IndexCache, wait_seconds: float):
    important = written("important", at=2)
    assert important.document is not None
    important = replace(important, document=important.document._replace(situation=DocumentMetadata(importance=1.0)))
    rows = [
        *(written(f"p{at}", namespace=(FACTS, RULES)[at % 2], at=at // 2, pinned=True) for at in range(6)),
        *(important, written("other", namespace=OTHER, pinned=True), written("plain", at=1)),
        *(written("gone", pinned=True), written("loose", pinned=True)),
    ]
    backend.apply([rows, [Remove(namespace=FACTS, key="gone"), written("loose", pinned=False)]])
    one = snapshot(indexes, wait_seconds=wait_seconds)
    assert [row.key for row in one.pinned(SCOPES)] == [f"p{at}" for at in range(6)]
    assert [row.key for row in one.pinned([RULES])] == ["p1", "p3", "p5"]
    assert one.pinned([EMPTY]) == []


@pytest.mark.parametrize("wait_seconds", [PATIENT, IMPATIENT], ids=["warm", "cold"])
def test_rows_are_got_by_their_keys(backend: Backend, indexes: IndexCache, wait_seconds: float):
    backend.apply([kinds_of(float), *CHANGES])
    keys: list[Key] = [(scope, f"k{number:02}") for scope in SCOPES for number in range(19)]
    keys += [(FACTS, "hidden"), (RULES, "hidden"), (EMPTY, "hidden"), keys[3], keys[3]]
    for _ in range(2):
        assert told(snapshot(indexes, wait_seconds=wait_seconds).get(keys)) == told(backend.get(keys))


def test_rows_whose_time_has_come_are_not_there(backend: Backend, indexes: IndexCache):
    """Nor are they kept: their end moves without a write."""
    ends = {"gone": NOW - timedelta(hours=1), "stays": NOW + timedelta(hours=1)}
    rows = [
        replace(written(key, pinned=True), expiry=Expiry(end, timedelta(hours=2))) if end else written(key, pinned=True)
        for key, end in (ends | {"lasting": None}).items()
    ]
    backend.apply([rows])
    for _ in range(2):
        one = snapshot(indexes)
        assert {row.key for row in one.newest(SCOPES, limit=9)} == {"stays", "lasting"}
        assert {row.key for row in one.pinned(SCOPES)} == {"stays", "lasting"}
        assert told(one.get([(FACTS, "gone")])) == [None]
        (found,) = one.search(Search(groups=[SCOPES], text="tea", limit=9)).groups
        assert {hit.row.key for hit in found} == {"stays", "lasting"}
    assert [key for _, key in indexes.rows._rows] == ["lasting"]


def test_a_row_is_that_of_its_last_write_even_if_its_text_stayed(backend: Backend, indexes: IndexCache):
    """A row was kept by the slot of its text, which stays where only the rest of a value changes."""
    backend.apply([[written("a", "tea", topic="old"), written("b", "tea")]])
    for topic in ("old", "new", "newer"):
        backend.apply([[written("a", "tea", topic=topic)]])
        (view,) = indexes.views([FACTS])
        assert view.slots == 2
        for _ in range(2):
            one = snapshot(indexes)
            (found,) = one.search(Search(groups=[[FACTS]], text="tea", limit=9)).groups
            assert {hit.row.value.get("topic") for hit in found if hit.row.key == "a"} == {topic}
            assert [row and row.value["topic"] for row in one.get([(FACTS, "a")])] == [topic]


def test_a_row_that_was_removed_after_the_snapshot_is_left_out(backend: Backend, indexes: IndexCache):
    """What the snapshot has not read yet is as it is when it is read."""
    backend.apply([[written("a", "tea", topic="old"), written("b", "tea")]])
    one = snapshot(indexes)
    backend.apply([[Remove(namespace=FACTS, key="b"), written("a", "tea", topic="new")]])
    assert told(one.get([(FACTS, "a"), (FACTS, "b")])) == told(backend.get([(FACTS, "a"), (FACTS, "b")]))
    assert [row.key for row in one.newest([FACTS], limit=9)] == ["a"]
    assert [row.value["topic"] for row in snapshot(indexes).newest([FACTS], limit=9)] == ["new"]


@pytest.mark.parametrize("wait_seconds", [PATIENT, IMPATIENT], ids=["warm", "cold"])
def test_a_blank_text_gives_the_newest_of_each_group_to_who_wants_some(
    backend: Backend, indexes: IndexCache, wait_seconds: float
):
    backend.apply([kinds_of(float)])
    one = snapshot(indexes, wait_seconds=wait_seconds)
    search = Search(groups=[[FACTS], [RULES], []], text=" ", limit=2, backfill=True)
    found = one.search(search).groups
    assert [[hit.row.key for hit in group] for group in found] == [
        [row.key for row in backend.page(PageRequest(list(group), limit=2))] for group in search.groups
    ]
    assert one.search(replace(search, backfill=False)).groups == [[], [], []]


def test_a_snapshot_of_nothing(indexes: IndexCache):
    one = snapshot(indexes, [])
    assert (one.newest([], limit=3), one.pinned([]), one.get([])) == ([], [], [])
    assert one.search(Search(groups=[[]], text="tea", limit=3, backfill=True)).groups == [[]]


@pytest.mark.parametrize("wait_seconds", [PATIENT, IMPATIENT], ids=["warm", "cold"])
@pytest.mark.parametrize("text", ["tea", " "], ids=["text", "blank"])
def test_rows_of_several_users_come_once_each(backend: Backend, wait_seconds: float, text: str):
    """Each user's snapshot was asked for the scopes of all users."""
    backend.apply([[written(f"k{at}", at=at) for at in range(3)], [written("other", namespace=OTHER, at=9)]])
    engine = StoreEngine(backend)
    search = Search(groups=[[FACTS, OTHER]], text=text, limit=9, backfill=True, wait_seconds=wait_seconds)
    (found,) = run(engine.search(search)).groups
    assert sorted(hit.row.key for hit in found) == ["k0", "k1", "k2", "other"]
    engine.close()
