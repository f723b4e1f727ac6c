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
