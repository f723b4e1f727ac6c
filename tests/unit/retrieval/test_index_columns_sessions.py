"""The order of turns within sessions, and what surrounds a turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from retrieval_support import floats

from inference_core.retrieval.index import SESSIONLESS, SessionOrder

ALONE = SESSIONLESS


def _order(
    sessions: Sequence[int], created: Sequence[float] | None = None, ranks: Sequence[int] | None = None
) -> SessionOrder:
    size = len(sessions)
    return SessionOrder.of(
        np.arange(size),
        np.array(sessions, np.int32),
        np.array(range(size) if created is None else created, np.float64),
        np.array(range(size) if ranks is None else ranks, np.uint32),
    )


def _sessions(order: SessionOrder) -> list[list[int]]:
    """The slots of each session, in their order."""
    ends = [*order.starts[1:], len(order.slots)]
    found = [order.slots[start:end].tolist() for start, end in zip(order.starts, ends, strict=True)]
    assert order.session.tolist() == [at for at, slots in enumerate(found) for _ in slots]
    return found


def test_turns_of_a_session_stand_together_the_oldest_first():
    order = _order([1, 0, 1, 0, 1], created=[5, 2, 3, 1, 4])
    assert sorted(_sessions(order)) == [[2, 4, 0], [3, 1]]


def test_turns_of_the_same_instant_are_ordered_by_rank():
    assert _sessions(_order([7, 7, 7, 7], created=[1, 1, 1, 0], ranks=[3, 1, 2, 9])) == [[3, 1, 2, 0]]


def test_texts_without_a_session_stand_alone():
    order = _order([ALONE, 0, ALONE, ALONE, 0, 1])
    assert sorted(_sessions(order)) == [[0], [1, 4], [2], [3], [5]]
    assert {slot for slot, alone in zip(order.slots.tolist(), order.alone, strict=True) if alone} == {0, 2, 3, 5}
    assert not len(_order([]).alone)


def test_only_the_slots_that_are_given_have_a_place():
    order = SessionOrder.of(
        np.array([2, 5, 9]), np.array([0, ALONE, 0], np.int32), np.array([2.0, 0, 1]), np.array([0, 0, 0], np.uint32)
    )
    assert sorted(_sessions(order)) == [[5], [9, 2]]


def test_orders_of_several_indexes_follow_each_other():
    orders = [_order([0, 0, ALONE]), _order([]), _order([0, 0])]
    joined = SessionOrder.joined(orders, [10, 4, 2])
    assert sorted(_sessions(joined)) == [[0, 1], [2], [14, 15]]
    assert SessionOrder.joined(orders[:1], [10]) is orders[0]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (1, [0, 1, 2, 0, 8]),
        (2, [0, 0, 1, 0, 0]),
        (3, [0, 0, 0, 0, 0]),
        (-1, [2, 4, 0, 16, 0]),
        (-2, [4, 0, 0, 0, 0]),
        (5, [0, 0, 0, 0, 0]),
        (-9, [0, 0, 0, 0, 0]),
        (0, [0, 0, 0, 0, 0]),
    ],
)
def test_values_of_turns_near_by_stay_within_the_session(by: int, expected: list[float]):
    values = floats(1, 2, 4, 8, 16)
    shifted = _order([0, 0, 0, 1, 1]).shifted(values, by)
    assert shifted.tolist() == expected
    assert values.tolist() == [1, 2, 4, 8, 16]


def test_nothing_is_near_by_without_a_session():
    order = _order([ALONE] * 3)
    assert [order.shifted(floats(1, 2, 4), by).tolist() for by in (-1, 1)] == [[0, 0, 0]] * 2
    assert order.best(floats(3, -6, 9)).tolist() == [1, -2, 3]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([6], 2),
        ([6, 3], 3),
        ([1, 2, 3, 6], (6 + 3 + 2) / 3),
        ([6, 6, 6, 3], 3),
        ([6, 6, 3, 3, 1, 1, 0], (6 + 3 + 1) / 3),
        ([-3, -6, -9, -12], -6),
        ([0, 0], 0),
    ],
    ids=["one", "two", "four", "three equal", "ties everywhere", "negative", "zeros"],
)
def test_the_best_of_a_session_are_three_different_values(values: list[float], expected: float):
    given = floats(*values, 100, 200)
    best = _order([*[0] * len(values), 1, 1]).best(given)
    assert best[:-2].tolist() == pytest.approx([expected] * len(values))
    assert best[-2:].tolist() == [100, 100]
    assert given.tolist() == [*values, 100, 200]


def test_without_turns_there_is_nothing():
    order = _order([])
    assert (order.best(floats()).tolist(), order.shifted(floats(), 1).tolist()) == ([], [])
