"""Quality of recall on conversations with questions: every system on every data set that is there, with the bars.

``--data DIR`` is a folder with `locomo_dev`, `beam_dev` and `own_dev`, or some of them; they are not in the repository.
With ``--embeddings NAME``, the results are named after the model, as in `quality_local_large`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from report import Row, publish


class Bar(NamedTuple):
    """The least recall@10 of a system on a data set, overall and, for adversarial questions, in category 5."""

    overall: float
    adversarial: float | None = None


SETS = {
    "LoCoMo": ("locomo", "locomo_dev/locomo_dev.json"),
    "atomic memories": ("atomic", "own_dev/atomic_memories.json"),
    "more atomic memories": ("atomic", "own_dev/atomic_more.json"),
    "atomic memories in five languages": ("atomic", "own_dev/atomic_languages.json"),
    "atomic memories with noise": ("atomic", "own_dev/noise.json"),
    "work chats": ("locomo", "own_dev/work_chats.json"),
    "German and Chinese chats": ("locomo", "own_dev/multilingual_chats.json"),
    "BEAM-100K": ("beam", "beam_dev"),
}
SYSTEMS = ("ours", "ours-no-late", "lexical", "langgraph-inmemory")
BARS = {
    ("LoCoMo", "ours"): Bar(0.79, 0.89),
    ("LoCoMo", "ours-no-late"): Bar(0.76, 0.87),
    ("LoCoMo", "lexical"): Bar(0.73, 0.87),
    ("BEAM-100K", "ours"): Bar(0.63),
    ("BEAM-100K", "ours-no-late"): Bar(0.62),
    ("BEAM-100K", "lexical"): Bar(0.56),
    ("atomic memories", "ours"): Bar(0.77),
    ("work chats", "ours"): Bar(0.74),
    ("German and Chinese chats", "ours"): Bar(0.72),
}


def evaluated(format_name: str, path: Path, system: str, embeddings: str) -> dict[str, Any]:
    """What the command ``inference-core eval`` reports."""
    command = [sys.executable, "-m", "inference_core", "eval", format_name, "--data", str(path), "--system", system]
    command += ["--embeddings", embeddings, "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def row_of(data: str, system: str, found: dict[str, Any]) -> Row:
    """The report's row of one evaluation."""
    recall, adversarial = found["overall"]["R@10"], found["by_category"].get("5", {}).get("R@10")
    bar = BARS.get((data, system))
    categories = "/".join(
        f"{100 * found['by_category'][name]['R@10']:.0f}" for name in "1234" if name in found["by_category"]
    )
    text = f"{100 * recall:.1f}" + (f" ({categories})" if categories else "")
    text += f", MRR {100 * found['overall']['MRR']:.1f}"
    text += f", category 5 {100 * adversarial:.1f}" if adversarial is not None else ""
    for kind, noise in found["noise"].items():
        places = "/".join(f"{100 * noise[name]:.0f}" for name in ("top_5", "top_10", "above"))
        text += f", {kind} in the first 5/10/above the right one {places} %"
    if bar is None:
        return (f"R@10, {data}, {system}", text, "", None)
    reached = recall >= bar.overall and (bar.adversarial is None or (adversarial or 0) >= bar.adversarial)
    wanted = f"{100 * bar.overall:.0f}" + (f", category 5 {100 * bar.adversarial:.0f}" if bar.adversarial else "")
    return (f"R@10, {data}, {system}", text, wanted, reached)


def measured(
    folder: Path, systems: list[str], sets: list[str], embeddings: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Data set, system, and what was found."""
    for data in sets:
        format_name, name = SETS[data]
        if (folder / name).exists():
            for system in systems:
                yield data, system, evaluated(format_name, folder / name, system, embeddings)


def main() -> int:
    """Measures, and publishes the table."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--system", action="append", choices=SYSTEMS)
    command.add_argument("--set", action="append", choices=list(SETS))
    command.add_argument("--embeddings", default="auto")
    options = command.parse_args()
    result = "quality" if options.embeddings == "auto" else f"quality_{options.embeddings.replace('-', '_')}"
    rows: list[Row] = []
    details: dict[str, Any] = {}
    reached = False
    for data, system, report in measured(
        options.data, options.system or list(SYSTEMS), options.set or list(SETS), options.embeddings
    ):
        rows.append(row_of(data, system, report))
        details[f"{data}, {system}"] = report
        reached = publish(result, rows, details)  # after each, because all of them take half an hour
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main())
