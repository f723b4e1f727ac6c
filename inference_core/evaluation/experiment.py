"""Asks a system all questions about all conversations, and sums up the results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter
from typing import Final

from inference_core.evaluation.conversations import Conversation, Question
from inference_core.evaluation.metrics import (
    DEPTH,
    MEASURES,
    calibration_error,
    confidence_interval,
    measures,
    percentile,
    session_any_at,
)
from inference_core.evaluation.systems import Advance, Recall, System

SESSIONS: Final = 5
_JUDGED: Final = 10


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """How one question went; ``scores`` is empty if it has no usable evidence.

    ``session_any`` is None where there are no sessions, ``relevance`` (of the best hit) without a hit or if the system
    does not say. ``judged``: the relevance of the first ten hits, and whether they are evidence. ``latency_ms`` is that
    of the recall call alone.
    """

    conversation: str
    question: Question
    scores: dict[str, float]
    session_any: float | None
    relevance: float | None
    judged: tuple[tuple[float, bool], ...]
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Relevance:
    """The relevance that the system gave the best hits of some questions."""

    mean: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean measures of some questions, how many there are, and the 95 % interval of R@10 over conversations."""

    questions: int
    means: dict[str, float | None]
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class RetrievalSummary:
    """What an experiment found. Fractions are from 0 to 1, latencies in milliseconds; None where nothing was counted.

    ``questions`` have usable evidence, ``dropped`` have none; ``unanswerable`` of these are without any by the data.
    ``calibration_error`` is that of the hits' relevance as the chance of being evidence.
    """

    overall: Figures
    by_category: dict[str, Figures]
    session_any: float | None
    latency_p50: float | None
    latency_p95: float | None
    questions: int
    dropped: int
    unanswerable: int
    unanswerable_relevance: Relevance | None
    calibration_error: float | None


async def run_experiment(
    conversations: Sequence[Conversation], system: System, advance: Advance
) -> list[QuestionOutcome]:
    """Ingests and asks one conversation after the other; the system is closed then. Raises what the system raises.

    The first question about a conversation may have to build its index; its latency counts like all others.
    """
    outcomes: list[QuestionOutcome] = []
    with closing(system):
        for conversation in conversations:
            recall = await system.ingest(conversation, advance)
            for question in conversation.questions:
                outcomes.append(await asked(conversation, question, recall))
                advance()
    return outcomes


async def asked(conversation: Conversation, question: Question, recall: Recall) -> QuestionOutcome:
    """How one question goes."""
    started = perf_counter()
    hits = await recall(question.text, DEPTH)
    took = (perf_counter() - started) * 1_000
    ranked = [hit.id for hit in hits]
    sessions = {turn.id: turn.session for turn in conversation.turns if turn.session is not None}
    is_counted = bool(question.evidence)
    return QuestionOutcome(
        conversation=conversation.id,
        question=question,
        scores=measures(ranked, question.evidence) if is_counted else {},
        session_any=session_any_at(ranked, question.evidence, sessions, SESSIONS) if is_counted and sessions else None,
        relevance=hits[0].relevance if hits else None,
        judged=tuple(
            (hit.relevance, hit.id in question.evidence) for hit in hits[:_JUDGED] if hit.relevance is not None
        ),
        latency_ms=took,
    )


def summarize(outcomes: Sequence[QuestionOutcome]) -> RetrievalSummary:
    """The figures of ``outcomes``: over all whose category is part of the headline, and by category."""
    counted = [outcome for outcome in outcomes if outcome.scores]
    headline = [outcome for outcome in counted if outcome.question.in_overall]
    unanswerable = [outcome for outcome in outcomes if not outcome.question.names_evidence]
    best = [outcome.relevance for outcome in unanswerable if outcome.relevance is not None]
    latencies = [outcome.latency_ms for outcome in outcomes]
    categories = sorted({outcome.question.category for outcome in counted})
    return RetrievalSummary(
        overall=_figures(headline),
        by_category={name: _figures([one for one in counted if one.question.category == name]) for name in categories},
        session_any=_mean([one.session_any for one in headline if one.session_any is not None]),
        latency_p50=percentile(latencies, 50),
        latency_p95=percentile(latencies, 95),
        questions=len(counted),
        dropped=len(outcomes) - len(counted),
        unanswerable=len(unanswerable),
        unanswerable_relevance=Relevance(fmean(best), median(best), max(best)) if best else None,
        calibration_error=calibration_error([pair for outcome in counted for pair in outcome.judged]),
    )


def _figures(outcomes: Sequence[QuestionOutcome]) -> Figures:
    means = {name: _mean([outcome.scores[name] for outcome in outcomes]) for name in MEASURES}
    conversations = dict.fromkeys(outcome.conversation for outcome in outcomes)
    by_conversation = [
        [outcome.scores["R@10"] for outcome in outcomes if outcome.conversation == name] for name in conversations
    ]
    return Figures(len(outcomes), means, confidence_interval(by_conversation))


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
