"""Processes of the tests' own, forked from one that has the package imported already, so that they start at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "inference_core.agents.middleware.short_term",
        "inference_core.cli.app",
        "inference_core.cli.background",
        "inference_core.cli.memories",
        "inference_core.cli.serve",
        "inference_core.server.mcp",
        "inference_core.server.app",
        "inference_core.services.agent_memory_service",
        "langchain.agents",
        "inference_core.agents.checkpoints",
        "inference_core.agents.middleware.capture",
        "inference_core.ingestion.procrastinate_dispatch",
        "inference_core.ingestion.verbatim",
        "inference_core.transfer.migrate",
        "inference_core.stores.indexing.indexes",
        "inference_core.stores.backends.sql.sqlite",
        "langchain.agents",
        "langgraph.checkpoint.sqlite",
        "langgraph.prebuilt.chat_agent_executor",
        "pytest",
    ]
)


class Forked:
    """``target(*args)`` in a process of its own; ``said`` is what it writes to standard output and error."""

    def __init__(self, target: Callable[..., object], *args: Any) -> None:
        ours, theirs = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_speak, args=(theirs, target, *args), daemon=True)
        self._process.start()
        theirs.close()
        self.said = os.fdopen(os.dup(ours.fileno()), "rb")
        ours.close()

    def kill(self) -> None:
        """Kill -9."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills it, unless its end was waited for."""
        if not self.said.closed:
            self.kill()
            self.end()

    def send_signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self._process.pid or 0, number)

    def end(self) -> tuple[int | None, list[str]]:
        """Waits for its end; the exit code, and the lines that were not read yet."""
        with self.said:
            rest = self.said.read().decode()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        return code, rest.splitlines()


def _speak(said: Connection, target: Callable[..., object], *args: Any) -> None:
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    said.close()
    target(*args)
