"""The measures, against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inference_core.evaluation import experiment as metrics

RANKED = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(("k", "expected"), [(1, 0.0), (2, 1 / 3), (4, 2 / 3), (5, 2 / 3)])
def test_recall_is_the_share_of_the_relevant_ids_that_were_found(k: int, expected: float):
    assert metrics.recall_at(RANKED, ["b", "d", "z"], k) == pytest.approx(expected)


@pytest.mark.parametrize(("relevant", "expected"), [(["a"], 1.0), (["c", "e"], 1 / 3), (["z"], 0.0)])
def test_reciprocal_rank_is_that_of_the_first_relevant_id(relevant: list[str], expected: float):
    assert metrics.reciprocal_rank(RANKED, relevant) == pytest.approx(expected)


def test_reciprocal_rank_looks_no_deeper_than_k():
    assert metrics.reciprocal_rank(RANKED, ["c"], 2) == 0
    assert metrics.reciprocal_rank([str(number) for number in range(30)], ["19"]) == pytest.approx(1 / 20)
    assert metrics.reciprocal_rank([str(number) for number in range(30)], ["20"]) == 0


def test_ndcg_discounts_by_place():
    gain = 1 / math.log2(3) + 1 / math.log2(5)
    assert metrics.ndcg_at(RANKED, ["b", "d"], 10) == pytest.approx(gain / (1 + 1 / math.log2(3)))
    assert metrics.ndcg_at(RANKED, ["b", "d"], 2) == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    assert metrics.ndcg_at(RANKED, ["a", "b", "c"], 2) == pytest.approx(1.0)
    assert metrics.ndcg_at([], ["a"], 10) == 0


def test_a_repeated_id_counts_once():
    ranked = ["b", "b", "b", "a"]
    assert metrics.recall_at(ranked, ["a", "b"], 2) == 1.0
    assert metrics.reciprocal_rank(ranked, ["a"]) == pytest.approx(1 / 2)
    assert metrics.ndcg_at(ranked, ["b"], 10) == pytest.approx(1.0)
    assert metrics.recall_at(["b"], ["b", "b", "a"], 2) == pytest.approx(1 / 2)


def test_all_measures_of_one_question():
    ranked = [f"n{place}" for place in range(1, 21)]
    found = metrics.measures(ranked, ["n4", "n7", "n15", "n99"])
    assert list(found) == list(metrics.MEASURES)
    gain, ideal = 1 / math.log2(5) + 1 / math.log2(8), sum(1 / math.log2(place + 1) for place in range(1, 5))
    assert found == pytest.approx(
        {
            "R@5": 0.25,
            "R@10": 0.5,
            "R@20": 0.75,
            "any@10": 1.0,
            "all@10": 0.0,
            "MRR": 0.25,
            "nDCG@10": gain / ideal,
        }
    )
    assert metrics.measures(ranked, ["n1", "n10"])["all@10"] == 1
    assert metrics.measures(ranked, ["n11"])["any@10"] == 0


def test_sessions_count_once_in_the_order_of_their_first_hits():
    sessions = {"a": "1", "b": "1", "c": "2", "d": "3", "e": "4"}
    assert metrics.session_any_at(RANKED, ["d"], sessions, 3) == 1
    assert metrics.session_any_at(RANKED, ["d"], sessions, 2) == 0
    assert metrics.session_any_at(RANKED, ["e", "b"], sessions, 1) == 1
    assert metrics.session_any_at(["x"], ["x"], sessions, 5) == 0


def test_percentiles_are_interpolated():
    assert metrics.percentile([4.0, 1.0, 3.0, 2.0], 50) == pytest.approx(2.5)
    assert metrics.percentile([1.0, 2.0], 95) == pytest.approx(1.95)
    assert metrics.percentile([], 50) is None


def test_the_interval_resamples_groups_and_weighs_them_by_their_values():
    # Two groups of three and one values: a draw of two gives the mean 0 (1/4 of all draws), 1/4 (1/2) or 1 (1/4).
    assert metrics.confidence_interval([[0.0, 0.0, 0.0], [1.0]]) == (0.0, 1.0)
    assert metrics.confidence_interval([[0.5, 0.5], [0.5]]) == pytest.approx((0.5, 0.5))


def test_the_interval_has_the_width_of_the_normal_approximation():
    groups = [[float(value)] for value in np.random.default_rng(1).integers(0, 2, 400)]
    found = metrics.confidence_interval(groups)
    assert found is not None
    mean = np.mean(groups)
    half = 1.96 * math.sqrt(mean * (1 - mean) / 400)
    assert found == pytest.approx((mean - half, mean + half), abs=0.004)


def test_the_interval_is_the_same_every_time_and_needs_two_groups():
    groups = [[0.1, 0.9], [0.4], [0.2, 0.3]]
    assert metrics.confidence_interval(groups) == metrics.confidence_interval(groups)
    assert metrics.confidence_interval([[0.1, 0.9], []]) is None
    assert metrics.confidence_interval([]) is None


def test_the_calibration_error_is_the_mean_gap_between_probability_and_truth():
    assert metrics.calibration_error([]) is None
    assert metrics.calibration_error([(1.0, True), (0.0, False)]) == 0
    assert metrics.calibration_error([(1.0, False)]) == 1
    # Of two in one bin, one is true: .55 on average against .5. Of the other two none: .15 against 0.
    judged = [(0.52, True), (0.58, False), (0.1, False), (0.19, False)]
    assert metrics.calibration_error(judged) == pytest.approx((2 * 0.05 + 2 * 0.145) / 4)
