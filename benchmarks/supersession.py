"""Which statements supersede which: rules against labelled pairs, by phenomenon, with held-out pairs apart."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from report import Row, publish

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from supersession_support import MIN_PRECISION, MIN_RECALL, Pair, pairs, scored


def rows(chosen: Iterable[Pair]) -> list[Row]:
    """A row for each phenomenon without a bar, then those of all of them with one."""
    by_phenomenon: dict[str, list[Pair]] = {}
    for pair in (chosen := list(chosen)):
        by_phenomenon.setdefault(f"{pair.phenomenon}{', held out' * pair.held_out}", []).append(pair)
    table = [_row(name, members, None) for name, members in sorted(by_phenomenon.items())]
    parts = {
        "tuned on": [pair for pair in chosen if not pair.held_out],
        "held out": [pair for pair in chosen if pair.held_out],
        "all": chosen,
    }
    return [
        *table,
        *(_row(f"**{name}**", members, scored(members).holds) for name, members in parts.items() if members),
    ]


def _row(name: str, members: list[Pair], reached: bool | None) -> Row:
    score = scored(members)
    precision = f"precision {_share(score.precision, score.right, score.found)}"
    recall = f"recall {_share(score.recall, score.right, score.superseding)}"
    result = f"{precision}, {recall}; {score.agreed} of {score.pairs} labels"
    return name, result, "" if reached is None else f"precision {MIN_PRECISION}, recall {MIN_RECALL}", reached


def _share(share: float, part: int, whole: int) -> str:
    return f"{share:.2f} ({part} of {whole})" if whole else "- (none)"


if __name__ == "__main__":
    if "--tuned" in sys.argv:
        publish("supersession", rows(pair for pair in pairs() if not pair.held_out), written=False)
    else:
        sys.exit(not publish("supersession", rows(pairs())))
