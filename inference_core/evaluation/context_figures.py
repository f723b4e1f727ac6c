"""Sums over the outcomes of context cases: bad and needed lines before and after, costs, silence, calibration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from inference_core.evaluation.context_cases import Mode
from inference_core.evaluation.context_experiment import Fate, Line, Outcome
from inference_core.evaluation.metrics import calibration_error

_THOUSAND: Final = 1_000
_JUDGED: Final = 10


@dataclass(frozen=True, slots=True)
class Lines:
    """How many lines recall found, and how many of them the engineer tells as plain lines, and marked."""

    before: int
    plain: int
    marked: int

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Lines:
        """The counts of ``lines``."""
        fates = [line.fate for line in lines]
        return cls(len(fates), fates.count(Fate.PLAIN), fates.count(Fate.MARKED))

    @property
    def kept(self) -> float | None:
        """The share that reaches the prompt, marked or not."""
        return (self.plain + self.marked) / self.before if self.before else None

    @property
    def fewer(self) -> float | None:
        """By which share fewer reach the prompt at all."""
        return None if self.kept is None else 1 - self.kept

    @property
    def fewer_plain(self) -> float | None:
        """By which share fewer reach the prompt as if they were true."""
        return 1 - self.plain / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class Halves:
    """The same lines by origin: those of users, the application or an agent, and those of tools, documents, the web."""

    own: Lines
    external: Lines

    @property
    def all(self) -> Lines:
        """Both together."""
        return Lines(
            self.own.before + self.external.before,
            self.own.plain + self.external.plain,
            self.own.marked + self.external.marked,
        )

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Halves:
        """The counts of ``lines``."""
        return cls(
            Lines.of(line for line in lines if not line.is_external),
            Lines.of(line for line in lines if line.is_external),
        )


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Needed memories told for each thousand tokens: plain recall, engineered, and LangGraph's store.

    ``tokens_kept`` is the share of plain recall's tokens that the engineered context takes, over all cases.
    """

    before: float | None
    after: float | None
    langgraph: float | None
    tokens_kept: float | None


@dataclass(frozen=True, slots=True)
class Silence:
    """Shares of cases: nothing is told though nothing answers, nothing is told though something does, evidence stays.

    Evidence stays in a case if all of it that recall found is told; cases of which it found none do not count.
    """

    unanswerable: int
    silent: float | None
    answerable: int
    wrongly_silent: float | None
    evidence_stays: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What was found on one set of cases."""

    name: str
    cases: int
    needed: Halves
    bad: dict[Mode, Lines]
    poison: Halves
    efficiency: Efficiency
    silence: Silence
    calibration_error: float | None


def figures(name: str, outcomes: Sequence[Outcome]) -> Figures:
    """The sums over ``outcomes``."""
    lines = [line for outcome in outcomes for line in outcome.lines]
    by_mode = {mode: [line for line in lines if line.mode is mode] for mode in Mode}
    return Figures(
        name=name,
        cases=len(outcomes),
        needed=Halves.of([line for line in lines if line.mode is None]),
        bad={mode: Lines.of(found) for mode, found in by_mode.items() if found},
        poison=Halves.of(by_mode[Mode.POISONING]),
        efficiency=_efficiency(outcomes),
        silence=_silence(outcomes),
        calibration_error=calibration_error([pair for outcome in outcomes for pair in outcome.judged[:_JUDGED]]),
    )


def _efficiency(outcomes: Sequence[Outcome]) -> Efficiency:
    """Over cases that something answers."""
    asked = [outcome for outcome in outcomes if outcome.case.answerable]
    needed = [line for outcome in asked for line in outcome.lines if line.mode is None]
    elsewhere = [outcome.elsewhere for outcome in asked if outcome.elsewhere is not None]
    return Efficiency(
        before=_each_thousand(len(needed), sum(outcome.tokens_before for outcome in asked)),
        after=_each_thousand(
            sum(line.fate > Fate.GONE for line in needed), sum(outcome.tokens_after for outcome in asked)
        ),
        langgraph=_each_thousand(sum(one for one, _ in elsewhere), sum(tokens for _, tokens in elsewhere)),
        tokens_kept=sum(outcome.tokens_after for outcome in outcomes) / (_tokens_before(outcomes) or 1),
    )


def _silence(outcomes: Sequence[Outcome]) -> Silence:
    unanswerable = [outcome.is_uncertain for outcome in outcomes if not outcome.case.answerable]
    answerable = [outcome for outcome in outcomes if any(line.mode is None for line in outcome.lines)]
    stays = [all(line.fate for line in outcome.lines if line.mode is None) for outcome in answerable]
    return Silence(
        unanswerable=len(unanswerable),
        silent=_share(unanswerable),
        answerable=len(answerable),
        wrongly_silent=_share([outcome.is_uncertain for outcome in answerable]),
        evidence_stays=_share(stays),
    )


def _tokens_before(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.tokens_before for outcome in outcomes)


def _each_thousand(count: int, tokens: int) -> float | None:
    return _THOUSAND * count / tokens if tokens else None


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None
