"""What stands in the middleware's default prompt: right, harmful and useless lines, markup, and when it tells nothing.

Also, on sets that no mark was written on, how many right lines have one. ``--data DIR`` is a folder with
`own_dev/work_chats.json`, `own_dev/noise.json` and the files of saved memories in `own_dev`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from context.markup import FORMS, markup_figures
from context.noise import load_marks, load_noise, load_saved, noise_figures, prompts, silence
from report import Row, publish

from inference_core.errors import InferenceCoreError
from inference_core.evaluation.formats import load_atomic, load_locomo

NOISE: Final = "own_dev/noise.json"
CHATS: Final = "own_dev/work_chats.json"
SAVED: Final = ("own_dev/atomic_memories.json", "own_dev/atomic_more.json")
UNSEEN: Final[dict[str, int | None]] = {
    "own_dev/atomic_memories.json": None,
    "own_dev/atomic_more.json": None,
    "own_dev/atomic_languages.json": None,
    "own_dev/everyday.json": 3,
}
"""Sets that no mark was written on, with the number of their first users that are asked, None for all."""
BEFORE: Final = {"first": 0.275, "above": 0.339, "relevant": 33, "harmful": 57, "unmarked": 48, "useless": 26}
"""The same prompts without doubts and with `Pruning(min_chance=0.01)`, on these data."""
ABOVE: Final = 0.30
FIRST: Final = 0.28
RELEVANT: Final = 0.95
UNMARKED: Final = 0.4
USELESS: Final = 0.4
OFF_TOPIC: Final = 0.35
WRONG: Final = 0.03
MARKUP: Final = 0.60
"""Of the markup in the form of the CoALA document, which the prompt had before."""
DOUBTED: Final = 0.03


def rows_of(noise: dict[str, Any], quiet: dict[str, Any], others: dict[str, Any]) -> Iterator[Row]:
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
    text = f"{noise['doubted']} of {noise['relevant']}; with those that name a tool as their source {noise['marked']}"
    yield "right lines with a doubt", text, f"{100 * DOUBTED:.0f} %", noise["doubted"] <= DOUBTED * noise["relevant"]
    yield from _kinds("", noise)
    for name, found in others.items():
        bar = f"{100 * DOUBTED:.0f} %"
        text = f"{found['doubted']} of {found['relevant']}"
        yield f"{name}: right lines with a doubt", text, bar, found["doubted"] <= DOUBTED * found["relevant"]
        yield from _kinds(f"{name}: ", found)
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


def _kinds(name: str, found: dict[str, Any]) -> Iterator[Row]:
    for kind, (there, told, unmarked) in found["kinds"].items():
        yield f"{name}{kind}: told, of these unmarked", f"{told} of {there}, {unmarked}", "", None


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
        sets = {name: load_saved(data / name, most) for name, most in UNSEEN.items()}
        sets |= {f"marks, {half}": load_marks(half) for half in ("tune", "test")}
        others = {Path(name).stem: noise_figures(list(prompts(users, "auto"))) for name, users in sets.items()}
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
    details = {"noise": noise, "noise by user": by_user, "others": others, "silence": quiet, "markup": markup}
    return int(not publish("prompt_noise", [*rows_of(noise, quiet, others), *markup_rows(markup)], details))


if __name__ == "__main__":
    sys.exit(main())
