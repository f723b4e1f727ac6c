"""Whatever others put and delete between two pages: each row that nobody touches is on exactly one of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_support import examples

from inference_core.memory.namespaces import Namespace
from inference_core.stores.backend import Backend, Cursor, PageRequest, Put, Remove, Write
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.backends.sql.sqlite import SqliteBackend

START = datetime(2026, 1, 1, tzinfo=UTC)
SCOPES: list[Namespace] = [("u", "a"), ("u", "a", "b"), ("u", "c")]
Place = tuple[Namespace, str]
Rounds = list[list[tuple[Place, int | None]]]
places = st.tuples(st.sampled_from(SCOPES), st.sampled_from([f"k{at}" for at in range(6)]))
ages = st.integers(0, 3)
changes = st.lists(st.tuples(places, st.none() | ages), max_size=6)


def write(place: Place, age: int | None) -> Write:
    namespace, key = place
    if age is None:
        return Remove(namespace=namespace, key=key)
    moment = START + timedelta(microseconds=age)
    return Put(
        namespace=namespace, key=key, value=json.dumps({"age": age}), kind=key, created_at=moment, updated_at=moment
    )


def check(backend: Backend, first: dict[Place, int], size: int, rounds: Rounds) -> None:
    backend.apply([[write(place, age) for place, age in first.items()]])
    touched = {place for some in rounds for place, _ in some}
    found: list[Place] = []
    after: Cursor | None = None
    following = iter(rounds)
    while page := backend.page(PageRequest(SCOPES, limit=size, after=after)):
        found += [(row.namespace, row.key) for row in page]
        after = Cursor.decode(Cursor.of(page[-1]).encode())
        backend.apply([[write(place, age)] for place, age in next(following, [])])
    assert sorted(place for place in found if place not in touched) == sorted(first.keys() - touched)


@examples(150)
@given(first=st.dictionaries(places, ages), size=st.integers(1, 4), rounds=st.lists(changes, max_size=5))
def test_pages_in_memory(first: dict[Place, int], size: int, rounds: Rounds) -> None:
    check(InMemoryBackend(), first, size, rounds)


@examples(40)
@given(first=st.dictionaries(places, ages), size=st.integers(1, 4), rounds=st.lists(changes, max_size=5))
def test_pages_of_a_file(
    tmp_path_factory: pytest.TempPathFactory, first: dict[Place, int], size: int, rounds: Rounds
) -> None:
    backend = SqliteBackend(tmp_path_factory.mktemp("pages") / "memory.db", durable=False)
    try:
        check(backend, first, size, rounds)
    finally:
        backend.close()
