"""What is shown for every question of the benchmark of contexts, compared with what was shown before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import DATA, load

from benchmarks.context.cases import Memories, own_cases
from inference_core import ContextEngineer, ContextItem
from inference_core.context.items import AssembledContext, DropReason
from inference_core.memory.record import MemoryRecord
from inference_core.retrieval.analysis import analyze

SHOWN = DATA / "contexts_shown.json"
BUDGETS = (250, 600, 2_000)
EVERY = 7
"""Of the items, each such one is as conversations are: from no memory, and judged by no source."""


def items(user: Memories, question: str) -> list[ContextItem]:
    """The user's memories, as relevant as they share words with the question."""
    asked = frozenset(analyze(question))
    found: list[ContextItem] = []
    for at, turn in enumerate(user.turns):
        stems = frozenset(analyze(turn.text))
        relevance = min(2 * len(stems & asked) / (len(asked) or 1), 1)
        value = {"content": turn.text, "memory_type": turn.memory_type, "source": {"origin": turn.origin.value}}
        when = turn.at or user.now
        record = MemoryRecord.from_value(
            value, memory_id=turn.id, namespace=("u", "m", "semantic"), stored_at=when, updated_at=when
        )
        if at % EVERY == 0:
            said = ContextItem(id=turn.id, text=turn.text, section="said", source="said", happened_at=when)
            found.append(said)
        else:
            found.append(ContextItem.of(record, source="memories", relevance=relevance, score=10 * relevance))
    return found


def described(context: AssembledContext) -> dict[str, Any]:
    return {
        "shown": " ".join(one.id for section in context.sections.values() for one in section),
        "conflicts": [" ".join(one.id for one in group) for group in context.conflicts],
        "untrusted": " ".join(one.id for one in context.untrusted),
        "dropped": ", ".join(
            " ".join(filter(None, (one.item.id, one.reason.value, one.by)))
            for one in context.dropped
            if one.reason is not DropReason.IRRELEVANT
        ),
        "tokens": context.tokens,
    }


def contexts() -> dict[str, Any]:
    """By case, within one of three budgets; every other one leaves out what answers another question."""
    return {
        case.id: described(
            ContextEngineer(answers_only=at % 2 == 0).assemble(
                items(user, case.question), query=case.question, now=user.now, max_tokens=BUDGETS[at % 3]
            )
        )
        for user in own_cases()
        for at, case in enumerate(user.cases)
    }


def test_the_same_is_shown_as_before():
    """A change of rules or weights shows here what it changes; this file, run as a script, writes it down."""
    assert contexts() == load(SHOWN.name)


if __name__ == "__main__":
    Path(SHOWN).write_text(json.dumps(contexts(), indent=0) + "\n", encoding="utf-8")
