"""All promises, and a runner that tests them on the stores of a factory, without pytest."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from unittest import SkipTest

from inference_core.testing.conformance.contract import ItemContract, SearchContract
from inference_core.testing.conformance.promises import Promise, Promises, promises_of
from inference_core.testing.conformance.robustness import SearchRobustness, SharedRobustness
from inference_core.testing.conformance.subject import (
    MODES,
    Factory,
    Location,
    Mode,
    WatchedEmbeddings,
    trying,
)
from inference_core.testing.conformance.traces import TimeRobustness, TraceRobustness


class EveryPromise(ItemContract, SearchContract, SearchRobustness, TraceRobustness, TimeRobustness, SharedRobustness):
    """What LangGraph documents, and where stores are known to fall short."""


class Outcome(StrEnum):
    """Whether a store keeps a promise."""

    KEPT = "kept"
    BROKEN = "broken"
    UNTRIED = "not applicable"


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """The result of testing a promise in one mode; ``note`` says how it was broken, or why it was not tested."""

    mode: Mode
    outcome: Outcome
    note: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise and its results, one for each mode."""

    promise: Promise
    findings: tuple[PromiseResult, ...]

    @property
    def outcome(self) -> Outcome:
        """Broken if any mode breaks it, kept if any keeps it."""
        outcomes = {finding.outcome for finding in self.findings}
        return next(one for one in (Outcome.BROKEN, Outcome.KEPT, Outcome.UNTRIED) if one in outcomes)

    def notes(self) -> list[str]:
        """The reasons for the outcome, without duplicates; each names its modes, unless it holds for all of them."""
        shown = [finding for finding in self.findings if finding.outcome is self.outcome and finding.note]
        modes = {note: [one.mode for one in shown if one.note == note] for note in dict.fromkeys(f.note for f in shown)}
        return [f"{note} ({', '.join(names)})" if len(names) < len(MODES) else note for note, names in modes.items()]


def verdicts(factory: Factory, only: str = "", kind: type[Promises] = EveryPromise) -> Iterator[Verdict]:
    """Tests the promises of ``kind`` whose names contain ``only``, each on a new store. Raises ConfigurationError."""
    factory.function()
    for promise in promises_of(kind):
        if only in promise.name:
            test, findings = getattr(kind(), promise.name), list[PromiseResult]()
            for mode in MODES:
                started, outcome, note = time.perf_counter(), Outcome.KEPT, ""
                with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
                    place, embeddings = Location(Path(folder), factory), WatchedEmbeddings()
                    try:
                        with trying(factory.make(place.folder, embeddings), mode, embeddings, place) as subject:
                            test(subject)
                    except SkipTest as reason:
                        outcome, note = Outcome.UNTRIED, str(reason)
                    except AssertionError as error:
                        outcome, note = Outcome.BROKEN, " ".join(str(error).split())
                    except Exception as error:  # noqa: BLE001 - whatever a store raises breaks the promise
                        text = " ".join(str(error).split())
                        outcome, note = Outcome.BROKEN, f"{type(error).__name__}: {text}"[:300]
                findings.append(PromiseResult(mode, outcome, note, time.perf_counter() - started))
            yield Verdict(promise, tuple(findings))
