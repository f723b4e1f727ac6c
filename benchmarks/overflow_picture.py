"""The picture of how many facts of long conversations are recallable, by system."""

from __future__ import annotations

from typing import Final

from command import Result
from growth import PICTURES
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_PARTS: Final = (("window", "in what the model is shown", "#66b395"), ("recall", "found by its question", "#0b6e4f"))
_LOST: Final = "#e3e3e3"
_LONG: Final = 50
_THEIRS: Final = "#c1440e"


def draw(result: Result) -> None:
    """A bar for each system: the facts that the model is shown at the end, and those that memory finds."""
    systems = {name: one["total"] for name, one in reversed(result["systems"].items())}
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.add_subplot()
    _bars(axes, systems)
    first = next(iter(systems.values()))
    sizes = " and ".join(f"{size:,}" for size in result["sizes"])
    figure.suptitle(
        f"What is left of {first['facts']:,} facts that were said in conversations of {sizes} messages",
        fontsize=11,
    )
    axes.set(xlim=(0, 100), xlabel=f"% of the facts; the model is shown at most {result['limit']:,} tokens")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / "overflow.png", dpi=130, metadata={"Software": None})


def _bars(axes: Axes, systems: dict[str, Result]) -> None:
    names = list(systems)
    axes.barh(names, [100] * len(names), color=_LOST, height=0.6, label="not recallable")
    start = [0.0] * len(names)
    for part, label, colour in _PARTS:
        found = [one[part] if part == "window" else one["recallable"] - one["window"] for one in systems.values()]
        sizes = [100 * count / one["facts"] for count, one in zip(found, systems.values(), strict=True)]
        axes.barh(names, sizes, left=start, color=colour, height=0.6, label=label)
        start = [left + size for left, size in zip(start, sizes, strict=True)]
    for at, one in enumerate(systems.values()):
        share = 100 * one["recallable"] / one["facts"]
        is_long = share > _LONG
        text = f"{share:.1f} %"
        axes.text(
            share - 1 if is_long else share + 1,
            at,
            text,
            va="center",
            ha="right" if is_long else "left",
            color="white" if is_long else "black",
            fontweight="bold",
        )
    axes.tick_params(axis="y", length=0)
    for tick in axes.get_yticklabels():
        tick.set_color(_THEIRS if tick.get_text().startswith("LangChain") else "black")
