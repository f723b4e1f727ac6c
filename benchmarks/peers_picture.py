"""The picture of `sh scripts/bench peers`: recall@10 of each system on each data set, drawn from its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PICTURE: Final = Path(__file__).parents[1] / "docs" / "benchmarks" / "peers_recall.png"
_RESULTS: Final = Path(__file__).parent / "results" / "peers.json"
_OURS: Final = "inference_core"
_NAMES: Final = {
    "locomo_dev": "LoCoMo",
    "beam_dev": "BEAM-100K",
    "atomic_memories": "short memories",
    "atomic_more": "more short memories",
    "atomic_languages": "in five languages",
    "noise": "with noise",
    "multilingual_chats": "German and Chinese chats",
}
"""What the documentation calls the data sets."""


def draw(systems: Mapping[str, Mapping[str, Any]]) -> None:
    """One row for each data set, with a dot for each system; those that rank by the same vectors may coincide."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    sets = [str(one["data"]) for one in systems[_OURS]["quality"]]
    figure = Figure(figsize=(8.5, 0.5 * len(sets) + 1.8), layout="constrained")
    axes = figure.add_subplot()
    for name, found in reversed([*systems.items()]):  # ours is drawn last, above the others
        recalls = {one["data"]: 100 * one["R@10"] for one in found["quality"]}
        places = [at for at, one in enumerate(sets) if one in recalls]
        size = 110 if name == _OURS else 40
        axes.scatter([recalls[sets[at]] for at in places], places, s=size, label=name, zorder=3 if name == _OURS else 2)
    axes.set(title="Recall@10 with the same embedding model", xlabel="% of the relevant memories", xlim=(0, 100))
    axes.set_yticks(range(len(sets)), [_NAMES.get(one, one.replace("_", " ")) for one in sets])
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.legend(fontsize="small", loc="outside lower center", ncols=4)
    figure.savefig(PICTURE, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    draw(json.loads(_RESULTS.read_text(encoding="utf-8"))["details"]["systems"])
