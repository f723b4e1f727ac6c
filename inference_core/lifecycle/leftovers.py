"""Copies of stores that are made for a moment, and what is left of them by a process that was killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from inference_core.errors import InvalidInput
from inference_core.stores.locks import FileLock

_PREFIX: Final = "inference-core-"
_LOCK: Final = "in-use"
_YOUNG_S: Final = 60.0
"""Whoever has just made a folder may not have taken its lock yet."""


@contextmanager
def own_folder(kind: str) -> Generator[Path]:
    """A folder among the temporary files for copies of a store; those of processes that were killed go."""
    sweep()
    with (
        tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{kind}-") as place,
        closing(FileLock(Path(place) / _LOCK)) as lock,
        lock,
    ):
        yield Path(place)


def sweep() -> None:
    """Removes the folders of `own_folder` that are nobody's any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is another account's, or has just gone
            made = (folder / _LOCK).stat(follow_symlinks=False)
            is_ours = made.st_uid == folder.stat(follow_symlinks=False).st_uid == getattr(os, "getuid", int)()
            if is_ours and time.time() - made.st_mtime > _YOUNG_S:
                with closing(FileLock(folder / _LOCK)) as lock:
                    is_left = lock.take()
                if is_left:
                    shutil.rmtree(folder)


@contextmanager
def alone_at(path: Path) -> Generator[None]:
    """Lets one process at a time restore to ``path``, removes what one that was killed left. Raises InvalidInput."""
    marker = path.with_name(f"{path.name}.restoring")
    with closing(FileLock(marker)) as lock:
        if not lock.take():
            raise InvalidInput(f"Another process restores a backup to {path}")
        for old in path.parent.iterdir():
            if re.fullmatch(re.escape(path.name) + r"\.[0-9a-f]{8}\.part.*", old.name):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        try:
            yield
        finally:
            marker.unlink()
