"""Runs the server: whom its settings let in, and uvicorn around the application."""

from __future__ import annotations

import signal
import sys
from ipaddress import ip_address
from types import FrameType
from typing import Final

import uvicorn

from inference_core.effects import run
from inference_core.errors import ConfigurationError
from inference_core.memory.namespaces import encode_label
from inference_core.server.airi import AIRI_ROUTES, add_airi
from inference_core.server.app import create_app
from inference_core.server.auth import Authenticate, FixedKey, KeyRing, Permission, Principal, list_keys
from inference_core.server.gate import LOOPBACK, Access
from inference_core.server.tokens import TokenCheck
from inference_core.server.user_routes import ALL_ROUTES, BATCH_PATH
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import MemorySettings, ServerSettings

SHUTDOWN_S: Final = 8
"""Requests that run have so long to end; with what the store writes then, the process ends within ten seconds."""
_KEEP_ALIVE_S: Final = 15
_MOST_CONNECTIONS: Final = 1_000
_KEYS_MADE_BY: Final = "inference-core keys create --user ID"


def access_for(service: AgentMemoryStoreService, settings: ServerSettings) -> Access:
    """Whom a server with these ``settings`` lets in.

    Raises ConfigurationError if nobody could come in, or everybody could who reaches its address.
    """
    is_local = is_loopback(settings.host)
    checks: list[Authenticate] = [KeyRing(service.scope.engine, service.scope.clock, service.timeout)]
    anonymous = None
    if settings.key and settings.user is None:
        raise ConfigurationError("AGENT_SERVER_KEY is a user's; set AGENT_SERVER_USER too")
    if settings.user is not None:
        encode_label(settings.user)
        if settings.key:
            checks.append(FixedKey(settings.key.get_secret_value(), settings.user))
        elif is_local:
            anonymous = Principal(settings.user, frozenset({Permission.READ, Permission.WRITE}), "local")
    if settings.issuer is not None:
        if settings.audience is None:
            raise ConfigurationError("Set AGENT_SERVER_AUDIENCE to whom the issuer's tokens for this server are")
        checks.append(
            TokenCheck(settings.issuer, settings.audience, subject=settings.subject, jwks_url=settings.jwks_url)
        )
    if len(checks) == 1 and anonymous is None and not run(list_keys(service.scope.engine), service.timeout):
        how = "" if not is_local else ", or serve one user of this machine alone: inference-core serve --user ID"
        raise ConfigurationError(
            f"There is no key, so {'nobody could use' if is_local else 'everybody who reaches it would need none on'} "
            f"http://{settings.host}:{settings.port}. Make one: {_KEYS_MADE_BY}{how}"
        )
    hosts = {one.strip("[]").lower() for one in settings.hosts}
    return Access(
        checks=checks,
        anonymous=anonymous,
        hosts={*hosts, *LOOPBACK} if is_local else {*hosts, settings.host.lower()} if hosts else None,
        origins=settings.origins,
        rate=settings.rate,
        burst=settings.burst,
        max_bodies={BATCH_PATH: 8 * 1024 * 1024},
    )


def serve(service: AgentMemoryStoreService, settings: ServerSettings, memory: MemorySettings) -> None:
    """Answers requests until SIGTERM or Ctrl-C, and then those that are running. Raises what `access_for` raises."""
    app = create_app(service, access_for(service, settings), [*ALL_ROUTES, *(AIRI_ROUTES if settings.airi else ())])
    if settings.airi:
        add_airi(app, service, memory)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,  # URLs may hold what somebody searched for
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        limit_concurrency=_MOST_CONNECTIONS,
        ws="none",
    )
    # uvicorn raises the signal again when it has ended; the store is to be closed then, and the exit code to be 0.
    signal.signal(signal.SIGTERM, _end)
    uvicorn.Server(config).run()


def _end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
