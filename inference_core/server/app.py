"""`create_app`: the service as an ASGI application, and uvicorn around it for those whom the settings let in."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from secrets import token_urlsafe
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inference_core import __version__
from inference_core.effects import run
from inference_core.errors import ConfigurationError, InferenceCoreError
from inference_core.lifecycle.ledger import ledger_of
from inference_core.memory.namespaces import encode_label
from inference_core.server import problems
from inference_core.server.api.airi import AIRI_ROUTES, add_airi
from inference_core.server.api.jobs import Jobs
from inference_core.server.api.routes import BATCH_PATH, MANY_PATH, ROUTES, Route, needed
from inference_core.server.identity.auth import (
    PREFIX,
    ApiKeys,
    Authenticate,
    FixedKey,
    Permission,
    Principal,
    Sessions,
    TokenCheck,
    list_keys,
)
from inference_core.server.identity.gate import ACT_AS, LOOPBACK, PUBLIC, Access, Gate
from inference_core.server.inspector.forms import SCREENS
from inference_core.server.telemetry import add_telemetry
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import MemorySettings, ServerSettings

# FastAPI's own telemetry would record the texts of errors and the queries of URLs; see telemetry.py.
_OWN_TELEMETRY: Final[Any] = dict.fromkeys(("auto_configure", "tracing", "metrics", "logs"), False)


def create_app(
    service: AgentMemoryStoreService,
    access: Access,
    routes: list[Route] | None = None,
    *,
    ledger: Path | None = None,
) -> FastAPI:
    """The ASGI application that serves ``service`` to those whom ``access`` lets in.

    ``ledger`` is the file that erasures are recorded in; without one, erasures are refused. The application does not
    close the service's store. Raises ConfigurationError if a route does not say who may use it.
    """
    jobs = Jobs(service, ledger)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as beside:
            for runs in app.state.beside:
                await beside.enter_async_context(runs())
            looking = asyncio.create_task(jobs.take_up())
            yield
            looking.cancel()
            await jobs.close()

    app = FastAPI(
        title="inference_core",
        summary="Long-term memory for agents.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_OWN_TELEMETRY,
        lifespan=lifespan,
        routes=[*(ROUTES if routes is None else routes), *SCREENS],
    )
    app.state.service, app.state.jobs, app.state.access = service, jobs, access
    app.state.beside = list[Callable[[], AbstractAsyncContextManager[None]]]()  # what runs while the app does
    check_routes(app)
    app.add_exception_handler(InferenceCoreError, problems.on_error)
    app.add_exception_handler(problems.Refusal, problems.on_refused)
    app.add_exception_handler(RequestValidationError, problems.on_invalid)
    app.add_exception_handler(HTTPException, problems.on_http)
    app.add_middleware(Gate, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "If-Match", "If-None-Match", "Idempotency-Key", ACT_AS],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            parts = schema["components"]
            found = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            parts["schemas"] |= {**found.pop("$defs"), "Problem": found}
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "ic_<id>_<secret>"}}
        return app.openapi_schema or {}

    app.openapi = openapi
    return app


def check_routes(app: FastAPI) -> None:
    """Raises ConfigurationError if a route does not say who may use it, or is public without being listed as such."""
    for one in app.routes:
        path = getattr(one, "path", "?")
        if path not in PUBLIC and needed(one) is None:
            raise ConfigurationError(f"The route {path} does not say which permission it needs; it is not served")


SHUTDOWN_S: Final = 8
"""Requests in progress get this long to end; with the store's last writes, the process ends within ten seconds."""
_LOOPBACK: Final = "127.0.0.1"
_KEEP_ALIVE_S: Final = 15
HEADER_S: Final = 10.0
"""The header of a request has to arrive within this time; uvicorn would wait for it as long as the client likes."""
_MOST_CONNECTIONS: Final = 1_000
_KEYS_MADE_BY: Final = "inference-core keys create --user ID"


def access_for(service: AgentMemoryStoreService, settings: ServerSettings) -> Access:
    """Whom a server with these ``settings`` lets in.

    On a loopback address without a ``root_path``, ``settings.user`` needs no key, unless one is set. Raises
    ConfigurationError if the settings are incomplete or nobody could come in, InvalidId, StoreError.
    """
    is_local = is_loopback(settings.host)
    checks: list[Authenticate] = [ApiKeys(service.scope.engine, service.scope.clock, service.timeout)]
    anonymous = None
    if settings.key and settings.user is None:
        raise ConfigurationError("AGENT_SERVER_KEY belongs to a user; set AGENT_SERVER_USER too")
    if settings.user is not None:
        encode_label(settings.user)
        if settings.key:
            own = Principal(settings.user, frozenset({Permission.READ, Permission.WRITE}), "fixed")
            checks.append(FixedKey(settings.key.get_secret_value(), own))
        elif is_local and not settings.root_path:  # else everybody who reaches the proxy would be this user
            anonymous = Principal(settings.user, frozenset({Permission.READ, Permission.WRITE}), "local")
    if settings.issuer is not None:
        if settings.audience is None:
            raise ConfigurationError("Set AGENT_SERVER_AUDIENCE to the audience of the issuer's tokens for this server")
        checks.append(
            TokenCheck(settings.issuer, settings.audience, subject=settings.subject, jwks_url=settings.jwks_url)
        )
    if len(checks) == 1 and anonymous is None and not run(list_keys(service.scope.engine), service.timeout):
        how = (
            ""
            if not is_local or settings.user
            else ", or serve only one user of this machine: inference-core serve --user ID"
        )
        raise ConfigurationError(
            f"There is no key, so nobody could use http://{settings.host}:{settings.port}. "
            f"Make one: {_KEYS_MADE_BY}{how}"
        )
    hosts = {host.strip("[]").lower() for host in settings.hosts}
    return Access(
        checks=checks,
        anonymous=anonymous,
        hosts={*hosts, *LOOPBACK} if is_local else {*hosts, settings.host.lower()} if hosts else None,
        origins=settings.origins,
        has_issuer=settings.issuer is not None,
        rate=settings.rate,
        burst=settings.burst,
        max_bodies=dict.fromkeys((BATCH_PATH, MANY_PATH), 8 * 1024 * 1024),
        sessions=Sessions(run(service.scope.engine.content_key(), service.timeout)),
    )


