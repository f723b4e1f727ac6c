"""Whether the middleware's default prompt tells the one stored preference that a request needs but does not mention.

Two users have 200 memories each: 100 preferences of several people, 50 messages to an assistant, and 50 remarks
(`context/preferences.json`). Each preference has a later request. Users with 50 memories have every fourth of them.
Compared with the plain best 5 and 10 by cosine, with the same model.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from context.noise import read_back, remembering
from report import Row, publish

from inference_core.agents.middleware.memory import DEFAULT_ENGINEER
from inference_core.context.render import COMPACT, neutral_line
from inference_core.effects import run
from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.formats import load_atomic
from inference_core.evaluation.systems import Dense
from inference_core.services.operations.prompt_context import TurnOptions, build_turn_context
from inference_core.stores.factory import open_store

DATA: Final = Path(__file__).parent / "context" / "preferences.json"
PARTS: Final[dict[int, int]] = {50: 4, 200: 1}
"""By number of memories, into how many users each user of the file is divided."""
PLAIN: Final = (5, 10)
TOLD: Final[dict[int, float]] = {50: 0.93, 200: 0.80}
LINES: Final = 9.0


def divided(user: Conversation, parts: int) -> Iterator[Conversation]:
    """``user`` as ``parts`` users, each with the requests that its memories answer."""
    for part in range(parts):
        turns = user.turns[part::parts]
        there = {turn.id for turn in turns}
        asked = tuple(one for one in user.questions if there.issuperset(one.evidence))
        yield replace(user, id=f"{user.id}-{part}", turns=turns, questions=asked)


def measured(users: Sequence[Conversation]) -> dict[str, float]:
    """The share of requests whose preference is told, by the prompt and the plain best, and the prompt's lines."""
    found = dict.fromkeys(("told", "lines", *(f"plain {k}" for k in PLAIN)), 0.0)
    for user in users:
        texts = {turn.id: neutral_line(turn.text) for turn in user.turns}
        recall = asyncio.run(Dense("auto").ingest(user, lambda: None))
        with closing(open_store("memory://", embeddings="auto")) as store:
            service, _ = remembering(store, user.id, user.turns)
            for question in user.questions:
                options = TurnOptions(engineer=DEFAULT_ENGINEER, form=COMPACT)
                places, *_ = read_back(run(build_turn_context(service.scope, user.id, question.text, options)), texts)
                found["told"] += not places.keys().isdisjoint(question.evidence)
                found["lines"] += len(places)
                best = [hit.id for hit in asyncio.run(cast("Any", recall(question.text, max(PLAIN))))]
                for k in PLAIN:
                    found[f"plain {k}"] += not set(best[:k]).isdisjoint(question.evidence)
    asked = sum(len(user.questions) for user in users)
    return {name: count / asked for name, count in found.items()} | {"requests": asked}


def rows_of(found: dict[int, dict[str, float]]) -> Iterator[Row]:
    """The report's rows."""
    for size, one in found.items():
        text, bar = f"{100 * one['told']:.1f} % of {one['requests']}", f"{100 * TOLD[size]:.0f} %"
        yield f"the right one of {size} memories is told", text, bar, one["told"] >= TOLD[size]
        yield f"lines told of {size} memories", f"{one['lines']:.1f}", f"{LINES:.0f}", one["lines"] <= LINES
        for k in PLAIN:
            yield f"the plain best {k} of {size} hold it", f"{100 * one[f'plain {k}']:.1f} %", "", None


def main() -> int:
    """Measures, and publishes the table."""
    users = load_atomic(DATA)
    found: dict[int, Any] = {
        size: measured([one for user in users for one in divided(user, parts)]) for size, parts in PARTS.items()
    }
    return int(not publish("preferences", list(rows_of(found)), {"found": found}))


if __name__ == "__main__":
    sys.exit(main())
