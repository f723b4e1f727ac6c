"""Browser sessions: a cookie holds the key that somebody signed in with, encrypted by the server."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from secrets import token_bytes, token_urlsafe
from typing import Final

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import cookie_parser
from starlette.types import Scope

from inference_core.server.identity.auth import Buckets

PREFIX: Final = "/ui"
"""The cookie counts below this path alone, so that no page can use it to call the API."""
COOKIE: Final = "inference-core"
LASTS_S: Final = 12 * 3600
_MOST: Final = 3_900
"""Every browser keeps cookies of up to this many bytes."""
_FAILURES: Final = 10


class Sessions:
    """Begins and checks sessions. Servers with the same ``secret`` accept each other's.

    A session ends after `LASTS_S`, or with its key, which each request checks anew. Without a secret, sessions are
    valid for this object alone, as links always are. ``failures`` bounds the wrong keys that one address may try in a
    minute.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.failures = Buckets(_FAILURES / 60, _FAILURES)
        self._links: dict[str, str] = {}
        self._secret = hmac.digest(secret or token_bytes(32), b"sessions", "sha256")
        self._seal = Fernet(urlsafe_b64encode(self._secret))

    def begin(self, key: str) -> str | None:
        """The value of the cookie for a new session with ``key``; None if the key is too long for a cookie."""
        cookie = self._seal.encrypt(key.encode()).decode()
        return cookie if len(cookie) <= _MOST else None

    def link(self, key: str) -> str:
        """A token that begins one session with ``key``."""
        token = token_urlsafe(32)
        self._links[token] = key
        return token

    def follow(self, token: str) -> str | None:
        """The key of the link with ``token``, which is then used up; None if it was followed before or is unknown."""
        return self._links.pop(token, None)

    def key(self, scope: Scope) -> str | None:
        """The key in a request's session cookie; None without a cookie that is valid."""
        try:
            return self._seal.decrypt(cookie_of(scope), ttl=LASTS_S).decode()
        except (InvalidToken, ValueError):  # the latter for what is not ASCII
            return None

    def form_token(self, scope: Scope, who: str) -> str:
        """The CSRF token for ``who`` in this session, which pages of other sites cannot know."""
        return hmac.new(self._secret, f"{cookie_of(scope)}\0{who}".encode(errors="replace"), "sha256").hexdigest()


def cookie_name(scope: Scope) -> str:
    """The name of the cookie. It has the server's port, as browsers send a host's cookies to all its ports."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdigit() else COOKIE


def cookie_of(scope: Scope) -> str:
    """The value of a request's session cookie, unchecked; "" without one."""
    # SimpleCookie would stop at the first cookie that breaks the rules: other programs of this host set such ones.
    sent = (value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
    return cookie_parser("; ".join(sent)).get(cookie_name(scope), "")


def path_of(scope: Scope) -> str:
    """The path of a request without the prefix that the application is served under, as the router reads it."""
    path, prefix = scope["path"], scope.get("root_path", "")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def is_page(path: str) -> bool:
    """Whether ``path`` is the inspector's."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")
