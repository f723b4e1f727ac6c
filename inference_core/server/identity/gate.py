"""Gate: the middleware that every request passes before it reaches a route.

It refuses unknown hosts, pages of other sites, senders without a valid key, floods, and too large or slow bodies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil
from traceback import extract_tb
from typing import Final
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_core.errors import IdentityError, InferenceCoreError, InvalidId, without_quotes
from inference_core.memory.namespaces import encode_label
from inference_core.server.identity.auth import (
    PREFIX,
    Authenticate,
    Buckets,
    Permission,
    Principal,
    Sessions,
    is_page,
    path_of,
)
from inference_core.server.problems import Refusal, answer, name_of, problem_of, status_of

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
MCP_PATH: Final = "/mcp"
MCP_METADATA: Final = f"/.well-known/oauth-protected-resource{MCP_PATH}"
_PAGES: Final = frozenset({f"{PREFIX}/login", f"{PREFIX}/static/{{name}}"})
PUBLIC: Final = {"/", "/healthz", "/readyz", "/version", "/openapi.json", "/api/health", MCP_METADATA} | _PAGES
"""Routes that need no key, as they tell nothing about any user."""
METRICS_PATH: Final = "/metrics"
"""Prometheus on this machine needs no key for it; from elsewhere, it needs one with the permission admin."""
ACT_AS: Final = "act-as-user"
BODY_S: Final = 30.0
_ALWAYS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_OF_PROXIES: Final = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whom a server lets in.

    ``is_platform``: only users whom the surrounding application has authenticated; for routes in LangGraph Server.
    ``checks`` are asked in turn about a bearer token. ``anonymous`` is the principal of requests from this machine
    without a token; None: such requests are refused. ``has_issuer``: the answer to an MCP client without a token says
    where to read who issues tokens.

    ``hosts`` are the names that the server answers to (None: any), ``origins`` the other sites whose pages may send
    requests, such as ``https://app.example.com``. ``rate`` (per second) and ``burst`` (at once) bound the requests for
    one user with one key, ``failures`` the wrong keys from one address per minute. ``max_body`` is the largest body, in
    bytes; ``max_bodies`` are other limits by path.
    """

    checks: Sequence[Authenticate] = ()
    anonymous: Principal | None = None
    is_platform: bool = False
    hosts: Collection[str] | None = LOOPBACK
    origins: Collection[str] = ()
    has_issuer: bool = False
    rate: float = 50.0
    burst: int = 100
    failures: int = 10
    max_body: int = 1024 * 1024
    max_bodies: dict[str, int] = field(default_factory=dict[str, int])
    sessions: Sessions = field(default_factory=Sessions)

    async def principal_of(self, token: str) -> Principal | None:
        """Whom a bearer token belongs to; None if it is not valid. Raises StoreUnavailable, Refusal."""
        for check in self.checks:
            if principal := await check(token):
                return principal
        return None


