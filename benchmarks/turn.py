"""What a turn passes through: the package's modules between `before_agent` and the rows, and back.

Counted, not timed, so the numbers are the same on every machine: modules entered, threads used, database reads, JSON
texts parsed and records made, per turn of an agent with n memories when nothing has changed since the turn before. Each
turn asks something else. The interpreter's profile hook sees the calls of every thread.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, cast

import ours
from command import Options, Result, bar, described, plain, run
from corpus import ASKER, queries
from langchain.agents import create_agent
from report import Row
from timing import scratch

from inference_core import MemoryMiddleware
from inference_core.memory.record import MemoryRecord
from inference_core.stores.backends.sql.sqlite import SqliteBackend
from inference_core.testing import ScriptedChatModel

MODULES_BAR: Final = 15
HOPS_BAR: Final = 1
READS_BAR: Final = 2
WARM_UP: Final = 3
COUNTED_TURNS: Final = 5
QUIET_S: Final = 2.5
"""Until what follows a turn in the background, such as its receipt, has been written."""
PACKAGE: Final = "inference_core"
KINDS: Final = {"lexical": None, "vectors": ours.HASHING}


def _code(function: Any) -> CodeType:
    return cast("FunctionType", function).__code__


COUNTED: Final = {
    _code(json.loads): "json_parses",
    _code(MemoryRecord.from_value): "records",
    _code(Future.__init__): "hops",
    **{_code(read): "reads" for name, read in vars(SqliteBackend).items() if callable(read) and name[0] != "_"},
}
"""Work is handed to a thread with a future; a turn writes nothing before its end, so that each call is a read."""


class Walk:
    """A profile hook: what is called between a call of ``entry`` and its return, on this thread and on later ones."""

    def __init__(self, entry: CodeType) -> None:
        self._entry = entry
        self._is_on = False
        self.modules: dict[str, None] = {}
        self.counts: Counter[str] = Counter()

    @contextmanager
    def watching(self) -> Generator[None]:
        """Sees this thread and the threads that are started within."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(cast("Any", None))

    def restart(self) -> None:
        """Forgets what was counted."""
        self.modules.clear()
        self.counts.clear()

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code is self._entry and event in ("call", "return"):
            self._is_on = event == "call"
        if not self._is_on or event != "call":
            return
        if name := COUNTED.get(code):
            self.counts[name] += 1
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == PACKAGE:
            self.modules.setdefault(module)


def walked(kind: str, options: Options) -> Result:
    """What a turn passes through with vectors or with words alone: the modules of one, and the most of a few."""
    walk = Walk(_code(MemoryMiddleware.before_agent))
    with scratch() as folder, walk.watching(), ours.filled(folder / "ours.db", options, KINDS[kind]) as store:
        ours.index(store)
        model = ScriptedChatModel(turns=["answered"], record=False)
        agent: Any = create_agent(model, store=store, middleware=[MemoryMiddleware(recall_timeout=30)])
        counts: list[Counter[str]] = []
        for text in queries(WARM_UP + COUNTED_TURNS):
            time.sleep(QUIET_S)
            walk.restart()
            status = agent.invoke({"messages": [("user", text)]}, context={"user_id": ASKER})["memory_status"]
            if status not in ("recalled", "lexical"):
                raise RuntimeError(f"the turn had no memory: {status}")
            counts.append(walk.counts.copy())
    most = {name: max(one[name] for one in counts[WARM_UP:]) for name in dict.fromkeys(COUNTED.values())}
    return {**most, "modules": [name.removeprefix(f"{PACKAGE}.") for name in walk.modules]}


def measured(options: Options) -> Result:
    """What a turn passes through on SQLite, without an embedding model and with one."""
    return {"n": options.n, "users": options.users} | {kind: walked(kind, options) for kind in KINDS}


def table(result: Result) -> list[Row]:
    """The report's rows."""
    return [row for kind in KINDS for row in _rows(f"{kind}, {described(result)}", result[kind])]


def _rows(where: str, found: Result) -> list[Row]:
    return [
        bar(f"{where}: modules that a turn enters", len(found["modules"]), MODULES_BAR, ""),
        plain(f"{where}: these", " ".join(found["modules"])),
        bar(f"{where}: threads it hands work to", found["hops"], HOPS_BAR, ""),
        bar(f"{where}: reads of the database", found["reads"], READS_BAR, ""),
        plain(f"{where}: JSON texts parsed", found["json_parses"], ""),
        plain(f"{where}: records made", found["records"], ""),
    ]


if __name__ == "__main__":
    sys.exit(run("turn", measured, table, __doc__))
