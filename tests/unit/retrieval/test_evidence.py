"""Evidence of each kind, on one scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from retrieval_support import EAST, NORTH, WEST, Vector, floats, index_of, put

from inference_core.memory.types import MEMORY_TYPES
from inference_core.retrieval import evidence
from inference_core.retrieval.evidence import over_maximum, spread, standardized
from inference_core.retrieval.pool import Pool
from inference_core.retrieval.weights import Spread

NAN = float("nan")
DIAGONAL = (0.6, 0.8)


def _pool(*vectors: Vector | None) -> Pool:
    """Texts of one session, each a second younger than the one before."""
    return Pool(
        [
            index_of(
                *(
                    put(str(at), "tea", *([vector] if vector else []), created=at, session="s")
                    for at, vector in enumerate(vectors)
                )
            )
        ]
    )


def test_scores_over_the_largest():
    assert over_maximum(floats(1, 4, 0)).tolist() == [0.25, 1, 0]
    assert over_maximum(floats(0, 0)).tolist() == [0, 0]
    assert over_maximum(floats()).tolist() == []


def test_four_deviations_above_the_mean_count_as_one():
    # Mean 3; squared differences 4, 1, 9.
    deviation = math.sqrt(14 / 3)
    expected = [-2 / (4 * deviation), -1 / (4 * deviation), 0, 3 / (4 * deviation)]
    found = standardized(floats(1, 2, NAN, 6))
    assert found.tolist() == pytest.approx(expected)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    "scores", [[], [0.5], [NAN, NAN], [0.5, 0.5, NAN], [0.5, 0.5 + 1e-7]], ids=["none", "one", "NaN", "equal", "noise"]
)
def test_where_nothing_differs_nothing_is_standardized(scores: list[float]):
    assert standardized(floats(*scores)).tolist() == [0] * len(scores)


@pytest.mark.parametrize("copies", [3, 7, 33, 1001])
def test_rounding_is_no_difference(copies: int):
    for cosine in np.random.default_rng(1).uniform(-1, 1, 50):
        assert not standardized(np.full(copies, cosine, np.float32)).any()


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (Spread(), [0, 0, 0, 0]),
        (Spread(own=2), [2, 4, 8, 16]),
        (Spread(previous=2), [0, 2, 4, 0]),
        (Spread(around=2), [8, 0, 2, 0]),
        (Spread(reply=2), [4, 8, 0, 0]),
        (Spread(best=3), [7, 7, 7, 8]),
        (Spread(own=1, previous=1, around=0.5, reply=1, best=3), [12, 14, 13.5, 16]),
    ],
    ids=["nothing", "own", "previous", "around", "reply", "best", "all"],
)
def test_evidence_spreads_within_the_session(weights: Spread, expected: list[float]):
    turns = [put(str(at), created=at, session="s" if at < 3 else "t") for at in range(4)]
    values = floats(1, 2, 4, 8)
    found = spread(values, weights, Pool([index_of(*turns)]).order)
    assert found.tolist() == pytest.approx(expected)
    assert values.tolist() == [1, 2, 4, 8]


def test_closeness_is_taken_from_the_mean_of_all_vectors():
    pool = _pool(EAST, None, NORTH, WEST, NORTH)
    # The mean is (0, .5); the query minus it (1, -.5).
    found = evidence.closeness(pool, floats(*EAST)).tolist()
    assert found == pytest.approx([1, NAN, -0.5, -1, -0.5], nan_ok=True)


def test_a_query_of_another_size_is_close_to_nothing():
    assert np.isnan(evidence.closeness(_pool(EAST, NORTH), floats(1, 0, 0))).all()


def test_feedback_is_closeness_to_the_best_three():
    pool = _pool(NORTH, EAST, DIAGONAL, EAST, WEST, EAST)
    found = evidence.feedback(pool, [1, 2, 3, 4], floats(9, 4, 3, 2, 1, 9))
    # Mean of the best three (2.6/3, .8/3), of all (2.6/6, 1.8/6); their difference (2.6/6, -.2/6).
    products = np.array([2.6, 0.6 * 2.6 - 0.8 * 0.2, 2.6, -2.6]) / 6
    expected = (products - products.mean()) / (4 * products.std())
    assert found.tolist() == pytest.approx([0, *expected, 0], abs=1e-3)


def test_rounding_does_not_decide_which_candidates_are_the_best():
    scores = floats(1, 1 + 1e-6, 1, 1)
    found = evidence.feedback(_pool(EAST, NORTH, EAST, WEST), [0, 2, 3, 1], scores)
    # Mean of the first three (1/3, 0), of all (.25, .25).
    assert found.argmin() == 1


@pytest.mark.parametrize(
    ("vectors", "candidates"),
    [([EAST, NORTH, WEST, EAST], [0, 1, 2]), ([EAST, None, WEST, NORTH], [0, 1, 2, 3]), ([EAST, NORTH], [])],
    ids=["three", "three with a vector", "none"],
)
def test_without_more_candidates_than_the_best_there_is_no_feedback(
    vectors: list[Vector | None], candidates: list[int]
):
    scores = floats(*range(len(vectors)))
    assert evidence.feedback(_pool(*vectors), candidates, scores).tolist() == [0] * len(vectors)


def test_candidates_without_a_vector_get_no_feedback():
    found = evidence.feedback(_pool(EAST, None, NORTH, EAST, WEST), [0, 1, 2, 3, 4], floats(5, 9, 1, 4, 3))
    assert found[1] == 0
    assert (found[[0, 2, 3, 4]] != 0).all()


def test_feedback_with_vectors_of_several_sizes():
    indexes = [index_of(*(put(f"{at}", "tea", EAST, created=at) for at in range(4))), index_of(put("x", "tea", (1.0,)))]
    found = evidence.feedback(Pool(indexes), [4, 0, 1, 2, 3], floats(1, 1, 1, 1, 2))
    assert found.tolist() == [0] * 5


def test_rules_skills_and_preferences_guide():
    pool = Pool([index_of(*(put(kind, kind=kind, created=at, session="s") for at, kind in enumerate(MEMORY_TYPES)))])
    guiding = [kind for kind, value in zip(MEMORY_TYPES, evidence.guidance(pool).tolist(), strict=True) if value]
    assert guiding == ["preferences", "instructions", "workflow", "skill"]


def test_what_happened_within_an_interval():
    moments = [None, 99, 100, 150.5, 200, 201]
    turns = [put(str(at), created=at + 147, happened=moment, session="s") for at, moment in enumerate(moments)]
    assert evidence.within(Pool([index_of(*turns)]), (100, 200)).tolist() == [1, 0, 1, 1, 0, 0]


def test_what_an_assistant_said_counts_less():
    turns = [put("a", created=1, session="s"), put("b", created=2, session="s", by_assistant=True)]
    assert evidence.not_assistant(Pool([index_of(*turns)])).tolist() == [1, 0]


def test_importance_lies_around_zero():
    turns = [put(str(at), created=at, importance=value, session="s") for at, value in enumerate([0, 0.5, 0.75, 1])]
    assert evidence.importance(Pool([index_of(*turns)])).tolist() == [-0.5, 0, 0.25, 0.5]
