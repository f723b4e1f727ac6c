"""When the middleware tells nothing: for thanks, talk about the conversation, sums, code, knowledge of the world.

``--data DIR`` holds `own_dev/silence.json`, messages in 12 languages that have nothing to do with their user, and saved
memories with requests about them. Each user is sent all messages, and their own requests. A line of the profile does
not count: it stands in every turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from context.noise import remembering
from report import Row, publish
from timing import watched

from inference_core.agents.middleware.memory import DEFAULT_ENGINEER
from inference_core.effects import run
from inference_core.evaluation.formats import load_atomic
from inference_core.services.operations.prompt_context import TurnOptions, build_turn_context
from inference_core.stores.factory import open_store

MESSAGES: Final = "own_dev/silence.json"
SAVED: Final = ("atomic_memories", "atomic_more", "atomic_languages", "noise")
ANSWERABLE: Final = "requests with an answer"
UNANSWERABLE: Final = "requests without an answer"
RULES: Final = "messages that only a rule applies to"
SILENT: Final = 0.92
EACH: Final = 0.85
WRONG: Final = 0.02


def counted(data: Path) -> dict[str, list[int]]:
    """By kind of message, and by language of those that need nothing: how many were sent, and told nothing."""
    messages = json.loads((data / MESSAGES).read_text(encoding="utf-8"))["prompts"]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    users = [user for name in SAVED for user in load_atomic(data / "own_dev" / f"{name}.json")]
    for user in watched(users, "users"):
        sent = [(ANSWERABLE if one.evidence else UNANSWERABLE, one.text) for one in user.questions]
        for one in messages:
            if one["needs"] == "rules":
                sent.append((RULES, one["text"]))
            else:
                sent += [(name, one["text"]) for name in ("all", one["language"], one["kind"])]
        with closing(open_store("memory://", embeddings="auto")) as store:
            service, _ = remembering(store, user.id, user.turns)
            is_silent: dict[str, bool] = {}
            for name, text in sent:
                if text not in is_silent:
                    options = TurnOptions(engineer=DEFAULT_ENGINEER)
                    is_silent[text] = not run(build_turn_context(service.scope, user.id, text, options)).context.items
                counts[name][0] += 1
                counts[name][1] += is_silent[text]
    return counts


def rows_of(counts: dict[str, list[int]]) -> Iterator[Row]:
    """The report's rows."""

    def share(name: str) -> float:
        return counts[name][1] / max(counts[name][0], 1)

    def shown(name: str) -> str:
        return f"{100 * share(name):.1f} % of {counts[name][0]}"

    yield "nothing told: messages that need nothing", shown("all"), f"{100 * SILENT:.0f} %", share("all") >= SILENT
    for name in sorted(name for name in counts if len(name) == len("en")):
        yield f"nothing told: {name}", shown(name), f"{100 * EACH:.0f} %", share(name) >= EACH
    for name in sorted(counts.keys() - {"all", ANSWERABLE, UNANSWERABLE, RULES}):
        if len(name) > len("en"):
            yield f"nothing told: {name.replace('_', ' ')}", shown(name), "", None
    yield f"nothing told: {ANSWERABLE}", shown(ANSWERABLE), f"{100 * WRONG:.0f} %", share(ANSWERABLE) <= WRONG
    for name in (UNANSWERABLE, RULES):
        yield f"nothing told: {name}", shown(name), "", None


def main() -> int:
    """Measures, and publishes the table."""
    command = argparse.ArgumentParser(prog="sh scripts/bench silence", description=__doc__)
    command.add_argument("--data", type=Path, required=True, help="the folder with own_dev/")
    counts: dict[str, Any] = counted(command.parse_args().data)
    return int(not publish("silence", list(rows_of(counts)), {"counts": counts}))


if __name__ == "__main__":
    sys.exit(main())
