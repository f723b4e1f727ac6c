"""A lock between processes: for setting up a store, and for writers, who wait without polling.

Also files that only their owner can read, and how to read a file on which this process may hold locks. POSIX frees all
locks of a process on a file once it closes any descriptor of that file: connections of SQLite would go on without
theirs, and the next program that closes the database would take itself for the last one and delete the journal that
they write to. So a file of a database is not opened.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from inference_core.errors import ConfigurationError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


OTHER_NAME: Final = (
    "{} has another name, a hard link. SQLite has a journal for each name, so programs that use different names lose "
    "each other's saves. Remove the other name, or make a copy instead"
)


class FileLock:
    """A lock on ``path`` between processes, and between different FileLock objects in one process.

    The operating system wakes a waiter at once (Windows looks once a second, for ten seconds, and then raises OSError),
    and frees the lock when a process dies. Enter an object only once at a time.
    """

    def __init__(self, path: Path) -> None:
        # Only the owner can read a new file.
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    def __enter__(self) -> None:
        if sys.platform == "win32":
            msvcrt.locking(self._file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX)

    def take(self) -> bool:
        """Takes the lock until `close`, without waiting; False if somebody else has it."""
        try:
            if sys.platform == "win32":
                msvcrt.locking(self._file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        if sys.platform == "win32":
            msvcrt.locking(self._file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)

    def close(self) -> None:
        """Closes the file, which releases the lock."""
        self._file.close()


def check_names(path: Path) -> None:
    """Raises ConfigurationError if ``path`` is a file of SQLite with a second name; OSError."""
    if path.is_file() and path.stat().st_nlink > 1:
        raise ConfigurationError(OTHER_NAME.format(path))


def make_private(path: Path) -> None:
    """Makes an empty file that only its owner can read, unless there is a file already. Raises OSError."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextmanager
def private_file(path: Path, how: int = os.O_CREAT | os.O_EXCL) -> Generator[IO[bytes]]:
    """A file that only its owner can read, opened for writing with the flags ``how``; synced when the context ends.

    Raises OSError.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | how, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Syncs the names of a folder's files. Raises OSError."""
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_at(path: Path, start: int, size: int) -> bytes:
    """At most ``size`` bytes of a file from ``start`` on, through a descriptor that this process has open, if any.

    To open and close another descriptor would free the process's locks on the file. Raises OSError.
    """
    status = path.stat()
    with suppress(FileNotFoundError):  # Windows has no such folder, and no such trouble
        for name in os.listdir("/dev/fd"):  # noqa: PTH208 - a list, before any of them is closed
            with suppress(OSError):
                if os.path.samestat(os.fstat(int(name)), status):
                    return os.pread(int(name), size, start)
    with path.open("rb") as file:  # this process does not have it open
        file.seek(start)
        return file.read(size)
