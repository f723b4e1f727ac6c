"""Whether there is a store at a URL: asked without making one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from inference_core.errors import MissingExtra
from inference_core.stores.urls import parse_url


def has_store(url: str) -> bool:
    """Whether a store was made at ``url``; nothing is made or changed there by asking.

    True also where that cannot be told, as opening the store says why: damaged files, MongoDB, unknown schemes. Raises
    ConfigurationError if the URL cannot be read, StoreUnavailable if the server cannot be reached, MissingExtra.
    """
    parsed = parse_url(url)
    match parsed.scheme:
        case "sqlite" if parsed.path:
            return _has_tables(parsed.path)
        case "file" if parsed.path:
            return any(parsed.path.iterdir()) if parsed.path.is_dir() else parsed.path.exists()
        case "redis" | "rediss" | "unix":
            from inference_core.stores.backends import redis  # noqa: PLC0415 - an extra

            return redis.has_store(url)
        case "postgresql" | "postgres":
            try:
                from inference_core.stores.backends import postgres  # noqa: PLC0415 - an extra
            except ImportError as error:
                raise MissingExtra("A PostgreSQL store", "postgres") from error
            return postgres.has_store(url)
        case _:
            return True


def _has_tables(path: Path) -> bool:
    if not path.is_file():
        return path.exists()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            query = "SELECT count(*) FROM sqlite_master WHERE name = 'memory_meta'"
            return connection.execute(query).fetchone()[0] == 1
    except sqlite3.Error:
        return True
