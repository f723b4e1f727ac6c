"""Reports of measurements, of one system or several side by side, as Markdown, as JSON data, and as pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

from inference_core.errors import InvalidInput, MissingExtra
from inference_core.evaluation.answers import Answered, Judge, Reply
from inference_core.evaluation.experiment import (
    HEADLINE,
    MEASURES,
    SESSIONS,
    Figures,
    RetrievalSummary,
    confidence_interval,
    percentile,
)

_FRACTION_DIGITS: Final = 4
_MS_DIGITS: Final = 3
_BLUE: Final = "#4477aa"
_Z: Final = 1.959964
"""The normal quantile of 95 %."""
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RetrievalReport:
    """The retrieval results of one system on a split of a data set."""

    dataset: str
    system: str
    split: str
    summary: RetrievalSummary

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data: fractions to four digits, latencies in ms, None where nothing was counted."""
        summary = self.summary
        categories = summary.by_category
        relevance = summary.unanswerable_relevance
        latency = {"p50": summary.latency_p50, "p95": summary.latency_p95}
        return {
            "dataset": self.dataset,
            "system": self.system,
            "split": self.split,
            "overall": _rounded(summary.overall.means),
            "by_category": {name: _rounded(figures.means) for name, figures in categories.items()},
            "latency_ms": _rounded(latency, _MS_DIGITS),
            "questions": summary.questions,
            "questions_overall": summary.overall.questions,
            "questions_by_category": {name: figures.questions for name, figures in categories.items()},
            "dropped": summary.dropped,
            f"session_any@{SESSIONS}": _rounded(summary.session_any),
            "by_language": {
                name: {"questions": figures.questions} | _rounded(figures.means)
                for name, figures in summary.by_language.items()
            },
            "first_is_right": _rounded(summary.first),
            "noise": {kind: _rounded(asdict(found)) for kind, found in summary.noise.items()},
            "intervals": _rounded(summary.overall.intervals),
            "confidence": {
                "R@10": _rounded(summary.overall.interval),
                "by_category": {name: {"R@10": _rounded(figures.interval)} for name, figures in categories.items()},
            },
            "unanswerable": {
                "questions": summary.unanswerable,
                "relevance": None if relevance is None else _rounded(asdict(relevance)),
            },
            "calibration_error": _rounded(summary.calibration_error),
        }

    def to_markdown(self) -> str:
        """The report as Markdown, in percent: tables with a list of further results below."""
        rows = {"**overall**": self.summary.overall, **self.summary.by_category}
        table = [["category", "questions", *MEASURES, "R@10, 95 % interval"], ["---", *["---:"] * (len(MEASURES) + 2)]]
        for name, figures in rows.items():
            interval = "-" if figures.interval is None else "-".join(f"{bound * 100:.1f}" for bound in figures.interval)
            measures = (_percent(figures.means[measure]) for measure in MEASURES)
            table.append([name, str(figures.questions), *measures, interval])
        lines = list(map(_row, table))
        if languages := self.summary.by_language:
            lines += ["", _row(["language", "questions", *HEADLINE]), _row(["---", *["---:"] * (len(HEADLINE) + 1)])]
            for name, one in languages.items():
                intervals = (_with_interval(one, measure) for measure in HEADLINE)
                lines.append(_row([name, str(one.questions), *intervals]))
        heading = f"{self.dataset} ({self.split}), {self.system}; percent"
        summary = self.summary
        p50, p95 = ("-" if value is None else f"{value:.1f} ms" for value in (summary.latency_p50, summary.latency_p95))
        notes = [
            f"- Recall: {p50} (p50), {p95} (p95)",
            f"- Questions: {summary.questions} counted, {summary.dropped} dropped for lack of usable evidence",
        ]
        if summary.session_any is not None:
            notes.append(f"- Session any@{SESSIONS} (at least one right session): {_percent(summary.session_any)}")
        if (relevance := summary.unanswerable_relevance) is not None:
            notes.append(
                f"- Relevance of the best hit of {summary.unanswerable} unanswerable questions: mean "
                f"{relevance.mean:.2f}, median {relevance.median:.2f}, highest {relevance.max:.2f}"
            )
        if summary.calibration_error is not None:
            notes.append(f"- Calibration error of the relevance of the first ten hits: {summary.calibration_error:.3f}")
        if summary.first is not None:
            notes.append(f"- The first hit is right: {_percent(summary.first)}")
        for kind, found in summary.noise.items():
            notes.append(
                f"- Of {found.memories} {kind} memories {_percent(found.top_5)} are among the first five hits, "
                f"{_percent(found.top_10)} among ten, {_percent(found.above)} above the right one"
            )
        return "\n".join([heading, "", *lines, "", *notes, ""])

    def plot(self, path: Path) -> None:
        """Writes R@10 by category, with the intervals, as a picture in the format that the suffix of ``path`` names.

        Raises MissingExtra without matplotlib, InvalidInput if the file cannot be written or its format is unknown.
        """
        rows = {"overall": self.summary.overall, **self.summary.by_category}

        def draw(axes: Any) -> None:
            names = [f"{name} ({figures.questions})" for name, figures in rows.items()]
            axes.barh(names, [figures.means["R@10"] or 0.0 for figures in rows.values()], color=_BLUE)
            for name, figures in zip(names, rows.values(), strict=True):
                if figures.interval is not None:
                    axes.plot(figures.interval, [name, name], color="black", marker="|")
            axes.invert_yaxis()
            axes.set_xlim(0, 1)
            axes.set_xlabel("R@10, with the 95 % interval over conversations")
            axes.set_title(f"{self.dataset} ({self.split}): {self.system}")

        save_picture(path, draw)


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """Several systems, measured on the same questions."""

    reports: Sequence[RetrievalReport]

    def to_json(self) -> dict[str, Any]:
        """The report of each system."""
        return {"runs": [report.to_json() for report in self.reports]}

    def to_markdown(self) -> str:
        """The systems side by side: overall, by category, by language and, if the data name any, by kind of noise."""
        first = self.reports[0]
        lines = [f"{first.dataset} ({first.split}); percent, with 95 % intervals", ""]
        lines += [_row(["system", *HEADLINE, "p50"]), _row(["---", *["---:"] * (len(HEADLINE) + 1)])]
        for report in self.reports:
            overall, p50 = report.summary.overall, report.summary.latency_p50
            measures = [_with_interval(overall, name) for name in HEADLINE]
            lines.append(_row([report.system, *measures, "-" if p50 is None else f"{p50:.1f} ms"]))
        lines += self._side_by_side("category", [report.summary.by_category for report in self.reports])
        lines += self._side_by_side("language", [report.summary.by_language for report in self.reports])
        for kind in first.summary.noise:
            lines += ["", _row([f"{kind} memories", "first five", "first ten", "above the right one"])]
            lines.append(_row(["---", *["---:"] * 3]))
            for report in self.reports:
                figures = report.summary.noise[kind]
                lines.append(_row([report.system, *map(_percent, (figures.top_5, figures.top_10, figures.above))]))
        return "\n".join([*lines, ""])

    def _side_by_side(self, what: str, groups: Sequence[Mapping[str, Figures]]) -> list[str]:
        """R@10 and MRR of each group of questions, a column for each system."""
        if not groups[0]:
            return []
        names = [report.system for report in self.reports]
        lines = ["", _row([f"R@10 (MRR) by {what}", "questions", *names]), _row(["---", *["---:"] * (len(names) + 1)])]
        for name, figures in groups[0].items():
            cells = (f"{_percent(one[name].means['R@10'])} ({_percent(one[name].means['MRR'])})" for one in groups)
            lines.append(_row([name, str(figures.questions), *cells]))
        return lines

    def plot(self, path: Path) -> None:
        """Writes R@10 by category, a bar for each system. Raises what `RetrievalReport.plot` raises."""
        first, height = self.reports[0], 0.8 / len(self.reports)

        def draw(axes: Any) -> None:
            names = ["overall", *first.summary.by_category]
            for number, report in enumerate(self.reports):
                rows = [report.summary.overall, *report.summary.by_category.values()]
                places = [at + number * height for at in range(len(rows))]
                values = [figures.means["R@10"] or 0.0 for figures in rows]
                axes.barh(places, values, height=height, align="edge", label=report.system)
                for at, figures in zip(places, rows, strict=True):
                    if (interval := figures.intervals.get("R@10")) is not None:
                        axes.plot(interval, [at + height / 2] * 2, color="black", marker="|")
            axes.set_yticks([at + 0.4 for at in range(len(names))], names)
            axes.invert_yaxis()
            axes.set_xlim(0, 1)
            axes.set_xlabel("R@10, with the 95 % interval")
            axes.set_title(f"{first.dataset} ({first.split})")
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1))

        save_picture(path, draw)


