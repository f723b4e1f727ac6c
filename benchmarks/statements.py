"""Which plain sentences rules remember: against labelled ones in English and German, half of them held out."""

from __future__ import annotations

import sys
from pathlib import Path

from report import Row, publish

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from statement_support import MIN_PRECISION, MIN_RECALL, Sentence, scored, sentences


def _row(name: str, members: list[Sentence], *, has_bar: bool = False) -> Row:
    score = scored(members)
    precision = f"precision {score.precision:.3f} ({score.right} of {score.found})"
    result = f"{precision}, recall {score.recall:.3f} ({score.right} of {score.wanted})"
    bar = f"precision {MIN_PRECISION}, recall {MIN_RECALL}" if has_bar else ""
    return f"{name}, {len(members)} sentences", result, bar, score.holds if has_bar else None


if __name__ == "__main__":
    every = sentences()
    tuned = [one for one in every if not one.held_out]
    held_out = [one for one in every if one.held_out]
    languages = {"English": "en", "German": "de"}
    table = [
        _row(f"held out, {name}", [one for one in held_out if one.language == key]) for name, key in languages.items()
    ]
    table += [_row("tuned on", tuned), _row("**held out**", held_out, has_bar=True)]
    sys.exit(not publish("statements", table))
