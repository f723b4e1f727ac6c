"""What reaches the prompt: the context engineer compared with the plain best of the same recall, with the bars.

Also, by store size, how often the memory that recall ranks first reaches the prompt, and how often an unrelated
question is told nothing.

``--data DIR`` is a folder with `locomo_dev`, `beam_dev`, `own_dev` and `attacks`, or some of them; they are not in the
repository. Without it, the repository's own cases are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from context.cases import case_sets
from context.experiment import DEPTH, run_set
from context.first import told
from report import Row, publish
from rich.console import Console
from rich.progress import Progress

from inference_core.errors import InferenceCoreError
from inference_core.evaluation.formats import load_atomic
from inference_core.evaluation.report import save_picture

FEWER: Final = 0.75
KEPT: Final = 0.97
TOKENS: Final = 0.6
FIRST: Final = 0.97
NOTHING: Final = 0.9
DENSER: Final = 1.5
SILENT: Final = 0.7
CALIBRATED: Final = 0.1
SAVED: Final = ("own_dev/atomic_memories.json", "own_dev/atomic_more.json")
PICTURE: Final = Path(__file__).parent / "results" / "context_quality.png"


async def measured(data: Path | None, split: str, embeddings: str | None) -> dict[str, Any]:
    """The figures of each set of cases."""
    sets = case_sets(data)
    total = sum(len(user.turns) + len(user.cases) for users in sets.values() for user in users)
    found: dict[str, Any] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("memories and questions", total=total)
        for name, users in sets.items():
            found[name] = await run_set(name, users, split, embeddings, lambda: progress.update(task, advance=1))
    return {"split": split, "depth": DEPTH, "sets": found}


def draw(axes: Any, sets: dict[str, Any]) -> None:
    """The share of the bad lines that reach the prompt, plain and marked; poison also by where it came from."""
    rows: dict[str, dict[str, Any]] = {}
    for name, one in sets.items():
        rows |= {f"{name}, {mode}": lines for mode, lines in one["bad"].items()}
        if one["bad"].get("poisoning"):
            rows[f"{name}, poisoning, external"] = one["poisoning"]["external"]
            rows[f"{name}, poisoning, user's trust"] = one["poisoning"]["own"]
    rows = {name: lines for name, lines in rows.items() if lines["before"]}
    plain = [lines["plain"] / lines["before"] for lines in rows.values()]
    marked = [lines["marked"] / lines["before"] for lines in rows.values()]
    axes.barh(list(rows), plain, color="#cc6677", label="told")
    axes.barh(list(rows), marked, left=plain, color="#ddcc77", label="told, marked")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"share of the bad lines among the best {DEPTH} that reach the prompt")
    axes.legend()


def rows_of(found: dict[str, Any]) -> Iterator[Row]:
    """The report's rows: each mode over all sets and by set, then each set's evidence, cost, silence, calibration."""
    sets: dict[str, Any] = found["sets"]
    for mode in ("distraction", "confusion", "clash"):
        yield from _of_mode(mode, {name: one["bad"].get(mode) for name, one in sets.items()}, FEWER)
    yield from _of_mode("poison from outside", _halves(sets, "external"), FEWER)
    yield from _of_mode("poison with the user's trust", _halves(sets, "own"), None)
    for name, one in sets.items():
        yield _kept(f"needed evidence kept, {name}", one["needed"]["all"])
        tokens = one["needed_per_1000_tokens"]["tokens_kept"]
        yield (
            f"tokens beside the plain best, {name}",
            f"{100 * tokens:.1f} %",
            f"{100 * TOKENS:.0f} %",
            tokens <= TOKENS,
        )
        if one["needed"]["external"]["before"]:
            yield _kept(f"needed evidence from outside kept, {name}", one["needed"]["external"])
        yield from _of_set(name, one)


def told_rows(found: dict[int, dict[str, dict[str, float]]]) -> Iterator[Row]:
    """By store size and way in, how often recall's first is told, and nothing if the question is unrelated."""
    for size, ways in found.items():
        for way, shares in ways.items():
            what = f"recall's first of {size} memories is told, {way}"
            yield what, f"{100 * shares['first']:.1f} %", f"{100 * FIRST:.0f} %", shares["first"] >= FIRST
            what = f"unrelated questions, {size} memories: nothing is told, {way}"
            yield what, f"{100 * shares['silent']:.1f} %", f"{100 * NOTHING:.0f} %", shares["silent"] >= NOTHING


