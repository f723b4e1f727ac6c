"""A fault at every effect of periodic work: nothing is lost, no second summary, no second higher-level memory."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from flaky import crossed, waits
from langchain_core.messages import AIMessage, BaseMessage
from periodic_support import DAY, QUIET, Life, insight, names_in, summarizer, summary
from test_outbox_crash import FAULTS, INSTEAD_OR_AFTER, MOST_WAITS, ONE_OR_TWO, TURNS, with_fault

from inference_core import open_store
from inference_core.effects import run
from inference_core.ingestion.periodic.insights import INSIGHT
from inference_core.ingestion.periodic.summaries import all_said
from inference_core.ingestion.undo import jobs
from inference_core.outbox import outbox as queue
from inference_core.outbox.outbox import Partition
from inference_core.testing import FrozenClock

NUMBERS = count()


def fickle(messages: list[BaseMessage]) -> AIMessage:
    """Sums up otherwise each time; the names of all messages are in it."""
    words = [word for word in ("One", "Two", "Three") if word in messages[-1].text]
    return summary(f"{' '.join(words)} {next(NUMBERS)}", names_in(messages))


def fickle_insight(messages: list[BaseMessage]) -> AIMessage:
    assert len(names_in(messages)) >= 3
    return insight(f"Climbs {next(NUMBERS)} times")


def stages(kind: str, life: Life) -> Partition:
    """Everything is there for the work, which is due."""
    if kind == "summary":
        life.says("One", "Two")
        life.works(QUIET)
        life.says("Three")
        life.clock.advance(QUIET)
        return Partition("ada", task="sessions")
    for at in range(4):
        life.service.sync.save_memory("ada", f"Climbs {at}", "facts", topic="climbing", memory_id=f"c{at}")
    life.says("Hello")
    life.works(DAY)
    life.service.sync.delete_memory("ada", "c0")
    life.clock.advance(DAY)
    return Partition("ada", task="insights")


@pytest.mark.parametrize(
    ("fault", "is_done", "elsewhere", "kind"), crossed(FAULTS, INSTEAD_OR_AFTER, ONE_OR_TWO, ["summary", "insight"])
)
def test_after_a_fault_at_any_effect_there_is_one_and_nothing_is_lost(
    fault: BaseException, is_done: bool, elsewhere: bool, kind: str, full: bool
) -> None:
    came = [True]
    for at in waits(MOST_WAITS, TURNS[fault], full=full):
        clock = FrozenClock()
        with open_store("memory://", embeddings=None) as store, open_store("memory://", embeddings=None) as other:
            chosen: dict[str, Any] = (
                {"summarizer": summarizer(fickle)} if kind == "summary" else {"insights": [fickle_insight]}
            )
            life = Life(store, clock, outbox=other if elsewhere else None, **chosen)
            partition = stages(kind, life)
            assert partition in run(life.pipeline.partitions())
            came.append(with_fault(life.pipeline.process(partition), at, fault, is_done=is_done))
            for _ in range(4):
                life.works(timedelta(days=365))
            made = life.summaries() if kind == "summary" else life.made_by(INSIGHT)
            assert len(made) == 2
            (holding,) = life.holding(made)
            assert kind == "insight" or "Three" in holding
            old = next(one for one in made if one.content != holding)
            assert old.value["superseded_by"] == next(one.id for one in made if one.content == holding)
            assert run(all_said(life.pipeline.outbox, Partition("ada"))) == []
            assert run(queue.status(life.pipeline.outbox.engine, clock)).dead == 0
            done = [row for row in run(jobs(life.service.scope, "ada")) if row.value["model_calls"]]
            assert len(done) == 2
        if not came[-1]:
            break
    assert len(came) > (8 if full else 4)
    assert not came[-1]