@dataclass(frozen=True, slots=True)
class Share:
    """A mean from 0 to 1 of ``count`` questions, with its 95 % interval; None without questions."""

    count: int
    mean: float | None
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, scores: Sequence[float]) -> Share:
        """The mean of ``scores``, with the interval of Wilson (JASA 22, 1927); for half points it is too wide."""
        if not scores:
            return cls(0, None, None)
        n, mean = len(scores), fmean(scores)
        middle, spread = mean + _Z**2 / (2 * n), _Z * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n * n))
        whole = 1 + _Z**2 / n
        return cls(n, mean, (max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)))


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """The answers with one system, as judged. ``prices`` are dollars per million tokens in and out, by model."""

    system: str
    model: str
    judge_model: str | None
    outcomes: Sequence[Answered]
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @property
    def by_category(self) -> dict[str, Share]:
        """The scores of each category of questions that were judged."""
        names = sorted({answer.question.category for answer in self.outcomes if answer.score is not None})
        return {name: Share.of(self._scores(lambda answer, of=name: answer.question.category == of)) for name in names}

    @property
    def overall(self) -> Share:
        """The scores of the categories that belong to the data set's headline figure."""
        return Share.of(self._scores(lambda answer: answer.question.in_overall))

    def _scores(self, chosen: Callable[[Answered], bool]) -> list[float]:
        return [answer.score for answer in self.outcomes if answer.score is not None and chosen(answer)]

    def than(self, other: AnswerReport) -> tuple[float, tuple[float, float] | None] | None:
        """The mean gain over ``other`` on the headline questions judged in both, with its interval (by question)."""
        theirs = {
            (answer.conversation, answer.question): answer.score
            for answer in other.outcomes
            if answer.question.in_overall
        }
        pairs = [(answer.score, theirs.get((answer.conversation, answer.question))) for answer in self.outcomes]
        gaps = [mine - their for mine, their in pairs if mine is not None and their is not None]
        return (fmean(gaps), confidence_interval([[gap] for gap in gaps])) if gaps else None

    def figures(self) -> dict[str, Any]:
        """All figures as JSON data: shares from 0 to 1, milliseconds, tokens, and dollars where prices are known."""
        answers = [answer.answer for answer in self.outcomes if answer.answer is not None]
        f1 = [answer.f1 for answer in self.outcomes if answer.f1 is not None and answer.question.in_overall]
        verdicts = [reply for answer in self.outcomes for reply in answer.verdicts]
        recalls, seconds = [answer.recall_ms for answer in self.outcomes], [reply.seconds for reply in answers]
        return {
            "system": self.system,
            "accuracy": asdict(self.overall),
            "by_category": {name: asdict(share) for name, share in self.by_category.items()},
            "token_f1": {"count": len(f1), "mean": fmean(f1) if f1 else None},
            "failures": sum(answer.failure is not None for answer in self.outcomes),
            "unjudged": sum(answer.score is None and answer.failure is None for answer in self.outcomes),
            "notes_tokens_mean": fmean([answer.notes_tokens for answer in self.outcomes]) if self.outcomes else None,
            "recall_ms": {"p50": percentile(recalls, 50), "p95": percentile(recalls, 95)},
            "answer_s": {"p50": percentile(seconds, 50), "p95": percentile(seconds, 95)},
            "answering": self._cost(self.model, answers),
            "judging": self._cost(self.judge_model or "", verdicts),
        }

    def _cost(self, model: str, replies: Sequence[Reply]) -> dict[str, Any]:
        """Calls, tokens and dollars of all replies, and of those that this run asked for."""
        price = self.prices.get(model)

        def told(some: Iterable[Reply]) -> dict[str, Any]:
            counted = list(some)
            given, made = sum(reply.tokens_in for reply in counted), sum(one.tokens_out for one in counted)
            dollars = None if price is None else (given * price[0] + made * price[1]) / _MILLION
            return {"calls": len(counted), "tokens_in": given, "tokens_out": made, "dollars": dollars}

        return {"model": model or None} | told(replies) | {"new": told(reply for reply in replies if reply.is_new)}

    def notes(self, *, is_judged: bool) -> list[str]:
        """Calls, tokens and cost, and what is not counted, as lines of a list."""
        found, lines = self.figures(), list[str]()
        for what in ("answering", "judging"):
            cost, new = found[what], found[what]["new"]
            dollars = "" if cost["dollars"] is None else f", ${cost['dollars']:.2f} (${new['dollars']:.2f} now)"
            if cost["calls"]:
                lines.append(
                    f"- {self.system}, {what}: {cost['calls']} calls, {cost['tokens_in']} tokens in, "
                    f"{cost['tokens_out']} out{dollars}; {new['calls']} calls are new"
                )
        if failed := found["failures"]:
            lines.append(f"- {self.system}: {failed} questions failed and are not counted; run it again")
        if is_judged and (left := found["unjudged"]):
            lines.append(f"- {self.system}: {left} questions have no expected answer and are not counted")
        return lines

    def answers(self) -> list[dict[str, Any]]:
        """Each question with its answer and verdicts as JSON data, for people to read."""
        return [
            {
                "conversation": answer.conversation,
                "question": answer.question.text,
                "category": answer.question.category,
                "expected": answer.question.answer,
                "answer": None if answer.answer is None else answer.answer.text,
                "score": answer.score,
                "f1": answer.f1,
                "verdicts": [reply.text for reply in answer.verdicts],
                "notes": answer.notes,
                "failure": answer.failure,
            }
            for answer in self.outcomes
        ]


