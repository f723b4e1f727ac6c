"""Tokens (JWT) of an identity provider, checked with the issuer's keys, which are fetched without blocking."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx
import jwt

from inference_core.errors import ConfigurationError, InvalidId
from inference_core.memory.namespaces import encode_label
from inference_core.server.identity.auth import Permission, Principal
from inference_core.server.problems import Refusal

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
        permissions = frozenset(one for one in Permission if one.value in ours) if ours else _USUAL
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
