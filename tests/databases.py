"""Databases of every kind for the tests: each one empty, on this machine, gone afterwards."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

KINDS = ("sqlite", "memory", "file")
"""The databases that the contract holds for."""


@contextmanager
def database(kind: str, folder: Path) -> Generator[str]:
    """The URL of an empty database of ``kind``; one of files lies in ``folder``."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'memory.db'}"
    elif kind == "file":
        yield f"file:///{folder / 'memories'}"
    elif kind == "memory":
        yield "memory://"
    else:
        raise ValueError(kind)
