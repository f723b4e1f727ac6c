"""What was found on context cases as Markdown, as JSON data, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from inference_core.context.engineer import ContextEngineer
from inference_core.errors import InvalidInput
from inference_core.evaluation.context_cases import SPLITS, CaseSet, Mode
from inference_core.evaluation.context_experiment import DEPTH, assembled, candidates
from inference_core.evaluation.context_figures import Figures, Lines, figures
from inference_core.evaluation.report import save_picture
from inference_core.evaluation.systems import Advance

_DIGITS: Final = 4
_COLORS: Final = {"told": "#cc6677", "marked": "#ddcc77"}


@dataclass(frozen=True, slots=True)
class ContextReport:
    """The figures of each set of cases, of one half of the cases or of all."""

    split: str
    depth: int
    sets: Sequence[Figures]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data: shares to four digits, None where nothing was counted."""
        return {"split": self.split, "depth": self.depth, "sets": {one.name: _json(one) for one in self.sets}}

    def to_markdown(self) -> str:
        """The report as Markdown tables, in percent."""
        heading = f"context ({self.split}): the engineer beside the plain best {self.depth} of the same recall; percent"
        return "\n".join([heading, "", *self._lines(), "", *self._sets(), ""])

    def _lines(self) -> list[str]:
        rows = [
            [one.name, what, str(lines.before), _percent(lines.fewer), _percent(lines.fewer_plain)]
            for one in self.sets
            for what, lines in _bad(one)
        ]
        return _table(["set", "bad lines", "found", "fewer told", "fewer told unmarked"], rows, left=2)

    def _sets(self) -> list[str]:
        titles = ["set", "cases", "needed, found", "kept", "kept, external", "tokens kept"]
        titles += [
            "needed per 1,000 tokens, plain",
            "engineered",
            "LangGraph",
            "silent, unanswerable",
            "silent, answerable",
            "evidence stays",
        ]
        return _table([*titles, "calibration error"], [_row(one) for one in self.sets], left=1)

    def plot(self, path: Path) -> None:
        """Writes the bad lines that are told, plain and marked, as a picture; the ending of ``path`` names its format.

        Raises MissingExtra without matplotlib, InvalidInput if the file cannot be written or its format is unknown.
        """
        save_picture(path, self._draw)

    def _draw(self, axes: Any) -> None:
        rows = {f"{one.name}, {what}": lines for one in self.sets for what, lines in _bad(one) if lines.before}
        plain = [lines.plain / lines.before for lines in rows.values()]
        marked = [lines.marked / lines.before for lines in rows.values()]
        axes.barh(list(rows), plain, color=_COLORS["told"], label="told")
        axes.barh(list(rows), marked, left=plain, color=_COLORS["marked"], label="told, marked")
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel(f"share of the bad lines among the best {self.depth} that reach the prompt")
        axes.legend()


async def run_context(
    sets: Sequence[CaseSet],
    split: str,
    embeddings: str | None,
    advance: Advance,
    engineer: ContextEngineer | None = None,
) -> ContextReport:
    """Measures the engineer, by default one without options, on the ``tune`` or ``test`` half of the cases, or on all.

    Raises InvalidInput for another split, and what the store and the embedding model raise.
    """
    if split not in SPLITS:
        raise InvalidInput(f"Unknown split {split!r} of the context cases; known: {', '.join(SPLITS)}")
    made = engineer or ContextEngineer()
    found: list[Figures] = []
    for given in sets:
        recalled = await candidates(given, split, embeddings, advance)
        found.append(figures(given.name, [assembled(one, made) for one in recalled]))
    return ContextReport(split, DEPTH, found)


def _bad(found: Figures) -> list[tuple[str, Lines]]:
    """The bad lines by mode; poison by where it came from too."""
    rows = [(mode.value, lines) for mode, lines in found.bad.items()]
    if Mode.POISONING in found.bad:
        rows += [("poisoning, external", found.poison.external), ("poisoning, user's trust", found.poison.own)]
    return rows


def _row(found: Figures) -> list[str]:
    needed, spent, silence = found.needed, found.efficiency, found.silence
    error = found.calibration_error
    return [
        found.name,
        str(found.cases),
        str(needed.own.before + needed.external.before),
        _percent(needed.all.kept),
        _percent(needed.external.kept),
        _percent(spent.tokens_kept),
        *("-" if value is None else f"{value:.2f}" for value in (spent.before, spent.after, spent.langgraph)),
        *(_percent(value) for value in (silence.silent, silence.wrongly_silent, silence.evidence_stays)),
        "-" if error is None else f"{error:.3f}",
    ]


def _json(found: Figures) -> dict[str, Any]:
    return {
        "cases": found.cases,
        "needed": {"all": _counted(found.needed.all), "external": _counted(found.needed.external)},
        "bad": {mode.value: _counted(lines) for mode, lines in found.bad.items()},
        "poisoning": {"external": _counted(found.poison.external), "own": _counted(found.poison.own)},
        "needed_per_1000_tokens": _rounded(asdict(found.efficiency)),
        "silence": _rounded(asdict(found.silence)),
        "calibration_error": None if found.calibration_error is None else round(found.calibration_error, _DIGITS),
    }


def _counted(lines: Lines) -> dict[str, Any]:
    return asdict(lines) | _rounded({"kept": lines.kept, "fewer": lines.fewer, "fewer_plain": lines.fewer_plain})


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in values.items()}


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    rule = [*["---"] * left, *["---:"] * (len(titles) - left)]
    return ["| " + " | ".join(cells) + " |" for cells in (titles, rule, *rows)]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
