"""Who sends a request, and what they may do: principals, API keys in the memories' own database, and limits.

A key is ``ic_<id>_<secret>``. The secret has 256 random bits, so a fast keyed hash of it is all that is stored. A token
(JWT) of an identity provider is checked with the issuer's keys, which are fetched without blocking. In a browser, a
cookie holds the key that somebody signed in with, encrypted by the server.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from secrets import token_bytes, token_hex, token_urlsafe
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx
import jwt
from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import cookie_parser
from starlette.types import Scope

from inference_core.clock import Clock
from inference_core.effects import arun
from inference_core.errors import ConfigurationError, InvalidId, InvalidInput
from inference_core.memory.audit import Actor
from inference_core.memory.namespaces import Namespace, encode_label
from inference_core.memory.text import encode_json, moment_field, text_field, texts_field
from inference_core.server.problems import Refusal
from inference_core.stores.backend import Put, Remove, Row
from inference_core.stores.engine import StoreEngine

KEYS: Final[Namespace] = ("#keys",)
"""Where keys are kept. No user id encodes to its first label, so no user's purge removes them."""
CACHED_S: Final = 0.5
"""A revoked key is refused after this time at the latest, by every server on the database."""
LISTED_S: Final = 2.0
"""During a flood of made-up keys, a new key is accepted after this time at the latest."""
_LOOK_UPS_S: Final = 1.0
_LOOK_UPS: Final = 50
"""This many unknown ids are looked up at once, and `_LOOK_UPS_S` a second; beyond, all ids are listed instead."""
_MAX_CACHED: Final = 10_000
_KEY: Final = re.compile(r"ic_([0-9a-f]{8})_([A-Za-z0-9_-]{43})\Z")
_MAX_DAYS: Final = 36_500.0


