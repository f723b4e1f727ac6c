"""Ctrl-C during work by batches: it takes effect between two of them, so that the printed counts are true."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

_NOTE: Final = b"\nEnding after this batch. Ctrl-C again ends at once; this batch may then be written and not counted\n"


@contextmanager
def held_back() -> Generator[Callable[[], None]]:
    """Gives a function to call after each batch; it raises KeyboardInterrupt if Ctrl-C was pressed.

    A second Ctrl-C raises it at once. Where Ctrl-C is ignored or handled otherwise, and in other threads, nothing
    changes.
    """
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    pressed = threading.Event()

    def first(_signal: int, _frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(OSError):
            os.write(2, _NOTE)  # not through sys.stderr, which may be in the middle of a write

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, first)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
