"""How benchmarks measure: milliseconds of single calls, contenders in turns, temporary folders."""

from __future__ import annotations

import gc
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")
PORTION: Final = 10
WARM_UP: Final = 3
SLOW_MS: Final = 300
FEW: Final = 3
_REFRESH_S: Final = 0.2


def seconds(call: Callable[[], object]) -> float:
    """How long ``call`` takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def milliseconds(call: Callable[[T], object], argument: T) -> float:
    """How long ``call`` takes with ``argument``."""
    return seconds(partial(call, argument)) * 1000


def by_turns(
    calls: Mapping[str, Callable[[T], object]], arguments: Sequence[T], what: str, *, portion: int = PORTION
) -> dict[str, list[float]]:
    """Milliseconds of every call with every argument, after a warm-up with the first ones.

    The calls take turns after every ``portion`` arguments, so that noise of the machine hits all alike. A call slower
    than 300 ms gets only three arguments.
    """
    slow = {name for name, call in calls.items() if _warmed(call, arguments) > SLOW_MS}
    settle()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for start in watched(range(WARM_UP, len(arguments), portion), what):
        chosen = arguments[start : start + portion]
        for name, call in calls.items():
            left = FEW - len(taken[name]) if name in slow else len(chosen)
            taken[name] += [milliseconds(call, argument) for argument in chosen[: max(left, 0)]]
    return taken


def _warmed(call: Callable[[T], object], arguments: Sequence[T]) -> float:
    """Milliseconds of the last call of the warm-up, which ends early if the calls are slow."""
    took = 0.0
    for at, argument in enumerate(arguments[:WARM_UP]):
        took = milliseconds(call, argument)
        if at and took > SLOW_MS:
            break
    return took


def settle() -> None:
    """Takes what is in memory out of the sight of the garbage collector, whose pauses would count as slow calls."""
    gc.collect()
    gc.freeze()


def quantile(values: Sequence[float], share: float = 0.5) -> float:
    """The value that ``share`` of ``values`` do not exceed (nearest rank); the median without a share."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def resident_bytes(what: str = "VmRSS") -> int:
    """What this process has in memory, or had at most (VmHWM); 0 where that is not known."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), 0)


@contextmanager
def scratch() -> Generator[Path]:
    """An empty folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="memory-benchmark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def watched(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """``items`` with a progress bar on stderr, which is drawn between them only and never by another thread."""
    known = total if total is not None else len(items) if isinstance(items, Sequence) else None
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(console=console, auto_refresh=False, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=known)
        drawn = 0.0
        for item in items:
            yield item
            progress.advance(task)
            if time.perf_counter() - drawn > _REFRESH_S:
                progress.refresh()
                drawn = time.perf_counter()
