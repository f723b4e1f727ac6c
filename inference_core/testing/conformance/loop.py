"""An event loop in a thread of its own, for the async mode of a store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")
PATIENCE_S: Final = 120.0
"""A call that takes longer counts as hanging."""


class LoopThread:
    """A context manager; coroutines can be handed over from any other thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="conformance-loop", daemon=True)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Raises what it raises, TimeoutError if it hangs."""
        return self.start(coroutine).result(PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


async def _rest() -> None:
    """Ends what the stores left behind."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
