"""open_store(url): the store that a URL names.

Backends are imported when a URL or a store asks for them, so that nobody pays for those that are not used.
"""

from __future__ import annotations

import atexit
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from weakref import WeakSet

from langgraph.store.base import BaseStore

from inference_core.embeddings.factory import EmbeddingsSpec, make_embedder
from inference_core.errors import ConfigurationError
from inference_core.stores.backend import Backend
from inference_core.stores.engine import EMBEDDING_META, StoreEngine
from inference_core.stores.store import MemoryStore

if TYPE_CHECKING:
    from inference_core.settings import MemorySettings

_MEGABYTE: Final = 1024 * 1024
_SCHEME: Final = re.compile(r"([a-z0-9]+)(?:\+[a-z0-9]+)?://", re.ASCII)


_open_engines: WeakSet[StoreEngine] = WeakSet()


@atexit.register
def _close_all() -> None:
    for engine in list(_open_engines):
        engine.close()


def open_store(url: str, *, embeddings: EmbeddingsSpec = "auto", **options: Any) -> MemoryStore:
    """Opens the store at ``url`` and makes its tables if they are missing; safe from several processes at once.

    ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, ``memory://``. A driver in the scheme, as in
    ``sqlite+aiosqlite://``, is accepted and not needed. ``embeddings`` is ``"auto"`` (the local models that
    are installed), ``"local"``, ``"local-multilingual"``, ``"local-by-language"``, ``"provider:model"``, a LangChain
    ``Embeddings`` object, or None: recall by words alone.
    Options are those of StoreEngine and, for SQLite, ``durable``. A store that is not closed is closed at exit.

    Raises ConfigurationError for an unknown scheme or a path that cannot be opened, MissingExtra, EmbeddingMismatch.
    """
    durable = bool(options.pop("durable", True))
    backend = open_backend(url, durable=durable)
    try:
        embedder = make_embedder(embeddings, backend.get_meta(EMBEDDING_META))
        engine = StoreEngine(backend, embedder, **options)
    except BaseException:
        backend.close()
        raise
    _open_engines.add(engine)
    return MemoryStore(engine)


def open_configured_store(settings: MemorySettings, **options: Any) -> MemoryStore:
    """The store that ``settings`` name, with their embeddings; ``options`` win. Raises what `open_store` raises."""
    chosen: dict[str, Any] = {
        "embeddings": settings.embeddings_spec,
        "late_interaction": settings.late_interaction,
        "index_bytes": settings.index_mb * _MEGABYTE,
    }
    return open_store(settings.store_url, **chosen | options)


def engine_of(store: BaseStore, embeddings: EmbeddingsSpec = None, *, weakly: bool = False) -> StoreEngine:
    """The engine of ``store``; a store of another library gets one that ranks in this process.

    ``embeddings`` is for such a store; a MemoryStore has its own. ``weakly``: the engine does not keep such a store
    alive. Raises ConfigurationError for anything that is not a store.
    """
    if isinstance(store, MemoryStore):
        return store.engine
    if not isinstance(store, BaseStore):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"store must be a LangGraph BaseStore, not {type(store).__name__}; see open_store")
    from inference_core.stores.foreign import ForeignBackend  # noqa: PLC0415

    return StoreEngine(ForeignBackend(store, weakly=weakly), make_embedder(embeddings), owns_embedder=not weakly)


def open_backend(url: str, *, durable: bool = True) -> Backend:
    """The database at ``url``, by itself. Raises ConfigurationError, UnsupportedSchema."""
    found = _SCHEME.match(url) if isinstance(url, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        raise ConfigurationError("A store's URL looks like 'sqlite:///memory.db' or 'memory://'")
    scheme, rest = found[1], url[found.end() :]
    if scheme == "memory" or (scheme == "sqlite" and rest in ("", "/:memory:")):
        from inference_core.stores.memory import InMemoryBackend  # noqa: PLC0415

        return InMemoryBackend()
    if scheme != "sqlite":
        raise ConfigurationError(f"Unknown store scheme {scheme!r}; known: sqlite, memory")
    if not rest.startswith("/") or rest == "/":
        raise ConfigurationError("A SQLite URL has three slashes and a path: 'sqlite:///memory.db'")
    from inference_core.stores.sqlite import SqliteBackend  # noqa: PLC0415

    return SqliteBackend(Path(unquote(rest[1:].partition("?")[0])), durable=durable)
