"""An update of one memory after the other among n; other stores overwrite blindly, ours also keeps the old version."""

from __future__ import annotations

import sys

import writing
from command import Options, Result, run
from corpus import ASKER, SEED, Turn, own_turns, turns
from report import Row
from timing import WARM_UP

from inference_core.services.agent_memory_service import SyncMemoryService


def measured(options: Options) -> Result:
    """New texts for memories that are spread over all of one user's."""
    own = own_turns(options.n, options.users)
    new = list(turns(writing.WRITES + WARM_UP, seed=SEED + 4))
    chosen = [own[at * len(own) // len(new) % len(own)] for at in range(len(new))]
    arguments = [old._replace(text=turn.text) for old, turn in zip(chosen, new, strict=True)]
    return writing.measured(options, _updated, arguments)


def _updated(service: SyncMemoryService, turn: Turn) -> None:
    if not service.update_memory(ASKER, turn.record().id, content=turn.text):
        raise LookupError(turn.record().id)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    return writing.table("update", result)


if __name__ == "__main__":
    sys.exit(run("update", measured, table, __doc__))
