"""How much work a call makes, counted: the same on every machine, so that tests can hold what must not grow."""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_STEPS = 100


@dataclass
class TaskHandler:
    """Python functions called in this thread; statements and hundreds of steps of SQLite's machine in any."""

    calls: int = 0
    statements: int = 0
    steps: int = 0

    @contextmanager
    def counting(self) -> Generator[None]:
        """Counts anew what happens within."""
        self.calls = self.statements = self.steps = 0
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)

    def watch(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Counts what ``connection`` does."""
        connection.set_trace_callback(self._stated)
        connection.set_progress_handler(self._stepped, _STEPS)
        return connection

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        del frame
        self.calls += event == "call"

    def _stated(self, _: str) -> None:
        self.statements += 1

    def _stepped(self) -> int:
        self.steps += 1
        return 0


class TooSlow(AssertionError):
    """A call took more of the processor than it may."""


@contextmanager
def at_most(seconds: float) -> Generator[None]:
    """Breaks off what runs within, with TooSlow, after so many seconds of the processor; for the main thread.

    Other programs on the machine do not count. Regular expressions look for signals, so they are broken off as well.
    """

    def expired(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        raise TooSlow(f"not done after {seconds} s")

    before = signal.signal(signal.SIGVTALRM, expired)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def watched_connect(work: TaskHandler, connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
    """``sqlite3.connect`` whose connections ``work`` counts."""

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        return work.watch(connect(*args, **options))

    return watched