def _halves(sets: dict[str, Any], half: str) -> dict[str, Any]:
    return {name: one["poisoning"][half] for name, one in sets.items()}


def _of_mode(what: str, by_set: dict[str, Any], least: float | None) -> Iterator[Row]:
    counted = {name: lines for name, lines in by_set.items() if lines and lines["before"]}
    whole = {key: sum(lines[key] for lines in counted.values()) for key in ("before", "plain", "marked")}
    for name, lines in {"all sets": whole, **counted}.items():
        if not lines["before"]:
            continue
        fewer, unmarked = 1 - (lines["plain"] + lines["marked"]) / lines["before"], 1 - lines["plain"] / lines["before"]
        text = f"{100 * fewer:.1f} % fewer of {lines['before']}; unmarked {100 * unmarked:.1f} % fewer"
        yield (
            f"{what}, {name}",
            text,
            "" if least is None else f"{100 * least:.0f} %",
            None if least is None else fewer >= least,
        )


def _kept(what: str, lines: dict[str, Any]) -> Row:
    return what, f"{100 * lines['kept']:.1f} % of {lines['before']}", f"{100 * KEPT:.0f} %", lines["kept"] >= KEPT


def _of_set(name: str, one: dict[str, Any]) -> Iterator[Row]:
    spent, silence, error = one["needed_per_1000_tokens"], one["silence"], one["calibration_error"]
    ratio = spent["after"] / spent["before"]
    other = "" if spent["langgraph"] is None else f", LangGraph's store {spent['langgraph']:.2f}"
    text = f"{spent['after']:.2f}, plain {spent['before']:.2f}{other}: x {ratio:.2f}"
    yield f"needed memories per 1,000 tokens, {name}", text, f"x {DENSER}", ratio >= DENSER
    if silence["silent"] is not None:
        bar = silence["silent"] >= SILENT and silence["evidence_stays"] >= KEPT
        text = f"silent {100 * silence['silent']:.1f} % of {silence['unanswerable']}"
        text += f"; silent on answerable {100 * silence['wrongly_silent']:.1f} %"
        text += f"; evidence stays in {100 * silence['evidence_stays']:.1f} % of {silence['answerable']}"
        yield f"unanswerable questions, {name}", text, f"{100 * SILENT:.0f} %, {100 * KEPT:.0f} %", bar
    if one["poisoning"]["own"]["before"]:
        yield f"calibration error, {name}", f"{error:.3f}", "", None  # poison is as relevant as what it imitates
    else:
        yield f"calibration error, {name}", f"{error:.3f}", f"{CALIBRATED}", error <= CALIBRATED


def main() -> int:
    """Measures, and publishes the table and the picture."""
    command = argparse.ArgumentParser(prog="sh scripts/bench context_quality", description=__doc__)
    command.add_argument("--data", type=Path)
    command.add_argument("--split", default="test", choices=("tune", "test", "all"))
    command.add_argument("--embeddings", default="auto", metavar="NAME", help="none: recall by words only")
    options = command.parse_args()
    embeddings = None if options.embeddings == "none" else options.embeddings
    try:
        found = asyncio.run(measured(options.data, options.split, embeddings))
        files = [options.data / name for name in SAVED if options.data and (options.data / name).exists()]
        saved = [user for file in files for user in load_atomic(file)]
    except InferenceCoreError as error:
        command.error(str(error))
    save_picture(PICTURE, lambda axes: draw(axes, found["sets"]))
    by_size = told(saved, embeddings) if saved else {}
    return int(not publish("context_quality", [*rows_of(found), *told_rows(by_size)], found | {"told": by_size}))


if __name__ == "__main__":
    sys.exit(main())
