"""The arrays of an index: slots and their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, WEST, Vector, floats, packed

from inference_core.retrieval.columns import Columns, NewSlot

NONE = float("nan")


def _slot(at: int) -> NewSlot:
    return NewSlot(
        slot=at,
        created=at / 2,
        length=at + 3,
        rank=4_294_967_295 - at,
        kind=at % 5,
        session=at - 1,
        by_assistant=at % 2 == 1,
        happened=-at,
        importance=at / 256,
    )


def _with(vectors: Mapping[int, Sequence[Vector]], slots: int = 8) -> Columns:
    columns = Columns()
    columns.extend([_slot(at) for at in range(slots)])
    columns.vectors.set({slot: packed(*rows) for slot, rows in vectors.items()})
    return columns


def _products(columns: Columns, query: Vector = EAST, slots: int = 8) -> list[float]:
    return columns.vectors.products(floats(*query), slots).tolist()


def _first(columns: Columns, *slots: int) -> list[Vector | None]:
    known, rows = columns.vectors.rows(np.array(slots, np.intp))
    return [tuple(row.tolist()) if there else None for there, row in zip(known, rows, strict=True)]


@pytest.mark.parametrize("portions", [[1], [64], [65], [3, 200], [1] * 130], ids=len)
def test_slots_keep_what_they_were_given_while_the_arrays_grow(portions: list[int]):
    columns = Columns()
    start = 0
    for size in portions:
        columns.extend([_slot(at) for at in range(start, start + size)])
        start += size
    for at in range(start):
        found = NewSlot(
            slot=at,
            created=columns.created[at],
            length=columns.lengths[at],
            rank=columns.ranks[at],
            kind=columns.kinds[at],
            session=columns.sessions[at],
            by_assistant=columns.by_assistant[at],
            happened=columns.happened[at],
            importance=columns.importance[at],
        )
        assert found == _slot(at)
    assert columns.alive.tolist() == [at < start for at in range(len(columns.alive))]


def test_no_slots_change_nothing():
    columns = Columns()
    columns.extend([])
    assert not columns.alive.any()


def test_the_end_of_a_slot_takes_its_vectors_along():
    columns = _with({0: [EAST], 1: [EAST, NORTH], 2: [NORTH]})
    assert columns.kill(1) == 4
    assert columns.alive[:4].tolist() == [True, False, True, True]
    assert _products(columns, slots=4) == pytest.approx([1, NONE, 0, NONE], nan_ok=True)


def test_the_size_counts_all_arrays():
    empty, short = Columns().nbytes, _with({}, slots=64).nbytes
    assert empty == short == 64 * (1 + 8 + 4 + 4 + 2 + 8 + 1 + 8 + 4) + 64
    assert _with({}, slots=65).nbytes == (empty - 64) * 5 // 4 + 64
    assert _with({0: [EAST]}).nbytes == short + 2 * (64 * 2 * 4)


def test_a_slot_counts_as_the_best_of_its_passages():
    columns = _with({0: [WEST, NORTH, EAST], 2: [NORTH], 3: [WEST, NORTH]})
    assert _products(columns, slots=4) == pytest.approx([1, NONE, 0, 0], nan_ok=True)
    assert _products(columns, WEST, slots=4) == pytest.approx([1, NONE, 0, 1], nan_ok=True)


def test_vectors_that_come_later():
    columns = _with({0: [EAST]}, slots=200)
    columns.vectors.set({150: packed(NORTH, EAST), 3: packed(WEST)})
    products = _products(columns, slots=200)
    assert {at: value for at, value in enumerate(products) if not np.isnan(value)} == {0: 1, 3: -1, 150: 1}


def test_slots_beyond_the_room_for_vectors_have_none():
    columns = _with({0: [EAST]}, slots=200)
    assert np.isnan(_products(columns, slots=200)[1:]).all()
    assert _first(columns, 0, 150) == [EAST, None]
    columns.vectors.forget(150)
    assert columns.vectors.count == 1


def test_many_passages_find_room():
    columns = _with({slot: [NORTH] * 39 + [EAST if slot % 2 else WEST] for slot in range(8)})
    assert _products(columns) == [float(slot % 2) for slot in range(8)]
    assert columns.vectors.count == 8 * 40


@pytest.mark.parametrize(
    "other",
    [[(1.0, 0.0, 0.0)], [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)], [(1.0,), (1.0,)]],
    ids=["one vector", "passages", "as many bytes"],
)
def test_vectors_of_another_size_than_the_first_are_left_out(other: list[Vector]):
    columns = _with({0: [EAST]})
    columns.vectors.set({1: packed(*other), 2: packed(NORTH)})
    assert _products(columns, slots=4) == pytest.approx([1, NONE, 0, NONE], nan_ok=True)
    assert (columns.vectors.size, columns.vectors.count) == (2, 2)
    assert columns.vectors.total.tolist() == [1, 1]


def test_vectors_of_as_many_bytes_are_told_apart_within_one_portion():
    columns = _with({0: [EAST], 1: [(1.0,), (1.0,)], 2: [NORTH]})
    assert _products(columns, slots=4) == pytest.approx([1, NONE, 0, NONE], nan_ok=True)


def test_a_query_of_another_size_has_no_products():
    assert np.isnan(_products(_with({0: [EAST, NORTH]}), (1.0, 0.0, 0.0))).all()
    assert np.isnan(_products(_with({}))).all()


def test_the_first_vector_of_a_slot():
    assert _first(_with({1: [NORTH, EAST], 3: [WEST]}), 3, 0, 1, 64, 1) == [WEST, None, NORTH, None, NORTH]
    assert _first(Columns(), 0, 64) == [None, None]


def test_forgetting_takes_all_passages_of_one_slot_and_no_others():
    columns = _with({0: [WEST, EAST], 1: [WEST, EAST, EAST], 2: [NORTH]})
    for _ in range(2):
        columns.vectors.forget(1)
        assert _products(columns, slots=3) == pytest.approx([1, NONE, 0], nan_ok=True)
        assert (columns.vectors.count, columns.vectors.total.tolist()) == (3, [0, 1])
    columns.vectors.set({1: packed(NORTH, WEST)})
    assert _products(columns, slots=3) == [1, 0, 0]
    assert (columns.vectors.count, columns.vectors.total.tolist()) == (5, [-1, 2])


def test_the_sum_of_all_vectors_is_exact_in_any_order():
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(60, 3, 16))
    rows = [list(map(tuple, one / np.linalg.norm(one, axis=1, keepdims=True))) for one in drawn]
    kept = {slot: rows[slot][: 1 + slot % 3] for slot in range(30)}
    grown = _with({slot: rows[slot] for slot in range(30, 60)}, slots=60)
    for slot in reversed(range(30)):
        grown.vectors.set({slot: packed(*kept[slot])})
    for slot in range(30, 60):
        grown.vectors.forget(slot)
    afresh = _with(kept, slots=30)
    assert grown.vectors.total.tolist() == afresh.vectors.total.tolist()
    assert grown.vectors.count == afresh.vectors.count == 60
