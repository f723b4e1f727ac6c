"""A progress bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from inference_core.cli.output import console


@contextmanager
def progress_bar(what: str) -> Generator[Callable[[int, int], None]]:
    """A progress bar on standard error; call what it gives with how many are done, and of how many."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
