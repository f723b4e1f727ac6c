"""What a store's URL says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from inference_core.errors import ConfigurationError

_URL: Final = re.compile(r"([a-z0-9]+)(?:\+[a-z0-9]+)?://(.*)", re.ASCII | re.DOTALL)


class StoreUrl(NamedTuple):
    """``scheme`` is the kind of database, ``path`` the file of an SQLite one. In-memory SQLite is ``memory``."""

    scheme: str
    path: Path | None = None


def parse_url(url: str) -> StoreUrl:
    """The parts of ``url``: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, ``memory://``.

    A driver in the scheme, as in ``sqlite+aiosqlite``, is accepted.
    Raises ConfigurationError for anything that is no URL, and for one of SQLite without a path.
    """
    found = _URL.fullmatch(url) if isinstance(url, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        raise ConfigurationError("A store's URL looks like 'sqlite:///memory.db' or 'memory://'")
    scheme, rest = found.groups()
    if scheme != "sqlite":
        return StoreUrl(scheme)
    path = unquote(rest.partition("?")[0])
    if path in ("", "/:memory:"):
        return StoreUrl("memory")
    if not path.startswith("/") or path == "/":
        raise ConfigurationError("A SQLite URL has three slashes and a path: 'sqlite:///memory.db'")
    return StoreUrl(scheme, Path(path[1:]))


def shown_url(url: str) -> str:
    """``url`` without its password and its parameters, which may hold one."""
    scheme, separator, rest = url.partition("://")
    place, _, parameters = rest.partition("?")
    owner, at, host = place.rpartition("@")
    if scheme.partition("+")[0] == "sqlite" or not (at and owner.strip("/")):
        is_torn = scheme.startswith(("postgres", "redis", "mongodb")) and not at and "@" in parameters
        return f"{scheme}{separator}{'***' if is_torn else place}"
    return f"{scheme}{separator}{owner.partition(':')[0]}:***@{host}"