def serve(service: AgentMemoryStoreService, settings: ServerSettings, memory: MemorySettings) -> None:
    """Serves requests until SIGTERM or Ctrl-C; those in progress then get `SHUTDOWN_S` seconds to end.

    Raises what `access_for` raises.
    """
    app, ends = assembled(service, access_for(service, settings), settings, memory)
    try:
        _answer(app, memory, settings.host, settings.port, root_path=settings.root_path)
    finally:
        ends()


def assembled(
    service: AgentMemoryStoreService, access: Access, settings: ServerSettings, memory: MemorySettings
) -> tuple[FastAPI, Callable[[], None]]:
    """The application with all that ``settings`` ask for, and a function that ends the counting of its metrics.

    Raises ConfigurationError if a route does not say who may use it.
    """
    routes = [*ROUTES, *(AIRI_ROUTES if settings.airi else ())]
    app = create_app(service, access, routes, ledger=settings.ledger or ledger_of(memory.store_url))
    if settings.airi:
        add_airi(app, service, memory)
    ends = add_telemetry(app, service)
    if find_spec("mcp"):
        from inference_core.server.mcp import add_mcp  # noqa: PLC0415 - of another extra

        add_mcp(app, service, issuer=settings.issuer)
    check_routes(app)
    return app, ends


def inspect(
    service: AgentMemoryStoreService, memory: MemorySettings, user: str | None, port: int, tell: Callable[[str], None]
) -> None:
    """Serves the inspector on the loopback address until Ctrl-C, to whoever follows a link that works once.

    ``tell`` is called with that link. The first screen is that of ``user``, or with None the list of all users.
    ``port`` 0 takes any free port. Raises InvalidId, and OSError if the port is taken.
    """
    if user is not None:
        encode_label(user)
    key = token_urlsafe(32)
    access = Access(checks=[FixedKey(key, Principal(user, frozenset(Permission), "inspect"))], rate=1_000, burst=1_000)
    app = create_app(service, access, [], ledger=ledger_of(memory.store_url))
    with socket.create_server((_LOOPBACK, port)) as listener:  # taken before anybody follows the link
        address = f"http://{_LOOPBACK}:{listener.getsockname()[1]}{PREFIX}"
        tell(f"{address}/login?once={access.sessions.link(key)}")
        _answer(app, memory, _LOOPBACK, port, listener)


def _answer(
    app: FastAPI, memory: MemorySettings, host: str, port: int, *listeners: socket.socket, root_path: str = ""
) -> None:
    config = uvicorn.Config(
        app,
        log_config=None if memory.log_format == "json" else LOGGING_CONFIG,
        host=host,
        port=port,
        root_path=root_path,
        access_log=False,  # URLs may hold what somebody searched for
        server_header=False,
        http=_Connection,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        limit_concurrency=_MOST_CONNECTIONS,
        ws="none",
    )
    # uvicorn raises the signal again once it has ended: unwind then, so that the store is closed, and exit with 0.
    signal.signal(signal.SIGTERM, _end)
    gc.freeze()  # else full collections would walk every imported object, and hold up requests
    _Server(config, app.state.jobs).run(list(listeners) or None)


class _Connection(HttpToolsProtocol):
    """Closes itself if a request's header does not arrive within `HEADER_S`: silent clients must not keep others out.

    ``_closing`` is the running timer.
    """

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Starts the timer for the first request."""
        super().connection_made(transport)
        self._closing = self.loop.call_later(HEADER_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Starts the timer for a further request, as its first bytes stop uvicorn's own timer for idle connections."""
        if self._closing is None and self.cycle.response_complete:
            self._closing = self.loop.call_later(HEADER_S, self.transport.close)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Stops the timer and answers."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class _Server(uvicorn.Server):
    """Stops jobs and event streams before it shuts down, as uvicorn waits for open streams."""

    def __init__(self, config: uvicorn.Config, jobs: Jobs) -> None:
        super().__init__(config)
        self._jobs = jobs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles the signals SIGINT and SIGTERM."""
        self._jobs.stop()
        super().handle_exit(sig, frame)


def _end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
