"""A lock between processes: for setting up a store, and for writers, who wait without polling."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class FileLock:
    """A lock on ``path`` between processes, and between different FileLock objects in one process.

    The operating system wakes a waiter at once, and frees the lock when a process dies. Enter an object only once at a
    time.
    """

    def __init__(self, path: Path) -> None:
        # A new one is its owner's alone.
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    def __enter__(self) -> None:
        _lock(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        _unlock(self._file.fileno())

    def close(self) -> None:
        """Closes the file, which releases the lock."""
        self._file.close()
