"""How long a context takes to build: compared with its slowest source, with a source that hangs, from a real store."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from command import Result, bar, plain
from report import Row, publish
from timing import quantile

from inference_core import AgentMemoryStoreService, ContextBuilder, ContextRequest, OwnSource, open_store
from inference_core.services.context_builder import DEFAULT_SOURCES, ContextSource

TIMES: Final = 30
WARM_UP: Final = 3
SLOWEST_S: Final = 0.05
SOURCES: Final = 8
HANGS_S: Final = 10.0
DEADLINE_S: Final = 0.5
RATIO_BAR: Final = 1.3
MEMORIES: Final = 2_000
_SLACK_MS: Final = 50
_USER: Final = "ada"
_QUESTION: Final = "Which town did note 17 speak of?"


def measured(folder: Path) -> Result:
    """Contexts of sources that wait, of one that hangs, and of a store."""
    with open_store(f"sqlite:///{folder}/context.db") as store:
        service = AgentMemoryStoreService(store)
        for at in range(MEMORIES):
            service.sync.save_memory(
                _USER, f"Note {at} speaks of town {at % 97} and of bread number {at % 31}", "facts"
            )
        return {"waiting": _waiting(service), "hanging": _hanging(service), "store": _of_store(service)}


def _waiting(service: AgentMemoryStoreService) -> Result:
    """Eight sources that wait as if for a network, the slowest for fifty milliseconds."""
    sources = [
        OwnSource(name=f"waits {at}", find=partial(_slow, SLOWEST_S * (at + 1) / SOURCES)) for at in range(SOURCES)
    ]
    return _beside_the_slowest(service, sources)


def _of_store(service: AgentMemoryStoreService) -> Result:
    """The package's own sources, which all compute in this process."""
    return _beside_the_slowest(service, DEFAULT_SOURCES)


def _hanging(service: AgentMemoryStoreService) -> Result:
    """One source that hangs for ten seconds beside those of the store."""
    over = threading.Event()
    hangs = OwnSource(name="hangs", find=lambda _: [str(over.wait(HANGS_S))])
    builder = ContextBuilder(service, [*DEFAULT_SOURCES, hangs], deadline=DEADLINE_S)
    started = time.perf_counter()
    context = builder.sync.build(_USER, _QUESTION)
    took = (time.perf_counter() - started) * 1000
    over.set()
    return {
        "took_ms": took,
        "deadline_ms": DEADLINE_S * 1000,
        "left_out": dict(context.left_out),
        "tokens": context.tokens,
    }


def _beside_the_slowest(service: AgentMemoryStoreService, sources: Sequence[ContextSource]) -> Result:
    """What all of them take together, and the slowest of them alone."""
    alone = {one.name: _median_ms(ContextBuilder(service, [one], deadline=None)) for one in sources}
    together = _median_ms(ContextBuilder(service, sources, deadline=None))
    slowest = max(alone.values())
    return {"alone_ms": alone, "slowest_ms": slowest, "together_ms": together, "ratio": together / slowest}


def _median_ms(builder: ContextBuilder) -> float:
    taken: list[float] = []
    for _ in range(TIMES + WARM_UP):
        started = time.perf_counter()
        builder.sync.build(_USER, _QUESTION)
        taken.append((time.perf_counter() - started) * 1000)
    return quantile(taken[WARM_UP:])


def _slow(seconds: float, request: ContextRequest) -> list[Any]:
    time.sleep(seconds)
    return [f"Waited for {request.user_id}"]


def table(result: Result) -> list[Row]:
    """The rows with their bars."""
    rows: list[Row] = []
    for what, found in (("sources that wait", result["waiting"]), ("a store's own sources", result["store"])):
        rows.append(plain(f"{what}: the slowest alone, median", found["slowest_ms"]))
        rows.append(bar(f"{what}: all together, beside that", found["ratio"], RATIO_BAR, "times"))
    hanging = result["hanging"]
    limit = hanging["deadline_ms"] + _SLACK_MS
    rows.append(bar("with a source that hangs for 10 s, deadline 500 ms", hanging["took_ms"], limit))
    left_out = list(hanging["left_out"])
    return [*rows, ("left out of that", ", ".join(left_out), "hangs", left_out == ["hangs"])]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = measured(Path(temporary))
    sys.exit(not publish("context_build", table(found), found))
