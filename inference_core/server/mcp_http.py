"""The MCP server of `serve`, at /mcp, behind the same gate and with the same keys and users as the other routes.

Transport: streamable HTTP without sessions, so any server of the store can answer any request.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from fastapi import FastAPI
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from inference_core.server.api.routes import Needs
from inference_core.server.identity.auth import Permission, Principal
from inference_core.server.identity.gate import MCP_METADATA, MCP_PATH
from inference_core.server.identity.tokens import SCOPE_PREFIX
from inference_core.server.mcp import Caller, MemoryServer
from inference_core.server.problems import Refusal
from inference_core.services.agent_memory_service import AgentMemoryStoreService

_CALLER: Final = ContextVar[Caller]("caller")


class Endpoint:
    """Tells ``app`` who calls, in a context variable: it answers a request in the same context or a copy of it."""

    needs = Needs(Permission.READ)

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. Raises Refusal if the caller may not read, or names no user."""
        request = Request(scope)
        await self.needs(request)
        if request.state.user is None:
            raise Refusal(422, "no-user", "This key belongs to no user; name one with the header Act-As-User")
        principal: Principal = request.state.principal
        may_write = Permission.WRITE in principal.permissions
        token = _CALLER.set(Caller(request.state.user, may_write, principal.actor))
        try:
            await self._app(scope, receive, send)
        finally:
            _CALLER.reset(token)


def add_mcp(app: FastAPI, service: AgentMemoryStoreService, *, issuer: str | None = None) -> None:
    """Serves the memory of ``service`` at /mcp, while ``app`` runs; ``issuer`` is named to clients that have no key."""
    server = MemoryServer(service, _CALLER.get)
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the gate has looked at the host
    server.streamable_http_app(stateless_http=True, json_response=True, transport_security=unchecked)
    app.router.routes.append(Route(MCP_PATH, Endpoint(server.session_manager.asgi_app)))
    app.state.beside.append(server.session_manager.run)
    if issuer is None:
        return

    async def metadata(request: Request) -> Response:
        """Where clients get tokens, as RFC 9728 describes it."""
        scopes = [f"{SCOPE_PREFIX}{one.value}" for one in (Permission.READ, Permission.WRITE)]
        return JSONResponse(
            {
                "resource": str(request.url.replace(path=request.scope.get("root_path", "") + MCP_PATH)),
                "authorization_servers": [issuer],
                "scopes_supported": scopes,
                "bearer_methods_supported": ["header"],
            }
        )

    app.router.routes.append(Route(MCP_METADATA, metadata))
