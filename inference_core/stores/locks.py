"""A lock between processes: for a store's set-up, and for writers to take turns without polling."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, *, waits: bool = True) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int, *, waits: bool = True) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class FileLock:
    """A lock on ``path`` between processes, and within this one between holders of different objects.

    Whoever waits is woken at once; the system frees the lock when a process dies. One holder per object at a time.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def __enter__(self) -> None:
        _lock(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        _unlock(self._file.fileno())

    def acquire_now(self) -> bool:
        """Takes the lock unless another holder has it; whether it did. It is held until the lock is closed."""
        try:
            _lock(self._file.fileno(), waits=False)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Frees the file, and the lock with it."""
        self._file.close()
