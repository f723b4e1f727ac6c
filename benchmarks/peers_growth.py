"""How the time of a search grows with one user's memories, in this package and in others, with a picture.

The systems are those of `sh scripts/bench peers`. Vectors cost nothing, so that the stores are measured and no model.
What is not installed is left out, and so is a size that would take minutes to store or to ask.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from peers import grown, made, own_postgres, systems, versions
from report import Row, publish

from inference_core.errors import InferenceCoreError

SIZES: Final = (1_000, 10_000, 100_000)
PATIENCE_S: Final = 300.0
PICTURE: Final = Path(__file__).parents[1] / "docs" / "benchmarks" / "peers.png"
_ASKED: Final = 30


def is_too_long(last: dict[str, Any], size: int) -> bool:
    """Whether to store so many memories, or to ask then, would take too long, by how long fewer have taken."""
    return max(last["fill_s"], _ASKED * last["p50"] / 1_000) * size / last["memories"] > PATIENCE_S


def draw(found: dict[str, list[dict[str, Any]]]) -> None:
    """The median of a search over the number of memories."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for name, one in found.items():
        width = 3 if name == "inference_core" else 1.2
        axes.plot([at["memories"] for at in one], [at["p50"] for at in one], marker="o", linewidth=width, label=name)
    axes.set(
        title="A search among the memories of one user (medians)",
        xlabel="memories",
        ylabel="ms",
        xscale="log",
        yscale="log",
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(PICTURE, dpi=130, metadata={"Software": None})


def main() -> int:
    """Measures every system that is installed at each size, and publishes after each."""
    parser = argparse.ArgumentParser(prog="sh scripts/bench peers_growth", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="default: 1000 10000 100000")
    parser.add_argument("--postgres", help="URL of an empty PostgreSQL database with pgvector")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    rows: list[Row] = []
    found: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as opened:
        postgres = options.postgres or own_postgres(opened)
        for name, make in systems(postgres).items():
            try:
                for size in options.sizes:
                    what = f"{name}: search among {size:,}"
                    if name in found and is_too_long(found[name][-1], size):
                        rows.append((what, "left out, it would take minutes", "", None))
                        break
                    with tempfile.TemporaryDirectory() as folder:
                        one = grown(make, size, made(Path(folder) / "grown"))
                    found.setdefault(name, []).append(one)
                    text = f"p50 {one['p50']:.1f} ms, p95 {one['p95']:.1f} ms, stored in {one['fill_s']:.1f} s"
                    rows.append((what, text, "", None))
            except (ImportError, InferenceCoreError) as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
            publish("peers_growth", rows, {"versions": versions(postgres), "systems": found}, shown=False)
    publish("peers_growth", rows, {"versions": versions(postgres), "systems": found})
    draw(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
