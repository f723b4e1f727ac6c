"""Asks a system all questions about all conversations, measures the rankings, and summarizes the results.

The measures of a ranking are from 0 to 1 and need at least one relevant id. A repeated id counts once, at its first
place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean, median
from time import perf_counter
from typing import Any, Final

import numpy as np

from inference_core.evaluation.conversations import Conversation, ConversationQuestion
from inference_core.evaluation.systems import Advance, Recall, System

DEPTH: Final = 20
"""How many hits are requested and scored."""
MEASURES: Final = ("R@5", "R@10", "R@20", "any@10", "all@10", "MRR", "nDCG@10")
HEADLINE: Final = ("R@5", "R@10", "MRR")
"""The measures that are given with their intervals."""
NOISE: Final = ("harmful", "useless")
"""The kinds of memories that a recall should not return."""
SESSIONS: Final = 5
_SHOWN: Final = 5
_JUDGED: Final = 10
_RESAMPLES: Final = 2_000
_SEED: Final = 20_260
_MIN_GROUPS: Final = 2
_BINS: Final = 10


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """The results of one question; ``scores`` is empty if it has no usable evidence.

    ``session_any`` is None if there are no sessions. ``relevance``, that of the best hit, is None if there is no hit or
    the system gives no relevance. ``judged`` has, for each of the first ten hits, its relevance and whether it is
    evidence. ``latency_ms`` is the time of the recall call alone, in milliseconds. For each kind of `NOISE`, ``noise``
    pairs the place of each such memory (from 1; None: not found) with the place of the first evidence.
    """

    conversation: str
    question: ConversationQuestion
    scores: dict[str, float]
    session_any: float | None
    relevance: float | None
    judged: tuple[tuple[float, bool], ...]
    latency_ms: float
    noise: Mapping[str, Sequence[tuple[int | None, int | None]]] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class NoiseFigures:
    """Of ``memories`` of one kind, the shares in the first five and ten hits and above the first right hit."""

    memories: int
    top_5: float
    top_10: float
    above: float

    @classmethod
    def of(cls, places: Sequence[tuple[int | None, int | None]]) -> NoiseFigures:
        """The figures of ``places``: a memory's place with that of the first right hit (None: not found, so below)."""
        found = [(place, right or place + 1) for place, right in places if place is not None]
        return cls(
            len(places),
            sum(place <= _SHOWN for place, _ in found) / len(places),
            sum(place <= _JUDGED for place, _ in found) / len(places),
            sum(place < right for place, right in found) / len(places),
        )


@dataclass(frozen=True, slots=True)
class Relevance:
    """The relevance that the system gave the best hits of some questions."""

    mean: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean measures of some questions, how many there are, and the 95 % interval of R@10 over conversations.

    ``intervals`` are those of `HEADLINE`: over conversations or, if all questions are about one, over questions.
    """

    questions: int
    means: dict[str, float | None]
    interval: tuple[float, float] | None
    intervals: Mapping[str, tuple[float, float] | None] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class RetrievalSummary:
    """What an experiment found. Fractions are from 0 to 1, latencies in milliseconds; None where nothing was counted.

    ``questions`` counts those with usable evidence, ``dropped`` those without; of the dropped ones, ``unanswerable``
    have no answer in the data. ``calibration_error`` takes a hit's relevance as the probability that the hit is
    evidence. ``first`` is the share of questions whose first hit is evidence. ``noise`` has an entry for each kind of
    `NOISE` in the data.
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
    by_language: Mapping[str, Figures] = field(default_factory=dict[str, Figures])
    first: float | None = None
    noise: Mapping[str, NoiseFigures] = field(default_factory=dict[str, NoiseFigures])


async def run_experiment(
    conversations: Sequence[Conversation], system: System, advance: Advance
) -> list[QuestionOutcome]:
    """Ingests each conversation and asks its questions, one after the other, then closes the system.

    The first question about a conversation may have to build the index; its latency counts like all others. Raises
    what the system raises.
    """
    outcomes: list[QuestionOutcome] = []
    with closing(system):
        for conversation in conversations:
            recall = await system.ingest(conversation, advance)
            for question in conversation.questions:
                outcomes.append(await asked(conversation, question, recall))
                advance()
    return outcomes


async def asked(conversation: Conversation, question: ConversationQuestion, recall: Recall) -> QuestionOutcome:
    """Asks one question, and measures the hits against its evidence."""
    started = perf_counter()
    hits = await recall(question.text, DEPTH)
    took = (perf_counter() - started) * 1_000
    ranked = [hit.id for hit in hits]
    sessions = {turn.id: turn.session for turn in conversation.turns if turn.session is not None}
    is_counted = bool(question.evidence)
    place = {name: at for at, name in reversed(list(enumerate(ranked, 1)))}
    right = min((place[name] for name in question.evidence if name in place), default=None)
    unwanted = {"harmful": question.harmful, "useless": question.useless} if is_counted else {}
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
        noise={kind: [(place.get(name), right) for name in names] for kind, names in unwanted.items() if names},
    )


