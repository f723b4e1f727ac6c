"""The MCP server at /mcp with the official client: many users at once, keys that end, and clients without one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from server_support import BASE, READ_WRITE, Served, served

from inference_core import AgentMemoryStoreService, open_store
from inference_core.effects import run
from inference_core.server.app import check_routes
from inference_core.server.identity import auth
from inference_core.server.identity.auth import Permission, revoke_key
from inference_core.server.mcp import add_mcp

USERS = ("ada", "bob", "åsa@example.com")
READING = ["list_memories", "recall_memories", "why_memory"]


@pytest.fixture
def server() -> Iterator[Served]:
    with open_store("memory://", embeddings=None) as store:
        yield with_mcp(AgentMemoryStoreService(store))


def with_mcp(service: AgentMemoryStoreService, issuer: str | None = None, **access: Any) -> Served:
    server = served(service, **access)
    add_mcp(server.app, service, issuer=issuer)
    check_routes(server.app)
    return server


def http(server: Served, key: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(server.app)  # pyright: ignore[reportArgumentType]
    return httpx2.AsyncClient(transport=transport, base_url=BASE, headers={"Authorization": f"Bearer {key}"})


@asynccontextmanager
async def connected(server: Served, key: str, mode: Any = "auto") -> AsyncGenerator[Client]:
    async with (
        http(server, key) as sent,
        Client(streamable_http_client(f"{BASE}/mcp", http_client=sent), mode=mode) as one,
    ):
        yield one


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_key_has_its_users_memory(server: Served, mode: str):
    async with server.app.router.lifespan_context(server.app):
        async with connected(server, server.key("ada"), mode) as ada:
            saved = await ada.call_tool("save_memory", {"content": "Lives in Rome"})
            assert not saved.is_error, text_of(saved)
            assert "Rome" in text_of(await ada.call_tool("recall_memories", {"query": "Where does she live?"}))
            (content,) = (await ada.read_resource("memory://memories")).contents
            assert "Rome" in str(content)
        async with connected(server, server.key("bob", [Permission.READ]), mode) as bob:
            assert sorted(tool.name for tool in (await bob.list_tools()).tools) == READING
            assert text_of(await bob.call_tool("recall_memories", {"query": "Rome"})) == "No relevant memories found."
            assert (await bob.call_tool("save_memory", {"content": "x"})).is_error


async def test_regression_the_audit_trail_names_the_key_of_a_client(server: Served):
    """Over MCP a write was an agent's, without the key that it came with."""
    keys = [server.key("ada"), server.key("ada")]
    async with server.app.router.lifespan_context(server.app):
        for key in keys:
            async with connected(server, key, "auto") as client:
                assert not (await client.call_tool("save_memory", {"content": f"Fact {key[3:11]}"})).is_error
    actors = [one.actor for one in reversed(server.service.sync.audit("ada"))]
    assert [(one.kind, one.tool, one.id) for one in actors] == [
        ("agent", "save_memory_store", f"key {key[3:11]}") for key in keys
    ]


async def test_who_is_not_let_in_is_refused_as_everywhere(server: Served):
    limited = with_mcp(server.service, "https://id.example.com", rate=1, burst=2, has_issuer=True)
    list_tools = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepts = {"Accept": "application/json, text/event-stream"}

    async def status(server: Served, key: str, **headers: str) -> httpx2.Response:
        async with http(server, key) as client:
            return await client.post("/mcp", json=list_tools, headers=accepts | headers)

    async with (
        server.app.router.lifespan_context(server.app),
        limited.app.router.lifespan_context(limited.app),
    ):
        ada = server.key("ada")
        assert (await status(server, ada)).status_code == 200
        assert (await status(server, ada, Host="evil.example")).status_code == 421
        assert (await status(server, ada, Origin="https://evil.example")).status_code == 403
        assert (await status(server, server.key("ada", [Permission.WRITE]))).status_code == 403
        assert (await status(server, server.key(None, [Permission.READ, Permission.ACT_AS]))).status_code == 422
        refused = await status(server, "ic_0")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        refused = await status(limited, "ic_0")
        where = f"{BASE}/.well-known/oauth-protected-resource/mcp"
        assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{where}"'
        async with http(limited, ada) as client:
            told = (await client.get(where, headers={"Authorization": ""})).json()
            assert (told["resource"], told["authorization_servers"]) == (f"{BASE}/mcp", ["https://id.example.com"])
            assert [(await status(limited, ada)).status_code for _ in range(3)] == [200, 200, 429]
            assert (await client.get("/v1/memories")).status_code == 200  # has a limit of its own


async def test_many_clients_never_see_another_users_memory_while_keys_are_revoked(
    server: Served, monkeypatch: pytest.MonkeyPatch, *, full: bool
):
    """Each text has its user's mark. One client of each user loses its key on the way, and is refused from then on."""
    monkeypatch.setattr(auth, "CACHED_S", 0.0)
    clients, calls = (20, 50) if full else (6, 8)
    marks = {user: f"canary{number}" for number, user in enumerate(USERS)}
    crossed, seen, cut = list[str](), dict.fromkeys(USERS, 0), list[int]()

    async def talk(number: int) -> None:
        user, is_cut, dice = USERS[number % 3], number < 3, random.Random(number)
        key = server.key(user, READ_WRITE)
        try:
            async with connected(server, key, ("auto", "legacy")[number % 2]) as client:
                for call in range(calls):
                    if is_cut and call == calls // 2:
                        run(revoke_key(server.service.scope.engine, key[3:11]))
                    tool, arguments = dice.choice(actions(marks[user], call))
                    told = str((await client.call_tool(tool, arguments)).model_dump())
                    if is_cut and call >= calls // 2:
                        crossed.append(f"answered {user} without a key: {told}")
                    crossed.extend(told for other, mark in marks.items() if other != user and mark in told)
                    seen[user] += marks[user] in told
        except* Exception:  # noqa: BLE001 - what a client raises when it is refused is its own affair
            assert is_cut
            cut.append(number)

    async with server.app.router.lifespan_context(server.app):
        await asyncio.gather(*map(talk, range(clients)))
    assert crossed == []
    assert sorted(cut) == [0, 1, 2]
    assert min(seen.values()) > 1


def actions(mark: str, number: int) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("save_memory", {"content": f"{mark} likes tea {number}"}),
        ("recall_memories", {"query": "canary0 canary1 canary2 tea"}),
        ("recall_memories", {"query": f"{mark} tea"}),
        ("list_memories", {}),
    ]
