"""Whether recall gives the newer of two messages first, where the user later changed what they said.

``--data DIR`` holds chats in BEAM's format, which are not in the repository. A pair is a question of the ability
`knowledge_update` whose evidence names other messages for the update than for the earlier state; each chat is a user's
memory, each message a memory. A message that is not among the 20 best comes last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from report import Row, publish
from timing import watched

from inference_core.evaluation.experiment import DEPTH
from inference_core.evaluation.formats import load_beam
from inference_core.evaluation.systems import MemoryService

BAR: Final = 0.9
_LAST: Final = DEPTH + 1


class Pair(NamedTuple):
    """A question, and the places of the older and the newer message; DEPTH + 1 if it was not recalled."""

    question: str
    older: int
    newer: int

    @property
    def is_found(self) -> bool:
        """Whether at least one of them was recalled."""
        return min(self.older, self.newer) < _LAST


def changes(folder: Path) -> Iterator[tuple[str, set[str], set[str]]]:
    """The questions about updates of a chat, with the messages before and since; none where these are the same."""
    questions = json.loads((folder / "probing_questions.json").read_text(encoding="utf-8"))
    for entry in questions["knowledge_update"]:
        evidence: Mapping[str, Any] = entry["source_chat_ids"]
        older, newer = ({str(name) for name in evidence[kind]} for kind in ("original_info", "updated_info"))
        if older - newer and newer:
            yield entry["question"], older - newer, newer


async def pairs(folders: Sequence[Path]) -> list[Pair]:
    """The pairs of all chats, each recalled by a user of its own."""
    found: list[Pair] = []
    with closing(MemoryService("auto")) as system:
        for folder in watched(folders, "saving and asking chats"):
            recall = await system.ingest(load_beam(folder)[0], lambda: None)
            for question, older, newer in changes(folder):
                ranked = [hit.id for hit in await recall(question, DEPTH)]
                found.append(Pair(question, _place(ranked, older), _place(ranked, newer)))
    return found


def _place(ranked: list[str], wanted: set[str]) -> int:
    return next((place for place, name in enumerate(ranked, 1) if name in wanted), _LAST)


def table(found: list[Pair]) -> list[Row]:
    """The report's rows."""
    recalled = [pair for pair in found if pair.is_found]
    rows = [_row("newer before older, at least one recalled", recalled), _row("newer before older, all pairs", found)]
    first = sum(pair.newer == 1 for pair in found)
    return [*rows, ("newer at the very first place", f"{first} of {len(found)}", "", None)]


def _row(what: str, among: list[Pair]) -> Row:
    right = sum(pair.newer < pair.older for pair in among)
    share = right / max(len(among), 1)
    return what, f"{100 * share:.1f} % ({right} of {len(among)})", f"≥ {100 * BAR:.0f} %", share >= BAR


def main() -> int:
    """Measures, and publishes the table."""
    command = argparse.ArgumentParser(prog="sh scripts/bench knowledge_updates", description=__doc__)
    command.add_argument("--data", type=Path, required=True, help="a folder with BEAM's chats, at any depth")
    options = command.parse_args()
    chats = (file.parent for file in options.data.rglob("chat.json") if file.parent.name.isdecimal())
    if not (folders := sorted(chats, key=lambda one: int(one.name))):
        command.error(f"{options.data} has no numbered folder with a chat.json")
    found = asyncio.run(pairs(folders))
    return int(not publish("knowledge_updates", table(found), {"pairs": [pair._asdict() for pair in found]}))


if __name__ == "__main__":
    sys.exit(main())
