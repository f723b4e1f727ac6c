"""Parsing the URL of a store, and showing it without its password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from inference_core.errors import ConfigurationError
from inference_core.memory.text import did_you_mean

_SCHEMES: Final = ("sqlite", "postgresql", "redis", "mongodb", "file", "memory")
_ALIASES: Final = ("postgres", "rediss", "unix")
_OF_FILES: Final = {"sqlite": "sqlite:///memory.db", "file": "file:///memories"}
_URL: Final = re.compile(r"([a-z0-9]+)(?:\+[a-z0-9]+)?://(.*)", re.ASCII | re.DOTALL)
_PASSWORD: Final = re.compile(r"(pass\w*|pwd|secret)\s*=\s*(?:'(?:\\.|[^'\\])*'?|[^\s;&]+)", re.IGNORECASE)
"""A password in a text of names and values, such as libpq's ``host=… password='…'``."""


class StoreUrl(NamedTuple):
    """The kind of database (in-memory SQLite is ``memory``); for SQLite and files, also the path and the options."""

    scheme: str
    path: Path | None = None
    compress: str | None = None
    read_only: bool = False


def parse_url(url: str) -> StoreUrl:
    """The parts of a store's URL. A driver in the scheme, as in ``sqlite+aiosqlite``, is accepted.

    ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db?mode=ro``, ``memory://``,
    ``file:///relative/folder``, ``file:////absolute/folder?compress=zstd``; of other schemes only the scheme is parsed.
    Raises ConfigurationError for a malformed URL, and for one of SQLite or files without a path.
    """
    match = _URL.fullmatch(url) if isinstance(url, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
    if match is None:
        raise ConfigurationError(f"A store's URL looks like 'sqlite:///memory.db' or 'memory://', not {_quoted(url)}")
    scheme, rest = match.groups()
    if scheme not in _OF_FILES:
        return StoreUrl(scheme)
    place, _, query = rest.partition("?")
    path = unquote(place)
    if scheme == "sqlite" and path in ("", "/:memory:"):
        return StoreUrl("memory")
    if not path.startswith("/") or path == "/":
        raise ConfigurationError(
            f"A {scheme} URL has three slashes and a path: {_OF_FILES[scheme]!r}, not {_quoted(url)}"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    if scheme == "sqlite":
        mode = options.get("mode")
        if mode not in (None, "ro", "rw", "rwc"):
            raise ConfigurationError("The mode of a sqlite URL is ro, for reading alone: 'sqlite:///memory.db?mode=ro'")
        return StoreUrl(scheme, Path(path[1:]), read_only=mode == "ro")
    compress = options.pop("compress", None)
    if options or compress not in (None, "zstd"):
        raise ConfigurationError("The one option of a file URL is compress=zstd: 'file:///memories?compress=zstd'")
    return StoreUrl(scheme, Path(path[1:]), compress)


def check_scheme(scheme: str) -> None:
    """Raises ConfigurationError unless stores open at URLs of ``scheme``."""
    if scheme not in (*_SCHEMES, *_ALIASES):
        known = ", ".join(_SCHEMES)
        raise ConfigurationError(f"Unknown store scheme {scheme!r}; known: {known}{did_you_mean(scheme, _SCHEMES)}")


def url_of(scheme: str, path: Path) -> str:
    """The URL that `parse_url` reads as the file or folder ``path``."""
    # Escapes no more than it must: file names need not be valid text, which quote() and unquote() take for granted.
    return f"{scheme}:///{str(path).replace('%', '%25').replace('?', '%3F')}"


def _quoted(url: object) -> str:
    return repr(shown_url(url)) if isinstance(url, str) else type(url).__name__


def shown_url(url: str) -> str:
    """``url`` without its password and its parameters, which may hold one."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    place, _, parameters = rest.partition("?")
    place = _PASSWORD.sub(r"\1=***", place) if scheme.partition("+")[0] not in _OF_FILES else place
    owner, at, host = place.rpartition("@")
    is_path = scheme.partition("+")[0] == "sqlite" and place.startswith("/")
    if is_path or not (at and owner.strip("/")) or not (separator or ":" in owner):
        is_torn = scheme.startswith(("postgres", "redis", "mongodb")) and not at and "@" in parameters
        return f"{scheme}{separator}{'***' if is_torn else place}"
    return f"{scheme}{separator}{owner.partition(':')[0]}:***@{host}"
