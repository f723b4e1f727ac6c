"""A durable save among n memories, one after the other, compared with a bare commit of the same bytes.

That commit has one row in one index, and its time is the disk's. So a second comparison is with a bare transaction of
the same rows in the same tables, in time of the processor and bytes of the journal; only these have bars.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import ours
import physical
import writing
from command import Options, Result, bar, plain, run
from corpus import ASKER, SEED, Turn, queries, turns
from report import Row
from timing import WARM_UP, by_turns, quantile, scratch

from inference_core import AgentMemoryStoreService
from inference_core.services.agent_memory_service import SyncMemoryService

ADDED_BAR_MS: Final = 0.35
JOURNAL_BAR_KB: Final = 25


def measured(options: Options) -> Result:
    """New memories of one user."""
    new = turns(writing.WRITES + WARM_UP, seed=SEED + 3)
    found = writing.measured(options, _saved, [turn._replace(number=options.n + turn.number) for turn in new])
    return found | _under_hold() | _added(options)


def _added(options: Options) -> Result:
    """What a save costs on SQLite besides a bare transaction of its rows."""
    if ours.URL_VARIABLE in os.environ:
        return {}
    with scratch() as folder, ours.filled(folder / "same.db", options) as store:
        service = AgentMemoryStoreService(store).sync
        new = [turn._replace(number=options.n + turn.number) for turn in turns(writing.WRITES, seed=SEED + 5)]

        def save(portion: Sequence[Turn]) -> None:
            for turn in portion:
                _saved(service, turn)

        found = physical.cost(store, folder / "same.db", save, new)
    return {"added_ms": found.ours_ms - found.bare_ms} | found._asdict()


def _under_hold() -> Result:
    """Milliseconds of a save and a recall of a user who has a legal hold, beside one who has none."""
    new = list(turns(writing.WRITES + WARM_UP, seed=SEED + 3))
    with scratch() as folder, ours.opened(folder / "holds.db") as store:
        service = AgentMemoryStoreService(store).sync
        service.hold("held", "a case")
        saves = by_turns({user: partial(_saved_as, service, user) for user in ("free", "held")}, new, "under a hold")
        recalls = by_turns({user: partial(service.recall_memories, user) for user in saves}, queries(200), "recalling")
    return {
        f"{user}_{name}_ms": quantile(taken[user])
        for name, taken in (("save", saves), ("recall", recalls))
        for user in taken
    }


def _saved_as(service: SyncMemoryService, user: str, turn: Turn) -> str:
    return service.save_memory(user, turn.text)


def _saved(service: SyncMemoryService, turn: Turn) -> str:
    record = turn.record()
    return service.save_memory(ASKER, turn.text, record.memory_type.value, session_id=record.session_id)


def table(result: Result) -> list[Row]:
    """The report's rows."""
    held = [
        plain(f"{name} of a user under a legal hold, and without one", f"{found:.3f} and {free:.3f} ms")
        for name in ("save", "recall")
        for found, free in [(result[f"held_{name}_ms"], result[f"free_{name}_ms"])]
    ]
    if "added_ms" not in result:
        return [*writing.table("save", result), *held]
    added = [
        bar("processor time added to a bare transaction of the same rows", result["added_ms"], ADDED_BAR_MS),
        plain("that transaction's own", result["bare_ms"]),
        bar("journal", result["ours_wal"] / 1024, JOURNAL_BAR_KB, "KB"),
        plain("journal of a bare transaction", result["bare_wal"] / 1024, "KB"),
    ]
    return [*writing.table("save", result), *added, *held]


if __name__ == "__main__":
    sys.exit(run("save", measured, table, __doc__))
