"""Recall that follows names, or with ``--all`` also the second hop, compared with recall without, by category.

``--data PATH`` is a file in LoCoMo's format, or a folder with `locomo_dev`, `beam_dev` and `own_dev`, or some of them;
``--model none`` measures recall by words only. Each conversation is ingested once and asked both ways in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from quality import SETS
from report import Row, publish

from inference_core.evaluation.conversations import Conversation
from inference_core.evaluation.experiment import QuestionOutcome, asked
from inference_core.evaluation.formats import ADVERSARIAL, load_dataset
from inference_core.evaluation.systems import MemoryService

MULTI_HOP: Final = "1"
GAIN: Final = 0.05
"""What links have to add to R@10 of multi-hop questions; all others must not lose."""
TUNED: Final = frozenset({"conv-26", "conv-30"})
"""The conversations of LoCoMo by which the weights of links were chosen, though all were looked at on the way."""
_WARM_UP: Final = "warm up"
_WHOLE: Final = 100


class Asked(NamedTuple):
    """How a question went without and with links."""

    without: QuestionOutcome
    linked: QuestionOutcome


def data_sets(path: Path) -> Iterator[tuple[str, list[Conversation]]]:
    """Name and conversations of what is there."""
    if path.is_file():
        yield "LoCoMo", load_dataset("locomo", path)
        return
    for name, (form, place) in SETS.items():
        if (path / place).exists():
            yield name, load_dataset(form, path / place)


async def both_ways(conversations: Sequence[Conversation], model: str | None, *, follow_all: bool) -> list[Asked]:
    """Every question with usable evidence, without links and then with them."""
    found: list[Asked] = []
    with closing(MemoryService(model)) as system:
        for conversation in conversations:
            recall = await system.ingest(conversation, lambda: None)
            await recall(_WARM_UP, 1)
            for question in conversation.questions:
                if question.evidence:
                    system.links = False
                    without = await asked(conversation, question, recall)
                    system.links = True if follow_all else None
                    found.append(Asked(without, await asked(conversation, question, recall)))
    return found


def rows_of(data: str, found: Sequence[Asked]) -> Iterator[Row]:
    """The report's rows of a data set; of LoCoMo each category, also without the conversations of `TUNED`."""
    counted = [one for one in found if one.without.question.in_overall]
    yield _row(f"{data}, all", counted, 0.0)
    if data == "LoCoMo":
        for category in sorted({one.without.question.category for one in found}):
            members = [one for one in found if one.without.question.category == category]
            held_out = [one for one in members if one.without.conversation not in TUNED]
            bar = GAIN if category == MULTI_HOP else 0.0
            yield _row(f"{data}, category {category}{_kind(category)}", members, bar)
            if len(held_out) not in (0, len(members)):
                yield _row(f"{data}, category {category}, without conv-26 and conv-30", held_out, None)
    yield _latency(data, found)


def _kind(category: str) -> str:
    return {MULTI_HOP: " (multi-hop)", ADVERSARIAL: " (adversarial)"}.get(category, "")


def _row(what: str, found: Sequence[Asked], gain: float | None) -> Row:
    """``gain`` is what links have to add to R@10, None if there is no bar."""
    before, after = _mean(found, "R@10")
    shown = f"R@10 {_percent(before)} → {_percent(after)} ({_WHOLE * (after - before):+.1f})"
    first, then = _mean(found, "R@5")
    text = f"{shown}, R@5 {_percent(first)} → {_percent(then)}, {len(found)} questions"
    if gain is None:
        return what, text, "", None
    return what, text, f"+{_WHOLE * gain:.0f}" if gain else "not worse", after - before >= gain


def _mean(found: Sequence[Asked], measure: str) -> tuple[float, float]:
    return fmean(one.without.scores[measure] for one in found), fmean(one.linked.scores[measure] for one in found)


def _percent(share: float) -> str:
    return f"{_WHOLE * share:.1f}"


def _latency(data: str, found: Sequence[Asked]) -> Row:
    without = median(one.without.latency_ms for one in found)
    linked = median(one.linked.latency_ms for one in found)
    text = f"{without:.1f} ms → {linked:.1f} ms, the query's embedding included ({linked / without:.2f} times)"
    return f"{data}, p50 of a recall", text, "", None


def main() -> int:
    """Measures, and publishes the table."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--model", default="auto", help="an embedding model, or none")
    command.add_argument("--all", action="store_true", help="follow all links")
    command.add_argument("--set", action="append", choices=list(SETS))
    options = command.parse_args()
    model = None if options.model == "none" else options.model
    name = "links" if model else "links_lexical"
    rows: list[Row] = []
    details: dict[str, Any] = {"model": options.model, "all": options.all}
    is_reached = False
    for data, conversations in data_sets(options.data):
        if options.set is None or data in options.set:
            rows += rows_of(data, asyncio.run(both_ways(conversations, model, follow_all=options.all)))
            is_reached = publish(name, rows, details, shown=False)
    publish(name, rows, details, written=False)
    return int(not is_reached)


if __name__ == "__main__":
    sys.exit(main())
