"""Routes that do not say who may use them are not served."""

from __future__ import annotations

import asyncio

import flaky
import pytest
from flaky import FlakyBackend
from server_support import Served, served
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from inference_core import AgentMemoryStoreService, MemoryStore, open_store
from inference_core.errors import ConfigurationError, StoreUnavailable
from inference_core.server.api import routes
from inference_core.server.api.routes import Route, route
from inference_core.server.app import check_routes, create_app
from inference_core.server.identity.auth import Permission
from inference_core.server.identity.gate import Access
from inference_core.stores.engine import StoreEngine
from inference_core.stores.writer import PATIENCE


async def forgotten() -> int:
    return 1


async def plain(_: Request) -> PlainTextResponse:
    return PlainTextResponse("x")


def _served_at(path: str, permission: Permission | None) -> list[Route]:
    routes = list[Route]()
    route("GET", path, permission, table=routes)(forgotten)
    return routes


@pytest.mark.parametrize("path", ["/v1/forgotten", "/healthz/"])
def test_a_route_without_a_permission_stops_the_start(server: Served, path: str):
    """A router that was forgotten served everybody."""
    with pytest.raises(ConfigurationError, match=path):
        create_app(server.service, Access(), _served_at(path, None))
    create_app(server.service, Access(), _served_at(path, Permission.READ))
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


@pytest.mark.parametrize("fault", ["hang", "down"])
async def test_a_store_whose_writes_hang_or_fail_is_not_ready(monkeypatch: pytest.MonkeyPatch, fault: str):
    """It looked at reads alone. Once the database is back it is ready again, though nobody writes until then."""
    monkeypatch.setattr(flaky, "CALLS", ("apply",))
    monkeypatch.setattr(routes, "READY_S", 0.5)
    backend = FlakyBackend()
    with MemoryStore(StoreEngine(backend)) as store:
        store.engine._writer._hang_s = 0.6
        service = AgentMemoryStoreService(store, timeout=0.1)
        async with served(service).client() as client:

            async def becomes(status: int) -> None:
                async with asyncio.timeout(30):
                    while (await client.get("/readyz")).status_code != status:  # noqa: ASYNC110 - asks
                        await asyncio.sleep(0.05)

            await becomes(200)
            backend.fault = fault
            for _ in range(PATIENCE):
                with pytest.raises(StoreUnavailable):
                    await service.save_memory("ada", "likes tea")
            await becomes(503)
            backend.heal()
            await becomes(200)
