"""A durable save among n memories, one after the other, compared with a bare commit of the same bytes."""

from __future__ import annotations

import sys

import writing
from command import Options, Result, run
from corpus import ASKER, SEED, Turn, turns
from report import Row
from timing import WARM_UP

from inference_core.services.agent_memory_service import SyncMemoryService


def measured(options: Options) -> Result:
    """New memories of one user."""
    new = turns(writing.WRITES + WARM_UP, seed=SEED + 3)
    return writing.measured(options, _saved, [turn._replace(number=options.n + turn.number) for turn in new])


def _saved(service: SyncMemoryService, turn: Turn) -> str:
    record = turn.record()
    return service.save_memory(ASKER, turn.text, record.memory_type.value, session_id=record.session_id)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    return writing.table("save", result, writing.RATIO_BAR)


def rows() -> list[Row]:
    """What is measured at the usual size."""
    return table(measured(Options()))


if __name__ == "__main__":
    sys.exit(run("save", measured, table, __doc__))
