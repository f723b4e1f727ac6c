"""`create_app`: the service as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from inference_core import __version__
from inference_core.errors import ConfigurationError, InferenceCoreError
from inference_core.server import problems
from inference_core.server.api.jobs import Jobs
from inference_core.server.api.routes import Needs, QuickRoute, Route
from inference_core.server.api.user_routes import ALL_ROUTES
from inference_core.server.identity.gate import ACT_AS, PUBLIC, Access, Gate
from inference_core.server.inspector.actions import SCREENS
from inference_core.services.agent_memory_service import AgentMemoryStoreService

_SCHEMA: Final = {"schema": {"$ref": "#/components/schemas/Problem"}}
# FastAPI's own telemetry would record the texts of errors and the queries of URLs; see telemetry.py.
_OWN_TELEMETRY: Final[Any] = dict.fromkeys(("auto_configure", "tracing", "metrics", "logs"), False)
_PROBLEM: Final = {"description": "An error.", "content": {problems.MEDIA_TYPE: _SCHEMA}}


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
        responses={"default": _PROBLEM},
        telemetry=_OWN_TELEMETRY,
        lifespan=lifespan,
    )
    app.state.service, app.state.jobs, app.state.access = service, jobs, access
    app.state.beside = list[Callable[[], AbstractAsyncContextManager[None]]]()  # what runs while the app does
    app.router.route_class = QuickRoute
    for one in [*(ALL_ROUTES if routes is None else routes), *SCREENS]:
        needed = [one.permission.value] if one.permission else []
        app.router.add_api_route(
            one.path,
            one.endpoint,
            methods=[one.method],
            operation_id=one.endpoint.__name__,
            dependencies=[Depends(Needs(one.permission))],
            openapi_extra={"security": [{"key": needed}] if one.permission else []},
            **one.options,
        )
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
        path, needs = getattr(one, "path", "?"), getattr(getattr(one, "endpoint", None), "needs", None)
        if isinstance(one, APIRoute):
            needs = next((each.call for each in one.dependant.dependencies if isinstance(each.call, Needs)), None)
        if path not in PUBLIC and (needs is None or needs.permission is None):
            raise ConfigurationError(f"The route {path} does not say which permission it needs; it is not served")
