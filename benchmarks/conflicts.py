"""How many contradictions between two notes a context recognises, on labelled pairs of which half were held out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from context.conflicts import pairs, scored
from report import Row, publish

RECALL: Final = 0.8
PRECISION: Final = 0.95
_SHOWN: Final = {"tune": "tuned on", "test": "held out"}


def rows(found: dict[str, Any]) -> Iterator[Row]:
    """A row for each half, with the bars, and one for each of its kinds."""
    for half, kinds in found.items():
        for kind, score in kinds.items():
            shares = [f"{score['right']} of {score['conflicts']} found"] if score["conflicts"] else []
            wrong, others = score["found"] - score["right"], score["pairs"] - score["conflicts"]
            shares += [f"{wrong} of {others} others taken for one"] if others else []
            bar = kind == "all"
            if bar:
                shares.append(f"recall {score['recall']:.2f}, precision {score['precision']:.2f}")
            yield (
                f"{kind}, {_SHOWN[half]}",
                "; ".join(shares),
                f"recall {RECALL}, precision {PRECISION}" if bar else "",
                score["recall"] >= RECALL and score["precision"] >= PRECISION if bar else None,
            )


def main() -> int:
    """Measures and publishes; 1 if a bar was missed."""
    found: dict[str, Any] = {}
    for half in _SHOWN:
        chosen = [pair for pair in pairs() if pair.half == half]
        kinds = dict.fromkeys(pair.kind for pair in chosen)
        found[half] = {kind: scored([pair for pair in chosen if pair.kind == kind]) for kind in kinds}
        found[half]["all"] = scored(chosen)
    return int(not publish("conflicts", list(rows(found)), found))


if __name__ == "__main__":
    sys.exit(main())
