"""Which database the scheme of a URL or an object names, and whether its rows are sealed.

Each backend is imported on first use, so that nobody pays for the others.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import MutableMapping
from contextlib import ExitStack, closing
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from inference_core.clock import Clock
from inference_core.errors import ConfigurationError, MissingExtra
from inference_core.memory.text import did_you_mean
from inference_core.stores.backend import Backend
from inference_core.stores.encryption.keyring import KeyRing, open_keys
from inference_core.stores.encryption.sealed import SEALED_META, SealedBackend
from inference_core.stores.urls import parse_url

if TYPE_CHECKING:
    from redis import Redis


_NEEDS_KEYS: Final = (
    "Only file stores are encrypted with a key alone: add keys='sqlite:///keys.db' (AGENT_MEMORY_KEYS), or use a URL "
    "such as 'file:///memories'"
)
Database = str | MutableMapping[str, Any] | Any
"""Where a store may be: a URL, a mapping, a SQLAlchemy engine or a ``redis.Redis``. The last two are optional
packages, so their types cannot be named here."""
KeySource = str | KeyRing | None
"""A key store: its URL, or an object; None: rows are not sealed."""


def open_backend(
    url: Database,
    *,
    durable: bool = True,
    clock: Clock | None = None,
    encryption_key: str | bytes | None = None,
    keys: KeySource = None,
    as_it_is: bool = False,
) -> Backend:
    """The database at ``url`` as a Backend, without an engine.

    ``as_it_is``: a database that was written without ``keys`` is opened without them. Raises ConfigurationError, also
    if ``keys`` does not fit what is stored; MissingExtra, StoreError.
    """
    with ExitStack() as opened:
        backend = _unsealed(url, durable=durable, clock=clock, encryption_key=None if keys else encryption_key)
        opened.callback(backend.close)
        is_sealed = backend.get_meta(SEALED_META) is not None
        if is_sealed and not keys:
            raise ConfigurationError(
                f"{backend.name} is encrypted with a key for each user: set AGENT_MEMORY_KEYS and "
                "AGENT_MEMORY_ENCRYPTION_KEY, or pass keys= and encryption_key="
            )
        if keys and (is_sealed or not as_it_is or not backend.namespaces()):
            ring = open_keys(keys, encryption_key, url) if isinstance(keys, str) else keys
            if isinstance(keys, str):
                opened.callback(ring.close)
            backend = SealedBackend(backend, ring, closes_keys=isinstance(keys, str))
        opened.pop_all()
    return backend


def _unsealed(url: Database, *, durable: bool, clock: Clock | None, encryption_key: str | bytes | None) -> Backend:
    if not isinstance(url, str):
        if encryption_key:
            raise ConfigurationError(_NEEDS_KEYS)
        return _backend_on(url, durable=durable, clock=clock)
    parsed = parse_url(url)
    if encryption_key and parsed.scheme != "file":
        raise ConfigurationError(_NEEDS_KEYS)
    match parsed.scheme:
        case "memory":
            from inference_core.stores.backends.memory import InMemoryBackend  # noqa: PLC0415 - on first use

            return InMemoryBackend(clock)
        case "sqlite" if parsed.path:
            from inference_core.stores.backends.sql.sqlite import SqliteBackend  # noqa: PLC0415 - on first use

            return SqliteBackend(parsed.path, durable=durable, read_only=parsed.read_only, clock=clock)
        case "file" if parsed.path:
            from inference_core.stores.backends.file import FileBackend  # noqa: PLC0415 - on first use
            from inference_core.stores.backends.file_format import parse_key  # noqa: PLC0415 - on first use

            key = parse_key(encryption_key) if encryption_key else None
            return FileBackend(parsed.path, key=key, compresses=parsed.compress is not None, clock=clock)
        case "redis" | "rediss" | "unix":
            from inference_core.stores.backends.redis.backend import RedisBackend  # noqa: PLC0415 - an extra

            return RedisBackend(url, clock=clock)
        case "postgresql" | "postgres":
            return _postgres().PostgresBackend(url, durable=durable, clock=clock)
        case "mongodb":
            from inference_core.stores.backends.mongodb import MongoBackend  # noqa: PLC0415 - an extra

            return MongoBackend(url, clock=clock)
        case scheme:
            known = ("sqlite", "postgresql", "redis", "mongodb", "file", "memory")
            raise ConfigurationError(
                f"Unknown store scheme {scheme!r}; known: {', '.join(known)}{did_you_mean(scheme, known)}"
            )


def _backend_on(given: object, *, durable: bool, clock: Clock | None) -> Backend:
    """The database that the caller's object ``given`` stands for. Raises ConfigurationError."""
    if isinstance(given, MutableMapping):
        from inference_core.stores.backends.memory import MappingBackend  # noqa: PLC0415 - on first use

        return MappingBackend(cast("MutableMapping[str, Any]", given), clock)
    redis = sys.modules.get("redis")  # whoever has a client has imported it
    if redis and isinstance(given, redis.Redis):
        from inference_core.stores.backends.redis.backend import RedisBackend  # noqa: PLC0415 - an extra

        return RedisBackend(cast("Redis", given), clock=clock)
    engine_url: Any = getattr(given, "url", None)
    if not hasattr(engine_url, "render_as_string"):  # what a URL of SQLAlchemy has
        raise ConfigurationError(
            "A store's URL looks like 'sqlite:///memory.db' or 'memory://'. It also opens on a mutable mapping such "
            f"as a dict, a SQLAlchemy engine or a redis.Redis; not on a {type(given).__name__}"
        )
    return _unsealed(
        str(engine_url.render_as_string(hide_password=False)), durable=durable, clock=clock, encryption_key=None
    )


def _postgres() -> ModuleType:
    try:
        from inference_core.stores.backends.sql import postgres  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra("A PostgreSQL store", "postgres") from error
    return postgres


def has_store(url: str) -> bool:
    """Whether there is a store at ``url``; this creates and changes nothing there.

    True also where this is unknown, as opening the store then says why: damaged files, MongoDB, unknown schemes. Raises
    ConfigurationError if the URL cannot be read, StoreUnavailable if the server cannot be reached, MissingExtra.
    """
    parsed = parse_url(url)
    match parsed.scheme:
        case "sqlite" if parsed.path:
            if not parsed.path.is_file():
                return parsed.path.exists()
            try:
                with closing(sqlite3.connect(f"{parsed.path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                    query = "SELECT count(*) FROM sqlite_master WHERE name = 'memory_meta'"
                    return connection.execute(query).fetchone()[0] == 1
            except sqlite3.Error:
                return True
        case "file" if parsed.path:
            return any(parsed.path.iterdir()) if parsed.path.is_dir() else parsed.path.exists()
        case "redis" | "rediss" | "unix":
            from inference_core.stores.backends.redis import backend as redis  # noqa: PLC0415 - an extra

            return redis.has_store(url)
        case "postgresql" | "postgres":
            return _postgres().has_store(url)
        case _:
            return True
