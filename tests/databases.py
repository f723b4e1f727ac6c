"""Databases of every kind for the tests: each one empty, on this machine, gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import postgres_server
import redis_server

from inference_core.stores.factory import open_backend

KINDS = ("sqlite", "postgres", "redis", "file", "memory")
"""The databases that the contract holds for."""
SHARED_KINDS = ("sqlite", "postgres", "redis", "file")
"""Those of them that several processes can open."""
CLUSTER = "redis-cluster"
BACKEND_KINDS = (*KINDS, "postgres-debian", CLUSTER)
"""The databases that the contract of backends holds for."""


@cache
def _with_tables() -> bytes:
    """The file of an empty SQLite store: to make its tables takes longer than most of what is done with them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        open_backend(f"sqlite:///{path}").close()
        return path.read_bytes()


@contextmanager
def database(kind: str, folder: Path, *, is_new: bool = False) -> Generator[str]:
    """The URL of an empty database of ``kind``; one of files lies in ``folder``. ``is_new``: it has no tables yet."""
    if kind == "sqlite":
        path = folder / "memory.db"
        if not is_new and not path.exists():
            path.touch(0o600)
            path.write_bytes(_with_tables())
        yield f"sqlite:///{path}"
    elif kind == "file":
        yield f"file:///{folder / 'memories'}"
    elif kind == "memory":
        yield "memory://"
    elif kind == "redis":
        with redis_server.fresh_database() as url:
            yield url
    elif kind == CLUSTER:
        redis_server.skip_without_redis()
        import redis_cluster

        with redis_cluster.fresh_cluster() as url:
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
