"""What stands in the middleware's default prompt: right, harmful and useless lines, markup, and when it tells nothing.

``--data DIR`` is a folder with `own_dev/noise.json`, `own_dev/atomic_memories.json`, `own_dev/atomic_more.json` and
`own_dev/work_chats.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from context.markup import FORMS, markup_figures
from context.noise import load_noise, noise_figures, prompts, silence
from report import Row, publish

from inference_core.errors import InferenceCoreError
from inference_core.evaluation.formats import load_atomic, load_locomo

NOISE: Final = "own_dev/noise.json"
CHATS: Final = "own_dev/work_chats.json"
SAVED: Final = ("own_dev/atomic_memories.json", "own_dev/atomic_more.json")
BEFORE: Final = {"first": 0.275, "above": 0.339, "relevant": 33, "harmful": 57, "unmarked": 48, "useless": 26}
"""The same prompts without doubts and with `Pruning(min_chance=0.01)`, on these data."""
ABOVE: Final = 0.30
FIRST: Final = 0.28
RELEVANT: Final = 0.95
UNMARKED: Final = 0.5
USELESS: Final = 0.4
OFF_TOPIC: Final = 0.35
WRONG: Final = 0.03
MARKUP: Final = 0.60
"""Of the markup in the form of the CoALA document, which the prompt had before."""


def rows_of(noise: dict[str, Any], quiet: dict[str, Any]) -> Iterator[Row]:
    """The report's rows."""
    before = BEFORE
    text = f"{100 * noise['first']:.1f} % of {noise['questions']}, before {100 * before['first']:.1f} %"
    yield "a right line is the first of all labelled ones", text, f"{100 * FIRST:.0f} %", noise["first"] >= FIRST
    text = f"{100 * noise['above']:.1f} % of pairs, before {100 * before['above']:.1f} %"
    yield "a harmful line above the right one", text, f"{100 * ABOVE:.0f} %", noise["above"] <= ABOVE
    for what, name, share, is_least in (
        ("right lines told", "relevant", RELEVANT, True),
        ("harmful lines told unmarked", "unmarked", UNMARKED, False),
        ("useless lines told", "useless", USELESS, False),
    ):
        bar = share * before[name]
        is_reached = noise[name] >= bar if is_least else noise[name] <= bar
        yield what, f"{noise[name]}, before {before[name]}", f"{bar:.1f}", is_reached
    yield "right lines marked", f"{noise['marked']} of {noise['relevant']}", "", None
    for kind, (there, told, unmarked) in noise["kinds"].items():
        yield f"{kind}: told, of these unmarked", f"{told} of {there}, {unmarked}", "", None
    for name, what, bar, is_reached in (
        (
            "off",
            "questions of other users: nothing told",
            f"{100 * OFF_TOPIC:.0f} %",
            quiet["off"]["silent"] >= OFF_TOPIC,
        ),
        ("wrong", "answerable questions: nothing told", f"{100 * WRONG:.0f} %", quiet["wrong"]["silent"] <= WRONG),
        ("near", "questions without an answer: nothing told", "", None),
    ):
        one = quiet[name]
        text = f"{100 * one['silent']:.1f} % of {one['asked']}; not even a rule {100 * one['empty']:.1f} %"
        yield what, text, bar, is_reached


def markup_rows(found: dict[str, dict[str, dict[str, float]]]) -> Iterator[Row]:
    """The rows of `markup_figures` by file."""
    before, now = FORMS
    for file, counted in found.items():
        for counter, one in counted.items():
            text = f"{one[now]:.0f} tokens, before {one[before]:.0f}: {100 * one['share']:.1f} %; contents "
            text += f"{one['contents']:.0f} in {one['lines']:.1f} lines"
            is_reached = one["share"] <= MARKUP
            yield f"markup of a prompt, {Path(file).stem}, counter {counter}", text, f"{100 * MARKUP:.0f} %", is_reached


def main() -> int:
    """Measures, and publishes the table."""
    command = argparse.ArgumentParser(prog="sh scripts/bench prompt_noise", description=__doc__)
    command.add_argument("--data", type=Path, required=True)
    data: Path = command.parse_args().data
    try:
        found = list(prompts(load_noise(data / NOISE), "auto"))
        users = [user for name in (*SAVED, NOISE) for user in load_atomic(data / name)]
        quiet = silence(users, "auto")
        markup = {
            NOISE: markup_figures(load_atomic(data / NOISE), "auto"),
            CHATS: markup_figures(load_locomo(data / CHATS), "auto"),
        }
    except InferenceCoreError as error:
        command.error(str(error))
    by_user = {user: noise_figures([one for one in found if one.user == user]) for user in {one.user for one in found}}
    noise = noise_figures(found)
    details = {"noise": noise, "noise by user": by_user, "silence": quiet, "markup": markup}
    return int(not publish("prompt_noise", [*rows_of(noise, quiet), *markup_rows(markup)], details))


if __name__ == "__main__":
    sys.exit(main())