class Gate:
    """ASGI middleware; puts the `Principal` and the user into the request's state."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._requests = Buckets(access.rate, access.burst)
        self._failures = Buckets(access.failures / 60, access.failures)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        has_begun = False

        async def send_safely(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            receive = await self._admitted(scope, receive)
            await self._app(scope, receive, send_safely)
        except Refusal as error:
            await error.response(scope)(scope, receive, send_safely)
        except InferenceCoreError as error:  # of the check of a key; routes have handlers of their own
            _LOG.warning("The key of a request was not checked: %s", without_quotes(error))
            told = problem_of(status_of(type(error)), name_of(type(error)))
            await answer(scope, told)(scope, receive, send_safely)
        except Exception as error:  # noqa: BLE001 - the last resort: its text may quote memories, and is not told
            place = extract_tb(error.__traceback__)[-1]
            route = getattr(scope.get("route"), "path", "?")  # the pattern of the path, not what was filled in
            _LOG.error("%s %s failed at %s:%s: %s", scope["method"], route, place.filename, place.lineno,
                       without_quotes(error))  # fmt: skip
            if not has_begun:
                await answer(scope, problem_of(500, "internal-error"))(scope, receive, send_safely)

    async def _admitted(self, scope: Scope, receive: Receive) -> Receive:
        """Puts the sender and the user into the request's state; returns the function from which the app gets the body.

        Raises Refusal, StoreUnavailable.
        """
        headers = Headers(scope=scope)
        self._check_host(headers)
        path = path_of(scope)
        if path not in PUBLIC and not path.startswith(f"{PREFIX}/static/"):
            principal = await self._principal(scope, headers)
            user = _user(principal, headers.get(ACT_AS))
            is_mcp = path == MCP_PATH  # counted apart: an agent's flood must not block its user's application
            if waits := self._requests.take((principal.key_id, user, is_mcp)):
                raise Refusal(429, "too-many-requests", headers={"Retry-After": str(ceil(waits))})
            scope.setdefault("state", {}).update(principal=principal, user=user)
        return await self._body(scope, headers, receive)

    def _check_host(self, headers: Headers) -> None:
        name, hosts = _name_in(headers), self._access.hosts
        if not name or (hosts is not None and name not in hosts):
            raise Refusal(421, "wrong-host", "Set AGENT_SERVER_HOSTS to the names under which this server is reached")
        origin = headers.get("origin")
        # Another site's page, or one whose host name was rebound to this address, must not reach us by the browser.
        if origin is not None and origin not in self._access.origins and not is_own(origin, headers):
            raise Refusal(403, "wrong-origin", "Set AGENT_SERVER_ORIGINS to the sites whose pages may use this server")

    async def _principal(self, scope: Scope, headers: Headers) -> Principal:
        if self._access.is_platform:
            return _of_platform(scope)
        given, path = headers.get("authorization"), path_of(scope)
        is_inspector = is_page(path)
        if given is None and path == METRICS_PATH and _is_near(scope, headers):
            return Principal(None, frozenset({Permission.ADMIN}), "loopback")
        key = self._access.sessions.key(scope) if given is None and is_inspector else None
        if key is not None and (principal := await self._access.principal_of(key)):
            return principal
        if given is None and self._access.anonymous and _is_near(scope, headers):
            return self._access.anonymous
        if given is None and is_inspector and not path.endswith(".json"):
            raise Refusal(303, "sign-in", headers={"Location": f"{scope.get('root_path', '')}{PREFIX}/login"})
        if (token := bearer_in(headers)) is not None:
            if principal := await self._access.principal_of(token):
                return principal
            address = (scope.get("client") or ("",))[0]
            if waits := self._failures.take(address):
                raise Refusal(429, "too-many-failures", headers={"Retry-After": str(ceil(waits))})
        challenge = "Bearer"
        if self._access.has_issuer and path == MCP_PATH:
            place = f"{scope['scheme']}://{headers['host']}{scope.get('root_path', '')}{MCP_METADATA}"
            challenge = f'Bearer resource_metadata="{place}"'
        raise Refusal(
            401,
            "unauthenticated",
            "Send the header Authorization: Bearer KEY; inference-core keys create makes a key",
            {"WWW-Authenticate": challenge},
        )

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """Reads the body; returns a function that gives it to the app.

        Raises Refusal if the body is too large, or takes longer than `BODY_S` seconds.
        """
        limit = self._access.max_bodies.get(path_of(scope), self._access.max_body)
        told = headers.get("content-length", "0")
        too_large = Refusal(413, "body-too-large", f"The limit is {limit} bytes")
        if not told.isascii() or not told.isdigit() or int(told) > limit:
            raise too_large
        parts, size, more = list[bytes](), 0, True
        try:
            async with asyncio.timeout(BODY_S):
                while more:
                    message = await receive()
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                    if size > limit:
                        raise too_large
        except TimeoutError as error:
            raise Refusal(408, "body-too-slow", headers={"Connection": "close"}) from error
        body, waiting = b"".join(parts), True

        async def replay() -> Message:
            nonlocal waiting
            if waiting:
                waiting = False
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        return replay


def bearer_in(headers: Headers) -> str | None:
    """The bearer token or key in the header Authorization; None without one."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def is_own(origin: str, headers: Headers) -> bool:
    """Whether a request's ``origin``, from its header Origin, is of the host that the request is for."""
    return origin.partition("://")[2] == headers.get("host")


def _name_in(headers: Headers) -> str:
    """The name in the header Host, without the port; "" if that is malformed."""
    host = headers.get("host", "")
    try:
        return urlsplit(f"//{host}").hostname or "" if host.isascii() and not set(host) & set("/\\@?# ") else ""
    except ValueError:  # brackets around what is no IPv6 address
        return ""


def _is_near(scope: Scope, headers: Headers) -> bool:
    """Whether a request comes from this machine and has no header of a proxy; not every proxy adds one."""
    address = (scope.get("client") or ("",))[0]
    is_direct = _name_in(headers) in LOOPBACK and not any(name in headers for name in _OF_PROXIES)
    return address in LOOPBACK and is_direct


def _of_platform(scope: Scope) -> Principal:
    """The user whom the platform has authenticated. Raises Refusal if there is none; it names the setting needed."""
    user = scope.get("user")
    identity = getattr(user, "identity", None) if getattr(user, "is_authenticated", False) else None
    if not isinstance(identity, str) or not identity:
        raise Refusal(401, "unauthenticated", 'Set "enable_custom_route_auth": true beside "app" in langgraph.json')
    return Principal(identity, frozenset({Permission.READ, Permission.WRITE}), "platform")


def _user(principal: Principal, named: str | None) -> str | None:
    """The user whom a request is about: ``named``, from the header Act-As-User, or else the principal's own.

    Raises Refusal if ``named`` is not a user id, or a user whom the principal may not act for.
    """
    if named is None:
        return principal.subject
    try:
        user = unquote(named, errors="strict")
        encode_label(user)
    except (ValueError, InvalidId) as error:
        raise Refusal(422, "invalid-id", "Act-As-User must be the id of a user, in percent-encoding") from error
    if user != principal.subject and Permission.ACT_AS not in principal.permissions:
        raise Refusal(403, name_of(IdentityError), "This key may not act for other users; it lacks act-as")
    return user
