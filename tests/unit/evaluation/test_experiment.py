"""An experiment with a system whose answers are known, so that every figure can be computed by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import pytest

from inference_core.evaluation.conversations import Conversation, ConversationTurn, Question
from inference_core.evaluation.experiment import RetrievalSummary, run_experiment, summarize
from inference_core.evaluation.systems import Advance, Hit, Recall, System

TURNS = tuple(ConversationTurn(str(number), f"s{number // 2}", None, "A", "text") for number in range(14))


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

        async def recall(query: str, k: int) -> list[Hit]:
            await asyncio.sleep(self.wait_s)
            self.asked.append((conversation.id, query, k))
            return [Hit(name, None if place else self.relevance) for place, name in enumerate(self.answers[query])]

        return recall

    def close(self) -> None:
        self.closed += 1


def conversation(name: str, *questions: Question, turns: tuple[ConversationTurn, ...] = TURNS) -> Conversation:
    return Conversation(name, turns, questions, 0)


def question(text: str, category: str, *evidence: str, named: bool = True, overall: bool = True) -> Question:
    return Question(text, None, category, evidence, names_evidence=named, in_overall=overall)


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
