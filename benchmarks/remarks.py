"""Whether recall finds what a user once remarked when a much later message shares no word with it.

`context/remarks.json` has 200 pairs of a remark and such a message ("Keeps the stairs for emergencies since the
operation on the left knee": "Should we take the flat on the fourth floor?"), half of them like saved memories, half
like turns of a chat. Seven users have 50 memories each: four in English, 35 of their own remarks and 15 of another
user's, and one each in German, Spanish and Chinese, 20 remarks and 30 other lines. Compared with recall by words and
with plain cosine, with the same model.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

from report import Row, publish

from inference_core.evaluation.conversations import (
    Conversation,
    ConversationQuestion,
    ConversationTurn,
    conversation_of,
)
from inference_core.evaluation.experiment import HEADLINE, RetrievalSummary, run_experiment, summarize
from inference_core.evaluation.systems import make_system
from inference_core.memory.types import MemoryType

DATA: Final = Path(__file__).parent / "context" / "remarks.json"
SYSTEMS: Final = ("ours", "lexical", "dense")
LEAD: Final = 0.02
"""By how much R@10 should lead plain cosine."""
SIZE: Final = 50
TURNS: Final = 5
"""How many remarks a session of a chat has."""
Pairs = Sequence[Sequence[str]]
"""Remarks, each with the later message that should remind of it."""


def users_of(path: Path = DATA) -> list[Conversation]:
    """The users of ``path``."""
    data = json.loads(path.read_text(encoding="utf-8"))
    pairs: dict[str, dict[str, Pairs]] = data["pairs"]
    found = list(_english(pairs.pop("en")))
    for language, styles in pairs.items():
        found.append(_user(language, styles, data["others"][language]))
    return found


def _english(styles: dict[str, Pairs]) -> Iterator[Conversation]:
    for style, other in (("saved", "said"), ("said", "saved")):
        middle = len(styles[style]) // 2
        for number, own in enumerate((styles[style][:middle], styles[style][middle:])):
            strangers = [remark for remark, _ in styles[other][number * middle :][: SIZE - middle]]
            yield _user(f"en-{style}-{number}", {style: own}, strangers)


def _user(name: str, styles: dict[str, Pairs], others: Sequence[str]) -> Conversation:
    """A user with these remarks and ``others`` in mixed order; the others are saved or said like the remarks."""
    kinds = list(styles)
    lines = [(style, remark) for style, pairs in styles.items() for remark, _ in pairs]
    lines += [(kinds[at % len(kinds)], other) for at, other in enumerate(others)]
    random.Random(0).shuffle(lines)
    turns: list[ConversationTurn] = []
    said = 0
    for at, (style, text) in enumerate(lines):
        if style == "saved":
            turns.append(ConversationTurn(str(at), None, None, None, text, memory_type=MemoryType.FACTS.value))
        else:
            turns.append(ConversationTurn(str(at), f"s{said // TURNS}", None, None, text))
            said += 1
    ids = {turn.text: turn.id for turn in turns}
    asked = [
        ConversationQuestion(later, None, f"{name.partition('-')[0]} {style}", (ids[remark],))
        for style, pairs in styles.items()
        for remark, later in pairs
    ]
    return conversation_of(name, turns, asked)


def rows_of(found: dict[str, RetrievalSummary]) -> Iterator[Row]:
    """The report's rows: R@5, R@10 and MRR of each system, overall and by language and style."""
    wanted = cast("float", found["dense"].overall.means["R@10"]) + LEAD
    for system, summary in found.items():
        for kind, figures in {"": summary.overall, **summary.by_category}.items():
            text = ", ".join(f"{name} {100 * cast('float', figures.means[name]):.1f}" for name in HEADLINE)
            has_bar = system == "ours" and not kind
            is_reached = cast("float", figures.means["R@10"]) >= wanted if has_bar else None
            what = f"{system}, {kind or 'all'} ({figures.questions})"
            yield what, text, f"R@10 {100 * wanted:.1f}" if has_bar else "", is_reached


def main() -> int:
    """Measures, and publishes the table."""
    users = users_of()
    found: dict[str, Any] = {}
    for system in SYSTEMS:
        found[system] = summarize(asyncio.run(run_experiment(users, make_system(system), lambda: None)))
    return int(
        not publish("remarks", list(rows_of(found)), {system: asdict(summary) for system, summary in found.items()})
    )


if __name__ == "__main__":
    sys.exit(main())
