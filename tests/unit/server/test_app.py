"""Routes that do not say who may use them are not served."""

from __future__ import annotations

import pytest
from server_support import Served, served
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from inference_core import AgentMemoryStoreService, open_store
from inference_core.errors import ConfigurationError
from inference_core.server.app import check_routes, create_app
from inference_core.server.auth import Permission
from inference_core.server.gate import Access
from inference_core.server.routes import Route


async def forgotten() -> int:
    return 1


async def plain(_: Request) -> PlainTextResponse:
    return PlainTextResponse("x")


@pytest.mark.parametrize("path", ["/v1/forgotten", "/healthz/"])
def test_a_route_without_a_permission_stops_the_start(server: Served, path: str):
    """A router that was forgotten served everybody."""
    with pytest.raises(ConfigurationError, match=path):
        create_app(server.service, Access(), [Route("GET", path, None, forgotten, {})])
    create_app(server.service, Access(), [Route("GET", path, Permission.READ, forgotten, {})])
    app = server.app
    app.add_route(path, plain)
    with pytest.raises(ConfigurationError, match=path):
        check_routes(app)


async def test_the_description_names_problems_and_permissions(server: Served):
    async with server.client() as client:
        schema = (await client.get("/openapi.json")).json()
    assert schema == server.app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            assert "application/problem+json" in operation["responses"]["default"]["content"]
            assert "422" not in operation["responses"]
    assert schema["paths"]["/v1/memories"]["post"]["security"] == [{"key": ["write"]}]
    assert schema["paths"]["/healthz"]["get"]["security"] == []


async def test_a_store_that_does_not_answer_is_not_ready():
    with open_store("memory://", embeddings=None) as store:
        other = served(AgentMemoryStoreService(store))
        async with other.client() as client:
            assert (await client.get("/readyz")).status_code == 200
            store.engine.pool.close()
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/version")).json()["version"]
