"""Measures and an experiment with a system whose answers are known: every figure can be computed by hand."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from inference_core.evaluation import experiment
from inference_core.evaluation.conversations import Conversation, ConversationQuestion, ConversationTurn
from inference_core.evaluation.experiment import RetrievalSummary, run_experiment, summarize
from inference_core.evaluation.systems import Advance, Recall, RecalledTurn, System

TURNS = tuple(ConversationTurn(str(number), f"s{number // 2}", None, "A", "text") for number in range(14))
RANKED = ["a", "b", "c", "d", "e"]


class Scripted(System):
    """Answers each question with the given ids; the first hit is as relevant as is said."""

    def __init__(self, answers: Mapping[str, Sequence[str]], relevance: float | None = None, wait_s: float = 0) -> None:
        self.answers = answers
        self.relevance = relevance
        self.wait_s = wait_s
        self.asked: list[tuple[str, str, int]] = []
        self.closed = 0

    async def ingest(self, conversation: Conversation, advance: Advance) -> Recall:
        for _ in conversation.turns:
            advance()

        async def recall(query: str, k: int) -> list[RecalledTurn]:
            await asyncio.sleep(self.wait_s)
            self.asked.append((conversation.id, query, k))
            return [
                RecalledTurn(name, None if place else self.relevance) for place, name in enumerate(self.answers[query])
            ]

        return recall

    def close(self) -> None:
        self.closed += 1


def conversation(
    name: str, *questions: ConversationQuestion, turns: tuple[ConversationTurn, ...] = TURNS
) -> Conversation:
    return Conversation(name, turns, questions, 0)


def question(
    text: str, category: str, *evidence: str, named: bool = True, overall: bool = True
) -> ConversationQuestion:
    return ConversationQuestion(
        text, None, category, evidence, names_evidence=named, in_overall=overall, unanswerable=not named
    )


async def summary_of(system: Scripted, *conversations: Conversation) -> RetrievalSummary:
    return summarize(await run_experiment(conversations, system, lambda: None))


async def test_overall_and_categories_are_means_over_questions():
    system = Scripted({"first": ["1"], "half": ["3", "2"], "missed": ["9"], "aside": ["4"]})
    first = conversation("one", question("first", "a", "1"), question("half", "b", "2", "5"))
    second = conversation("two", question("missed", "a", "7"), question("aside", "z", "4", overall=False))
    found = await summary_of(system, first, second)
    assert found.overall.questions == 3
    assert found.overall.means["R@10"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found.overall.means["MRR"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found.overall.means["any@10"] == pytest.approx(2 / 3)
    assert found.overall.means["all@10"] == pytest.approx(1 / 3)
    assert {name: figures.means["R@10"] for name, figures in found.by_category.items()} == {"a": 0.5, "b": 0.5, "z": 1}
    assert (found.questions, found.dropped, found.unanswerable) == (4, 0, 0)


async def test_the_interval_is_over_conversations_not_over_questions():
    system = Scripted({"hit": ["1"], "missed": ["9"]})
    hits, misses = ([question(text, "a", "1")] * 40 for text in ("hit", "missed"))
    found = await summary_of(system, conversation("one", *hits), conversation("two", *misses))
    assert found.overall.interval == (0.0, 1.0)
    assert (await summary_of(system, conversation("one", *hits, *misses))).overall.interval is None


async def test_questions_without_usable_evidence_are_dropped_and_unanswerable_ones_judged_by_their_best_hit():
    system = Scripted({"lost": ["1"], "none": ["2", "4"], "found": ["3"]}, relevance=0.25)
    asked = (question("lost", "a"), question("none", "a", named=False), question("found", "a", "3"))
    found = await summary_of(system, conversation("one", *asked))
    assert (found.questions, found.dropped, found.unanswerable) == (1, 2, 1)
    assert found.unanswerable_relevance is not None
    assert found.unanswerable_relevance.mean == found.unanswerable_relevance.max == 0.25
    assert found.overall.means["R@10"] == 1
    assert found.calibration_error == pytest.approx(0.75)


async def test_regression_a_question_with_an_answer_but_no_named_evidence_is_not_unanswerable():
    """The relevance of its best hit, which answers it, raised the figure for what nobody said."""
    system = Scripted({"told": ["1"], "none": ["2"], "other": ["3"]}, relevance=0.25)
    told = ConversationQuestion("told", "In Hamburg", "a", (), names_evidence=False)
    adversarial = ConversationQuestion(
        "other", None, "5", ("3",), unanswerable=True
    )  # as in LoCoMo: it names what misleads
    found = await summary_of(system, conversation("one", told, question("none", "a", named=False), adversarial))
    assert (found.questions, found.dropped, found.unanswerable) == (1, 2, 1)


async def test_no_relevance_is_made_up():
    system = Scripted({"none": ["2"]})
    found = await summary_of(system, conversation("one", question("none", "a", named=False)))
    assert found.unanswerable_relevance is found.calibration_error is None
    assert (found.overall.means["R@10"], found.by_category) == (None, {})


async def test_sessions_are_counted_where_there_are_any():
    # Seven sessions of two turns; the five first of the ranking are s0 to s4.
    system = Scripted({"fifth": ["0", "1", "2", "4", "6", "8"], "sixth": ["0", "2", "4", "6", "8", "10"]})
    asked = (question("fifth", "a", "9"), question("sixth", "a", "10"), question("fifth", "z", "9", overall=False))
    assert (await summary_of(system, conversation("one", *asked))).session_any == 0.5
    bare = tuple(ConversationTurn(turn.id, None, None, None, "text") for turn in TURNS)
    assert (await summary_of(system, conversation("one", *asked, turns=bare))).session_any is None


async def test_latency_is_that_of_the_recall_call_and_twenty_hits_are_asked_for():
    system = Scripted({"slow": []}, wait_s=0.02)
    started = time.perf_counter()
    found = await summary_of(system, conversation("one", question("slow", "a", "1")))
    assert found.latency_p50 is not None
    assert 19 <= found.latency_p50 <= (time.perf_counter() - started) * 1000
    assert found.latency_p50 == found.latency_p95
    assert system.asked == [("one", "slow", 20)]


async def test_progress_hears_of_every_turn_and_question_and_the_system_is_closed_even_after_an_error():
    heard: list[None] = []
    system = Scripted({"known": ["1"]})
    await run_experiment([conversation("one", question("known", "a", "1"))], system, lambda: heard.append(None))
    assert (len(heard), system.closed) == (len(TURNS) + 1, 1)
    with pytest.raises(KeyError):
        await run_experiment([conversation("one", question("unknown", "a", "1"))], system, lambda: None)
    assert system.closed == 2


@pytest.mark.parametrize(("k", "expected"), [(1, 0.0), (2, 1 / 3), (4, 2 / 3), (5, 2 / 3)])
def test_recall_is_the_share_of_the_relevant_ids_that_were_found(k: int, expected: float):
    assert experiment.recall_at(RANKED, ["b", "d", "z"], k) == pytest.approx(expected)


@pytest.mark.parametrize(("relevant", "expected"), [(["a"], 1.0), (["c", "e"], 1 / 3), (["z"], 0.0)])
def test_reciprocal_rank_is_that_of_the_first_relevant_id(relevant: list[str], expected: float):
    assert experiment.reciprocal_rank(RANKED, relevant) == pytest.approx(expected)


def test_reciprocal_rank_looks_no_deeper_than_k():
    assert experiment.reciprocal_rank(RANKED, ["c"], 2) == 0
    assert experiment.reciprocal_rank([str(number) for number in range(30)], ["19"]) == pytest.approx(1 / 20)
    assert experiment.reciprocal_rank([str(number) for number in range(30)], ["20"]) == 0


def test_ndcg_discounts_by_place():
    gain = 1 / math.log2(3) + 1 / math.log2(5)
    assert experiment.ndcg_at(RANKED, ["b", "d"], 10) == pytest.approx(gain / (1 + 1 / math.log2(3)))
    assert experiment.ndcg_at(RANKED, ["b", "d"], 2) == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    assert experiment.ndcg_at(RANKED, ["a", "b", "c"], 2) == pytest.approx(1.0)
    assert experiment.ndcg_at([], ["a"], 10) == 0


def test_a_repeated_id_counts_once():
    ranked = ["b", "b", "b", "a"]
    assert experiment.recall_at(ranked, ["a", "b"], 2) == 1.0
    assert experiment.reciprocal_rank(ranked, ["a"]) == pytest.approx(1 / 2)
    assert experiment.ndcg_at(ranked, ["b"], 10) == pytest.approx(1.0)
    assert experiment.recall_at(["b"], ["b", "b", "a"], 2) == pytest.approx(1 / 2)


def test_all_measures_of_one_question():
    ranked = [f"n{place}" for place in range(1, 21)]
    found = experiment.measures(ranked, ["n4", "n7", "n15", "n99"])
    assert list(found) == list(experiment.MEASURES)
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
    assert experiment.measures(ranked, ["n1", "n10"])["all@10"] == 1
    assert experiment.measures(ranked, ["n11"])["any@10"] == 0


def test_sessions_count_once_in_the_order_of_their_first_hits():
    sessions = {"a": "1", "b": "1", "c": "2", "d": "3", "e": "4"}
    assert experiment.session_any_at(RANKED, ["d"], sessions, 3) == 1
    assert experiment.session_any_at(RANKED, ["d"], sessions, 2) == 0
    assert experiment.session_any_at(RANKED, ["e", "b"], sessions, 1) == 1
    assert experiment.session_any_at(["x"], ["x"], sessions, 5) == 0


def test_percentiles_are_interpolated():
    assert experiment.percentile([4.0, 1.0, 3.0, 2.0], 50) == pytest.approx(2.5)
    assert experiment.percentile([1.0, 2.0], 95) == pytest.approx(1.95)
    assert experiment.percentile([], 50) is None


def test_the_interval_resamples_groups_and_weighs_them_by_their_values():
    # Two groups of three and one values: a draw of two gives the mean 0 (1/4 of all draws), 1/4 (1/2) or 1 (1/4).
    assert experiment.confidence_interval([[0.0, 0.0, 0.0], [1.0]]) == (0.0, 1.0)
    assert experiment.confidence_interval([[0.5, 0.5], [0.5]]) == pytest.approx((0.5, 0.5))


def test_the_interval_has_the_width_of_the_normal_approximation():
    groups = [[float(value)] for value in np.random.default_rng(1).integers(0, 2, 400)]
    found = experiment.confidence_interval(groups)
    assert found is not None
    mean = np.mean(groups)
    half = 1.96 * math.sqrt(mean * (1 - mean) / 400)
    assert found == pytest.approx((mean - half, mean + half), abs=0.004)


def test_the_interval_is_the_same_every_time_and_needs_two_groups():
    groups = [[0.1, 0.9], [0.4], [0.2, 0.3]]
    assert experiment.confidence_interval(groups) == experiment.confidence_interval(groups)
    assert experiment.confidence_interval([[0.1, 0.9], []]) is None
    assert experiment.confidence_interval([]) is None


def test_the_calibration_error_is_the_mean_gap_between_probability_and_truth():
    assert experiment.calibration_error([]) is None
    assert experiment.calibration_error([(1.0, True), (0.0, False)]) == 0
    assert experiment.calibration_error([(1.0, False)]) == 1
    # Of two in one bin, one is true: .55 on average against .5. Of the other two none: .15 against 0.
    judged = [(0.52, True), (0.58, False), (0.1, False), (0.19, False)]
    assert experiment.calibration_error(judged) == pytest.approx((2 * 0.05 + 2 * 0.145) / 4)
