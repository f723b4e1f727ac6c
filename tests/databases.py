"""Databases of every kind for the tests: each one empty, on this machine, gone afterwards."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import postgres_server
import redis_server

KINDS = ("sqlite", "postgres", "redis", "file", "memory")
"""The databases that the contract holds for."""
SHARED_KINDS = ("sqlite", "postgres", "redis", "file")
"""Those of them that several processes can open."""
BACKEND_KINDS = (*KINDS, "postgres-debian")
"""The databases that the contract of backends holds for."""


@contextmanager
def database(kind: str, folder: Path, *, is_new: bool = False) -> Generator[str]:
    """The URL of an empty database of ``kind``; one of files lies in ``folder``. ``is_new``: it has no tables yet."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'memory.db'}"
    elif kind == "file":
        yield f"file:///{folder / 'memories'}"
    elif kind == "memory":
        yield "memory://"
    elif kind == "redis":
        with redis_server.fresh_database() as url:
            yield url
    elif kind == "mongodb":
        from mongo_support import mongodb_url  # what it imports takes a while

        with mongodb_url() as url:
            yield url
    elif kind.startswith("postgres"):
        with postgres_server.fresh_database(kind, is_new=is_new) as url:
            yield url
    else:
        raise ValueError(kind)