class Permission(str, Enum):
    """What a key may do."""

    READ = "read"
    WRITE = "write"
    REVIEW = "review"
    ACT_AS = "act-as"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request. ``subject`` is the user that they are; None: each request names one, by Act-As-User."""

    subject: str | None
    permissions: frozenset[Permission]
    key_id: str

    @property
    def actor(self) -> Actor:
        """Whom the audit trail names."""
        return Actor(id=f"key {self.key_id}")


Authenticate = Callable[[str], Awaitable[Principal | None]]
"""Whom a bearer token belongs to; None if it is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key without its secret. ``user`` None: it acts only for users that its requests name."""

    id: str
    user: str | None
    permissions: tuple[Permission, ...]
    created_at: datetime
    expires_at: datetime | None
    digest: str

    @classmethod
    def of(cls, row: Row) -> ApiKey:
        """The key in ``row``."""
        return cls(
            id=row.key,
            user=text_field(row.value, "user"),
            permissions=tuple(
                permission for permission in Permission if permission.value in texts_field(row.value, "permissions")
            ),
            created_at=row.created_at,
            expires_at=moment_field(row.value, "expires_at"),
            digest=text_field(row.value, "digest") or "",
        )

    def to_json(self) -> dict[str, Any]:
        """The key for people and programs, without the hash of its secret."""
        return {
            "id": self.id,
            "user": self.user,
            "permissions": [permission.value for permission in self.permissions],
            "created_at": self.created_at.isoformat(),
            "expires_at": self.expires_at and self.expires_at.isoformat(),
        }


async def create_key(
    engine: StoreEngine,
    clock: Clock,
    *,
    user: str | None,
    permissions: Collection[Permission],
    days: float | None = None,
) -> tuple[ApiKey, str]:
    """Stores a new key; returns it and its text, which nobody can read again. Raises InvalidInput, StoreUnavailable."""
    if user is not None:
        encode_label(user)
    elif Permission.ACT_AS not in permissions:
        raise InvalidInput("A key belongs to a user, or may act for users that its requests name: give one of them")
    if not permissions:
        raise InvalidInput(f"A key needs permissions: {', '.join(permission.value for permission in Permission)}")
    if days is not None and not 0 < days <= _MAX_DAYS:
        raise InvalidInput(f"days must be more than 0 and at most {_MAX_DAYS:g}, not {days}")
    now, key_id, secret = clock.now(), token_hex(4), token_urlsafe(32)
    pepper = await engine.content_key()
    made = ApiKey(
        id=key_id,
        user=user,
        permissions=tuple(permission for permission in Permission if permission in permissions),
        created_at=now,
        expires_at=None if days is None else now + timedelta(days=days),
        digest=_digest(pepper, secret),
    )
    value = encode_json(made.to_json() | {"digest": made.digest}, what="key")
    put = Put(namespace=KEYS, key=key_id, value=value, created_at=now, updated_at=now, expected=0)
    await engine.write([put], is_clean=True)
    return made, f"ic_{key_id}_{secret}"


async def list_keys(engine: StoreEngine) -> list[ApiKey]:
    """All keys, the newest first. Raises StoreUnavailable."""
    return [ApiKey.of(row) for row in await engine.scan([KEYS])]


async def revoke_key(engine: StoreEngine, key_id: str) -> bool:
    """Deletes a key; False if there is none. Raises StoreUnavailable."""
    (row,) = await engine.get([(KEYS, key_id)])
    if row:
        await engine.write([Remove(namespace=KEYS, key=key_id)])
    return row is not None


class ApiKeys:
    """Checks API keys. A key that was found is read again after `CACHED_S` seconds.

    In a flood of made-up keys, from one address or many, not each costs a read, and no valid key is refused: a limit
    for each address alone would shut out those who share it.
    """

    def __init__(self, engine: StoreEngine, clock: Clock, timeout: float | None) -> None:
        self._engine, self._clock, self._timeout = engine, clock, timeout
        self._known: dict[str, tuple[float, ApiKey]] = {}
        self._look_ups = Buckets(_LOOK_UPS_S, _LOOK_UPS)
        self._listed: frozenset[str] = frozenset()
        self._listed_until = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self, token: str) -> Principal | None:
        """Whom the key ``token`` belongs to; None if it is unknown, revoked or expired. Raises StoreUnavailable."""
        parts = _KEY.match(token)
        if parts is None:
            return None
        key_id, secret = parts.groups()
        until, key = self._known.get(key_id, (0.0, None))
        if until <= time.monotonic():
            row = await self._row(key_id)
            key = row and ApiKey.of(row)
            self._known.pop(key_id, None)
            if key:
                if len(self._known) >= _MAX_CACHED:
                    self._known.clear()
                self._known[key_id] = time.monotonic() + CACHED_S, key
        pepper = await arun(self._engine.content_key(), self._timeout)
        # An unknown id is compared too, so that it takes as long as a wrong secret.
        is_right = hmac.compare_digest(_digest(pepper, secret), key.digest if key else "0" * 64)
        if key is None or not is_right or (key.expires_at and key.expires_at <= self._clock.now()):
            return None
        return Principal(key.user, frozenset(key.permissions), key.id)

    async def _row(self, key_id: str) -> Row | None:
        if self._look_ups.waits(None) and key_id not in await self._ids():
            return None
        (row,) = await arun(self._engine.get([(KEYS, key_id)]), self._timeout)
        if row is None:
            self._look_ups.take(None)
        return row

    async def _ids(self) -> frozenset[str]:
        """The ids of all keys, at most `LISTED_S` seconds old."""
        async with self._lock:  # requests that come meanwhile wait for this list, and do not scan again
            if self._listed_until <= time.monotonic():
                rows = await arun(self._engine.scan([KEYS]), self._timeout)
                self._listed = frozenset(row.key for row in rows)
                self._listed_until = time.monotonic() + LISTED_S
        return self._listed


class FixedKey:
    """Checks one key that the server was given, and that belongs to ``principal``."""

    def __init__(self, secret: str, principal: Principal) -> None:
        self._secret = secret.encode()
        self._principal = principal

    async def __call__(self, token: str) -> Principal | None:
        """The principal, if ``token`` is the key, else None."""
        return self._principal if hmac.compare_digest(token.encode(errors="replace"), self._secret) else None


class Buckets:
    """A token bucket for each name: ``rate`` tokens a second, ``burst`` at once.

    Holds at most `_MAX_CACHED` names, and drops the least recently used first.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._filled: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def take(self, name: object) -> float:
        """Takes one token and returns 0, or takes none and returns the seconds until there is one."""
        waits, tokens, now = self._state(name)
        self._filled.pop(name, None)
        self._filled[name] = (tokens if waits else tokens - 1), now
        if len(self._filled) > _MAX_CACHED:
            self._filled.popitem(last=False)
        return waits

    def waits(self, name: object) -> float:
        """What `take` would return; takes nothing."""
        return self._state(name)[0]

    def _state(self, name: object) -> tuple[float, float, float]:
        now = time.monotonic()
        tokens, then = self._filled.get(name, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - then) * self._rate)
        return (0.0 if tokens >= 1 else (1 - tokens) / self._rate), tokens, now


