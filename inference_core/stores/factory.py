"""open_store(url): the store that a URL names.

The scheme of the URL, or the object given in its place, decides which database that is and whether its rows are
encrypted. Each backend is imported on first use, so that nobody pays for the others.
"""

from __future__ import annotations

import atexit
import logging
import sqlite3
import sys
import threading
import weakref
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack, closing, suppress
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, TTLConfig

from inference_core.clock import Clock, SystemClock
from inference_core.embeddings.embedder import Embedder
from inference_core.embeddings.factory import EmbeddingsSpec, make_embedder
from inference_core.errors import ConfigurationError, MissingExtra, StoreError
from inference_core.memory.quota import Quota
from inference_core.memory.redaction import Guard, Policy
from inference_core.stores.backend import EMBEDDING_META, Backend
from inference_core.stores.encryption.encrypted import ENCRYPTED_META, EncryptedBackend
from inference_core.stores.encryption.keyring import KeyRing, open_keys
from inference_core.stores.engine import EngineParts, StoreEngine
from inference_core.stores.rules.lifetimes import MemoryLifetimes, MemoryTTLConfig, parse_ttl
from inference_core.stores.store import MemoryStore
from inference_core.stores.urls import check_scheme, parse_url

if TYPE_CHECKING:
    from redis import Redis, RedisCluster

    from inference_core.settings import MemorySettings
else:
    MemorySettings = Any  # pydantic-settings is slow to import: whoever has settings has loaded it


_NEEDS_KEYS: Final = (
    "Only file stores are encrypted with a key alone: add keys='sqlite:///keys.db' (AGENT_MEMORY_KEYS), or use a URL "
    "such as 'file:///memories'"
)
Database = str | MutableMapping[str, Any] | Any
"""Where a store may be: a URL, a mapping, a SQLAlchemy engine, a ``redis.Redis`` or a ``redis.RedisCluster``. These are
optional packages, so their types cannot be named here."""
KeySource = str | KeyRing | None
"""A key store: its URL, or an object; None: rows are not encrypted."""


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
        backend = _opened(url, durable=durable, clock=clock, encryption_key=None if keys else encryption_key)
        opened.callback(backend.close)
        is_encrypted = backend.get_meta(ENCRYPTED_META) is not None
        if is_encrypted and not keys:
            raise ConfigurationError(
                f"{backend.name} is encrypted with a key for each user: set AGENT_MEMORY_KEYS and "
                "AGENT_MEMORY_ENCRYPTION_KEY, or pass keys= and encryption_key="
            )
        if keys and (is_encrypted or not as_it_is or not backend.namespaces()):
            ring = open_keys(keys, encryption_key, url) if isinstance(keys, str) else keys
            if isinstance(keys, str):
                opened.callback(ring.close)
            backend = EncryptedBackend(backend, ring, closes_keys=isinstance(keys, str))
        opened.pop_all()
    return backend


def _opened(url: Database, *, durable: bool, clock: Clock | None, encryption_key: str | bytes | None) -> Backend:
    if not isinstance(url, str):
        if encryption_key:
            raise ConfigurationError(_NEEDS_KEYS)
        return _backend_on(url, durable=durable, clock=clock)
    parsed = parse_url(url)
    check_scheme(parsed.scheme)
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
            from inference_core.stores.backends.file import FileBackend, parse_key  # noqa: PLC0415 - on first use

            key = parse_key(encryption_key) if encryption_key else None
            return FileBackend(parsed.path, key=key, compresses=parsed.compress is not None, clock=clock)
        case "redis" | "rediss" | "unix":
            from inference_core.stores.backends.redis.backend import RedisBackend  # noqa: PLC0415 - an extra

            return RedisBackend(url, clock=clock)
        case "postgresql" | "postgres":
            return _postgres().PostgresBackend(url, durable=durable, clock=clock)
        case _:  # MongoDB, the only one that is left
            from inference_core.stores.backends.mongodb import MongoBackend  # noqa: PLC0415 - an extra

            return MongoBackend(url, clock=clock)


