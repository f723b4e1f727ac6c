"""Is stopped while its store answers none of its calls; says what the store does with the next ones."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from inference_core.effects import WorkerPool
from inference_core.errors import StoreUnavailable
from inference_core.stores.backend import Batch, Outcome
from inference_core.stores.backends.memory import InMemoryBackend
from inference_core.stores.writer import GroupWriter

HANG_S = 1.0


def main() -> None:
    """Stops itself, and goes on when it is told to."""
    gate, begun = threading.Event(), threading.Barrier(3)

    class Backend(InMemoryBackend):
        def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
            begun.wait()
            gate.wait()
            return super().apply(batches)

    def read() -> None:
        begun.wait()
        gate.wait()

    pool, writer = WorkerPool(1, "readers", hang_s=HANG_S), GroupWriter(Backend(), hang_s=HANG_S)
    pool.submit(read)
    writer.submit([])
    begun.wait()
    os.kill(os.getpid(), signal.SIGSTOP)
    pool.submit(lambda: None)
    print("read")
    writer.submit([])
    print("written")
    with suppress(StoreUnavailable):
        while True:  # they do hang, and nobody stops this process any more
            pool.submit(lambda: None)
            time.sleep(0.05)
    with suppress(StoreUnavailable):
        while True:
            writer.submit([])
            time.sleep(0.05)
    print("hangs")


if __name__ == "__main__":
    main()
