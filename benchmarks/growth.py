"""Recall, save, update, cold start, middleware and ingest at growing sizes, with a picture of each in docs/benchmarks.

Every measurement is a process of its own. At the last size, users with 100 memories each share the store. The results
of each operation go to benchmarks/results/growth_NAME.json as soon as they are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import recall
from command import Options, Result, described, plain
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report import Row, publish
from timing import watched

HERE: Final = Path(__file__).parent
PICTURES: Final = HERE.parent / "docs" / "benchmarks"
SIZES: Final = (1_000, 10_000, 100_000)
MEMORIES_OF_A_USER: Final = 100


class Operation(NamedTuple):
    """What is measured, what its picture is called, and up to which size it is worth the time."""

    name: str
    title: str
    largest: int = SIZES[-1]


OPERATIONS: Final = (
    Operation("recall", "One hybrid recall, ten results (median)"),
    Operation("save", "One durable save (median)"),
    Operation("update", "One durable update (median)"),
    Operation("cold", "From opening the store to the first recall by its index (median)"),
    Operation("middleware", "What memory adds to an agent's turn (median)"),
    Operation("ingest", "One turn saved with the local model, 32 at a time (mean)", 10_000),
)
LINES: Final = {
    "ours_ms": ("ours", "#0b6e4f", "o"),
    "ours_late_ms": ("ours, with late interaction", "#66b395", "o"),
    "inmemory_ms": ("LangGraph InMemoryStore", "#c1440e", "s"),
    "sqlite_ms": ("LangGraph SqliteStore", "#8a5a00", "^"),
    "floor_ms": ("floor", "#666666", "x"),
}
_FLOORS: Final = {"ingest": "the model alone", "save": "bare commit", "update": "bare commit"}
_DEFAULT_FLOOR: Final = "numpy product + FTS5"


def sizes(max_n: int) -> list[Options]:
    """Each size of one user, and the largest one shared by small users."""
    chosen = [size for size in SIZES if size <= max_n] or [max_n]
    users = chosen[-1] // MEMORIES_OF_A_USER
    return [*map(Options, chosen), *([Options(chosen[-1], users)] if users > 1 else [])]


def measured(operation: Operation, max_n: int) -> list[Result]:
    """What the operation's benchmark says at each size."""
    chosen = sizes(min(max_n, operation.largest))
    return [_apart(operation.name, options) for options in watched(chosen, f"sizes of {operation.name}")]


def _apart(name: str, options: Options) -> Result:
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", "--unpublished"]
    sized = [*command, "--n", str(options.n), "--users", str(options.users)]
    return json.loads(subprocess.run(sized, stdout=subprocess.PIPE, text=True, check=True).stdout)


def draw(operation: Operation, results: Sequence[Result]) -> None:
    """The picture of ``operation``: time over the number of memories, both on logarithmic scales."""
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for key in LINES:
        if known := [result for result in results if result.get(key) is not None]:
            _line(axes, operation, key, known)
    axes.set(title=operation.title, xlabel="memories in the store", ylabel="ms", xscale="log", yscale="log")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / f"{operation.name}.png", dpi=130, metadata={"Software": None})


def _line(axes: Axes, operation: Operation, key: str, known: Sequence[Result]) -> None:
    """One contender: a line for one user, a hollow mark where the memories are shared by many."""
    label, colour, mark = LINES[key]
    label = _FLOORS.get(operation.name, _DEFAULT_FLOOR) if key == "floor_ms" else label
    one_user = [result for result in known if result["users"] == 1]
    axes.plot([one["n"] for one in one_user], [one[key] for one in one_user], color=colour, marker=mark, label=label)
    for result in known:
        if result["users"] > 1:
            shared = f"{label}, {result['users']:,} users" if key == "ours_ms" else None
            axes.plot(result["n"], result[key], mark, color=colour, mfc="none", ms=10, ls="none", label=shared)


def table(name: str, results: Sequence[Result]) -> list[Row]:
    """The report's rows: everything that the picture shows."""
    return list(_rows(name, results))


def _rows(name: str, results: Sequence[Result]) -> Iterator[Row]:
    for result in results:
        where = f"{name} {described(result)}"
        for key, (label, _, _) in LINES.items():
            if result.get(key) is not None:
                yield plain(f"{where}: {label}", result[key])
        if name == "recall":
            yield from recall.ratios(result)


def main() -> int:
    """Measures, draws and writes the results of one operation after the other."""
    mpl.use("agg")
    arguments = _arguments()
    for operation in OPERATIONS:
        if not arguments.only or operation.name in arguments.only:
            results = measured(operation, arguments.max_n)
            draw(operation, results)
            publish(f"growth_{operation.name}", table(operation.name, results), {"sizes": results})
    return 0


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="sh scripts/bench growth", description=__doc__)
    parser.add_argument("--max-n", type=int, default=SIZES[-1], help="largest store (default: %(default)s)")
    names = [one.name for one in OPERATIONS]
    parser.add_argument("--only", action="append", choices=names, help="one operation; may be repeated (default: all)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
