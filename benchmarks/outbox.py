"""Putting a turn (two messages) into the outbox, compared with a bare durable commit of the same bytes.

Once with an idle worker, once with one that constantly extracts other users' messages, with an extractor that waits as
for a model. The bare commits are made in the same process, in turns with ours.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, Final

from baselines import BareCommits
from command import Options, Result, bar, plain, run
from report import Row
from timing import WARM_UP, by_turns, quantile, scratch

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import in_thread
from inference_core.effects import run as run_plan
from inference_core.ingestion.worker import Pipeline, Worker
from inference_core.outbox.messages import Candidate, ConversationMessage, Extraction, KnownMemory, Role
from inference_core.outbox.outbox import Outbox, Partition, Waiting

RATIO_BAR: Final = 1.5
TURNS: Final = 500
BACKLOG: Final = 20
USERS: Final = 40
MODEL_S: Final = 0.05


class SlowExtractor:
    """An extractor that takes as long as a quick model and finds a memory in each message."""

    async def extract(
        self, messages: Sequence[ConversationMessage], offered: Sequence[KnownMemory], now: datetime, zone: tzinfo
    ) -> Extraction:
        """Waits, then gives the messages' texts."""
        del offered, now, zone
        await in_thread(partial(time.sleep, MODEL_S), 10 * MODEL_S)
        return Extraction([Candidate(content=message.text) for message in messages])


def turn(number: int) -> list[ConversationMessage]:
    """What user and assistant say, of usual length."""
    asked = f"Question {number}: " + "where did we leave the plan for the autumn tour of the choir? " * 2
    told = f"Answer {number}: " + "You wanted to ask the hall in Porto for the second week of October. " * 4
    return [
        ConversationMessage(session_id="s", role=role, text=text, id=f"{role.value}-{number}")
        for role, text in ((Role.USER, asked), (Role.ASSISTANT, told))
    ]


def measured(options: Options) -> Result:
    """Milliseconds of ours and of the bare commit, with an idle and with a busy worker."""
    del options
    idle, busy = _taken(is_busy=False), _taken(is_busy=True)
    found = {f"{name}_idle": times for name, times in idle.items()} | {
        f"{name}_busy": times for name, times in busy.items()
    }
    medians = {f"{name}_ms": quantile(times) for name, times in found.items()}
    tails = {f"{name}_p95_ms": quantile(times, 0.95) for name, times in found.items()}
    ratios = {f"ratio_{kind}": medians[f"ours_{kind}_ms"] / medians[f"floor_{kind}_ms"] for kind in ("idle", "busy")}
    return {"turns": TURNS, **medians, **tails, **ratios}


def _taken(*, is_busy: bool) -> dict[str, list[float]]:
    with scratch() as folder, open_store(f"sqlite:///{folder / 'ours.db'}", embeddings=None) as store:
        pipeline = Pipeline(AgentMemoryStoreService(store).scope, SlowExtractor())
        with closing(BareCommits(folder / "floor.db")) as commits, _working(pipeline, is_busy=is_busy):
            calls = {
                "ours": partial(_put, pipeline.outbox, Partition("asker")),
                "floor": partial(_commit, commits),
            }
            return by_turns(calls, range(TURNS + WARM_UP), "busy" if is_busy else "idle")


@contextmanager
def _working(pipeline: Pipeline, *, is_busy: bool) -> Generator[None]:
    """A worker in the background, with a backlog or without; the asker's messages wait for nobody."""
    if is_busy:
        for user in range(USERS):
            messages = [message for number in range(BACKLOG) for message in turn(number)]
            run_plan(pipeline.outbox.put(Partition(f"user{user}"), messages))
    worker = Worker(pipeline)
    worker.start()
    yield
    worker.close()
    if is_busy and not worker.progress.messages > 0:
        raise RuntimeError("The worker was not busy")


def _put(outbox: Outbox, partition: Partition, number: int) -> None:
    run_plan(outbox.put(partition, turn(number)))


def _commit(commits: BareCommits, number: int) -> None:
    value: list[Any] = [Waiting("", 0, message).to_json() for message in turn(number)]
    commits.save(f"{number}", json.dumps(value), None)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    rows: list[Row] = []
    for kind in ("idle", "busy"):
        for name, what in (("ours", "a turn into the outbox"), ("floor", "bare commit of the same bytes")):
            figures = f"{result[f'{name}_{kind}_ms']:.3f} ms, 95 %: {result[f'{name}_{kind}_p95_ms']:.3f} ms"
            rows.append(plain(f"{what}, worker {kind}", figures))
        rows.append(bar(f"ours over the bare commit, worker {kind}", result[f"ratio_{kind}"], RATIO_BAR, ""))
    return rows


if __name__ == "__main__":
    sys.exit(run("outbox", measured, table, __doc__))