def _digest(pepper: bytes, secret: str) -> str:
    return hmac.new(pepper, b"api-key\0" + secret.encode(), "sha256").hexdigest()


ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
"""All that are accepted, whatever a token's header names: none with shared secrets, and never ``none``."""
SCOPE_PREFIX: Final = "memory:"
FRESH_S: Final = 300.0
RETRY_S: Final = 30.0
"""A token with an unknown key id has the issuer's keys fetched again, at most once in this time."""
_TIMEOUT_S: Final = 5.0
_LEEWAY_S: Final = 30
_MAX_BYTES: Final = 1024 * 1024
_USUAL: Final = frozenset({Permission.READ, Permission.WRITE})


class TokenCheck:
    """Checks tokens of ``issuer`` for ``audience``; the claim ``subject`` names the user.

    Scopes such as ``memory:read`` say what a token may do; one without any may read and write. ``jwks_url`` is where
    the issuer's keys are, by default as its OpenID configuration says. Raises ConfigurationError for an address without
    https, other than one on this machine.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        subject: str = "sub",
        jwks_url: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        for url in filter(None, (issuer, jwks_url)):
            parts = urlsplit(url)
            if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1"):
                raise ConfigurationError(f"Keys are fetched over https only, not from {url}")
        self._issuer, self._audience, self._subject = issuer, audience, subject
        self._jwks_url, self._transport = jwks_url, transport
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fresh_until = self._next_try = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self, token: str) -> Principal | None:
        """Whom ``token`` belongs to; None if it is not valid. Raises Refusal if the issuer's keys cannot be had."""
        try:
            name = jwt.get_unverified_header(token).get("kid")
            key = await self._key(name) if isinstance(name, str) else None
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._subject]},
            )
            user = claims[self._subject]
            encode_label(user)
        except (jwt.InvalidTokenError, InvalidId):
            return None
        given = claims.get("scope", claims.get("scp"))
        names: Any = given.split() if isinstance(given, str) else given or []
        if not isinstance(names, list):
            return None
        names = cast("list[object]", names)
        ours = {str(name).removeprefix(SCOPE_PREFIX) for name in names if str(name).startswith(SCOPE_PREFIX)}
        permissions = frozenset(permission for permission in Permission if permission.value in ours) if ours else _USUAL
        return Principal(user, permissions, "token")

    async def _key(self, name: str) -> jwt.PyJWK | None:
        now, is_known = time.monotonic(), name in self._keys
        may_fetch = now >= self._next_try and not (is_known and now < self._fresh_until)
        if may_fetch or (not is_known and self._lock.locked()):  # the keys that are being fetched may have it
            async with self._lock:
                if time.monotonic() >= self._next_try:  # else another request has fetched them meanwhile
                    self._next_try = time.monotonic() + RETRY_S
                    await self._fetch()
        if not self._keys:
            raise Refusal(503, "issuer-unavailable", headers={"Retry-After": str(round(RETRY_S))})
        return self._keys.get(name)

    async def _fetch(self) -> None:
        """Replaces the known keys by the issuer's current ones; if they cannot be fetched, nothing changes."""
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S, transport=self._transport) as client:
                url = self._jwks_url
                if url is None:
                    found = await _json(client, f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
                    url = str(found["jwks_uri"])
                listed = (await _json(client, url))["keys"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return
        keys: dict[str, jwt.PyJWK] = {}
        for one in listed:
            try:
                key = jwt.PyJWK(one)
            except (jwt.PyJWTError, AttributeError, TypeError):
                continue  # a kind of key that is not used here
            if key.algorithm_name in ALGORITHMS and key.key_id is not None and key.public_key_use in (None, "sig"):
                keys[key.key_id] = key
        self._keys, self._fresh_until = keys, time.monotonic() + FRESH_S


async def _json(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        body = b""
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MAX_BYTES:
                raise ValueError("too large")
    return json.loads(body)


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
