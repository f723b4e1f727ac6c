"""Sessions of people with a browser: a cookie holds the key that they signed in with, sealed by the server."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from http.cookies import CookieError, SimpleCookie
from secrets import token_bytes, token_urlsafe
from typing import Final

from cryptography.fernet import Fernet, InvalidToken
from starlette.types import Scope

from inference_core.server.identity.auth import Buckets

PREFIX: Final = "/ui"
"""Paths below which the cookie counts; it opens nothing else, so no page can be made to call the API by it."""
COOKIE: Final = "inference-core"
LASTS_S: Final = 12 * 3600
_MOST: Final = 3_900
"""Bytes of a cookie that every browser keeps."""
_FAILURES: Final = 10


class Sessions:
    """Servers with the same ``secret`` know each other's sessions, so any of them can answer any request.

    A session ends after `LASTS_S`, or with its key, which each request checks anew. Without a secret, and for links,
    it is this object's alone. ``failures`` bounds the wrong keys that one address may try in a minute.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.failures = Buckets(_FAILURES / 60, _FAILURES)
        self._links: dict[str, str] = {}
        self._secret = hmac.digest(secret or token_bytes(32), b"sessions", "sha256")
        self._seal = Fernet(urlsafe_b64encode(self._secret))

    def begin(self, key: str) -> str | None:
        """What the cookie of a new session with ``key`` says; None if the key is too long for a cookie."""
        cookie = self._seal.encrypt(key.encode()).decode()
        return cookie if len(cookie) <= _MOST else None

    def link(self, key: str) -> str:
        """A token that begins one session with ``key``."""
        token = token_urlsafe(32)
        self._links[token] = key
        return token

    def follow(self, token: str) -> str | None:
        """The key of a link that nobody has followed yet."""
        return self._links.pop(token, None)

    def key(self, scope: Scope) -> str | None:
        """The key of the session that a request's cookie holds."""
        try:
            return self._seal.decrypt(cookie_of(scope), ttl=LASTS_S).decode()
        except (InvalidToken, ValueError):  # the latter for what is not ASCII
            return None

    def form_token(self, scope: Scope, who: str) -> str:
        """What a form of this session has to bring along; pages of other sites cannot know it."""
        return hmac.new(self._secret, f"{cookie_of(scope)}\0{who}".encode(errors="replace"), "sha256").hexdigest()


def cookie_name(scope: Scope) -> str:
    """The name of the cookie: with the port, as browsers give a host's cookies to all its ports."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdigit() else COOKIE


def cookie_of(scope: Scope) -> str:
    """The session that a request names; "" without one."""
    jar, own = SimpleCookie(), cookie_name(scope)
    for name, value in scope["headers"]:
        if name == b"cookie":
            try:
                jar.load(value.decode("latin-1"))
            except CookieError:
                continue
    return jar[own].value if own in jar else ""


def path_of(scope: Scope) -> str:
    """The path of a request below the prefix under which the application is served, as the router reads it."""
    path, prefix = scope["path"], scope.get("root_path", "")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def is_page(path: str) -> bool:
    """Whether ``path`` is the inspector's."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")