def _backend_on(given: object, *, durable: bool, clock: Clock | None) -> Backend:
    """The database that the caller's object ``given`` stands for. Raises ConfigurationError."""
    refuse_mock(given)
    if isinstance(given, MutableMapping):
        from inference_core.stores.backends.memory import MappingBackend  # noqa: PLC0415 - on first use

        return MappingBackend(cast("MutableMapping[str, Any]", given), clock)
    redis = sys.modules.get("redis")  # whoever has a client has imported it
    if redis and isinstance(given, redis.Redis | redis.RedisCluster):
        from inference_core.stores.backends.redis.backend import RedisBackend  # noqa: PLC0415 - an extra

        return RedisBackend(cast("Redis | RedisCluster", given), clock=clock)
    if type(given).__module__.startswith(("pymongo.", "motor.")):  # which have any attribute that is asked for
        raise ConfigurationError(
            f"A store does not open on a {type(given).__name__}; pass its URL, such as 'mongodb://localhost/memory'"
        )
    engine_url: Any = getattr(given, "url", None)
    if not hasattr(engine_url, "render_as_string"):  # what a URL of SQLAlchemy has
        raise ConfigurationError(
            "A store's URL looks like 'sqlite:///memory.db' or 'memory://'. It also opens on a mutable mapping such "
            f"as a dict, a SQLAlchemy engine or a redis.Redis; not on a {type(given).__name__}"
        )
    return _opened(
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


_MEGABYTE: Final = 1024 * 1024
_INDEX: Final = {"embed", "fields", "dims", "ann_index_config", "distance_type"}
"""What LangGraph's stores take as ``index``. The last three have no meaning here: users are ranked exactly."""


_open_engines: WeakSet[StoreEngine] = WeakSet()
_foreign_engines: WeakKeyDictionary[BaseStore, dict[object, StoreEngine]] = WeakKeyDictionary()
"""By embeddings (None, a name, or the id of an object that the engine's embedder keeps alive), guard, quota, audit."""
_given: WeakKeyDictionary[StoreEngine, object] = WeakKeyDictionary()
"""The caller's object that an engine was opened on, for engines that were not opened by URL."""
_embedders: WeakValueDictionary[object, Embedder] = WeakValueDictionary()
_making = threading.Lock()
_LOG = logging.getLogger(__name__)
_said_open = threading.Event()
"""Whether this process has warned that a store was never closed."""
_pointed_at: set[str] = set()
"""The databases whose unmigrated memories this process has warned about."""


@atexit.register
def _close_all() -> None:
    for engine in list(_open_engines):
        engine.close()


def open_store(
    url: Database,
    *,
    embeddings: EmbeddingsSpec = "auto",
    index: IndexConfig | None = None,
    fields: Sequence[str] | None = None,
    ttl: TTLConfig | MemoryTTLConfig | None = None,
    clock: Clock | None = None,
    encryption_key: str | bytes | None = None,
    keys: KeySource = None,
    secrets: Policy | Guard = "redact",
    quota: Quota | None = None,
    **options: Any,
) -> MemoryStore:
    """Opens the store at ``url`` and creates its tables if they are missing; safe for several processes at once.

    A store that is not closed is closed at exit. If you pass the same object (not a URL) again, the new store shares
    the engine of the first, with the options of the first call.

    Args:
        url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, ``postgresql://user:password@host/db``,
            ``redis://host:6379/0`` (also ``rediss://``, ``unix://``, ``redis+sentinel://`` and ``redis+cluster://``),
            ``mongodb://host/database``, ``memory://``, or a folder of files, ``file:///relative/folder`` or
            ``file:////absolute/folder``, with ``?compress=zstd`` to make a new one small. A driver in the scheme, as in
            ``sqlite+aiosqlite://``, is not needed. ``sqlite:///path.db?mode=ro``, and a file that is not writable, is
            opened read-only. Or an object: a dict or another mutable mapping such as a ``shelve``, a SQLAlchemy engine,
            a ``redis.Redis`` or a ``redis.RedisCluster``; the store opens connections of its own to the database of the
            last three.
        embeddings: ``"auto"`` (the best local models that are installed), ``"local"``, ``"local-large"``,
            ``"local-multilingual"``, ``"local-by-language"``, ``"local-large-by-language"``, ``"provider:model"``, a
            LangChain ``Embeddings`` object, a function, or None: recall by words only.
        index: Embeddings and fields as LangGraph's IndexConfig, ``{"embed": …, "fields": […]}``, in place of those two
            arguments; ``dims`` is not needed.
        fields: The JSON paths of an item that a query searches; by default ``["$"]``, all of it. Memories have their
            own.
        ttl: How many minutes items and memories live, as LangGraph's TTLConfig: ``default_ttl``, and ``categories``,
            such as ``{"semantic": None}``, for the memories of single categories. Writing restarts the time; so does
            reading, unless ``refresh_on_read`` is False. Pinned memories and those with ``expires_at`` are exempt.
        clock: Returns the current time. None: the machine's clock.
        encryption_key: The master key of ``keys``: 32 bytes, or their base64 or hexadecimal. Without ``keys`` it
            encrypts a new folder of files; other stores refuse it.
        keys: Encrypts all rows, with a key for each user: a `KeyRing`, or the URL of a key store, ``sqlite:///keys.db``
            or ``file:///keys.json``.
        secrets: What happens to credentials in memories and messages: ``"redact"``, ``"reject"``, ``"off"``, or a
            `Guard`, which also takes a policy for personal data and a `Redactor`.
        quota: Limits the memories, bytes and writes a minute of each user. None: no limits.
        **options: Those of StoreEngine and, for SQLite and PostgreSQL, ``durable`` (True by default).

    Raises:
        ConfigurationError: The scheme is unknown, the path cannot be opened, or arguments contradict each other or
            those with which the same object is open already.
        StoreUnavailable: The server cannot be reached; for MongoDB, that is a ConfigurationError.
        MissingExtra: A package is not installed.
        EmbeddingMismatch: The store's vectors were made by another model.
    """
    if index is not None:
        if unknown := index.keys() - _INDEX:
            others = ", ".join(map(repr, sorted(unknown)))
            raise ConfigurationError(f"index has {others}; it takes 'embed' and 'fields'")
        model, paths = index.get("embed"), index.get("fields")
        if (model is not None and embeddings != "auto") or (paths is not None and fields is not None):
            raise ConfigurationError("Give the model and the fields once: in index, or as embeddings and fields")
        embeddings, fields = embeddings if model is None else model, fields if paths is None else paths
    fields = ["$"] if fields is None else fields
    if isinstance(fields, str) or not all(isinstance(path, str) and path for path in fields):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise ConfigurationError(f"fields must be a list of JSON paths such as 'tags[*]', not {fields!r:.100}")
    opened = () if isinstance(url, str) else _given.items()
    if known := next((engine for engine, given in opened if given is url and not engine.is_closed), None):
        is_other = embeddings != "auto" and _fingerprint(known.embedder) != _fingerprint(make_embedder(embeddings))
        is_encrypted = isinstance(known.backend, EncryptedBackend)
        if is_other or (keys and not is_encrypted):
            found = "with other embeddings" if is_other else "without keys"
            raise ConfigurationError(f"This {type(url).__name__} is open already, {found}")
        return MemoryStore(known, fields, ttl=ttl, clock=clock)
    durable, tells = bool(options.pop("durable", True)), bool(options.pop("tells", True))
    if ttl:
        options["lifetimes"] = MemoryLifetimes.of(ttl, clock or SystemClock())
    if minutes := (ttl or {}).get("sweep_interval_minutes"):
        options.setdefault("sweep_interval_s", minutes * 60)
    backend = open_backend(url, durable=durable, clock=clock, encryption_key=encryption_key, keys=keys)
    with ExitStack() as undo:
        undo.callback(backend.close)
        embedder = make_embedder(embeddings, backend.get_meta(EMBEDDING_META))
        engine = StoreEngine(backend, embedder, secrets=secrets, quota=quota, **options)
        undo.pop_all()
    _open_engines.add(engine)
    _point_at_unmigrated(backend)
    if not isinstance(url, str):
        _given[engine] = url
    is_told = isinstance(url, str) and parse_url(url).scheme != "memory" and tells
    weakref.finalize(engine, _give_up, engine.parts, is_told=is_told).atexit = False
    return MemoryStore(engine, fields, ttl=ttl, clock=clock)


def _give_up(parts: EngineParts, *, is_told: bool) -> None:
    """Closes what a garbage-collected engine has left open; if ``is_told``, warns of it once per process."""
    if parts.is_closed:
        return
    if is_told and not _said_open.is_set():
        _said_open.set()
        _LOG.warning(
            "A store (%s) was given up without being closed. It is closed now; close() it yourself when you are done "
            "with it, or use it as in 'with open_store(…) as store:'",
            parts.backend.name,
        )
    # In a thread of its own: the collector must not wait for the engine's threads to end. The process waits for it.
    threading.Thread(target=parts.close, name="memory-close").start()


def _point_at_unmigrated(backend: Backend) -> None:
    """Warns once per process if LangGraph's store has memories in the same database, which this store does not read."""
    from inference_core.stores.backends.sql.base import SqlBackend  # noqa: PLC0415 - on first use

    backend = backend.inner if isinstance(backend, EncryptedBackend) else backend
    if not isinstance(backend, SqlBackend) or backend.name in _pointed_at:
        return
    with suppress(StoreError):  # a table of that name may be anything, and may not be ours to read
        if backend.holds_unmigrated():
            _pointed_at.add(backend.name)
            _LOG.warning(
                "LangGraph's store has memories in the same database as %s, which does not read them: inference-core "
                "migrate --dry-run shows them, without --dry-run it copies them",
                backend.name,
            )


def _fingerprint(embedder: Embedder | None) -> str | None:
    return embedder and embedder.fingerprint


def open_configured_store(settings: MemorySettings, **options: Any) -> MemoryStore:
    """Opens the store in ``settings``, with its embeddings; ``options`` win. Raises what `open_store` raises."""
    chosen: dict[str, Any] = {
        "embeddings": settings.embeddings_spec,
        "late_interaction": settings.late_interaction,
        "index_bytes": settings.index_mb * _MEGABYTE,
        "ttl": parse_ttl(settings.ttl) if settings.ttl else None,
        "secrets": settings.guard,
        **settings.encryption,
        "quota": settings.quota,
        "audit": settings.audit == "on",
        "audit_days": settings.audit_days,
        "audit_key": settings.audit_key_bytes,
    }
    return open_store(settings.store_url, **chosen | options)


def refuse_mock(given: object) -> None:
    """Raises ConfigurationError if ``given`` is a mock of unittest: it would confirm what it does not keep."""
    mock = sys.modules.get("unittest.mock")  # whoever has a mock has imported it
    if mock and isinstance(given, mock.NonCallableMock):
        raise ConfigurationError(
            f"A {type(given).__name__} keeps nothing, so it is neither a store nor a service; in tests take "
            "open_store('memory://', embeddings=None), AgentMemoryStoreService on it, and inference_core.testing for "
            "chat models and clocks"
        )


def check_store(store: object) -> None:
    """Raises ConfigurationError if ``store`` is no store, but for example its URL or a mock."""
    refuse_mock(store)
    if not isinstance(store, BaseStore):
        raise ConfigurationError(
            f"store must be a LangGraph BaseStore, not {type(store).__name__}: pass open_store(…), which takes URLs, "
            "mappings, SQLAlchemy engines and redis.Redis"
        )


def engine_of(
    store: BaseStore,
    embeddings: EmbeddingsSpec = None,
    secrets: Policy | Guard | None = None,
    quota: Quota | None = None,
    *,
    audit: bool = True,
) -> StoreEngine:
    """The engine of ``store``; that of another library's store ranks in this process.

    A MemoryStore has its engine, whatever the other arguments are. For another store they choose one: ``embeddings``
    None means those of the store's ``index=``, if it has one, else recall by words only; ``secrets`` None redacts;
    ``quota`` None sets no limit. The same arguments give the same engine, which does not keep the store alive, and is
    closed when the store is collected. Raises ConfigurationError if ``store`` is no store, or one that mixes users up.
    """
    if isinstance(store, MemoryStore):
        return store.engine
    check_store(store)
    if embeddings is None and isinstance(own := getattr(store, "embeddings", None), Embeddings):
        embeddings = own
    model = embeddings if embeddings is None or isinstance(embeddings, str) else id(embeddings)
    key = model, Guard.of(secrets), quota or Quota(), audit
    with _making:
        known = _foreign_engines.setdefault(store, {})
        if key not in known or known[key].is_closed:
            from inference_core.stores.backends.foreign import ForeignBackend  # noqa: PLC0415 - on first use

            # One model for all foreign stores: a server may make a store object for each run, and loads the model once.
            embedder = None if embeddings is None else _embedders.get(model)
            if embedder is None and (embedder := make_embedder(embeddings)) is not None:
                _embedders[model] = embedder
            check_safe(store)
            backend = ForeignBackend(store, weakly=True)
            known[key] = engine = StoreEngine(
                backend,
                embedder,
                owns_embedder=False,
                may_block=backend.check_may_block,
                secrets=key[1],
                quota=key[2],
                audit=audit,
            )
            _open_engines.add(engine)

            def close_soon() -> None:
                # In a thread of its own: the collector must not wait for the engine's threads to end.
                threading.Thread(target=engine.close, name="memory-close", daemon=True).start()

            weakref.finalize(store, close_soon).atexit = False
        return known[key]


def any_engine_of(store: BaseStore) -> StoreEngine:
    """An engine of ``store``, whatever its embeddings, for callers that do not search. Raises ConfigurationError."""
    with _making:
        known = {} if isinstance(store, MemoryStore) else _foreign_engines.get(store, {})
        found = next((engine for engine in known.values() if not engine.is_closed), None)
    return found or engine_of(store)


# Stores of other libraries that mix users up, by the versions that do.

_FIRST_SAFE: Final = {
    "langgraph.store.sqlite": ("langgraph-checkpoint-sqlite", (3, 1, 1)),
    "langgraph.store.postgres": ("langgraph-checkpoint-postgres", (3, 1, 1)),
}
"""Earlier versions give a user's items to others with similar ids (CVE-2026-71433)."""
_REDIS: Final = "langgraph.store.redis"


def check_safe(store: BaseStore) -> None:
    """Raises ConfigurationError if ``store`` gives one user's items to another."""
    modules = [kind.__module__ for kind in type(store).__mro__]
    if any(_is_in(module, _REDIS) for module in modules):
        raise ConfigurationError(
            "LangGraph's RedisStore looks namespaces up as words, so that users with similar ids read and delete each "
            "other's items; use open_store('redis://...')"
        )
    for package, (distribution, first_safe) in _FIRST_SAFE.items():
        if not any(_is_in(module, package) for module in modules):
            continue
        with suppress(PackageNotFoundError):  # not installed as a package: whether it has the fault is unknown
            found = tuple(int(part) for part in version(distribution).split(".")[:3] if part.isdigit())
            if found < first_safe:
                raise ConfigurationError(
                    f"{distribution} {version(distribution)} gives items to users with similar ids (CVE-2026-71433): "
                    f"pip install '{distribution}>={'.'.join(map(str, first_safe))}'"
                )


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
