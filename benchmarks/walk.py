"""What a package does during a call: a profile hook on every thread, and the trace of each SQLite connection."""

from __future__ import annotations

import dis
import sqlite3
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, currentframe
from itertools import count
from math import inf
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, cast

QUIET_S: Final = 2.5
"""Until what follows a call in the background has been done."""
_YIELD: Final = dis.opmap["YIELD_VALUE"]
_RESUMED: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_INLINED: Final = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Comprehensions, which are functions in Python 3.11 only."""
_RESULT: Final = cast("FunctionType", Future[Any].result).__code__


@dataclass(eq=False, slots=True)
class Call:
    """A call of a function of the package until it returns; a generator is one call, however often it is resumed.

    ``parent`` is the call that made it, or waits for the thread that does; ``beneath`` are the package's frames of that
    thread, which it keeps between the calls. ``began`` and ``ended`` are numbers of a common order.
    """

    code: CodeType
    module: str
    parent: Call | None
    beneath: int
    began: int
    ended: float = inf
    reads: int = 0
    calls: int = 1

    @property
    def name(self) -> str:
        """Module and function."""
        return f"{self.module}:{self.code.co_qualname}"

    @property
    def is_closure(self) -> bool:
        """Whether it is of a function in a function, or of a lambda."""
        name = self.code.co_name
        return name == "<lambda>" or ("<locals>" in self.code.co_qualname and name[0] != "<")


class Walk:
    """What the package at a path does during calls, on this thread and on all that were started since `watching`."""

    def __init__(self, package: Path) -> None:
        self._root = f"{package}/"
        self._order = count()
        self._open: dict[FrameType, Call] = {}
        self._thread = threading.get_ident()
        self._begin(first=False)
        self._since = inf

    def _begin(self, *, first: bool) -> None:
        self._since: float = next(self._order)
        self._is_first = first
        self._is_over = False
        self.calls: list[Call] = []
        self.entries = 0
        self.crossings = Counter[tuple[str, str]]()
        self.waits = set[Future[Any]]()
        self.statements: list[str] = []
        self.commits = 0

    @contextmanager
    def watching(self) -> Generator[None]:
        """Sees this thread, those that are started within, and the connections that are opened within."""
        connect = sqlite3.connect

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, **options)
            connection.set_trace_callback(Statements(self).see)
            return connection

        threading.setprofile(self._see)
        sys.setprofile(self._see)
        sqlite3.connect = traced
        try:
            yield
        finally:
            sqlite3.connect = connect
            sys.setprofile(None)
            threading.setprofile(cast("Any", None))

    def watched(self, call: Callable[[], object], *, first: bool) -> dict[str, Any]:
        """What ``call`` does, or the ``first`` call of the package in it, once the background is quiet."""
        time.sleep(QUIET_S)
        self._begin(first=first)
        try:
            call()
        finally:
            self._since = inf
        return self._told()

    @property
    def is_on(self) -> bool:
        """Whether what happens counts."""
        return self._since < inf and not self._is_over

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code is _RESULT and self.is_on and threading.get_ident() == self._thread:
            self.waits.add(frame.f_locals["self"])
        if not code.co_filename.startswith(self._root) or code.co_name in _INLINED:
            return
        if event == "call":
            if self.is_on:
                self._count(frame)
            if frame not in self._open:
                self._open[frame] = call = self._called(frame)
                if self.is_on:
                    self.calls.append(call)
        elif event == "return" and not (code.co_flags & _RESUMED and code.co_code[frame.f_lasti] == _YIELD):
            self._end(frame)

    def _end(self, frame: FrameType) -> None:
        if call := self._open.pop(frame, None):
            call.ended = next(self._order)
            self._is_over |= self._is_first and self.calls[:1] == [call]

    def _count(self, frame: FrameType) -> None:
        """One more entry into a function, and a crossing if its caller is in another module of the package."""
        self.entries += 1
        back, module = frame.f_back, frame.f_globals["__name__"]
        if back and back.f_code.co_filename.startswith(self._root) and (caller := back.f_globals["__name__"]) != module:
            self.crossings[caller, module] += 1

    def _called(self, frame: FrameType) -> Call:
        beneath = [call for call in map(self._open.get, _stack(frame)) if call]
        parent = beneath[0] if beneath else None
        if self._since <= (parent.began if parent else -1):
            beneath = []
        elif self._since < inf:  # the outermost one of its thread
            threads = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            waiting = self.innermost(threads.get(self._thread))
            parent = waiting if waiting and waiting.began > self._since else next(iter(self.calls), None)
        return Call(frame.f_code, frame.f_globals["__name__"], parent, len(beneath), next(self._order))

    def innermost(self, frame: FrameType | None) -> Call | None:
        """The package's call that ``frame`` is in."""
        return next((call for call in map(self._open.get, _stack(frame)) if call), None)

    def _told(self) -> dict[str, Any]:
        body, waiting = self._body()
        closures = {call.code: call.name for call in self.calls if call.is_closure}
        return {
            "modules": sorted({call.module for call in self.calls}),
            "functions": len({call.code for call in self.calls}),
            "calls": self.entries,
            "crossings": sum(self.crossings.values()),
            "pairs": sorted(pair for pair in self.crossings if pair[0] < pair[1] and pair[::-1] in self.crossings),
            "body": body,
            "frames": waiting,
            "closures": sorted(closures.values()),
            "visits": len(self.waits),
            "statements": self.statements,
            "commits": self.commits,
        }

    def _body(self) -> tuple[str, list[str]]:
        """The innermost call with all reads and at least half of the calls, and the calls that wait for it.

        Those are its callers, the generators that wait for a result of it, and the loop of its thread, without the
        public call itself.
        """
        made = defaultdict[Call | None, list[Call]](list)
        for call in reversed(self.calls):
            made[call.parent].append(call)
            if call.parent:
                call.parent.calls += call.calls
                call.parent.reads += call.reads
        public = body = self.calls[0]
        chain = [body]
        while inner := [one for one in made[body] if one.reads == public.reads > 0 and one.calls * 2 >= public.calls]:
            body = inner[0]
            chain.append(body)
        waiting = [one.name for one in self.calls[1:] if one.began < body.began < one.ended < inf]
        return body.name, waiting + ["the loop of its thread"] * sum(one.beneath for one in chain)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


class Statements:
    """The statements of one connection: those that read, and commits of those that wrote and that wait for the disk."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._is_open = self._has_written = False
        self._waits = True

    def see(self, statement: str) -> None:
        """A statement, with its values, before it is executed."""
        verb = statement.split(maxsplit=1)[0].upper().rstrip(";")
        if verb in ("BEGIN", "COMMIT", "END", "ROLLBACK"):
            is_commit = self._has_written and verb in ("COMMIT", "END")
            self._walk.commits += is_commit and self._waits and self._walk.is_on
            self._is_open, self._has_written = verb == "BEGIN", False
        elif verb == "PRAGMA" and "synchronous" in statement:
            self._waits = "NORMAL" not in statement
        elif verb in ("INSERT", "UPDATE", "DELETE", "REPLACE"):
            self._has_written = self._is_open
            self._walk.commits += not self._is_open and self._walk.is_on
        elif verb in ("SELECT", "WITH") and self._walk.is_on:
            self._walk.statements.append(statement)
            if call := self._walk.innermost(currentframe()):
                call.reads += 1