def answers_compared(reports: Sequence[AnswerReport], dataset: str, judge: Judge | None) -> str:
    """The systems side by side, as Markdown: the share of correct answers, the gain over the first, tokens and cost."""
    first = reports[0]
    by = "words only (token F1)" if judge is None else f"judge {judge.name} ({judge.source}), {first.judge_model}"
    lines = [f"{dataset}: answers of {first.model}; {by}; percent, with 95 % intervals", ""]
    heads = ["questions", "correct", "vs. first", "token F1", "tokens of notes", "recall p50", "answer p50"]
    lines += [_row(["system", *heads]), _row(["---", *["---:"] * len(heads)])]
    for report in reports:
        found, overall = report.figures(), report.overall
        gain, found_gain = "-", None if report is first else report.than(first)
        if found_gain is not None:
            gap, interval = found_gain
            bounds = "" if interval is None else " ({:+.0f} to {:+.0f})".format(*(100 * one for one in interval))
            gain = f"{100 * gap:+.1f}{bounds}"
        tokens, recall, answer = found["notes_tokens_mean"], found["recall_ms"]["p50"], found["answer_s"]["p50"]
        cells = [report.system, str(overall.count), _share(overall), gain]
        cells += [_percent(found["token_f1"]["mean"]), f"{tokens:.0f}", f"{recall:.1f} ms"]
        lines.append(_row([*cells, "-" if answer is None else f"{answer:.1f} s"]))
    if first.by_category:
        lines += ["", _row(["correct by category", "questions", *(report.system for report in reports)])]
        lines.append(_row(["---", *["---:"] * (len(reports) + 1)]))
        for name, share in first.by_category.items():
            shares = (_share(report.by_category.get(name, Share.of([]))) for report in reports)
            lines.append(_row([name, str(share.count), *shares]))
    return "\n".join(
        [*lines, "", *(note for report in reports for note in report.notes(is_judged=judge is not None)), ""]
    )


def _share(share: Share) -> str:
    bounds = "" if share.interval is None else " ({:.0f}-{:.0f})".format(*(100 * one for one in share.interval))
    return _percent(share.mean) + bounds


def save_picture(path: Path, draw: Callable[[Any], None]) -> None:
    """Writes what ``draw`` draws on its axes. Raises MissingExtra, InvalidInput."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise MissingExtra("--plot", "eval") from error
    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")
    draw(figure.subplots())
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"The picture {path} cannot be written: {error}") from error


def _rounded(value: Any, digits: int = _FRACTION_DIGITS) -> Any:
    """Numbers rounded, alone or in a mapping or sequence; None stays."""
    if isinstance(value, Mapping):
        return {name: _rounded(one, digits) for name, one in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence):
        return [_rounded(one, digits) for one in cast("Sequence[Any]", value)]
    return None if value is None else round(value, digits)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _with_interval(figures: Figures, measure: str) -> str:
    interval = figures.intervals.get(measure)
    bounds = "" if interval is None else " ({}-{})".format(*(f"{bound * 100:.0f}" for bound in interval))
    return f"{_percent(figures.means[measure])}{bounds}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f}"