def summarize(outcomes: Sequence[QuestionOutcome]) -> RetrievalSummary:
    """The figures of ``outcomes``: over all whose category is part of the headline, and by category."""
    counted = [outcome for outcome in outcomes if outcome.scores]
    headline = [outcome for outcome in counted if outcome.question.in_overall]
    # A question that names evidence is scored by it, even if it only misleads, as in LoCoMo's adversarial questions.
    unanswerable = [
        outcome for outcome in outcomes if outcome.question.unanswerable and not outcome.question.names_evidence
    ]
    best = [outcome.relevance for outcome in unanswerable if outcome.relevance is not None]
    latencies = [outcome.latency_ms for outcome in outcomes]
    categories = sorted({outcome.question.category for outcome in counted})
    languages = Counter(outcome.question.language for outcome in headline)
    return RetrievalSummary(
        overall=_figures(headline),
        by_category={
            name: _figures([outcome for outcome in counted if outcome.question.category == name]) for name in categories
        },
        session_any=_mean([outcome.session_any for outcome in headline if outcome.session_any is not None]),
        latency_p50=percentile(latencies, 50),
        latency_p95=percentile(latencies, 95),
        questions=len(counted),
        dropped=len(outcomes) - len(counted),
        unanswerable=len(unanswerable),
        unanswerable_relevance=Relevance(fmean(best), median(best), max(best)) if best else None,
        calibration_error=calibration_error([pair for outcome in counted for pair in outcome.judged]),
        by_language={
            name: _figures([outcome for outcome in headline if outcome.question.language == name])
            for name, _ in languages.most_common()
        },
        first=_mean([float(outcome.scores["MRR"] == 1) for outcome in headline]),
        noise={
            kind: NoiseFigures.of(found)
            for kind in NOISE
            if (found := [one for out in counted for one in out.noise.get(kind, ())])
        },
    )


def _figures(outcomes: Sequence[QuestionOutcome]) -> Figures:
    means = {name: _mean([outcome.scores[name] for outcome in outcomes]) for name in MEASURES}
    is_of_one = len({outcome.conversation for outcome in outcomes}) == 1
    intervals: dict[str, tuple[float, float] | None] = {}
    for measure in HEADLINE:  # over conversations; over questions if all are about the same one
        groups: dict[object, list[float]] = {}
        for at, one in enumerate(outcomes):
            groups.setdefault(at if is_of_one else one.conversation, []).append(one.scores[measure])
        intervals[measure] = confidence_interval(list(groups.values()))
    return Figures(len(outcomes), means, None if is_of_one else intervals["R@10"], intervals)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def recall_at(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Share of the relevant ids that are among the first ``k``."""
    return len(set(_top(ranked, k)) & set(relevant)) / len(set(relevant))


def reciprocal_rank(ranked: Sequence[str], relevant: Collection[str], k: int = DEPTH) -> float:
    """One over the place of the first relevant id, 0 if none is among the first ``k`` (Voorhees, TREC-8, 1999)."""
    return next((1 / place for place, name in enumerate(_top(ranked, k), 1) if name in relevant), 0.0)


def ndcg_at(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Discounted cumulative gain of the first ``k``, over that of the ideal order; gains are 0 or 1.

    Discount log2(place + 1), after Järvelin and Kekäläinen, ACM TOIS 20 (2002).
    """
    discounts = [1 / math.log2(place + 1) for place in range(1, k + 1)]
    gain = sum(discount for discount, name in zip(discounts, _top(ranked, k), strict=False) if name in relevant)
    return gain / sum(discounts[: len(set(relevant))])


def measures(ranked: Sequence[str], relevant: Collection[str]) -> dict[str, float]:
    """All of MEASURES for one question."""
    recall = recall_at(ranked, relevant, 10)
    return {
        "R@5": recall_at(ranked, relevant, 5),
        "R@10": recall,
        "R@20": recall_at(ranked, relevant, 20),
        "any@10": float(recall > 0),
        "all@10": float(recall == 1),
        "MRR": reciprocal_rank(ranked, relevant),
        "nDCG@10": ndcg_at(ranked, relevant, 10),
    }


def session_any_at(ranked: Sequence[str], relevant: Collection[str], sessions: Mapping[str, str], k: int) -> float:
    """1 if a relevant id's session is among the first ``k`` distinct sessions of the ranking, else 0.

    ``sessions`` is the session of each id. The measure of session retrieval that published memory systems report.
    """
    found = list(dict.fromkeys(sessions[name] for name in ranked if name in sessions))[:k]
    return float(any(sessions.get(name) in found for name in relevant))


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which ``percent`` of ``values`` lie, interpolated; None without values."""
    return float(np.percentile(values, percent)) if values else None


def confidence_interval(groups: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """95 % interval of the mean over all values, by resampling whole groups (percentile bootstrap, seeded).

    Questions about one conversation are not independent, so conversations are resampled (Field and Welsh, JRSS B 69,
    2007). None with fewer than two groups that have values.
    """
    sizes = np.array([len(group) for group in groups if group], np.float64)
    if len(sizes) < _MIN_GROUPS:
        return None
    sums = np.array([math.fsum(group) for group in groups if group])
    drawn = np.random.default_rng(_SEED).integers(0, len(sizes), (_RESAMPLES, len(sizes)))
    low, high = np.percentile(sums[drawn].sum(1) / sizes[drawn].sum(1), (2.5, 97.5))
    return float(low), float(high)


def calibration_error(judged: Sequence[tuple[float, bool]]) -> float | None:
    """Expected calibration error of pairs of a probability (0 to 1) and whether it came true; None without pairs.

    The gap between mean probability and share of true ones in each of ten bins of equal width, averaged with the bins'
    sizes as weights (Naeini, Cooper and Hauskrecht 2015).
    """
    bins: dict[int, list[tuple[float, bool]]] = {}
    for probability, is_true in judged:
        bins.setdefault(min(int(probability * _BINS), _BINS - 1), []).append((probability, is_true))
    gaps = [abs(sum(probability - is_true for probability, is_true in group)) for group in bins.values()]
    return sum(gaps) / len(judged) if judged else None


def _top(ranked: Sequence[str], k: int) -> list[str]:
    return list(dict.fromkeys(ranked))[:k]
